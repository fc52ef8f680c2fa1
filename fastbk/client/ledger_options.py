"""Decisions about ledgers that clients make. Pure functions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from fastbk.client.config import ClientConfig
from fastbk.errors import ConfigError, NotEnoughBookies, Unauthorized, WeakQuorumWarning
from fastbk.meta.api import BookieRegistration
from fastbk.model.entry import DigestType
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import NAMESPACE_KEY, Fragment, LedgerMetadata
from fastbk.model.quorum import check_quorums, majority, missing_proof
from fastbk.option_checks import check_type, checked_timeout
from fastbk.placement.config import PlacementConfig
from fastbk.placement.rules import DEFAULT_RULE, custom_rule
from fastbk.replication.copy_listing import CheckRecoveredCopies
from fastbk.replication.options import ChangePolicy, WriterOptions
from fastbk.replication.reading import ReadOptions
from fastbk.replication.replicas import Pacing
from fastbk.retry import jittered

CHECK_TIMEOUT_S = 5.0
"""Timeout of one request of a check after a recovery."""


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
    check_type("ensemble", ensemble, int)
    check_type("write_quorum", write_quorum, int)
    check_type("ack_quorum", ack_quorum, int | None)
    check_type("password", password, bytes)
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


def shape_of(ensemble: int, write_quorum: int, ack_quorum: int) -> LedgerMetadata:
    """Return metadata that says no more than the quorums. Raises ConfigError."""
    digest = DigestType.CRC32C
    return new_metadata((), ensemble, write_quorum, ack_quorum, digest, b"", None, 0, 0)


class QuorumWarnings:
    """Warns of ack quorums that are no majority, once for each shape."""

    def __init__(self) -> None:
        self._warned: set[tuple[int, int]] = set()

    def check(self, metadata: LedgerMetadata) -> None:
        """Warn if two sets of Qa bookies of a write set need not meet."""
        shape = (metadata.write_quorum, metadata.ack_quorum)
        if metadata.ack_quorum >= majority(metadata.write_quorum) or shape in self._warned:
            return
        self._warned.add(shape)
        warnings.warn(
            f"ack_quorum={shape[1]} of write_quorum={shape[0]} is no majority: recovery needs"
            f" {missing_proof(*shape)} of {shape[0]} bookies, and losing {shape[1]} may lose what was"
            " acknowledged: see docs/quorums.md",
            WeakQuorumWarning,
            stacklevel=3,
        )


def writer_options(
    config: ClientConfig, is_deferred: bool, away: frozenset[BookieId] = frozenset()
) -> WriterOptions:
    """Return how ledgers are written by a client with that configuration. `away`: members that take no adds."""
    return WriterOptions(
        held_bytes_max=config.held_bytes_max,
        append_timeout_s=config.append_timeout,
        change=ChangePolicy(
            replace_after_s=config.replace_after,
            delayed=config.delayed_ensemble_change,
            changes_max=config.ensemble_changes_max,
            bookie_timeout_s=config.bookie_timeout,
            jitter=jittered,
        ),
        is_deferred=is_deferred,
        away=away,
    )


def pacing_of(config: ClientConfig, timeout_s: float | None = None) -> Pacing:
    """Return how procedures ask bookies; `timeout_s` in place of the configured read timeout. Raises ConfigError."""
    limit_s = checked_timeout(timeout_s, config.read_timeout)
    return Pacing(
        request_timeout_s=limit_s,
        give_up_s=limit_s,
        pause_min_s=config.backoff_min,
        pause_max_s=config.backoff_max,
    )


def checking_of(
    ledger_id: LedgerId, metadata: LedgerMetadata, bookies: Iterable[BookieRegistration]
) -> CheckRecoveredCopies:
    """Return the check of a ledger that was recovered."""
    services = {bookie.service.bookie_id: bookie.service for bookie in bookies}
    unable = {bookie_id for bookie_id, service in services.items() if service.endpoint() is None}
    return CheckRecoveredCopies(ledger_id, metadata, services, unable, CHECK_TIMEOUT_S)


def read_options(
    config: ClientConfig, timeout_s: float | None = None, *, is_unconfirmed: bool = False
) -> ReadOptions:
    """Return how ranges are read."""
    return ReadOptions(
        batch_entries=config.read_batch_entries,
        batch_bytes=config.read_batch_bytes,
        size_bytes_max=config.read_batch_bytes * config.prefetch_batches,
        speculative_s=config.speculative_read or None,
        parallel=config.parallel_reads,
        is_unconfirmed=is_unconfirmed,
        pacing=pacing_of(config, timeout_s),
    )


def custom_metadata_change(
    changes: Mapping[str, bytes | None],
) -> Callable[[LedgerMetadata], LedgerMetadata]:
    """Return the decision that sets or removes keys of the custom metadata. Raises ConfigError."""
    for key, value in changes.items():
        if not isinstance(key, str) or not isinstance(value, bytes | None):
            raise ConfigError(
                f"metadata[{key!r}]: keys are str and values bytes, or None to remove"
            )

    def decide(current: LedgerMetadata) -> LedgerMetadata:
        both = {**current.custom, **changes}
        custom = {key: value for key, value in both.items() if value is not None}
        return replace(current, custom=custom)

    return decide


def no_bookie_took_lac(
    ledger_id: LedgerId, lac: EntryId, reasons: Mapping[BookieId, str]
) -> NotEnoughBookies:
    """Return the error of a LAC that was told in vain."""
    return NotEnoughBookies(
        f"ledger {ledger_id}: no bookie took the LAC {lac}; try again",
        ledger_id=ledger_id,
        entry_id=lac,
        replicas=reasons,
    )


def custom_of(
    custom: Mapping[str, bytes] | None,
    placement: PlacementConfig,
    namespace: str,
    cluster: PlacementConfig = DEFAULT_RULE,
    ack_domains: Mapping[str, bytes] | None = None,
) -> Mapping[str, bytes] | None:
    """Return the custom metadata of a new ledger, with its rule of placement (INV-P4) in a cluster with that rule.

    And with its domains (INV-P5), and its namespace, unless it names one.
    """
    check_type("placement", placement, PlacementConfig)
    check_type("metadata", custom, Mapping | None)
    if namespace:
        custom = {NAMESPACE_KEY: namespace.encode(), **(custom or {})}
    rule = {**custom_rule(placement, cluster), **(ack_domains or {})}
    return {**(custom or {}), **rule} if rule else custom


def wrong_use_of_ids(ledger_id: LedgerId, entry_id: EntryId | None) -> ConfigError:
    """Return the error for an id where the writer counts, or none where the caller does."""
    if entry_id is None:
        return ConfigError(
            f"ledger {ledger_id} was created with explicit_ids: append one at a time, with entry_id="
        )
    return ConfigError(
        f"ledger {ledger_id}: entry_id={entry_id} needs a ledger that was created with explicit_ids=True"
    )


def check_password(ledger_id: LedgerId, metadata: LedgerMetadata, password: bytes) -> None:
    """Raise Unauthorized unless `password` is the ledger's."""
    if metadata.password is not None and metadata.password != password:
        raise Unauthorized(
            f"ledger {ledger_id} was created with another password", ledger_id=ledger_id
        )


def digest_to_open_with(
    ledger_id: LedgerId,
    metadata: LedgerMetadata,
    digest: str | None,
    password: bytes,
) -> DigestType:
    """Return the digest type to open a ledger with, or raise why it cannot be opened like that."""
    check_type("password", password, bytes)
    check_password(ledger_id, metadata, password)
    named = None if digest is None else DigestType.of(digest)
    known = metadata.digest_type
    if named is not None and known is not None and named != known:
        raise ConfigError(
            f"ledger {ledger_id} has digest {known.name.lower()}, not {named.name.lower()}: leave digest out"
        )
    return known or named or DigestType.CRC32
