"""The writer's half of the replication protocol, without I/O: which frames go where, and when an add is done.

Events in: batches of encoded adds, acknowledgements, refusals, lost and regained connections, the clock. Out: the
next frames for a bookie, the head (everything below it is acknowledged, in entry order: INV-C1), a failure that
ends the writer for good (INV-C2, A24). Ensemble change and recovery will be built on it.

Entries travel in *batches*: what was encoded by one call. One buffer serves all bookies. For each bookie there are
two positions: `sent` (the next batch to send) and the frontier (everything of its share below it is acknowledged
there). Acks of one connection come in order but for entries that the bookie had to look up, so a frontier and a
small set of stragglers say everything, and a run of acks costs the same as one.

A batch is held until every bookie of the ensemble has it. Completed batches that a missing bookie still lacks are
held up to `held_bytes_max`, then dropped, oldest first, and counted as under-replicated.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastbk.errors import (
    Error,
    Outcome,
)
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.quorum import write_sets
from fastbk.replication.batch import Batch, Buffer, HeldBatches
from fastbk.replication.refusals import UNABLE, refusal, too_few_able, too_late
from fastbk.wire.statuses import status_name


class AddMachine:
    """State of one open ledger's writer; see the module's text.

    Attributes:
        head: the lowest entry id that is not acknowledged yet; the LAC is one less.
        next_entry_id: the id of the next entry to be added.
        failure: set once, for good; from then on nothing more is acknowledged (INV-C2).
        under_replicated: for each bookie, how many acknowledged entries it was to hold but were dropped.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        ensemble: Sequence[BookieId],
        write_quorum: int,
        ack_quorum: int,
        *,
        held_bytes_max: int,
        first_entry_id: EntryId = 0,
        length: int = 0,
    ) -> None:
        self.ledger_id = ledger_id
        self.ensemble = tuple(ensemble)
        self.ack_quorum = ack_quorum
        self.write_quorum = write_quorum
        self.head = first_entry_id
        self.next_entry_id = first_entry_id
        self.next_length = length
        self.failure: Error | None = None
        self.failed_entry_id: EntryId | None = None
        self.under_replicated = [0] * len(self.ensemble)
        self.held_bytes_max = held_bytes_max
        self.entries_resent = 0
        self._size = len(self.ensemble)
        self._striped = write_quorum < self._size
        self._write_sets = write_sets(self._size, write_quorum)
        self._batches = HeldBatches()
        self._released = 0  # the number of the first batch that is not acknowledged as a whole
        self._sent = [0] * self._size
        self._reached = [0] * self._size  # the highest that `sent` ever was
        self._frontier = [first_entry_id] * self._size
        self._late: list[set[EntryId]] = [set() for _ in range(self._size)]
        # Given up, but sent on the connection that is up: the ack may still come. Bounded by what a connection holds.
        self._up = [False] * self._size
        self._dropped: list[set[EntryId]] = [set() for _ in range(self._size)]
        self._rewound = [False] * self._size
        self._trouble: list[str | None] = ["not connected yet"] * self._size
        self._unable: set[int] = set()
        self._refusals: dict[EntryId, set[int]] = {}

    # --- questions ---------------------------------------------------------------------------------------------

    @property
    def last_add_confirmed(self) -> EntryId:
        """The LAC: the last acknowledged entry, -1 before the first."""
        return self.head - 1

    @property
    def length_confirmed(self) -> int:
        """Bytes of data of all entries up to the LAC."""
        if self.head == self.next_entry_id:
            return self.next_length
        batch = self._batches[self._released]
        return batch.length_before + sum(batch.data_sizes[: self.head - batch.first_entry_id])

    @property
    def held_bytes(self) -> int:
        """Bytes of the frames that are held."""
        return self._batches.held_bytes

    @property
    def is_replicated(self) -> bool:
        """Whether every bookie has acknowledged its share of everything that is still held."""
        return self._batches.first == self._batches.end

    def trouble(self) -> dict[BookieId, str]:
        """Return why each bookie that does not answer well does not."""
        both = zip(self.ensemble, self._trouble, strict=True)
        return {bookie: reason for bookie, reason in both if reason is not None}

    def lagging(self, index: int) -> int:
        """Return how many added entries bookie `index` has neither acknowledged nor given up."""
        frontier = self._frontier[index]
        whole, rest = divmod(max(0, self.next_entry_id - frontier), self._size)
        missing = whole * self.write_quorum + sum(
            self._owns(index, frontier + offset) for offset in range(rest)
        )
        return missing - len(self._late[index])

    def outcome(self, entry_id: EntryId) -> Outcome:
        """Return what is known about an entry that was not acknowledged when the writer ended."""
        if entry_id >= self.next_entry_id:
            return "not_written"
        reached = [
            index
            for index in self._write_sets[entry_id % self._size]
            if self._was_sent(index, entry_id)
        ]
        refused = self._refusals.get(entry_id, set())
        # A refusal of a copy that was sent twice says nothing about the first.
        if all(index in refused and not self._rewound[index] for index in reached):
            return "not_written"
        return "unknown"

    # --- events ------------------------------------------------------------------------------------------------

    def add(
        self, frames: Buffer, offsets: Sequence[int], data_sizes: Sequence[int], now_s: float
    ) -> None:
        """Take the next entries, encoded with ids from `next_entry_id` and lengths from `next_length` on."""
        batch = Batch(self.next_entry_id, frames, offsets, data_sizes, self.next_length, now_s)
        self._batches.append(batch)
        self.next_entry_id = batch.end_entry_id
        self.next_length += sum(data_sizes)

    def connected(self, index: int) -> None:
        """Bookie `index` can be written to (again): everything it lacks and that is held will be sent."""
        self._up[index] = True
        self._trouble[index] = None
        self._unable.discard(index)
        self.rewind(index)

    def lost(self, index: int, reason: str) -> None:
        """Bookie `index` cannot be reached; what was sent to it may or may not have arrived."""
        self._up[index] = False
        self._trouble[index] = reason
        self._dropped[index].clear()
        self.rewind(index)

    def rewind(self, index: int) -> None:
        """Send again what bookie `index` has not acknowledged."""
        if self._sent[index] > self._batches.first:
            number = self._sent[index]
            while number > self._batches.first:
                batch = self._batches[number - 1]
                if batch.end_entry_id <= self._frontier[index]:
                    break
                number -= 1
            if number < self._sent[index]:
                self._rewound[index] = True
                self._sent[index] = number

    def next_to_send(self, index: int) -> Buffer | None:
        """Return the next frames for bookie `index` and take them as sent, None when there is nothing."""
        end = self._batches.end
        number = max(self._sent[index], self._batches.first)
        while number < end:
            batch = self._batches[number]
            number += 1
            self._sent[index] = number
            is_again = number <= self._reached[index]
            if not is_again:
                self._reached[index] = number
                if not self._striped and self._frontier[index] <= batch.first_entry_id:
                    return batch.frames
            frames = self._selected(index, batch, is_again)
            if frames is not None:
                return frames
        return None

    def acknowledged(self, index: int, first_entry_id: EntryId, count: int) -> bool:
        """Bookie `index` has entries [first, first + count) durably; return whether the head moved."""
        end = first_entry_id + count
        frontier = self._frontier[index]
        if self._dropped[index] and first_entry_id < frontier:
            self._late_ack_of_dropped(index, first_entry_id, min(end, frontier))
        if end <= frontier or end > self.next_entry_id or self.failure is not None:
            return False
        if self._unable:
            self._unable.discard(index)
        if self._trouble[index] is not None:
            self._trouble[index] = None
        late = self._late[index]
        if first_entry_id <= frontier or not self._owes(index, frontier, first_entry_id):
            frontier = end
            if late:
                while self._owns_not(index, frontier) or frontier in late:
                    late.discard(frontier)
                    frontier += 1
                for entry_id in [one for one in late if one < frontier]:
                    late.discard(entry_id)
            self._frontier[index] = frontier
        else:
            late.update(range(max(first_entry_id, frontier), end))
        return self._advance()

    def refused(self, index: int, first_entry_id: EntryId, count: int, status: int) -> bool:
        """Bookie `index` did not store these entries. Return True if it should be tried again after a while.

        May end the writer: `failure` is set then.
        """
        if self._dropped[index]:
            self._dropped[index].difference_update(range(first_entry_id, first_entry_id + count))
        entry_id = max(first_entry_id, self._frontier[index])
        while entry_id < first_entry_id + count and entry_id in self._late[index]:
            entry_id += 1
        if entry_id >= first_entry_id + count or self.failure is not None:
            return False
        for one in range(entry_id, min(first_entry_id + count, self.next_entry_id)):
            if one >= self.head:
                self._refusals.setdefault(one, set()).add(index)
        self._trouble[index] = status_name(status)
        error = refusal(self.ledger_id, entry_id, self.ensemble[index], status, self.trouble())
        if error is not None:
            self._fail(error, entry_id)
            return False
        if status in UNABLE:
            self._unable.add(index)
            self._check_able()
        return self.failure is None

    def expire(self, now_s: float, timeout_s: float) -> float | None:
        """End the writer if its oldest add waits longer than `timeout_s`; return when to look again, None: idle."""
        if self.head == self.next_entry_id or self.failure is not None:
            return None
        end_s = self._batches[self._released].admitted_s + timeout_s
        if now_s < end_s:
            return end_s
        error = too_late(self.ledger_id, self.head, self.ack_quorum, timeout_s, self.trouble())
        self._fail(error, self.head)
        return None

    def end(self, error: Error) -> None:
        """End the writer from outside (close, abort); what was acknowledged stays so."""
        self._fail(error, self.head)

    # --- inside ------------------------------------------------------------------------------------------------

    def _owns(self, index: int, entry_id: EntryId) -> bool:
        return (index - entry_id) % self._size < self.write_quorum

    def _owns_not(self, index: int, entry_id: EntryId) -> bool:
        return self._striped and not self._owns(index, entry_id) and entry_id < self.next_entry_id

    def _owes(self, index: int, start: EntryId, end: EntryId) -> bool:
        """Return whether any entry of [start, end) is to be held by bookie `index`."""
        if not self._striped:
            return start < end
        return any(self._owns(index, one) for one in range(start, min(end, start + self._size)))

    def _was_sent(self, index: int, entry_id: EntryId) -> bool:
        if self._rewound[index]:
            return True
        number = self._sent[index]
        if number <= self._batches.first:
            return number > 0 and self._first_entry_held() > entry_id
        batch = self._batches[number - 1]
        return batch.end_entry_id > entry_id

    def _first_entry_held(self) -> EntryId:
        if self._batches.first < self._batches.end:
            return self._batches[self._batches.first].first_entry_id
        return self.next_entry_id

    def _selected(self, index: int, batch: Batch, is_again: bool) -> Buffer | None:
        """Return the frames of `batch` that bookie `index` is to hold and has not acknowledged."""
        frontier, late = self._frontier[index], self._late[index]
        first = batch.first_entry_id
        wanted = [
            entry_id - first
            for entry_id in range(max(first, frontier), batch.end_entry_id)
            if self._owns(index, entry_id) and entry_id not in late
        ]
        if is_again:
            self.entries_resent += len(wanted)
        if len(wanted) == len(batch.data_sizes):
            return batch.frames
        if not wanted:
            return None
        view, offsets = memoryview(batch.frames), batch.offsets
        return b"".join([view[offsets[one] : offsets[one + 1]] for one in wanted])

    def _advance(self) -> bool:
        head = self.head
        if self._striped:
            self.head = min(self._class_end(remainder) for remainder in range(self._size))
        else:
            self.head = sorted(self._frontier, reverse=True)[self.ack_quorum - 1]
        if self.head < head:
            self.head = head
        if any(self._late):
            while self.head < self.next_entry_id and self._is_complete(self.head):
                self.head += 1
        if self.head > self.next_entry_id:
            self.head = self.next_entry_id
        if self._refusals and self.head > head:
            for entry_id in [one for one in self._refusals if one < self.head]:
                del self._refusals[entry_id]
        self._let_go()
        return self.head > head

    def _class_end(self, remainder: int) -> EntryId:
        """Return the lowest entry id with this remainder that is not complete by frontiers alone."""
        quorum = sorted((self._frontier[one] for one in self._write_sets[remainder]), reverse=True)
        reached = quorum[self.ack_quorum - 1]
        return reached + (remainder - reached) % self._size

    def _is_complete(self, entry_id: EntryId) -> bool:
        acks = 0
        for index in self._write_sets[entry_id % self._size]:
            if entry_id < self._frontier[index] or entry_id in self._late[index]:
                acks += 1
        return acks >= self.ack_quorum

    def _let_go(self) -> None:
        """Drop batches that every bookie has, and the oldest completed ones beyond the bound (A24)."""
        end = self._batches.end
        head = self.head
        while self._released < end and self._batches[self._released].end_entry_id <= head:
            self._released += 1
        while self._batches.first < self._released:
            batch = self._batches[self._batches.first]
            lowest = min(self._frontier)
            if lowest < batch.end_entry_id and not self._settled(batch):
                if self._batches.held_bytes <= self.held_bytes_max:
                    break
                self._give_up(batch)
            self._batches.let_first_go()

    def _settled(self, batch: Batch) -> bool:
        """Return whether no bookie owes any entry of `batch`; a frontier may stop at another's share."""
        for index, frontier in enumerate(self._frontier):
            start = max(frontier, batch.first_entry_id)
            late = self._late[index]
            for entry_id in range(start, batch.end_entry_id):
                if self._owns(index, entry_id) and entry_id not in late:
                    return False
        return True

    def _give_up(self, batch: Batch) -> None:
        for index, frontier in enumerate(self._frontier):
            late = self._late[index]
            was_sent = self._up[index] and self._sent[index] > self._batches.first
            for entry_id in range(max(frontier, batch.first_entry_id), batch.end_entry_id):
                if self._owns(index, entry_id) and entry_id not in late:
                    self.under_replicated[index] += 1
                    if was_sent:
                        self._dropped[index].add(entry_id)
                late.discard(entry_id)
            if frontier < batch.end_entry_id:
                self._frontier[index] = batch.end_entry_id

    def _late_ack_of_dropped(self, index: int, first: EntryId, end: EntryId) -> None:
        dropped = self._dropped[index]
        for entry_id in range(first, end):
            if entry_id in dropped:
                dropped.discard(entry_id)
                self.under_replicated[index] -= 1

    def _check_able(self) -> None:
        for entry_id in range(self.head, min(self.next_entry_id, self.head + self._size)):
            able = [
                one
                for one in self._write_sets[entry_id % self._size]
                if one not in self._unable
                or entry_id < self._frontier[one]
                or entry_id in self._late[one]
            ]
            if len(able) < self.ack_quorum:
                self._fail(too_few_able(self.ledger_id, entry_id, self.trouble()), entry_id)
                return

    def _fail(self, error: Error, entry_id: EntryId) -> None:
        if self.failure is not None:
            return
        error.ledger_id = self.ledger_id
        error.entry_id = entry_id
        error.outcome = self.outcome(entry_id)
        self.failure = error
        self.failed_entry_id = entry_id
