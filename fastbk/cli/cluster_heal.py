"""`fastbk cluster heal ...`: what AutoRecovery is doing; pause or hold it, resume it, set its copy rate."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING

from fastbk.cli.options import metadata_uri, print_answer
from fastbk.cli.running import add_watch
from fastbk.cli.terminal import painted
from fastbk.errors import ConfigError
from fastbk.units import format_count, format_size, format_utc_ms, parse_duration_us, parse_size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from fastbk.autorecovery.state import Audit, ClusterState, WorkerReport
    from fastbk.client import Client
    from fastbk.meta.api import MetadataStore
    from fastbk.meta.records import BadRecord

ACTIONS = ("status", "pause", "hold", "resume", "rate")
HOLD_REASON = "an operator holds it: `fastbk cluster heal hold`"


def add_heal_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    add_watch(parser)
    parser.add_argument(
        "action",
        choices=ACTIONS,
        help="status (default), pause, hold, resume or rate",
        nargs="?",
        default="status",
    )
    parser.add_argument(
        "value",
        nargs="?",
        help="of rate: bytes a second for the whole cluster, as 64MiB; 0: no limit. Of hold: how long, as 30min",
    )


def heal(options: argparse.Namespace) -> int:
    """Do it."""
    if (options.value is not None) != (options.action in ("rate", "hold")):
        raise ConfigError(
            "`heal rate` takes the bytes a second, as `heal rate 64MiB`, and `heal hold` a time, as `heal hold 30min`;"
            " nothing else takes a value"
        )
    if options.watch is not None and options.action != "status":
        raise ConfigError(
            f"--watch repeats what it shows: leave it out with `heal {options.action}`"
        )
    return asyncio.run(_heal(options))


async def _heal(options: argparse.Namespace) -> int:
    import fastbk
    from fastbk.autorecovery.state import ClusterState, Settings

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
            return await _hold(options, state)
        if options.action == "rate":
            bytes_per_s = float(parse_size(options.value))
            await state.settings.put(Settings(bytes_per_s))
            said = f"{format_size(int(bytes_per_s))} a second" if bytes_per_s else "without a limit"
            return print_answer(options, {"bytes_per_s": bytes_per_s}, f"the cluster copies {said}")
        return await _status(options, client, state)


async def _hold(options: argparse.Namespace, state: ClusterState) -> int:
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


async def _status(options: argparse.Namespace, client: Client, state: object) -> int:
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
        "lost_bookies": {str(one): asdict(each) for one, each in lost.items()},
        "audit": asdict(audit),
        "workers": {name: asdict(one) for name, one in workers.items()},
    }
    lines = [
        f"AutoRecovery is {painted('on' if is_enabled else 'paused')}; auditor: {auditor or 'none'}",
        f"limit: {format_size(int(settings.bytes_per_s)) + ' a second' if settings.bytes_per_s else 'none'}",
        f"a lost bookie may be away for {delay_s:g} s",
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
    marked = max((one.marked for one in reports), default=0)
    if not marked:
        return "no ledger is marked"
    left = max(one.bytes_left for one in reports)
    parked = max(one.parked_count for one in reports)
    text = f"{format_count(marked, 'ledger')} marked, {parked} parked: about {format_size(left)} left to copy"
    rates = [one.bytes_per_s for one in reports]
    rate = sum(one for one in rates if one is not None)
    if left and rate and None not in rates:
        text += f", {left / rate:.0f} s at {format_size(int(rate))} a second"
    return text


def _worker_lines(workers: dict[str, WorkerReport]) -> list[str]:
    lines = []
    for name, one in sorted(workers.items()):
        text = (
            f"worker {name}: {len(one.active)} active, {one.waiting} waiting, {one.parked_count} parked;"
            f" {format_count(one.ledgers_repaired, 'ledger')} repaired, {format_size(one.bytes_copied)} copied"
        )
        lines.append(text)
        lines += [f"  parked: ledger {each.ledger_id}: {each.reason}" for each in one.parked]
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
