"""The writer of one ledger, without I/O: adds, and the change of its ensemble when bookies fail.

It owns two things: an `AddMachine` (`.adds`: what is sent where, what is acknowledged) and the writer's copy of the
metadata (`.known`). When a bookie fails for longer than the policy bears, a *change* runs:

1. `Choose` other bookies; none to be had: go on with those that answer, and try again later.
2. Unless an entry waits for it: `ReadMetadata`, so that a store which is away freezes no writer that can do without it.
3. Freeze: acks are recorded, the head stays. The new fragment starts at the head, which is LAC + 1 (INV-E1).
4. `UpdateMetadata`, a compare-and-set, through conflicts and unknown results. Closed meanwhile: LedgerClosed. In
   recovery: LedgerFenced. The bad bookies replaced by somebody else: his ensemble is the truth. While the result is
   unknown the writer stays frozen. A bookie that refuses adds as fenced makes the writer read the metadata first: it
   ends only on the metadata's word, else it replaces that bookie, which lost its data (INV-E5).
5. Unset every pending entry's ack at each replaced index; the new bookies are sent all that is pending (INV-E2).
6. Bookies that failed meanwhile go into another round, else thaw: the head moves again. Always, also when nothing was
   replaced in the end.

**Who calls what, when.** All times are seconds of one monotonic clock. A driver

- calls `start(now_s)` once, opens an add channel to each of `ensemble` and reports `connected` or `lost`;
- takes adds: `adds.add(...)`, then `added(now_s)`, then for each member that can be written to
  `adds.next_to_send(index)` until None. Ids are dense from 0: explicit ids are held back by the driver until
  contiguous. A frame carries `last_add_confirmed` of this object;
- reports `acknowledged`, `refused`, `connected`, `lost` by bookie id; bookies that are no members (any more) are
  ignored. After `refused` returned True it calls `retry(bookie_id)` after a pause, then sends again;
- sends to a member once it has `acknowledged` something that was in `adds.probed_members` before;
- calls `bookies_changed(now_s, read_only)` when bookies came, went or changed, and `tick(now_s)` at `wake_s`;
- performs `take_actions()` whenever `has_actions`, and brings each outcome to `completed(tag, outcome, now_s)`.

**After each of these calls** but `acknowledged`, it looks at

- `has_actions`: take and perform them;
- `ensemble_version`: when it is new, `ensemble` has changed. Channels to bookies that are no longer in it are let go;
  those to new ones are opened and reported `connected` or `lost`; every member that can be written to is sent to;
- `adds.head`: when it has moved, everything below it is acknowledged, in order (INV-C1);
- `failure`: when it is set, everything from the head on has failed (INV-C2), and the machine is finished;
- `wake_s`: when to call `tick`, None for never. A timer is set for it, again after each call.

`acknowledged` is the hot one: it returns whether the head has moved; when it does, or `adds` has a failure, look at
`adds.head` only. It starts no actions and never makes `wake_s` earlier.

To close: wait until nothing is in flight, or `end(error, now_s)`; then `stop(now_s)` (no change is begun any more; what
is under way is given up), then run `closing(timeout_s)`. To force: run `forcing(timeout_s)`, then `forced(its value)`.

Decision 138.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from fastbk.errors import Error, LedgerClosed, MetadataUnavailable, NotEnoughBookies
from fastbk.meta.api import VersionedLedger
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata, LedgerState
from fastbk.model.missing_replica import MissingReplica
from fastbk.model.quorum import AckSets
from fastbk.replication.ack_domains import AckDomains, acknowledging, recorded
from fastbk.replication.add_machine import AddMachine, cannot_change_deferred, not_ours_any_more
from fastbk.replication.member_health import Avoided, MemberHealth, Trouble
from fastbk.replication.metadata_update import (
    EnsembleChange,
    MetadataUpdate,
    Replacement,
    check_open,
)
from fastbk.replication.options import WriterOptions
from fastbk.replication.procedure import (
    ForceLedger,
    MarkReplicas,
    Outcome,
    Procedure,
    ReadMetadata,
    Replaced,
    Reply,
    Sleep,
    Steps,
    attempt,
    choose,
)
from fastbk.replication.under_replication import (
    CopyKeeper,
    UnderReplicatedShare,
    UnderReplication,
    split,
)
from fastbk.retry import Backoff
from fastbk.wire.statuses import Status, status_name

# After a change that found no bookies or no metadata; doubled each time.
RETRY_MIN_S = 0.5
RETRY_MAX_S = 5.0


class WriterMachine(Procedure[None]):
    """State of one open ledger's writer; see the module's text.

    Attributes:
        adds: what is sent where; `head`, `next_entry_id`, `next_length`, `add`, `next_to_send` are the driver's to use.
        known: the metadata as this writer last read or wrote it.
        health: what is wrong with members; its questions are the driver's to ask.
        ensemble_version: counts the changes of `ensemble`.
        changes: how many changes of the ensemble this writer has gone through.
        replacements: those that the driver has not logged and removed yet.
        wake_s: when `tick` is to be called, None for never.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        known: VersionedLedger,
        options: WriterOptions,
        describe_trouble: Callable[[BookieId, str], str] = lambda _, reason: reason,
    ) -> None:
        """`describe_trouble`: what errors say of a bookie and why it does not answer well."""
        super().__init__()
        self.ledger_id = ledger_id
        self.known = known
        self.options = options
        metadata = known.metadata
        # What was recorded when the ledger was made: nobody else knows it better (INV-P5).
        self._domains = recorded(metadata.custom)
        self.adds = AddMachine(
            ledger_id,
            metadata.fragments[-1].ensemble,
            metadata.write_quorum,
            metadata.ack_quorum,
            held_bytes_max=options.held_bytes_max,
            ends_when_unable=False,
            is_deferred=options.is_deferred,
            describe_trouble=describe_trouble,
            ack_sets=acknowledging(metadata, self._domains) if self._domains else None,
        )
        # Two short ways for `acknowledged`, which runs for each acknowledgement.
        self._acknowledged = self.adds.acknowledged
        self.ensemble_version = 0
        self.changes = 0
        self.replacements: list[Replacement] = []
        self.wake_s: float | None = None
        self.health = MemberHealth(options.change)
        self._failed = self.health.failed
        self._index = {bookie_id: index for index, bookie_id in enumerate(self.ensemble)}
        self._answers_s = [-math.inf] * len(self.ensemble)  # when each could begin to answer
        self._stored = [-1] * len(self.ensemble)  # how far each had come at the last look
        self._round: ChangeRound | CheckOpen | None = None
        self._again_s = -math.inf
        self._backoff = Backoff(RETRY_MIN_S, RETRY_MAX_S)
        # The last round: whom it was to replace, and whether an entry needed one of them.
        self._tried: tuple[frozenset[int], bool] = (frozenset(), False)
        self._left_out: Mapping[BookieId, str] | None = None
        self._avoided = Avoided()
        self._keeper = CopyKeeper(ledger_id, self.adds, options.away, options.change.jitter)

    # --- questions ---------------------------------------------------------------------------------------------

    @property
    def ensemble(self) -> tuple[BookieId, ...]:
        """The bookies of the current fragment, by index."""
        return self.adds.ensemble

    @property
    def failure(self) -> Error | None:
        """What ended the writer, None while it goes on."""
        return self.adds.failure

    @property
    def has_actions(self) -> bool:
        """Whether `take_actions` has something."""
        return bool(self._shared.actions)

    @property
    def is_changing(self) -> bool:
        """Whether the ensemble is being changed and the head therefore stays."""
        return self.adds.is_frozen

    @property
    def last_add_confirmed(self) -> EntryId:
        """The LAC: what frames and explicit LACs say, where a close ends. With deferred sync the last forced entry."""
        return self.adds.last_add_confirmed

    @property
    def length_confirmed(self) -> int:
        """Bytes of data of all entries up to the LAC."""
        return self.adds.length_confirmed

    @property
    def marked(self) -> tuple[MissingReplica, ...]:
        """What this writer may have marked and has not unmarked; after a close that is left for a repair."""
        return self._keeper.owed.maybe_marked

    def index_of(self, bookie_id: BookieId) -> int | None:
        """Return the bookie's index in the ensemble, None if it is no member."""
        return self._index.get(bookie_id)

    # --- what the driver reports ---------------------------------------------------------------------------------

    def begin(self, now_s: float) -> None:
        """Begin to wait for the first connections."""
        for index in self._index.values():
            self.health.connecting(index, now_s)
        self._check_due(now_s)

    def added(self, now_s: float) -> bool:
        """Entries were given to `adds.add`; return whether anything is due, or they ended the writer."""
        adds = self.adds
        is_due = self.wake_s is None or (
            bool(self._failed) and (adds.is_filling or bool(adds.needed_of(self._failed)))
        )
        if is_due:
            self._check_due(now_s)
        return is_due or adds.failure is not None

    def connected(self, bookie_id: BookieId, now_s: float) -> None:
        """The bookie can be written to (again); send it what `adds.next_to_send` has."""
        index = self._index.get(bookie_id)
        if index is None or self._is_gone(index):
            return
        self.adds.connected(index)
        self.health.connected(index)
        self._answers_s[index] = now_s
        self._check_due(now_s)

    def lost(
        self, bookie_id: BookieId, reason: str, now_s: float, *, is_gone: bool = False
    ) -> None:
        """The bookie cannot be reached; may be told again after each try.

        `is_gone`: for good (its data was lost: another incarnation answers): replaced at once, and never taken again.
        """
        if is_gone:
            self._avoided.add_for_good(bookie_id)
        index = self._index.get(bookie_id)
        if index is None:
            return
        self.adds.lost(index, reason)
        if is_gone:
            self._keeper.owed.lost.add(index)
        self.health.lost(index, now_s, is_gone)
        self._check_due(now_s)

    def acknowledged(self, bookie_id: BookieId, first_entry_id: EntryId, count: int) -> bool:
        """The bookie has [first, first + count) durably; return whether the head moved."""
        index = self._index.get(bookie_id)
        if index is None:
            return False
        if self._failed:
            self.health.acknowledged(index)
        return self._acknowledged(index, first_entry_id, count)

    def refused(
        self, bookie_id: BookieId, first_entry_id: EntryId, count: int, status: int, now_s: float
    ) -> bool:
        """The bookie did not store these; return True if `retry` is to be called after a pause."""
        index = self._index.get(bookie_id)
        if index is None:
            return False
        is_to_retry = self.adds.refused(index, first_entry_id, count, status)
        if is_to_retry:
            self.health.refused(index, status, now_s)
            self._answers_s[index] = now_s
        self._check_due(now_s)
        return is_to_retry and self.failure is None

    def retry(self, bookie_id: BookieId) -> None:
        """Send again what the bookie has not acknowledged."""
        if (index := self._index.get(bookie_id)) is not None:
            self.adds.rewind(index)

    def bookies_changed(self, now_s: float, read_only: Collection[BookieId] = ()) -> None:
        """Other bookies are to be had: a change that found none is tried again at once.

        `read_only`: those that are registered so. A writer that has nothing to append replaces them, too: who empties
        a bookie closes the ledgers that still name it.
        """
        self._again_s = now_s
        self._backoff.restart()
        for bookie_id, index in self._index.items():
            self.health.registered(index, bookie_id in read_only, now_s)
        self._check_due(now_s)

    def tick(self, now_s: float) -> float | None:
        """Look at the clock: adds that waited too long, bookies that were away too long. Return `wake_s`."""
        self._check_due(now_s)
        return self.wake_s

    def completed(self, tag: int, outcome: Outcome, now_s: float) -> None:
        """Take the outcome of an action; one that was withdrawn is dropped."""
        super().completed(tag, outcome, now_s)
        self._check_due(now_s)

    def end(self, error: Error, now_s: float) -> None:
        """End the writer from outside; what was acknowledged stays so."""
        self.adds.end(error)
        self._check_due(now_s)

    def stop(self, now_s: float) -> None:
        """Begin no change any more and give up one that is under way: the ledger is about to be closed or left."""
        self.wake_s = None
        self._finish(None, now_s)
        self._keeper.give_up()

    # --- close and force ---------------------------------------------------------------------------------------

    def closing(self, timeout_s: float) -> CloseLedger:
        """Return the procedure that closes the ledger at this writer's LAC. Call `stop` first."""
        # A change that was given up may still reach the store, before or after: it moves no entry below the LAC.
        end = self.last_add_confirmed, self.length_confirmed
        return CloseLedger(self.ledger_id, self.known, *end, timeout_s, self._keeper.owed)

    def forcing(self, timeout_s: float) -> ForceProcedure:
        """Return the procedure that makes everything acknowledged so far durable on the ensemble."""
        adds = self.adds
        quorums = len(adds.ensemble), adds.write_quorum, adds.ack_quorum
        return ForceProcedure(
            self.ledger_id,
            adds.ensemble,
            adds.ack_sets or AckSets(*quorums),
            ForcedTo(adds.head - 1, adds.length_acknowledged),
            holds=[adds.has_stored(index) for index in range(len(adds.ensemble))],
            needs_all=self.options.is_deferred,
            timeout_s=timeout_s,
        )

    def forced(self, to: ForcedTo) -> None:
        """A force has succeeded; with deferred sync the LAC moves to where it was begun."""
        self.adds.forced(to.entry_id, to.length)

    # --- inside: what is due -----------------------------------------------------------------------------------

    def _check_due(self, now_s: float) -> None:
        """Do what is due after an event or by the clock, and say when to look again."""
        if self.is_finished:
            return
        adds = self.adds
        if not self._failed:
            self._left_out = None
        expire_s = adds.expire(now_s, self.options.append_timeout_s, self._left_out)
        silent_s = self._find_silent(now_s)
        due, due_s = self.health.due(now_s, adds)
        again_s = None
        if self._round is None and adds.failure is None:
            if due and not self._is_put_off(due, now_s):
                self._tried = frozenset(due), bool(adds.needed_of(due))
                self._begin_change(due, now_s)
            if self._round is None:
                again_s = self._again_s if due else None
                if adds.is_frozen:
                    # Also when nothing was replaced: a writer that forgets this stands still for ever.
                    adds.thaw()
        if adds.failure is not None:
            self.wake_s = None
            self._fail(adds.failure, now_s)
            return
        copies_s = self._keep_copies(now_s)
        looks = (expire_s, silent_s, due_s, again_s, copies_s)
        self.wake_s = min((one for one in looks if one is not None), default=None)

    def _find_silent(self, now_s: float) -> float | None:
        """Note the connected bookies that leave an add unanswered for too long; return when to look for others."""
        timeout_s = self.options.change.bookie_timeout_s
        look_s: float | None = None
        for index in range(len(self.ensemble)):
            owed_s = None if index in self._failed else self.adds.owed_since(index)
            if owed_s is None:
                continue
            stored = self.adds.stored_below(index)
            if self.adds.is_catching_up(index) and stored != self._stored[index]:
                # It takes what was held for it: old entries, which say nothing about how long it is silent.
                self._stored[index], self._answers_s[index] = stored, now_s
            end_s = max(owed_s, self._answers_s[index]) + timeout_s
            if now_s >= end_s:
                self.adds.mark_unresponsive(index, f"left an add unanswered for {timeout_s:g} s")
                self.health.silent(index, now_s)
            else:
                look_s = end_s if look_s is None else min(look_s, end_s)
        return look_s

    def _is_gone(self, index: int) -> bool:
        failed = self._failed.get(index)
        return failed is not None and failed.trouble is Trouble.GONE

    # --- inside: the change --------------------------------------------------------------------------------------

    def _begin_change(self, due: set[int], now_s: float) -> None:
        changes_max = self.options.change.changes_max
        is_last = changes_max is not None and self.changes >= changes_max
        claims_fence = self.health.claims_end(due)
        if claims_fence and (is_last or self.options.is_deferred):
            self._round = CheckOpen(self.ledger_id)
            self._run(self._round, self._open_checked, now_s)
        elif self.options.is_deferred:
            # Acks of the bookies that stay cover nothing that is not forced, and the lost ones can't be asked any more.
            self.adds.end(cannot_change_deferred(self.ledger_id, self.adds.trouble()))
        elif is_last:
            self._put_off({}, now_s)
        else:
            avoid = self._avoided.now(now_s)
            change = ChangeRound(
                self.adds,
                self.known,
                due,
                avoid,
                self._still_wanted,
                reads_first=claims_fence,
                domains=self._domains,
            )
            self._round = change
            self._run(change, self._round_ended, now_s)

    def _open_checked(self, part: Procedure[bool], now_s: float) -> None:
        """Bookies refused adds as fenced, and this writer may not replace them."""
        self._round = None
        if part.error is not None:
            self.adds.end(not_ours_any_more(self.ledger_id, part.error, self.adds.trouble()))
        elif part.value() and self.options.is_deferred:
            self.adds.end(cannot_change_deferred(self.ledger_id, self.adds.trouble()))
        else:
            self._put_off({}, now_s)

    def _round_ended(self, part: Procedure[VersionedLedger | NothingDone], now_s: float) -> None:
        self._round = None
        if part.error is not None:
            error = part.error
            if self.health.claims_end(self._failed):
                error = not_ours_any_more(self.ledger_id, error, self.adds.trouble())
            self.adds.end(error)
            return
        result = part.value()
        if isinstance(result, NothingDone):
            self._put_off(result.left_out, now_s)
        else:
            assert isinstance(part, ChangeRound)
            self._domains = part.domains
            self._adopt(result, now_s)

    def _put_off(self, left_out: Mapping[BookieId, str] | None, now_s: float) -> None:
        """There is no replacement now: go on without."""
        self._left_out = left_out
        self._again_s = now_s + self.options.change.jitter(self._backoff.next_s())

    def _is_put_off(self, due: set[int], now_s: float) -> bool:
        """Return whether to wait; not when others have failed since, or an entry has come to need one."""
        if now_s >= self._again_s:
            return False
        is_needed = bool(self.adds.needed_of(due))
        before, was_needed = self._tried
        return due <= before and (was_needed or not is_needed)

    def _still_wanted(self, chosen: Mapping[int, BookieId], now_s: float) -> dict[int, BookieId]:
        wanted: dict[int, BookieId] = {}
        taken = {*self.ensemble, *self._avoided.now(now_s)}
        for index, bookie_id in sorted(chosen.items()):
            if index in self._failed and bookie_id not in taken:
                wanted[index] = bookie_id
                taken.add(bookie_id)
        return wanted

    def _adopt(self, found: VersionedLedger, now_s: float) -> None:
        """What the metadata says is the ensemble from now on (INV-E2)."""
        before, ensemble = self.ensemble, found.metadata.fragments[-1].ensemble
        replaced = [one for one, bookie_id in enumerate(ensemble) if bookie_id != before[one]]
        are_up = {before[one] for one in replaced if one not in self._failed}
        self.known = found
        if self._domains is not None:
            stored = recorded(found.metadata.custom)
            self._domains = self._domains.changed(ensemble, {} if stored is None else stored.of)
            self.adds.ack_sets = acknowledging(found.metadata, self._domains)
        self._index = {bookie_id: index for index, bookie_id in enumerate(ensemble)}
        for index in replaced:
            failed = self._failed.get(index)
            trouble = self.adds.trouble().get(before[index])
            reason = trouble or (failed.trouble.value if failed else "somebody else replaced it")
            change = Replacement(self.adds.head, index, before[index], ensemble[index], reason)
            self.replacements.append(change)
            self._keeper.replace(index, ensemble[index], reason, is_lost=self._is_gone(index))
            self.health.connecting(index, now_s)
            self._avoided.add(before[index], now_s)
            if ensemble[index] in are_up:
                # Somebody else moved it to another place.
                self.adds.connected(index)
                self.health.connected(index)
                self._answers_s[index] = now_s
        if replaced:
            self.ensemble_version += 1
            self.changes += 1
            self._left_out = None
            self._backoff.restart()

    # --- inside: copies that members lack ------------------------------------------------------------------------

    def _keep_copies(self, now_s: float) -> float | None:
        """Have marked what members lack, and replacements named for what they were given; return when to look."""
        if self._round is not None:
            return None
        part, look_s = self._keeper.next_step(self.known, now_s)
        if part is not None:
            self._run(part, lambda _, at_s: self._kept(at_s), now_s)
        return look_s

    def _kept(self, now_s: float) -> None:
        ended = self._keeper.ended(now_s)
        if ended is None or ended.version <= self.known.version:
            return
        if ended.metadata.fragments[-1].ensemble == self.ensemble:
            self.known = ended


# --- closing --------------------------------------------------------------------------------------
#
# Closing a ledger by its writer: one compare-and-set that says where it ends (INV-M1).
#
# Before it, the writer marks what bookies lack of the ledger. The same compare-and-set names the
# replacements whose shares of former fragments are whole; what was marked of these is unmarked
# after it.


# Before a mark that the store did not answer is written again.
MARK_PAUSE_S = 0.1


class CloseLedger(Procedure[VersionedLedger]):
    """Brings a ledger from OPEN or IN_RECOVERY to CLOSED at its writer's end; the result is the metadata then.

    A ledger that somebody has begun to recover is closed all the same: the writer's LAC covers everything that was
    acknowledged, and the recoverer adopts this close. Closed already: at the same end it is success, at another
    LedgerClosed, which names both. A store that does not answer for `timeout_s`: MetadataUnavailable, outcome unknown.

    Args:
        known: what was last read; None reads first.
        last_entry_id: the writer's LAC, -1 for an empty ledger.
        length: bytes of data of all entries up to it.
        owed: what bookies lack of the ledger; None: nothing.

    Attributes:
        is_ours: when finished: this procedure closed it; False: it was closed just so before.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        known: VersionedLedger | None,
        last_entry_id: EntryId,
        length: int,
        timeout_s: float,
        owed: UnderReplication | None = None,
    ) -> None:
        super().__init__()
        self.is_ours = False
        self._owed = owed
        self._shares: tuple[UnderReplicatedShare, ...] = ()
        self._freed: tuple[MissingReplica, ...] = ()
        self._ledger_id = ledger_id
        self._known = known
        self._last_entry_id = last_entry_id
        self._length = length
        self._timeout_s = timeout_s

    def steps(self) -> Steps[VersionedLedger]:
        """Mark what is missing, then close by what is known, or read first; then unmark what is named."""
        end_s, owed = self._now_s + self._timeout_s, self._owed
        if owed is not None:
            owed.collect()
            self._shares = tuple(owed.ready)
            yield from self._mark(owed, end_s)
        update = MetadataUpdate(self._decide, self._known, max(0.0, end_s - self._now_s))
        written = yield from update
        self.is_ours = update.is_ours
        if owed is not None:
            owed.named(self._shares, self._freed)
            yield from self._unmark(owed)
        return written

    def _mark(self, owed: UnderReplication, end_s: float) -> Steps[None]:
        while add := owed.unmarked(owed.to_mark_at_end()):
            try:
                yield MarkReplicas(add)
            except Error as error:
                owed.mark_unanswered(add, ())
                is_away = isinstance(error, MetadataUnavailable)
                if not is_away or self._now_s + MARK_PAUSE_S >= end_s:
                    raise
            else:
                owed.mark_changed(add, ())
                return
            yield Sleep(MARK_PAUSE_S, is_retry=True)

    def _decide(self, metadata: LedgerMetadata) -> LedgerMetadata | None:
        self._freed = ()
        if not metadata.is_closed:
            if metadata.state is LedgerState.OPEN:
                metadata, self._freed = split(metadata, self._shares)
            return replace(
                metadata,
                state=LedgerState.CLOSED,
                last_entry_id=self._last_entry_id,
                length=self._length,
            )
        if (metadata.last_entry_id, metadata.length) == (self._last_entry_id, self._length):
            return None
        raise LedgerClosed(
            f"ledger {self._ledger_id} was closed by another client at entry {metadata.last_entry_id}"
            f" ({metadata.length} bytes), this writer's last is {self._last_entry_id} ({self._length} bytes):"
            " read what is there",
            ledger_id=self._ledger_id,
            entry_id=self._last_entry_id,
            outcome="unknown",
        )

    def _unmark(self, owed: UnderReplication) -> Steps[None]:
        outdated = owed.outdated(owed.to_mark_at_end())
        if outdated:
            # A mark that stays, since the store did not answer, is one for a repair to verify.
            with suppress(Error):
                yield MarkReplicas((), outdated)
                owed.mark_changed((), outdated)


# --- forcing --------------------------------------------------------------------------------------
#
# Force: have the bookies confirm that everything they took of a ledger before is durable.


@dataclass(frozen=True, slots=True)
class ForcedTo:
    """Everything up to an entry was forced; `length`: bytes of data up to it."""

    entry_id: EntryId
    length: int


class ForceProcedure(Procedure[ForcedTo]):
    """Asks every member of the ensemble to force the ledger; made by `WriterMachine.forcing`.

    An ordinary ledger's acknowledged entries are durable already; there it needs an ack set of every write set.
    With deferred sync all members have to confirm, and one failure fails it. NotEnoughBookies with each bookie's
    reason as soon as it cannot succeed any more; the same call may succeed later.

    Args:
        ack_sets: of the ensemble.
        to: what is acknowledged when it begins; the result.
        holds: by index, whether that bookie has acknowledged entries of this ledger. One that has not may say
            NO_LEDGER; from another that means loss.
        needs_all: deferred sync.
        timeout_s: of each request.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        ensemble: Sequence[BookieId],
        ack_sets: AckSets,
        to: ForcedTo,
        *,
        holds: Sequence[bool],
        needs_all: bool,
        timeout_s: float,
    ) -> None:
        super().__init__()
        self._ledger_id = ledger_id
        self._ensemble = tuple(ensemble)
        self._ack_sets = ack_sets
        self._to = to
        self._holds = tuple(holds)
        self._needs_all = needs_all
        self._timeout_s = timeout_s
        self._good = [False] * len(self._ensemble)
        self._silent = [True] * len(self._ensemble)
        self._failed: dict[BookieId, str] = {}

    def begin(self, now_s: float) -> None:
        """Ask all of them at once."""
        for index, bookie_id in enumerate(self._ensemble):
            answered = partial(self._answered, index)
            self._ask(bookie_id, ForceLedger(), self._timeout_s, answered)

    def _answered(self, index: int, outcome: Outcome, now_s: float) -> None:
        self._silent[index] = False
        if isinstance(outcome, Reply):
            status = outcome.status
            if status == Status.OK or (status == Status.NO_LEDGER and not self._holds[index]):
                self._good[index] = True
            else:
                self._failed[self._ensemble[index]] = status_name(status)
        else:
            assert isinstance(outcome, Error)
            self._failed[self._ensemble[index]] = str(outcome)
        if self._is_enough(self._good):
            self._finish(self._to, now_s)
        elif not self._is_enough([a or b for a, b in zip(self._good, self._silent, strict=True)]):
            self._fail(
                NotEnoughBookies(
                    f"ledger {self._ledger_id}: too few bookies confirmed the force; try again",
                    ledger_id=self._ledger_id,
                    entry_id=self._to.entry_id,
                    outcome="unknown",
                    replicas=self._failed,
                ),
                now_s,
            )

    def _is_enough(self, good: Sequence[bool]) -> bool:
        if self._needs_all:
            return all(good)
        return self._ack_sets.in_every_write_set([index for index, one in enumerate(good) if one])


# --- one round of a change ------------------------------------------------------------------------
#
# One round of a writer's ensemble change: choose bookies, see that the metadata answers, freeze,
# compare-and-set.


# Before metadata that is older than what is known is read again.
STALE_PAUSE_S = 0.05

# Of (replacements by index, now): those that are wanted still, each a bookie that is in no other place.
StillWanted: TypeAlias = Callable[[Mapping[int, BookieId], float], dict[int, BookieId]]


@dataclass(frozen=True, slots=True)
class NothingDone:
    """No bookies were to be had, or no metadata, or the bad ones have come back; `left_out`: why others were no use."""

    left_out: Mapping[BookieId, str] | None = field(default=None)


class CheckOpen(Procedure[bool]):
    """Reads the metadata: True when the ledger is open, False when nobody can say now.

    Fails with LedgerFenced, LedgerClosed or NoSuchLedger when it is the writer's no more.
    """

    def __init__(self, ledger_id: LedgerId) -> None:
        super().__init__()
        self._ledger_id = ledger_id

    def steps(self) -> Steps[bool]:
        """Read, and judge."""
        try:
            known: VersionedLedger = yield ReadMetadata()
        except MetadataUnavailable:
            return False
        check_open(self._ledger_id, known.metadata)
        return True


class ChangeRound(Procedure[VersionedLedger | NothingDone]):
    """Replaces bad bookies in the metadata; the result is what the metadata says then, for the writer to adopt.

    Once it has frozen the head it ends only with a definite answer or an error that ends the writer (LedgerClosed,
    LedgerFenced, MetadataConflict, NoSuchLedger): while the result is unknown, an ack might count for a bookie that is
    no member any more. So it has no deadline of its own; the writer has one.

    Args:
        adds: the writer's; frozen by this, and thawed by the writer.
        known: the metadata whose last ensemble is that of `adds`.
        bad: indexes of the bookies to replace.
        avoid: bookies not to take.
        still_wanted: asked before the metadata is changed, since bookies come back.
        reads_first: a bookie refuses adds as fenced: the metadata is read before others are chosen, so that a writer
            whose ledger was taken over ends also where no other bookie is to be had (INV-E5).
        domains: where its members are, if ack sets span domains.

    Attributes:
        domains: when finished: with those of the bookies that it chose.
    """

    def __init__(
        self,
        adds: AddMachine,
        known: VersionedLedger,
        bad: Collection[int],
        avoid: frozenset[BookieId],
        still_wanted: StillWanted,
        *,
        reads_first: bool = False,
        domains: AckDomains | None = None,
    ) -> None:
        super().__init__()
        self._reads_first = reads_first
        self._adds = adds
        self._known = known
        self._bad = frozenset(bad)
        self._avoid = avoid
        self._still_wanted = still_wanted
        self.domains = domains

    def steps(self) -> Steps[VersionedLedger | NothingDone]:
        """Choose other bookies, see that the metadata answers, and change it."""
        adds, base = self._adds, self._known
        if self._reads_first and not (yield from CheckOpen(adds.ledger_id)):
            return NothingDone()
        of = {} if self.domains is None else self.domains.of
        found = yield from choose(adds.ensemble, self._bad, self._avoid, of)
        wanted = self._wanted_of(found)
        if not wanted:
            return NothingDone(found.left_out)
        if not adds.is_frozen and not adds.needed_of(wanted):
            # A store that does not answer must not freeze a writer that can do without it.
            read = yield from attempt(ReadMetadata())
            wanted = self._wanted_of(found)
            if isinstance(read, MetadataUnavailable) or not wanted:
                return NothingDone()
            if isinstance(read, Error):
                raise read
            assert isinstance(read, VersionedLedger)
            base = read if read.version >= base.version else base
        self.domains = self._domains_of(wanted, found)
        return (yield from self._write(wanted, base))

    def _wanted_of(self, found: Replaced) -> dict[int, BookieId]:
        """Return those of the chosen bookies that are to be named: none where no append could be acknowledged then.

        All of them span domains with the members that stay. Those that are wanted still, since others came back, may
        not.
        """
        wanted = self._still_wanted(found.chosen, self._now_s)
        domains = self._domains_of(wanted, found)
        if domains is None or domains.allows(self._known.metadata, self._with(wanted)):
            return wanted
        return {}

    def _with(self, wanted: Mapping[int, BookieId]) -> list[BookieId]:
        return [wanted.get(index, one) for index, one in enumerate(self._adds.ensemble)]

    def _domains_of(self, wanted: Mapping[int, BookieId], found: Replaced) -> AckDomains | None:
        if self.domains is None:
            return None
        return self.domains.changed(self._with(wanted), found.locations)

    def _write(
        self, chosen: Mapping[int, BookieId], known: VersionedLedger
    ) -> Steps[VersionedLedger]:
        """Change the metadata first: nothing is acknowledged before it says so (INV-E1)."""
        adds = self._adds
        base: VersionedLedger | None = known
        while True:
            adds.freeze()
            change = EnsembleChange(
                adds.ledger_id, self._known.metadata, adds.head, chosen, self.domains
            )
            found = yield from MetadataUpdate(change.of, base, math.inf)
            if found.version >= known.version:
                return found
            # From a replica of the store that lags behind: what it names may have been replaced since.
            base = None
            yield Sleep(STALE_PAUSE_S, is_retry=True)
