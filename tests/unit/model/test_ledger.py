"""Ledger metadata of Apache's versions 1 and 2, and protobuf's text form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import StorageError
from fastbk.model import protobuf
from fastbk.model.entry import DigestType
from fastbk.model.ledger import Fragment, LedgerMetadata, LedgerState

VERSION_1 = b"BookieMetadataFormatVersion\t1\n"
VERSION_2 = b"BookieMetadataFormatVersion\t2\n"
HEAD_1 = VERSION_1 + b"2\n3\n0\n0\th1:3181\th2:3181\th3:3181\n50\th1:3181\th4:3181\th3:3181"

# As Apache's writer of version 2 prints it.
TEXT_2 = (
    VERSION_2
    + rb"""quorumSize: 3
ensembleSize: 3
length: 99
lastEntryId: 7
state: CLOSED
segment {
  ensembleMember: "h1:3181"
  ensembleMember: "h2:3181"
  ensembleMember: "h3:3181"
  firstEntryId: 0
}
digestType: HMAC
password: "p\"\\\000\t\377"
ackQuorumSize: 2
ctime: 1600000000000
customMetadata {
  key: "k\303\274"
  value: "v"
}
"""
)


def test_version_1_of_an_open_ledger() -> None:
    found = LedgerMetadata.from_bytes(HEAD_1)
    assert (found.write_quorum, found.ensemble_size, found.ack_quorum) == (2, 3, 2)
    assert found.fragments == (
        Fragment(0, ("h1:3181", "h2:3181", "h3:3181")),
        Fragment(50, ("h1:3181", "h4:3181", "h3:3181")),
    )
    assert (found.state, found.last_entry_id, found.length) == (LedgerState.OPEN, -1, 0)
    assert (found.digest_type, found.password) == (None, None)


def test_version_1_says_in_its_last_line_where_the_ledger_ends() -> None:
    recovering = LedgerMetadata.from_bytes(HEAD_1 + b"\n-102\tCLOSED")
    assert recovering.state is LedgerState.IN_RECOVERY
    closed = LedgerMetadata.from_bytes(
        HEAD_1.replace(b"\n0\n0\t", b"\n640\n0\t") + b"\n63\tCLOSED\n"
    )
    assert (closed.state, closed.last_entry_id, closed.length) == (LedgerState.CLOSED, 63, 640)


def test_version_2_has_all_fields_but_the_token() -> None:
    found = LedgerMetadata.from_bytes(TEXT_2)
    assert found == LedgerMetadata(
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        fragments=(Fragment(0, ("h1:3181", "h2:3181", "h3:3181")),),
        state=LedgerState.CLOSED,
        last_entry_id=7,
        length=99,
        digest_type=DigestType.HMAC,
        password=b'p"\\\0\t\xff',
        created_ms=1_600_000_000_000,
        custom={"kü": b"v"},
    )


def test_what_was_read_as_text_is_written_as_version_3() -> None:
    for raw in (HEAD_1, TEXT_2):
        found = LedgerMetadata.from_bytes(raw)
        assert found.to_bytes().startswith(b"BookieMetadataFormatVersion\t3\n")
        assert LedgerMetadata.from_bytes(found.to_bytes()) == found


@pytest.mark.parametrize(
    "raw",
    [
        VERSION_1,
        VERSION_1 + b"2\n3\n",
        VERSION_1 + b"2\nthree\n0\n0\ta\tb\tc",
        VERSION_1 + b"2\n3\n0\n",
        VERSION_1 + b"2\n3\n0\nx\ta\tb\tc",
        VERSION_1 + b"2\n3\n0\n0\ta\tb",
        VERSION_1 + b"2\n3\n0\n0\t\xff\tb\tc",
        VERSION_2,
        VERSION_2 + b"quorumSize: 1",
        TEXT_2.replace(b"CLOSED", b"GONE"),
        TEXT_2.replace(b"HMAC", b"7"),
        TEXT_2.replace(b"ctime", b"novelty"),
        TEXT_2.replace(b"length: 99", b'length: "99"'),
        TEXT_2.replace(b"  firstEntryId: 0\n", b""),
        TEXT_2.rstrip()[:-1],
        TEXT_2.replace(b"1\n", b"4\n", 1).replace(b"Version\t2", b"Version\t4"),
        b"BookieMetadataFormatVersion\t0\n1\n1\n0\n0\ta",
    ],
)
def test_damage_is_found(raw: bytes) -> None:
    with pytest.raises(StorageError):
        LedgerMetadata.from_bytes(raw)


@given(st.binary(max_size=100))
def test_anything_quoted_reads_back(value: bytes) -> None:
    raw = f'name: "{protobuf.quoted(value)}"\n'.encode()
    assert protobuf.parse_text(raw).content("name") == value


@given(st.binary(max_size=100))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    for version in (VERSION_1, VERSION_2):
        try:
            LedgerMetadata.from_bytes(version + raw)
        except StorageError:
            continue


def test_the_forms_that_others_may_write() -> None:
    message = protobuf.parse_text(
        b"# a comment\n a < b: 'x' \"y\\x41\\101\" ; > , n: -5 e: NAME a { }"
    )
    first, second = message.messages("a")
    assert first.content("b") == b"xyAA"
    assert second.values == {}
    assert (message.word("n"), message.word("e")) == ("-5", "NAME")


@pytest.mark.parametrize(
    "raw",
    [
        b"a",
        b"a:",
        b"a: }",
        b'"a": 1',
        b"a { b: 1",
        b'a "x"',
        b'a: "\\q"',
        b'a: "x',
        b"a {" * 20,
        b"a: \x00",
    ],
)
def test_text_that_is_no_message_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        protobuf.parse_text(raw)
