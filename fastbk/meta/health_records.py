"""Records of a cluster's health, for metrics, alerts and people: its newest backup, and recoveries that do not end.

A backup counts when it is whole (`note_backup`). Its record is no part of a backup, and none of a restored store: there
the cluster has no backup yet.

A recovery takes seconds. The auditor's check of all ledgers notes the ledgers that it finds in recovery. Those that the
check before it had noted, and that are in recovery still, wait for somebody to close them.

The auditor's rounds over all closed ledgers note how many of them lie otherwise than their rules want it.

Decision 146.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec

from fastbk.errors import MetadataConflict
from fastbk.meta.records import BadRecord, Change, bad_record
from fastbk.model.ids import ID_MAX, LedgerId
from fastbk.model.ledger import LedgerState

if TYPE_CHECKING:
    from fastbk.meta.api import MetadataStore

BACKUP_PATH = "cluster/backup"
TRIES_MAX = 20


class LastBackup(msgspec.Struct, frozen=True, kw_only=True):
    """`began_ms`: since 1970; what was written later is not in it. `backup_id`: as `metadata check` prints it."""

    began_ms: int
    backup_id: str

    def age_s(self, now_ms: int) -> float:
        """Return how old what it holds is."""
        return max(now_ms - self.began_ms, 0) / 1000


def read_last_backup(store: MetadataStore) -> LastBackup | None:
    """Return the newest backup that is known; None if none was ever taken, or nobody can read it (INV-M17).

    Raises MetadataUnavailable.
    """
    (stored,) = store.records.read([BACKUP_PATH])
    return None if stored is None else decode_backup(stored.value)


def backup_age_s(store: MetadataStore, now_ms: int) -> float:
    """Return how old the newest backup is; infinite if none is known. Raises MetadataUnavailable."""
    backup = read_last_backup(store)
    return math.inf if backup is None else backup.age_s(now_ms)


def note_backup(store: MetadataStore, taken: LastBackup) -> None:
    """Store that this backup was taken, unless a newer one was. Raises MetadataUnavailable, MetadataConflict."""
    for _ in range(TRIES_MAX):
        (stored,) = store.records.read([BACKUP_PATH])
        before = None if stored is None else decode_backup(stored.value)
        if before is not None and before.began_ms >= taken.began_ms:
            return
        version = None if stored is None else stored.version
        try:
            store.records.change([Change(BACKUP_PATH, msgspec.json.encode(taken), version)])
        except MetadataConflict:
            continue
        return
    raise MetadataConflict(f"record {BACKUP_PATH}: others change it again and again: try again")


def decode_backup(value: bytes) -> LastBackup | None:
    """Return what the record says; None: nobody can read it."""
    try:
        return msgspec.json.decode(value, type=LastBackup)
    except (ValueError, RecursionError) as error:
        bad_record(BACKUP_PATH, f"{error}; the next backup writes it anew")
        return None


RECOVERIES_PATH = "autorecovery/recoveries"
LISTED_MAX = 200
"""Maximum length of each list: the record stays below 10 KiB."""
_Ids: TypeAlias = Annotated[
    tuple[Annotated[int, msgspec.Meta(ge=0, le=ID_MAX)], ...], msgspec.Meta(max_length=LISTED_MAX)
]


class Recoveries(msgspec.Struct, frozen=True, kw_only=True):
    """Ledger ids, ascending. `begun`: in recovery in the last check of all. `unfinished`: in the one before, too."""

    begun: _Ids = ()
    unfinished: _Ids = ()


def unfinished_recoveries(store: MetadataStore) -> list[LedgerId]:
    """Return the ledgers whose recovery does not end; those that were closed since the last check are left out.

    A record that nobody can read says nothing, and is named (INV-M17). Raises MetadataUnavailable.
    """
    (stored,) = store.records.read([RECOVERIES_PATH])
    return [] if stored is None else _in_recovery(store, _recoveries(stored.value).unfinished)


def note_recoveries(store: MetadataStore, in_recovery: Iterable[LedgerId]) -> None:
    """Take in what a check of all ledgers found in recovery. Raises MetadataUnavailable, MetadataConflict."""
    listed = set(in_recovery)
    for _ in range(TRIES_MAX):
        (stored,) = store.records.read([RECOVERIES_PATH])
        before, version = Recoveries(), None
        if stored is not None:
            version = stored.version
            before = _recoveries(stored.value)
        # An auditor that took over in the middle of a check has not found all: those noted before are read again.
        unfinished = _in_recovery(store, before.begun)
        begun = sorted({*unfinished, *listed})[:LISTED_MAX]
        after = msgspec.json.encode(Recoveries(begun=tuple(begun), unfinished=tuple(unfinished)))
        if (stored is None and not begun) or (stored is not None and stored.value == after):
            return
        try:
            store.records.change([Change(RECOVERIES_PATH, after, version)])
        except MetadataConflict:
            continue
        return
    raise MetadataConflict(f"record {RECOVERIES_PATH}: others change it again and again: try again")


def _recoveries(value: bytes) -> Recoveries:
    """Return what the record says; nothing where nobody can read it: the next check of all ledgers writes it anew."""
    try:
        return msgspec.json.decode(value, type=Recoveries)
    except (ValueError, RecursionError) as error:
        bad_record(RECOVERIES_PATH, f"{error}; the next check of all ledgers writes it anew")
        return Recoveries()


def _in_recovery(store: MetadataStore, ledger_ids: Sequence[LedgerId]) -> list[LedgerId]:
    """Return those that are in recovery now. One with damaged metadata is left out: the check of all logs it."""
    return [
        ledger_id
        for ledger_id, ledger in zip(ledger_ids, store.read_ledgers(ledger_ids), strict=True)
        if ledger is not None
        and not isinstance(ledger, BadRecord)
        and ledger.metadata.state is LedgerState.IN_RECOVERY
    ]


PLACEMENT_FAULTS_PATH = "autorecovery/placement"
MISPLACED_NAMED_MAX = 20
"""So many misplaced ledgers are named, the worst first."""
REASON_CHARACTERS_MAX = 500
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class PlacementFaults(msgspec.Struct, frozen=True, kw_only=True):
    """What the last whole round over all closed ledgers found.

    Attributes:
        ended_ms: since 1970. ledgers: that were judged.
        enforced: of them, those that lie as an enforced rule forbids it. soft: those that lie otherwise than wanted.
        first: some of them, those of `enforced` first. reason: of the first.
    """

    ended_ms: _Count = 0
    ledgers: _Count = 0
    enforced: _Count = 0
    soft: _Count = 0
    first: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=0, le=ID_MAX)], ...],
        msgspec.Meta(max_length=MISPLACED_NAMED_MAX),
    ] = ()
    reason: str = ""


def read_placement_faults(store: MetadataStore) -> PlacementFaults | None:
    """Return what the last round found; None: none has ended, or nobody can read it (INV-M17).

    Raises MetadataUnavailable.
    """
    (stored,) = store.records.read([PLACEMENT_FAULTS_PATH])
    return None if stored is None else decode_placement_faults(stored.value)


def note_placement_faults(store: MetadataStore, faults: PlacementFaults) -> None:
    """Store what a round found. Raises MetadataUnavailable, MetadataConflict."""
    bounded = msgspec.structs.replace(faults, reason=faults.reason[:REASON_CHARACTERS_MAX])
    for _ in range(TRIES_MAX):
        (stored,) = store.records.read([PLACEMENT_FAULTS_PATH])
        version = None if stored is None else stored.version
        try:
            store.records.change(
                [Change(PLACEMENT_FAULTS_PATH, msgspec.json.encode(bounded), version)]
            )
        except MetadataConflict:
            continue
        return
    raise MetadataConflict(
        f"record {PLACEMENT_FAULTS_PATH}: others change it again and again: try again"
    )


def decode_placement_faults(value: bytes) -> PlacementFaults | None:
    """Return what the record says; None: nobody can read it."""
    try:
        return msgspec.json.decode(value, type=PlacementFaults)
    except (ValueError, RecursionError) as error:
        bad_record(PLACEMENT_FAULTS_PATH, f"{error}; the auditor's next round writes it anew")
        return None
