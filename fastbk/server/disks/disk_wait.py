"""Stands before every boot but the first: waits for disks that must be there, and says when one came back.

Deaths that a disk explains are not counted: a crash loop ends for good, a disk's trouble when the disk is well again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from typing import TYPE_CHECKING

from fastbk.observe import logs
from fastbk.server.disks.boot_check import boot_problems, lacks_room

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastbk.server.disks.boot_check import Problem, UsedDirectory
    from fastbk.server.disks.disk_watch import DiskReport

WELL_S = 0.5
"""A boot that follows so soon upon a look at well disks needs no other: a look costs a few syncs."""
WAIT_NAME = "disks"
"""Under which the reason of a wait is noted against readiness."""


class DiskWait:
    """Looks into the directories when there is reason to; in a thread, since a sick disk may make it wait."""

    def __init__(
        self,
        directories: Sequence[UsedDirectory],
        *,
        poll_s: float,
        reserve_bytes: int,
        note: Callable[[str, str | None], None],
        tell: Callable[[DiskReport], None],
    ) -> None:
        """Begin with a good opinion.

        Args:
            poll_s: between two looks while something is wrong.
            reserve_bytes: what replay may have to flush into a ledger directory.
            note: keeps a reason against readiness under a name, or takes it back.
            tell: shows how a directory is.
        """
        self.reads_only = ""
        """Why the next boot is to be one without a journal; empty: it is not."""
        self._directories = directories
        self._poll_s = poll_s
        self._reserve_bytes = reserve_bytes
        self._note = note
        self._tell = tell
        self._was_well_s = -math.inf

    async def wait(self, stop: asyncio.Event) -> None:
        """Return when a boot may begin, or `stop` is set; sets `reads_only`."""
        told = ""
        self.reads_only = ""
        was_well = time.monotonic() - self._was_well_s < WELL_S
        while not stop.is_set():
            problems = () if was_well else await self._problems()
            reason = _said([each for each in problems if each.is_fatal])
            if not reason:
                self.reads_only = _said(problems)
                break
            if reason != told:
                told = reason
                logs.error("bookie.waits_for_disk", reason=told)
                self._note(WAIT_NAME, "not started before its disks are there")
            await self._pause(stop)
        if told and not stop.is_set():
            logs.info("bookie.disk_is_back", reason=told)
        self._note(WAIT_NAME, None)
        if self.reads_only:
            logs.error("bookie.reads_only_for_disk", reason=self.reads_only)

    async def explains(self, role: str, *, was_serving: bool) -> bool:
        """Return whether a disk is why a child of `role` died: then it is not counted, and a pause is due."""
        problems = await self._problems()
        self._was_well_s = -math.inf if problems else time.monotonic()
        if any(each.is_fatal or role == each.directory.role for each in problems):
            return True
        if role != "index" or was_serving:
            return False
        return await asyncio.to_thread(lacks_room, self._directories, self._reserve_bytes)

    async def until_journal_is_back(self) -> None:
        """Return when every directory can be written again."""
        while True:
            if not await self._problems():
                break
            await asyncio.sleep(self._poll_s)
        logs.info("bookie.disk_is_back", reason=self.reads_only)

    @property
    def pause_s(self) -> float:
        """How long to wait after a death that a disk explains."""
        return self._poll_s

    async def _problems(self) -> tuple[Problem, ...]:
        problems = await asyncio.to_thread(boot_problems, self._directories)
        for each in problems:
            self._tell(each.report())
        return problems

    async def _pause(self, stop: asyncio.Event) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._poll_s):
                await stop.wait()


def _said(problems: Sequence[Problem]) -> str:
    return "; ".join(map(str, problems))
