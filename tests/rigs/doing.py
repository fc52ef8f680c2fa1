"""Doing the script's operations on a life of the storage rig."""

from __future__ import annotations

from collections.abc import Iterable

from tests.fixtures.storage_harness import Life
from tests.rigs.script import Kind, Operation

LOGS_MAX = 3
UNPACED, COMPACTION_S = 1 << 40, 60.0
LOOKS = 4
"""Each takes the next result in: written, committed, installed."""
RING_BYTES = 100_000
"""Unsettled payload before the rig settles by itself: less than the add ring takes."""


def do(life: Life, operations: Iterable[Operation]) -> None:
    """Do all of them. Raises what the disk does, as a dying process would."""
    unsettled_bytes = 0
    for operation in operations:
        unsettled_bytes += sum(200 + len(data) for data in operation.data)
        if operation.kind in (Kind.SETTLE, Kind.FLUSH, Kind.DELETE) or unsettled_bytes > RING_BYTES:
            life.settle()
            unsettled_bytes = 0
        do_one(life, operation)


def do_one(life: Life, operation: Operation) -> None:
    ledger_id, entry_id, data = operation.ledger_id, operation.entry_id, operation.data
    match operation.kind:
        case Kind.ADD | Kind.CONFLICT:
            life.add(ledger_id, entry_id, data[0])
        case Kind.RECOVERY:
            life.recovery_add(ledger_id, entry_id, data[0])
        case Kind.BATCH:
            life.add_batch(ledger_id, entry_id, list(data))
        case Kind.FENCE:
            life.fence(ledger_id)
        case Kind.DELETE:
            life.delete(ledger_id)
        case Kind.FLUSH:
            life.flush()
        case Kind.COMPACT:
            compact(life)
        case Kind.SETTLE:
            pass


def compact(life: Life) -> None:
    """Compact the logs of which least lives, whatever that is."""
    sealed = [log for log in life.checkpoint.manifest.logs if log.sealed]
    sealed.sort(key=lambda log: log.live_bytes / max(log.durable_bytes, 1))
    chosen = [log.log_id for log in sealed[:LOGS_MAX]]
    if chosen and life.flusher.upkeep.compact(chosen, UNPACED, COMPACTION_S):
        for _ in range(LOOKS):
            life.flusher.poll()
