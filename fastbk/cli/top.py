"""`fastbk top`: a cluster on a terminal, the sickest bookie first."""

from __future__ import annotations

import asyncio
import math
import shutil
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from fastbk.cli.options import add_json, add_metadata, metadata_uri, print_json
from fastbk.errors import ConfigError, StorageError

if TYPE_CHECKING:
    import argparse

    from fastbk.overview.poller import OverviewPoller
    from fastbk.overview.values import ClusterOverview

INTERVAL_MIN_S = 0.5
INTERVAL_MAX_S = 3600.0
CURSORS_DEFAULT = 200
SETTLE_S = 15.0
"""How long `--once` waits for metadata, cursors included."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    from fastbk.overview.tables import ORDERS

    parser.add_argument(
        "--interval", type=float, default=2.0, metavar="SECONDS",
        help=f"between two polls of all bookies (2; at least {INTERVAL_MIN_S:g})",
    )  # fmt: skip
    parser.add_argument(
        "--once", action="store_true", help="print the tables once, as plain text, and end"
    )
    parser.add_argument(
        "--sort", choices=ORDERS, default="sickness", help="order of the bookies (sickness)"
    )
    parser.add_argument(
        "--filter", default="", metavar="TEXT", help="show only rows that contain TEXT"
    )
    parser.add_argument(
        "--cursors", type=int, default=CURSORS_DEFAULT, metavar="N",
        help=f"read how far N cursors are behind ({CURSORS_DEFAULT}); 0: none, and no stream is read",
    )  # fmt: skip
    add_metadata(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Show it. With --once or --json return 1 if a bookie has a problem, else 0."""
    if not INTERVAL_MIN_S <= options.interval <= INTERVAL_MAX_S:
        raise ConfigError(
            f"--interval {options.interval:g}: must be from {INTERVAL_MIN_S:g} to {INTERVAL_MAX_S:g} seconds"
        )
    if options.cursors < 0:
        raise ConfigError(f"--cursors {options.cursors}: must be 0 or more")
    uri = metadata_uri(options)
    if options.once or options.json:
        return asyncio.run(_once(options, uri))
    return asyncio.run(_screen(options, uri))


async def _once(options: argparse.Namespace, uri: str) -> int:
    import fastbk
    from fastbk.model.health import Verdict
    from fastbk.overview.tables import plain_lines

    async with fastbk.connect(uri) as client, _poller(options, client, uri) as poller:
        overview = await _second(poller, options.interval)
    if not overview.bookies:
        reason = (
            "; ".join(overview.errors) or f"{uri} has no bookie: start one, or check --metadata"
        )
        raise StorageError(reason, retryable=bool(overview.errors))
    if options.json:
        reasons = [one.as_json() for one in overview.reasons]
        facts = asdict(overview)
        for fact in facts["bookies"]:
            del fact["facts"]  # `reasons` says what follows from them
        if facts["backup_age_s"] == math.inf:  # JSON has no such number
            facts["backup_age_s"] = None
        print_json(facts | {"verdict": overview.verdict.text, "reasons": reasons})
    else:
        width = shutil.get_terminal_size((120, 24)).columns
        for line in plain_lines(overview, width, options.sort, options.filter):
            print(line)
    return 0 if overview.verdict is Verdict.WELL else 1


async def _second(poller: OverviewPoller, interval_s: float) -> ClusterOverview:
    """Return the second overview: rates are the difference of two."""
    await poller.settled(SETTLE_S)
    await poller.poll()
    await asyncio.sleep(interval_s)
    return await poller.poll()


async def _screen(options: argparse.Namespace, uri: str) -> int:
    import fastbk
    from fastbk.observe import logs

    if not sys.stdout.isatty():
        raise ConfigError("`fastbk top` needs a terminal: use --once or --json")
    try:
        from fastbk.top import TopApp
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"`fastbk top` needs {error.name}: install `fastbk[top]`, or use --once, which needs nothing more"
        ) from error
    # A line of the log would stand across the screen. What it is about is shown: bookies and metadata that are away.
    logs.configure(level="error")
    async with fastbk.connect(uri) as client, _poller(options, client, uri) as poller:
        app = TopApp(
            poller.overviews(options.interval), uri, order=options.sort, text=options.filter
        )
        await app.run_async()
    return int(app.return_code or 0)


def _poller(options: argparse.Namespace, client: object, uri: str) -> OverviewPoller:
    from fastbk.overview.poller import OverviewPoller
    from fastbk.stream.client import Client

    assert isinstance(client, Client)
    return OverviewPoller(client, uri, cursors_max=options.cursors)
