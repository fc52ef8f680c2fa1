"""The writer's half of the replication protocol, without I/O: which frames go where, and when an add is done.

Events in: batches of encoded adds, acknowledgements, refusals, lost and regained connections, the clock. Out: the
next frames for a bookie, the head (everything below it is acknowledged, in entry order: INV-C1), a failure that
ends the writer for good (INV-C2). `WriterMachine` changes the ensemble with `freeze`, `replace` and `thaw`.

Entries travel in *batches*: what was encoded by one call. One buffer serves all bookies. For each bookie there are
two positions: `sent` (the next batch to send) and the frontier (everything of its share below it is acknowledged
there). Acks of one connection come in order but for entries that the bookie had to look up, so a frontier and a
small set of stragglers say everything, and a run of acks costs the same as one.

A bookie that refuses adds as read-only is *probed*: each `rewind` lets it be sent one entry, and the rest follows
once it has stored one.

A batch is held until every bookie of the ensemble has it. Completed batches that a missing bookie still lacks are
held up to `held_bytes_max`, then dropped, oldest first, and counted as under-replicated.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate
from typing import TypeAlias

from fastbk.errors import (
    Error,
    LedgerClosed,
    LedgerFenced,
    NoSuchLedger,
    NotEnoughBookies,
    Outcome,
    ProtocolError,
    QuorumTimeout,
    RecordTooLarge,
    ReplicationConflict,
    Unauthorized,
)
from fastbk.model.ids import ID_MAX, BookieId, EntryId, LedgerId
from fastbk.model.quorum import AckSets, write_sets
from fastbk.wire.statuses import Status, status_name

_ENTRY_IDS_END = ID_MAX + 1
# Of so many given up entries of one bookie a late ack is noticed; more stay counted as under-replicated.
DROPPED_MAX = 65_536
# Ranges of given up entries that are kept for one bookie; more are joined with what lies between them.
GIVEN_UP_RANGES_MAX = 100


class AddMachine:
    """State of one open ledger's writer; see the module's text.

    Attributes:
        head: the lowest entry id that is not acknowledged yet; the LAC is one less.
        next_entry_id: the id of the next entry to be added.
        failure: set once, for good; from then on nothing more is acknowledged (INV-C2).
        is_frozen: acks are recorded and the head stays.
        under_replicated: for each index, how many acknowledged entries its bookie was to hold but were dropped.
        given_up: for each index, the half-open ranges of ids that those entries lie in.
        probed_members: the indexes that are probed, and whether each may be sent an entry now.
        forced_entry_id, forced_length: with deferred sync, the LAC and the bytes of data up to it.
        ack_sets: where an add needs more than Qa acks: which ones (INV-Q5). Changed only while frozen (INV-P5).

    Args:
        held_bytes_max: how many bytes of acknowledged entries are held for bookies that lack them.
        ends_when_unable: end the writer as soon as too few bookies can store, since nobody replaces them.
        is_deferred: deferred sync; acknowledged entries raise the LAC only when they were forced.
        describe_trouble: what errors say of a bookie and why it does not answer well.
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
        ends_when_unable: bool = True,
        is_deferred: bool = False,
        describe_trouble: Callable[[BookieId, str], str] = lambda _, reason: reason,
        ack_sets: AckSets | None = None,
    ) -> None:
        self.ledger_id = ledger_id
        self.ensemble = tuple(ensemble)
        self.ack_quorum = ack_quorum
        self.ack_sets = ack_sets
        self.write_quorum = write_quorum
        self.head = first_entry_id
        self.next_entry_id = first_entry_id
        self.next_length = length
        self.failure: Error | None = None
        self.failed_entry_id: EntryId | None = None
        self.is_frozen = False
        self.is_deferred = is_deferred
        self.forced_entry_id = first_entry_id - 1
        self.forced_length = length
        self.under_replicated = [0] * len(self.ensemble)
        self.given_up: list[list[tuple[EntryId, EntryId]]] = [[] for _ in self.ensemble]
        self.probed_members: dict[int, bool] = {}
        self.held_bytes_max = held_bytes_max
        self.entries_resent = 0
        self._ends_when_unable = ends_when_unable
        self._left_under_replicated: dict[BookieId, int] = {}  # of bookies that were replaced
        self._size = len(self.ensemble)
        self._shares = WriteSets(self._size, write_quorum)
        self._striped = self._shares.is_striped
        self._write_sets = self._shares.write_sets
        self._batches = BatchBuffer()
        self._released = 0  # the number of the first batch that is not acknowledged as a whole
        self._sent = [0] * self._size
        self._reached = [0] * self._size  # the highest that `sent` ever was
        self._frontier = [first_entry_id] * self._size
        self._acked_ahead: list[set[EntryId]] = [set() for _ in range(self._size)]
        self._up = [False] * self._size
        self._caught_up_at = [first_entry_id] * self._size
        # Given up, but sent: the ack may still come.
        self._dropped: list[set[EntryId]] = [set() for _ in range(self._size)]
        # Entries below may have been sent to that index more than once, or to a bookie that was replaced.
        self._resent_below = [first_entry_id] * self._size
        # A frontier there means that nothing was stored.
        self._nothing_below = [first_entry_id] * self._size
        self._trouble: list[str | None] = ["not connected yet"] * self._size
        self._describe_trouble = describe_trouble
        self._unable: set[int] = set()
        self._refusals: dict[EntryId, set[int]] = {}

    # --- questions ---------------------------------------------------------------------------------------------

    @property
    def last_add_confirmed(self) -> EntryId:
        """The LAC: the last acknowledged entry (with deferred sync the last forced one), -1 before the first."""
        return self.forced_entry_id if self.is_deferred else self.head - 1

    @property
    def length_confirmed(self) -> int:
        """Bytes of data of all entries up to the LAC."""
        return self.forced_length if self.is_deferred else self.length_acknowledged

    @property
    def length_acknowledged(self) -> int:
        """Bytes of data of all entries below the head."""
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
        return {
            bookie: self._describe_trouble(bookie, why) for bookie, why in both if why is not None
        }

    def lagging(self, index: int) -> int:
        """Return how many added entries bookie `index` has neither acknowledged nor given up."""
        missing = self._shares.count(index, self._frontier[index], self.next_entry_id)
        return missing - len(self._acked_ahead[index])

    @property
    def is_filling(self) -> bool:
        """Whether the held entries take three quarters of the room for them."""
        return 4 * self._batches.held_bytes >= 3 * self.held_bytes_max

    def lacking(self, index: int) -> list[tuple[EntryId, EntryId]]:
        """Return the half-open ranges of acknowledged ids of which bookie `index` lacks its share or a part of it."""
        frontier = self._frontier[index]
        if not self.owns_any(index, frontier, self.head):
            return self.given_up[index]
        return [*self.given_up[index], (frontier, self.head)]

    def stored_below(self, index: int) -> EntryId:
        """Return the id below which bookie `index` has its share, but for what was given up."""
        return self._frontier[index]

    def owns_any(self, index: int, start: EntryId, end: EntryId) -> bool:
        """Return whether bookie `index` is to hold any entry of [start, end)."""
        return start < end and self._shares.owns_any(index, start, end)

    def is_catching_up(self, index: int) -> bool:
        """Return whether bookie `index` is still given what was there when it was connected."""
        return self._frontier[index] < self._caught_up_at[index]

    def has_stored(self, index: int) -> bool:
        """Return whether bookie `index` has acknowledged anything since it is in the ensemble."""
        return self._frontier[index] > self._nothing_below[index] or bool(self._acked_ahead[index])

    def owed_since(self, index: int) -> float | None:
        """Return when the oldest add was admitted that bookie `index` has not acknowledged, None if it owes nothing."""
        frontier, batches = self._frontier[index], self._batches
        if frontier >= self.next_entry_id:
            return None
        held = range(batches.first, batches.end)
        at = bisect_right(held, frontier, key=lambda number: batches[number].end_entry_id)
        for number in held[at:]:
            batch = batches[number]
            # Whatever of its share lies first behind the frontier is missing.
            if self._shares.owns_any(
                index, max(frontier, batch.first_entry_id), batch.end_entry_id
            ):
                return batch.admitted_s
        return None

    def needed_of(self, down: Collection[int]) -> set[int]:
        """Return those of the indexes `down` without which some entry in flight cannot be completed.

        The newest entry of each write set has the fewest acks, so the others are not looked at.
        """
        needed: set[int] = set()
        for entry_id in range(max(self.head, self.next_entry_id - self._size), self.next_entry_id):
            lacking = [
                index
                for index in self._write_sets[entry_id % self._size]
                if index in down and not self._has(index, entry_id)
            ]
            if self._is_short(entry_id, lacking):
                needed.update(lacking)
        return needed

    def short_without(self, down: Collection[int]) -> set[int]:
        """Return those of `down` that are in a write set which has no ack quorum without them."""
        short: set[int] = set()
        for remainder, write_set in enumerate(self._write_sets):
            lacking = [index for index in write_set if index in down]
            if self._is_short(remainder, lacking):
                short.update(lacking)
        return short

    def under_replicated_by_bookie(self) -> dict[BookieId, int]:
        """Return how many acknowledged entries each bookie was to hold and will not get, replaced ones included."""
        under_replicated = dict(self._left_under_replicated)
        for bookie_id, count in zip(self.ensemble, self.under_replicated, strict=True):
            under_replicated[bookie_id] = under_replicated.get(bookie_id, 0) + count
        return under_replicated

    def outcome(self, entry_id: EntryId) -> Outcome:
        """Return what is known about an entry that was not acknowledged when the writer ended."""
        if entry_id >= self.next_entry_id:
            return "not_written"
        write_set = self._write_sets[entry_id % self._size]
        reached = [index for index in write_set if self.was_sent(index, entry_id)]
        refused = self._refusals.get(entry_id, set())
        # A refusal of a copy that was sent twice says nothing about the first.
        if all(index in refused and entry_id >= self._resent_below[index] for index in reached):
            return "not_written"
        return "unknown"

    # --- events ------------------------------------------------------------------------------------------------

    def add(self, frames: Buffer, data_sizes: Sequence[int], now_s: float) -> None:
        """Take the next entries, encoded with ids from `next_entry_id` and lengths from `next_length` on.

        Ids beyond 2^63-1 end the writer instead.
        """
        batch = Batch(self.next_entry_id, frames, data_sizes, self.next_length, now_s)
        if batch.end_entry_id > _ENTRY_IDS_END:
            self._fail(full(self.ledger_id), self.head)
            return
        self._batches.append(batch)
        self.next_entry_id = batch.end_entry_id
        self.next_length += sum(data_sizes)

    def connected(self, index: int) -> None:
        """Bookie `index` can be written to (again): everything it lacks and that is held will be sent."""
        self._up[index] = True
        self._caught_up_at[index] = self.next_entry_id
        self._trouble[index] = None
        self._unable.discard(index)
        self.probed_members.pop(index, None)
        self.rewind(index)

    def lost(self, index: int, reason: str) -> None:
        """Bookie `index` cannot be reached; what was sent to it may or may not have arrived."""
        self._up[index] = False
        self._trouble[index] = reason
        self._dropped[index].clear()
        self.probed_members.pop(index, None)
        self.rewind(index)

    def mark_unresponsive(self, index: int, reason: str) -> None:
        """Bookie `index` does not answer well; its next acknowledgement takes that back."""
        self._trouble[index] = reason

    def rewind(self, index: int) -> None:
        """Send again what bookie `index` has not acknowledged; one entry of it if it is probed."""
        if index in self.probed_members:
            self.probed_members[index] = True
        if self._sent[index] > self._batches.first:
            number = self._sent[index]
            while number > self._batches.first:
                batch = self._batches[number - 1]
                if batch.end_entry_id <= self._frontier[index]:
                    break
                number -= 1
            if number < self._sent[index]:
                self._mark_resent(index)
                self._sent[index] = number

    def next_to_send(self, index: int) -> Buffer | None:
        """Return the next frames for bookie `index` and take them as sent, None when there is nothing."""
        batches, number = self._batches, self._sent[index]
        if number >= batches.end:
            return None
        is_probe = bool(self.probed_members) and index in self.probed_members
        end = 0 if is_probe and not self.probed_members[index] else batches.end
        number = max(number, batches.first)
        while number < end:
            batch = batches[number]
            number += 1
            self._sent[index] = number
            is_again = number <= self._reached[index]
            if not is_again and not is_probe:
                self._reached[index] = number
                if not self._striped and self._frontier[index] <= batch.first_entry_id:
                    return batch.frames
            frames = self._selected(index, batch, is_again, 1 if is_probe else None)
            if frames is not None:
                if is_probe:
                    self.probed_members[index] = False
                return frames
        return None

    def acknowledged(self, index: int, first_entry_id: EntryId, count: int) -> bool:
        """Bookie `index` has entries [first, first + count) durably; return whether the head moved."""
        end = first_entry_id + count
        frontier = self._frontier[index]
        if self.probed_members and self.probed_members.pop(index, None) is not None:
            self.rewind(index)
        if self._dropped[index] and first_entry_id < frontier:
            self._late_ack_of_dropped(index, first_entry_id, min(end, frontier))
        if end <= frontier or end > self.next_entry_id or self.failure is not None:
            return False
        if self._unable:
            self._unable.discard(index)
        if self._trouble[index] is not None:
            self._trouble[index] = None
        if first_entry_id <= frontier or not self._shares.owns_any(index, frontier, first_entry_id):
            if self._acked_ahead[index]:
                self._move_frontier(index, end)
            else:
                self._frontier[index] = end
        else:
            self._acked_ahead[index].update(range(max(first_entry_id, frontier), end))
        return self._advance()

    def refused(self, index: int, first_entry_id: EntryId, count: int, status: int) -> bool:
        """Bookie `index` did not store these entries. Return True if it should be tried again after a while.

        May end the writer: `failure` is set then.
        """
        if self._dropped[index]:
            self._dropped[index].difference_update(range(first_entry_id, first_entry_id + count))
        entry_id = max(first_entry_id, self._frontier[index])
        while entry_id < first_entry_id + count and entry_id in self._acked_ahead[index]:
            entry_id += 1
        if entry_id >= first_entry_id + count or self.failure is not None:
            # Its entry may have been given up meanwhile: the next probe must be sent all the same.
            return index in self.probed_members and self.failure is None
        for one in range(entry_id, min(first_entry_id + count, self.next_entry_id)):
            if one >= self.head:
                self._refusals.setdefault(one, set()).add(index)
        self._trouble[index] = status_name(status)
        error = refusal(self.ledger_id, entry_id, self.ensemble[index], status, self.trouble())
        if status == Status.FENCED and not self._ends_when_unable:
            error = (
                None  # its writer asks the metadata, and replaces a bookie that is wrong (INV-E5)
            )
        if error is not None:
            self._fail(error, entry_id)
            return False
        if status == Status.READ_ONLY:
            self.probed_members.setdefault(index, False)
        if status in UNABLE and self._ends_when_unable:
            self._unable.add(index)
            self._check_able()
        return self.failure is None

    def expire(
        self,
        now_s: float,
        timeout_s: float,
        left_out: Mapping[BookieId, str] | None = None,
    ) -> float | None:
        """End the writer if its oldest add waits longer than `timeout_s`; return when to look again, None: idle.

        `left_out`: given when other bookies were looked for and not found; why each could not be taken.
        """
        if self.head == self.next_entry_id or self.failure is not None:
            return None
        end_s = self._batches[self._released].admitted_s + timeout_s
        if now_s < end_s:
            return end_s
        trouble = self.trouble()
        if left_out is None:
            needed = str(self.ack_sets or f"{self.ack_quorum} bookies")
            error = too_late(self.ledger_id, self.head, needed, timeout_s, trouble, self.is_frozen)
        else:
            trouble = {**left_out, **trouble}
            error = too_few_able(self.ledger_id, self.head, trouble, self.ack_sets)
        self._fail(error, self.head)
        return None

    def end(self, error: Error) -> None:
        """End the writer from outside (close, abort); what was acknowledged stays so."""
        self._fail(error, self.head)

    def forced(self, entry_id: EntryId, length: int) -> None:
        """Everything up to `entry_id`, `length` bytes of data, was forced. The LAC never falls (INV-C1)."""
        if entry_id > self.forced_entry_id:
            self.forced_entry_id, self.forced_length = entry_id, length

    # --- change of the ensemble --------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Record acks but leave the head where it is: a fragment is about to start there (INV-E1)."""
        self.is_frozen = True

    def replace(self, index: int, bookie_id: BookieId, *, is_lost: bool = False) -> EntryId:
        """Another bookie holds the entries from the head on at `index`; call it frozen (INV-E2).

        All acks there of entries in flight are unset, and they will be sent to it. Before them it is sent what its
        predecessor lacks of the entries below the head (`is_lost`: all of them) and is still held; return where that
        begins. Those belong to the former fragment, where its acks count for nothing (INV-E1). The rest stays counted
        under the predecessor's id.
        """
        head, ahead = self.head, self._acked_ahead[index]
        held = self._batches
        held_from = held[held.first].first_entry_id if held.first < held.end else head
        start = min(head, max(held_from, 0 if is_lost else self._frontier[index]))
        missing = self.under_replicated[index]
        if missing:
            left, before = self._left_under_replicated, self.ensemble[index]
            left[before] = left.get(before, 0) + missing
        self._mark_resent(index)
        ahead.clear()
        self._dropped[index].clear()
        self._unable.discard(index)
        self.probed_members.pop(index, None)
        self._frontier[index] = self._nothing_below[index] = start
        self._sent[index] = self._reached[index] = held.first
        self.under_replicated[index] = 0
        self.given_up[index] = []
        self._up[index] = False
        self._trouble[index] = "not connected yet"
        self.ensemble = (*self.ensemble[:index], bookie_id, *self.ensemble[index + 1 :])
        return start

    def thaw(self) -> bool:
        """Let the head move again; return whether it did."""
        self.is_frozen = False
        return self.failure is None and self._advance()

    # --- inside ------------------------------------------------------------------------------------------------

    def _owns_not(self, index: int, entry_id: EntryId) -> bool:
        return (
            self._striped
            and not self._shares.owns(index, entry_id)
            and entry_id < self.next_entry_id
        )

    def _has(self, index: int, entry_id: EntryId) -> bool:
        return entry_id < self._frontier[index] or entry_id in self._acked_ahead[index]

    def _is_short(self, entry_id: EntryId, lacking: Collection[int]) -> bool:
        """Return whether an entry cannot be completed without the members `lacking` of its write set."""
        if self.ack_sets is None:
            return self.write_quorum - len(lacking) < self.ack_quorum
        write_set = self._write_sets[entry_id % self._size]
        return not self.ack_sets.contains([index for index in write_set if index not in lacking])

    def _mark_resent(self, index: int) -> None:
        """What was sent to `index` so far will be sent again, or was sent to a bookie that is replaced."""
        number = self._sent[index]
        if number > self._batches.first:
            end = self._batches[number - 1].end_entry_id
            self._resent_below[index] = max(self._resent_below[index], end)

    def _move_frontier(self, index: int, frontier: EntryId) -> None:
        """Everything of its share below `frontier` is settled there; go on over what was acknowledged early."""
        ahead = self._acked_ahead[index]
        if ahead:
            while self._owns_not(index, frontier) or frontier in ahead:
                ahead.discard(frontier)
                frontier += 1
            for entry_id in [one for one in ahead if one < frontier]:
                ahead.discard(entry_id)
        self._frontier[index] = frontier

    def was_sent(self, index: int, entry_id: EntryId) -> bool:
        """Return whether bookie `index`, or one before it there, may have been sent the entry."""
        if entry_id < self._resent_below[index]:
            return True
        number, held = self._sent[index], self._batches
        if number > held.first:
            return held[number - 1].end_entry_id > entry_id
        # Nothing that is held was sent there; what was let go may have been.
        first = held[held.first].first_entry_id if held.first < held.end else self.next_entry_id
        return number > 0 and first > entry_id

    def _selected(
        self, index: int, batch: Batch, is_again: bool, count_max: int | None
    ) -> Buffer | None:
        """Return the first frames of `batch` that bookie `index` is to hold and has not acknowledged."""
        frontier, ahead = self._frontier[index], self._acked_ahead[index]
        first = batch.first_entry_id
        wanted = [
            entry_id - first
            for entry_id in range(max(first, frontier), batch.end_entry_id)
            if self._shares.owns(index, entry_id) and entry_id not in ahead
        ][:count_max]
        if is_again:
            self.entries_resent += len(wanted)
        if len(wanted) == len(batch.data_sizes):
            return batch.frames
        if not wanted:
            return None
        view, offsets = memoryview(batch.frames), batch.offsets()
        return b"".join([view[offsets[one] : offsets[one + 1]] for one in wanted])

    def _advance(self) -> bool:
        if self.is_frozen:
            return False
        before = self.head
        if self._striped:
            head = min(self._class_end(remainder) for remainder in range(self._size))
        elif self.ack_sets is None:
            head = sorted(self._frontier)[-self.ack_quorum]
        else:
            head = self._spanned_below(self.ack_sets, range(self._size))
        head = max(head, before)
        if any(self._acked_ahead):
            while head < self.next_entry_id and self._is_complete(head):
                head += 1
        head = min(head, self.next_entry_id)
        self.head = head
        self._release_batches()
        if head == before:
            return False
        if self._refusals:
            for entry_id in [one for one in self._refusals if one < head]:
                del self._refusals[entry_id]
        return True

    def _class_end(self, remainder: int) -> EntryId:
        """Return the lowest entry id with this remainder that is not complete by frontiers alone."""
        if self.ack_sets is None:
            quorum = sorted(
                (self._frontier[index] for index in self._write_sets[remainder]), reverse=True
            )
            end = quorum[self.ack_quorum - 1]
        else:
            end = self._spanned_below(self.ack_sets, self._write_sets[remainder])
        # A replacement's frontier may lie below the head: what it is given there says nothing about what follows.
        reached = max(end, self.head)
        return reached + (remainder - reached) % self._size

    def _spanned_below(self, ack_sets: AckSets, write_set: Sequence[int]) -> EntryId:
        """Return the id below which those of a write set that have everything are an ack set (INV-Q5)."""
        members: list[int] = []
        for index in sorted(write_set, key=lambda index: -self._frontier[index]):
            members.append(index)
            if ack_sets.contains(members):
                return self._frontier[index]
        return 0

    def _is_complete(self, entry_id: EntryId) -> bool:
        if self.ack_sets is not None:
            write_set = self._write_sets[entry_id % self._size]
            return self.ack_sets.contains([one for one in write_set if self._has(one, entry_id)])
        acks = 0
        for index in self._write_sets[entry_id % self._size]:
            if entry_id < self._frontier[index] or entry_id in self._acked_ahead[index]:
                acks += 1
        return acks >= self.ack_quorum

    def _release_batches(self) -> None:
        """Drop batches that every bookie has, and the oldest completed ones beyond the bound."""
        batches, head = self._batches, self.head
        held, complete = batches.held, self._released - batches.first
        while complete < len(held) and held[complete].end_entry_id <= head:
            complete += 1
        self._released = batches.first + complete
        while complete:
            batch = held[0]
            if min(self._frontier) < batch.end_entry_id and not self._settled(batch):
                if batches.held_bytes <= self.held_bytes_max:
                    break
                self._give_up(batch)
            batches.release_first()
            complete -= 1

    def _settled(self, batch: Batch) -> bool:
        """Return whether no bookie owes any entry of `batch`; a frontier may stop at another's share."""
        for index, frontier in enumerate(self._frontier):
            start = max(frontier, batch.first_entry_id)
            ahead = self._acked_ahead[index]
            for entry_id in range(start, batch.end_entry_id):
                if self._shares.owns(index, entry_id) and entry_id not in ahead:
                    return False
        return True

    def _give_up(self, batch: Batch) -> None:
        for index, frontier in enumerate(self._frontier):
            ahead, has_stored = self._acked_ahead[index], self.has_stored(index)
            was_sent = self._up[index] and self._sent[index] > self._batches.first
            for entry_id in range(max(frontier, batch.first_entry_id), batch.end_entry_id):
                if self._shares.owns(index, entry_id) and entry_id not in ahead:
                    self.under_replicated[index] += 1
                    if was_sent and len(self._dropped[index]) < DROPPED_MAX:
                        self._dropped[index].add(entry_id)
                ahead.discard(entry_id)
            if frontier < batch.end_entry_id:
                self._note_given_up(index, max(frontier, batch.first_entry_id), batch.end_entry_id)
                if not has_stored:
                    self._nothing_below[index] = batch.end_entry_id
                self._move_frontier(index, batch.end_entry_id)

    def _note_given_up(self, index: int, start: EntryId, end: EntryId) -> None:
        if self.owns_any(index, start, end):
            ranges = self.given_up[index]
            if ranges and ranges[-1][1] >= start:
                start = ranges.pop()[0]
            if len(ranges) >= GIVEN_UP_RANGES_MAX:
                start = ranges.pop()[0]
            ranges.append((start, end))

    def _late_ack_of_dropped(self, index: int, first: EntryId, end: EntryId) -> None:
        dropped = self._dropped[index]
        for entry_id in range(first, end):
            if entry_id in dropped:
                dropped.discard(entry_id)
                self._nothing_below[index] = -1
                self.under_replicated[index] -= 1
        if not self.under_replicated[index]:
            self.given_up[index] = []

    def _check_able(self) -> None:
        for entry_id in range(self.head, min(self.next_entry_id, self.head + self._size)):
            unable = [
                index
                for index in self._write_sets[entry_id % self._size]
                if index in self._unable and not self._has(index, entry_id)
            ]
            if self._is_short(entry_id, unable):
                error = too_few_able(self.ledger_id, entry_id, self.trouble(), self.ack_sets)
                self._fail(error, entry_id)
                return

    def _fail(self, error: Error, entry_id: EntryId) -> None:
        if self.failure is not None:
            return
        error.ledger_id = self.ledger_id
        error.entry_id = entry_id
        error.outcome = self.outcome(entry_id)
        self.failure = error
        self.failed_entry_id = entry_id


# --- shares ---------------------------------------------------------------------------------------


class WriteSets:
    """The shares of an ensemble of `size` bookies; a bookie's share are the entries in whose write set it is (INV-Q1).

    Attributes:
        write_sets: by entry id mod `size`, the indexes of the bookies that hold it.
        is_striped: some entry is not on all bookies.
    """

    __slots__ = ("is_striped", "size", "write_quorum", "write_sets")

    def __init__(self, size: int, write_quorum: int) -> None:
        self.size = size
        self.write_quorum = write_quorum
        self.is_striped = write_quorum < size
        self.write_sets = write_sets(size, write_quorum)

    def owns(self, index: int, entry_id: EntryId) -> bool:
        """Return whether bookie `index` is to hold the entry."""
        return (index - entry_id) % self.size < self.write_quorum

    def owns_any(self, index: int, start: EntryId, end: EntryId) -> bool:
        """Return whether bookie `index` is to hold any entry of [start, end)."""
        if not self.is_striped:
            return start < end
        return any(self.owns(index, one) for one in range(start, min(end, start + self.size)))

    def count(self, index: int, start: EntryId, end: EntryId) -> int:
        """Return how many entries of [start, end) bookie `index` is to hold."""
        whole, rest = divmod(max(0, end - start), self.size)
        return whole * self.write_quorum + sum(
            self.owns(index, start + offset) for offset in range(rest)
        )


# --- batches --------------------------------------------------------------------------------------


# What one call of C encodes at most, so that it is short.
BATCH_ENTRIES = 2048
BATCH_BYTES = 1024 * 1024

Buffer: TypeAlias = bytes | bytearray | memoryview


class Batch:
    """Consecutive entries that were encoded together.

    Attributes:
        first_entry_id, end_entry_id: the half-open range of ids.
        frames: the encoded adds, one behind the other; beside its data each takes the same number of bytes.
        data_sizes: bytes of data of each entry.
        length_before: the ledger's length before the first entry.
        admitted_s: the clock when it was encoded.
    """

    __slots__ = (
        "admitted_s",
        "data_sizes",
        "end_entry_id",
        "first_entry_id",
        "frames",
        "length_before",
    )

    def __init__(
        self,
        first_entry_id: EntryId,
        frames: Buffer,
        data_sizes: Sequence[int],
        length_before: int,
        admitted_s: float,
    ) -> None:
        self.first_entry_id = first_entry_id
        self.end_entry_id = first_entry_id + len(data_sizes)
        self.frames = frames
        self.data_sizes = data_sizes
        self.length_before = length_before
        self.admitted_s = admitted_s

    def offsets(self) -> list[int]:
        """Return where each frame starts in `frames`, and the end: one more than there are entries."""
        sizes = self.data_sizes
        around = (len(self.frames) - sum(sizes)) // len(sizes)
        return list(accumulate((around + size for size in sizes), initial=0))


class BatchBuffer:
    """Batches by their numbers, counted from 0: those from `first` to before `end` are `held`."""

    def __init__(self) -> None:
        self.first = 0
        self.end = 0
        self.held_bytes = 0
        self.held: deque[Batch] = deque()

    def append(self, batch: Batch) -> None:
        """Hold one more."""
        self.held.append(batch)
        self.end += 1
        self.held_bytes += len(batch.frames)

    def __getitem__(self, number: int) -> Batch:
        return self.held[number - self.first]

    def release_first(self) -> None:
        """Drop the first one."""
        self.held_bytes -= len(self.held.popleft().frames)
        self.first += 1


def split(datas: list[bytes], cut: int) -> list[list[bytes]]:
    """Return `datas` in pieces that one call may encode; no piece goes on behind the first `cut` of them."""
    if len(datas) == 1:
        return [datas]
    if len(datas) <= min(BATCH_ENTRIES, cut) and sum(map(len, datas)) <= BATCH_BYTES:
        return [datas]
    pieces: list[list[bytes]] = []
    start = size = 0
    for index, data in enumerate(datas):
        if index > start and (
            index - start >= BATCH_ENTRIES or size + len(data) > BATCH_BYTES or index == cut
        ):
            pieces.append(datas[start:index])
            start, size = index, 0
        size += len(data)
    pieces.append(datas[start:])
    return pieces


# --- refusals -------------------------------------------------------------------------------------

# Refusals that end the writer whoever gives them: repeating would get the same answer, or break the order.
_FATAL: dict[int, type[Error]] = {
    Status.FENCED: LedgerFenced,
    Status.UNAUTHORIZED: Unauthorized,
    Status.FORBIDDEN: Unauthorized,
    Status.CONFLICT: ReplicationConflict,
    Status.BAD_DIGEST: ProtocolError,
    Status.TOO_LARGE: ProtocolError,
    Status.BAD_REQUEST: ProtocolError,
    Status.UNSUPPORTED: ProtocolError,
}
_NEXT_STEP: dict[int, str] = {
    Status.FENCED: "another client has taken the ledger over: go on in a new one",
    Status.UNAUTHORIZED: "open the ledger with the password it was created with",
    Status.FORBIDDEN: "this client's role or token does not allow it: use one that may add",
    Status.CONFLICT: "two writers wrote to this ledger: go on in a new one",
    Status.BAD_DIGEST: "bytes were damaged on the way: check memory and network of this machine",
    Status.TOO_LARGE: "append smaller pieces",
    Status.BAD_REQUEST: "client and bookie disagree about the protocol: compare their versions",
    Status.UNSUPPORTED: "client and bookie disagree about the protocol: compare their versions",
}
# Refusals after which a bookie is not counted on until it takes an add again: it is of no use to this ledger, because
# it is full or damaged, has been told that the ledger was deleted, does not know what it held, or holds another ledger
# that was given the same id.
UNABLE = (
    Status.READ_ONLY,
    Status.IO_ERROR,
    Status.NO_LEDGER,
    Status.CANNOT_TELL,
    Status.OTHER_CREATION,
)


def not_ours_any_more(ledger_id: LedgerId, found: Error, trouble: dict[BookieId, str]) -> Error:
    """Return the error of a writer that bookies refuse as fenced or deleted, when metadata says so, too.

    `found`: what the metadata says of the ledger. A bookie that lost data refuses as if it were fenced, so its word
    alone ends no writer (INV-E5).
    """
    if not isinstance(found, LedgerClosed | LedgerFenced | NoSuchLedger):
        return found
    if isinstance(found, NoSuchLedger):
        return NoSuchLedger(
            f"ledger {ledger_id} was deleted: nothing can be appended to it any more",
            ledger_id=ledger_id,
            replicas=trouble,
        )
    return LedgerFenced(f"{found}; bookies refuse its adds", ledger_id=ledger_id, replicas=trouble)


def refusal(
    ledger_id: LedgerId,
    entry_id: EntryId,
    bookie_id: BookieId,
    status: int,
    trouble: dict[BookieId, str],
) -> Error | None:
    """Return the error that ends a writer when a bookie refuses an entry with `status`, None if it may go on."""
    kind = _FATAL.get(status)
    if kind is None:
        return None
    return kind(
        f"ledger {ledger_id}: bookie {bookie_id} refused entry {entry_id} ({status_name(status)});"
        f" {_NEXT_STEP[status]}",
        replicas=trouble,
    )


def too_late(
    ledger_id: LedgerId,
    entry_id: EntryId,
    needed: str,
    timeout_s: float,
    trouble: dict[BookieId, str],
    is_frozen: bool = False,
) -> Error:
    """Return the error of a writer whose oldest add was not acknowledged in time; `is_frozen`: not allowed to be.

    `needed`: by whom it was to be, as "2 bookies".
    """
    why = (
        ", while the metadata did not answer to a change of the ledger's bookies"
        if is_frozen
        else ""
    )
    return QuorumTimeout(
        f"ledger {ledger_id}: entry {entry_id} was not acknowledged by {needed} within"
        f" {timeout_s:g} s{why}; see which bookies are missing, then go on in a new ledger",
        replicas=trouble,
    )


def too_few_able(
    ledger_id: LedgerId,
    entry_id: EntryId,
    trouble: dict[BookieId, str],
    ack_sets: AckSets | None = None,
) -> Error:
    """Return the error of a writer that too few bookies can store for. `ack_sets`: where more than Qa are needed."""
    next_step = "go on in a new ledger on other bookies"
    if status_name(Status.OTHER_CREATION) in trouble.values():
        next_step = (
            "metadata gave this id twice, and bookies hold the other ledger (OTHER_CREATION):"
            " go on in a new ledger, and find out whether metadata was rolled back"
        )
    needed = "" if ack_sets is None else f" ({ack_sets} are needed)"
    return NotEnoughBookies(
        f"ledger {ledger_id}: too few bookies can store entry {entry_id}{needed}; {next_step}",
        replicas=trouble,
    )


def too_large(ledger_id: LedgerId, size_bytes: int, limit_bytes: int) -> RecordTooLarge:
    """Return the error of an entry that no bookie of the ensemble would take. It was not sent."""
    return RecordTooLarge(
        f"ledger {ledger_id}: an entry of {size_bytes} bytes; bookies accept at most {limit_bytes} bytes: append"
        " smaller entries, or raise [limits] frame_size_max of every bookie",
        ledger_id=ledger_id,
    )


def full(ledger_id: LedgerId) -> Error:
    """Return the error of a writer that has used up all entry ids."""
    return LedgerClosed(f"ledger {ledger_id} is full: go on in a new one")


def cannot_change_deferred(ledger_id: LedgerId, trouble: dict[BookieId, str]) -> Error:
    """Return the error of a writer with deferred sync one of whose bookies would have to be replaced."""
    return NotEnoughBookies(
        f"ledger {ledger_id}: a ledger with deferred sync keeps its bookies, and some have failed;"
        " go on in a new ledger",
        replicas=trouble,
    )
