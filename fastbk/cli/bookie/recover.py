"""`fastbk bookie recover ID` and `fastbk bookie decommission ID`."""

from __future__ import annotations

import asyncio
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

    from fastbk.admin.bookie_recovery import RecoveryPlan
    from fastbk.admin.ledger_progress import Progress
    from fastbk.replication.copying import RepairOptions

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
    add_work(parser, "copied")


def add_work(parser: argparse.ArgumentParser, what: str) -> None:
    """Declare which bookie's copies are worked on, and within which bounds. `what`: is done with limited bytes."""
    parser.add_argument("bookie_id", metavar="ID", help="the bookie's id, as ledgers name it")
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
        help="how long to wait for bookies that do not answer before a ledger is parked (20)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only say how many ledgers and bytes there are to do"
    )
    add_metadata(parser)
    add_json(parser)


def repair_options(options: argparse.Namespace) -> RepairOptions:
    """Return the bounds that the options set. Raises ConfigError."""
    from fastbk.replication.copying import RepairOptions

    if options.patience < 0:
        raise ConfigError(f"--patience {options.patience:g}: must not be negative")
    return RepairOptions(patience_s=options.patience)


def recover(options: argparse.Namespace) -> int:
    """Re-replicate what the bookie held; 0 only if no ledger names it any more, 75 if the rest is parked."""
    return asyncio.run(_recover(options, forget=False))


def decommission(options: argparse.Namespace) -> int:
    """The same, then take the bookie's identity out of the metadata, so that the id is free."""
    action = f"copy all that bookie {options.bookie_id} holds to other bookies, and free its id"
    if not options.dry_run and (code := exit_without_consent(options, action)) is not None:
        return code
    return asyncio.run(_recover(options, forget=True))


def _plan(options: argparse.Namespace) -> RecoveryPlan:
    from fastbk.admin.bookie_recovery import RecoveryPlan

    return RecoveryPlan(
        bytes_per_s=rate_of(options.rate),
        ledgers_at_once=options.ledgers_at_once,
        open_ledgers=options.open_ledgers,
        grace_s=options.grace,
        even_if_alive=getattr(options, "even_if_alive", False),
        repair=repair_options(options),
    )


async def _recover(options: argparse.Namespace, *, forget: bool) -> int:
    import fastbk
    from fastbk.admin.bookie_recovery import BookieRecovery
    from fastbk.admin.cookies import check_known, free_id

    uri = metadata_uri(options)
    line = ProgressLine()
    async with fastbk.connect(uri) as client:
        if forget and not options.dry_run:
            # Ledgers that restored metadata does not list may have copies there only.
            await client.records.check_not_held()
        run = BookieRecovery(
            client,
            options.bookie_id,
            _plan(options),
            lambda progress: line.at(lambda: _text(options.bookie_id, progress)),
        )
        if options.dry_run:
            await run.check_gone()
            work = await run.find()
            if not work and not forget:
                await asyncio.to_thread(check_known, uri, options.bookie_id)
            print_result(options, {"ledgers": len(work), "bytes": sum(size for _, size in work)})
            return 0
        try:
            progress = await run.run()
        finally:
            line.end()
        is_named = bool(await run.find()) if progress.is_whole else True
    if not progress.ledgers:
        if not forget:
            await asyncio.to_thread(check_known, uri, options.bookie_id)
        note(f"no ledger names {options.bookie_id}")
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
            others = await asyncio.to_thread(free_id, uri, options.bookie_id)
            if others is not None:
                note(
                    f"the metadata knows no {options.bookie_id} (any more): was that its id?"
                    f" There are {format_names(others)}"
                )
        answer["decommissioned"] = not is_named
    print_result(options, answer)
    note_rest(progress, f"still names {options.bookie_id}")
    return exit_code_of(progress) or int(is_named)


def note_rest(progress: Progress, what: str) -> None:
    """Print which ledgers failed and which are parked, and why."""
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
        note(f"{many} parked: start the bookies that do not answer, then run this again")


def exit_code_of(progress: Progress) -> int:
    """Return 0 if all was done, 75 if what is left is parked, 1 if a ledger failed."""
    if progress.is_whole:
        return 0
    return exit_codes.FAILED if progress.failed_count else exit_codes.UNREACHABLE


def print_result(options: argparse.Namespace, answer: dict[str, int]) -> None:
    """Print what was done, as text or JSON."""
    shown = (f"{name.replace('_', ' ')}: {_shown(name, value)}" for name, value in answer.items())
    print_answer(options, answer, ", ".join(shown))


def _shown(name: str, value: int) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format_size(value) if name in ("bytes", "bytes_copied") else f"{value:,}"


def _text(bookie_id: str, progress: Progress) -> str:
    copied = format_size(progress.bytes_copied)
    return f"recovering {bookie_id}: {ended_text(progress)}, {copied} copied{left_text(progress)}"


def ended_text(progress: Progress) -> str:
    """Return how many of the ledgers have come to their end, and how many wait for bookies that do not answer."""
    waiting = progress.parked_count + progress.waiting
    parked = f" ({waiting:,} parked)" if waiting else ""
    return f"{progress.ended:,} of {format_count(progress.ledgers, 'ledger')}{parked}"


def left_text(progress: Progress) -> str:
    """Return about how long the rest takes; nothing where that is not known."""
    left_s = progress.left_s()
    return "" if left_s is None else f", about {left_s:,.0f} s left"
