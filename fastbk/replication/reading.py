"""Reading a range of entries in order, from whichever replicas can give them.

Where E = Qw the range is asked for in batches, a striped ledger's in runs of ids that one bookie holds; several parts
of the range at the same time. The first answer of an unstriped ledger tells how many entries an answer has: from then
on its parts are as long as that and asked for side by side, as far as all of them have room, so that a bookie has the
next one to do while this one is received. They go to the same bookie: it reads ahead for who goes on and on.

The first bookie of the order is asked; the next one when its copy is missing, damaged, or not to be had. With
`speculative_s` the next one is asked as well when no answer came for so long, with `parallel` all are asked at once.
Only when all of a write set were asked without success is it an error, which names what each said. Those that are away
or busy are asked again until `pacing.give_up_s` passed without progress. Before that the metadata is read once more:
copies may have moved.

For the driver: `ReadRange(ledger_id, metadata, first, last, options, order)` is a procedure whose value is None; what
it found is pulled, in order and as soon as it is there:

    reading.start(now_s)
    loop:  perform reading.take_actions()
           found = reading.take_found(now_s)   # [] when nothing is there yet; may cause actions: take them again
           if found: hand it out
           elif reading.is_finished: reading.value(); done
           else wait for an outcome, reading.completed(tag, outcome, now_s)

What was found and not taken is bounded: a reader that does not take stops the asking. An error comes behind everything
that was found before it. It asks for ReadEntries, Sleep and, when nobody has an entry, ReadMetadata. A procedure that
has it as a part is told by `on_found(now_s)` that there is something to take.

Unconfirmed reading (`is_unconfirmed`): the range ends without an error before the first entry that is missing.
Errors: NoSuchEntry only with Qw - Qa + 1 proofs; DigestMismatch, Unauthorized, else NotEnoughBookies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain

from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.replication.actions import Found
from fastbk.replication.entry_table import size_bytes_of
from fastbk.replication.options import Order, ReadOptions, unordered
from fastbk.replication.procedure import Procedure
from fastbk.replication.reading_part import ReadPart

__all__ = ["Order", "ReadOptions", "ReadRange", "unordered"]

# How many parts of a striped ledger are read at the same time, and how long each is.
STRIPED_PARTS = 8
STRIPED_PART_ENTRIES = 64
# How many parts of another one are read at the same time, as far as what is asked for stays below `size_bytes_max`.
BATCHED_PARTS = 4
# What an entry has in an answer beside its data, about; and how full an answer is meant to be, for sizes differ.
_ENTRY_OVERHEAD_BYTES = 64
_FILLED = 0.9


class ReadRange(Procedure[None]):
    """Reads [first, last]; see the module's text.

    Attributes:
        position: the next entry to be taken.
        metadata: the newest that this procedure knows.
        slow: bookie id -> how often another was quicker, or it did not answer; for the order of later reads.
        skipped: how many copies were missing, damaged or not to be had.
        unanswered: bookies that may have the entry that it failed at, and did not answer.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        first: EntryId,
        last: EntryId,
        options: ReadOptions | None = None,
        order: Order = unordered,
        on_found: Callable[[float], None] | None = None,
    ) -> None:
        super().__init__()
        self.ledger_id = ledger_id
        self.metadata = metadata
        self.options = ReadOptions() if options is None else options
        self.position = first
        self.slow: dict[BookieId, int] = {}
        self.skipped = 0
        self.unanswered: frozenset[BookieId] = frozenset()
        self._order = order
        self._on_found = on_found
        self._last = last
        self._next_part = first
        self._unfinished: deque[ReadPart] = deque()
        self._behind: dict[ReadPart, list[Sequence[Found]]] = {}
        self._ready: list[Sequence[Found]] = []
        self._ready_bytes = 0
        self._behind_bytes = 0
        self._is_striped = metadata.ensemble_size != metadata.write_quorum
        # Until the first answer tells how large entries are there is one part, which ends with it.
        self._parts_max = STRIPED_PARTS if self._is_striped else 1
        self._part_entries = STRIPED_PART_ENTRIES if self._is_striped else max(1, last - first + 1)

    def begin(self, now_s: float) -> None:
        """Ask for the first entries."""
        self._begin_parts(now_s)
        self._end_if_read(now_s)

    def take_found(self, now_s: float) -> list[Found]:
        """Return the next entries in order, as many as are there; makes room for more: take the actions then."""
        return list(chain.from_iterable(self.take_tables(now_s)))

    def take_tables(self, now_s: float) -> list[Sequence[Found]]:
        """Like `take_found`, what each answer gave as it came: at least one entry each, no object made for any."""
        runs, self._ready = self._ready, []
        self._ready_bytes = 0
        if runs:
            self.position = runs[-1][-1].entry_id + 1
            if not self.is_finished:
                for part in list(self._unfinished):
                    part.go_on(now_s)
                self._begin_parts(now_s)
        return runs

    @property
    def found_bytes(self) -> int:
        """Data that was found and not taken yet."""
        return self._ready_bytes + self._behind_bytes

    # --- for the parts -----------------------------------------------------------------------------------------

    def in_order(self, bookies: Sequence[BookieId]) -> list[BookieId]:
        """Return these as they are to be asked: the order of the caller's, those that were slow here last."""
        ordered = list(self._order(bookies))
        if self.slow:
            ordered.sort(key=self.slow.__contains__)
        return ordered

    def was_slow(self, bookie_id: BookieId) -> None:
        """Ask that one last from now on."""
        self.slow[bookie_id] = self.slow.get(bookie_id, 0) + 1

    def has_room(self, part: ReadPart) -> bool:
        """Whether a part may ask; the first one always when there is nothing to take, so that it goes on."""
        if self.found_bytes < self.options.size_bytes_max:
            return True
        return not self._ready and part is self._unfinished[0]

    def took(self, part: ReadPart, found: Sequence[Found], now_s: float) -> None:
        """Keep what a part found."""
        size_bytes = size_bytes_of(found)
        if not self._is_striped:
            self._learn_sizes(part, len(found), size_bytes)
        if part is self._unfinished[0]:
            self._now_ready([found], size_bytes, now_s)
        else:
            self._behind.setdefault(part, []).append(found)
            self._behind_bytes += size_bytes

    # --- inside ------------------------------------------------------------------------------------------------

    def _learn_sizes(self, part: ReadPart, count: int, size_bytes: int) -> None:
        """Make parts as long as an answer; the one that was to be the whole range ends here."""
        options = self.options
        entry_bytes = size_bytes / count + _ENTRY_OVERHEAD_BYTES
        wanted = int(_FILLED * options.batch_bytes / entry_bytes)
        self._part_entries = max(1, min(wanted, options.batch_entries))
        if self._parts_max == 1 and part.end_here():
            self._parts_max = BATCHED_PARTS
            self._next_part = part.position

    def _may_begin(self) -> bool:
        under_way = len(self._unfinished)
        if under_way == 0 or self._is_striped:
            return under_way < self._parts_max
        # Each may bring an answer before the first one that is taken.
        asked_bytes = (under_way + 1) * self.options.batch_bytes
        is_room = self.found_bytes + asked_bytes <= self.options.size_bytes_max
        return under_way < self._parts_max and is_room

    def _begin_parts(self, now_s: float) -> None:
        while not self.is_finished and self._next_part <= self._last and self._may_begin():
            first = self._next_part
            last = min(self._last, first + self._part_entries - 1)
            self._next_part = last + 1
            part = ReadPart(self, first, last)
            self._unfinished.append(part)
            self._run(part, self._part_ended, now_s)

    def _part_ended(self, _: Procedure[None], now_s: float) -> None:
        """Hand on what is in order now."""
        while self._unfinished and self._unfinished[0].is_finished:
            part = self._unfinished.popleft()
            if part.error is not None:
                self.unanswered = part.unanswered
                self._fail(part.error, now_s)
                return
            if part.is_cut_short:
                self._finish(None, now_s)
                return
            if self._unfinished:
                self._in_front(self._unfinished[0], now_s)
        self._begin_parts(now_s)
        self._end_if_read(now_s)

    def _in_front(self, part: ReadPart, now_s: float) -> None:
        """That part is the first now: what it found so far is ready."""
        runs = self._behind.pop(part, [])
        size_bytes = sum(map(size_bytes_of, runs))
        self._behind_bytes -= size_bytes
        if runs:
            self._now_ready(runs, size_bytes, now_s)
        part.go_on(now_s)

    def _now_ready(self, runs: Sequence[Sequence[Found]], size_bytes: int, now_s: float) -> None:
        self._ready.extend(runs)
        self._ready_bytes += size_bytes
        if self._on_found is not None:
            self._on_found(now_s)

    def _end_if_read(self, now_s: float) -> None:
        if not self._unfinished and self._next_part > self._last and not self.is_finished:
            self._finish(None, now_s)
