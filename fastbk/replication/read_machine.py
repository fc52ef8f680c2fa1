"""The reader's half of the replication protocol, without I/O: which bookie to ask for what, and what answers prove.

A range is read from left to right. Whole ensembles (E = Qw) are asked for batches; striped ones for runs of ids that
one bookie holds. A missing or damaged copy is asked for at the next bookie of its write set; only when all were asked
is it an error, which names what each said. Bookies that could not be reached, or had no time, may be asked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastbk.errors import (
    DigestMismatch,
    Error,
    NoSuchEntry,
    NotEnoughBookies,
    QuorumTimeout,
    Unauthorized,
)
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.quorum import missing_proof, write_set
from fastbk.replication.replicas import ABSENT_STATUSES, BAD_DIGEST, PASSING_STATUSES
from fastbk.wire.statuses import Status, status_name

ABSENT = tuple(status.name for status in ABSENT_STATUSES)


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Ask `bookie_id` for the entries [first, last] that it holds."""

    bookie_id: BookieId
    first: EntryId
    last: EntryId


class ReadMachine:
    """Reads [first, last] of a ledger in order.

    Use: while `next_request()` returns one, send it and call `answered` or `failed`. `position` is the lowest id not
    read yet. `error` is set when no bookie of a write set gave its entry.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        first: EntryId,
        last: EntryId,
        *,
        prefer: int = 0,
        avoid: Sequence[BookieId] = (),
    ) -> None:
        self.position = first
        self.last = last
        self.error: Error | None = None
        self.replicas_skipped = 0
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._prefer = prefer
        self._avoid = set(avoid)
        self._said: dict[BookieId, str] = {}
        self._passing: set[BookieId] = set()
        self._striped = metadata.ensemble_size != metadata.write_quorum

    def next_request(self) -> ReadRequest | None:
        """Return what to ask next, None when the range is read or cannot be."""
        if self.position > self.last or self.error is not None:
            return None
        order = self._order()
        candidates = [one for one in order if one not in self._said]
        if not candidates:
            self.error = self._verdict(len(order))
            return None
        bookie = next((one for one in candidates if one not in self._avoid), candidates[0])
        return ReadRequest(bookie, self.position, self._last_held_by(bookie))

    def answered(
        self, bookie_id: BookieId, entry_ids: Sequence[EntryId], asked_last: EntryId, damaged: bool
    ) -> int:
        """Take an answer whose first entries are good; return how many of them are the next ones in order.

        `damaged`: the entry behind them fails its digest. The rest of the answer is of no use.
        """
        taken = 0
        for entry_id in entry_ids:
            if entry_id != self.position or entry_id > asked_last:
                break
            self.position += 1
            taken += 1
        if taken:
            self._said.clear()
            self._passing.clear()
        if damaged and taken == len(entry_ids):
            self.failed(bookie_id, BAD_DIGEST)
        elif taken == 0:
            self.failed(bookie_id, status_name(Status.NO_ENTRY))
        return taken

    def failed(self, bookie_id: BookieId, reason: str, *, passing: bool = False) -> None:
        """Bookie `bookie_id` did not give the entry at `position`; `passing`: that may be different in a moment."""
        self._said[bookie_id] = reason
        if passing:
            self._passing.add(bookie_id)
        self.replicas_skipped += 1

    def unreached(self, bookie_id: BookieId, error: Error) -> None:
        """Bookie `bookie_id` gave no answer, for the reason in `error`; it is asked last from now on."""
        self._avoid.add(bookie_id)
        self.failed(
            bookie_id, str(error), passing=isinstance(error, NotEnoughBookies | QuorumTimeout)
        )

    def refused(self, bookie_id: BookieId, status: int) -> None:
        """Bookie `bookie_id` answered with a status."""
        self.failed(bookie_id, status_name(status), passing=status in PASSING_STATUSES)

    def try_again(self) -> bool:
        """Take the error back, and ask those once more whose reasons may have passed; False: there are none.

        What the bookies said for good stays: an entry that is proven absent, no good digest, a wrong password.
        """
        if not isinstance(self.error, NotEnoughBookies) or not self._passing:
            return False
        for bookie_id in self._passing:
            del self._said[bookie_id]
        self._passing.clear()
        self.error = None
        return True

    def _fragment(self) -> tuple[tuple[BookieId, ...], EntryId]:
        """Return the ensemble of `position` and the last entry that it holds, as far as metadata knows."""
        end = self.last
        ensemble = self._metadata.fragments[0].ensemble
        for fragment in self._metadata.fragments:
            if fragment.first_entry_id > self.position:
                end = min(end, fragment.first_entry_id - 1)
                break
            ensemble = fragment.ensemble
        return ensemble, end

    def _order(self) -> list[BookieId]:
        ensemble, _ = self._fragment()
        members = write_set(self.position, len(ensemble), self._metadata.write_quorum)
        if self._striped:
            # The bookie for which this entry is the first of a run holds the most of what follows.
            members = tuple(reversed(members))
        else:
            members = tuple(sorted(members))
            turn = self._prefer % len(members)
            members = members[turn:] + members[:turn]
        return [ensemble[one] for one in members]

    def _last_held_by(self, bookie_id: BookieId) -> EntryId:
        ensemble, end = self._fragment()
        if not self._striped:
            return end
        size, index = len(ensemble), ensemble.index(bookie_id)
        last = self.position
        while last < end and (index - last - 1) % size < self._metadata.write_quorum:
            last += 1
        return last

    def _verdict(self, asked: int) -> Error:
        said = dict(self._said)
        where = f"entry {self.position} of ledger {self._ledger_id}"
        absent = sum(reason in ABSENT for reason in said.values())
        kind: type[Error] = NotEnoughBookies
        text = f"{where} could not be read from any of its {asked} bookies; see what each said, and try again"
        if absent >= missing_proof(self._metadata.write_quorum, self._metadata.ack_quorum):
            kind, text = NoSuchEntry, f"{where} was never acknowledged: read only up to the LAC"
        elif BAD_DIGEST in said.values():
            kind = DigestMismatch
            text = f"{where}: no copy passes its digest; is the password right? else run a repair"
        elif status_name(Status.UNAUTHORIZED) in said.values():
            kind, text = Unauthorized, f"{where}: the password is not the ledger's"
        return kind(text, ledger_id=self._ledger_id, entry_id=self.position, replicas=said)


class Patience:
    """How long one call goes on asking when no bookie could be asked at all: to its deadline, ever more rarely.

    Times are seconds of any one clock.
    """

    def __init__(self, backoff_min_s: float, backoff_max_s: float, end_s: float) -> None:
        self._pause_s = self._least_s = backoff_min_s
        self._backoff_max_s = backoff_max_s
        self._end_s = end_s

    def pause_s(self, machine: ReadMachine, now_s: float) -> float | None:
        """Return the pause before a machine that has failed asks again; None: it has failed for good."""
        left_s = self._end_s - now_s
        if left_s < self._least_s or not machine.try_again():
            return None
        # Half of what is left: the last try comes before the end, not at it.
        pause_s = min(self._pause_s, left_s / 2)
        self._pause_s = min(self._backoff_max_s, 2 * self._pause_s)
        return pause_s
