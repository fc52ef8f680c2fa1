"""A sink of a pipeline: its writer, where it stands in each source, and outputs packed into entries.

INV-S44: each entry that a pipeline writes says of each source up to where the outputs of its records are in the sink,
in this entry or in one before. All outputs of one source record, for this sink, are in one entry. So what is left of
the log after any crash says where to go on, and nothing beside the log has to.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from itertools import accumulate
from typing import TypeAlias

from fastbk.client.async_tools import TAKEN_AWAY
from fastbk.errors import ConfigError, Error, RecordTooLarge
from fastbk.formats import PRODUCERS, level_of
from fastbk.native.stream_codec import (
    CODEC_NONE,
    HEAD_BYTES,
    KIND_INDEX,
    KIND_PROVENANCE,
    RECORD_OVERHEAD_BYTES_MAX,
    Head,
    encode,
    put_head,
    read_head,
)
from fastbk.observe.tracing import Span
from fastbk.stream.chain import Chain, Segment
from fastbk.stream.chain_store import VersionedChain
from fastbk.stream.context import ContextLike, StreamContext
from fastbk.stream.options import WriterOptions
from fastbk.stream.provenance import SourceRow, get_sources, put_sources
from fastbk.stream.records import Chunk
from fastbk.stream.segment_contents import head_of
from fastbk.stream.writer.queue import EntryGroup, EntryPlace, record_bytes
from fastbk.stream.writer.stream_writer import StreamWriter

SOURCES_MAX = 64
"""Sources that a sink remembers, those that are read no more included: each entry names all of them."""
SEARCHED_SEGMENTS_MAX = 1000
"""Segments of others that opening passes over to find the last one of a pipeline."""
Packed: TypeAlias = tuple[bytes, bytes | None, bytes]
"""An output: payload, key, headers as an entry has them."""


def source_id_of(stream_id: str) -> int:
    """Return a stream's id as a block has it: ids are 16 hex digits."""
    return int(stream_id, 16)


def row_behind(source: int, chunk: Chunk, index: int) -> SourceRow:
    """Return the row that says: the records of the chunk before `index`, and all before them, are complete."""
    seq = chunk.first_seq + index
    return SourceRow(source, *chunk[:index].next_dlsn, seq if chunk.first_seq >= 0 else -1)


class OutputGroup:
    """Outputs that go into one entry: an `EntryGroup`. Without outputs it moves positions only."""

    is_atomic = False
    span: Span | None = None

    def __init__(self, queue: OutputQueue, block_bytes: int) -> None:
        self.payloads: list[bytes] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[bytes] | None = None
        self.size_bytes = HEAD_BYTES + block_bytes
        self.base_bytes = self.size_bytes
        self.rows: tuple[SourceRow, ...] | None = None
        """What its block says; None while more may be added."""
        self._last_before = queue.last_txid
        self._queue = queue

    @property
    def count(self) -> int:
        """How many outputs it has."""
        return len(self.payloads)

    @property
    def data_bytes(self) -> int:
        """Bytes of payloads, keys and headers."""
        return self.size_bytes - self.base_bytes - self.count * RECORD_OVERHEAD_BYTES_MAX

    @property
    def first_txid(self) -> int:
        """Of its first output; of none, the last one before it."""
        return self._last_before + (1 if self.payloads else 0)

    @property
    def last_txid(self) -> int:
        """Of its last output, or the last one before it."""
        return self._last_before + len(self.payloads)

    def add(self, outputs: Sequence[Packed], size_bytes: int) -> None:
        """Put the outputs of one source record behind the others."""
        if self.keys is None and any(key is not None or headers for _, key, headers in outputs):
            self.keys = [None] * len(self.payloads)
            self.headers = [b""] * len(self.payloads)
        for payload, key, headers in outputs:
            self.payloads.append(payload)
            if self.keys is not None and self.headers is not None:
                self.keys.append(key)
                self.headers.append(headers)
        self.size_bytes += size_bytes

    def add_plain(self, payloads: Sequence[bytes], size_bytes: int) -> None:
        """Put payloads without keys and headers behind the others."""
        self.payloads += payloads
        if self.keys is not None and self.headers is not None:
            self.keys += [None] * len(payloads)
            self.headers += [b""] * len(payloads)
        self.size_bytes += size_bytes

    def encode(self, place: EntryPlace) -> bytearray:
        """Return the entry, not compressed; again, where it was not kept, for another place."""
        assert self.rows is not None
        block, last = put_sources(self.rows), self.last_txid
        if not self.payloads:
            out = bytearray(HEAD_BYTES)
            head = Head(
                KIND_PROVENANCE, CODEC_NONE, place.epoch, 0, place.records, last, last, place.time_us,
                0, 0, len(block), place.records_distance,
            )  # fmt: skip
        else:
            txids = array("q", range(self.first_txid, last + 1))
            epoch, records, time_us = place.epoch, place.records, place.time_us
            out = encode(epoch, records, time_us, self.payloads, txids, self.keys, self.headers)
            head = read_head(out)._replace(provenance_bytes=len(block))
        out[HEAD_BYTES:HEAD_BYTES] = block
        put_head(out, head)
        return out

    def resolve(self, segment: int, entry: int) -> None:
        """It is durable."""
        assert self.rows is not None
        self._queue.stored.update((row.stream, row) for row in self.rows)

    def give_up(self, error: Error) -> None:
        """It failed, and the writer with it."""
        self._queue.on_failure()


class OutputQueue:
    """Outputs that are not sent yet: an `EntryQueue`.

    Attributes:
        positions: where the sink stands in each source, with all that was put.
        stored: the same, of what is durable.
        has_moved: positions moved, and no entry that says so was put.
    """

    may_resend = True

    def __init__(
        self, options: WriterOptions, last_txid: int, rows: Sequence[SourceRow], name: str
    ) -> None:
        self.groups: deque[OutputGroup] = deque()
        self.last_txid = last_txid
        self.unacked_bytes = 0
        self.taken = 0
        self.settled = 0
        self.positions = {row.stream: row for row in rows}
        self.stored = dict(self.positions)
        self.has_moved = False
        self.outputs = 0
        self.on_failure: Callable[[], None] = lambda: None
        self._mark: tuple[int, Chunk, int] | None = None
        """A position that is not in `positions` yet: most are overtaken before anybody needs them."""
        self._options = options
        self._batch_bytes = min(options.batch_bytes, options.entry_bytes_max)
        self._name = name

    @property
    def has_room(self) -> bool:
        """Whether what is not acknowledged is within its bound."""
        return self.unacked_bytes <= self._options.unacked_bytes_max

    # --- what is put ------------------------------------------------------------------------------------------------

    def begin_at(self, rows: Sequence[SourceRow]) -> None:
        """Put an entry that says where the sink begins in sources that it has not read yet."""
        self.positions.update((row.stream, row) for row in rows)
        if len(self.positions) > SOURCES_MAX:
            raise ConfigError(
                f"{self._name}: a sink has outputs of at most {SOURCES_MAX} sources, those that are read no more"
                " included. Use another sink."
            )
        self.has_moved = True
        self.put_positions()

    def first_new(self, source: int, chunk: Chunk) -> int:
        """Return the index of the chunk's first record whose outputs the sink does not have yet."""
        return chunk.index_of(self.positions[source].dlsn)

    def put(self, outputs: Sequence[Packed], source: int, chunk: Chunk, index: int) -> None:
        """Put all outputs of one source record. Raises RecordTooLarge, and then nothing has changed."""
        size_bytes = sum(record_bytes(*output) for output in outputs)
        self._check_size(size_bytes, len(outputs), chunk, index)
        self._complete(source, chunk, index)
        self._group_for(size_bytes).add(outputs, size_bytes)
        self._complete(source, chunk, index + 1)
        self._count(len(outputs), size_bytes)

    def put_each(self, payloads: Sequence[bytes], source: int, chunk: Chunk, index: int) -> None:
        """Put one output for each source record from `index` on. Raises RecordTooLarge behind those that fit."""
        ends = list(accumulate(len(payload) + RECORD_OVERHEAD_BYTES_MAX for payload in payloads))
        begin = before = 0
        while begin < len(payloads):
            self._complete(source, chunk, index + begin)
            first_bytes = ends[begin] - before
            self._check_size(first_bytes, 1, chunk, index + begin)
            group = self._group_for(first_bytes)
            room = self._batch_bytes - group.size_bytes
            end = max(bisect_right(ends, before + room), begin + 1)
            size_bytes = ends[end - 1] - before
            group.add_plain(payloads[begin:end], size_bytes)
            self._count(end - begin, size_bytes)
            begin, before = end, ends[end - 1]

    def passed(self, source: int, chunk: Chunk, index: int) -> None:
        """All outputs of the chunk's records before `index` were put; there may be none."""
        self._complete(source, chunk, index)
        self._settle_mark()
        if not self.groups or self.groups[-1].rows is not None:
            self.has_moved = True

    def put_positions(self) -> bool:
        """Put an entry without outputs where positions moved without one; return whether."""
        if not self.has_moved:
            return False
        group = OutputGroup(self, self._block_bytes)
        self.groups.append(group)
        self._freeze(group)
        self.taken += 1
        return True

    def _check_size(self, size_bytes: int, count: int, chunk: Chunk, index: int) -> None:
        room = self._options.entry_bytes_max - HEAD_BYTES - self._block_bytes
        if size_bytes > room:
            raise RecordTooLarge(
                f"{self._name}: the {count} outputs of the source's record {chunk[index].dlsn} have {size_bytes} bytes,"
                f" and one entry takes {room}. Outputs of one record are stored together, so that a crash leaves all"
                " of them or none: make fewer or smaller ones, or raise `entry_bytes_max` (at most 16 MiB)."
            )

    def _group_for(self, size_bytes: int) -> OutputGroup:
        """Return the group that takes so much; one that has no room for it is complete."""
        last = self.groups[-1] if self.groups else None
        if last is not None and last.rows is None:
            if last.size_bytes + size_bytes <= self._batch_bytes:
                return last
            self._freeze(last)
        group = OutputGroup(self, self._block_bytes)
        self.groups.append(group)
        return group

    @property
    def _block_bytes(self) -> int:
        return len(put_sources(())) + 32 * len(self.positions)

    def _count(self, outputs: int, size_bytes: int) -> None:
        self.last_txid += outputs
        self.outputs += outputs
        self.taken += outputs
        self.unacked_bytes += size_bytes

    def _complete(self, source: int, chunk: Chunk, index: int) -> None:
        if index:  # else nothing of it is
            self._mark = source, chunk, index

    def _settle_mark(self) -> None:
        if self._mark is not None:
            self.positions[self._mark[0]] = row_behind(*self._mark)
            self._mark = None

    def _freeze(self, group: OutputGroup) -> None:
        """Nothing is added to the group any more: its block says up to where all is in it or before it."""
        self._settle_mark()
        group.rows = tuple(self.positions.values())
        self.has_moved = False

    # --- what the engine asks ---------------------------------------------------------------------------------------

    def take(self, *, only_full: bool) -> OutputGroup | None:
        """Return the next group to send. `only_full`: the last one, to which more may come, stays."""
        if not self.groups:
            return None
        first = self.groups[0]
        if first.rows is None:
            if only_full and first.size_bytes < self._batch_bytes // 2:
                return None
            self._freeze(first)
        return self.groups.popleft()

    def acknowledged(self, group: EntryGroup) -> None:
        """Count a group that was acknowledged, or failed."""
        assert isinstance(group, OutputGroup)
        self.unacked_bytes -= group.size_bytes - group.base_bytes
        self.settled += group.count or 1


class SinkWriter(StreamWriter):
    """The writer of a sink. Opening it fences the former pipeline, and reads where that one was.

    Attributes:
        outputs: what it appends.
    """

    outputs: OutputQueue

    def __init__(
        self, context: ContextLike, options: WriterOptions, *, may_begin_anew: bool
    ) -> None:
        """`may_begin_anew`: also where nobody knows any more where an earlier pipeline was (INV-S45)."""
        super().__init__(context, options)
        self._may_begin_anew = may_begin_anew

    async def _open_chain(self) -> VersionedChain:
        level, needed = await self._context.client.records.format_level(), level_of(PRODUCERS)
        if level < needed:
            raise ConfigError(
                f"{self._context.name} cannot be a pipeline's sink: that needs format level {needed}, and the"
                f" cluster has {level}. Versions without that level cannot read what pipelines append. Upgrade them,"
                " then run `fastbk cluster finalize`"
            )
        return await super()._open_chain()

    async def _queue_for(self, known: VersionedChain) -> OutputQueue:
        context, chain = self._context, known.chain
        rows = await sources_of_log(context, chain)
        if rows is None and not self._may_begin_anew:
            raise ConfigError(
                f"{context.name}: nothing in its newest {SEARCHED_SEGMENTS_MAX} segments says up to where a pipeline"
                " has read its sources, and older segments were not searched or are deleted. If no pipeline wrote to"
                ' it, or its outputs may be there twice, begin anew: on_unknown="start". It takes effect only here.'
            )
        self.outputs = OutputQueue(self._options, chain.last_txid, rows or (), context.name)
        return self.outputs

    def check(self) -> None:
        """Raise what ended the writer."""
        try:
            self._check()
        except TAKEN_AWAY:
            self._is_reported = True
            raise

    def send(self) -> None:
        """Send what was put."""
        if self.outputs.groups:
            self._opened().queued()


# --- what the log says ----------------------------------------------------------------------------------------------


async def sources_of_log(context: StreamContext, chain: Chain) -> tuple[SourceRow, ...] | None:
    """Return where the last pipeline that wrote to a stream was in its sources; all segments are closed.

    Empty: none ever wrote to it. None: one may have, and what it wrote is deleted or too far back. What others append
    lies in segments of their own, so the last entry of each segment is enough. Raises what reads raise.
    """
    searched = 0
    async for row in _newest_first(context, chain):
        if searched == SEARCHED_SEGMENTS_MAX:
            return None
        searched += 1
        rows = await _sources_of_segment(context, row)
        if rows is not None:
            return rows
    return () if chain.head == 1 else None


async def _newest_first(context: StreamContext, chain: Chain) -> AsyncGenerator[Segment, None]:
    for row in reversed(chain.rows):
        yield row
    for page in reversed(chain.pages):
        for row in reversed(await context.store.page(page)):
            if row.number >= chain.head:
                yield row


async def _sources_of_segment(context: StreamContext, row: Segment) -> tuple[SourceRow, ...] | None:
    async with await context.client.open_ledger(row.ledger_id, recovery=False) as reader:
        last = reader.metadata.last_entry_id
        assert last is not None  # it is closed
        for entry_id in (last, last - 1):
            (entry,) = [entry async for entry in reader.read(entry_id, entry_id)]
            if head_of(entry).kind != KIND_INDEX or entry_id == 0:
                return get_sources(entry.data)
    return None
