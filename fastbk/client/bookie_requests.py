"""Requests to bookies about one ledger as frames of the wire, and their answers as replies, digests checked.

`LedgerRequests` serves the client's procedures: one sees the same `Reply` here as in the simulator.
Nothing that fails its digest, or names another ledger or entry than was requested, leaves this file as data. The
functions below it send what only operators request: a bookie's own figures, and which entries of a ledger it holds.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from fastbk.client.bookie_pool import BookiePool
from fastbk.client.connection import Answer
from fastbk.errors import Error, NotEnoughBookies, ProtocolError
from fastbk.model.entry import DigestType, make_lac_body, parse_lac_body
from fastbk.model.ids import BookieId, EntryId, LedgerId, creation_mark
from fastbk.native import client_codec as codec
from fastbk.native.client_codec import LedgerCodec
from fastbk.replication.entry_table import EntryTable
from fastbk.replication.procedure import (
    AddEntries,
    AddEntry,
    BookieRequest,
    ForceLedger,
    Found,
    ListEntries,
    ReadEntries,
    ReadEntry,
    ReadLac,
    Reply,
    WriteLac,
)
from fastbk.wire.messages import InfoReply, decode_reply
from fastbk.wire.statuses import Status, status_name

if TYPE_CHECKING:
    from fastbk.client.ledger_tags import LedgerTag


SmallRequest: TypeAlias = ReadEntry | ReadEntries | ReadLac | WriteLac | ForceLedger | ListEntries
_RANGE = struct.Struct("<qq")
_ABSENT = (Status.NO_ENTRY, Status.NO_LEDGER)


class LedgerRequests:
    """Encodes and decodes for one ledger, with its digest and password.

    Keeps no state between calls, but the body of the LAC that was told last: it goes to each bookie.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        digest_type: DigestType,
        password: bytes,
        flags: int = 0,
        creation_token: int = 0,
    ) -> None:
        """`creation_token`: of the ledger's metadata; bookies refuse what is of another creation (INV-T2)."""
        self.ledger_id = ledger_id
        self.digest_type = digest_type
        self.tag: LedgerTag | None = None
        """What bookies have to see in front of requests; None: nothing."""
        self._creation_mark = mark = creation_mark(creation_token)
        self.add_codec = LedgerCodec(ledger_id, digest_type, password, flags, mark)
        """Encodes the adds of the ledger's own writer, with `flags`."""
        self._password = password
        self._told: tuple[EntryId, bytes] = (-1, b"")
        self._recovery = LedgerCodec(ledger_id, digest_type, password, codec.FLAG_RECOVERY, mark)

    def frame(self, request: BookieRequest, request_id: int) -> bytes | bytearray:
        """Return the frame of a request."""
        if isinstance(request, AddEntry):
            return self._add(request, request_id)
        if isinstance(request, AddEntries):
            entries = request.entries
            return self._recovery.encode_add_batch(
                request_id,
                entries[0].entry_id,
                [entry.lac for entry in entries],
                [entry.length for entry in entries],
                [entry.data for entry in entries],
            )
        return codec.with_creation(self._small(request, request_id), self._creation_mark)

    def _small(self, request: SmallRequest, request_id: int) -> bytes:
        ledger_id = self.ledger_id
        if isinstance(request, ReadEntries):
            return codec.put_read_batch(
                request_id,
                ledger_id,
                request.first,
                request.last,
                request.entries_max,
                request.size_bytes_max,
            )
        if isinstance(request, ReadEntry):
            flags = (codec.FLAG_FENCE if request.fence else 0) | (
                codec.FLAG_HIGH_PRIORITY if request.high_priority else 0
            )
            key = self.add_codec.master_key if request.fence else b""
            return codec.put_read(request_id, ledger_id, request.entry_id, flags, key)
        if isinstance(request, ReadLac):
            flags = codec.FLAG_PIGGYBACK if request.piggyback else 0
            wait_ms = int(request.wait_s * 1000)
            return codec.put_read_lac(request_id, ledger_id, request.previous, wait_ms, flags)
        if isinstance(request, WriteLac):
            lac, body = self._told
            if lac != request.lac or not body:
                lac = request.lac
                body = make_lac_body(ledger_id, lac, self.digest_type, self._password)
                self._told = (lac, body)
            return codec.put_write_lac(request_id, ledger_id, lac, self.add_codec.master_key, body)
        if isinstance(request, ListEntries):
            return codec.put_list_entries(request_id, ledger_id, request.first, request.ranges_max)
        return codec.put_force(request_id, ledger_id)

    def _add(self, request: AddEntry, request_id: int) -> bytearray:
        data = bytes(request.data)
        used = self._recovery if request.recovery else self.add_codec
        frames, _ = used.encode_adds(
            request_id, request.entry_id, request.lac, request.length - len(data), [data]
        )
        return frames

    def reply(self, request: BookieRequest, answer: Answer) -> Reply:
        """Return what an answer to `request` proves."""
        status = answer.status
        if isinstance(request, ReadEntries) and status == Status.OK:
            return self._entries(request, answer)
        if isinstance(request, ReadEntry):
            # A bookie answers a fencing read only when the fence is durable, whatever it then says of the entry.
            fenced = request.fence and status in (Status.OK, *_ABSENT)
            if status == Status.OK:
                return self._entry(request, answer, fenced)
            return Reply(status, fenced=fenced)
        if isinstance(request, ReadLac):
            if status == Status.OK:
                return self._lac(request, answer)
            return Reply(status, fenced=answer.fenced)
        if isinstance(request, ListEntries) and status == Status.OK:
            ranges = tuple(_RANGE.iter_unpack(answer.extra))
            return Reply(status, ranges=ranges, next_entry_id=answer.entry_id)
        return Reply(status, add_wait_s=answer.add_wait_us / 1e6)

    def _whole(self, entry: bytes | memoryview) -> Found | None:
        columns = self.add_codec.whole_entries(entry, len(entry).to_bytes(4, "little"))
        return next((Found(*row) for row in zip(*columns, strict=True)), None)

    def _entry(self, request: ReadEntry, answer: Answer, fenced: bool) -> Reply:
        found = self._whole(answer.entries)
        wanted: EntryId = answer.entry_id if request.entry_id < 0 else request.entry_id
        if found is None or found.entry_id != wanted:
            return Reply(Status.OK, damaged=True, fenced=fenced)
        return Reply(Status.OK, found=(found,), lacs=(found.lac,), fenced=fenced)

    def _entries(self, request: ReadEntries, answer: Answer) -> Reply:
        run = EntryTable(answer.entries, self.add_codec.table(answer.entries, answer.extra))
        whole, found = len(run), run
        # Ids ascend, so the ends tell whether all are among those that were asked for.
        strange = (
            whole > 0 and not request.first <= run[0].entry_id <= run[-1].entry_id <= request.last
        )
        if strange:
            in_range = [
                index
                for index, one in enumerate(run)
                if request.first <= one.entry_id <= request.last
            ]
            found = run[in_range[0] : in_range[-1] + 1] if in_range else run[:0]
        return Reply(
            Status.OK,
            found=found or (),
            damaged=strange or whole < len(answer.extra) // 4,
            lacs=(run.lac_max,) if found else (),
            next_entry_id=answer.entry_id,
            add_wait_s=answer.add_wait_us / 1e6,
        )

    def _lac(self, request: ReadLac, answer: Answer) -> Reply:
        lacs: list[EntryId] = []
        whole: tuple[Found, ...] = ()
        damaged = False
        if answer.extra:
            lac = parse_lac_body(answer.extra, self.ledger_id, self.digest_type, self._password)
            if lac is None:
                damaged = True
            else:
                lacs.append(lac)
        if answer.entries:
            found = self._whole(answer.entries)
            if found is None or found.entry_id != answer.entry_id:
                damaged = True
            else:
                lacs.append(found.lac)
                whole = (found,)
        return Reply(
            Status.OK, found=whole, damaged=damaged, lacs=tuple(lacs), fenced=answer.fenced
        )


# --- requests of operators -------------------------------------------------------------------------


_RANGES_A_CALL = 4096


async def bookie_info(pool: BookiePool, bookie_id: BookieId, timeout_s: float) -> InfoReply:
    """Return a bookie's own figures. Raises NotEnoughBookies, QuorumTimeout or ProtocolError."""
    answer = await pool.peer(bookie_id).request(codec.put_info, timeout_s)
    reply = decode_reply(answer.frame)[2] if answer.kind == codec.INFO_REPLY else None
    if not isinstance(reply, InfoReply):
        raise ProtocolError(f"bookie {bookie_id} answered {status_name(answer.status)} to Info")
    return reply


async def stored_ranges(
    pool: BookiePool,
    bookie_id: BookieId,
    ledger_id: LedgerId,
    timeout_s: float,
    creation_token: int = 0,
) -> list[tuple[EntryId, EntryId]]:
    """Return the ranges [first, last] of consecutive ids of the ledger that the bookie holds, ascending.

    Raises NotEnoughBookies when the bookie is not reached or cannot tell.
    """
    ranges: list[tuple[EntryId, EntryId]] = []
    first = 0
    while True:

        def build(request_id: int, at: EntryId = first) -> bytes:
            frame = codec.put_list_entries(request_id, ledger_id, at, _RANGES_A_CALL)
            return codec.with_creation(frame, creation_mark(creation_token))

        answer = await pool.peer(bookie_id).request(build, timeout_s)
        if answer.status in (Status.NO_LEDGER, Status.NO_ENTRY, Status.OTHER_CREATION):
            return ranges
        if answer.status != Status.OK:
            raise _cannot_list(bookie_id, ledger_id, answer.status)
        for low, high in _RANGE.iter_unpack(answer.extra):
            if ranges and ranges[-1][1] == low - 1:
                ranges[-1] = (ranges[-1][0], high)
            else:
                ranges.append((low, high))
        if answer.entry_id <= first:
            return ranges
        first = answer.entry_id


async def stored_of(
    pool: BookiePool,
    bookie_id: BookieId,
    ledger_id: LedgerId,
    entry_ids: Iterable[EntryId],
    timeout_s: float,
    creation_token: int = 0,
) -> list[EntryId]:
    """Return which of these entries the bookie holds, each read by itself: for bookies that give no list of them.

    Raises NotEnoughBookies when the bookie is not reached or cannot tell.
    """
    held: list[EntryId] = []
    for entry_id in entry_ids:

        def build(request_id: int, at: EntryId = entry_id) -> bytes:
            frame = codec.put_read(request_id, ledger_id, at)
            return codec.with_creation(frame, creation_mark(creation_token))

        answer = await pool.peer(bookie_id).request(build, timeout_s)
        if answer.status == Status.OK:
            held.append(entry_id)
        elif answer.status not in (Status.NO_LEDGER, Status.NO_ENTRY, Status.OTHER_CREATION):
            raise _cannot_list(bookie_id, ledger_id, answer.status)
    return held


def _cannot_list(bookie_id: BookieId, ledger_id: LedgerId, status: int) -> Error:
    return NotEnoughBookies(
        f"bookie {bookie_id} cannot say what it holds of ledger {ledger_id}",
        ledger_id=ledger_id,
        replicas={bookie_id: status_name(status)},
    )
