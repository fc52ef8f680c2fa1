"""The disks of a bookie as its supervisor sees them: what its children report, and waits for disks that are away."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from fastbk.observe import logs
from fastbk.observe.prometheus import family
from fastbk.safe_files import FILE_MODE
from fastbk.server.disks.disk_watch import DirectoryProbe, DiskReport
from fastbk.storage.disk_health import DiskState, Takes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastbk.server.supervision.lifecycle import Lifecycle


_ALL = Takes.ALL.name.lower()

_METRICS: tuple[tuple[str, str, str, Callable[[DiskReport], float]], ...] = (
    ("state", "gauge", "0 ok, 1 warn, 2 full, 3 exhausted, 4 failed, 5 read-only, 6 gone.",
     lambda report: DiskState(report.state).severity),
    ("slow", "gauge", "1 while commits or flushes take longer than they should.",
     lambda report: int(bool(report.slow))),
    ("refuses", "gauge", "What is refused for this disk: 0 nothing, 1 normal adds, 2 all that would be written.",
     lambda report: int(Takes[report.takes.upper()])),
    ("used_ratio", "gauge", "Share of the file system that is used, of what an ordinary user may use.",
     lambda report: report.used_ratio),
    ("free_bytes", "gauge", "Bytes that may still be written, less what is set aside for the bookie's own journal.",
     lambda report: report.free_bytes),
    ("errors_total", "counter", "Flushes that failed in all their attempts since the processes started.",
     lambda report: report.errors),
)  # fmt: skip


class DiskReports:
    """The newest report of each directory."""

    def __init__(self, life: Lifecycle) -> None:
        """`life` gets a reason against readiness for each disk that does not take everything."""
        self._life = life
        self._reports: dict[tuple[str, int], DiskReport] = {}

    def take_message(self, message: dict[str, Any]) -> None:
        """Take a child's `disk` message in."""
        self.put(msgspec.convert(message, DiskReport))

    def put(self, report: DiskReport) -> None:
        """Take a report in."""
        self._reports[report.role, report.pair] = report
        refuses = report.takes != _ALL
        self._life.note(f"disk.{report.role}.{report.pair}", _sentence(report) if refuses else None)

    def reports(self) -> list[DiskReport]:
        """Return the newest report of each directory, by role and pair."""
        return [report for _, report in sorted(self._reports.items())]

    def refusing(self) -> str:
        """Return why writes are refused because of disks; empty: they are not."""
        return "; ".join(_sentence(each) for each in self.reports() if each.takes != _ALL)

    def shown(self) -> list[dict[str, Any]]:
        """Return all reports for JSON."""
        found: list[dict[str, Any]] = [msgspec.to_builtins(report) for report in self.reports()]
        for each in found:
            del each["type"]
        return found

    async def answer(self, _: dict[str, Any]) -> object:
        """Answer /disks."""
        return {"disks": self.shown()}

    def metric_lines(self) -> list[str]:
        """Return the metrics of all directories in Prometheus' text format."""
        lines = []
        reports = [(f'role="{one.role}",pair="{one.pair}"', one) for one in self.reports()]
        for name, kind, text, value_of in _METRICS if reports else ():
            series = [(labels, value_of(report)) for labels, report in reports]
            lines += family(f"fastbk_disk_{name}", kind, text, series)
        return lines


def _sentence(report: DiskReport) -> str:
    return f"{report.role} directory {report.directory}: {report.reason or report.state}"


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
        self.no_journal_reason = ""
        """Why the next boot is to be one without a journal; empty: it is not."""
        self._directories = directories
        self._poll_s = poll_s
        self._reserve_bytes = reserve_bytes
        self._note = note
        self._tell = tell
        self._was_well_s = -math.inf

    async def wait(self, stop: asyncio.Event) -> None:
        """Return when a boot may begin, or `stop` is set; sets `no_journal_reason`."""
        told = ""
        self.no_journal_reason = ""
        was_well = time.monotonic() - self._was_well_s < WELL_S
        while not stop.is_set():
            problems = () if was_well else await self._problems()
            reason = _said([each for each in problems if each.is_fatal])
            if not reason:
                self.no_journal_reason = _said(problems)
                break
            if reason != told:
                told = reason
                logs.error("bookie.waits_for_disk", reason=told)
                self._note(WAIT_NAME, "not started before its disks are there")
            await self._pause(stop)
        if told and not stop.is_set():
            logs.info("bookie.disk_is_back", reason=told)
        self._note(WAIT_NAME, None)
        if self.no_journal_reason:
            logs.error("bookie.reads_only_for_disk", reason=self.no_journal_reason)

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
        logs.info("bookie.disk_is_back", reason=self.no_journal_reason)

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


PROBE_NAME = "probe"
PROBE_BYTES = 4096
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


class UsedDirectory(msgspec.Struct, frozen=True):
    """A directory of the bookie: `role` is `journal` or `ledger`, `lock` the descriptor of its lock."""

    role: str
    pair: int
    path: str
    lock: int


class Problem(msgspec.Struct, frozen=True):
    """Why a directory can't be used now."""

    directory: UsedDirectory
    state: DiskState
    reason: str

    @property
    def is_fatal(self) -> bool:
        """Whether no boot can succeed: replay has to flush before anything can be read; the journal only has to be
        there for that.
        """
        return self.directory.role != "journal" or self.state is DiskState.GONE

    def report(self) -> DiskReport:
        """Return it as a process that uses the directory would tell it."""
        look = DirectoryProbe(self.directory.path, self.directory.lock).measure()
        return DiskReport(
            role=self.directory.role,
            pair=self.directory.pair,
            directory=self.directory.path,
            state=self.state.value,
            takes=Takes.NOTHING.name.lower(),
            reason=self.reason,
            slow="",
            errors=0,
            free_bytes=max(0, look.free_bytes),
            used_bytes=look.used_bytes,
            used_ratio=round(look.used_ratio, 4),
            state_since_s=round(time.time(), 1),
            looked_s=round(time.time(), 1),
        )

    def __str__(self) -> str:
        return f"{self.directory.role} directory {self.directory.path}: {self.reason}"


def boot_problems(directories: Sequence[UsedDirectory]) -> tuple[Problem, ...]:
    """DirectorySample into all directories, with a small write and sync in each. Blocks; raises nothing."""
    found = []
    for each in directories:
        gone = DirectoryProbe(each.path, each.lock).why_gone()
        if gone:
            found.append(Problem(each, DiskState.GONE, f"the directory is gone: {gone}"))
        elif problem := why_not_writable(each.path):
            found.append(Problem(each, DiskState.FAILED, f"it cannot be written: {problem}"))
    return tuple(found)


def why_not_writable(directory: str) -> str:
    """Return why a small file can't be written and synced; empty: it can, or there is just no room for it."""
    path = os.path.join(directory, PROBE_NAME)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # of a check that was killed
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            os.write(descriptor, b"\0" * PROBE_BYTES)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        return "" if error.errno in NO_ROOM else error.strerror or str(error)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
    return ""


def lacks_room(directories: Sequence[UsedDirectory], reserve_bytes: int) -> bool:
    """Return whether a ledger directory has less free than `reserve_bytes`, which replay may have to flush."""
    for each in directories:
        if each.role == "ledger":
            look = DirectoryProbe(each.path, each.lock).measure()
            if not look.gone and look.free_bytes < reserve_bytes:
                return True
    return False
