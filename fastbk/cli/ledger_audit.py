"""`fastbk ledger audit`: every copy of every entry, read and compared."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from fastbk.cli.options import print_json
from fastbk.cli.progress import ProgressLine, rate_of
from fastbk.errors import ConfigError
from fastbk.units import format_count, format_size

if TYPE_CHECKING:
    import argparse

    from fastbk.admin.copy_audit import Audited
    from fastbk.client import Client

UNITS_AT_ONCE_MAX = 64
LISTED_MAX = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("ledger_id", type=int, nargs="*", metavar="ID", help="default: all ledgers")
    parser.add_argument(
        "--rate",
        metavar="SIZE",
        default="0",
        help='bytes a second that are read from each bookie at most, as in "50MiB" (no limit)',
    )
    parser.add_argument(
        "--at-once",
        type=int,
        default=4,
        metavar="N",
        help=f"1..{UNITS_AT_ONCE_MAX} (4) parts of up to 64 MiB that are read at once",
    )


async def run(client: Client, options: argparse.Namespace) -> int:
    """Audit; 0 only if every copy that was looked for is there, good, and like the others."""
    from fastbk.admin.copy_audit import audit_all
    from fastbk.replication.repair_options import RepairOptions

    if not 1 <= options.at_once <= UNITS_AT_ONCE_MAX:
        raise ConfigError(f"--at-once {options.at_once}: must be 1..{UNITS_AT_ONCE_MAX}")
    began_s = time.monotonic()
    line = ProgressLine()
    try:
        audited = await audit_all(
            client,
            options.ledger_id or None,
            RepairOptions().limited(rate_of(options.rate) / options.at_once),
            units_at_once=options.at_once,
            on_progress=lambda so_far: line.at(lambda: progress_of(so_far)),
        )
    finally:
        line.end()
    print_audited(audited, time.monotonic() - began_s, as_json=options.json)
    return 0 if audited.is_whole else 1


def progress_of(audited: Audited) -> str:
    """Return a line that says how far it is."""
    size_bytes = sum(bookie.size_bytes for bookie in audited.bookies.values())
    return (
        f"auditing: {format_count(audited.ledgers, 'ledger')}, {audited.entries:,} entries,"
        f" {format_size(size_bytes)} read, {format_count(audited.finding_count, 'finding')}"
    )


def print_audited(audited: Audited, took_s: float, *, as_json: bool) -> None:
    """Print what was found."""
    if as_json:
        print_json({**asdict(audited), "is_whole": audited.is_whole})
        return
    for finding in audited.findings[:LISTED_MAX]:
        print(finding)
    if audited.finding_count > LISTED_MAX:
        print(f"... and {audited.finding_count - LISTED_MAX:,} more (--json lists 1,000)")
    if audited.bookies:
        width = max(len("BOOKIE"), *map(len, audited.bookies))
        print(
            f"{'BOOKIE':<{width}}  {'COPIES':>12}  {'GOOD':>12}  {'BAD':>8}  {'UNASKED':>8}  SIZE"
        )
        for bookie_id, one in sorted(audited.bookies.items()):
            size = format_size(one.size_bytes)
            print(
                f"{bookie_id:<{width}}  {one.due:>12,}  {one.good:>12,}  {one.bad:>8,}  {one.unasked:>8,}  {size}"
            )
    of_these = [
        f"{count:,} {what}"
        for what, count in (
            ("still open: what is being written was not looked at", audited.open),
            ("deleted meanwhile", audited.deleted),
        )
        if count
    ]
    print(
        f"{format_count(audited.ledgers, 'ledger')}{' (' + '; '.join(of_these) + ')' if of_these else ''},"
        f" {audited.entries:,} entries, {audited.lost:,} lost, {audited.differing:,} with copies that differ;"
        f" {took_s:,.1f} s"
    )
