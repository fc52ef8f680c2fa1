"""Archives that are not left alone: two runs at once, dead runs, retention that was faster, files that change."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from shutil import copytree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from fastbk.errors import ConfigError, DataLost, StorageError
from fastbk.spark.jobs import archive, restore
from fastbk.spark.jobs.claims import LocalFiles, Owner
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.positions import AtSeq
from fastbk.stream.sync import SyncNamespace, SyncStream
from fastbk.testing import LocalCluster

pytestmark = pytest.mark.timeout(300)


def append(stream: SyncStream, count: int) -> None:
    with stream.writer() as writer:
        for at in range(count):
            writer.append(b"%d" % at * 50, key=b"k")


class Cut(Exception):
    """A run ends here."""


@pytest.mark.long
def test_runs_are_kept_apart_and_what_is_wrong_is_noticed(
    spark: SparkSession, cluster: LocalCluster, space: SyncNamespace, tmp_path: Path
) -> None:
    uri, folder = cluster.metadata_uri, tmp_path / "archive"
    place = str(folder)
    stream = space.create_stream("orders", PolicyPatch(roll_bytes=4000))

    def run(*, take_over: bool = False, until: str = "never") -> list[archive.ArchivedStream]:
        def say(line: str) -> None:
            if until in line:
                raise Cut

        return archive.run(spark, uri, place, streams=stream.path, take_over=take_over, report=say)

    append(stream, 60)
    # A run that ended after it had written and before its manifest has left records that do not count.
    with pytest.raises(Cut):
        run(until="written")
    assert archive.lines_of(spark, place) == []
    assert [one.name for one in (folder / "records").glob("run=*")] == ["run=000001"]
    # While another machine's run has the archive nobody else does anything there.
    claims = LocalFiles(folder / "claims")
    other = Owner("process 1 on elsewhere", "another machine", 1, "5", "then")
    assert claims.create("run=000002", other.text())
    with pytest.raises(ConfigError, match="run 2 of process 1 on elsewhere has this place"):
        run()
    assert [one.name for one in (folder / "records").glob("run=*")] == ["run=000001"]
    (first,) = run(take_over=True)
    assert (first.first_seq, first.records) == (0, 60)
    assert [one.name for one in (folder / "records").glob("run=*")] == ["run=000003"]
    assert claims.names() == []

    append(stream, 30)
    (second,) = run()
    assert (second.first_seq, second.records) == (60, 30)
    # A run that was taken over in the last moment has a manifest all the same; the later one counts.
    for kind in ("records", "manifest"):
        copytree(folder / kind / "run=000003", folder / kind / "run=000002", dirs_exist_ok=True)
    assert [number for number, _ in archive.lines_of(spark, place)] == [3, 4]
    assert archive.records_of(spark, place).count() == 90
    # A restore that ends after the first of two runs goes on with the other one.
    with pytest.raises(Cut):
        restore.run(spark, uri, place, stream.path, f"{space.path}/again", report=_cut)
    found = restore.run(spark, uri, place, stream.path, f"{space.path}/again")
    assert found.records == 90
    again = space.stream("again")
    assert again.info().records == 90
    with stream.reader() as old, again.reader() as new:
        for left, right in zip(islice(old, 90), islice(new, 90), strict=True):
            assert (left.key, bytes(left.payload)) == (right.key, bytes(right.payload))

    (file,) = (folder / "records" / "run=000004").rglob("*.parquet")
    change(file)
    with pytest.raises(StorageError, match="run 4"):
        restore.run(spark, uri, place, stream.path, f"{space.path}/changed")
    assert "changed" not in [one.name for one in space.streams()]

    append(stream, 30)
    stream.truncate(AtSeq(100))
    with pytest.raises(DataLost, match=r"/orders: records 90\.\.99 were truncated"):
        run()
    assert claims.names() == []


def _cut(line: str) -> None:
    raise Cut(line)


def change(file: Path) -> None:
    """Change one letter of one value, as whoever rewrites a file could; the file stays a right one."""
    table = pq.read_table(file, partitioning=None)
    values = table.column("value").to_pylist()
    values[7] = b"x" + values[7][1:]
    at = table.schema.get_field_index("value")
    changed = table.set_column(at, "value", pa.array(values, pa.binary()))
    pq.write_table(changed, file, use_deprecated_int96_timestamps=True)  # as Spark does
    file.with_name(f".{file.name}.crc").unlink()
