"""What the supervisor shows of all disks: the newest report of each directory, for people, probes and dashboards."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from fastbk.observe.prometheus import family
from fastbk.server.disks.disk_watch import DiskReport
from fastbk.storage.disk_health import DiskState, Takes

if TYPE_CHECKING:
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
