"""What each refusal of an add means for its writer."""

from __future__ import annotations

from fastbk.errors import (
    Error,
    LedgerClosed,
    LedgerFenced,
    NoSuchLedger,
    NotEnoughBookies,
    ProtocolError,
    QuorumTimeout,
    RecordTooLarge,
    ReplicationConflict,
    Unauthorized,
)
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.wire.statuses import Status, status_name

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
    ack_quorum: int,
    timeout_s: float,
    trouble: dict[BookieId, str],
    is_frozen: bool = False,
) -> Error:
    """Return the error of a writer whose oldest add was not acknowledged in time; `is_frozen`: not allowed to be."""
    why = (
        ", while the metadata did not answer to a change of the ledger's bookies"
        if is_frozen
        else ""
    )
    return QuorumTimeout(
        f"ledger {ledger_id}: entry {entry_id} was not acknowledged by {ack_quorum} bookies within"
        f" {timeout_s:g} s{why}; see which bookies are missing, then go on in a new ledger",
        replicas=trouble,
    )


def too_few_able(ledger_id: LedgerId, entry_id: EntryId, trouble: dict[BookieId, str]) -> Error:
    """Return the error of a writer that too few bookies can store for."""
    next_step = "go on in a new ledger on other bookies"
    if status_name(Status.OTHER_CREATION) in trouble.values():
        next_step = (
            "metadata gave this id twice, and bookies hold the other ledger (OTHER_CREATION):"
            " go on in a new ledger, and find out whether metadata was rolled back"
        )
    return NotEnoughBookies(
        f"ledger {ledger_id}: too few bookies can store entry {entry_id}; {next_step}",
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
