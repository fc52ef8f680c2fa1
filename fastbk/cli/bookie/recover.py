"""`fastbk bookie recover ID`, `decommission ID` and `repair ID`: copies made again from the other replicas.

The first two empty a bookie that is lost or to go; the third makes a running one's damaged or lost copies whole again.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from fastbk import exit_codes
from fastbk.cli.options import (
    add_json,
    add_metadata,
    exit_without_consent,
    metadata_uri,
    note,
    print_answer,
)
from fastbk.cli.progress import ProgressLine, rate_of
from fastbk.errors import ConfigError
from fastbk.units import format_count, format_names, format_size

if TYPE_CHECKING:
    import argparse

    from fastbk.admin.healing import Progress, RecoveryPlan, RepairProgress
    from fastbk.replication.copy_check import Range
    from fastbk.replication.repair_options import RepairOptions

LISTED_MAX = 20


def add_recover(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `recover`."""
    parser.add_argument(
        "--even-if-alive", action="store_true", help="empty a bookie that is running"
    )
    _add_shared(parser)


def add_decommission(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `decommission`."""
    _add_shared(parser)
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask for confirmation")


def _add_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--open-ledgers",
        choices=("close", "skip"),
        default="close",
        help="ledgers still being written to it: fence and close them after --grace (close), or leave them",
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="how long their writers may take to replace the bookie themselves (20; longer than replace_after)",
    )
    parser.add_argument(
        "bookie_ids",
        metavar="ID",
        nargs="+",
        help="the bookie's id, as ledgers name it; several are emptied together: none of them gets copies",
    )
    _add_work(parser, "copied")


def _add_work(parser: argparse.ArgumentParser, what: str) -> None:
    """Declare within which bounds is worked. `what`: is done with limited bytes."""
    text = f'bytes a second that are {what} at most, as in "50MiB" (no limit)'
    parser.add_argument("--rate", metavar="SIZE", default="0", help=text)
    parser.add_argument(
        "--ledgers-at-once", type=int, default=4, metavar="N", help="1..64 (4); each up to 8 MiB"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="how long to wait for bookies that do not answer, or for a lock, before a ledger is parked (20)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only say how many ledgers and bytes there are to do"
    )
    add_metadata(parser)
    add_json(parser)


def _repair_options(options: argparse.Namespace) -> RepairOptions:
    """Return the bounds that the options set. Raises ConfigError."""
    from fastbk.replication.repair_options import RepairOptions

    if options.patience < 0:
        raise ConfigError(f"--patience {options.patience:g}: must not be negative")
    return RepairOptions(patience_s=options.patience)


def recover(options: argparse.Namespace) -> int:
    """Re-replicate what the bookie held; 0 only if no ledger names it any more, 75 if the rest is parked."""
    return asyncio.run(_recover(options, forget=False))


def decommission(options: argparse.Namespace) -> int:
    """The same, then take the bookie's identity out of the metadata, so that the id is free."""
    ids = options.bookie_ids
    one, its = ("bookie", "its id") if len(ids) == 1 else ("bookies", "their ids")
    held = "holds" if len(ids) == 1 else "hold"
    action = f"copy all that {one} {format_names(ids)} {held} to other bookies, and free {its}"
    if not options.dry_run and (code := exit_without_consent(options, action)) is not None:
        return code
    return asyncio.run(_recover(options, forget=True))


def _plan(options: argparse.Namespace) -> RecoveryPlan:
    from fastbk.admin.healing import RecoveryPlan

    return RecoveryPlan(
        bytes_per_s=rate_of(options.rate),
        ledgers_at_once=options.ledgers_at_once,
        open_ledgers=options.open_ledgers,
        grace_s=options.grace,
        even_if_alive=getattr(options, "even_if_alive", False),
        repair=_repair_options(options),
    )


async def _recover(options: argparse.Namespace, *, forget: bool) -> int:
    import fastbk
    from fastbk.admin.bookie_identity import check_known, free_id
    from fastbk.admin.healing import BookieRecovery
    from fastbk.cli.bookie.running import end_with_bookie

    uri, ids = metadata_uri(options), list(dict.fromkeys(options.bookie_ids))
    names = format_names(ids)
    line = ProgressLine()
    async with fastbk.connect(uri) as client:
        if forget and not options.dry_run:
            # Ledgers that restored metadata does not list may have copies there only.
            await client.records.check_not_held()
        run = BookieRecovery(
            client,
            ids,
            _plan(options),
            lambda progress: line.at(lambda: _recovering(names, progress)),
        )
        if options.dry_run:
            await run.check_gone()
            work = await run.find()
            if not work and not forget:
                for bookie_id in ids:
                    await asyncio.to_thread(check_known, uri, bookie_id)
            _print_result(options, {"ledgers": len(work), "bytes": sum(size for _, size in work)})
            return 0
        try:
            progress = await run.run()
        finally:
            line.end()
        is_named = bool(await run.find()) if progress.is_whole else True
    if not progress.ledgers:
        if not forget:
            for bookie_id in ids:
                await asyncio.to_thread(check_known, uri, bookie_id)
        note(f"no ledger names {names}")
    if is_named and progress.is_whole:
        note("ledgers were created on it meanwhile: run this again")
    answer: dict[str, int] = {
        "ledgers": progress.ledgers,
        "done": progress.ledgers_done,
        "entries_copied": progress.entries_copied,
        "bytes_copied": progress.bytes_copied,
        "entries_lost": progress.entries_lost,
        "failed": progress.failed_count,
        "parked": progress.parked_count,
    }
    if forget:
        if not is_named:
            for bookie_id in ids:
                others = await asyncio.to_thread(free_id, uri, bookie_id)
                await end_with_bookie(uri, bookie_id)
                if others is not None:
                    note(
                        f"the metadata knows no {bookie_id} (any more): was that its id?"
                        f" There are {format_names(others)}"
                    )
        answer["decommissioned"] = not is_named
    _print_result(options, answer)
    _note_rest(progress, f"still names {names}")
    return _exit_code_of(progress) or int(is_named)


def _note_rest(progress: Progress, what: str) -> None:
    for listed, count, said in (
        (progress.failed, progress.failed_count, what),
        (progress.parked, progress.parked_count, f"{what}; parked"),
    ):
        for ledger_id, reason in list(listed.items())[:LISTED_MAX]:
            note(f"ledger {ledger_id} {said}: {reason}")
        if count > LISTED_MAX:
            note(f"... and {count - LISTED_MAX} more")
    if progress.parked_count:
        many = format_count(progress.parked_count, "ledger")
        note(
            f"{many} parked: start the bookies that do not answer, wait for who holds a lock, then run this again"
        )


def _exit_code_of(progress: Progress) -> int:
    """Return 0 if all was done, 75 if what is left is parked, 1 if a ledger failed."""
    if progress.is_whole:
        return 0
    return exit_codes.FAILED if progress.failed_count else exit_codes.UNREACHABLE


def _print_result(options: argparse.Namespace, answer: dict[str, int]) -> None:
    shown = (f"{name.replace('_', ' ')}: {_shown(name, value)}" for name, value in answer.items())
    print_answer(options, answer, ", ".join(shown))


def _shown(name: str, value: int) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format_size(value) if name in ("bytes", "bytes_copied") else f"{value:,}"


def _recovering(names: str, progress: Progress) -> str:
    return f"recovering {names}: {_ended_text(progress)}, {_copied_text(progress)}{_left_text(progress)}"


def _copied_text(progress: Progress) -> str:
    # What was read counts at once, copies when their ledger is done.
    rate = progress.bytes_read / max(1e-9, time.monotonic() - progress.began_s)
    return f"{format_size(progress.bytes_copied)} copied, {format_size(int(rate))}/s read"


def _ended_text(progress: Progress) -> str:
    """Return how many of the ledgers have come to their end, and how many wait for bookies that do not answer."""
    waiting = progress.parked_count + progress.waiting
    parked = f" ({waiting:,} parked)" if waiting else ""
    return f"{progress.ended:,} of {format_count(progress.ledgers, 'ledger')}{parked}"


def _left_text(progress: Progress) -> str:
    """Return about how long the rest takes; nothing where that is not known."""
    left_s = progress.left_s()
    return "" if left_s is None else f", about {left_s:,.0f} s left"


def add_repair(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `repair`."""
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
    parser.add_argument("bookie_id", metavar="ID", help="the bookie's id, as ledgers name it")
    _add_work(parser, "read from it, and copied to it,")


def repair(options: argparse.Namespace) -> int:
    """Repair; 0 only if everything that was looked at is whole, 75 if the rest is parked."""
    return asyncio.run(_repair(options))


async def _repair(options: argparse.Namespace) -> int:
    import fastbk
    from fastbk.admin.healing import BookieRepair, RepairPlan

    uri = metadata_uri(options)
    plan = RepairPlan(
        bytes_per_s=rate_of(options.rate),
        ledgers_at_once=options.ledgers_at_once,
        after=options.after,
        ranges=await _ranges(options),
        repair=_repair_options(options),
    )
    line = ProgressLine()
    async with fastbk.connect(uri) as client:
        bookie_repair = BookieRepair(
            client,
            options.bookie_id,
            plan,
            lambda progress: line.at(lambda: _repairing(options.bookie_id, progress)),
        )
        if options.dry_run:
            work = await bookie_repair.find()
            _print_result(options, {"ledgers": len(work), "bytes": sum(size for _, size in work)})
            _note_uncloseable(bookie_repair.progress)
            return 0
        try:
            progress = await bookie_repair.run()
        except (KeyboardInterrupt, asyncio.CancelledError):
            line.end()
            through = bookie_repair.progress.done_through
            note(f"interrupted: go on with --after {through}")
            raise
        finally:
            line.end()
    _say_done(options, progress)
    return _exit_code_of(progress)


async def _ranges(options: argparse.Namespace) -> dict[int, list[Range]] | None:
    """Return what is to be looked at, None: everything."""
    if options.ledger:
        return {ledger_id: [(0, (1 << 63) - 1)] for ledger_id in options.ledger}
    if not options.quarantined:
        return None
    from fastbk.admin.page_client import find_bookie

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
    _print_result(
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
            "uncloseable": progress.uncloseable_count,
        },
    )
    _note_rest(progress, f"is not whole on {options.bookie_id}")
    _note_uncloseable(progress)


def _note_uncloseable(progress: RepairProgress) -> None:
    from fastbk.model.health import accept_loss

    for one in progress.uncloseable[:LISTED_MAX]:
        note(
            f"ledger {one.ledger_id} is open, and cannot be closed while {format_names(one.away)} are away:"
            f" {accept_loss(one.ledger_id)}"
        )
    if progress.uncloseable_count > LISTED_MAX:
        note(f"... and {progress.uncloseable_count - LISTED_MAX} more that cannot be closed")


def _repairing(bookie_id: str, progress: RepairProgress) -> str:
    through = f", through ledger {progress.done_through}" if progress.done_through >= 0 else ""
    return (
        f"repairing {bookie_id}: {_ended_text(progress)},"
        f" {progress.entries_copied:,} entries, {_copied_text(progress)}{through}"
        f"{_left_text(progress)}"
    )
