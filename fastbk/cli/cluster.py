"""`fastbk cluster ...`: the state of all bookies, what misses copies, upgrades, and which bookies metadata knows."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING

from fastbk.cli import under_replicated
from fastbk.cli.bookie.maintenance import end_with_bookie, maintenance_lines, read_maintenance
from fastbk.cli.cluster_events import add_event_arguments, events
from fastbk.cli.cluster_heal import add_heal_arguments, heal
from fastbk.cli.cluster_upgrade import (
    add_finalize_arguments,
    add_roll_arguments,
    finalize,
    roll,
)
from fastbk.cli.options import (
    add_common,
    add_confirmation,
    add_verb,
    add_verbs,
    exit_without_consent,
    metadata_uri,
    note,
    opened_store,
    print_answer,
    print_json,
    run_verb,
    table,
)
from fastbk.cli.running import add_watch
from fastbk.cli.terminal import painted
from fastbk.errors import ConfigError
from fastbk.formats import LEVEL_MAX
from fastbk.units import format_size

if TYPE_CHECKING:
    import argparse

    from fastbk.admin.cluster import BookieState
    from fastbk.meta.hold import Hold
    from fastbk.model.health import Reason

run = run_verb
STATES = ("up", "read-only", "frozen", "silent", "down")
OPEN_LEDGERS_S = 10.0
"""`status` looks so long for ledgers that cannot be closed: while a bookie is away all ledgers' metadata is read."""
SETTLE_S = OPEN_LEDGERS_S + 2.0
"""`status` waits so long for metadata: reads that take longer give up by themselves, and are named."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    verbs = add_verbs(parser)
    add_watch(
        add_verb(verbs, "status", _status, "how many bookies are up, and whether all is well")
    )
    text = "every bookie: state, address, disk, why not up"
    add_watch(add_verb(verbs, "bookies", print_bookies, text))
    text = "ledgers that miss copies, as marks say at once, or as a check of all finds now"
    under_replicated.add_arguments(add_verb(verbs, "under-replicated", under_replicated.run, text))
    text = "what happened, from all bookies, by time: --since 03:00 --until 03:20"
    add_event_arguments(add_verb(verbs, "events", events, text))
    text = "what AutoRecovery is doing; pause it, hold it for a while, resume it, set its copy rate"
    add_heal_arguments(add_verb(verbs, "heal", heal, text))
    text = "restart all bookies, one failure domain after the other, by a command of yours"
    add_roll_arguments(add_verb(verbs, "roll", roll, text))
    text = "end an upgrade: allow the formats of this version; no way back to older ones"
    add_finalize_arguments(add_verb(verbs, "finalize", finalize, text))
    text = "the bookies that the metadata knows; forget one"
    cookies = add_verb(verbs, "cookies", _cookies, text)
    cookies.add_argument(
        "--forget",
        metavar="ID",
        help="delete the cookie and identity of a bookie that does not run and that no ledger names",
    )
    cookies.add_argument(
        "--even-if-named", action="store_true", help="with --forget: also when ledgers name it"
    )
    add_confirmation(cookies)
    add_common(verbs)


def _states(
    options: argparse.Namespace, *, is_status: bool = False
) -> tuple[list[BookieState], Hold | None, int, tuple[Reason, ...]]:
    """Return the state of every bookie, the hold that metadata is on, and the cluster's format level.

    `is_status`: also what speaks against the cluster, the worst first.
    """
    import fastbk
    from fastbk.admin.cluster import bookie_states
    from fastbk.meta.format_level import read_or_first
    from fastbk.meta.hold import read_hold
    from fastbk.overview.poller import OverviewPoller

    uri = metadata_uri(options)
    with opened_store(uri) as store:
        identities, hold, level = (
            store.list_identities(),
            read_hold(store),
            read_or_first(store).level,
        )

    async def ask() -> tuple[list[BookieState], tuple[Reason, ...]]:
        async with fastbk.connect(uri) as client:
            if not is_status:
                return await bookie_states(client, identities), ()
            async with OverviewPoller(
                client, uri, cursors_max=0, open_ledgers_timeout_s=OPEN_LEDGERS_S
            ) as poller:
                states, _ = await asyncio.gather(
                    bookie_states(client, identities), poller.settled(SETTLE_S)
                )
                overview = await poller.poll()
        return states, (*overview.reasons, *_unnamed(states, overview.reasons))

    states, reasons = asyncio.run(ask())
    return states, hold, level, reasons


def _unnamed(states: list[BookieState], named: tuple[Reason, ...]) -> list[Reason]:
    """Return reasons for bookies that are not up and whose pages say that all is well, or that have none."""
    from fastbk.model.health import BookieFacts, reasons_of_bookie

    known = {one.subject for one in named}
    found: list[Reason] = []
    for one in states:
        if one.state != "up" and one.bookie_id not in known:
            state = {"read-only": "read_only", "down": "down"}.get(one.state, "no answer")
            facts = BookieFacts(bookie_id=one.bookie_id, state=state, why=one.reason)
            found += reasons_of_bookie(facts)
    return found


def _status(options: argparse.Namespace) -> int:
    from fastbk.model.health import Verdict, verdict_of

    states, hold, level, reasons = _states(options, is_status=True)
    verdict = verdict_of(reasons)
    counts = dict.fromkeys(STATES, 0)
    for one in states:
        counts[one.state] += 1
    total = sum(one.info.disk_total_bytes for one in states if one.info)
    free = sum(one.info.disk_free_bytes for one in states if one.info)
    is_well = verdict is Verdict.WELL and bool(states)
    facts = {"bookies": counts, "disk_total_bytes": total, "disk_free_bytes": free}
    facts |= {"metadata_hold": None if hold is None else str(hold), "is_well": is_well}
    facts |= {"verdict": verdict.text, "reasons": [one.as_json() for one in reasons]}
    facts |= {"format_level": level, "format_level_max": LEVEL_MAX}
    said = ", ".join(painted(f"{count} {name}", name) for name, count in counts.items() if count)
    lines = [f"verdict: {painted(verdict.text, 'ok' if is_well else 'warn')}"]
    for reason in reasons:
        lines += [f"  {reason.subject}: {reason.text}", f"      -> {reason.next_step}"]
    lines.append(f"bookies: {said or 'none'}")
    if total:
        used = f"{format_size(total - free)} of {format_size(total)}"
        lines.append(f"disks:   {used} used ({100 * (1 - free / total):.0f} %)")
    lines += [
        f"{one.bookie_id} is {painted(one.state)}: {one.reason or 'not registered'}"
        for one in states
        if one.state != "up"
    ]
    if level < LEVEL_MAX:
        lines.append(
            f"format level {level}: older versions may join; once none has to,"
            f" `fastbk cluster finalize` makes it {LEVEL_MAX}"
        )
    in_maintenance = read_maintenance(metadata_uri(options))
    facts["maintenance"] = {one: asdict(each) for one, each in in_maintenance.items()}
    lines += maintenance_lines(in_maintenance)
    if hold is not None:
        text = f"metadata is on hold, nothing is deleted: {hold}; see `fastbk metadata status`"
        lines.append(text)
    print_answer(options, facts, *lines)
    return 0 if is_well else 1


def print_bookies(options: argparse.Namespace) -> int:
    """Print every bookie: `fastbk cluster bookies` and `fastbk bookie list`."""
    states, _, _, _ = _states(options)
    if options.json:
        print_json([asdict(one) for one in states])
        return 0
    # Properties come with a registration: a bookie that is down has none.
    has_locations = any("location" in one.properties for one in states)
    rows = [
        (
            "bookie",
            "state",
            "address",
            "disk used",
            "software",
            *(("location",) if has_locations else ()),
        )
    ]
    for one in states:
        info = one.info
        disk = software = "-"
        if info is not None:
            used = info.disk_total_bytes - info.disk_free_bytes
            share = one.used_share
            percent = f" ({100 * share:.0f} %)" if share is not None else ""
            disk = f"{format_size(used)} of {format_size(info.disk_total_bytes)}{percent}"
            software = info.software
        location = (one.properties.get("location", "-"),) if has_locations else ()
        rows.append(
            (one.bookie_id, painted(one.state), one.address or "-", disk, software, *location)
        )
    for line, reason in zip(
        table(rows, "<" * len(rows[0])), ["", *(one.reason for one in states)], strict=True
    ):
        print(line)
        if reason:
            print(f"    {reason}")
    return 0


def _cookies(options: argparse.Namespace) -> int:
    """List, or forget one."""
    from fastbk.admin.bookie_identity import forget, known_bookies
    from fastbk.model.ids import BookieId

    if options.even_if_named and not options.forget:
        raise ConfigError("--even-if-named goes with --forget ID")
    with opened_store(metadata_uri(options)) as store:
        if options.forget:
            action = f"delete the cookie and identity of bookie {options.forget}"
            if (code := exit_without_consent(options, action)) is not None:
                return code
            forget(store, BookieId(options.forget), even_if_named=options.even_if_named)
            asyncio.run(end_with_bookie(metadata_uri(options), BookieId(options.forget)))
            note(f"bookie {options.forget} is forgotten; its directories start no bookie any more")
            return 0
        found = known_bookies(store)
        instance_id = store.instance_id()
    lines = [f"cluster {instance_id or 'without an instance id'}"]
    for one in found:
        state = "running" if one.is_registered else "not running"
        lines.append(
            f"{one.bookie_id}  incarnation {one.incarnation}, {one.starts + 1} starts, {state}"
        )
        lines += [f"    {directory}" for directory in one.directories]
    facts = {"instance_id": instance_id, "bookies": [asdict(one) for one in found]}
    return print_answer(options, facts, *lines)
