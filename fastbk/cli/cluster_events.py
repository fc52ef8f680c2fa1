"""`fastbk cluster events`: what happened in a cluster between two moments, from all its processes, by time."""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from fastbk.cli.options import metadata_uri, note, opened_store, print_json
from fastbk.errors import ConfigError, Error
from fastbk.exit_codes import DONE, FAILED
from fastbk.observe.events import KINDS, LIMIT_MAX, Query, kinds_of, moments

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from fastbk.admin.cluster_events import ClusterEvents, EventSource
    from fastbk.observe.events import Event

FOLLOW_S = 1.0
WHOLE = ("supervisor", "janitor", "autorecovery")
"""Processes that an event's source names already."""
SINCE_DEFAULT = "-1h"
SOURCES_S = 30.0
"""With --follow: how often metadata is read for bookies that came."""


def add_event_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `fastbk cluster events`."""
    # argparse takes -20m for an option, unless it takes it for a negative number.
    parser._negative_number_matcher = re.compile(r"-\d+(\.\d*|[a-z]+)?")
    text = f"from then on ({SINCE_DEFAULT}): 03:00 (UTC, the last one), 2026-11-28T03:00, -20m, -2h"
    parser.add_argument("--since", default=SINCE_DEFAULT, metavar="TIME", help=text)
    parser.add_argument("--until", default="", metavar="TIME", help="before then; default: now")
    parser.add_argument(
        "--follow", "-f", action="store_true", help="go on with new events until Ctrl-C"
    )
    parser.add_argument(
        "--bookie",
        action="append",
        default=[],
        metavar="ID",
        help="only of this bookie; may be repeated",
    )
    parser.add_argument(
        "--page",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="also of the janitor or healer whose --http this is; https://HOST:PORT with TLS; may be repeated; of a"
        " bookie, too, which helps while metadata is away",
    )
    parser.add_argument(
        "--kind",
        action="append",
        default=[],
        metavar="KIND",
        help=f"only of this kind, or of this name as disk.slow; may be repeated: {', '.join(KINDS)}",
    )
    parser.add_argument(
        "--timeout", type=float, default=5.0, metavar="SECONDS", help="for all answers together (5)"
    )


def events(options: argparse.Namespace) -> int:
    """Print what happened; 1 if not every process answered."""
    if options.follow and options.until:
        raise ConfigError("--follow goes on without an end: leave --until out")
    if not 0 < options.timeout <= 60:
        raise ConfigError(f"--timeout {options.timeout:g}: must be above 0, and 60 seconds at most")
    since, until = moments(options.since, options.until, time.time())
    query = Query(
        since=since, until=until, kinds=kinds_of(",".join(options.kind).split(",")), limit=LIMIT_MAX
    )
    reading = _Reading(options, query)
    found = reading.rest()
    while options.follow:
        try:
            time.sleep(FOLLOW_S)
            reading.rest()
        except KeyboardInterrupt:
            return DONE
    reading.end()
    return FAILED if found.silent or reading.metadata_problem else DONE


class _Reading:
    """Prints events as they are read, and whose could not be read.

    Attributes:
        metadata_problem: why metadata could not be read the last time; "": it could.
    """

    def __init__(self, options: argparse.Namespace, query: Query) -> None:
        self._options = options
        self._query = query
        self._sources: list[EventSource] = []
        self._sources_s = float("-inf")
        self._after: Mapping[str, int] = {}
        self._silent: dict[str, str] = {}
        self._count = self._dropped = 0
        self.metadata_problem = ""

    def rest(self) -> ClusterEvents:
        """Print everything that is there and was not printed yet."""
        from fastbk.admin.cluster_events import read_cluster_events

        if time.monotonic() - self._sources_s > SOURCES_S:
            self._find_sources()
        while True:
            found = read_cluster_events(
                self._sources, self._query, self._after, self._options.timeout
            )
            self._after = found.next
            self._dropped = found.dropped
            self._print(found.events)
            self._note_silent(found.silent)
            if found.is_complete:
                return found

    def end(self) -> None:
        """Print what is missing, to people."""
        if not self._options.json:
            if not self._count:
                note(f"no events since {self._query.since}")
            if self._dropped:
                note(
                    f"{self._dropped} events are missing, as too many came at once (docs/events.md#bounds)"
                )

    def _find_sources(self) -> None:
        """Find the pages by metadata; without it go on with those that are known. Raises Error if there are none."""
        from fastbk.admin.cluster_events import further_pages

        try:
            self._sources = self._sources_of_metadata()
        except ConfigError:
            raise
        except Error as error:
            if not (self._sources or self._options.page):
                note(
                    "without metadata, --page HOST:PORT reads the events of a process whose HTTP page this is"
                )
                raise
            if not self.metadata_problem:
                known = "those known before" if self._sources else "the pages of --page"
                note(f"metadata cannot be read, events are of {known} only: {error}")
            self.metadata_problem = str(error)
            self._sources = self._sources or further_pages(
                self._options.page, self._options.timeout
            )
        else:
            self.metadata_problem = ""
        self._sources_s = time.monotonic()

    def _sources_of_metadata(self) -> list[EventSource]:
        from fastbk.admin.cluster_events import event_pages

        uri = metadata_uri(self._options)
        with opened_store(uri) as store:
            return event_pages(
                store,
                uri,
                bookie_ids=self._options.bookie,
                more=self._options.page,
                timeout_s=self._options.timeout,
            )

    def _print(self, shown: Sequence[Event]) -> None:
        self._count += len(shown)
        if self._options.json:
            for one in shown:
                print_json(msgspec.to_builtins(one))
        else:
            sys.stdout.writelines(f"{line_of(one)}\n" for one in shown)
        sys.stdout.flush()

    def _note_silent(self, silent: Mapping[str, str]) -> None:
        """Say once of each process that it does not answer, and that it does again."""
        for name, reason in silent.items():
            if name not in self._silent:
                note(f"{name} did not answer, its events are missing: {reason}")
        for name in set(self._silent) - set(silent):
            note(f"{name} answers again")
        self._silent = dict(silent)


def line_of(event: Event) -> str:
    """Return an event as a line for people: when (UTC, milliseconds), whose, of what kind, what."""
    moment = event.time[:10] + " " + event.time[11:23]
    where = event.source if event.process in WHOLE else f"{event.source} {event.process}"
    return f"{moment}  {where:<20} {event.kind:<11} {event.text()}"
