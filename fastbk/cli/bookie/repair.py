"""`fastbk bookie repair ID`: makes a running bookie's damaged or lost copies whole again, from the other replicas."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastbk.cli.bookie.recover import (
    add_work,
    ended_text,
    exit_code_of,
    left_text,
    note_rest,
    print_result,
    repair_options,
)
from fastbk.cli.options import metadata_uri, note
from fastbk.cli.progress import ProgressLine, rate_of
from fastbk.units import format_size

if TYPE_CHECKING:
    import argparse

    from fastbk.admin.bookie_repair import RepairProgress
    from fastbk.replication.copy_check import Range


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--quarantined",
        action="store_true",
        help="only what the bookie itself has found damaged; else everything that ledgers say it holds is read",
    )
    which.add_argument(
        "--ledger", type=int, action="append", metavar="N", help="only this ledger; again for more"
    )
    parser.add_argument(
        "--after", type=int, default=-1, metavar="N", help="go on behind this ledger"
    )
    add_work(parser, "read from it, and copied to it,")


def run(options: argparse.Namespace) -> int:
    """Repair; 0 only if everything that was looked at is whole, 75 if the rest is parked."""
    return asyncio.run(_repair(options))


async def _repair(options: argparse.Namespace) -> int:
    import fastbk
    from fastbk.admin.bookie_repair import BookieRepair, RepairPlan

    uri = metadata_uri(options)
    plan = RepairPlan(
        bytes_per_s=rate_of(options.rate),
        ledgers_at_once=options.ledgers_at_once,
        after=options.after,
        ranges=await _ranges(options),
        repair=repair_options(options),
    )
    line = ProgressLine()
    async with fastbk.connect(uri) as client:
        healing = BookieRepair(
            client,
            options.bookie_id,
            plan,
            lambda progress: line.at(lambda: _text(options.bookie_id, progress)),
        )
        if options.dry_run:
            work = await healing.find()
            print_result(options, {"ledgers": len(work), "bytes": sum(size for _, size in work)})
            return 0
        try:
            progress = await healing.run()
        except (KeyboardInterrupt, asyncio.CancelledError):
            line.end()
            through = healing.progress.done_through
            note(f"interrupted: go on with --after {through}")
            raise
        finally:
            line.end()
    _say_done(options, progress)
    return exit_code_of(progress)


async def _ranges(options: argparse.Namespace) -> dict[int, list[Range]] | None:
    """Return what is to be looked at, None: everything."""
    if options.ledger:
        return {ledger_id: [(0, (1 << 63) - 1)] for ledger_id in options.ledger}
    if not options.quarantined:
        return None
    from fastbk.cli.admin_client import find_bookie

    client = find_bookie(metadata_uri(options), options.bookie_id)
    answer = await asyncio.to_thread(client.get, "/scrub")
    found: dict[int, list[Range]] = {}
    for one in answer["quarantined"]:
        found.setdefault(one["ledger_id"], []).append((one["first"], one["last"]))
    if answer["is_cut"]:
        note("it has found more than it lists: repair without --quarantined reads everything")
    return {ledger_id: sorted(ranges) for ledger_id, ranges in found.items()}


def _say_done(options: argparse.Namespace, progress: RepairProgress) -> None:
    if not progress.ledgers:
        note(f"nothing to look at on {options.bookie_id}")
    print_result(
        options,
        {
            "ledgers": progress.ledgers,
            "done": progress.ledgers_done,
            "open": progress.open,
            "entries_checked": progress.entries_checked,
            "entries_copied": progress.entries_copied,
            "bytes_copied": progress.bytes_copied,
            "entries_lost": progress.entries_lost,
            "failed": progress.failed_count,
            "parked": progress.parked_count,
        },
    )
    note_rest(progress, f"is not whole on {options.bookie_id}")


def _text(bookie_id: str, progress: RepairProgress) -> str:
    through = f", through ledger {progress.done_through}" if progress.done_through >= 0 else ""
    return (
        f"repairing {bookie_id}: {ended_text(progress)},"
        f" {progress.entries_copied:,} entries ({format_size(progress.bytes_copied)}) copied{through}"
        f"{left_text(progress)}"
    )
