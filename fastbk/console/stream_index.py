"""What metadata says of all streams, read in the background, so that lists and searches answer from memory."""

from __future__ import annotations

import asyncio
import time
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.errors import Error, StorageError
from fastbk.observe import logs
from fastbk.stream.janitor.all_streams import StreamSnapshot, all_streams
from fastbk.stream.namespace.listing import kept_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastbk.stream.chain.chain import Chain
    from fastbk.stream.client import Client

INTERVAL_S = 15.0
"""Between two passes; a pass over many streams may use a fifth of the time."""
SHARE_MAX = 0.2
STREAMS_MAX = 100_000
"""Listed; further ones are counted. A row takes 1 to 2 KB."""
LEDGERS_MAX = 100
"""Of a row: the newest ones. A search for an older ledger finds the ledger, which names its stream."""


@dataclass(frozen=True, slots=True)
class StreamRow:
    """One stream, as the last pass found it. Sizes are of its closed segments, one copy.

    Attributes:
        path: namespace and name. namespace: without the name, "": the root.
        open_segments: 1 while somebody writes, or did.
        last_time_us: of the last record of a closed segment, since 1970; -1: none.
        ledgers: of the newest segments, LEDGERS_MAX at most, the newest last.
    """

    path: str
    namespace: str
    stream_id: str
    segments: int
    open_segments: int
    records: int
    size_bytes: int
    last_time_us: int
    is_sealed: bool
    owner: str
    ledgers: array[int]
    fault: str = ""
    """Why its records cannot be read; "": they can."""


class StreamIndex:
    """All streams of a cluster by path.

    Attributes:
        rows: sorted by path.
        left_out: streams beyond STREAMS_MAX.
        read_s: wall clock of the last whole pass; None: none has ended.
        took_s: how long it took.
        error: why there is nothing newer, "" if there is.
    """

    def __init__(self, client: Client) -> None:
        """Nothing is read yet."""
        self._client = client
        self.rows: tuple[StreamRow, ...] = ()
        self.left_out = 0
        self.read_s: float | None = None
        self.took_s = 0.0
        self.error = ""

    async def run(self) -> None:
        """Pass over all streams again and again, until cancelled."""
        while True:
            began_s = time.monotonic()
            try:
                await self.pass_once()
                self.error = ""
            except Error as error:
                self.error = f"streams cannot be read: {error}"
                logs.warning("console.streams_not_read", reason=str(error))
            self.took_s = time.monotonic() - began_s
            await asyncio.sleep(max(INTERVAL_S, self.took_s / SHARE_MAX))

    async def pass_once(self) -> None:
        """Read all streams once. Raises MetadataUnavailable, StorageError."""
        rows: list[StreamRow] = []
        left_out = 0
        async for snapshots in all_streams(self._client.records):
            found = await self._rows_of(snapshots)
            room = STREAMS_MAX - len(rows)
            rows += found[:room]
            left_out += len(found) - len(found[:room])
            await asyncio.sleep(0)
        rows.sort(key=lambda one: one.path)
        self.rows, self.left_out, self.read_s = tuple(rows), left_out, time.time()

    async def _size_of(self, chain: Chain) -> int:
        try:
            (size_bytes,) = await kept_bytes(self._client.records, [chain])
        except StorageError:
            return 0
        return size_bytes

    async def _rows_of(self, snapshots: Sequence[StreamSnapshot]) -> list[StreamRow]:
        shown = [
            (one, one.record, one.known.chain)
            for one in snapshots
            if one.path
            and one.record is not None
            and one.known is not None
            and not one.record.deleting
        ]
        try:
            sizes = await kept_bytes(self._client.records, [chain for _, _, chain in shown])
        except StorageError:  # one page of one of them: the others are asked for alone
            sizes = [await self._size_of(chain) for _, _, chain in shown]
        bad = [
            StreamRow(
                one.path, one.path.rpartition("/")[0], one.stream_id, 0, 0, 0, 0, -1, False, "", array("q"),
                str(one.trouble),
            )
            for one in snapshots
            if one.path and one.known is None and one.trouble is not None
        ]  # fmt: skip
        return bad + [
            StreamRow(
                snapshot.path,
                snapshot.path.rpartition("/")[0],
                snapshot.stream_id,
                chain.next_number - chain.head,
                len(chain.open_rows),
                chain.end_seq - chain.head_seq,
                size_bytes,
                chain.newest_time_us,
                chain.is_sealed,
                chain.owner,
                array("q", (one.ledger_id for one in chain.rows[-LEDGERS_MAX:])),
            )
            for (snapshot, _, chain), size_bytes in zip(shown, sizes, strict=True)
        ]
