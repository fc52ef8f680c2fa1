"""The Spark part of `./dev run` on a small ledger: what is in it, and that it notices what is not as it was written."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import fastbk.sync
from demo import spark_stage
from demo.spark_stage import Section, Sum
from fastbk.errors import StorageError
from fastbk.testing import LocalCluster
from tests.fixtures.spark import patiently

pytestmark = pytest.mark.timeout(300)

RECORDS = [
    b"Package: a\nInstalled-Size: 10\nSection: libs\n\n",
    b"Package: b\nSection: libs\nInstalled-Size: 5\n\n",
    b"Package: c\nSection: net\nInstalled-Size: none\n\n",
    b"\xff\x00 no package\n\n",
]


def test_all_is_counted_and_what_differs_is_named(
    spark: SparkSession, cluster: LocalCluster, client: fastbk.sync.Client
) -> None:
    wanted = Sum()
    entries = RECORDS * 300
    with client.create_ledger(3, 3, 2) as writer:
        writer.append_many(entries)
        ledger_id = writer.ledger_id
    for entry in entries:
        wanted.add(entry)
    seen = patiently(lambda: spark_stage.sum_sections(spark, cluster.metadata_uri, ledger_id))
    assert (wanted.entries, wanted.size_bytes) == (1200, sum(map(len, entries)))
    assert spark_stage.differences(wanted, seen.sum) == []
    # As it was written again and again, each package counts once.
    assert seen.sections == [Section("libs", 2, 15 * 1024), Section("net", 1, 0)]
    assert list(spark_stage.lines_of(seen))[-2:] == [
        "  libs            2   15.0 KiB",
        "  net             1        0 B",
    ]


def sum_of(*entries: bytes) -> Sum:
    made = Sum()
    for entry in entries:
        made.add(entry)
    return made


def test_a_wrong_byte_a_wrong_order_and_a_wrong_count_are_differences() -> None:
    wanted = sum_of(b"one", b"two")
    assert wanted.crc == zlib.crc32(b"one") % (2**31 - 1) + 2 * zlib.crc32(b"two") % (2**31 - 1)
    for other, named in (
        (sum_of(b"one", b"twp"), ["sum of checksums"]),
        (sum_of(b"two", b"one"), ["sum of checksums"]),
        (sum_of(b"one"), ["entries", "bytes", "sum of checksums"]),
    ):
        found = spark_stage.differences(wanted, other)
        assert [line.partition(":")[0] for line in found] == named
    assert spark_stage.differences(wanted, wanted) == []


def test_a_look_that_fails_says_why_and_how_to_do_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))  # there is no java in it
    with pytest.raises(
        StorageError, match=r"Spark ended with 1: .*[Jj]ava.*spark\.log.*SPARK=0 leaves"
    ):
        spark_stage.run(f"sqlite:{tmp_path}/none.sqlite", 7, tmp_path)
