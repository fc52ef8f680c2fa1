"""Ledger metadata: any value survives its bytes, the bytes are Apache's, and damage is refused by name."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import ConfigError, StorageError
from fastbk.model.entry import DigestType
from fastbk.model.ledger import Fragment, LedgerMetadata, LedgerState

# Made with Google's protobuf runtime from Apache's message definition, behind Apache's text header.
HEADER = "426f6f6b69654d65746164617461466f726d617456657273696f6e09330a"
GOLDEN = {
    HEADER
    + "850108031003180020ffffffffffffffffff012801321d0a0762313a333138310a0762323a333138310a0762333a3331383110"
    "00321e0a0762313a333138310a0762343a333138310a0762333a3331383110e8073803420670617373776448025080d0eab6b733"
    "5a130a0b6170706c69636174696f6e12046661737460feffffffffffffffff01": LedgerMetadata(
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        fragments=(
            Fragment(0, ("b1:3181", "b2:3181", "b3:3181")),
            Fragment(1000, ("b1:3181", "b4:3181", "b3:3181")),
        ),
        digest_type=DigestType.CRC32C,
        password=b"passwd",
        created_ms=1767225600000,
        custom={"application": b"fast"},
        creation_token=-2,
    ),
    HEADER
    + "2608011001187b2007280332120a0e3132372e302e302e313a3331383110003801420048016005": LedgerMetadata(
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        fragments=(Fragment(0, ("127.0.0.1:3181",)),),
        state=LedgerState.CLOSED,
        last_entry_id=7,
        length=123,
        digest_type=DigestType.CRC32,
        creation_token=5,
    ),
}
ids = st.integers(0, 2**63 - 1)
bookies = st.text("abcxyz.:-_019", min_size=1, max_size=12)


@st.composite
def metadatas(draw: st.DrawFn) -> LedgerMetadata:
    ensemble = draw(st.integers(1, 4))
    write_quorum = draw(st.integers(1, ensemble))
    starts = sorted(draw(st.sets(ids, min_size=1, max_size=3)))
    value = LedgerMetadata(
        ensemble_size=ensemble,
        write_quorum=write_quorum,
        ack_quorum=draw(st.integers(1, write_quorum)),
        fragments=tuple(
            Fragment(start, tuple(draw(st.lists(bookies, min_size=ensemble, max_size=ensemble))))
            for start in starts
        ),
        state=draw(st.sampled_from([LedgerState.OPEN, LedgerState.IN_RECOVERY])),
        digest_type=draw(st.none() | st.sampled_from(DigestType)),
        password=draw(st.none() | st.binary(max_size=20)),
        created_ms=draw(st.none() | ids),
        custom=draw(st.dictionaries(st.text(max_size=8), st.binary(max_size=8), max_size=3)),
        creation_token=draw(st.integers(-(2**63), 2**63 - 1)),
    )
    if draw(st.booleans()):
        return value.closed(draw(st.integers(-1, 2**63 - 1)), draw(ids))
    return value


@pytest.mark.parametrize("golden", GOLDEN)
def test_the_bytes_are_apaches(golden: str) -> None:
    assert GOLDEN[golden].to_bytes().hex() == golden
    assert LedgerMetadata.from_bytes(bytes.fromhex(golden)) == GOLDEN[golden]


@given(metadatas())
def test_any_metadata_survives_its_bytes(value: LedgerMetadata) -> None:
    assert LedgerMetadata.from_bytes(value.to_bytes()) == value


@given(metadatas(), st.data())
def test_damaged_bytes_are_refused_or_read_as_other_valid_metadata(
    value: LedgerMetadata, data: st.DataObject
) -> None:
    raw = bytearray(value.to_bytes())
    cut = data.draw(st.integers(0, len(raw)))
    if cut < len(raw):
        raw[cut] ^= data.draw(st.integers(1, 255))
    if data.draw(st.booleans()):
        del raw[cut:]
    # Any other exception fails the test.
    with suppress(StorageError):
        assert LedgerMetadata.from_bytes(bytes(raw)).fragments


@given(metadatas())
def test_unknown_fields_survive_a_rewrite(value: LedgerMetadata) -> None:
    extra = b"\xa2\x06\x03abc" + b"\xa8\x06\x05"  # fields 100 and 101
    message = value.to_bytes()
    head, _, body = message.partition(b"\n")
    size = len(body) - (1 if len(body) < 129 else 2)
    longer = size + len(extra)
    varint = bytes([longer]) if longer < 128 else bytes([longer & 127 | 128, longer >> 7])
    grown = head + b"\n" + varint + body[len(body) - size :] + extra
    read = LedgerMetadata.from_bytes(grown)
    assert read.unknown_fields == extra
    assert read.to_bytes() == grown


def test_newer_and_foreign_formats_are_refused_by_name() -> None:
    with pytest.raises(StorageError, match="version 4"):
        LedgerMetadata.from_bytes(b"BookieMetadataFormatVersion\t4\n\x00")
    with pytest.raises(StorageError, match="does not begin"):
        LedgerMetadata.from_bytes(b"hello\n")


def test_a_closed_ledger_keeps_its_end() -> None:
    value = LedgerMetadata(
        ensemble_size=1, write_quorum=1, ack_quorum=1, fragments=(Fragment(0, ("a",)),)
    ).closed(3, 30)
    assert value.closed(3, 30) == value
    with pytest.raises(ConfigError, match="keeps"):
        value.closed(2, 20)
