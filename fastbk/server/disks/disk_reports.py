"""What the supervisor shows of all disks: the newest report of each directory, for people, probes and dashboards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from fastbk.server.disks.disk_watch import DiskReport
from fastbk.storage.disk_health import DiskState, Takes

if TYPE_CHECKING:
    from fastbk.server.supervision.lifecycle import Lifecycle

_ALL = Takes.ALL.name.lower()

_METRICS = (
    ("state", "gauge", "0 ok, 1 warn, 2 full, 3 exhausted, 4 failed, 5 read-only, 6 gone."),
    ("slow", "gauge", "1 while commits or flushes take longer than they should."),
    ("refuses", "gauge", "What is refused for this disk: 0 nothing, 1 normal adds, 2 all that would be written."),
    ("used_ratio", "gauge", "Share of the file system that is used, of what an ordinary user may use."),
    ("free_bytes", "gauge", "Bytes that may still be written, less what is set aside for the bookie's own journal."),
    ("errors_total", "counter", "Flushes that failed in all their attempts since the processes started."),
)  # fmt: skip


class DiskReports:
    """The newest report of each directory."""

    def __init__(self, life: Lifecycle) -> None:
        """`life` gets a reason against readiness for each disk that does not take everything."""
        self._life = life
        self._reports: dict[tuple[str, int], DiskReport] = {}

    def told(self, message: dict[str, Any]) -> None:
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
        reports = self.reports()
        for name, kind, text in _METRICS if reports else ():
            metric = f"fastbk_disk_{name}"
            lines += [f"# HELP {metric} {text}", f"# TYPE {metric} {kind}"]
            for report in reports:
                labels = f'{{role="{report.role}",pair="{report.pair}"}}'
                lines.append(f"{metric}{labels} {_value(report, name)}")
        return lines


def _sentence(report: DiskReport) -> str:
    return f"{report.role} directory {report.directory}: {report.reason or report.state}"


def _value(report: DiskReport, name: str) -> float:
    values: dict[str, float] = {
        "state": DiskState(report.state).severity,
        "slow": int(bool(report.slow)),
        "refuses": Takes[report.takes.upper()],
        "used_ratio": report.used_ratio,
        "free_bytes": report.free_bytes,
        "errors_total": report.errors,
    }
    return values[name]
