"""What one bookie shows of the copies that it should hold: asked for all of them, each digest checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from fastbk.errors import Error
from fastbk.model.ids import BookieId, EntryId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.missing_replica import MissingReplica
from fastbk.replication.copying import share_of
from fastbk.replication.procedure import (
    Found,
    Procedure,
    ReadEntries,
    Reply,
    SendRequest,
    Sleep,
    Steps,
    attempt,
)
from fastbk.replication.repair_options import RepairOptions
from fastbk.replication.replicas import ABSENT_STATUSES, PASSING_STATUSES
from fastbk.retry import Backoff
from fastbk.wire.statuses import Status, status_text

Range = tuple[EntryId, EntryId]

DAMAGED = "damaged: what the bookie shows fails its digest"
BAD_RANGES_MAX = 256
"""So many are told before the next are looked for."""
STRIDE_MAX = 256
"""Ids taken for bad at once where one after the other was: copying a good one again changes nothing."""


class CheckCopies(Procedure[None]):
    """Asks one bookie for ranges of ids and notes those that it cannot show.

    Attributes:
        checked: entries that it showed with a good digest. bad: ranges that it did not; reasons: why, of each.
        is_done: False once BAD_RANGES_MAX ranges are bad: go on with another one over `rest()`.
    """

    def __init__(
        self,
        bookie_id: BookieId,
        runs: Iterator[Range],
        through: EntryId,
        options: RepairOptions,
        see: Callable[[Found], None] | None = None,
        *,
        is_exact: bool = False,
    ) -> None:
        """`through`: how far one request may reach beyond a range; -1: not at all. `see` gets what is shown of them.

        `is_exact`: each damaged copy is found by a request of its own; else good ones behind it may be told as bad.
        """
        super().__init__()
        self.checked = 0
        self.bad: list[Range] = []
        self.reasons: list[str] = []
        self.is_done = False
        self._bookie_id = bookie_id
        self._runs = runs
        self._through = through
        self._options = options
        self._see = see
        self._at: EntryId = 0
        self._last: EntryId = -1
        self._stride = 1
        self._stride_max = 1 if is_exact else STRIDE_MAX

    def rest(self) -> Iterator[Range]:
        """Return the ranges that were not looked at."""
        if self._at <= self._last:
            yield self._at, self._last
        yield from self._runs

    def steps(self) -> Steps[None]:
        """Ask for one range after the other."""
        options, bookie_id = self._options, self._bookie_id
        backoff: Backoff | None = None
        worked_from_s = self._now_s
        while self._move():
            if len(self.bad) >= BAD_RANGES_MAX:
                return
            wait_s = options.wait_s((bookie_id,), self._now_s - worked_from_s, self._now_s)
            if wait_s > 0:
                yield Sleep(wait_s)
                worked_from_s = self._now_s
                continue
            # Shares of striped ledgers are many short ranges: one request may be about a lot of them.
            last = max(self._last, self._through)
            request = ReadEntries(self._at, last, options.read_entries_max, options.read_bytes_max)
            outcome = yield from attempt(SendRequest(bookie_id, request, options.request_timeout_s))
            if not isinstance(outcome, Reply) or outcome.status in PASSING_STATUSES:
                backoff = backoff or options.pacing(options.patience_s).backoff(self._now_s)
                pause_s = backoff.next_in_time_s(self._now_s)
                if pause_s is None:
                    assert isinstance(outcome, Error | Reply)
                    raise outcome if isinstance(outcome, Error) else _busy(bookie_id, outcome)
                yield Sleep(pause_s, is_retry=True)
                continue
            backoff = None
            found = outcome.found if outcome.status == Status.OK else ()
            self._take({one.entry_id: one for one in found}, *self._told(outcome, found))
            options.rate.spend(sum(len(one.data) for one in found), self._now_s)
            options.note(bookie_id, outcome, self._now_s)
        self.is_done = True

    def _move(self) -> bool:
        """Go to the next range if this one is done; False: there is none."""
        while self._at > self._last:
            run = next(self._runs, None)
            if run is None:
                return False
            self._at, self._last = run
        return True

    def _told(self, outcome: Reply, found: Sequence[Found]) -> tuple[EntryId, str]:
        """Return up to which id an answer says what there is, and why nothing else is there."""
        if found:
            self._stride = 1
            return found[-1].entry_id, status_text(Status.NO_ENTRY)
        if outcome.status in ABSENT_STATUSES:
            return max(self._last, self._through), status_text(outcome.status)
        if outcome.status == Status.OK and not outcome.damaged and outcome.next_entry_id > self._at:
            return outcome.next_entry_id - 1, status_text(Status.NO_ENTRY)
        # Something there can't be shown, and hides how far: ever more ids are taken for bad.
        stride, self._stride = self._stride, min(self._stride_max, 2 * self._stride)
        said = DAMAGED if outcome.status == Status.OK else status_text(outcome.status)
        return self._at + stride - 1, said

    def _take(self, shown: Mapping[EntryId, Found], told: EntryId, reason: str) -> None:
        """Note every id that is due up to `told`: shown or bad."""
        while self._move() and self._at <= told:
            if self._at in shown:
                self.checked += 1
                if self._see is not None:
                    self._see(shown[self._at])
            else:
                if self.bad and self.bad[-1][1] + 1 == self._at:
                    self.bad[-1] = self.bad[-1][0], self._at
                    self.reasons[-1] = reason
                else:
                    self.bad.append((self._at, self._at))
                    self.reasons.append(reason)
            self._at += 1


def _busy(bookie_id: BookieId, reply: Reply) -> Error:
    return Error(f"bookie {bookie_id} does not answer: {status_text(reply.status)}", retryable=True)


# --- what metadata names --------------------------------------------------------------------------
#
# What a ledger's metadata says about the copies of one bookie. Pure.


def fragments_naming(metadata: LedgerMetadata, bookie_id: BookieId) -> list[int]:
    """Return the positions of the fragments that name the bookie."""
    return [
        index for index, fragment in enumerate(metadata.fragments) if bookie_id in fragment.ensemble
    ]


def last_of_fragment(metadata: LedgerMetadata, at: int) -> EntryId | None:
    """Return the last entry of a finished fragment (below its first: it is empty); None: it is being written."""
    if at + 1 < len(metadata.fragments):
        return metadata.fragments[at + 1].first_entry_id - 1
    return metadata.last_entry_id if metadata.is_closed else None


def share_bytes(metadata: LedgerMetadata, bookie_id: BookieId) -> int:
    """Estimate the bytes of data that the bookie holds of a closed ledger; an open one's are not known: 0."""
    return sum(member_bytes(metadata, at) for at in fragments_naming(metadata, bookie_id))


def member_bytes(metadata: LedgerMetadata, at: int) -> int:
    """Estimate the bytes of data that each member of a fragment holds of it, of a closed ledger as `share_bytes`."""
    if not metadata.is_closed or metadata.last_entry_id < 0:
        return 0
    last = last_of_fragment(metadata, at)
    assert last is not None
    entries = max(0, last - metadata.fragments[at].first_entry_id + 1)
    copies = metadata.length * metadata.write_quorum * entries
    return copies // (metadata.ensemble_size * (metadata.last_entry_id + 1))


def holds_entries(metadata: LedgerMetadata, bookie_id: BookieId) -> bool:
    """Return whether entries are on the bookie as far as the metadata tells; those still being written may be."""
    for at in fragments_naming(metadata, bookie_id):
        fragment = metadata.fragments[at]
        last = last_of_fragment(metadata, at)
        if last is None:
            return True
        index = fragment.ensemble.index(bookie_id)
        if any(True for _ in share_of(index, metadata, fragment.first_entry_id, last)):
            return True
    return False


def verified_copies(
    bookie_id: BookieId, metadata: LedgerMetadata, ranges: Sequence[Range] | None = None
) -> list[MissingReplica]:
    """Return what a whole repair of one bookie has verified: all finished fragments, or those of `ranges`."""
    last = None if metadata.is_closed else metadata.fragments[-1].first_entry_id - 1
    if ranges is None:
        return [MissingReplica(bookie_id, 0, last)] if last != -1 else []
    ends = [(first, end if last is None else min(end, last)) for first, end in ranges]
    return [MissingReplica(bookie_id, first, end) for first, end in ends if end >= first]


def is_expected(metadata: LedgerMetadata, missing: MissingReplica) -> bool:
    """Return whether metadata names the bookie for some of these entries, or may still do so."""
    if not metadata.is_closed:
        return True
    for index, fragment in enumerate(metadata.fragments):
        last = last_of_fragment(metadata, index)
        assert last is not None
        first = max(fragment.first_entry_id, missing.first_entry_id)
        if missing.bookie_id in fragment.ensemble and first <= last and first < missing.end:
            return True
    return False
