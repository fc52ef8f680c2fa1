"""What is wrong with a write is said before any task starts, with the right form."""

from __future__ import annotations

import pytest
from pyspark.sql.types import ArrayType, BinaryType, LongType, StringType, StructField, StructType

from fastbk.errors import ConfigError
from fastbk.placement.config import PlacementConfig
from fastbk.spark.sink import Columns, write_options
from fastbk.stream.policy import StreamPolicy

HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
PLAIN = StructType([StructField("value", StringType())])


def schema(**types: object) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])  # type: ignore[arg-type]


def test_all_options_are_taken_whatever_their_case() -> None:
    given = {
        "Metadata": "sqlite:/x",
        "topic": "shop/orders",
        "create": "TRUE",
        "onwriter": "fence",
        "valueColumn": "payload",
        "keyColumn": "customer",
        "compression": "zstd",
        "ensemble": "3",
        "ackQuorum": "1",
        "rollBytes": "1GiB",
        "entryBytes": "64KiB",
        "idempotencyKey": "load",
        "placement": '{"policy":"region","enforce":true}',
    }
    columns = schema(payload=BinaryType(), customer=StringType(), headers=HEADERS)
    found = write_options(given, columns, streaming=False, overwrite=False)
    assert found.columns == Columns("payload", "customer", "headers")
    assert (found.metadata, found.stream, found.key) == ("sqlite:/x", "shop/orders", "load")
    assert (found.create, found.is_fencing, found.compression) == (True, True, "zstd")
    assert (found.roll_bytes, found.entry_bytes) == (1 << 30, 1 << 16)
    assert found.quorums_with(StreamPolicy(write_quorum=2)) == (3, 2, 1)
    assert found.placement == PlacementConfig(policy="region", enforce=True)
    found.check_policy(StreamPolicy())
    with pytest.raises(ConfigError, match="counts other domains"):
        found.check_policy(StreamPolicy(placement="zone", placement_enforced=True))
    with pytest.raises(ConfigError, match="quorum"):
        found.check_policy(StreamPolicy(ensemble=5, write_quorum=5, ack_quorum=5))


def test_what_was_read_from_a_stream_is_written_as_it_is() -> None:
    columns = schema(stream=StringType(), segment=LongType(), seq=LongType(), key=BinaryType())
    columns = columns.add("value", BinaryType())
    found = write_options(
        {"metadata": "memory:x", "stream": "a"}, columns, streaming=True, overwrite=False
    )
    assert found.columns == Columns("value", "key", None)


@pytest.mark.parametrize(
    ("given", "columns", "says"),
    [
        ({}, PLAIN, r'\.option\("stream", "shop/orders"\)'),
        ({"stream": "a", "strem": "b"}, PLAIN, "there is no option strem"),
        ({"stream": "a", "create": "yes"}, PLAIN, 'create", "true"'),
        ({"stream": "a", "onWriter": "kill"}, PLAIN, "refuse, fence"),
        ({"stream": "a", "compression": "gzip"}, PLAIN, "none, lz4, zstd"),
        ({"stream": "a", "entryBytes": "1GiB"}, PLAIN, "entryBytes"),
        ({"stream": "a", "ackQuorum": "0"}, PLAIN, "ackQuorum"),
        ({"stream": "a", "placement": "rack"}, PLAIN, "placement rule that nobody can read"),
        ({"stream": "a", "idempotencyKey": "x" * 300}, PLAIN, "key"),
        ({"stream": "a", "idempotencyKey": ""}, PLAIN, "empty"),
        ({"stream": "a", "valueColumn": ""}, PLAIN, "there is no column  to write"),
        ({"stream": "a"}, schema(value=StringType()).add("value", BinaryType()), "several columns"),
        ({"stream": "a", "keyColumn": "k"}, PLAIN, "keyColumn"),
        ({"stream": "a"}, schema(payload=StringType()), "valueColumn"),
        ({"stream": "a"}, schema(value=LongType()), "cast"),
        ({"stream": "a"}, schema(value=StringType(), headers=StringType()), "array<struct"),
        ({"stream": "a"}, schema(value=StringType(), total=LongType()), "total would be lost"),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, str], columns: StructType, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        write_options({"metadata": "memory:x", **given}, columns, streaming=False, overwrite=False)


def test_a_stream_is_not_overwritten() -> None:
    with pytest.raises(ConfigError, match="append"):
        write_options(
            {"metadata": "memory:x", "stream": "a"}, PLAIN, streaming=False, overwrite=True
        )


def test_the_cluster_is_named_where_the_driver_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's environment need not be the driver's."""
    monkeypatch.setenv("FASTBK_METADATA", "sqlite:/there")
    found = write_options({"stream": "a"}, PLAIN, streaming=False, overwrite=False)
    assert found.metadata == "sqlite:/there"
    monkeypatch.delenv("FASTBK_METADATA")
    with pytest.raises(ConfigError, match="no cluster"):
        write_options({"stream": "a"}, PLAIN, streaming=False, overwrite=False)
