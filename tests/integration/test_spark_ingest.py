"""The ingest job through Spark: what is in the stream, in which order, and after runs that were cut off."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import fastbk.sync
from fastbk.errors import ConfigError
from fastbk.spark.jobs import ingest
from fastbk.spark.jobs.claims import Owner
from fastbk.spark.jobs.ingest import Ingested, IngestPlan
from fastbk.testing import LocalCluster
from tests.fixtures.spark import patiently

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]

SPLIT = "spark.sql.files.maxPartitionBytes"


def dies() -> None:
    raise KeyboardInterrupt


class Ingest:
    """One ingest into one stream, run again and again."""

    def __init__(self, spark: SparkSession, cluster: LocalCluster, folder: Path, name: str) -> None:
        self.files = folder / "in"
        self.files.mkdir()
        self.stream, self.manifest = f"{name}/s", folder / "manifest"
        self._spark, self._uri = spark, cluster.metadata_uri

    def run(self, *paths: Path | str, **options: object) -> Ingested:
        given = {"create": True, **options}
        plan = IngestPlan(stream=self.stream, manifest=str(self.manifest), **given)
        where = [str(one) for one in paths or (self.files,)]
        return patiently(lambda: ingest.run(self._spark, self._uri, where, plan))

    def records(self) -> list[tuple[bytes | None, bytes]]:
        with fastbk.sync.connect(self._uri) as client:
            namespace, _, name = self.stream.rpartition("/")
            with client.namespace(namespace).stream(name).reader(tail=False) as reader:
                return [(one.key, bytes(one.payload)) for one in reader]

    def values(self) -> list[bytes]:
        return [value for _, value in self.records()]


@pytest.fixture
def job(spark: SparkSession, cluster: LocalCluster, tmp_path: Path, own_name: str) -> Ingest:
    return Ingest(spark, cluster, tmp_path, own_name)


def test_lines_keep_their_order_over_splits_and_runs_that_were_cut_off(
    job: Ingest, spark: SparkSession, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "PARTITION_BYTES", 20_000)
    wanted: dict[str, list[bytes]] = {}
    # The last one is larger than many splits; Spark reads large splits first. Some bytes are no UTF-8.
    for name, count in (("a", 50), ("b é", 3000), ("c", 0), ("d", 2), ("z/e", 6000)):
        lines = [
            b"%s %d %s" % (name.encode(), at, rng.choice([b"", b"\xff\xfe\r"]))
            for at in range(count)
        ]
        path = job.files / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"\n".join(lines))
        wanted[name] = lines
    (job.files / "_hidden").write_text("no")
    spark.conf.set(SPLIT, "10000")
    plan_of_dead = ingest.write_text

    def die_before_done(spark: SparkSession, place: str, text: str) -> None:
        if "group-000002.done" in place:
            raise KeyboardInterrupt
        plan_of_dead(spark, place, text)

    try:
        monkeypatch.setattr(ingest, "write_text", die_before_done)
        with pytest.raises(KeyboardInterrupt):
            job.run(group_bytes=30_000)
        monkeypatch.setattr(ingest, "write_text", plan_of_dead)
        visible = job.values()
        found = job.run(group_bytes=30_000)
    finally:
        spark.conf.unset(SPLIT)
    everything = [line for lines in wanted.values() for line in lines]
    assert job.values() == everything
    # Two groups were visible, of which one was done again, without effect.
    assert 0 < len(visible) < len(everything) and visible == everything[: len(visible)]
    assert (found.files, found.records, found.new_files) == (5, len(everything), 4)
    assert found.groups == 4
    assert job.run().new_files == 0
    assert len(job.records()) == len(everything)


def test_a_group_that_was_never_visible_is_planned_anew_if_its_files_changed(
    job: Ingest, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = job.files / "1.txt", job.files / "2.txt"
    one.write_text("a\nb\n")
    with monkeypatch.context() as patch:
        patch.setattr(ingest, "Observation", dies)  # behind the plan, before the write
        with pytest.raises(KeyboardInterrupt):
            job.run()
    assert [path.name for path in job.manifest.iterdir() if path.suffix == ".json"] == [
        "group-000001.planned.json"
    ]
    one.write_text("c\n")
    other.write_text("d\n")
    assert job.run().new_records == 2
    assert job.values() == [b"c", b"d"]
    # What was taken and changes is told, or taken again.
    one.write_text("e\nf\n")
    os.utime(one, (1, 1))
    with pytest.raises(ConfigError, match=r"1\.txt changed since it was taken"):
        job.run()
    assert job.run(changed="skip").new_files == 0
    assert job.run(changed="again").new_records == 2
    assert job.values() == [b"c", b"d", b"e", b"f"]
    owner = replace(Owner.this(), machine="another")
    (job.manifest / "claims" / "run=000009").write_text(owner.text())
    with pytest.raises(ConfigError, match=r"run 9 of .* has this place since"):
        job.run(changed="skip")
    (job.manifest / "claims" / "run=000009").unlink()
    with pytest.raises(ConfigError, match=r"there is no file at .*missing"):
        job.run(job.files / "missing")
    with pytest.raises(ConfigError, match="format csv: give each a place of its own"):
        job.run(format="csv")


def test_rows_become_json_with_keys_and_files_records(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, own_name: str
) -> None:
    def made(name: str) -> Ingest:
        folder = tmp_path / name
        folder.mkdir()
        return Ingest(spark, cluster, folder, f"{own_name}-{name}")

    csv = made("csv")
    (csv.files / "a.csv").write_text('id,text\n1,"x, y"\n2,z\n')
    (csv.files / "b.csv").write_text("id,text\n3,w\n")
    with pytest.raises(ConfigError, match="no column ID2 for the key: there are id, text"):
        csv.run(format="csv", key="ID2")
    assert csv.run(format="csv", key="id").records == 3
    rows = [(key, json.loads(value)) for key, value in csv.records()]
    assert rows == [
        (b"1", {"id": "1", "text": "x, y"}), (b"2", {"id": "2", "text": "z"}), (b"3", {"id": "3", "text": "w"}),
    ]  # fmt: skip
    parquet = made("parquet")
    table = spark.createDataFrame([(at, f"v{at}") for at in range(20)], "n long, v string")
    table.coalesce(1).write.parquet(str(parquet.files / "t"))
    assert parquet.run(format="parquet", key="n", value="v").records == 20
    assert parquet.records() == [(b"%d" % at, b"v%d" % at) for at in range(20)]
    lines = made("json")
    (lines.files / "x.json").write_text('{"a": {"b": [1, 2]}, "k": 7}\n{"k": 8}\n')
    assert lines.run(format="json", key="k").records == 2
    assert lines.records() == [(b"7", b'{"a":{"b":[1,2]},"k":7}'), (b"8", b'{"k":8}')]
    files = made("binary")
    (files.files / "one").write_bytes(b"\x00\xff\n")
    assert files.run(files.files / "o*", format="binary").records == 1
    ((key, value),) = files.records()
    assert value == b"\x00\xff\n" and key is not None and key.endswith(b"/in/one")
