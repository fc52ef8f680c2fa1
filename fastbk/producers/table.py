"""What the owner of a stream decides about its producers' frames, without I/O.

    owner = OwnerTable(read_table(newest, before), epoch)        # after the writer was opened, which fenced
    row = owner.open(b"till-1", now_us)
    owner.take(Frame(b"till-1", row.incarnation, NO_NUMBER, (0, 1)), now_us)
    number = owner.answers_after()                               # of the entry that has all of that
    provenance = owner.entry(record_bytes, now_us)               # goes with the records; entries_sent is now `number`
    owner.durable()                                              # entries become durable in order
    owner.entries_durable >= number                              # now both may be answered

INV-S23: each entry has a row for each name that it has records or an opening of. The first entry of a segment has the
whole table, and so has one of each `entries_max` and of each `bytes_max`.
INV-S24: a record is appended only if its number is above its name's last number, of what was sent, too.
INV-S25: a frame is taken only if it follows a number up to that last one: none overtakes a refused one.
INV-S26: a frame, an opening, and a refusal of either are answered when all is durable that was sent or taken up to
then; a refusal behind an entry. So a repeat waits for its original, nothing of an earlier opening follows an answered
one, and who is not the owner any more refuses nobody, and finds out by the first frame that it would have refused.
INV-S27: only an opening makes a row, and a row leaves the table only when its name was silent for longer than its age,
and there are many, or when a producer with a random name was closed: nobody opens it again, and what comes late of it
finds no row.

Why that is exactly once: README.md here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from fastbk.errors import Error, ProducerExpired, ProducerFenced, TooManyProducers, check_invariant
from fastbk.stream.provenance import NAME_BYTES_MAX, RANDOM_PREFIX, Provenance, Row

NO_NUMBER: Final = -1
NAMES_MAX: Final = 10_000
NAMES_KEPT: Final = 1_000
WHOLE_ENTRIES_MAX: Final = 1_000
WHOLE_BYTES_MAX: Final = 8 * 1024 * 1024
ROW_BYTES: Final = 25
"""Of a row, beside its name."""
ROW_BYTES_MAX: Final = ROW_BYTES + NAME_BYTES_MAX
CLOSED_MAX: Final = 1_000
AGE_US: Final = 7 * 24 * 3600 * 1_000_000
RANDOM_AGE_US: Final = 3600 * 1_000_000
_RANDOM = RANDOM_PREFIX.encode()


class NotNext(Error):
    """Records before this frame's did not arrive: send all again from the first one that is not acknowledged."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Records of one producer that one entry takes, without their contents.

    Numbers rise; `follows`: the number that was sent before the first one.
    """

    name: bytes
    incarnation: int
    follows: int
    numbers: Sequence[int]


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Bounds of one stream's table."""

    names_max: int = NAMES_MAX
    names_kept: int = NAMES_KEPT
    """So few are kept however old they are: a machine whose clock is wrong would forget all."""
    entries_max: int = WHOLE_ENTRIES_MAX
    bytes_max: int = WHOLE_BYTES_MAX
    age_us: int = AGE_US
    random_age_us: int = RANDOM_AGE_US
    """Of names that producers drew for themselves."""


@dataclass(slots=True)
class OwnerTable:
    """The table of one owner, from the opening of its writer to the first failure of that.

    It has what was taken, ahead of what is durable. After a failure nobody knows which of it is stored, and it is no
    good any more.
    """

    rows: dict[bytes, Row]
    epoch: int
    """Of the writer: higher than those of all owners before."""
    options: TableOptions = field(default_factory=TableOptions)
    entries_sent: int = 0
    entries_durable: int = 0
    _changed: dict[bytes, None] = field(init=False, default_factory=dict)
    """Names with records or openings that no entry has yet, in order."""
    _owes_entry: bool = field(init=False, default=False)
    """Whether a refusal waits for an entry, though there is nothing to store."""
    _distance: int = field(init=False, default=0)
    """Entries since the newest whole table. The first entry has one."""
    _bytes: int = field(init=False, default=0)
    """Of these entries, with their rows."""
    _wants_whole: bool = field(init=False, default=True)
    _openings: int = field(init=False, default=0)
    _closed: int = field(init=False, default=0)
    """Names that left the table since the newest whole one: a takeover would find them in it again."""
    _forget_from_us: int = field(init=False, default=0)
    """Before that time no name is old: thousands of refused openings must not each look at all names."""

    @property
    def block_bytes_max(self) -> int:
        """The most that the rows of the next entry take, with those of names that are opened in it."""
        return (len(self.rows) + len(self._changed)) * ROW_BYTES_MAX

    @property
    def wants_entry(self) -> bool:
        """Whether an entry has to be sent for what was taken, or refused."""
        return bool(self._changed) or self._owes_entry

    def answers_after(self) -> int:
        """Return the number of the entry behind which all is that was taken up to now (INV-S26)."""
        return self.entries_sent + self.wants_entry

    def open(self, name: bytes, now_us: int) -> Row:
        """Give a name its next incarnation, and its last number. Raises TooManyProducers."""
        row = self.rows.get(name)
        if row is None:
            self._make_room(now_us)
            row = Row(name, 0, NO_NUMBER, now_us)
        self._openings += 1
        incarnation = self.epoch << 32 | self._openings
        row = replace(row, incarnation=incarnation, time_us=max(now_us, row.time_us))
        self._put(row)
        return row

    def take(self, frame: Frame, now_us: int) -> int:
        """Take what is new of a frame: return the index of the first record that is to be appended.

        Raises NotNext, ProducerExpired or ProducerFenced, which are to be answered after an entry (INV-S26). Then
        nothing of it is taken.
        """
        row = self.rows.get(frame.name)
        if row is None or frame.incarnation > row.incarnation:  # INV-S27
            self._owes_entry = True
            raise ProducerExpired(f"{frame.name!r} was silent for longer than its age")
        if frame.incarnation < row.incarnation:
            self._owes_entry = True
            raise ProducerFenced(f"{frame.name!r} was opened again")
        if frame.follows > row.last_number:  # INV-S25
            self._owes_entry = True
            raise NotNext(f"{frame.name!r}: what was sent up to {frame.follows} is not all there")
        first = 0
        while first < len(frame.numbers) and frame.numbers[first] <= row.last_number:  # INV-S24
            first += 1
        if first < len(frame.numbers):
            last_number = frame.numbers[-1]
            self._put(replace(row, last_number=last_number, time_us=max(now_us, row.time_us)))
        return first

    def entry(self, entry_bytes: int, now_us: int) -> Provenance:
        """Return what the next entry says: it has all records that were taken since the last one (INV-S23)."""
        rows = tuple(self.rows[name] for name in self._changed)
        self._distance += 1
        self._bytes += entry_bytes + sum(ROW_BYTES + len(row.name) for row in rows)
        self.entries_sent += 1
        if (
            self._wants_whole
            or self._distance >= self.options.entries_max
            or self._bytes > self.options.bytes_max
        ):
            if len(self.rows) > self.options.names_kept:
                self._forget(now_us)
            self._distance, self._bytes, self._wants_whole, self._closed = 0, entry_bytes, False, 0
            rows = tuple(self.rows.values())
        self._changed.clear()
        self._owes_entry = False
        return Provenance(rows, self._distance)

    def close(self, name: bytes, incarnation: int) -> None:
        """Forget a random name whose producer was closed: all that it sent is acknowledged (INV-S27)."""
        row = self.rows.get(name)
        is_its_own = row is not None and row.incarnation == incarnation
        if is_its_own and name.startswith(_RANDOM) and name not in self._changed:
            del self.rows[name]
            self._closed += 1
            self._wants_whole = self._wants_whole or self._closed >= CLOSED_MAX

    def begin_segment(self) -> None:
        """Say that the next entry is the first one of a segment."""
        self._wants_whole = True

    def durable(self) -> None:
        """Take in that the oldest entry on its way is durable."""
        self.entries_durable += 1
        check_invariant(self.entries_durable <= self.entries_sent, "no entry is on its way")

    def _put(self, row: Row) -> None:
        self.rows[row.name] = row
        self._changed[row.name] = None

    def _make_room(self, now_us: int) -> None:
        names_max = self.options.names_max
        if len(self.rows) + self._closed < names_max:
            return
        if len(self.rows) >= names_max and now_us >= self._forget_from_us:
            self._forget(now_us)
        if len(self.rows) >= names_max:
            self._owes_entry = True
            raise TooManyProducers(f"the stream has {len(self.rows)} names that appended of late")
        self._wants_whole = True

    def _forget(self, now_us: int) -> None:
        """Leave out names that were silent for longer than their age (INV-S27)."""
        ages_us = self.options.age_us, self.options.random_age_us
        self._forget_from_us = now_us + min(ages_us)
        for row in list(self.rows.values()):
            old_from_us = row.time_us + ages_us[row.name.startswith(_RANDOM)] + 1
            if now_us >= old_from_us and row.name not in self._changed:
                del self.rows[row.name]
            else:
                self._forget_from_us = min(self._forget_from_us, old_from_us)
