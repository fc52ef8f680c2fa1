"""`--events FILE`: where a janitor or a healer records its events, and the page that answers them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.cli.options import own_certificate_lines
from fastbk.observe.event_log import EventLog
from fastbk.observe.prometheus import OwnUsage

if TYPE_CHECKING:
    import argparse

STATE = "STATE_DIRECTORY"
"""systemd sets it to the folders that a unit's StateDirectory names."""


def add_events(parser: argparse.ArgumentParser, role: str) -> None:
    """Declare where the events of a process of `role` are recorded."""
    parser.add_argument(
        "--events",
        type=Path,
        metavar="FILE.jsonl",
        help="where events are recorded, in FILE.jsonl, FILE.1.jsonl and so on; default: as a systemd service"
        f" {role}-events.jsonl in its state directory, else only in memory",
    )


@contextmanager
def recorded_events(options: argparse.Namespace, role: str) -> Iterator[EventLog]:
    """Record what this process logs while the block runs. Set the log's `source` once its name is known."""
    log = EventLog(role, role)
    log.begin()
    try:
        log.open(events_file(options.events, role))
        yield log
    finally:
        log.close()


def process_lines(events: EventLog, role: str) -> Callable[[], list[str]]:
    """Return what makes the lines of `/metrics` about this process: its certificates, events, memory and time."""
    certificates, usage = own_certificate_lines(), OwnUsage(role)
    return lambda: [*certificates(), *events.metric_lines(), *usage.metric_lines()]


def events_file(given: Path | None, role: str) -> Path | None:
    """Return where a process records its events; None: only in memory."""
    folder = os.environ.get(STATE, "").partition(":")[0]
    if given is not None:
        return given.absolute()
    return Path(folder) / f"{role}-events.jsonl" if folder else None
