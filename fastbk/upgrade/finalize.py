"""`fastbk cluster finalize`: raises the format level of a cluster, if every process that shows its version has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.autorecovery.state import WORKER_SILENT_S, ClusterState, clock_ms
from fastbk.errors import Error
from fastbk.formats import LEVEL_FIRST, LEVEL_MAX, LEVEL_PROPERTY
from fastbk.meta.format_level import LevelRecord, raise_level, read_or_first

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fastbk.autorecovery.state import WorkerReport
    from fastbk.client import Client
    from fastbk.meta.api import BookieRegistration, BookieService
    from fastbk.model.ids import BookieId


class NotReady(Error):
    """The cluster's level cannot be raised now; `reasons` has a line for each process that stands in the way."""

    def __init__(self, text: str, reasons: tuple[str, ...]) -> None:
        super().__init__(text)
        self.reasons = reasons


@dataclass(frozen=True, slots=True)
class Finalization:
    """What `check` found. `reasons`: why the level may not be raised; empty: it may."""

    record: LevelRecord
    bookies: int
    reasons: tuple[str, ...]


def level_of(service: BookieService) -> int:
    """Return the highest level that a registered bookie has; Apache's and those of 0.1 say nothing."""
    text = service.properties.get(LEVEL_PROPERTY, "")
    return int(text) if text.isascii() and text.isdigit() else LEVEL_FIRST


def reasons_against(
    level: int,
    registered: Iterable[BookieRegistration],
    known: Iterable[BookieId],
    workers: Mapping[str, WorkerReport],
    now_ms: int,
) -> tuple[str, ...]:
    """Return why a cluster may not be finalized at a level: a line for each process that lacks it, or may.

    Args:
        level: the one to be.
        registered: the bookies that are up.
        known: bookies that have an identity: one that is down may be of an older version.
        workers: the last reports of AutoRecovery's workers; those that are silent for `WORKER_SILENT_S` do not count.
        now_ms: in ms since 1970.
    """
    services = {one.service.bookie_id: one.service for one in registered}
    reasons = []
    for bookie_id, service in sorted(services.items()):
        if (has := level_of(service)) < level:
            version = service.properties.get("version", "0.1 or Apache's")
            reasons.append(
                f"bookie {bookie_id} has levels up to {has} (version {version}): upgrade it"
            )
    reasons += [
        f"bookie {one} is down, and may be of an older version: start it, or forget it (`fastbk cluster cookies`)"
        for one in sorted(set(known) - services.keys())
    ]
    reasons += [
        f"autorecovery {name} has levels up to {one.format_level}: upgrade it"
        for name, one in sorted(workers.items())
        if one.format_level < level and now_ms - one.report_ms < WORKER_SILENT_S * 1000
    ]
    return tuple(reasons) if services else ("no bookie is registered", *reasons)


async def check(client: Client) -> Finalization:
    """Look whether the cluster may be finalized at `LEVEL_MAX`; changes nothing. Raises Error."""
    record, registered, identities = await client.call_store(
        lambda store: (read_or_first(store), store.list_bookies(), store.list_identities())
    )
    known = [identity.bookie_id for identity in identities]
    workers = await ClusterState(client.records).workers()
    reasons = reasons_against(LEVEL_MAX, registered, known, workers, clock_ms())
    return Finalization(record, len(registered), () if record.level >= LEVEL_MAX else reasons)


async def finalize(client: Client) -> LevelRecord:
    """Raise the cluster's level to `LEVEL_MAX` (INV-U2); nothing happens if it has that. Raises NotReady, Error."""
    found = await check(client)
    if found.reasons:
        text = f"the cluster stays at format level {found.record.level}: {'; '.join(found.reasons)}"
        raise NotReady(text, found.reasons)
    return await client.call_store(lambda store: raise_level(store, LEVEL_MAX))
