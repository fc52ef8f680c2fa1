"""How much room is kept on a ledger directory's disk, from the settings (A13)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.errors import ConfigError
from fastbk.storage.space import Thresholds

if TYPE_CHECKING:
    from fastbk.server.config import DiskSettings, JournalSettings

GROWTH = 1.5
"""What lies in the journal takes at most this much more once flushed: an entry's run and location beside its record."""
REPAIR_SHARE, FREE_SHARE = 1.25, 1.5
"""The two upper floors where they are not configured, as multiples of the reserve."""


def journal_bytes_max(journal: JournalSettings) -> int:
    """Return the most that one journal directory ever holds: its limit, the room of fences, a file made ahead."""
    return journal.limit_bytes + 2 * journal.file_size_bytes


def reserve_bytes(journal: JournalSettings) -> int:
    """Return the room that a flush of everything in the journal may need: its limit and the room of fences."""
    return int((journal.limit_bytes + journal.file_size_bytes) * GROWTH)


def ledger_thresholds(disk: DiskSettings, journal: JournalSettings) -> Thresholds:
    """Return what a ledger directory's disk is held against. Raises ConfigError for floors out of order."""
    reserve = reserve_bytes(journal)
    repair = disk.high_priority_free_bytes_min or int(reserve * REPAIR_SHARE)
    free = disk.free_bytes_min or max(int(reserve * FREE_SHARE), repair)
    if repair < reserve:
        raise ConfigError(
            f"[disk] high_priority_free_min = {repair} is below {reserve}, which a flush of a full journal may need:"
            " raise it, or lower [journal] limit"
        )
    if free < repair:
        raise ConfigError("[disk] free_min must be at least high_priority_free_min")
    if disk.low_water_ratio > disk.full_ratio:
        raise ConfigError("[disk] low_water_ratio must be at most full_ratio")
    return Thresholds(
        warn_ratio=disk.warn_ratio,
        full_ratio=disk.full_ratio,
        low_water_ratio=disk.low_water_ratio,
        free_bytes_min=free,
        repair_free_bytes_min=repair,
        reserve_bytes=reserve,
    )


def journal_thresholds(disk: DiskSettings) -> Thresholds:
    """Return the same for a journal directory: its files are made ahead and used again, so only a warning depends on
    the share that is used. What it refuses depends on the next file (`fastbk.storage.journal_pool`).
    """
    return Thresholds(warn_ratio=disk.warn_ratio)
