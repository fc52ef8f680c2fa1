"""Rebuilds that are not left alone: two runs at once, runs that are killed or taken over, files that are gone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fastbk.errors import ConfigError, StorageError
from fastbk.spark.jobs import rebuild
from fastbk.spark.jobs.claims import LocalFiles, Owner
from fastbk.spark.jobs.rebuild import RebuildPlan, StateVersion
from fastbk.stream.sync import SyncNamespace, SyncStream
from fastbk.testing import LocalCluster
from tests.fixtures.spark import patiently

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]


class Place:
    """A stream of changes, and the place of its state."""

    def __init__(self, spark: SparkSession, uri: str, stream: SyncStream, to: Path) -> None:
        self.uri, self.stream, self.to = uri, stream, to
        self.plan = RebuildPlan(stream=stream.path, to=str(to))
        self._spark = spark

    def append(self, first: int, count: int) -> None:
        with self.stream.writer() as writer:
            for at in range(first, first + count):
                writer.append(b"%d" % at, key=b"k%d" % (at % 50))

    def run(self, **options: object) -> StateVersion:
        return patiently(lambda: rebuild.run(self._spark, self.uri, self.plan, **options))

    def state(self) -> dict[bytes, int]:
        rows = rebuild.state_of(self._spark, self.plan.to).collect()
        assert len({row.key for row in rows}) == len(rows)
        return {bytes(row.key): int(bytes(row.value)) for row in rows}

    def folders(self, kind: str) -> list[int]:
        names = [one.name for one in (self.to / kind).iterdir()]
        return sorted(int(one.removeprefix("version=")) for one in names)


@pytest.fixture
def place(
    spark: SparkSession, cluster: LocalCluster, space: SyncNamespace, tmp_path: Path
) -> Place:
    stream = space.create_stream("changes")
    return Place(spark, cluster.metadata_uri, stream, tmp_path / "state")


def test_a_second_run_is_refused_and_one_that_was_taken_over_does_not_count(place: Place) -> None:
    place.append(0, 60)
    seen: list[StateVersion] = []

    def meanwhile(line: str) -> None:
        if "new records" in line:
            with pytest.raises(ConfigError, match=r"run 1 of process \d+ on .* --take-over"):
                place.run()
            assert not (place.to / "state").exists()
        else:
            seen.append(place.run(take_over=True))

    with pytest.raises(StorageError, match="run 1 does not count"):
        place.run(report=meanwhile)
    assert [one.version for one in seen] == [2]
    assert place.folders("manifest") == [2]
    assert place.state() == {b"k%d" % (at % 50): at for at in range(10, 60)}
    # What the other one wrote is swept away by the next that writes, or has nothing to do.
    assert place.run() == seen[0]
    assert place.folders("state") == [2] and list((place.to / "claims").iterdir()) == []


def test_a_run_that_was_killed_leaves_nothing_that_counts(place: Place) -> None:
    """As `kill -9` leaves it: what was written, and the claim of a process that is gone."""
    place.append(0, 60)
    first = place.run()
    place.append(60, 30)
    claims = LocalFiles(place.to / "claims")

    def die(line: str) -> None:
        if "written" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        place.run(report=die)
    dead = replace(Owner.this(), pid=1 << 22, java=0)
    assert claims.create("run=000002", dead.text())
    assert place.folders("state") == [1, 2] and place.folders("manifest") == [1]
    assert place.state() == {b"k%d" % (at % 50): at for at in range(10, 60)}

    place.append(90, 20)
    second = place.run()
    assert (second.version, second.first_seq, second.records) == (3, first.end_seq, 50)
    assert place.state() == {b"k%d" % (at % 50): at for at in range(60, 110)}
    # Two versions count, though their numbers are not neighbours; the folder between them does not.
    assert place.folders("state") == place.folders("manifest") == [1, 3]
    place.append(110, 1)
    assert place.run().version == 4
    assert place.folders("state") == place.folders("manifest") == [3, 4]


def test_a_version_whose_files_are_not_all_there_is_not_gone_on_from(place: Place) -> None:
    place.append(0, 60)
    place.run()
    largest = max((place.to / "state").rglob("*.parquet"), key=lambda one: one.stat().st_size)
    largest.unlink()
    place.append(60, 10)
    with pytest.raises(StorageError, match=r"was made with 50 keys and has \d+ now"):
        place.run()
    assert place.folders("manifest") == [1]
    place.plan = RebuildPlan(stream=place.plan.stream, to=place.plan.to, from_scratch=True)
    place.run()
    assert place.state() == {b"k%d" % (at % 50): at for at in range(20, 70)}
