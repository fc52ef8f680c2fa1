"""Options of reads: each wrong one is refused with a right one; names are Spark's, without regard to case."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from fastbk.errors import ConfigError
from fastbk.spark.offsets import part_bytes_of
from fastbk.spark.options import BATCH, STREAMING, Option, known, read_options
from fastbk.spark.source import FastbkSource, check_version

ORDERS = {"stream": "shop/orders"}


def test_what_is_not_said_has_its_default() -> None:
    batch = read_options(ORDERS, streaming=False)
    assert (batch.start, batch.end) == ("earliest", "latest")
    assert batch.fail_on_data_loss and batch.payload and not batch.headers and not batch.pushdown
    assert read_options(ORDERS, streaming=True).start == "latest"


def test_the_cluster_is_the_drivers_and_not_the_one_that_a_worker_would_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Workers have an environment of their own, as on a cluster of machines."""
    monkeypatch.setenv("FASTBK_METADATA", "mem:driver")
    told = pickle.dumps(read_options(ORDERS, streaming=False))
    monkeypatch.setenv("FASTBK_METADATA", "mem:worker")
    assert pickle.loads(told).metadata == "mem:driver"
    assert read_options({**ORDERS, "metadata": "mem:said"}, streaming=False).metadata == "mem:said"


def test_names_of_kafkas_connector_are_known_and_case_does_not_matter() -> None:
    given = {"SUBSCRIBE": "a/b, a/c", "maxoffsetspertrigger": "7", "StartingOffsets": "Earliest"}
    found = read_options(given, streaming=True)
    assert (found.streams, found.records_max, found.start) == (("a/b", "a/c"), 7, "earliest")
    assert read_options({"subscribePattern": "a/.*"}, streaming=False).pattern == "a/.*"


def test_ledgers_are_ids_and_ranges() -> None:
    assert read_options({"ledgers": "7, 10-12"}, streaming=False).ledgers == (7, 10, 11, 12)


@pytest.mark.parametrize("text", ["2026-01-31T08:00:00Z", "1769846400000"])
def test_times_are_iso_8601_or_milliseconds(text: str) -> None:
    found = read_options({**ORDERS, "startingTimestamp": text}, streaming=True)
    assert found.start == datetime(2026, 1, 31, 8, tzinfo=UTC)


def test_spans_of_time_have_units_or_are_milliseconds() -> None:
    for text, span_s in (("30s", 30.0), ("1500", 1.5), ("2min", 120.0)):
        assert read_options({**ORDERS, "readTimeout": text}, streaming=False).client_settings == {
            "read_timeout": span_s
        }
    assert read_options(ORDERS, streaming=False).client_settings == {}


def test_sizes_have_units_or_are_bytes() -> None:
    for text, size in (("64MiB", 64 << 20), ("1000", 1000)):
        given = {**ORDERS, "targetPartitionBytes": text}
        assert read_options(given, streaming=False).partition_bytes == size


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, '.option("stream", "shop/orders")'),
        ({**ORDERS, "ledgers": "1"}, "exactly one of"),
        ({**ORDERS, "streamPattern": "x"}, "exactly one of"),
        ({"stream": "shop//orders"}, '.option("stream", "shop/orders")'),
        ({"stream": "a/b,a/b"}, "named twice"),
        ({"streamPattern": "("}, '.option("streamPattern", "shop/.*")'),
        ({"ledgers": "1-"}, '.option("ledgers", "1,2,10-20")'),
        ({"ledgers": "9-1"}, "ascend"),
        ({"ledgers": "0-99999999"}, "more than"),
        ({"ledgers": "1,1"}, "named twice"),
        ({"ledgers": "1", "includeHeaders": "true"}, "only streams"),
        ({**ORDERS, "ledgerPassword": "x"}, "are for ledgers"),
        ({**ORDERS, "failOnDataLoss": "no"}, '.option("failOnDataLoss", "false")'),
        ({**ORDERS, "minPartitions": "0"}, '.option("minPartitions", "8")'),
        ({**ORDERS, "targetPartitionBytes": "many"}, '.option("targetPartitionBytes", "64MiB")'),
        ({**ORDERS, "startingOffsets": "early"}, '.option("startingOffsets", "earliest")'),
        ({**ORDERS, "startingOffsets": "[1]"}, "segment"),
        (
            {**ORDERS, "startingOffsets": '{"a/b": "latest", "a/b": "earliest"}'},
            "a/b is there twice",
        ),
        ({**ORDERS, "startingOffsets": "[" * 100_000}, "nor JSON"),
        ({"streamPattern": "a{99999999999999999999}"}, '.option("streamPattern", "shop/.*")'),
        ({**ORDERS, "minPartitions": "9" * 5000}, '.option("minPartitions", "8")'),
        ({**ORDERS, "retries": "9" * 5000}, '.option("retries", "3")'),
        ({**ORDERS, "readTimeout": "9" * 400}, '.option("readTimeout", "30s")'),
        ({**ORDERS, "readTimeout": "9" * 5000 + "s"}, '.option("readTimeout", "30s")'),
        ({**ORDERS, "targetPartitionBytes": "9" * 400 + "GiB"}, '"64MiB")'),
        ({**ORDERS, "startingTimestamp": "2026-01-31T08:00:00"}, "without a zone"),
        (
            {**ORDERS, "startingTimestamp": "soon"},
            '.option("startingTimestamp", "2026-01-31T08:00:00Z")',
        ),
        (
            {**ORDERS, "startingTimestamp": "1", "startingOffsets": "latest"},
            "leave one of them out",
        ),
        ({**ORDERS, "subscribe": "a/b"}, "given twice"),
        ({**ORDERS, "minpartitons": "5"}, '.option("minPartitions", "8")'),
        ({**ORDERS, "maxbytespertrigger": "5"}, "no option maxBytesPerTrigger for batch reads"),
        ({**ORDERS, "readTimeout": "soon"}, '.option("readTimeout", "30s")'),
        ({**ORDERS, "readTimeout": "0"}, "above 0"),
        ({**ORDERS, "speculativeReadMs": "1s"}, '.option("speculativeReadMs", "500")'),
        ({**ORDERS, "retries": "-1"}, '.option("retries", "3")'),
        ({**ORDERS, "kafka.bootstrap.servers": "x:1"}, "is metadata here"),
        ({**ORDERS, "maxEntriesPerTrigger": "5"}, "no option maxEntriesPerTrigger for batch reads"),
    ],
)
def test_what_is_wrong_is_refused_with_what_is_right(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_options(given, streaming=False)
    assert said in str(error.value)


def test_a_streaming_read_has_no_end() -> None:
    with pytest.raises(ConfigError, match="no option endingOffsets for streaming reads"):
        read_options({**ORDERS, "endingOffsets": "latest"}, streaming=True)


@pytest.mark.parametrize(
    "option", {one.name: one for one in (*BATCH, *STREAMING)}.values(), ids=lambda one: one.name
)
def test_each_example_is_right(option: Option) -> None:
    given = {option.name: option.example}
    if option.name.startswith("ledger"):
        given.setdefault("ledgers", "1")
    elif option.name not in ("stream", "streamPattern"):
        given.update(ORDERS)
    read_options(given, streaming=option in STREAMING)


def test_tables_of_others_are_read_by_the_same_rules() -> None:
    table = (Option("stream", "shop/orders", ("path",)), Option("rollBytes", "1GiB"))
    assert known({"PATH": "a/b", "rollbytes": "5"}, table, "writes") == {
        "stream": "a/b",
        "rollBytes": "5",
    }
    with pytest.raises(ConfigError, match="no option rolbytes for writes"):
        known({"rolbytes": "5"}, table, "writes")


def test_older_versions_of_spark_are_refused() -> None:
    check_version("4.2.0.dev1")
    check_version("10.0")
    with pytest.raises(ConfigError, match=r"4\.1\.3.*needs 4\.2"):
        check_version("4.1.3")


def test_columns_are_those_of_the_options() -> None:
    names = FastbkSource({**ORDERS, "payload": "false", "includeHeaders": "true"}).schema().names
    assert "value" not in names and names[-1] == "headers"
    assert FastbkSource({"ledgers": "1"}).schema().names == ["ledger", "entry", "length", "value"]
    other = StructType([StructField("seq", LongType())])
    with pytest.raises(ConfigError, match="select"):
        FastbkSource(ORDERS).reader(other)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("minPartitions", "100001"),
        ("rowsPerBatch", "10000001"),
        ("rowsPerBatch", "9" * 100_000),
        ("startingOffsets", '{"a/b": ' * 50_000),
        ("startingOffsets", "[" * 50_000),
        ("startingOffsets", "\x1b]0;x\x07" * 100_000),
        ("startingOffsets", '{"\x1b[2J": 1, "\x1b[2J": 2}'),
        ("startingTimestamp", "9" * 100_000),
        ("maxBytesPerTrigger", "1" + "0" * 100_000 + "GiB"),
        ("stream", "a/" + "b" * 1_000_000),
        ("stream", "a/\x1b[2J"),
        ("x" * 1_000_000, "1"),
        ("\x1b[2J", "1"),
    ],
)
def test_hostile_options_get_one_short_line(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_options({"stream": "a/b"} | {name: value}, streaming=None)
    assert len(str(caught.value)) < 2000
    assert str(caught.value).isprintable()


def test_many_names_of_offsets_are_compared_once() -> None:
    """Each was compared with all others where one came twice: hours for some megabytes."""
    names = ", ".join(f'"a/{one}": 1' for one in range(100_000))
    with pytest.raises(ConfigError, match="a/99999 is there twice"):
        read_options(
            {"stream": "a/b", "startingOffsets": f'{{{names}, "a/99999": 2}}'}, streaming=True
        )


def test_a_batch_has_a_bounded_number_of_parts() -> None:
    """A part for each of some billion records would fill the driver's memory."""
    assert part_bytes_of(10**18, 1, 1) == 10**13
    assert part_bytes_of(10**18, 10**9, 1 << 40) == 10**13
