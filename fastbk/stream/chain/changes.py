"""Changes of a chain: pure functions from one to the next (INV-S2 to INV-S4, INV-S6 to INV-S9, INV-S15).

What a change may not do it refuses with an error. Whoever made a change writes the chain by compare-and-set, and
decides anew when somebody was faster, or when nobody knows whether it was written (`store.py`): a change that
is there already changes nothing.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from fastbk.errors import ConfigError, MetadataConflict, StreamSealed
from fastbk.invariant import check
from fastbk.stream.chain.chain import (
    ATTACHMENTS_MAX,
    DOOMED_MAX,
    NONE,
    ONCE,
    ONCE_MAX,
    OPEN_SEGMENTS_MAX,
    Attachment,
    Chain,
    PageRef,
    Segment,
    SegmentState,
)
from fastbk.stream.positions import CARRIED_US_MAX, DLSN

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
    more = tuple(one for one in ledger_ids if one != NONE and one not in chain.doomed)
    if more and len(chain.doomed) + len(more) > DOOMED_MAX:
        raise MetadataConflict(
            f"stream {chain.stream_id}: {len(chain.doomed)} ledgers wait to be deleted: is a janitor running?",
            retryable=True,
        )
    return replace(chain, doomed=chain.doomed + more)


def open_for_append(chain: Chain, owner: str) -> Chain:
    """A writer takes over: a new epoch. All segments must be closed by then (`close_segment`); raises StreamSealed.

    `owner` has to be a name of this opening alone.
    """
    _check_not_sealed(chain)
    if chain.owner == owner:
        return chain
    check(not chain.open_rows, "INV-S6: a new epoch begins with all segments closed")
    return replace(_doom(chain, chain.reserved), epoch=chain.epoch + 1, owner=owner, reserved=NONE)


def reserve(chain: Chain, epoch: int, ledger_id: int) -> Chain:
    """The writer is about to create this ledger: it is named before it exists (INV-S8)."""
    check_epoch(chain, epoch)
    _check_not_sealed(chain)
    if chain.reserved == ledger_id or _row_of(chain, ledger_id):
        return chain
    return replace(_doom(chain, chain.reserved), reserved=ledger_id)


def add_segment(chain: Chain, epoch: int, ledger_id: int, now_us: int) -> Chain:
    """The reserved ledger was created: it is the next segment, open."""
    check_epoch(chain, epoch)
    _check_not_sealed(chain)
    if _row_of(chain, ledger_id):
        return chain
    check(chain.reserved == ledger_id, "INV-S8: a segment's ledger was reserved")
    check(len(chain.open_rows) < OPEN_SEGMENTS_MAX, "INV-S2: at most two segments are open")
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
    """Of the stream's writer that wrote its first entry; 0: none did, but somebody who was to attach it."""


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
        check(found is None or not found.is_open, "INV-S2: segments are closed in order")
        return chain
    number = row.number
    if contents.records == 0:
        return _drop_empty(chain, row)
    check(contents.last_dlsn is not None, "INV-S3: a segment with records has a last one")
    assert contents.last_dlsn is not None
    closed = replace(
        row,
        state=SegmentState.CLOSED,
        base_seq=chain.end_seq,
        records=contents.records,
        first_txid=contents.first_txid,
        last_txid=contents.last_txid,
        first_time_us=contents.first_time_us,
        last_time_us=contents.last_time_us,
        last_entry_id=contents.last_dlsn.entry,
        index_entry_id=contents.index_entry_id,
        size_bytes=contents.size_bytes,
    )
    at = number - chain.first_row
    rows = [*chain.rows[:at], closed, *chain.rows[at + 1 :]]
    if at + 1 < len(rows):
        rows[at + 1] = replace(rows[at + 1], base_seq=closed.end_seq)
    return replace(
        chain,
        rows=tuple(rows),
        end_seq=closed.end_seq,
        last_dlsn=contents.last_dlsn,
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
    check(not chain.open_rows, "INV-S2: a sealed stream has no open segment")
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
    MetadataConflict while a segment is open: whoever attaches has to take the stream over first.

    INV-S15: a writer's ids are the stream's own and stay as they are; raises ConfigError where they would fall. Ids of
    a ledger that no writer of a stream wrote (epoch 0) count from the stream's last one on.
    """
    _check_not_sealed(chain)
    if number <= chain.attached_number(key):
        return chain
    if chain.open_rows:
        raise MetadataConflict(f"stream {chain.stream_id} has an open segment: a writer has it")
    for ledger_id, contents in segments:
        chain = _attach_one(chain, ledger_id, contents, now_us)
    others = [one for one in chain.attachments if one.key != key]
    once = [one for one in others if one.key.startswith(ONCE)][:-ONCE_MAX]
    kept = [one for one in others if one not in once][-(ATTACHMENTS_MAX - 1) :]
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
    check(below <= chain.deleting, "INV-S9: only marked segments are dropped")
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
    check(chain.owner == CONDEMNED, "INV-S9: only a stream that is deleted loses all its segments")
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
    check(
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
