"""A chain and its pages as bytes: a mark, a version, and MessagePack packed by zlib (rows are much alike).

Fields may be added behind the others: an older fastbk passes them by, a newer one takes their defaults for missing.
"""

from __future__ import annotations

import zlib
from typing import TypeVar

import msgspec

from fastbk.errors import StorageError
from fastbk.stream.chain.chain import Chain, Segment, verify

T = TypeVar("T")

VERSION = 1
_CHAIN_MARK, _PAGE_MARK = b"FBKC", b"FBKP"
_LEVEL = 1
RAW_BYTES_MAX = 64 * 1024 * 1024
ROWS_MAX = 1280
"""Rows beside the pages; with more, the oldest ones go to a page. A record of metadata has 1 MiB at most."""
PAGE_ROWS = 1024

_chains = msgspec.msgpack.Decoder(Chain)
_pages = msgspec.msgpack.Decoder(tuple[Segment, ...])


def put_chain(chain: Chain) -> bytes:
    """Return a chain's bytes; it is checked first (INV-S2)."""
    verify(chain)
    return _put(_CHAIN_MARK, chain)


def get_chain(raw: bytes) -> Chain:
    """Return what `put_chain` wrote. Raises StorageError."""
    return _get(_CHAIN_MARK, _chains, raw)


def put_page(rows: tuple[Segment, ...]) -> bytes:
    """Return a page's bytes."""
    return _put(_PAGE_MARK, rows)


def get_page(raw: bytes) -> tuple[Segment, ...]:
    """Return what `put_page` wrote. Raises StorageError."""
    return _get(_PAGE_MARK, _pages, raw)


def _put(mark: bytes, value: object) -> bytes:
    return mark + bytes([VERSION]) + zlib.compress(msgspec.msgpack.encode(value), _LEVEL)


def _get(mark: bytes, decoder: msgspec.msgpack.Decoder[T], raw: bytes) -> T:
    if raw[: len(mark)] != mark or len(raw) <= len(mark):
        raise StorageError(f"{len(raw)} bytes are no {mark.decode()} record of a stream")
    if raw[len(mark)] != VERSION:
        raise StorageError(
            f"a record of version {raw[len(mark)]}: this fastbk reads version {VERSION}"
        )
    try:
        unpack = zlib.decompressobj()
        packed = unpack.decompress(raw[len(mark) + 1 :], RAW_BYTES_MAX)
        if not unpack.eof:
            raise StorageError("a stream's record ends too early, or is too long")
        return decoder.decode(packed)
    except (zlib.error, msgspec.MsgspecError, RecursionError) as error:
        raise StorageError(f"a stream's record is damaged: {error}") from error
