"""What a bookie tells of itself in its registration, for those who choose bookies: its place, labels and free space.

Free space changes with every flush, a registration should not: another figure is told only when it differs by a
twentieth of the disk, and at most once a minute. Placement needs no more than that.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastbk.errors import ConfigError
from fastbk.placement.topology import check_labels, check_location
from fastbk.server.directories import disk_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastbk.server.configuration.bookie_config import BookieConfig
    from fastbk.server.configuration.settings import BookieSettings

INTERVAL_S = 60.0
_SHARE = 20


class RegistrationProperties:
    """The properties of one bookie that come from its configuration and its disk."""

    def __init__(self, config: BookieConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._directories = config.ledgers.all_directories
        self._settings = config.bookie
        self._clock = clock
        self._told_free_bytes: int | None = None
        self._looked_s = clock()

    def properties(self) -> dict[str, str]:
        """Return what is to be told now; what is not known or not set is left out."""
        told: dict[str, str] = {}
        if self._settings.location:
            told["location"] = self._settings.location
        if self._settings.labels:
            told["labels"] = ",".join(sorted(set(self._settings.labels)))
        self._told_free_bytes, _ = self._free_and_total_bytes()
        self._looked_s = self._clock()
        if self._told_free_bytes is not None:
            told["free_bytes"] = str(self._told_free_bytes)
        return told

    def is_stale(self) -> bool:
        """Return whether the free space moved so far from what was told that it is worth telling."""
        if self._clock() - self._looked_s < INTERVAL_S:
            return False
        self._looked_s = self._clock()
        free_bytes, total_bytes = self._free_and_total_bytes()
        if free_bytes is None:
            return False
        if self._told_free_bytes is None:
            return True
        return abs(free_bytes - self._told_free_bytes) * _SHARE >= total_bytes

    def _free_and_total_bytes(self) -> tuple[int | None, int]:
        try:
            return disk_bytes(self._directories)
        except OSError:
            return None, 0


def place_problems(bookie: BookieSettings) -> Iterator[str]:
    """Yield what is wrong with `[bookie] location` and `labels`."""
    try:
        if bookie.location:
            check_location(bookie.location)
        check_labels(bookie.labels)
    except ConfigError as error:
        yield f"[bookie] {error.message}"
