"""The writer of one ledger, without I/O: adds, and the change of its ensemble when bookies fail.

It owns two things: an `AddMachine` (`.adds`: what is sent where, what is acknowledged) and the writer's copy of the
metadata (`.known`). When a bookie fails for longer than the policy bears, a *change* runs:

1. `Choose` other bookies; none to be had: go on with those that answer, and try again later.
2. Unless an entry waits for it: `ReadMetadata`, so that a store which is away freezes no writer that can do without it.
3. Freeze: acks are recorded, the head stays. The new fragment starts at the head, which is LAC + 1 (INV-E1).
4. `UpdateMetadata`, a compare-and-set, through conflicts and unknown results. Closed meanwhile: LedgerClosed. In
   recovery: LedgerFenced. The bad bookies replaced by somebody else: his ensemble is the truth. While the result is
   unknown the writer stays frozen.
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
- calls `bookies_changed(now_s)` when bookies came or became writable, and `tick(now_s)` at `wake_s`;
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
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fastbk.errors import Error
from fastbk.meta.api import VersionedLedger
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.replication.add_machine import AddMachine
from fastbk.replication.change_policy import ChangePolicy
from fastbk.replication.closing import CloseLedger
from fastbk.replication.forcing import ForcedTo, ForceProcedure
from fastbk.replication.procedure import Procedure


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """How one ledger is written."""

    held_bytes_max: int = 32 * 1024 * 1024
    """Acknowledged entries that a missing bookie still lacks are held for it up to this."""
    append_timeout_s: float = 10.0
    """An add that waits longer for its quorum ends the writer."""
    change: ChangePolicy = field(default_factory=ChangePolicy)
    is_deferred: bool = False
    """Acknowledged entries are only readable, and kept by a close, once a force has covered them. Such a ledger keeps
    its bookies: one that would have to be replaced ends the writer."""


class WriterMachine(Procedure[None]):
    """State of one open ledger's writer; see the module's text.

    Attributes:
        adds: what is sent where; `head`, `next_entry_id`, `next_length`, `add`, `next_to_send` are the driver's to use.
        known: the metadata as this writer last read or wrote it.
        ensemble_version: counts the changes of `ensemble`.
        changes: how many changes of the ensemble this writer has made.
        wake_s: when `tick` is to be called, None for never.
    """

    def __init__(self, ledger_id: LedgerId, known: VersionedLedger, options: WriterOptions) -> None:
        super().__init__()
        self.ledger_id = ledger_id
        self.known = known
        self.options = options
        metadata = known.metadata
        self.adds = AddMachine(
            ledger_id,
            metadata.fragments[-1].ensemble,
            metadata.write_quorum,
            metadata.ack_quorum,
            held_bytes_max=options.held_bytes_max,
        )
        self.ensemble_version = 0
        self.changes = 0
        self.wake_s: float | None = None

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
        raise NotImplementedError

    @property
    def last_add_confirmed(self) -> EntryId:
        """The LAC: what frames and explicit LACs say, where a close ends. With deferred sync the last forced entry."""
        return self.adds.last_add_confirmed

    @property
    def length_confirmed(self) -> int:
        """Bytes of data of all entries up to the LAC."""
        return self.adds.length_confirmed

    def index_of(self, bookie_id: BookieId) -> int | None:
        """Return the bookie's index in the ensemble, None if it is no member."""
        raise NotImplementedError

    # --- what the driver reports ---------------------------------------------------------------------------------

    def begin(self, now_s: float) -> None:
        """Begin to wait for the first connections."""
        raise NotImplementedError

    def added(self, now_s: float) -> None:
        """Entries were given to `adds.add`."""
        raise NotImplementedError

    def connected(self, bookie_id: BookieId, now_s: float) -> None:
        """The bookie can be written to (again); send it what `adds.next_to_send` has."""
        raise NotImplementedError

    def lost(
        self, bookie_id: BookieId, reason: str, now_s: float, *, is_gone: bool = False
    ) -> None:
        """The bookie cannot be reached; may be told again after each try.

        `is_gone`: for good (its data was lost: another incarnation answers): replaced at once, and never taken again.
        """
        raise NotImplementedError

    def acknowledged(
        self, bookie_id: BookieId, first_entry_id: EntryId, count: int, now_s: float
    ) -> bool:
        """The bookie has [first, first + count) durably; return whether the head moved."""
        raise NotImplementedError

    def refused(
        self, bookie_id: BookieId, first_entry_id: EntryId, count: int, status: int, now_s: float
    ) -> bool:
        """The bookie did not store these; return True if `retry` is to be called after a pause."""
        raise NotImplementedError

    def retry(self, bookie_id: BookieId) -> None:
        """Send again what the bookie has not acknowledged."""
        raise NotImplementedError

    def bookies_changed(self, now_s: float) -> None:
        """Other bookies are to be had: a change that found none is tried again at once."""
        raise NotImplementedError

    def tick(self, now_s: float) -> float | None:
        """Look at the clock: adds that waited too long, bookies that were away too long. Return `wake_s`."""
        raise NotImplementedError

    def end(self, error: Error, now_s: float) -> None:
        """End the writer from outside; what was acknowledged stays so."""
        raise NotImplementedError

    def stop(self, now_s: float) -> None:
        """Begin no change any more and give up one that is under way: the ledger is about to be closed or left."""
        raise NotImplementedError

    # --- close and force ---------------------------------------------------------------------------------------

    def closing(self, timeout_s: float) -> CloseLedger:
        """Return the procedure that closes the ledger at this writer's LAC. Call `stop` first."""
        raise NotImplementedError

    def forcing(self, timeout_s: float) -> ForceProcedure:
        """Return the procedure that makes everything acknowledged so far durable on the ensemble."""
        raise NotImplementedError

    def forced(self, to: ForcedTo) -> None:
        """A force has succeeded; with deferred sync the LAC moves to where it was begun."""
        raise NotImplementedError
