"""What an overview has from metadata: healing, and cursors that lag."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import aclosing

from fastbk.admin.cluster import uncloseable
from fastbk.autorecovery.state import ClusterState
from fastbk.meta.last_backup import backup_age_s
from fastbk.meta.unfinished_recoveries import unfinished_recoveries
from fastbk.model.health import OpenLedgerFacts
from fastbk.model.ids import BookieId, LedgerId
from fastbk.overview.values import CursorLag, Healing
from fastbk.stream.client import Client
from fastbk.stream.cursor.backlog import CursorGauge, CursorGauges
from fastbk.stream.janitor.all_streams import all_streams

MARKS_MAX = 100_000
"""Marks are counted up to this."""
UNCLOSEABLE_MAX = 10_000
"""The same for ledgers that cannot be closed."""


class HealingReader:
    """Reads what AutoRecovery has to do, and how fast it is."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._before: tuple[float, dict[str, tuple[int, int]]] | None = None
        """When, and worker -> ledgers and bytes that it had repaired since it began."""

    async def read(self) -> Healing:
        """Return it as it is now. Raises MetadataUnavailable, StorageError."""
        state = ClusterState(self._client.records)
        workers, audit = await state.workers(), await state.audit.read()
        enabled, auditor = await self._client.call_store(
            lambda store: (store.coordination.is_enabled(), store.coordination.auditor())
        )
        marked = 0
        async for page in self._client.marks.pages():
            marked += len(page)
            if marked >= MARKS_MAX:
                break
        done = {name: (one.ledgers_repaired, one.bytes_copied) for name, one in workers.items()}
        ledgers_per_s, bytes_per_s = self._rates(done)
        reports = workers.values()
        return Healing(
            enabled,
            auditor or "",
            marked,
            max((one.bytes_left for one in reports), default=0) if marked else 0,
            max((one.parked_count for one in reports), default=0) if marked else 0,
            ledgers_per_s,
            bytes_per_s,
            tuple(sorted([*((str(one), 0) for one in audit.due), *audit.waiting.items()])),
        )

    def _rates(self, done: dict[str, tuple[int, int]]) -> tuple[float | None, float | None]:
        now_s, before = self._clock(), self._before
        self._before = now_s, done
        if before is None or now_s <= before[0]:
            return None, None
        ledgers = size_bytes = 0
        for name, (ledgers_now, bytes_now) in done.items():
            # A worker that is new, or began anew, has counted from 0.
            ledgers_then, bytes_then = before[1].get(name, (ledgers_now, bytes_now))
            ledgers += max(0, ledgers_now - ledgers_then)
            size_bytes += max(0, bytes_now - bytes_then)
        took_s = now_s - before[0]
        return ledgers / took_s, size_bytes / took_s


async def read_backup_age(client: Client) -> float:
    """Return how old the newest backup of metadata is, in seconds. Raises MetadataUnavailable."""
    return await client.call_store(lambda store: backup_age_s(store, time.time_ns() // 1_000_000))


async def read_open_ledgers(client: Client) -> OpenLedgerFacts:
    """Return which ledgers wait to be closed. Reads all ledgers' metadata while a bookie is away."""
    unfinished = await client.call_store(unfinished_recoveries)
    waiting: list[LedgerId] = []
    away: set[BookieId] = set()
    async with aclosing(uncloseable(client)) as found:
        async for one in found:
            away.update(one.away)
            waiting.append(one.ledger_id)
            if len(waiting) >= UNCLOSEABLE_MAX:
                break
    return OpenLedgerFacts(
        unfinished=tuple(unfinished), uncloseable=tuple(waiting), away=tuple(sorted(away))
    )


class CursorReader:
    """Reads how far durable cursors are behind, as a janitor does it for its page."""

    def __init__(self, client: Client, cursors_max: int) -> None:
        """`cursors_max`: cursors of which the backlog is read."""
        self._client = client
        self._gauges = CursorGauges(client, cursors_max)

    async def read(self) -> tuple[tuple[CursorLag, ...], int]:
        """Return the cursors, the longest unread first, and how many more there are. Raises what metadata raises."""
        self._gauges.begin()
        async for streams in all_streams(self._client.records):
            for one in streams:
                await self._gauges.measure(one, is_thorough=True)
        self._gauges.end()
        found = [_lag(one) for one in self._gauges.all()]
        return tuple(sorted(found, key=_worst_first)), self._gauges.left_out


def _lag(gauge: CursorGauge) -> CursorLag:
    backlog = gauge.backlog
    if backlog is None:
        return CursorLag(gauge.stream, gauge.cursor, gauge.by, None, None, None, gauge.moved_s)
    return CursorLag(
        gauge.stream, gauge.cursor, gauge.by, backlog.records, backlog.size_bytes, backlog.seconds, gauge.moved_s
    )  # fmt: skip


def _worst_first(one: CursorLag) -> tuple[float, int, str, str]:
    return -(one.oldest_unread_s or 0.0), -(one.backlog_records or 0), one.stream, one.cursor
