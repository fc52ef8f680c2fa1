"""What the supervisor takes first: its directories, its port, and the indexes of the first boot.

A start is fast when the indexes import while the supervisor does. So this module is all that has to be imported
before they are spawned: it must load neither asyncio nor HTTP nor metadata (`tests/unit/server/test_spawn.py`).
An index does nothing before it is configured, which is after the identities were checked (INV-D1).

Decision 9.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastbk.config import split_address
from fastbk.errors import StorageError
from fastbk.server.child import keep_to
from fastbk.server.configuration.bookie_config import other_processors
from fastbk.server.configuration.checks import check, check_processors, check_security_files
from fastbk.server.directories import LOCK_WAIT_S, DirectoriesInUse, lock_pairs
from fastbk.server.supervision.spawn import Boot, PortGuard

if TYPE_CHECKING:
    from fastbk.server.configuration.bookie_config import BookieConfig
    from fastbk.server.directories import DirectoryLock
    from fastbk.server.process_table import Lock


class Claim:
    """The locked directories and the bound port of one bookie, and the indexes of its first boot."""

    def __init__(self, config: BookieConfig, locks: dict[Lock, DirectoryLock]) -> None:
        """Bind the port and spawn the indexes. Raises StorageError, OSError: then nothing is left behind.

        To be called in the main thread: a child dies with the thread that spawned it. `locks`: see `lock_directories`.
        """
        self.is_settled = False
        """Whether the directories were found to be this bookie's."""
        self.locks = locks
        self.first_boot: Boot | None = None
        self._guard: PortGuard | None = None
        try:
            keep_to(other_processors(config.bookie))  # and with it all children, but for journals
            self._guard = _guard(*split_address(config.bookie.listen, "[bookie] listen"))
            self.first_boot = Boot(
                config, self._guard, self.descriptors, new_epoch(0), only_indexes=True
            )
        except BaseException:
            self.close()
            raise

    @property
    def descriptors(self) -> dict[Lock, int]:
        """The descriptors of the directories' locks."""
        return {of: lock.descriptor for of, lock in self.locks.items()}

    @property
    def guard(self) -> PortGuard:
        """The port, until `close`."""
        assert self._guard is not None, "the port is bound until the claim is closed"
        return self._guard

    def take_first_boot(self) -> Boot | None:
        """Return the first boot, whose other children are to be spawned, to its one owner, who closes it.

        None once it was taken.
        """
        boot, self.first_boot = self.first_boot, None
        return boot

    def close(self) -> None:
        """End what still runs of the first boot, release port and directories. A second time does nothing."""
        if (boot := self.take_first_boot()) is not None:
            boot.close()
        if self._guard is not None:
            self._guard.close()
            self._guard = None
        locks, self.locks = self.locks, {}
        for lock in reversed(locks.values()):
            if not self.is_settled:  # a start that was refused leaves nothing behind
                lock.take_back()
            lock.close()


def lock_directories(
    config: BookieConfig, wait_s: float = LOCK_WAIT_S
) -> dict[Lock, DirectoryLock]:
    """Check the configuration, make and lock its directories. Raises ConfigError, StorageError."""
    check(config)
    check_processors(config)
    check_security_files(config)
    return lock_pairs(config.journal.all_directories, config.ledgers.all_directories, wait_s)


def claim_at_once(config: BookieConfig) -> Claim | None:
    """Return the claim, or None where another process still has a directory.

    The supervisor waits for that one in a thread, so that a signal can stop it meanwhile. Raises ConfigError,
    StorageError, OSError.
    """
    try:
        locks = lock_directories(config, wait_s=0.0)
    except DirectoriesInUse:
        return None
    return Claim(config, locks)


def new_epoch(last: int) -> int:
    """Return the epoch of the boot after `last`; it is never used twice, not by a later supervisor either."""
    return max(last + 1, int(time.time()))


def _guard(host: str, port: int) -> PortGuard:
    try:
        return PortGuard(host, port)
    except OSError as error:
        raise StorageError(
            f"cannot listen on {host}:{port}: {error.strerror}: stop what has that port, or"
            " choose another by [bookie] listen (of fastbk dev: --port-base)",
            retryable=True,
        ) from error
