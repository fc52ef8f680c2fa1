"""`fastbk cluster ...`: the state of all bookies, what misses copies, healing, events, which bookies metadata knows.

`under-replicated` says what misses copies, from marks at once, or by asking every bookie. `heal` says what AutoRecovery
is doing; it pauses or holds it, resumes it, and sets its copy rate. `events` shows what happened between two moments,
from all processes, by time. `cluster_upgrade.py` has the verbs `roll` and `finalize`, `cluster_placement.py` those of
`placement`.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import msgspec

from fastbk.cli.bookie.running import end_with_bookie, maintenance_lines, read_maintenance
from fastbk.cli.cluster_placement import add_placement_arguments
from fastbk.cli.cluster_rebalance import add_rebalance_arguments, rebalance
from fastbk.cli.cluster_upgrade import add_finalize_arguments, add_roll_arguments, finalize, roll
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
from fastbk.cli.terminal import add_watch, painted
from fastbk.errors import ConfigError, Error
from fastbk.exit_codes import DONE, FAILED
from fastbk.formats import LEVEL_MAX
from fastbk.observe.events import KINDS, LIMIT_MAX, Query, kinds_of, moments
from fastbk.units import (
    format_count,
    format_entries,
    format_size,
    format_utc_ms,
    parse_duration_us,
    parse_size,
)
from fastbk.wire.statuses import Status, status_name

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    from fastbk.admin.cluster import BookieState, ClusterEvents, EventSource, MissingCopies
    from fastbk.autorecovery.state import Audit, ClusterState, WorkerReport
    from fastbk.client import Client
    from fastbk.meta.api import MetadataStore
    from fastbk.meta.records import BadRecord
    from fastbk.meta.rollback import Hold
    from fastbk.model.health import Reason
    from fastbk.observe.events import Event

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
    add_under_replicated_arguments(
        add_verb(verbs, "under-replicated", print_under_replicated, text)
    )
    text = "what happened, from all bookies, by time: --since 03:00 --until 03:20"
    add_event_arguments(add_verb(verbs, "events", events, text))
    text = "what AutoRecovery is doing; pause it, hold it for a while, resume it, set its copy rate"
    add_heal_arguments(add_verb(verbs, "heal", heal, text))
    text = "move copies to where their ledgers' rules want them, and even out disks"
    add_rebalance_arguments(add_verb(verbs, "rebalance", rebalance, text))
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
    text = "where copies may lie: the cluster's rule, its racks, and what lies otherwise"
    add_placement_arguments(verbs.add_parser("placement", help=text, description=text))


def _states(
    options: argparse.Namespace, *, is_status: bool = False
) -> tuple[list[BookieState], Hold | None, int, tuple[Reason, ...]]:
    """Return the state of every bookie, the hold that metadata is on, and the cluster's format level.

    `is_status`: also what speaks against the cluster, the worst first.
    """
    import fastbk
    from fastbk.admin.cluster import bookie_states
    from fastbk.meta.format_level import read_or_first
    from fastbk.meta.rollback import read_hold
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
    unnamed: list[Reason] = []
    for one in states:
        if one.state != "up" and one.bookie_id not in known:
            state = {"read-only": "read_only", "down": "down"}.get(one.state, "no answer")
            facts = BookieFacts(bookie_id=one.bookie_id, state=state, why=one.reason)
            unnamed += reasons_of_bookie(facts)
    return unnamed


def _status(options: argparse.Namespace) -> int:
    from fastbk.model.health import Verdict, verdict_of

    states, hold, level, reasons = _states(options, is_status=True)
    verdict = verdict_of(reasons)
    counts = dict.fromkeys(STATES, 0)
    for one in states:
        counts[one.state] += 1
    total = sum(state.info.disk_total_bytes for state in states if state.info)
    free = sum(state.info.disk_free_bytes for state in states if state.info)
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
        f"{state.bookie_id} is {painted(state.state)}: {state.reason or 'not registered'}"
        for state in states
        if state.state != "up"
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
    for state in states:
        info = state.info
        disk = software = "-"
        if info is not None:
            used = info.disk_total_bytes - info.disk_free_bytes
            share = state.used_share
            percent = f" ({100 * share:.0f} %)" if share is not None else ""
            disk = f"{format_size(used)} of {format_size(info.disk_total_bytes)}{percent}"
            software = info.software
        location = (state.properties.get("location", "-"),) if has_locations else ()
        rows.append(
            (state.bookie_id, painted(state.state), state.address or "-", disk, software, *location)
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


PASS_AGE_MAX_S = 60.0
"""An auditor whose last pass is older does not keep the marks up to date."""


def add_under_replicated_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_watch(parser)
    parser.add_argument(
        "--verify",
        action="store_true",
        help="ask every bookie now which entries it holds (reads no data, but asks once a fragment and bookie)",
    )


def print_under_replicated(options: argparse.Namespace) -> int:
    """Exit code 1 when anything misses copies, or when nobody looks: scripts can wait for the end of it."""
    return asyncio.run(_print_under_replicated(options))


async def _print_under_replicated(options: argparse.Namespace) -> int:
    import fastbk
    from fastbk.admin.cluster import under_replicated

    async with fastbk.connect(metadata_uri(options)) as client:
        if options.verify:
            unlisted: set[str] = set()
            doubtful: set[str] = set()
            missing = await _print_missing(
                options, under_replicated(client, unlisted=unlisted), doubtful
            )
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
        missing = await _print_missing(options, _known_missing(client))
        facts, lines, is_sure = await _age_of_marks(client)
        if not missing and is_sure:
            lines.insert(0, "nothing misses copies")
        print_answer(options, {"missing": missing, "known": facts}, *lines)
        return 1 if missing or not is_sure else 0


async def _known_missing(client: Client) -> AsyncIterator[MissingCopies]:
    """Yield what marks say, and the ledgers that cannot be closed now, which need no mark for that."""
    from fastbk.admin.cluster import marked, uncloseable

    async for one in marked(client):
        yield one
    async for waiting in uncloseable(client):
        for copy in waiting.copies():
            yield copy


async def _print_missing(
    options: argparse.Namespace,
    copies: AsyncIterator[MissingCopies],
    doubtful: set[str] | None = None,
) -> list[dict[str, object]]:
    """Print each at once; return them all for JSON, else a row of empty ones.

    `doubtful` gets the bookies that cannot tell what they hold.
    """
    found: list[dict[str, object]] = []
    async for copy in copies:
        if doubtful is not None and status_name(Status.CANNOT_TELL) in copy.reason:
            doubtful.add(copy.bookie_id)
        found.append(asdict(copy) if options.json else {})
        if not options.json:
            count = copy.count
            many = "" if count is None else f" ({format_entries(count)}, from {copy.ids[0]})"
            print(
                f"ledger {copy.ledger_id} from entry {copy.first_entry_id}: {copy.bookie_id}: {copy.reason}{many}"
            )
    return found


async def _age_of_marks(client: Client) -> tuple[dict[str, object], list[str], bool]:
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
    lines += [f"{bookie} is lost: its ledgers are being marked" for bookie in audit.marking.bookies]
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
    lines.append(_last_check_line(audit, now_ms))
    return facts, lines, not (problem or audit.waiting or audit.marking.bookies)


def _last_check_line(audit: Audit, now_ms: int) -> str:
    last = audit.last_cycle
    if not last.ended_ms:
        return f"no check of all ledgers has ended yet: {format_count(audit.cycle.ledgers, 'ledger')} so far"
    text = f"all ledgers were checked {(now_ms - last.ended_ms) / 1000:.0f} s ago"
    if last.unsure:
        text += f", {format_count(last.unsure, 'ledger')} with bookies that did not answer"
    return text


ACTIONS = ("status", "pause", "hold", "resume", "rate", "placement")
SWITCH = {"on": True, "off": False}
HOLD_REASON = "an operator holds it: `fastbk cluster heal hold`"


def add_heal_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    add_watch(parser)
    parser.add_argument(
        "action",
        choices=ACTIONS,
        help="status (default), pause, hold, resume, rate or placement",
        nargs="?",
        default="status",
    )
    parser.add_argument(
        "value",
        nargs="?",
        help="of rate: bytes a second for the whole cluster, as 64MiB; 0: no limit. Of hold: how long, as 30min. Of"
        " placement: on (default) or off: whether copies are moved that lie otherwise than their rule wants it",
    )


def heal(options: argparse.Namespace) -> int:
    """Do it."""
    if (options.value is not None) != (options.action in ("rate", "hold", "placement")):
        raise ConfigError(
            "`heal rate` takes the bytes a second, as `heal rate 64MiB`, `heal hold` a time, as `heal hold 30min`, and"
            " `heal placement` on or off; nothing else takes a value"
        )
    if options.action == "placement" and options.value not in SWITCH:
        raise ConfigError(f"heal placement {options.value}: must be on or off")
    if options.watch is not None and options.action != "status":
        raise ConfigError(
            f"--watch repeats what it shows: leave it out with `heal {options.action}`"
        )
    return asyncio.run(_heal(options))


async def _heal(options: argparse.Namespace) -> int:
    import fastbk
    from fastbk.autorecovery.state import ClusterState

    async with fastbk.connect(metadata_uri(options)) as client:
        state = ClusterState(client.records)
        if options.action == "pause":
            await client.call_store(lambda store: store.coordination.disable())
            return print_answer(options, {"paused": True}, "AutoRecovery is paused")
        if options.action == "resume":
            await client.call_store(lambda store: store.coordination.enable())
            await state.release()
            return print_answer(
                options,
                {"paused": False},
                "AutoRecovery works; bookies that are lost now are held no longer",
            )
        if options.action == "hold":
            return await _heal_hold(options, state)
        if options.action == "rate":
            bytes_per_s = float(parse_size(options.value))
            await state.settings.change(lambda now: replace(now, bytes_per_s=bytes_per_s))
            said = f"{format_size(int(bytes_per_s))} a second" if bytes_per_s else "without a limit"
            return print_answer(options, {"bytes_per_s": bytes_per_s}, f"the cluster copies {said}")
        if options.action == "placement":
            mends = SWITCH[options.value]
            await state.settings.change(lambda now: replace(now, mends_placement=mends))
            said = f"misplaced copies are {'moved' if mends else 'left where they are'}"
            return print_answer(options, {"mends_placement": mends}, said)
        return await _heal_status(options, client, state)


async def _heal_hold(options: argparse.Namespace, state: ClusterState) -> int:
    from fastbk.autorecovery.lost_bookies import HOLD_S_MAX, HealingHold
    from fastbk.autorecovery.state import clock_ms

    try:
        hold_s = parse_duration_us(options.value) / 1e6
    except ValueError as error:
        raise ConfigError(f"heal hold {options.value}: {error}") from error
    if not 0 < hold_s <= HOLD_S_MAX:
        raise ConfigError(
            f"heal hold {options.value}: must be more than 0 and at most {HOLD_S_MAX / 3600:.0f}h"
        )
    until_ms = clock_ms() + int(hold_s * 1000)
    await state.hold.put(HealingHold(until_ms, HOLD_REASON))
    said = f"no further bookie becomes due until {format_utc_ms(until_ms)}, or `heal resume`"
    return print_answer(options, {"hold_until_ms": until_ms}, said)


def _switches(store: MetadataStore) -> tuple[bool, str | None, float, list[BadRecord]]:
    """Return whether AutoRecovery may work, its auditor, how long a bookie may be away; and those that are bad."""
    from fastbk.autorecovery.lost_bookies import delay_of
    from fastbk.meta.records import collected_bad_records

    with collected_bad_records() as bad:
        coordination = store.coordination
        found = (
            coordination.is_enabled(),
            coordination.auditor(),
            delay_of(coordination.lost_bookie_delay_s()),
        )
    return (*found, bad)


async def _heal_status(options: argparse.Namespace, client: Client, state: object) -> int:
    from fastbk.autorecovery.state import ClusterState, clock_ms

    assert isinstance(state, ClusterState)
    audit, workers = await state.audit.read(), await state.workers()
    settings, lost = await state.settings.read(), (await state.lost_bookies.read()).lost
    hold = await state.hold.read()
    is_enabled, auditor, delay_s, bad = await client.call_store(_switches)
    now_ms = clock_ms()
    facts = {
        "enabled": is_enabled,
        "auditor": auditor,
        "hold": asdict(hold),
        "lost_bookie_delay_s": delay_s,
        "bad_records": [str(one) for one in bad],
        "bytes_per_s_max": settings.bytes_per_s,
        "mends_placement": settings.mends_placement,
        "lost_bookies": {str(one): asdict(each) for one, each in lost.items()},
        "audit": asdict(audit),
        "workers": {name: asdict(worker) for name, worker in workers.items()},
    }
    lines = [
        f"AutoRecovery is {painted('on' if is_enabled else 'paused')}; auditor: {auditor or 'none'}",
        f"limit: {format_size(int(settings.bytes_per_s)) + ' a second' if settings.bytes_per_s else 'none'}",
        f"a lost bookie may be away for {delay_s:g} s",
        *([] if settings.mends_placement else ["misplaced copies are left where they are"]),
        *(f"{painted('problem')}: {one}" for one in bad),
        *(
            [f"held until {format_utc_ms(hold.until_ms)}: {hold.reason}"]
            if hold.left_s(now_ms)
            else []
        ),
        *_lost_lines(audit, now_ms),
        _cluster_line(workers.values()),
        *_worker_lines(workers),
        _cycle_line(audit, now_ms),
    ]
    print_answer(options, facts, *lines)
    return 0 if auditor and is_enabled and not lost and not bad else 1


def _lost_lines(audit: Audit, now_ms: int) -> list[str]:
    lines = [
        f"{painted('lost', 'down')}: {one}, its delay is over: its ledgers are marked and copied to others"
        for one in audit.due
    ]
    for one, due_ms in audit.waiting.items():
        held = f" (held: {audit.held[one]}; `heal resume` ends that)" if one in audit.held else ""
        lines.append(
            f"{painted('lost', 'down')}: {one}, due in {max(0, due_ms - now_ms) / 1000:.0f} s{held}"
        )
    return lines


def _cluster_line(workers: Iterable[WorkerReport]) -> str:
    """Say what is left for all workers together: each sees the same marks, and has its own part of the rate."""
    reports = list(workers)
    marked = max((report.marked for report in reports), default=0)
    if not marked:
        return "no ledger is marked"
    left = max(report.bytes_left for report in reports)
    parked = max(report.parked_count for report in reports)
    text = f"{format_count(marked, 'ledger')} marked, {parked} parked: about {format_size(left)} left to copy"
    rates = [report.bytes_per_s for report in reports]
    rate = sum(one for one in rates if one is not None)
    if left and rate and None not in rates:
        text += f", {left / rate:.0f} s at {format_size(int(rate))} a second"
    return text


def _worker_lines(workers: dict[str, WorkerReport]) -> list[str]:
    lines = []
    for name, worker in sorted(workers.items()):
        text = (
            f"worker {name}: {len(worker.active)} active, {worker.waiting} waiting, {worker.parked_count} parked;"
            f" {format_count(worker.ledgers_repaired, 'ledger')} repaired, {format_size(worker.bytes_copied)} copied"
        )
        lines.append(text)
        lines += [f"  parked: ledger {each.ledger_id}: {each.reason}" for each in worker.parked]
    return lines


def _cycle_line(audit: Audit, now_ms: int) -> str:
    last = audit.last_cycle
    if not last.ended_ms:
        return f"check of all ledgers: {audit.cycle.ledgers} checked, the first cycle has not ended"
    seconds = (last.ended_ms - last.began_ms) / 1000
    return (
        f"check of all ledgers: the last cycle took {seconds:.0f} s, ended {(now_ms - last.ended_ms) / 1000:.0f} s"
        f" ago; {format_count(last.ledgers, 'ledger')}, {last.unsure} with bookies that did not answer"
    )


FOLLOW_S = 1.0
WHOLE = ("supervisor", "janitor", "autorecovery")
"""Processes that an event's source names already."""
SINCE_DEFAULT = "-1h"
SOURCES_S = 30.0
"""How often --follow reads metadata for new bookies."""


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
        from fastbk.admin.cluster import read_cluster_events

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
        from fastbk.admin.cluster import further_pages

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
        from fastbk.admin.cluster import event_pages

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
