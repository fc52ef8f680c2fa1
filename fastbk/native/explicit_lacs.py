"""Explicit LACs of the index, as their writers signed them: out of its table and back in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.native._bookie import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastbk.native.index import Index


def count(index: Index) -> int:
    """Return how many were kept since the start, those that took another's place included."""
    return int(lib.fbk_index_lacs_kept(index.handle))


def bodies(index: Index) -> list[bytes]:
    """Return all that the table holds, in no order."""
    out = ffi.new("uint8_t[]", lib.fbk_index_lacs_bytes_max())
    size_bytes = lib.fbk_index_lacs(index.handle, out)
    raw = bytes(ffi.buffer(out, size_bytes))
    found, at = [], 0
    while at < len(raw):
        end = at + 1 + raw[at]
        found.append(raw[at + 1 : end])
        at = end
    return found


def put(index: Index, found: Iterable[bytes]) -> int:
    """Put them back; return how many were taken. Not those of ledgers that are not here or in limbo (INV-X4)."""
    return sum(int(lib.fbk_index_put_lac(index.handle, body, len(body))) for body in found)
