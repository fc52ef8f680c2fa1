"""`fastbk cluster finalize` and `fastbk cluster roll`: the upgrade of a cluster."""

from __future__ import annotations

import asyncio
import shlex
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from fastbk.cli.options import (
    add_confirmation,
    add_dry_run,
    exit_without_consent,
    metadata_uri,
    note,
    print_answer,
)
from fastbk.errors import ConfigError
from fastbk.exit_codes import FAILED
from fastbk.formats import LEVEL_MAX, LEVELS
from fastbk.units import format_count, parse_duration_us

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from fastbk.upgrade.roll import RollReport
    from fastbk.upgrade.roll_plan import RollBookie, Step

CHECKS = ("all", "marks")
TIMEOUTS = (
    ("command", "5min", "one run of COMMAND may take"),
    ("ready", "10min", "a restarted bookie may take until it serves"),
    ("whole", "30min", "missing copies may take to come back, after each step"),
)
"""The options --NAME-timeout of a roll: name, default, what they bound."""


def add_finalize_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    add_confirmation(parser)


def finalize(options: argparse.Namespace) -> int:
    """Raise the cluster's format level."""
    return asyncio.run(_finalize(options))


async def _finalize(options: argparse.Namespace) -> int:
    import fastbk
    from fastbk.upgrade.roll import NotReady, check
    from fastbk.upgrade.roll import finalize as finalize_cluster

    async with fastbk.connect(metadata_uri(options)) as client:
        found = await check(client)
        facts: dict[str, object] = {"level": found.record.level, "level_max": LEVEL_MAX}
        if found.record.level >= LEVEL_MAX:
            said = f"the cluster has format level {found.record.level}; this version has none above {LEVEL_MAX}"
            return print_answer(options, facts | {"reasons": []}, said)
        if found.reasons:
            text = f"the cluster stays at format level {found.record.level}"
            if options.json:
                print_answer(options, facts | {"reasons": found.reasons})
                return FAILED
            raise NotReady(f"{text}: {'; '.join(found.reasons)}", found.reasons)
        what = "; ".join(LEVELS[level] for level in range(found.record.level + 1, LEVEL_MAX + 1))
        action = (
            f"raise the cluster's format level from {found.record.level} to {LEVEL_MAX} ({what}); versions without the"
            " level cannot be started again, and janitors of older versions have to be stopped before: they are"
            " registered nowhere, and a janitor of 0.2 goes on until it is stopped"
        )
        if (code := exit_without_consent(options, action, facts)) is not None:
            return code
        record = await finalize_cluster(client)
        facts["level"] = record.level
        said = f"the cluster has format level {record.level}"
        return print_answer(options, facts | {"reasons": []}, said)


# --- roll ---------------------------------------------------------------------------------------------------------


def add_roll_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument(
        "--restart",
        required=True,
        metavar="COMMAND",
        help="a shell command that stops one bookie and starts its new version; {bookie} stands for its id",
    )
    parser.add_argument(
        "--to",
        default="",
        metavar="VERSION",
        help="bookies that have this version are left out, and others must come back with it",
    )
    parser.add_argument(
        "--from", dest="start_from", default="", metavar="BOOKIE", help="go on with this bookie"
    )
    parser.add_argument(
        "--at-once",
        type=int,
        default=1,
        metavar="N",
        help="bookies of one rack that are restarted together (1)",
    )
    parser.add_argument(
        "--check",
        choices=CHECKS,
        default="all",
        help="what finds missing copies: all bookies are asked (default), or marks alone",
    )
    for name, default, text in TIMEOUTS:
        parser.add_argument(
            f"--{name}-timeout",
            default=default,
            metavar="TIME",
            help=f"how long {text} ({default})",
        )
    add_dry_run(parser)


def roll(options: argparse.Namespace) -> int:
    """Restart the cluster, a failure domain after the other."""
    return asyncio.run(_roll(options))


async def _roll(options: argparse.Namespace) -> int:
    import fastbk
    from fastbk.upgrade.roll import RollOptions, check_roll, read_bookies, run_roll
    from fastbk.upgrade.roll_plan import Roll, RollLimits, plan

    limits = RollLimits(
        ready_s=_seconds("--ready-timeout", options.ready_timeout),
        whole_s=_seconds("--whole-timeout", options.whole_timeout),
    )
    chosen = RollOptions(
        command=options.restart,
        command_s=_seconds("--command-timeout", options.command_timeout),
        verify=options.check == "all",
    )
    async with fastbk.connect(metadata_uri(options)) as client:
        bookies = await read_bookies(client)
        check_roll(bookies.values())
        steps = plan(
            bookies.values(),
            to_version=options.to,
            at_once=options.at_once,
            start_from=options.start_from,
        )
        rolling = Roll(steps, limits, options.to)
        if options.dry_run:
            facts = {"dry_run": True, "steps": [asdict(step) for step in steps]}
            if away := rolling.away_before(bookies):
                note(f"the roll would stop before its first step: {away}")
            return print_answer(options, facts, *_plan_lines(steps, bookies.values()))
        for line in _plan_lines(steps, bookies.values()):
            note(line)
        try:
            report = await run_roll(client, rolling, chosen, note)
        except asyncio.CancelledError:
            _print_next(options, "stopped: the roll was interrupted", rolling.next_from)
            raise
    return _print_report(options, report, len(steps))


def _seconds(option: str, text: str) -> float:
    try:
        seconds = parse_duration_us(text) / 1e6
    except ValueError as error:
        raise ConfigError(f"{option} {text}: {error}") from error
    if seconds <= 0:
        raise ConfigError(f"{option} {text}: must be more than 0")
    return seconds


def _plan_lines(steps: tuple[Step, ...], bookies: Iterable[RollBookie]) -> list[str]:
    known = {bookie.bookie_id: bookie for bookie in bookies}
    if not steps:
        return ["nothing is to be restarted"]
    lines = [f"{format_count(len(steps), 'step')}, one after the other:"]
    for number, step in enumerate(steps, 1):
        named = ", ".join(f"{bookie} ({_version(known[bookie])})" for bookie in step.bookies)
        lines.append(f"{number:>4}. {step.location}: {named}")
    return lines


def _version(bookie: RollBookie) -> str:
    return bookie.version or bookie.state


def _print_report(options: argparse.Namespace, report: RollReport, steps: int) -> int:
    facts = {
        "restarted": report.restarted,
        "seconds": report.seconds,
        "stopped": report.stopped,
        "next_from": report.next_from,
    }
    lines = [
        f"{one} was restarted, {seconds:g} s until the cluster was whole"
        for one, seconds in report.seconds.items()
    ]
    if not report.stopped:
        restarted = format_count(len(report.restarted), "bookie")
        lines.append(f"done: {restarted} restarted in {format_count(steps, 'step')}")
        return print_answer(options, facts, *lines)
    print_answer(options, facts, *lines)
    _print_next(options, f"stopped: {report.stopped}", report.next_from)
    return FAILED


def _print_next(options: argparse.Namespace, reason: str, next_from: str) -> None:
    """Print why the roll ends, and the command that goes on from there. It is an error: --quiet leaves it."""
    print(f"fastbk: {reason}. No further bookie is restarted.", file=sys.stderr)
    if next_from:
        again = shlex.join(
            ("fastbk", "cluster", "roll", *_words_again(options), "--from", next_from)
        )
        print(f"When that is clear, go on: {again}", file=sys.stderr)


def _words_again(options: argparse.Namespace) -> list[str]:
    """Return the options of this roll that the next one needs, too: above all those that name the cluster."""
    given = {
        "--metadata": options.metadata,
        "--context": options.context,
        "--restart": options.restart,
        "--to": options.to,
        "--at-once": "" if options.at_once == 1 else str(options.at_once),
        "--check": "" if options.check == CHECKS[0] else options.check,
    }
    for name, default, _ in TIMEOUTS:
        text = getattr(options, f"{name}_timeout")
        given[f"--{name}-timeout"] = "" if text == default else text
    return [word for name, text in given.items() if text for word in (name, text)]
