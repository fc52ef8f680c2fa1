"""`fastbk cluster under-replicated`: what misses copies, from marks at once, or by asking every bookie."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING

from fastbk.cli.options import metadata_uri, note, print_answer
from fastbk.cli.running import add_watch
from fastbk.units import format_count, format_entries
from fastbk.wire.statuses import Status, status_name

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator

    from fastbk.admin.cluster import MissingCopies
    from fastbk.autorecovery.state import Audit
    from fastbk.client import Client

PASS_AGE_MAX_S = 60.0
"""An auditor whose last pass is older does not keep the marks up to date."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_watch(parser)
    parser.add_argument(
        "--verify",
        action="store_true",
        help="ask every bookie now which entries it holds (reads no data, but asks once a fragment and bookie)",
    )


def run(options: argparse.Namespace) -> int:
    """Exit code 1 when anything misses copies, or when nobody looks: scripts can wait for the end of it."""
    return asyncio.run(_run(options))


async def _run(options: argparse.Namespace) -> int:
    import fastbk
    from fastbk.admin.cluster import under_replicated

    async with fastbk.connect(metadata_uri(options)) as client:
        if options.verify:
            unlisted: set[str] = set()
            doubtful: set[str] = set()
            missing = await _print(options, under_replicated(client, unlisted=unlisted), doubtful)
            for one in sorted(doubtful):
                note(
                    f"{one} may have lost entries of ledgers (limbo): run `fastbk bookie repair {one}`. A repaired"
                    " ledger leaves limbo with the bookie's next flush and pass of gc: within two minutes by default."
                    " An open one that is still written there leaves limbo once it is closed"
                )
            if unlisted:
                note(
                    f"no list of entries comes from {', '.join(sorted(unlisted))}: of these copies the first and last"
                    " entry of each fragment was looked for; `fastbk ledger audit` reads all"
                )
            print_answer(
                options, {"missing": missing}, *(() if missing else ["nothing misses copies"])
            )
            return 1 if missing else 0
        missing = await _print(options, _known(client))
        facts, lines, is_sure = await _age(client)
        if not missing and is_sure:
            lines.insert(0, "nothing misses copies")
        print_answer(options, {"missing": missing, "known": facts}, *lines)
        return 1 if missing or not is_sure else 0


async def _known(client: Client) -> AsyncIterator[MissingCopies]:
    """Yield what marks say, and the ledgers that cannot be closed now, which need no mark for that."""
    from fastbk.admin.cluster import marked, uncloseable

    async for one in marked(client):
        yield one
    async for waiting in uncloseable(client):
        for one in waiting.copies():
            yield one


async def _print(
    options: argparse.Namespace,
    copies: AsyncIterator[MissingCopies],
    doubtful: set[str] | None = None,
) -> list[dict[str, object]]:
    """Print each at once; return them all for JSON, else a row of empty ones.

    `doubtful` gets the bookies that cannot tell what they hold.
    """
    found: list[dict[str, object]] = []
    async for one in copies:
        if doubtful is not None and status_name(Status.CANNOT_TELL) in one.reason:
            doubtful.add(one.bookie_id)
        found.append(asdict(one) if options.json else {})
        if not options.json:
            count = one.count
            many = "" if count is None else f" ({format_entries(count)}, from {one.ids[0]})"
            print(
                f"ledger {one.ledger_id} from entry {one.first_entry_id}: {one.bookie_id}: {one.reason}{many}"
            )
    return found


async def _age(client: Client) -> tuple[dict[str, object], list[str], bool]:
    """Return how old what marks say is: facts, lines, and whether the absence of marks means that copies are there."""
    from fastbk.autorecovery.state import ClusterState, clock_ms

    audit = await ClusterState(client.records).audit.read()
    is_enabled, auditor = await client.call_store(
        lambda store: (store.coordination.is_enabled(), store.coordination.auditor())
    )
    now_ms = clock_ms()
    age_s = (now_ms - audit.pass_ms) / 1000
    facts: dict[str, object] = {
        "auditor": auditor,
        "enabled": is_enabled,
        "pass_age_s": round(age_s, 1) if audit.pass_ms else None,
        "lost_bookies": {**audit.waiting, **dict.fromkeys(audit.due, 0)},
        "last_check": asdict(audit.last_cycle) if audit.last_cycle.ended_ms else None,
    }
    lines = [
        f"{one} is lost: its ledgers are marked in {max(0, due_ms - now_ms) / 1000:.0f} s"
        for one, due_ms in audit.waiting.items()
    ]
    lines += [f"{one} is lost: its ledgers are being marked" for one in audit.marking.bookies]
    if auditor is None:
        problem = "no AutoRecovery runs: these are marks of writers and of former checks; --verify asks the bookies"
    elif not is_enabled:
        problem = "AutoRecovery is paused: nothing new is marked; --verify asks the bookies"
    elif auditor != audit.auditor:
        problem = f"{auditor} is the auditor, which does not say when it looked; --verify asks the bookies"
    elif age_s > PASS_AGE_MAX_S:
        problem = f"the auditor {auditor} looked {age_s:.0f} s ago last; --verify asks the bookies"
    else:
        problem = ""
        lines.append(f"the auditor looked at all bookies {age_s:.0f} s ago")
    if problem:
        lines.append(problem)
    lines.append(_cycle_line(audit, now_ms))
    return facts, lines, not (problem or audit.waiting or audit.marking.bookies)


def _cycle_line(audit: Audit, now_ms: int) -> str:
    last = audit.last_cycle
    if not last.ended_ms:
        return f"no check of all ledgers has ended yet: {format_count(audit.cycle.ledgers, 'ledger')} so far"
    text = f"all ledgers were checked {(now_ms - last.ended_ms) / 1000:.0f} s ago"
    if last.unsure:
        text += f", {format_count(last.unsure, 'ledger')} with bookies that did not answer"
    return text
