"""What a procedure asks of its driver, and what comes back. Plain values; drivers and the simulator speak only these.

A procedure gives each action with a tag, and `Procedure.completed(tag, outcome, now_s)` answers it exactly once, unless
it was withdrawn. Outcomes: `SendRequest` a Reply or an Error (NotEnoughBookies: not reached, or the connection was
lost; QuorumTimeout: no answer in time), `ReadMetadata` a VersionedLedger or an Error, `UpdateMetadata` the new version
or an Error (MetadataConflict: not done; MetadataUnavailable: it may have taken effect), `ReadIdentity` a
VersionedIdentity, None (the bookie has none, as Apache's) or an Error, `Choose` a Replaced,
`MarkReplicas` None or an Error, `Sleep` None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from fastbk.errors import Error
from fastbk.meta.api import IdentityVersion, VersionedIdentity, VersionedLedger
from fastbk.model.ids import BookieId, EntryId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.missing_replica import MissingReplica

# --- requests to a bookie, all about the procedure's ledger ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadEntry:
    """One entry; -1 = the one with the highest id. `fence`: no normal add is acknowledged there afterwards."""

    entry_id: EntryId
    fence: bool = False
    high_priority: bool = False


@dataclass(frozen=True, slots=True)
class ReadEntries:
    """What the bookie holds of [first, last], in order, within both limits."""

    first: EntryId
    last: EntryId
    entries_max: int
    size_bytes_max: int


@dataclass(frozen=True, slots=True)
class ReadLac:
    """The LAC, at once or (wait_s > 0) when it passes `previous`; `piggyback`: with entry previous + 1."""

    previous: EntryId = -1
    wait_s: float = 0.0
    piggyback: bool = False


@dataclass(frozen=True, slots=True)
class WriteLac:
    """An explicit LAC; losing it only delays what readers see."""

    lac: EntryId


@dataclass(frozen=True, slots=True)
class ForceLedger:
    """Answer when everything this bookie took of the ledger before is durable."""


@dataclass(frozen=True, slots=True)
class AddEntry:
    """Store one entry. `length`: bytes of data of the ledger up to and with this entry. `recovery` passes a fence."""

    entry_id: EntryId
    lac: EntryId
    length: int
    data: bytes | memoryview
    recovery: bool = True


@dataclass(frozen=True, slots=True)
class AddEntries:
    """Store copies of consecutive entries, past a fence: all or none. Apache's bookies answer UNSUPPORTED."""

    entries: Sequence[Found]


@dataclass(frozen=True, slots=True)
class ListEntries:
    """Which entries the bookie holds from `first` on, in at most so many ranges. It reads none of them."""

    first: EntryId
    ranges_max: int


BookieRequest: TypeAlias = (
    ReadEntry | ReadEntries | ReadLac | WriteLac | ForceLedger | AddEntry | AddEntries | ListEntries
)


# --- actions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Send a request to a bookie."""

    bookie_id: BookieId
    request: BookieRequest
    timeout_s: float


@dataclass(frozen=True, slots=True)
class ReadMetadata:
    """Read the ledger's metadata."""


@dataclass(frozen=True, slots=True)
class UpdateMetadata:
    """Replace the ledger's metadata if it still has `version` (INV-M1).

    `if_identity`: and if a bookie's identity is still the same; IdentityChanged otherwise.
    """

    metadata: LedgerMetadata
    version: int
    if_identity: IdentityVersion | None = None


@dataclass(frozen=True, slots=True)
class ReadIdentity:
    """Read a bookie's identity, which an update may depend on."""

    bookie_id: BookieId


@dataclass(frozen=True, slots=True)
class MarkReplicas:
    """Change the ledger's mark of missing replicas: first `remove` entries, then `add` some. Repeatable."""

    add: tuple[MissingReplica, ...]
    remove: tuple[MissingReplica, ...] = ()


@dataclass(frozen=True, slots=True)
class Choose:
    """Choose bookies in place of the `bad` indexes of `ensemble`; the mapping may cover only some of them, or none."""

    ensemble: tuple[BookieId, ...]
    bad: frozenset[int]
    exclude: frozenset[BookieId]


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait. Before another attempt whatever performs this adds jitter; a deadline is exact."""

    pause_s: float
    is_retry: bool = False


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Nobody waits for the action of this tag any more: drop its outcome, let go of a request in flight."""


Action: TypeAlias = (
    SendRequest
    | ReadMetadata
    | UpdateMetadata
    | ReadIdentity
    | MarkReplicas
    | Choose
    | Sleep
    | Withdraw
)


class TaggedAction(NamedTuple):
    """An action and the tag that its outcome is reported under; of `Withdraw` that of the action withdrawn."""

    tag: int
    action: Action


# --- answers --------------------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """An entry whose digest is good. `length`: bytes of data of the ledger up to and with it.

    A named tuple because many are made where entries are looked at one by one: less than half the cost of a dataclass.
    """

    entry_id: EntryId
    lac: EntryId
    length: int
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class Reply:
    """A bookie's answer, digests already checked by the driver.

    Attributes:
        status: a `Status` of fastbk.wire.statuses.
        found: the whole entries of the answer in order, up to the first that is not whole; an `EntryTable` if many.
        damaged: something in the answer fails its digest, or names another ledger or entry than was asked for.
        lacs: LACs that good digests prove; a bare number never counts.
        fenced: whether the ledger is fenced there.
        next_entry_id: of ReadEntries and ListEntries: ids below it that are not in the answer are not there; where it
            is not above the first id that a ListEntries asked for, no more are there at all.
        ranges: of ListEntries: first and last ids, ascending.
        add_wait_s: of ReadEntries and recovery adds: how long normal adds wait for the journal there now; 0: none came.
    """

    status: int
    found: Sequence[Found] = ()
    damaged: bool = False
    lacs: tuple[EntryId, ...] = ()
    fenced: bool = False
    next_entry_id: EntryId = -1
    ranges: tuple[tuple[EntryId, EntryId], ...] = ()
    add_wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Replaced:
    """Outcome of `Choose`: new bookies by index, and why others were left out."""

    chosen: Mapping[int, BookieId] = field(default_factory=dict)
    left_out: Mapping[BookieId, str] = field(default_factory=dict)


Outcome: TypeAlias = Reply | VersionedLedger | VersionedIdentity | Replaced | int | Error | None
