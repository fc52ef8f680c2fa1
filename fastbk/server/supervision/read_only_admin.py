"""What operators ask of a bookie's adds: none any more, or all again. Recovery adds, fences and reads always go on.

The journals refuse; registration and state follow what they say, as they do where a disk is full. What was asked for
stays so over a child's death and the boot that follows, and over a restart where `[bookie] read_only_persists` says so.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from fastbk.errors import ConfigError
from fastbk.native.disk import Disk
from fastbk.observe import logs
from fastbk.storage import small_files

if TYPE_CHECKING:
    from fastbk.server.admin.metrics import Metrics
    from fastbk.server.configuration.bookie_config import BookieConfig
    from fastbk.server.supervision.spawn import Boot

ASKED = "an operator asked for no adds"
FORCED = "[bookie] read_only is set"
ASKED_WAIT_S = 5.0
ASKED_POLL_S = 0.01


class ReadOnlyAdmin:
    """One bookie's, over all its boots."""

    def __init__(self, config: BookieConfig) -> None:
        self.is_forced = config.bookie.read_only
        self._persists = config.bookie.read_only_persists
        self._directory = config.ledgers.all_directories[0]
        self._is_asked = False
        self._boot: Boot | None = None
        self._turn = asyncio.Lock()

    @property
    def reason(self) -> str:
        """Why there are to be no adds; empty: there may be."""
        if self.is_forced:
            return FORCED
        return ASKED if self._is_asked else ""

    def load(self) -> None:
        """Take up what was asked before the last restart. With the directory locked. Raises StorageError, OSError."""
        if not self._persists:
            return
        with Disk(self._directory, "plain", only_reads=True) as disk:
            self._is_asked = small_files.is_read_only_requested(disk, self._directory)

    def attach(self, boot: Boot) -> None:
        """Speak to the journals of a boot whose journals are ready."""
        self._boot = boot
        self._order()

    def detach(self) -> None:
        """The boot is over."""
        self._boot = None

    async def request(self, metrics: Metrics, *, read_only: bool) -> None:
        """Have the journals refuse normal adds, or take them again; returns once they do, or after ASKED_WAIT_S.

        What a full disk refuses stays refused. Raises ConfigError, OSError.
        """
        if self.is_forced and not read_only:
            raise ConfigError(f"{FORCED}: change that, and restart the bookie")
        # Who asked may be gone before the disk is done: what is written down happens all the same.
        await asyncio.shield(asyncio.create_task(self._change(read_only)))
        deadline_s = time.monotonic() + ASKED_WAIT_S
        while time.monotonic() < deadline_s and self._boot is not None:
            journals = sum(process.role == "journal" for process in self._boot.children)
            if metrics.journals_refusing() == (journals if read_only else 0):
                return
            await asyncio.sleep(ASKED_POLL_S)

    async def _change(self, read_only: bool) -> None:
        """Write it down and have it done; one at a time, in the order in which they were asked."""
        async with self._turn:
            if self._persists:
                await asyncio.to_thread(self._write, read_only)
            self._is_asked = read_only
            logs.warning("bookie.read_only_asked", read_only=read_only, persists=self._persists)
            self._order()

    def _write(self, read_only: bool) -> None:
        with Disk(self._directory, "plain") as disk:
            small_files.write_read_only_request(disk, self._directory, is_read_only=read_only)

    def _order(self) -> None:
        if self._boot is None:
            return
        for process, child in self._boot.children.items():
            if process.role == "journal":
                child.send({"type": "refuse_adds", "on": bool(self.reason)})
                self._boot.ring(process)
