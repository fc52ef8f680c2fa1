"""Which LACs an answer proves: those that a good digest covers, never the bare number."""

from __future__ import annotations

from fastbk.client.connection import Answer
from fastbk.model.entry import parse_lac_body
from fastbk.model.ids import BookieId, EntryId
from fastbk.native.client_codec import LedgerCodec
from fastbk.replication.read_machine import LacMachine
from fastbk.wire.statuses import Status


def proven_lacs(
    answer: Answer, ledger_codec: LedgerCodec, password: bytes
) -> tuple[list[EntryId], bool]:
    """Return the LACs that a ReadLacReply proves, and whether everything in it that has a digest is whole."""
    lacs: list[EntryId] = []
    whole = True
    if answer.extra:
        lac = parse_lac_body(
            answer.extra, ledger_codec.ledger_id, ledger_codec.digest_type, password
        )
        if lac is None:
            whole = False
        else:
            lacs.append(lac)
    if answer.entries:
        found = ledger_codec.check_entry(answer.entries)
        if found is None:
            whole = False
        else:
            lacs.append(found[1])
    return lacs, whole


def hear_lac(
    machine: LacMachine,
    bookie_id: BookieId,
    answer: Answer,
    ledger_codec: LedgerCodec,
    password: bytes,
) -> None:
    """Tell `machine` what an answer to ReadLac says."""
    if answer.status in (Status.NO_LEDGER, Status.NO_ENTRY):
        machine.answered(bookie_id, [], fenced=answer.fenced)
    elif answer.status != Status.OK:
        machine.refused(bookie_id, answer.status)
    else:
        lacs, whole = proven_lacs(answer, ledger_codec, password)
        if whole:
            machine.answered(bookie_id, lacs, fenced=answer.fenced)
        else:
            machine.failed(bookie_id, "its LAC fails its digest")
