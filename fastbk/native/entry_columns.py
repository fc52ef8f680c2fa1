"""Typed face of `client/entry_columns.c`: entries that were read into columns, as Apache Arrow has them in memory.

One call for each table of entries, without the interpreter lock, however many entries it holds.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any, NamedTuple

from fastbk.native._client import ffi, lib
from fastbk.native.ffi import check

ENTRY_WORDS: int = lib.FBK_CLIENT_ENTRY_WORDS
WORD_ID, WORD_LAC, WORD_LENGTH, WORD_AT, WORD_BYTES = range(ENTRY_WORDS)


class Table(NamedTuple):
    """Entries of one answer: its bytes, and `ENTRY_WORDS` int64 for each, as `LedgerCodec.table` gives them."""

    data: bytes | memoryview
    words: array[int] | memoryview


class Sums(NamedTuple):
    """What entries have together."""

    lac_max: int
    data_bytes: int


def sums_of(words: array[int] | memoryview) -> Sums:
    """Return the highest LAC and the bytes of data of a table's entries, at least one."""
    sums = ffi.new("struct fbk_entry_sums *")
    lib.fbk_client_entry_sums(ffi.from_buffer("int64_t[]", words), len(words) // ENTRY_WORDS, sums)
    return Sums(sums.lac_max, sums.data_bytes)


def fill(
    tables: Iterable[Table],
    rows: int,
    *,
    ids: object = None,
    lengths: object = None,
    offsets: object = None,
    values: object = None,
) -> None:
    """Write entries into writable memory: ids and lengths int64, offsets int32 (one more than `rows`), values bytes.

    What is None is not written. Raises NativeFullError where the entries do not fit, ValueError for buffers that are
    too small.
    """
    columns = ffi.new("struct fbk_entry_columns *", {"rows_max": rows})
    kept: list[object] = []
    wanted = (("ids", ids, "int64_t[]", rows), ("lengths", lengths, "int64_t[]", rows))
    for name, buffer, kind, items in (*wanted, ("offsets", offsets, "int32_t[]", rows + 1)):
        if buffer is not None:
            kept.append(_memory(columns, name, buffer, kind, items))
    if values is not None:
        columns.values_room = _room(_memory(columns, "values", values, "uint8_t[]", 0), kept)
    for table in tables:
        words = ffi.from_buffer("int64_t[]", table.words)
        data = ffi.from_buffer("uint8_t[]", table.data)
        count = len(words) // ENTRY_WORDS
        status = lib.fbk_client_entry_columns(columns, data, len(data), words, count)
        check(status, "columns of entries")
    kept.clear()


def _memory(columns: Any, name: str, buffer: object, kind: str, items: int) -> Any:  # noqa: ANN401 -- cffi's
    memory = ffi.from_buffer(kind, buffer, require_writable=True)
    if len(memory) < items:
        raise ValueError(f"{name} has room for {len(memory)} items: {items} are needed")
    setattr(columns, name, memory)
    return memory


def _room(memory: Any, kept: list[object]) -> int:  # noqa: ANN401 -- cffi's
    kept.append(memory)
    return len(memory)
