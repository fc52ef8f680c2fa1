"""Which right a change of a stream's chain needs: decided by what the chain was and what it is to be. Pure.

INV-W3: what readers of a stream could read, a change without `truncate` leaves in the chain: closed segments stay as
they are, and the trim point and the head stay where they are.
INV-W6: the numbers of a chain are those that its change makes: who may write to a stream can neither leave it where
nobody can go on, nor say of a segment what its ledger cannot have.
INV-W4: a record names a ledger for deletion only if it named the ledger after its id was drawn, and before it existed.
The janitor deletes what records name, so a record that names another's ledger would delete it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from fastbk.gateway.rules import ADD, DELETE, TRUNCATE, ForbiddenChange, Need
from fastbk.invariant import InvariantError
from fastbk.stream.chain import (
    ATTACHMENTS_MAX,
    CONDEMNED,
    NONE,
    Chain,
    PageRef,
    Segment,
    page_of,
    verify,
)
from fastbk.stream.positions import AHEAD_US_MAX, DLSN
from fastbk.stream.records import RECORDS_MAX

_NEVER_FALL = (
    "epoch",
    "trim",
    "head",
    "deleting",
    "head_seq",
    "next_page",
    "end_seq",
    "last_txid",
    "last_time_us",
)
_GONE_BY = ("trim", "deleting", "head", "head_seq")
_OPEN_MAY_CHANGE = ("state", "base_seq", "records", "first_txid", "last_txid", "first_time_us", "last_time_us",
                    "last_entry_id", "index_entry_id", "size_bytes")  # fmt: skip
SEGMENT_RECORDS_MAX = 1 << 40
"""Of one segment: with 64 bits for a stream's records, no client comes to their end."""
Pages = Mapping[PageRef, tuple[Segment, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a change of a record needs, beside the rights: facts about ledgers that metadata has to confirm.

    Attributes:
        needs: all of them.
        fresh: ledgers that it names before they exist: there must be none of these ids.
        attached: closed ledgers that become segments: each has to say that it is the stream's.
        deleted: ledgers that it names for deletion: what exists of them has to say that it is the stream's.
        forgotten: ledgers that it names no more: they must be gone.
        ended: ledgers of segments that end, and the last entry that the chain says they have (-1: none): metadata has
            to say the same of closed ones, else readers lose what is behind it, and that is a truncation.
        sizes: the same ledgers, and the bytes that the chain says they have: with more than there are, what a stream
            retains of its older segments would shrink.
        unwritten: ledgers of segments behind an empty one: closed ones among them have to be empty as well.
    """

    needs: tuple[Need, ...]
    fresh: tuple[int, ...] = ()
    attached: tuple[int, ...] = ()
    deleted: tuple[int, ...] = ()
    forgotten: tuple[int, ...] = ()
    ended: tuple[tuple[int, int], ...] = ()
    sizes: tuple[tuple[int, int], ...] = ()
    unwritten: tuple[int, ...] = ()


def new_pages(old: Chain | None, new: Chain | None) -> tuple[PageRef, ...]:
    """Return the pages that a change adds: `change_of` needs their rows."""
    known = () if old is None else old.pages
    return () if new is None else tuple(page for page in new.pages if page not in known)


def change_of(
    stream_id: str, old: Chain | None, new: Chain | None, pages: Pages, now_us: int
) -> Change:
    """Return what a change of a chain needs. Raises ForbiddenChange for one that nobody may make.

    `old`, `new`: None: there is no record. `pages`: the rows of `new_pages(old, new)`.
    """
    if new is None:
        return Change(needs=(Need(DELETE, "delete the chain of"),))
    if old is None:
        if new != Chain(stream_id):
            raise ForbiddenChange("a stream begins without segments")
        return Change(needs=(Need(ADD, "create"),))
    _check(stream_id, old, new)
    rows = _Rows(old, new, pages)
    _check_numbers(old, new, rows, now_us + AHEAD_US_MAX)
    named = _named(old, new, rows)
    return Change(
        needs=_needs(old, new),
        fresh=() if new.reserved in (old.reserved, NONE) else (new.reserved,),
        attached=tuple(row.ledger_id for row in rows.added if row.ledger_id != old.reserved),
        deleted=named,
        forgotten=tuple(one for one in old.doomed if one not in new.doomed),
        ended=tuple(rows.ended),
        sizes=tuple(rows.sizes),
        unwritten=tuple(row.ledger_id for row in rows.dropped[1:]),
    )


def _needs(old: Chain, new: Chain) -> tuple[Need, ...]:
    needs = []
    if CONDEMNED in (old.owner, new.owner):
        needs.append(Need(DELETE, "delete"))
    if any(getattr(old, name) != getattr(new, name) for name in _GONE_BY):
        needs.append(Need(TRUNCATE | DELETE if new.owner == CONDEMNED else TRUNCATE, "truncate"))
    if old.head != new.head:
        needs.append(Need(DELETE, "delete segments of"))
    if new.is_sealed and not old.is_sealed and new.owner != CONDEMNED:
        needs.append(Need(ADD, "seal"))
    return tuple(needs) or (Need(ADD, "append to"),)


def _check(stream_id: str, old: Chain, new: Chain) -> None:
    try:
        verify(new)
    except InvariantError as broken:  # it is the client's chain that breaks it
        raise ForbiddenChange(f"the chain is none: {broken}") from None
    if new.stream_id != stream_id or old.stream_id != stream_id:
        raise ForbiddenChange("a chain stays its stream's")
    for name in _NEVER_FALL:
        if getattr(new, name) < getattr(old, name):
            raise ForbiddenChange(f"the {name.replace('_', ' ')} of a chain never falls")
    if old.is_sealed and not new.is_sealed:
        raise ForbiddenChange("a stream that has ended stays ended")
    if old.owner == CONDEMNED != new.owner:
        raise ForbiddenChange("a stream that is being deleted stays deleted")


def _check_numbers(old: Chain, new: Chain, rows: _Rows, latest_us: int) -> None:
    """Refuse numbers that do not follow from what changes (INV-W6).

    Who mirrors another cluster's stream brings that one's numbers, and will need a right of its own for it.
    """
    if new.epoch > old.epoch + 1:
        raise ForbiddenChange(
            f"the epoch of a chain rises by one, not from {old.epoch} to {new.epoch}"
        )
    pages = sorted(page.page for page in rows.pages)
    if pages != [*range(old.next_page, new.next_page)]:
        raise ForbiddenChange("the next page of a chain rises by its new pages")
    if not new.owner.isprintable():
        raise ForbiddenChange("the owner of a chain is printable text")
    if len(new.attachments) > max(ATTACHMENTS_MAX, len(old.attachments)):
        raise ForbiddenChange(f"a chain has {ATTACHMENTS_MAX} attachments at most")
    if new.trim > max(old.trim, DLSN(new.next_number, 0, 0)) or new.head_seq > max(
        old.head_seq, new.end_seq
    ):
        raise ForbiddenChange("what is cut off a stream lies before its end (INV-S7)")
    for row in rows.added:
        if (
            row.created_us > latest_us
            or row.epoch > new.epoch
            or row.base_txid > max(old.last_txid, new.last_txid, 0)
        ):
            raise ForbiddenChange(f"segment {row.number} says that it was made later than now")
    end_seq, last_dlsn, last_txid, last_us = (
        old.end_seq,
        old.last_dlsn,
        old.last_txid,
        old.last_time_us,
    )
    for row in sorted(rows.closed, key=lambda one: one.number):
        if row.base_seq != end_seq or row.records > min(
            SEGMENT_RECORDS_MAX, (row.last_entry_id + 1) * RECORDS_MAX
        ):
            raise ForbiddenChange(
                f"segment {row.number} has other records than its entries and those before it allow"
            )
        if max(row.first_time_us, row.last_time_us) > latest_us:
            raise ForbiddenChange(
                f"segment {row.number} has records of {row.last_time_us} us, in a day or later: are the clocks right?"
            )
        end_seq, last_txid, last_us = (
            row.end_seq,
            max(last_txid, row.last_txid),
            max(last_us, row.last_time_us),
        )
        slot = new.last_dlsn.slot if new.last_dlsn is not None else 0
        last_dlsn = DLSN(row.number, row.last_entry_id, min(slot, RECORDS_MAX))
    found = new.end_seq, new.last_dlsn, new.last_txid, new.last_time_us
    if found != (end_seq, last_dlsn, last_txid, last_us):
        raise ForbiddenChange("the end of a chain is not that of its last closed segment")


@dataclass(slots=True)
class _Rows:
    """The rows that a change adds, and the open ones that it drops. Raises ForbiddenChange for what it may not do."""

    old: Chain
    new: Chain
    pages: Pages
    added: list[Segment] = field(default_factory=list)
    dropped: list[Segment] = field(default_factory=list)
    ended: list[tuple[int, int]] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    closed: list[Segment] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._check_pages()
        after = self._after()
        for row in self.old.rows:
            if row.number >= self.new.head:
                self._compare(row, after.get(row.number))
        before = {row.number: row for row in self.old.rows}
        for number, row in sorted(after.items()):
            known = before.get(number)
            if known is None or known.ledger_id != row.ledger_id:
                self._add(row)

    def _after(self) -> dict[int, Segment]:
        """Return the rows afterwards that were rows before, or are new: those in new pages, too."""
        rows = [*(row for moved in self.pages.values() for row in moved), *self.new.rows]
        return {row.number: row for row in rows}

    def _check_pages(self) -> None:
        for page in self.old.pages:
            if page.last >= self.new.head and page not in self.new.pages:
                raise ForbiddenChange(
                    f"page {page.page} of the chain has segments that are there still"
                )
        for page, rows in self.pages.items():
            if (
                not rows
                or any(row.is_open for row in rows)
                or page != page_of(page.page, page.token, rows)
            ):
                raise ForbiddenChange(f"page {page.page} has other rows than the chain says")
            if [row.number for row in rows] != [*range(page.first, page.last + 1)]:
                raise ForbiddenChange(f"page {page.page} has rows that do not follow each other")

    def _compare(self, row: Segment, after: Segment | None) -> None:
        if after == row:
            return
        if not row.is_open:
            raise ForbiddenChange(
                f"segment {row.number} is closed: it stays as it is until it is deleted at the head"
            )
        if after is None or after.ledger_id != row.ledger_id:
            if not self.dropped:
                self.ended.append((row.ledger_id, NONE))
            self.dropped.append(row)
        elif replace(after, **{name: getattr(row, name) for name in _OPEN_MAY_CHANGE}) != row:
            raise ForbiddenChange(f"segment {row.number} stays that of its writer")
        elif not after.is_open:
            # retention would delete it before its time
            if after.last_time_us < row.created_us - AHEAD_US_MAX:
                raise ForbiddenChange(
                    f"segment {row.number} has records from before it was made: check the clocks"
                )
            self._end(after)

    def _add(self, row: Segment) -> None:
        if row.number < self.old.next_number and not any(
            one.number <= row.number for one in self.dropped
        ):
            raise ForbiddenChange(f"segment {row.number} was another before")
        if row.is_open and row.ledger_id != self.old.reserved:
            raise ForbiddenChange(
                f"ledger {row.ledger_id} was not reserved for segment {row.number} (INV-S8)"
            )
        if not row.is_open:
            self._end(row)
        self.added.append(row)

    def _end(self, row: Segment) -> None:
        self.ended.append((row.ledger_id, max(row.last_entry_id, row.index_entry_id)))
        self.sizes.append((row.ledger_id, row.size_bytes))
        self.closed.append(row)


def _named(old: Chain, new: Chain, rows: _Rows) -> tuple[int, ...]:
    """Return the ledgers that are named for deletion by a change (INV-W4)."""
    named = tuple(one for one in new.doomed if one not in old.doomed)
    mine = {old.reserved, *(row.ledger_id for row in rows.dropped)} - {NONE}
    if foreign := [one for one in named if one not in mine]:
        raise ForbiddenChange(f"ledger {foreign[0]} was not the stream's to delete")
    kept = {row.ledger_id for row in new.rows} | {row.ledger_id for row in rows.added}
    if both := kept.intersection(new.doomed) or ({new.reserved} & kept):
        raise ForbiddenChange(f"ledger {min(both)} is a segment's")
    return named
