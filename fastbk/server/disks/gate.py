"""Stands before every boot but the first: waits for disks that must be there, and says when one came back.

Deaths that a disk explains are not counted: a crash loop ends for good, a disk's trouble when the disk is well again.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from fastbk.observe import logs
from fastbk.server.disks.boot_check import BootVerdict, judge_boot, lacks_room

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastbk.server.disks.boot_check import UsedDirectory

WAIT_NAME = "disks"
"""Under which the reason of a wait is noted against readiness."""


class DiskGate:
    """Looks into the directories when there is reason to; in a thread, since a sick disk may make it wait."""

    def __init__(
        self,
        directories: Sequence[UsedDirectory],
        *,
        poll_s: float,
        reserve_bytes: int,
        note: Callable[[str, str | None], None],
    ) -> None:
        """Begin with a good opinion.

        Args:
            poll_s: between two looks while something is wrong.
            reserve_bytes: what replay may have to flush into a ledger directory.
            note: keeps a reason against readiness under a name, or takes it back.
        """
        self.reads_only = ""
        """Why the next boot is to be one without a journal; empty: it is not."""
        self._directories = directories
        self._poll_s = poll_s
        self._reserve_bytes = reserve_bytes
        self._note = note

    async def wait(self, stop: asyncio.Event) -> None:
        """Return when a boot may begin, or `stop` is set; sets `reads_only`."""
        told = ""
        self.reads_only = ""
        while not stop.is_set():
            verdict = await self._judge()
            if not verdict.wait:
                self.reads_only = verdict.reads_only
                break
            if verdict.wait != told:
                told = verdict.wait
                logs.error("bookie.waits_for_disk", reason=told)
                self._note(WAIT_NAME, f"not started before its disks are there: {told}")
            await self._pause(stop)
        if told:
            self._note(WAIT_NAME, None)
            logs.info("bookie.disk_is_back", reason=told)
        if self.reads_only:
            logs.error("bookie.reads_only_for_disk", reason=self.reads_only)

    async def explains(self, role: str, *, was_serving: bool) -> bool:
        """Return whether a disk is why a child of `role` died: then it is not counted, and a pause is due."""
        verdict = await self._judge()
        if verdict.wait or (verdict.reads_only and role == "journal"):
            return True
        if role != "index" or was_serving:
            return False
        return await asyncio.to_thread(lacks_room, self._directories, self._reserve_bytes)

    async def until_journal_is_back(self) -> None:
        """Return when every directory can be written again."""
        while True:
            if await self._judge() == BootVerdict():
                break
            await asyncio.sleep(self._poll_s)
        logs.info("bookie.disk_is_back", reason=self.reads_only)

    @property
    def pause_s(self) -> float:
        """How long to wait after a death that a disk explains."""
        return self._poll_s

    async def _judge(self) -> BootVerdict:
        return await asyncio.to_thread(judge_boot, self._directories)

    async def _pause(self, stop: asyncio.Event) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._poll_s):
                await stop.wait()
