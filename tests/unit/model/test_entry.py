"""Apache's entry bytes: test vectors computed with its own code, and refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import ConfigError, DigestMismatch, ProtocolError
from fastbk.model.entry import DigestType, crc32c, make_lac_body, master_key, parse_lac_body
from tests.fixtures.entries import make_entry, parse_entry

HEADER = "0000000000000005000000000000000700000000000000060" + "00000000000007b"
DIGESTS = {
    DigestType.CRC32C: "8f06b47a",
    DigestType.CRC32: "00000000e5fec923",
    DigestType.HMAC: "e9b3fcea3a0ac162a7d7f896480821293c7be57c",
    DigestType.DUMMY: "",
}


def test_master_keys_are_apaches() -> None:
    assert master_key(b"passwd").hex() == "9596625852f7fafc2c9cf0f9f7f3e5995206452b"
    assert master_key(b"").hex() == "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"


def test_crc32c_is_castagnolis() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"6789", crc32c(b"12345")) == 0xE3069283


@pytest.mark.parametrize("kind", DigestType)
def test_entries_are_apaches_bytes(kind: DigestType) -> None:
    entry = make_entry(5, 7, 6, 123, b"hello", kind, b"passwd")
    assert entry.hex() == HEADER + DIGESTS[kind] + b"hello".hex()
    found = parse_entry(entry, kind, b"passwd")
    assert (found.ledger_id, found.entry_id, found.last_add_confirmed, found.length) == (
        5,
        7,
        6,
        123,
    )
    assert found.data == b"hello"


@pytest.mark.parametrize(
    ("kind", "digest"),
    [
        (DigestType.CRC32C, "4e206979"),
        (DigestType.CRC32, "000000004f4fab2f"),
        (DigestType.HMAC, "4588dcbb07344c691fab36c9e5edc7de134111a2"),
    ],
)
def test_explicit_lac_bodies_are_apaches_bytes(kind: DigestType, digest: str) -> None:
    body = make_lac_body(5, 6, kind, b"passwd")
    assert body.hex() == "00000000000000050000000000000006" + digest
    assert parse_lac_body(body, 5, kind, b"passwd") == 6
    assert parse_lac_body(body, 4, kind, b"passwd") is None
    assert parse_lac_body(body[:-1], 5, kind, b"passwd") is None
    assert parse_lac_body(bytes(15) + b"\x07" + body[16:], 0, kind, b"passwd") is None


@given(data=st.binary(max_size=64), flip=st.integers(0, 2**31), kind=st.sampled_from(DigestType))
def test_no_flipped_bit_passes_a_digest(data: bytes, flip: int, kind: DigestType) -> None:
    entry = bytearray(make_entry(1, 2, 1, 100, data, kind, b"x"))
    entry[flip // 8 % len(entry)] ^= 1 << flip % 8
    if kind is DigestType.DUMMY:
        parse_entry(bytes(entry), kind)
    else:
        with pytest.raises(DigestMismatch):
            parse_entry(bytes(entry), kind, b"x")


def test_the_password_matters_to_hmac_only() -> None:
    with pytest.raises(DigestMismatch):
        parse_entry(make_entry(1, 2, 1, 3, b"abc", DigestType.HMAC, b"x"), DigestType.HMAC, b"y")


def test_a_short_entry_is_refused() -> None:
    with pytest.raises(ProtocolError, match="shorter"):
        parse_entry(bytes(35), DigestType.CRC32C)


def test_digest_names() -> None:
    assert DigestType.of("crc32c") is DigestType.CRC32C
    with pytest.raises(ConfigError, match="md5"):
        DigestType.of("md5")
