"""How much room is kept on a ledger directory's disk, from the settings."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fastbk.storage.disk_health import Thresholds
from fastbk.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fastbk.server.configuration.settings import DiskSettings, JournalSettings

GROWTH = 1.5
"""What lies in the journal takes at most this much more once flushed: an entry's run and location beside its record."""
REPAIR_SHARE, FREE_SHARE = 1.25, 1.5
"""The two upper floors where they are not configured, as multiples of the reserve."""


def journal_bytes_max(journal: JournalSettings) -> int:
    """Return the most that one journal directory ever holds: its limit, the room of fences, a file made ahead.

    Journal files that have become entry logs are not among it: they are ledgers' data.
    """
    return journal.limit_bytes + 2 * journal.file_size_bytes


def reserve_bytes(journal: JournalSettings) -> int:
    """Return the room that a flush of everything in the journal may need: its limit and the room of fences."""
    return int((journal.limit_bytes + journal.file_size_bytes) * GROWTH)


def sharing(directories: Sequence[str], pair: int) -> int:
    """Return how many of these directories lie on the file system of the one of `pair`; that one counts."""
    devices = []
    for directory in directories:
        try:
            devices.append(os.stat(directory).st_dev)
        except OSError:  # gone: whoever uses it says so
            devices.append(-1)
    return max(1, devices.count(devices[pair]))


def is_one_disk(directory: str, other: str) -> bool:
    """Return whether two directories lie on one file system."""
    try:
        return os.stat(directory).st_dev == os.stat(other).st_dev
    except OSError:  # gone: whoever uses it says so
        return False


def ledger_thresholds(disk: DiskSettings, journal: JournalSettings, sharers: int = 1) -> Thresholds:
    """Return what a ledger directory's disk is held against.

    `sharers`: so many ledger directories lie there, and each may have to flush a full journal at the same time.
    """
    reserve = reserve_bytes(journal) * sharers
    repair = max(disk.high_priority_free_bytes_min or int(reserve * REPAIR_SHARE), reserve)
    return Thresholds(
        warn_ratio=disk.warn_ratio,
        full_ratio=disk.full_ratio,
        low_water_ratio=disk.low_water_ratio,
        free_bytes_min=max(disk.free_bytes_min or int(reserve * FREE_SHARE), repair),
        repair_free_bytes_min=repair,
        reserve_bytes=reserve,
    )


def problems(disk: DiskSettings, journal: JournalSettings) -> Iterator[str]:
    """Yield what is out of order in the configured floors."""
    reserve, repair = reserve_bytes(journal), disk.high_priority_free_bytes_min
    if 0 < repair < reserve:
        yield (
            f"[disk] high_priority_free_min is below {format_size(reserve)}, which a flush of a full journal may need:"
            " raise it, or lower [journal] limit"
        )
    if 0 < disk.free_bytes_min < (repair or int(reserve * REPAIR_SHARE)):
        yield "[disk] free_min must be at least high_priority_free_min"
    if disk.low_water_ratio > disk.full_ratio:
        yield "[disk] low_water_ratio must be at most full_ratio"


def journal_thresholds(disk: DiskSettings) -> Thresholds:
    """Return the same for a journal directory: its files are made ahead and used again, so only a warning depends on
    the share that is used. What it refuses depends on the next file (`fastbk.storage.journal_pool`).
    """
    return Thresholds(warn_ratio=disk.warn_ratio)
