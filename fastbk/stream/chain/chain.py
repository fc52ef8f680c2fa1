"""A stream's chain: its segments, and all that changes together with them, as values and bytes; pure.

The chain is one record of metadata, replaced by compare-and-set. Rows of old segments lie in pages, records of their
own that never change (`PageRef`).

The last segments may be open: the one that is written, and one that was made ready behind it, so that a roll needs no
metadata. All others are closed, and what they hold is known here. `changes.py` changes it.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Sequence
from typing import Annotated, TypeVar

import msgspec

from fastbk.errors import StorageError
from fastbk.invariant import InvariantError, check
from fastbk.stream.positions import DLSN, FIRST, Count, Number, TimeUs, Txid

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
"""Of the key of an attachment."""
OWNER_CHARACTERS_MAX = 200
"""Of an owner's name: more is no hint for people. That of an opening has a host's name in it."""
ID_CHARACTERS_MAX = 64
EPOCH_MAX = (1 << 32) - 1
"""Entries have 64 bits for it; no stream is opened so often."""
Epoch = Annotated[int, msgspec.Meta(ge=0, le=EPOCH_MAX)]
LedgerNumber = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class SegmentState(enum.IntEnum):
    """Of a row of the chain."""

    OPEN = 1
    CLOSED = 2


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """One row: a ledger and what it holds. Of an open one only what is said so counts."""

    number: Count
    """From 1, without holes."""
    ledger_id: LedgerNumber
    state: SegmentState
    epoch: Epoch
    """Of the writer that made it."""
    created_us: TimeUs
    base_seq: Number = NONE
    """Of its first record; NONE while the segment before it is open."""
    base_txid: Txid = 0
    """What its entries' transaction ids are relative to; not 0 only where a ledger was attached."""
    records: Count = 0
    first_txid: Txid = NONE
    last_txid: Txid = NONE
    first_time_us: TimeUs = NONE
    last_time_us: TimeUs = NONE
    last_entry_id: Number = NONE
    """Of its last entry with records."""
    index_entry_id: Number = NONE
    """Of the index behind its records; NONE where its writer did not get to write one."""
    size_bytes: Count = 0
    """Of all its entries' data."""

    @property
    def is_open(self) -> bool:
        """Whether somebody may still write to it."""
        return self.state is SegmentState.OPEN

    @property
    def end_seq(self) -> int:
        """The number behind its last record, of a closed one."""
        return self.base_seq + self.records


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
    """Of all its segments."""


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
    """Of the first record of segment `head`."""
    next_page: Count = 0
    pages: Annotated[tuple[PageRef, ...], msgspec.Meta(max_length=LISTED_PAGES_MAX)] = ()
    rows: Annotated[tuple[Segment, ...], msgspec.Meta(max_length=LISTED_ROWS_MAX)] = ()
    """Those that are in no page, ascending; the last ones may be open."""
    next_number: Count = 1
    """The number of the next segment."""
    end_seq: Number = 0
    """Behind the last record of the last closed segment."""
    last_dlsn: DLSN | None = None
    """Of the last record of all closed segments, also when these are gone."""
    last_txid: Txid = NONE
    last_time_us: TimeUs = NONE
    """The latest time of any record so far, which a wrong clock may have set: see `newest_time_us`."""
    reserved: Annotated[int, msgspec.Meta(ge=NONE, le=(1 << 63) - 1)] = NONE
    """A ledger id that the writer of this epoch is about to create a ledger with (INV-S8)."""
    doomed: Annotated[tuple[LedgerNumber, ...], msgspec.Meta(max_length=LISTED_MAX)] = ()
    """Ledgers to be deleted that are in no row."""
    attachments: Annotated[tuple[Attachment, ...], msgspec.Meta(max_length=LISTED_MAX)] = ()

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
        return next((one.number for one in self.attachments if one.key == key), NONE)

    def row(self, number: int) -> Segment | None:
        """Return a row that is in no page."""
        at = number - self.first_row
        return self.rows[at] if 0 <= at < len(self.rows) else None

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
    check(
        expected <= chain.head <= chain.deleting <= chain.next_number,
        "INV-S2: head and deleting are in order",
    )
    for page in chain.pages:
        check(page.first == expected and page.last >= page.first, "INV-S2: pages follow each other")
        expected = page.last + 1
    for row in chain.rows:
        check(row.number == expected, "INV-S2: rows follow each other")
        expected += 1
    check(expected == chain.next_number, "INV-S2: the next number follows the last row")
    states = [row.is_open for row in chain.rows]
    check(
        states == sorted(states) and sum(states) <= OPEN_SEGMENTS_MAX,
        "INV-S2: open segments are the last ones",
    )
    seq = chain.head_seq
    for row in chain.rows:
        if row.is_open:
            check(
                row.base_seq in (NONE, chain.end_seq), "INV-S3: an open segment begins at the end"
            )
        else:
            check(row.records > 0 and row.base_seq >= seq, "INV-S3: sequence numbers have no holes")
            seq = row.end_seq
    check(seq <= chain.end_seq, "INV-S3: the end lies behind the last closed segment")
    check(
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
"""Of a record unpacked: eight times what a chain of a million segments has."""
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
