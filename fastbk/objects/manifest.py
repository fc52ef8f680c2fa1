"""The manifest of an object: its last entry, which says what all entries before it hold. Pure.

An object's entries are its chunks, then pages of the table of their checksums, then the manifest with what is left of
the table. So nearly all objects have one entry besides their chunks. Numbers are little-endian:

    "FBKO", version (1 byte), 3 zeros, bytes of the head (4), head (JSON), rest of the table (4 a chunk),
    CRC32C of all that (4)
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Annotated

import msgspec

from fastbk.errors import StorageError
from fastbk.native.hashes import crc32c
from fastbk.stream.object_records import VERSION
from fastbk.units import MIB

CHUNK_BYTES = MIB
CHUNK_BYTES_MAX = 2 * MIB
PAGE_CHUNKS = 131_072
"""Checksums of one page: 512 KiB."""
SIZE_BYTES_MAX = 1 << 50
_MARK = b"FBKO"
_FRONT = struct.Struct("<4sB3xI")
_CRC = struct.Struct("<I")


class Manifest(msgspec.Struct, frozen=True):
    """What an object consists of; its table of checksums is beside it."""

    namespace: str
    """The path when it was written, for people: namespaces can be renamed."""
    name: str
    size_bytes: Annotated[int, msgspec.Meta(ge=0, le=SIZE_BYTES_MAX)]
    chunk_bytes: Annotated[int, msgspec.Meta(ge=1, le=CHUNK_BYTES_MAX)]
    """Of each chunk but the last."""
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    created_us: int
    metadata: dict[str, str]

    @property
    def chunk_count(self) -> int:
        """Return how many chunks there are."""
        return -(-self.size_bytes // self.chunk_bytes)

    @property
    def page_count(self) -> int:
        """Return how many entries with full pages of the table lie between chunks and manifest."""
        return self.chunk_count // PAGE_CHUNKS

    def size_of(self, chunk: int) -> int:
        """Return the bytes of a chunk."""
        return min(self.chunk_bytes, self.size_bytes - chunk * self.chunk_bytes)


def put_pages(crcs: array[int]) -> list[bytes]:
    """Return the full pages of a table of checksums."""
    full = len(crcs) - len(crcs) % PAGE_CHUNKS
    return [put_table(crcs[first : first + PAGE_CHUNKS]) for first in range(0, full, PAGE_CHUNKS)]


def put_table(crcs: array[int]) -> bytes:
    """Return checksums as bytes."""
    return _little(crcs).tobytes()


def get_table(raw: bytes | memoryview) -> array[int]:
    """Return what `put_table` wrote. Raises StorageError."""
    if len(raw) % 4:
        raise StorageError("a table of checksums is cut short")
    crcs = array("I")
    crcs.frombytes(raw)
    return _little(crcs)


def _little(crcs: array[int]) -> array[int]:
    if sys.byteorder == "big":
        crcs = crcs[:]
        crcs.byteswap()
    return crcs


def put_manifest(manifest: Manifest, crcs: array[int]) -> bytes:
    """Return the last entry of an object; `crcs`: those of all its chunks."""
    head = msgspec.json.encode(manifest)
    rest = put_table(crcs[len(crcs) - len(crcs) % PAGE_CHUNKS :])
    front = _FRONT.pack(_MARK, VERSION, len(head)) + head + rest
    return front + _CRC.pack(crc32c(front))


def get_manifest(raw: bytes | memoryview) -> tuple[Manifest, array[int]]:
    """Return a manifest, and the checksums that no page before it has. Raises StorageError."""
    whole = bytes(raw)
    front, crc = whole[: -_CRC.size], whole[-_CRC.size :]
    if len(front) < _FRONT.size or _CRC.pack(crc32c(front)) != crc:
        raise StorageError("it is no manifest, or damaged")
    mark, version, size = _FRONT.unpack_from(front)
    if mark != _MARK or version != VERSION:
        raise StorageError(f"it is no manifest of version {VERSION}")
    end = _FRONT.size + size
    try:
        manifest = msgspec.json.decode(front[_FRONT.size : end], type=Manifest)
    except (ValueError, RecursionError) as error:
        raise StorageError("its head cannot be read") from error
    crcs = get_table(front[end:])
    if len(crcs) != manifest.chunk_count % PAGE_CHUNKS:
        raise StorageError("it has checksums of another number of chunks")
    return manifest, crcs


def table_of(pages: Sequence[bytes | memoryview], rest: array[int]) -> array[int]:
    """Return the checksums of all chunks. Raises StorageError."""
    crcs = array("I")
    for page in pages:
        some = get_table(page)
        if len(some) != PAGE_CHUNKS:
            raise StorageError("a page of its checksums has another size")
        crcs.extend(some)
    crcs.extend(rest)
    return crcs
