"""Decisions about ledgers that the async and the sync client share. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastbk.errors import (
    ConfigError,
    LedgerClosed,
    MetadataConflict,
    NotEnoughBookies,
    Unauthorized,
)
from fastbk.meta.api import BookieRegistration, MetadataStore
from fastbk.model.entry import DigestType
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.model.quorum import check_quorums, majority


def new_metadata(
    chosen: Sequence[BookieId],
    ensemble: int,
    write_quorum: int,
    ack_quorum: int | None,
    digest_type: DigestType,
    password: bytes,
    custom: Mapping[str, bytes] | None,
    created_ms: int,
    creation_token: int,
) -> LedgerMetadata:
    """Return the metadata of a new ledger; `chosen` empty: only check. Raises ConfigError."""
    quorum = majority(write_quorum) if ack_quorum is None else ack_quorum
    check_quorums(ensemble, write_quorum, quorum)
    for key, value in (custom or {}).items():
        if not isinstance(key, str) or not isinstance(value, bytes):
            raise ConfigError(f"metadata[{key!r}]: keys are str and values bytes")
    return LedgerMetadata(
        ensemble_size=ensemble,
        write_quorum=write_quorum,
        ack_quorum=quorum,
        fragments=(Fragment(0, tuple(chosen) or ("-",) * ensemble),),
        digest_type=digest_type,
        password=password,
        created_ms=created_ms,
        custom=dict(custom or {}),
        creation_token=creation_token,
    )


def ensemble_candidates(bookies: Sequence[BookieRegistration], ensemble: int) -> list[BookieId]:
    """Return the writable bookies; NotEnoughBookies when they are fewer than `ensemble`."""
    writable = [one.service.bookie_id for one in bookies if one.writable and one.service.endpoint()]
    if len(writable) < ensemble:
        raise NotEnoughBookies(
            f"{ensemble} writable bookies are needed and {len(writable)} are registered:"
            " start more, or create the ledger with a smaller ensemble",
            replicas={one.service.bookie_id: "read-only" for one in bookies if not one.writable},
        )
    return writable


def check_password(ledger_id: LedgerId, metadata: LedgerMetadata, password: bytes) -> None:
    """Raise Unauthorized unless `password` is the ledger's."""
    if metadata.password is not None and metadata.password != password:
        raise Unauthorized(
            f"ledger {ledger_id} was created with another password", ledger_id=ledger_id
        )


def check_open(
    ledger_id: LedgerId,
    metadata: LedgerMetadata,
    recovery: bool,
    digest: str | None,
    password: bytes,
) -> DigestType:
    """Return the digest type to open a ledger with, or raise why it cannot be opened like that."""
    check_password(ledger_id, metadata, password)
    named = None if digest is None else DigestType.of(digest)
    known = metadata.digest_type
    if named is not None and known is not None and named != known:
        raise ConfigError(
            f"ledger {ledger_id} has digest {known.name.lower()}, not {named.name.lower()}: leave digest out"
        )
    if recovery and not metadata.is_closed:
        raise ConfigError(
            f"ledger {ledger_id} is not closed: recovery is not in this version; pass recovery=False"
        )
    return known or named or DigestType.CRC32


def closing_update(
    ledger_id: LedgerId, metadata: LedgerMetadata, last: EntryId, length: int
) -> LedgerMetadata | None:
    """Return the metadata that closes a ledger, None if it is closed just so; LedgerClosed if otherwise.

    A writer may close a ledger that somebody has begun to recover: its own end covers all that was acknowledged.
    """
    if metadata.is_closed:
        if (metadata.last_entry_id, metadata.length) == (last, length):
            return None
        raise LedgerClosed(
            f"ledger {ledger_id} was closed by another client at entry {metadata.last_entry_id},"
            f" this writer's last is {last}: read what is there",
            ledger_id=ledger_id,
            entry_id=last,
            outcome="unknown",
        )
    return metadata.closed(last, length)


def close_in(store: MetadataStore, ledger_id: LedgerId, last: EntryId, length: int) -> None:
    """Close a ledger by compare-and-set with its writer's own end (INV-M1); see `closing_update`."""
    while True:
        found = store.read_ledger(ledger_id)
        value = closing_update(ledger_id, found.metadata, last, length)
        if value is None:
            return
        try:
            store.update_ledger(ledger_id, value, found.version)
        except MetadataConflict:
            continue
        return
