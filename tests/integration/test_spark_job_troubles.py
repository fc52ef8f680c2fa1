"""Jobs where something is odd: names, places, streams that are somebody else's, what runs before have left."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import fastbk.sync
from fastbk.errors import ConfigError
from fastbk.spark.jobs import archive, audit, ingest, rebuild, restore, usage
from fastbk.spark.jobs.ingest import IngestPlan
from fastbk.spark.jobs.rebuild import RebuildPlan
from fastbk.testing import LocalCluster
from tests.fixtures.spark import patiently

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]


def fill(client: fastbk.sync.Client, path: str, count: int) -> None:
    """Append to a stream, made where it is missing."""
    namespace, _, name = path.rpartition("/")
    client.namespace(namespace).create(exist_ok=True)
    stream = client.namespace(namespace).create_stream(name, exist_ok=True)
    with stream.writer() as writer:
        for at in range(count):
            writer.append(b"%d" % at, key=path.encode())


def test_names_that_spark_or_a_list_would_take_for_something_else(
    spark: SparkSession, cluster: LocalCluster, client: fastbk.sync.Client, tmp_path: Path
) -> None:
    uri, place = cluster.metadata_uri, str(tmp_path / "a 50% =é")
    names = ["007", "2026-01-31", "odd/a,b", "odd/ c", "odd/50% =é☃", "odd/%2F:*[x]"]
    for count, name in enumerate(names, 1):
        fill(client, name, count)
    lines = patiently(lambda: archive.run(spark, uri, place, pattern="007|2026-.*|odd/.*"))
    assert {line.stream: line.records for line in lines} == {
        name: count for count, name in enumerate(names, 1)
    }
    for name in ("odd/a,b", "007"):
        found = patiently(partial(restore.run, spark, uri, place, name, f"new/{name},x"))
        assert found.records == 1 + names.index(name)
    plan = RebuildPlan(stream="odd/a,b", to=f"{place}/state")
    assert patiently(lambda: rebuild.run(spark, uri, plan)).records == 3
    (row,) = rebuild.state_of(spark, plan.to).collect()
    assert (bytes(row.key), bytes(row.value)) == (b"odd/a,b", b"2")
    said: list[str] = []
    assert archive.run(spark, uri, place, pattern="od/.*", report=said.append) == []
    assert said == ["no stream matches od/.*"]


def test_a_restore_leaves_streams_alone_that_have_as_many_records_as_a_run(
    spark: SparkSession, cluster: LocalCluster, client: fastbk.sync.Client, tmp_path: Path
) -> None:
    uri, place = cluster.metadata_uri, str(tmp_path / "archive")
    for _ in range(2):
        fill(client, "twice/s", 5)
        patiently(lambda: archive.run(spark, uri, place, streams="twice/s"))
    fill(client, "twice/other", 5)
    with pytest.raises(ConfigError, match=r"twice/other has 5 records that are none of this"):
        restore.run(spark, uri, place, "twice/s", "twice/other")
    assert client.namespace("twice").stream("other").info().records == 5


def test_an_ingest_of_a_folder_passes_its_own_manifest_by(
    spark: SparkSession, cluster: LocalCluster, client: fastbk.sync.Client, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("1\n2\n")
    plan = IngestPlan(stream="own/s", manifest=str(tmp_path / "taken"), create=True)
    for new_files in (1, 0):
        found = patiently(lambda: ingest.run(spark, cluster.metadata_uri, [str(tmp_path)], plan))
        assert found.new_files == new_files
    with client.namespace("own").stream("s").reader(tail=False) as reader:
        assert [bytes(one.payload) for one in reader] == [b"1", b"2"]


def test_what_an_audit_before_has_written_is_not_mixed_with_another_ones(
    spark: SparkSession, cluster: LocalCluster, client: fastbk.sync.Client, tmp_path: Path
) -> None:
    ids = []
    for _ in range(3):
        with client.create_ledger(1, 1, 1) as ledger:
            ledger.append(b"x")
            ids.append(ledger.ledger_id)
    for ledgers in (ids, ids[1:2]):
        plan = audit.AuditPlan(ledgers=ledgers, to=str(tmp_path / "rows"), slice_units=1)
        assert patiently(partial(audit.run, spark, cluster.metadata_uri, plan)).is_whole
        rows = spark.read.parquet(str(tmp_path / "rows")).collect()
        assert sorted(row.ledger for row in rows) == ledgers


def test_usage_is_not_compared_with_a_snapshot_that_was_never_finished(
    spark: SparkSession, cluster: LocalCluster, client: fastbk.sync.Client, tmp_path: Path
) -> None:
    with client.create_ledger(1, 1, 1) as ledger:
        ledger.append(b"x" * 1000)
    snapshots = tmp_path / "snapshots"

    def run() -> usage.Usage:
        return patiently(lambda: usage.run(spark, cluster.metadata_uri, to=str(tmp_path)))

    first = run()
    (taken,) = snapshots.iterdir()
    old = first.taken - timedelta(hours=2)
    taken.rename(snapshots / old.strftime(f"taken={usage.STAMP}"))
    # A run that was killed while it wrote has left this.
    killed = (datetime.now(UTC) - timedelta(hours=1)).strftime(f"taken={usage.STAMP}")
    (snapshots / killed / "_temporary" / "0").mkdir(parents=True)
    second = run()
    assert second.since["last"] == old
    assert second.total.growth["last"] == second.total.bytes - first.total.bytes
    assert [when for when, _ in second.history] == [old, second.taken]
