"""`fastbk cluster rebalance`: copies go to where their ledgers' rules want them, and disks are evened out."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from fastbk import exit_codes
from fastbk.cli.options import (
    add_confirmation,
    exit_without_consent,
    metadata_uri,
    note,
    print_answer,
    some_of,
    table,
)
from fastbk.cli.progress import ProgressLine, rate_and_left, rate_of
from fastbk.cli.terminal import painted
from fastbk.errors import ConfigError, Error
from fastbk.units import format_age_s, format_count, format_size

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator, Iterator

    from fastbk.admin.rebalance import MoveProgress, Outlook, RebalanceOptions
    from fastbk.client import Client
    from fastbk.replication.repair_options import CopyRate

LISTED_MAX = 20
PERCENT_DEFAULT = 5.0


def add_rebalance_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument(
        "--faults-only",
        action="store_true",
        help="only move copies that lie otherwise than their ledger's rule wants it; leave disks uneven",
    )
    parser.add_argument(
        "--empty",
        action="append",
        default=[],
        metavar="ID",
        help="a running bookie that is to hold nothing in the end, as before a decommission; may be repeated",
    )
    parser.add_argument(
        "--within",
        type=float,
        default=PERCENT_DEFAULT,
        metavar="PERCENT",
        help="do nothing for disks that are as even as that: so far from its part no bookie may be (5)",
    )
    parser.add_argument(
        "--rate",
        metavar="SIZE",
        default="0",
        help='bytes a second at most, as in "50MiB"; never more than what AutoRecovery leaves of `heal rate`',
    )
    parser.add_argument(
        "--ledgers-at-once", type=int, default=4, metavar="N", help="1..64 (4); each up to 8 MiB"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="another one draws other copies (0)"
    )
    add_confirmation(parser)


def rebalance(options: argparse.Namespace) -> int:
    """Plan, ask for consent, move; 0: all of it is done, 75: run it again later for the rest."""
    return asyncio.run(_rebalance(options))


def _options(options: argparse.Namespace, rate: CopyRate) -> RebalanceOptions:
    from fastbk.admin.rebalance import RebalanceOptions
    from fastbk.model.ids import BookieId
    from fastbk.replication.repair_options import RepairOptions

    if not 0 < options.within < 100:
        raise ConfigError(f"--within {options.within:g}: must be more than 0 and less than 100")
    if options.faults_only and options.empty:
        raise ConfigError("--faults-only moves nothing else: leave it out with --empty")
    return RebalanceOptions(
        faults_only=options.faults_only,
        leaving=frozenset(map(BookieId, options.empty)),
        tolerance=options.within / 100,
        ledgers_at_once=options.ledgers_at_once,
        seed=options.seed,
        repair=RepairOptions(rate=rate, patience_s=5.0),
    )


async def _rebalance(options: argparse.Namespace) -> int:
    import fastbk
    from fastbk.admin.rebalance import Rebalance
    from fastbk.autorecovery.state import ClusterState
    from fastbk.replication.repair_options import CopyRate

    limit = rate_of(options.rate) or float("inf")
    rate = CopyRate(0.0)
    line = ProgressLine()
    async with fastbk.connect(metadata_uri(options)) as client:
        run = Rebalance(
            client, _options(options, rate), lambda progress: line.at(lambda: _moving(progress))
        )
        outlook = await run.plan()
        cluster_limit = (await ClusterState(client.records).settings.read()).bytes_per_s
        pace = min(limit, cluster_limit or float("inf"))
        facts = _facts(outlook)
        if options.dry_run:
            return print_answer(
                options, {"dry_run": True, **facts}, *_plan_lines(options, outlook, pace)
            )
        if not options.json:
            print_answer(options, facts, *_plan_lines(options, outlook, pace))
        if outlook.moving:
            action = (
                f"move {format_count(outlook.copies, 'copy', 'copies')} of"
                f" {format_count(outlook.moving, 'ledger')}, {format_size(outlook.size_bytes)}"
            )
            if (code := exit_without_consent(options, action, facts)) is not None:
                return code
        try:
            async with _leased(client, rate, limit, run.progress):
                progress = await run.run()
        finally:
            line.end()
    return _print_done(options, outlook, progress)


@contextlib.asynccontextmanager
async def _leased(
    client: Client, rate: CopyRate, limit: float, progress: MoveProgress
) -> AsyncIterator[None]:
    """Use a part of the cluster's copy rate while the block runs, as AutoRecovery's workers do."""
    from fastbk.autorecovery.healer import process_name
    from fastbk.autorecovery.rate_leases import ANNOUNCE_INTERVAL_S
    from fastbk.autorecovery.state import WorkerReport, clock_ms
    from fastbk.autorecovery.worker import LeasedRate
    from fastbk.formats import LEVEL_MAX

    lease = LeasedRate(
        client, f"rebalance-{process_name()}", rate, limit=limit, needs_auditor=False
    )

    def report(counter: int) -> WorkerReport:
        return WorkerReport(
            counter=counter,
            report_ms=clock_ms(),
            active=tuple(sorted(progress.active)),
            bytes_per_s=None if rate.bytes_per_s == float("inf") else rate.bytes_per_s,
            ledgers_repaired=progress.ledgers_done,
            entries_copied=progress.entries_copied,
            bytes_copied=progress.bytes_copied,
            failures=progress.failed_count + progress.parked_count,
            format_level=LEVEL_MAX,
        )

    async def announce() -> None:
        while True:
            # Without an answer of metadata the lease ends by itself.
            with contextlib.suppress(Error):
                await lease.announce(report)
            await asyncio.sleep(ANNOUNCE_INTERVAL_S)

    announcing = asyncio.create_task(announce())
    try:
        yield
    finally:
        announcing.cancel()
        await asyncio.wait([announcing])
        await lease.withdraw()


# --- what is printed ----------------------------------------------------------------------------------------------


def _facts(outlook: Outlook) -> dict[str, object]:
    facts = asdict(outlook)
    facts["flows"] = [
        {"from": source, "to": target, "copies": flow.copies, "bytes": flow.size_bytes}
        for (source, target), flow in sorted(outlook.flows.items())
    ]
    facts["bookies"] = [
        {"bookie_id": bookie_id, "before": held, "after": outlook.after.get(bookie_id, 0)}
        for bookie_id, held in sorted(outlook.before.items())
    ]
    facts["bytes"] = facts.pop("size_bytes")
    del facts["before"], facts["after"]
    return facts


def _kept(options: argparse.Namespace, outlook: Outlook) -> list[str]:
    """Return which of the bookies that are to be emptied hold copies in the end: rules leave these no other place."""
    return [bookie_id for bookie_id in options.empty if outlook.after.get(bookie_id, 0)]


def _plan_lines(options: argparse.Namespace, outlook: Outlook, pace: float) -> Iterator[str]:
    """Say what would move, how long that takes, and from where to where."""
    for bookie_id in _kept(options, outlook):
        size = format_size(outlook.after[bookie_id])
        yield (
            f"{painted('problem')}: {bookie_id} cannot be emptied: for {size} of copies no other bookie keeps the rules"
            " of their ledgers"
        )
    yield f"{format_count(outlook.ledgers, 'closed ledger')} read" + (
        f"; {format_count(outlook.open, 'open ledger')} left as they are" if outlook.open else ""
    )
    if outlook.mended:
        yield f"{format_count(outlook.mended, 'fragment')} will lie as their rules want them"
    if outlook.unmended:
        yield (
            f"{painted('problem')}: {format_count(outlook.unmended, 'fragment')} lie otherwise than wanted, and no move"
            " of copies between these bookies mends that: `fastbk cluster placement check` lists them"
        )
    if not outlook.moving:
        yield "nothing is to be moved"
        return
    yield (
        f"{format_count(outlook.copies, 'copy', 'copies')} of {format_count(outlook.moving, 'ledger')} move:"
        f" {format_size(outlook.size_bytes)}"
        + (
            f"; even disks take {format_size(outlook.least_bytes)} at least"
            if outlook.least_bytes
            else ""
        )
    )
    if pace != float("inf"):
        yield f"about {format_age_s(outlook.size_bytes / pace)} at {format_size(int(pace))} a second"
    rows = [("bookie", "holds", "then")]
    rows += [
        (bookie_id, format_size(held), format_size(outlook.after.get(bookie_id, 0)))
        for bookie_id, held in sorted(outlook.before.items())
    ]
    yield from some_of(table(rows, "<>>"), 1 + LISTED_MAX)
    flows = [("from", "to", "copies", "size")]
    largest = sorted(outlook.flows.items(), key=lambda each: -each[1].size_bytes)
    flows += [
        (source, target, f"{flow.copies:,}", format_size(flow.size_bytes))
        for (source, target), flow in largest
    ]
    yield from some_of(table(flows, "<<>>"), 1 + LISTED_MAX)


def _moving(progress: MoveProgress) -> str:
    spent_s = time.monotonic() - progress.began_s
    pace = rate_and_left(progress.bytes_read, progress.size_bytes, spent_s)
    given_up = progress.parked_count + progress.failed_count
    return (
        f"rebalancing: {progress.ended:,} of {format_count(progress.ledgers, 'ledger')}"
        f"{f' ({given_up:,} given up)' if given_up else ''},"
        f" {format_size(progress.bytes_copied)} copied, {pace}"
    )


def _print_done(options: argparse.Namespace, outlook: Outlook, progress: MoveProgress) -> int:
    answer = {
        "ledgers": outlook.moving,
        "done": progress.ledgers_done,
        "entries_copied": progress.entries_copied,
        "bytes_copied": progress.bytes_copied,
        "entries_lost": progress.entries_lost,
        "failed": progress.failed_count,
        "parked": progress.parked_count,
        "mended": outlook.mended,
        "unmended": outlook.unmended,
    }
    text = (
        f"{format_count(progress.ledgers_done, 'ledger')} moved, {format_size(progress.bytes_copied)} copied;"
        f" {progress.parked_count + progress.failed_count} given up"
    )
    print_answer(options, answer, text)
    for listed in (progress.failed, progress.parked):
        for ledger_id, reason in list(listed.items())[:LISTED_MAX]:
            note(f"ledger {ledger_id} was not moved: {reason}")
    if progress.parked_count or progress.failed_count:
        note("what was not moved lies as it did: run this again")
    if kept := _kept(options, outlook):
        note(
            f"not emptied: {', '.join(kept)}; bookies in other racks could take what is left there"
        )
    if progress.failed_count or outlook.unmended or kept:
        return exit_codes.FAILED
    return exit_codes.UNREACHABLE if progress.parked_count else exit_codes.DONE
