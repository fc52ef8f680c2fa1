"""A stream's chain: its segments, and all that changes together with them, as values and bytes; pure.

The chain is one record of metadata, replaced by compare-and-set. Rows of old segments lie in pages, records of their
own that never change (`PageRef`).

The last segments may be open: the one that is written, and one that was made ready behind it, so that a roll needs no
metadata. All others are closed, and what they hold is known here. The second part has the changes.

Decision 64.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from fastbk.errors import (
    ConfigError,
    InvariantError,
    MetadataConflict,
    StorageError,
    StreamSealed,
    WrongStreamKind,
    check_invariant,
)
from fastbk.stream.positions import CARRIED_US_MAX, DLSN, FIRST, Count, Number, TimeUs, Txid

NONE = -1
OPEN_SEGMENTS_MAX = 2
DOOMED_MAX = 256
"""Ledgers that wait to be deleted; a change that would name more waits for the janitor."""
ATTACHMENTS_MAX = 256
ONCE = "once/"
"""How keys begin that are used for one attachment, and asked for until its answer has come: few of them are kept."""
ONCE_MAX = 16
LISTED_ROWS_MAX = 8192
"""Rows that a record may list: more than any writer makes (`ROWS_MAX`, and those of one attachment)."""
LISTED_PAGES_MAX = 16_384
LISTED_MAX = 1024
"""Of what else a chain lists. A record may come from anybody who may write to its stream, packed by a thousand: whoever
reads it, a gateway or a janitor for all streams, must not be held up by it."""
KEY_CHARACTERS_MAX = 500
"""Maximum length of the key of an attachment."""
OWNER_CHARACTERS_MAX = 200
"""Maximum length of an owner's name: more is no hint for people. That of an opening has a host's name in it."""
ID_CHARACTERS_MAX = 64
PRODUCER_PAGES_MAX = 8
"""Maximum pages of a table of producers: one of 10,000 names of 64 bytes takes four."""
PAGE_NAME_CHARACTERS_MAX = 40
EPOCH_MAX = (1 << 32) - 1
"""Entries have 64 bits for it; no stream is opened so often."""
KindName: TypeAlias = Literal["writer", "producers"]
Epoch = Annotated[int, msgspec.Meta(ge=0, le=EPOCH_MAX)]
LedgerNumber = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class SegmentState(enum.IntEnum):
    """State of a row of the chain."""

    OPEN = 1
    CLOSED = 2


class StreamKind(enum.IntEnum):
    """Who appends to a stream. It is of one kind at a time (INV-S28)."""

    WRITER = 0
    """One writer, which the next one fences; or nobody has appended yet."""
    PRODUCERS = 1
    """Any number of producers, by the service that owns the stream."""

    @property
    def label(self) -> KindName:
        """Return what people call it."""
        return "producers" if self is StreamKind.PRODUCERS else "writer"

    @classmethod
    def of(cls, label: KindName) -> StreamKind:
        """Return the kind that people call so. Raises ConfigError."""
        kind = next((kind for kind in cls if kind.label == label), None)
        if kind is None:
            raise ConfigError(f"{label!r} is no kind of a stream: write writer or producers")
        return kind


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """One row: a ledger and what it holds. Of an open one only what is said so counts."""

    number: Count
    """Number of the segment, from 1, without holes."""
    ledger_id: LedgerNumber
    state: SegmentState
    epoch: Epoch
    """Epoch of the writer that made it."""
    created_us: TimeUs
    base_seq: Number = NONE
    """Sequence number of its first record; NONE while the segment before it is open."""
    base_txid: Txid = 0
    """What its entries' transaction ids are relative to; not 0 only where a ledger was attached."""
    records: Count = 0
    first_txid: Txid = NONE
    last_txid: Txid = NONE
    first_time_us: TimeUs = NONE
    last_time_us: TimeUs = NONE
    last_entry_id: Number = NONE
    """Id of its last entry with records."""
    index_entry_id: Number = NONE
    """Id of the index entry behind its records; NONE where its writer did not get to write one."""
    size_bytes: Count = 0
    """Bytes of all its entries' data."""

    @property
    def is_open(self) -> bool:
        """Whether somebody may still write to it."""
        return self.state is SegmentState.OPEN

    @property
    def end_seq(self) -> int:
        """The number behind its last record, of a closed one."""
        return self.base_seq + self.records

    @property
    def is_kept(self) -> bool:
        """Whether a closed one holds anything: records, or only names of producers that were opened."""
        return self.records > 0 or self.size_bytes > 0


class PageRef(msgspec.Struct, frozen=True, array_like=True):
    """A page of rows that lie outside the chain's own record: which, and what a search has to know of them."""

    page: Count
    """Its number, from 0; with the token it is the name of the page's record."""
    token: Count
    """Drawn for it: two who spill at once write two records, and the chain names one."""
    first: Count
    last: Count
    """Numbers of its first and last segment."""
    base_seq: Number
    first_txid: Txid
    last_txid: Txid
    first_time_us: TimeUs
    last_time_us: TimeUs
    """The latest of its segments' last times."""
    last_created_us: TimeUs
    size_bytes: Count
    """Bytes of all its segments."""


class Attachment(msgspec.Struct, frozen=True, array_like=True):
    """That ledgers were attached under this key, the last time with this number: a repeat does nothing."""

    key: Annotated[str, msgspec.Meta(max_length=KEY_CHARACTERS_MAX)]
    number: Number


class Chain(msgspec.Struct, frozen=True, array_like=True):
    """All of a stream's segments, and its state."""

    stream_id: Annotated[str, msgspec.Meta(max_length=ID_CHARACTERS_MAX)]
    epoch: Epoch = 0
    """Rises with each writer that opened the stream."""
    owner: Annotated[str, msgspec.Meta(max_length=OWNER_CHARACTERS_MAX)] = ""
    """Who the writer of that epoch said it was: a hint for people."""
    is_sealed: bool = False
    trim: DLSN = FIRST
    """Records before it are gone for every reader; never falls."""
    head: Count = 1
    """Segments below it are gone, ledgers and all."""
    deleting: Count = 1
    """Segments below it, and not below `head`, are being deleted."""
    head_seq: Number = 0
    """Sequence number of the first record of segment `head`."""
    next_page: Count = 0
    pages: Annotated[tuple[PageRef, ...], msgspec.Meta(max_length=LISTED_PAGES_MAX)] = ()
    rows: Annotated[tuple[Segment, ...], msgspec.Meta(max_length=LISTED_ROWS_MAX)] = ()
    """Those that are in no page, ascending; the last ones may be open."""
    next_number: Count = 1
    """The number of the next segment."""
    end_seq: Number = 0
    """Sequence number behind the last record of the last closed segment."""
    last_dlsn: DLSN | None = None
    """DLSN of the last record of all closed segments, also when these are gone."""
    last_txid: Txid = NONE
    last_time_us: TimeUs = NONE
    """The latest time of any record so far, which a wrong clock may have set: see `newest_time_us`."""
    reserved: Annotated[int, msgspec.Meta(ge=NONE, le=(1 << 63) - 1)] = NONE
    """A ledger id that the writer of this epoch is about to create a ledger with (INV-S8)."""
    doomed: Annotated[tuple[LedgerNumber, ...], msgspec.Meta(max_length=LISTED_MAX)] = ()
    """Ledgers to be deleted that are in no row."""
    attachments: Annotated[tuple[Attachment, ...], msgspec.Meta(max_length=LISTED_MAX)] = ()
    kind: StreamKind = StreamKind.WRITER
    """Not WRITER only in clusters of a format level that has it: versions below would write the chain without it."""
    producer_pages: Annotated[
        tuple[Annotated[str, msgspec.Meta(max_length=PAGE_NAME_CHARACTERS_MAX)], ...],
        msgspec.Meta(max_length=PRODUCER_PAGES_MAX),
    ] = ()
    """Names of the records that have the table of producers, of the last change of the kind away from PRODUCERS.

    They count as long as the newest segment has no provenance.
    """

    @property
    def is_untouched(self) -> bool:
        """Whether nobody has stored anything, nor begun a segment."""
        return not self.rows and not self.pages and self.last_dlsn is None

    @property
    def first_row(self) -> int:
        """The number of the first row that is in no page."""
        return self.rows[0].number if self.rows else self.next_number

    @property
    def items(self) -> int:
        """How much it lists: an item has some 500 bytes of memory, the rest of a chain at most 100 KB."""
        return len(self.pages) + len(self.rows) + len(self.doomed) + len(self.attachments)

    @property
    def open_rows(self) -> tuple[Segment, ...]:
        """The open segments, ascending."""
        return tuple(row for row in self.rows[-OPEN_SEGMENTS_MAX:] if row.is_open)

    @property
    def newest_time_us(self) -> int:
        """The time of the last record of all closed segments; -1: there was none."""
        closed = self.rows[-OPEN_SEGMENTS_MAX - 1 :]
        return next(
            (row.last_time_us for row in reversed(closed) if not row.is_open), self.last_time_us
        )

    def attached_number(self, key: str) -> int:
        """Return the last number that was attached under `key`; -1 if none was, or many other keys came after it."""
        return next(
            (attachment.number for attachment in self.attachments if attachment.key == key), NONE
        )

    def row(self, number: int) -> Segment | None:
        """Return a row that is in no page."""
        index = number - self.first_row
        return self.rows[index] if 0 <= index < len(self.rows) else None

    def page_of(self, number: int) -> PageRef | None:
        """Return the page that has this segment's row."""
        return next((page for page in self.pages if page.first <= number <= page.last), None)


def made_behind_us(items: Sequence[PageRef | Segment], place: int) -> int | None:
    """Return when a segment was made that was certainly made behind the end of this one, as its writer's clock said.

    A later epoch begins with all segments closed; of the same epoch the next segment is made while records are still
    appended to this one, and the one behind it is not. None: there is no such segment among the items.
    """
    epoch = getattr(items[place], "epoch", None)
    for behind in items[place + 1 : place + 2]:
        if isinstance(behind, Segment) and epoch is not None and behind.epoch != epoch:
            return behind.created_us
    for behind in items[place + 2 : place + 3]:
        if isinstance(behind, Segment):
            return behind.created_us
    return None


def verify(chain: Chain) -> None:
    """Check what holds for every chain (INV-S2): a broken one is never written."""
    expected = chain.pages[0].first if chain.pages else chain.head
    check_invariant(
        expected <= chain.head <= chain.deleting <= chain.next_number,
        "INV-S2: head and deleting are in order",
    )
    for page in chain.pages:
        check_invariant(
            page.first == expected and page.last >= page.first, "INV-S2: pages follow each other"
        )
        expected = page.last + 1
    for row in chain.rows:
        check_invariant(row.number == expected, "INV-S2: rows follow each other")
        expected += 1
    check_invariant(expected == chain.next_number, "INV-S2: the next number follows the last row")
    states = [row.is_open for row in chain.rows]
    check_invariant(
        states == sorted(states) and sum(states) <= OPEN_SEGMENTS_MAX,
        "INV-S2: open segments are the last ones",
    )
    seq = chain.head_seq
    for row in chain.rows:
        if row.is_open:
            check_invariant(
                row.base_seq in (NONE, chain.end_seq), "INV-S3: an open segment begins at the end"
            )
        else:
            check_invariant(
                row.is_kept and row.base_seq >= seq, "INV-S3: sequence numbers have no holes"
            )
            seq = row.end_seq
    check_invariant(seq <= chain.end_seq, "INV-S3: the end lies behind the last closed segment")
    check_invariant(
        len(chain.doomed) <= DOOMED_MAX + OPEN_SEGMENTS_MAX + 1,
        "INV-S8: doomed ledgers are bounded",
    )


# --- bytes ------------------------------------------------------------------------------------------------------
# A mark, a version, and MessagePack packed by zlib (rows are much alike). Fields may be added behind the others: an
# older fastbk passes them by, a newer one takes their defaults for missing.

T = TypeVar("T")

VERSION = 1
_CHAIN_MARK, _PAGE_MARK = b"FBKC", b"FBKP"
_LEVEL = 1
RAW_BYTES_MAX = 2 * 1024 * 1024
"""Maximum bytes of a record unpacked: eight times what a chain of a million segments has."""
ROWS_MAX = 1280
"""Rows beside the pages; with more, the oldest ones go to a page. A record of metadata has 1 MiB at most."""
PAGE_ROWS = 1024

_chains = msgspec.msgpack.Decoder(Chain)
_pages = msgspec.msgpack.Decoder(Annotated[tuple[Segment, ...], msgspec.Meta(max_length=PAGE_ROWS)])


def put_chain(chain: Chain) -> bytes:
    """Return a chain's bytes; it is checked first (INV-S2)."""
    verify(chain)
    return _put(_CHAIN_MARK, _chains, chain)


def get_chain(raw: bytes) -> Chain:
    """Return what `put_chain` wrote. Raises StorageError, also for one that no fastbk writes (INV-S14)."""
    chain = _get(_CHAIN_MARK, _chains, raw)
    try:
        verify(chain)
    except (
        InvariantError
    ) as broken:  # the record is another's: that it is wrong is no bug of this process
        raise StorageError(f"a stream's chain contradicts itself: {broken}") from None
    return chain


def put_page(rows: tuple[Segment, ...]) -> bytes:
    """Return a page's bytes."""
    return _put(_PAGE_MARK, _pages, rows)


def get_page(raw: bytes) -> tuple[Segment, ...]:
    """Return what `put_page` wrote. Raises StorageError."""
    return _get(_PAGE_MARK, _pages, raw)


def _put(mark: bytes, decoder: msgspec.msgpack.Decoder[T], value: T) -> bytes:
    packed = msgspec.msgpack.encode(value)
    try:
        decoder.decode(packed)
    except ValueError as error:  # what a ledger's entries say may be out of bounds, too
        raise StorageError(f"a stream's record would be one that nobody reads: {error}") from error
    if len(packed) > RAW_BYTES_MAX:
        raise StorageError(
            f"a stream's record has {len(packed)} bytes, and at most {RAW_BYTES_MAX}"
        )
    return mark + bytes([VERSION]) + zlib.compress(packed, _LEVEL)


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
    except (zlib.error, ValueError, RecursionError) as error:
        raise StorageError(f"a stream's record is damaged: {error}") from error


# --- changes --------------------------------------------------------------------------------------
#
# Changes of a chain: pure functions from one to the next (INV-S2 to INV-S4, INV-S6 to INV-S9,
# INV-S15, INV-S28).
#
# What a change may not do it refuses with an error. Whoever made a change writes the chain by
# compare-and-set, and decides anew when somebody was faster, or when nobody knows whether it was
# written (`store.py`): a change that is there already changes nothing.


CONDEMNED = "(deleted)"
"""The owner of a stream that is being deleted."""

# --- writers ----------------------------------------------------------------------------------------------------


def _check_not_sealed(chain: Chain) -> None:
    if chain.is_sealed:
        raise StreamSealed(f"stream {chain.stream_id} has ended: nothing can be appended to it")


def check_epoch(chain: Chain, epoch: int) -> None:
    """Raise MetadataConflict when another writer has opened the stream since `epoch` (INV-S6)."""
    if chain.epoch != epoch:
        raise MetadataConflict(
            f"stream {chain.stream_id} was opened by {chain.owner or 'another writer'} (epoch {chain.epoch},"
            f" ours is {epoch})"
        )


def _row_of(chain: Chain, ledger_id: int) -> Segment | None:
    return next((row for row in reversed(chain.rows) if row.ledger_id == ledger_id), None)


def _doom(chain: Chain, *ledger_ids: int) -> Chain:
    more = tuple(
        ledger_id for ledger_id in ledger_ids if ledger_id != NONE and ledger_id not in chain.doomed
    )
    if more and len(chain.doomed) + len(more) > DOOMED_MAX:
        raise MetadataConflict(
            f"stream {chain.stream_id}: {len(chain.doomed)} ledgers wait to be deleted: is a janitor running?",
            retryable=True,
        )
    return replace(chain, doomed=chain.doomed + more)


def check_kind(chain: Chain, kind: StreamKind | None, name: str = "") -> None:
    """Raise WrongStreamKind unless a stream may be opened as one of this kind; None: as what it is (INV-S28).

    One that nobody has written to may be opened for producers. `name`: namespace and name, for the message.
    """
    label = name or chain.stream_id
    if kind is StreamKind.WRITER and chain.kind is StreamKind.PRODUCERS:
        raise WrongStreamKind(
            f"stream {label} is for producers: append by one (`stream.producer()`), or run"
            f" `fastbk stream kind {label} writer` to have one writer"
        )
    if kind is StreamKind.PRODUCERS and chain.kind is StreamKind.WRITER and not chain.is_untouched:
        raise WrongStreamKind(
            f"stream {label} is one writer's: append by that (`stream.writer()`), or run"
            f" `fastbk stream kind {label} producers` to have any number of producers"
        )


def open_for_append(chain: Chain, owner: str, kind: StreamKind | None = StreamKind.WRITER) -> Chain:
    """Somebody takes over: a new epoch. All segments must be closed by then (`close_segment`).

    `owner` has to be a name of this opening alone. `kind`: of who is going to append; None: nobody, and the stream
    stays what it is. Raises StreamSealed, WrongStreamKind.
    """
    _check_not_sealed(chain)
    if chain.owner == owner:
        return chain
    check_kind(chain, kind)
    check_invariant(not chain.open_rows, "INV-S6: a new epoch begins with all segments closed")
    return replace(
        _doom(chain, chain.reserved),
        epoch=chain.epoch + 1,
        owner=owner,
        reserved=NONE,
        kind=chain.kind if kind is None else kind,
    )


def release(chain: Chain, epoch: int) -> Chain:
    """Whoever opened the stream in this epoch appends no more: nobody has to be fenced, and anybody may open it."""
    check_epoch(chain, epoch)
    if not chain.owner:
        return chain
    check_invariant(not chain.open_rows, "INV-S6: a stream without an owner has no open segment")
    return replace(_doom(chain, chain.reserved), owner="", reserved=NONE)


def change_kind(chain: Chain, epoch: int, kind: StreamKind, pages: tuple[str, ...] = ()) -> Chain:
    """Make another kind of a stream that was taken over for that in this epoch, and release it (INV-S28).

    `pages`: names of the records that have the table of its producers, written before; of a change from PRODUCERS.
    """
    check_epoch(chain, epoch)
    _check_not_sealed(chain)
    if chain.kind is not kind:
        leaves = chain.kind is StreamKind.PRODUCERS
        chain = replace(chain, kind=kind, producer_pages=pages if leaves else chain.producer_pages)
    return release(chain, epoch)


def reserve(chain: Chain, epoch: int, ledger_id: int) -> Chain:
    """The writer is about to create this ledger: it is named before it exists (INV-S8)."""
    check_epoch(chain, epoch)
    _check_not_sealed(chain)
    if not chain.owner:
        raise MetadataConflict(f"stream {chain.stream_id} was released: open it again")
    if chain.reserved == ledger_id or _row_of(chain, ledger_id):
        return chain
    return replace(_doom(chain, chain.reserved), reserved=ledger_id)


def add_segment(chain: Chain, epoch: int, ledger_id: int, now_us: int) -> Chain:
    """The reserved ledger was created: it is the next segment, open."""
    check_epoch(chain, epoch)
    _check_not_sealed(chain)
    if _row_of(chain, ledger_id):
        return chain
    check_invariant(chain.reserved == ledger_id, "INV-S8: a segment's ledger was reserved")
    check_invariant(
        len(chain.open_rows) < OPEN_SEGMENTS_MAX, "INV-S2: at most two segments are open"
    )
    base_seq = NONE if chain.open_rows else chain.end_seq
    row = Segment(chain.next_number, ledger_id, SegmentState.OPEN, epoch, now_us, base_seq)
    return replace(chain, rows=(*chain.rows, row), next_number=chain.next_number + 1, reserved=NONE)


class Contents(msgspec.Struct, frozen=True):
    """What a segment was found, or is known, to hold. Transaction ids are absolute."""

    records: int
    first_txid: int = NONE
    last_txid: int = NONE
    first_time_us: int = NONE
    last_time_us: int = NONE
    last_dlsn: DLSN | None = None
    index_entry_id: int = NONE
    size_bytes: int = 0
    epoch: int = 0
    """Epoch of the stream's writer that wrote its first entry; 0: none did, but somebody who was to attach it."""

    @property
    def is_empty(self) -> bool:
        """Whether it has no entry. One without records may have opened producers' names, which must not be lost."""
        return self.records == 0 and self.size_bytes == 0


def close_segment(
    chain: Chain, ledger_id: int, contents: Contents, epoch: int | None = None
) -> Chain:
    """The first open segment, of this ledger, holds this for good: the ledger is closed. An empty one leaves the chain.

    What stands open behind an empty one goes with it: it was only to be written when this one was full. `epoch`: of
    the writer that ends it; None: a takeover does.
    """
    if epoch is not None:
        check_epoch(chain, epoch)
    row = chain.open_rows[0] if chain.open_rows else None
    if row is None or row.ledger_id != ledger_id:
        found = _row_of(chain, ledger_id)
        check_invariant(found is None or not found.is_open, "INV-S2: segments are closed in order")
        return chain
    number = row.number
    if contents.is_empty:
        return _drop_empty(chain, row)
    last_dlsn = contents.last_dlsn
    check_invariant(
        (last_dlsn is None) == (contents.records == 0),
        "INV-S3: a segment with records has a last one",
    )
    closed = replace(
        row,
        state=SegmentState.CLOSED,
        base_seq=chain.end_seq,
        records=contents.records,
        first_txid=contents.first_txid,
        last_txid=contents.last_txid,
        first_time_us=contents.first_time_us,
        last_time_us=contents.last_time_us,
        last_entry_id=NONE if last_dlsn is None else last_dlsn.entry,
        index_entry_id=contents.index_entry_id,
        size_bytes=contents.size_bytes,
    )
    index = number - chain.first_row
    rows = [*chain.rows[:index], closed, *chain.rows[index + 1 :]]
    if index + 1 < len(rows):
        rows[index + 1] = replace(rows[index + 1], base_seq=closed.end_seq)
    return replace(
        chain,
        rows=tuple(rows),
        end_seq=closed.end_seq,
        last_dlsn=last_dlsn or chain.last_dlsn,
        last_txid=max(chain.last_txid, contents.last_txid),
        last_time_us=max(chain.last_time_us, contents.last_time_us),
    )


def _drop_empty(chain: Chain, row: Segment) -> Chain:
    """Its number is used again, by a segment of another ledger: no record ever had it."""
    chain = _doom(chain, *(one.ledger_id for one in chain.rows[row.number - chain.first_row :]))
    return replace(chain, rows=chain.rows[: row.number - chain.first_row], next_number=row.number)


def seal(chain: Chain, epoch: int) -> Chain:
    """The stream ends with its last record, for good."""
    check_epoch(chain, epoch)
    check_invariant(not chain.open_rows, "INV-S2: a sealed stream has no open segment")
    return replace(_doom(chain, chain.reserved), is_sealed=True, reserved=NONE)


def carried_us(last_us: int, now_us: int) -> int:
    """Return before which time no record of the next segment may be, by that of the last record before it (INV-S22).

    One that lies far ahead of this machine's clock is not carried on: one wrong clock is enough for it.
    """
    return last_us if last_us - now_us <= CARRIED_US_MAX else NONE


# --- attaching --------------------------------------------------------------------------------------------------


def attach(
    chain: Chain, segments: tuple[tuple[int, Contents], ...], key: str, number: int, now_us: int
) -> Chain:
    """Closed ledgers become segments, in this order, under `key`; a number that the key had already changes nothing.

    `segments`: of each its ledger and contents, with transaction ids as they are in its entries. Raises
    MetadataConflict while a segment is open: whoever attaches has to take the stream over first. Raises
    WrongStreamKind for a stream of producers: what was attached would have no table of them (INV-S28).

    INV-S15: a writer's ids are the stream's own and stay as they are; raises ConfigError where they would fall. Ids of
    a ledger that no writer of a stream wrote (epoch 0) count from the stream's last one on.
    """
    _check_not_sealed(chain)
    if number <= chain.attached_number(key):
        return chain
    check_kind(chain, StreamKind.WRITER)
    if chain.open_rows:
        raise MetadataConflict(f"stream {chain.stream_id} has an open segment: a writer has it")
    for ledger_id, contents in segments:
        chain = _attach_one(chain, ledger_id, contents, now_us)
    others = [attachment for attachment in chain.attachments if attachment.key != key]
    once = [other for other in others if other.key.startswith(ONCE)][:-ONCE_MAX]
    kept = [other for other in others if other not in once][-(ATTACHMENTS_MAX - 1) :]
    return replace(chain, attachments=(*kept, Attachment(key, number)))


def _attach_one(chain: Chain, ledger_id: int, contents: Contents, now_us: int) -> Chain:
    base_txid = 0 if contents.epoch else max(chain.last_txid, 0)
    if contents.epoch and contents.first_txid < chain.last_txid:
        raise ConfigError(
            f"ledger {ledger_id} begins with the transaction id {contents.first_txid}, and stream {chain.stream_id} has"
            f" {chain.last_txid} already: attach segments in the order in which they were written, before anybody"
            " writes to the stream"
        )
    row = Segment(
        chain.next_number,
        ledger_id,
        SegmentState.OPEN,
        chain.epoch,
        now_us,
        chain.end_seq,
        base_txid,
    )
    chain = replace(chain, rows=(*chain.rows, row), next_number=chain.next_number + 1)
    return close_segment(
        chain,
        ledger_id,
        replace(
            contents,
            first_txid=base_txid + contents.first_txid,
            last_txid=base_txid + contents.last_txid,
            last_dlsn=contents.last_dlsn and contents.last_dlsn._replace(segment=row.number),
            last_time_us=max(contents.last_time_us, carried_us(chain.newest_time_us, now_us)),
        ),
    )


# --- truncation and deletion ------------------------------------------------------------------------------------


def truncate(chain: Chain, before: DLSN) -> Chain:
    """Records before this position, which is not beyond the end, are gone for readers; never falls (INV-S7)."""
    return chain if before <= chain.trim else replace(chain, trim=before)


def mark_deleting(chain: Chain, below: int) -> Chain:
    """Closed segments below this number are to be deleted, the newest closed one never (INV-S9)."""
    newest = chain.next_number - 1 - len(chain.open_rows)
    below = min(below, newest)
    if below <= chain.deleting:
        return chain
    return replace(chain, deleting=below, trim=max(chain.trim, DLSN(below, 0, 0)))


def drop_deleted(chain: Chain, below: int, head_seq: int) -> Chain:
    """The ledgers of segments below this number are deleted: their rows go. `head_seq`: of what is the first now.

    A page goes when all its segments are gone; its record is the caller's to delete.
    """
    check_invariant(below <= chain.deleting, "INV-S9: only marked segments are dropped")
    if below <= chain.head:
        return chain
    return replace(
        chain,
        head=below,
        head_seq=head_seq,
        pages=tuple(page for page in chain.pages if page.last >= below),
        rows=tuple(row for row in chain.rows if row.number >= below),
    )


def condemn(chain: Chain) -> Chain:
    """The stream is being deleted: nobody opens, appends or attaches any more, so that no ledger comes to it."""
    if chain.owner == CONDEMNED:
        return chain
    return replace(chain, epoch=chain.epoch + 1, owner=CONDEMNED, is_sealed=True)


def drop_condemned(chain: Chain, below: int) -> Chain:
    """All ledgers of segments below this number, the newest and open ones too, are deleted, of a condemned stream.

    `below` is the first segment of a page, or of the rows, or what comes behind the last.
    """
    check_invariant(
        chain.owner == CONDEMNED, "INV-S9: only a stream that is deleted loses all its segments"
    )
    if below <= chain.head:
        return chain
    rows = tuple(row for row in chain.rows if row.number >= below)
    pages = tuple(page for page in chain.pages if page.last >= below)
    head_seq = pages[0].base_seq if pages else rows[0].base_seq if rows else chain.end_seq
    return replace(
        chain,
        head=below,
        deleting=max(chain.deleting, below),
        head_seq=chain.end_seq if head_seq == NONE else head_seq,
        pages=pages,
        rows=rows,
    )


def forget_deleted(chain: Chain, ledger_ids: tuple[int, ...]) -> Chain:
    """These ledgers are deleted."""
    return replace(chain, doomed=tuple(one for one in chain.doomed if one not in ledger_ids))


# --- pages ------------------------------------------------------------------------------------------------------


def spill(chain: Chain, count: int, token: int) -> tuple[Chain, PageRef, tuple[Segment, ...]]:
    """Move the `count` oldest rows, all closed, to a page of their own, which has to be written first (INV-S4)."""
    moved = chain.rows[:count]
    check_invariant(
        len(moved) == count > 0 and not any(row.is_open for row in moved),
        "INV-S4: closed rows go to pages",
    )
    page = page_of(chain.next_page, token, moved)
    spilled = replace(
        chain, pages=(*chain.pages, page), rows=chain.rows[count:], next_page=chain.next_page + 1
    )
    return spilled, page, moved


def page_of(number: int, token: int, rows: tuple[Segment, ...]) -> PageRef:
    """Return how a chain names the page of these rows, all closed."""
    return PageRef(
        number,
        token,
        rows[0].number,
        rows[-1].number,
        rows[0].base_seq,
        rows[0].first_txid,
        rows[-1].last_txid,
        rows[0].first_time_us,
        max(row.last_time_us for row in rows),
        rows[-1].created_us,
        sum(row.size_bytes for row in rows),
    )
