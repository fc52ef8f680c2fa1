"""`limbo.ids`: the ledgers whose data a bookie has lost, from its rebirth to its first start (INV-X4).

A bookie whose data is gone can be told to start all the same. It then writes down every ledger that
metadata says it held, and every one in recovery, before anybody may know its new incarnation. The
index takes the file in before it answers anything, flushes what follows from it into ledger states,
and removes it. The file counts only for the incarnation that it names.

    "FBKLIMBO" | version u32 | count u32 | incarnation u64 | CRC32C of the ids u32 | CRC32C of the 28 bytes so far u32
    | count ids, i64

Decisions 53 and 137.
"""

from __future__ import annotations

import array
import struct
import sys
from typing import TYPE_CHECKING

from fastbk.errors import check_invariant
from fastbk.native.ffi import CorruptDataError, FormatTooNewError
from fastbk.native.hashes import crc32c
from fastbk.storage.small_files import remove

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fastbk.native.disk import Disk

NAME = "limbo.ids"
MAGIC = b"FBKLIMBO"
VERSION = 1
_HEADER = struct.Struct("<8sIIQII")


def encode(ledger_ids: Iterable[int], incarnation: int) -> bytes:
    """Return the file's bytes; ids are 0..2^63-1."""
    ids = _little_endian(array.array("q", ledger_ids))
    body = ids.tobytes()
    front = _HEADER.pack(MAGIC, VERSION, len(ids), incarnation, crc32c(body), 0)[:-4]
    return front + crc32c(front).to_bytes(4, "little") + body


def decode(raw: bytes, name: str = NAME) -> tuple[int, Sequence[int]]:
    """Return incarnation and ids. Raises CorruptDataError, FormatTooNewError."""
    if len(raw) < _HEADER.size or raw[:8] != MAGIC:
        raise CorruptDataError(f"{name}: not a list of ledgers in limbo, or cut short")
    _, version, count, incarnation, body_crc, front_crc = _HEADER.unpack_from(raw)
    if crc32c(raw[: _HEADER.size - 4]) != front_crc:
        raise CorruptDataError(f"{name}: its header's checksum is wrong")
    if version > VERSION:
        raise FormatTooNewError(
            f"{name} has version {version}, this fastbk knows {VERSION}: start the version that wrote it"
        )
    body = raw[_HEADER.size :]
    if len(body) != 8 * count or crc32c(body) != body_crc:
        raise CorruptDataError(f"{name}: its ids are damaged")
    return incarnation, _little_endian(array.array("q", body))


def write_limbo(disk: Disk, directory: str, ledger_ids: Iterable[int], incarnation: int) -> None:
    """Put the list into a ledger directory, whole and durable."""
    disk.replace_file(f"{directory}/{NAME}", encode(ledger_ids, incarnation))


def read_limbo(disk: Disk, directory: str, incarnation: int) -> Sequence[int]:
    """Return the ids that still have to be put in limbo; none without a file. Raises like `decode`, and OSError."""
    try:
        written_for, ids = decode(disk.read_file(f"{directory}/{NAME}"), f"{directory}/{NAME}")
    except FileNotFoundError:
        return ()
    # A rebirth that was cut short, and after which the old data was found again.
    return ids if written_for == incarnation else ()


def remove_limbo(disk: Disk, directory: str) -> None:
    """Remove the list, its ledgers' states being durable; nothing happens without a file."""
    remove(disk, f"{directory}/{NAME}")


def _little_endian(ids: array.array[int]) -> array.array[int]:
    check_invariant(ids.itemsize == 8, "ledger ids have 8 bytes")
    if sys.byteorder == "big":
        ids.byteswap()
    return ids
