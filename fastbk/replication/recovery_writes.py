"""The writing half of a recovery: every entry found is written again, until its write set has Qa copies of it.

Entries are taken, and completed, in strict order. Qa copies are enough, but an entry is kept a little longer for the
rest of its Qw copies, so that a bookie which fails a moment after the others have answered is still replaced; one that
does not answer at all is not waited for again. Replaced is in memory only: the fragments made here reach the metadata
with the close, in the same compare-and-set, or never (another recoverer may close first).

The LAC inside the entries written here is the one that the recovery began with, however far it has come (INV-Q3). Until
the close nothing behind it is certain: a competitor may close lower, and a reader that had seen a higher LAC would have
read entries that then never were.
"""

from __future__ import annotations

from collections.abc import Callable

from fastbk.errors import Error, NotEnoughBookies
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.model.quorum import write_sets
from fastbk.replication.actions import AddEntry, Choose, Found, Outcome, Replaced, Reply
from fastbk.replication.ensemble_change_result import Replacement
from fastbk.replication.procedure import Procedure
from fastbk.replication.replicas import Pacing, Replicas
from fastbk.retry import Backoff
from fastbk.wire.statuses import Status

# Beyond this a bookie that still owes copies of entries that are done without it counts as failed.
OWED_COUNT_MAX = 64
# How long entries that have their ack quorum wait for a bookie, once in a recovery.
LAGGARD_WAIT_S = 0.05


class _Pending:
    """An entry that is not done: who acknowledged it."""

    __slots__ = ("acks", "found")

    def __init__(self, found: Found) -> None:
        self.found = found
        self.acks: set[int] = set()


class RewriteEntries(Procedure[None]):
    """Writes entries again with the recovery flag; finished when `no_more` was called and all are done.

    Attributes:
        done: the lowest entry that is not done yet; those before it are on Qa bookies at least.
        fragments: the last fragment as it was, and those that failing bookies made necessary.
        held_bytes: data of the entries that are not done.
        bookies_replaced, replacements: how often a member was replaced, and by whom.
        copies_missing: when finished: how many of the Qw copies of the entries were not acknowledged.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        lac: EntryId,
        pacing: Pacing,
        progressed: Callable[[float], None],
    ) -> None:
        """`progressed(now_s)` is called after `done` has moved."""
        super().__init__()
        self.done: EntryId = lac + 1
        self.fragments: list[Fragment] = [metadata.fragments[-1]]
        self.held_bytes = 0
        self.bookies_replaced = 0
        self.replacements: list[Replacement] = []
        self.copies_missing = 0
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._lac = lac
        self._pacing = pacing
        self._progressed = progressed
        self._write_sets = write_sets(metadata.ensemble_size, metadata.write_quorum)
        self._pending: dict[EntryId, _Pending] = {}
        self._next = lac + 1
        self._is_last_known = False
        # Adds under way by index and entry, also of entries that are done without them.
        self._asked: list[dict[EntryId, int]] = [{} for _ in range(metadata.ensemble_size)]
        self._busy: list[Backoff | None] = [None] * metadata.ensemble_size
        self._failed: set[int] = set()
        self._replicas = Replicas()
        self._bad: set[BookieId] = set()
        self._is_choosing = False
        self._is_pausing = False
        self._untried: set[int] = set()
        self._laggards: set[int] = set()
        self._is_waiting_for_laggards = False

    # --- for the recovery --------------------------------------------------------------------------------------

    def begin(self, now_s: float) -> None:
        """Wait for the first entry."""
        self._backoff = self._pacing.backoff(now_s)

    def put(self, found: Found, now_s: float) -> None:
        """Take the next entry."""
        assert found.entry_id == self._next
        self._next += 1
        if not self._pending:
            self._backoff.restart(now_s)
        pending = self._pending[found.entry_id] = _Pending(found)
        self.held_bytes += len(found.data)
        self.copies_missing += self._metadata.write_quorum
        for index in self._write_set(found.entry_id):
            if index not in self._failed:
                self._send(index, pending)
        self._settle(now_s)

    def no_more(self, now_s: float) -> None:
        """What was put is all there is."""
        self._is_last_known = True
        self._settle(now_s)

    # --- one copy ----------------------------------------------------------------------------------------------

    def _write_set(self, entry_id: EntryId) -> tuple[int, ...]:
        return self._write_sets[entry_id % self._metadata.ensemble_size]

    def _send(self, index: int, pending: _Pending) -> None:
        found = pending.found
        entry_id = found.entry_id

        def answered(outcome: Outcome, now_s: float) -> None:
            del self._asked[index][entry_id]
            self._answered(index, entry_id, outcome, now_s)

        request = AddEntry(entry_id, self._lac, found.length, found.data, recovery=True)
        bookie_id = self.fragments[-1].ensemble[index]
        tag = self._ask(bookie_id, request, self._pacing.request_timeout_s, answered)
        self._asked[index][entry_id] = tag

    def _answered(self, index: int, entry_id: EntryId, outcome: Outcome, now_s: float) -> None:
        pending = self._pending.get(entry_id)
        if isinstance(outcome, Reply) and outcome.status == Status.OK:
            self._busy[index] = None
            self.copies_missing -= 1
            if pending is not None:
                pending.acks.add(index)
                self._advance(now_s)
            return
        bookie_id = self.fragments[-1].ensemble[index]
        self._replicas.record_reply(bookie_id, outcome)
        if self._replicas.closed is not None or self._replicas.not_allowed:
            self._fail(self._error(), now_s)
        elif isinstance(outcome, Reply) and bookie_id in self._replicas.passing:
            self._is_busy(index, entry_id, now_s)
        else:
            self._index_failed(index, now_s)

    def _is_busy(self, index: int, entry_id: EntryId, now_s: float) -> None:
        """Offer the entry to a bookie that has no time just now again; for too long counts as failed."""
        backoff = self._busy[index]
        if backoff is None:
            backoff = self._busy[index] = self._pacing.backoff(now_s)
        pause_s = backoff.next_in_time_s(now_s)
        if pause_s is None or entry_id not in self._pending:
            self._index_failed(index, now_s)
            return

        def woken(_: float) -> None:
            self._asked[index].pop(entry_id)
            if (pending := self._pending.get(entry_id)) is not None:
                self._send(index, pending)

        self._asked[index][entry_id] = self._retry_in(pause_s, woken)

    def _advance(self, now_s: float) -> None:
        before = self.done
        while (pending := self._pending.get(self.done)) is not None:
            if len(pending.acks) < self._metadata.ack_quorum:
                break
            if owing := self._owing(self.done):
                self._wait_for_laggards(owing, now_s)
                break
            del self._pending[self.done]
            self.held_bytes -= len(pending.found.data)
            self.done += 1
        if self.done == before:
            return
        self._backoff.restart(now_s)
        for index in sorted(self._laggards):
            if len(self._asked[index]) - len(self._pending) > OWED_COUNT_MAX:
                bookie_id = self.fragments[-1].ensemble[index]
                self._replicas.said[bookie_id] = "too far behind the others"
                self._index_failed(index, now_s)
        if not self.is_finished:
            self._progressed(now_s)
            self._settle(now_s)

    def _owing(self, entry_id: EntryId) -> set[int]:
        """Return the indexes whose copy, or whose replacement, is worth waiting for."""
        return {
            index
            for index in self._write_set(entry_id)
            if (entry_id in self._asked[index] and index not in self._laggards)
            or index in self._untried
            or (index in self._failed and self._is_choosing)
        }

    def _wait_for_laggards(self, owing: set[int], now_s: float) -> None:
        if self._is_waiting_for_laggards:
            return
        self._is_waiting_for_laggards = True
        entry_id = self.done

        def woken(at_s: float) -> None:
            self._is_waiting_for_laggards = False
            if self.done == entry_id:
                self._laggards |= {one for one in owing if entry_id in self._asked[one]}
            self._advance(at_s)

        self._sleep(LAGGARD_WAIT_S, woken)

    # --- failing bookies ---------------------------------------------------------------------------------------

    def _index_failed(self, index: int, now_s: float) -> None:
        if self.is_finished:
            return
        self._failed.add(index)
        self._untried.add(index)
        self._bad.add(self.fragments[-1].ensemble[index])
        self._busy[index] = None
        for tag in self._asked[index].values():
            self._withdraw(tag)
        self._asked[index].clear()
        self._settle(now_s)

    def _settle(self, now_s: float) -> None:
        """Do what is due now: finish, replace bookies that an entry waits for, or try again after a pause."""
        if self.is_finished or self._is_choosing:
            return
        if not self._pending:
            if self._is_last_known:
                self._finish(None, now_s)
            return
        if self._untried and self._is_wanted(self._untried):
            self._replace()
        elif not self._is_pausing and self._is_blocked():
            self._pause(now_s)

    def _is_wanted(self, indexes: set[int]) -> bool:
        return any(not indexes.isdisjoint(self._write_set(entry_id)) for entry_id in self._pending)

    def _is_blocked(self) -> bool:
        """Whether some entry cannot be completed by the bookies that have not failed."""
        for entry_id, pending in self._pending.items():
            able = sum(
                index in pending.acks or index not in self._failed
                for index in self._write_set(entry_id)
            )
            if able < self._metadata.ack_quorum:
                return True
        return False

    def _replace(self) -> None:
        self._is_choosing = True
        self._untried.clear()
        ensemble = self.fragments[-1].ensemble
        self._act(self._chosen, Choose, ensemble, frozenset(self._failed), frozenset(self._bad))

    def _chosen(self, outcome: Outcome, now_s: float) -> None:
        self._is_choosing = False
        replaced = outcome if isinstance(outcome, Replaced) else Replaced()
        ensemble = list(self.fragments[-1].ensemble)
        fresh = []
        for index, bookie_id in sorted(replaced.chosen.items()):
            # An ensemble never names a bookie twice; an index may be tried again meanwhile.
            if index in self._failed and bookie_id not in ensemble and bookie_id not in self._bad:
                ensemble[index] = bookie_id
                fresh.append(index)
        if fresh:
            self._change(tuple(ensemble), fresh)
        self._advance(now_s)
        self._settle(now_s)

    def _change(self, ensemble: tuple[BookieId, ...], fresh: list[int]) -> None:
        """Go on with another ensemble from the first entry that is not done."""
        before = self.fragments[-1].ensemble
        fragment = Fragment(max(self.done, self.fragments[-1].first_entry_id), ensemble)
        if fragment.first_entry_id == self.fragments[-1].first_entry_id:
            self.fragments[-1] = fragment
        else:
            self.fragments.append(fragment)
        self.bookies_replaced += len(fresh)
        for index in fresh:
            left, first = before[index], fragment.first_entry_id
            reason = self._replicas.said.get(left, "it did not take an entry")
            self.replacements.append(Replacement(first, index, left, ensemble[index], reason))
        for index in fresh:
            self._failed.discard(index)
            self._untried.discard(index)
            self._laggards.discard(index)
        for pending in self._pending.values():
            for index in self._write_set(pending.found.entry_id):
                if index in fresh:
                    # The replaced bookie's copy does not count in this fragment (P12).
                    if index in pending.acks:
                        pending.acks.discard(index)
                        self.copies_missing += 1
                    self._send(index, pending)

    def _pause(self, now_s: float) -> None:
        pause_s = self._backoff.next_in_time_s(now_s)
        if pause_s is None:
            self._fail(self._error(), now_s)
            return
        self._is_pausing = True

        def woken(at_s: float) -> None:
            self._is_pausing = False
            # They may be back, or other bookies there to take their place.
            failed, self._failed = self._failed, set()
            self._untried.clear()
            for index in sorted(failed):
                self._bad.discard(self.fragments[-1].ensemble[index])
                for pending in self._pending.values():
                    is_owed = index in self._write_set(pending.found.entry_id)
                    if is_owed and index not in pending.acks:
                        self._send(index, pending)
            self._settle(at_s)

        self._retry_in(pause_s, woken)

    def _error(self) -> Error:
        what = f"ledger {self._ledger_id}: entry {self.done} could not be written to its ack quorum"
        error = self._replicas.error(what, ledger_id=self._ledger_id, entry_id=self.done)
        if isinstance(error, NotEnoughBookies):
            error.outcome = "unknown"
        return error
