"""The marks of one cursor in many streams, moved by somebody who keeps positions elsewhere and reads by other means.

Of a cursor only its record is used: it is taken over once, as by any holder, so that two who use one name find out
(INV-S10); each move is then one change of metadata. Nothing is read ahead, and no ledger is made.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from fastbk.errors import Error
from fastbk.stream.context import clock_us, gathered
from fastbk.stream.cursor.opening import CursorRequest, take_over
from fastbk.stream.cursor.state import CursorRecord, Data, check_data
from fastbk.stream.cursor.store import CursorStore, of_cursor, path_of
from fastbk.stream.namespace.catalog import Catalog
from fastbk.stream.paths import split_path
from fastbk.stream.positions import DLSN

TOGETHER = 16
"""Streams whose marks are moved at once."""
RENEW_S = 300.0
"""A mark that stays where it is is noted as used so often."""


@dataclass(slots=True)
class _OpenCursor:
    store: CursorStore[CursorRecord]
    mark: DLSN
    renewed_s: float


class CursorPositions:
    """Cursors of one name. Not safe for several calls at once."""

    def __init__(self, catalog: Catalog, name: str, data: Mapping[str, int | str]) -> None:
        """`data`: the cursors' map, says who moves them. Raises ConfigError for what is no name of a cursor."""
        path_of("", name)
        self._catalog = catalog
        self._name = name
        self._data: Data = check_data(data)
        self._held: dict[str, _OpenCursor] = {}

    async def move(self, marks: Mapping[str, tuple[DLSN, int]]) -> dict[str, Error]:
        """Have the marks there, by the streams' paths: position and number of the first record that is not done.

        A cursor that is not there is made. Returns what could not be moved, and why; the next call tries again.
        """
        failed, now_s = dict[str, Error](), time.monotonic()

        async def move(path: str) -> None:
            mark, seq = marks[path]
            held = self._held.get(path)
            if held is None or held.mark != mark or now_s > held.renewed_s + RENEW_S:
                try:
                    await self._move(path, mark, seq)
                except Error as error:
                    self._held.pop(path, None)
                    failed[path] = error

        await gathered(move, marks, TOGETHER)
        return failed

    async def _move(self, path: str, mark: DLSN, seq: int) -> None:
        held = self._held.get(path)
        if held is None:
            store = await self._opened(path, mark)
            held = self._held[path] = _OpenCursor(store, mark, 0.0)
            is_moved = (store.record.state.mark, store.record.state.mark_seq) != (mark, seq)
        else:
            is_moved = held.mark != mark
        record, now_us = held.store.record, clock_us()
        state = record.state
        if is_moved or state.data != self._data:
            state = replace(
                state,
                serial=state.serial + 1,
                mark=mark,
                mark_seq=seq,
                firsts=(),
                ends=(),
                behinds=(),
                data=self._data,
                time_us=now_us,
            )
        await held.store.write(replace(record, state=state, doomed=(), used_at_us=now_us))
        held.mark, held.renewed_s = mark, time.monotonic()

    async def _opened(self, path: str, mark: DLSN) -> CursorStore[CursorRecord]:
        *where, name = split_path(path)
        context = await self._catalog.context(tuple(where), name)
        store = await take_over(context, self._name, CursorRequest(mark, raises=False))
        for ledger_id in store.record.doomed:  # whoever held it before kept its states there
            await self._catalog.records.retire_ledger_id(
                ledger_id, context.stream_id, of_cursor(self._name)
            )
        return store
