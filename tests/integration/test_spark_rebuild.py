"""The rebuild job through Spark, beside an independent replay into a dictionary."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import fastbk.sync
from fastbk.errors import ConfigError, DataLost
from fastbk.spark.jobs import rebuild
from fastbk.spark.jobs.rebuild import RebuildPlan, StateVersion
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.positions import AtSeq
from fastbk.stream.sync import SyncNamespace, SyncStream
from fastbk.testing import LocalCluster
from tests.fixtures.spark import patiently

pytestmark = pytest.mark.timeout(300)

State = dict[bytes | None, tuple[int, bytes]]


@pytest.fixture
def space(client: fastbk.sync.Client, own_name: str) -> SyncNamespace:
    """A namespace of this test's own, whose streams have many segments."""
    namespace = client.namespace(own_name)
    namespace.create(PolicyPatch(roll_bytes=4_000))
    return namespace


class Changes:
    """A stream of random changes, and the state that they make."""

    def __init__(self, stream: SyncStream, rng: random.Random) -> None:
        self.stream = stream
        self.state: State = {}
        self.count = 0
        self._rng = rng

    def append(self, count: int) -> None:
        """Set and delete, and set again, a few keys over and over."""
        with self.stream.writer() as writer:
            for _ in range(count):
                key = b"k%d" % self._rng.randrange(40)
                value = self._rng.randbytes(self._rng.choice((0, 1, 30, 200)))
                writer.append(value, key=key)
                if value:
                    self.state[key] = (self.count, value)
                else:
                    self.state.pop(key, None)
                self.count += 1


def folders(place: Path, kind: str) -> list[str]:
    return sorted(one.name for one in (place / kind).iterdir())


@pytest.mark.long
def test_the_state_is_that_of_a_replay_run_after_run(
    spark: SparkSession,
    cluster: LocalCluster,
    space: SyncNamespace,
    tmp_path: Path,
    rng: random.Random,
) -> None:
    uri, place = cluster.metadata_uri, tmp_path / "state"
    changes = Changes(space.create_stream("changes"), rng)
    plan = RebuildPlan(stream=changes.stream.path, to=str(place), partitions=3)

    def run(one: RebuildPlan = plan) -> StateVersion:
        return patiently(lambda: rebuild.run(spark, uri, one))

    def state() -> State:
        rows = rebuild.state_of(spark, plan.to).collect()
        assert len({row.key for row in rows}) == len(rows)
        return {bytes(row.key): (row.seq, bytes(row.value)) for row in rows}

    assert run().version == 0  # there is nothing yet
    changes.append(300)
    first = run()
    assert len(changes.stream.segments()) > 5
    assert (first.version, first.records, first.keys) == (1, 300, len(changes.state))
    assert state() == changes.state

    changes.append(60)

    class CutOff(Exception):
        pass

    def die_before_the_manifest(line: str) -> None:
        if "written" in line:
            raise CutOff

    with pytest.raises(CutOff):
        patiently(lambda: rebuild.run(spark, uri, plan, report=die_before_the_manifest))
    assert folders(place, "state") == ["version=000001", "version=000002"]
    assert rebuild.last_line(spark, plan.to) == first
    changes.append(60)
    second = run()
    assert (second.version, second.first_seq, second.records) == (2, 300, 120)
    assert state() == changes.state
    assert run() == second  # nothing is new

    changes.append(40)
    assert run().version == 3
    assert state() == changes.state
    assert (
        folders(place, "state")
        == folders(place, "manifest")
        == ["version=000002", "version=000003"]
    )

    with pytest.raises(
        ConfigError, match=r"was made otherwise: schema was .* key was not given and is id;"
    ):
        run(replace(plan, schema="id long", key="id"))
    changes.append(50)
    changes.stream.truncate(AtSeq(480))
    with pytest.raises(DataLost, match=r"records 460\.\.479 were truncated .* --from-scratch"):
        run()
    anew = run(replace(plan, from_scratch=True))
    assert (anew.version, anew.begins_seq, anew.records) == (4, 480, 30)
    left = {key: found for key, found in changes.state.items() if found[0] >= 480}
    assert state() == left
    space.delete_stream("changes")
    Changes(space.create_stream("changes"), rng).append(1)
    with pytest.raises(DataLost, match="deleted and made anew"):
        run()


@pytest.mark.long
def test_json_columns_give_key_order_and_deletions(
    spark: SparkSession,
    cluster: LocalCluster,
    space: SyncNamespace,
    tmp_path: Path,
    rng: random.Random,
) -> None:
    uri, stream = cluster.metadata_uri, space.create_stream("rows")
    plan = RebuildPlan(
        stream=stream.path,
        to=str(tmp_path / "state"),
        schema="op string, row struct<id: long, at: long, name: string>",
        key="row.id",
        sequence="row.at",
        deletes="op=d",
        format="orc",
    )
    wanted: dict[int, tuple[int, str | None]] = {}
    for round_of in range(2):
        with stream.writer() as writer:
            for at in rng.sample(range(100), 100):  # as they come, not as they were made
                made = 2 * at + round_of
                name = None if rng.random() < 0.2 else f"n{made}"
                change = {
                    "op": "u" if name else "d",
                    "row": {"id": made % 7, "at": made, "name": name},
                }
                writer.append(json.dumps(change).encode())
                if wanted.get(made % 7, (-1, None))[0] < made:
                    wanted[made % 7] = (made, name)
        line = patiently(lambda: rebuild.run(spark, uri, plan))
        rows = rebuild.state_of(spark, plan.to).selectExpr("key", "value.row.*").collect()
        assert {row.key: (row.at, row.name) for row in rows} == {
            key: found for key, found in wanted.items() if found[1]
        }
        assert (line.records, line.keys) == (100, len(rows))
    with stream.writer() as writer:
        writer.append(b'{"op": "u", "row": {"id": 1', key=b"")
        writer.append(b"[3]")
        writer.append(b'{"op": "u", "row": {"at": 300}}')
    with pytest.raises(ConfigError, match=r"2 records are no JSON of this schema, .* record 200:"):
        patiently(lambda: rebuild.run(spark, uri, plan))
    plain = RebuildPlan(stream=stream.path, to=str(tmp_path / "plain"))
    with pytest.raises(ConfigError, match=r"202 records have no key: .* --no-key skip"):
        patiently(lambda: rebuild.run(spark, uri, plain))
    line = patiently(lambda: rebuild.run(spark, uri, replace(plain, skip_keyless=True)))
    assert (line.records, line.keyless, line.keys) == (203, 202, 1)
    for schema, key, says in (
        ("id long, name", None, r"--schema id long, name: .*write --schema"),
        ("id long", "ids", r"--key ids: there is no ids in id"),
        ("id struct<a: int>", "id", "name a single value"),
    ):
        with pytest.raises(ConfigError, match=says):
            rebuild.run(spark, uri, replace(plain, schema=schema, key=key))
