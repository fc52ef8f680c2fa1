"""`fastbk bookie maintenance ID --for 30min | --end`: a bookie that may be away for a while."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from fastbk.cli.admin_client import find_bookie
from fastbk.cli.options import add_json, add_metadata, metadata_uri, note, print_answer
from fastbk.cli.terminal import painted
from fastbk.errors import ConfigError, Error
from fastbk.units import format_age_s, format_names, format_utc_ms, parse_duration_us

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from fastbk.autorecovery.lost_bookies import HealingHold
    from fastbk.client import Client
    from fastbk.meta import MetadataStore
    from fastbk.model.ids import BookieId

READ_ONLY = "/api/v1/bookie/state/readonly"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.description = (
        "Let a bookie be away for a while: it refuses normal adds, so that writers choose others, and AutoRecovery does"
        " not copy its ledgers before the time is over. Without --for and --end: list what is in maintenance."
    )
    parser.add_argument(
        "bookie_id",
        nargs="?",
        metavar="ID",
        help="the bookie's id, as `fastbk bookie list` shows it",
    )
    parser.add_argument(
        "--for", dest="span", metavar="TIME", help="how long, such as 30min; at most 24h"
    )
    parser.add_argument("--reason", default="", metavar="TEXT", help="what other operators read")
    parser.add_argument(
        "--end", action="store_true", help="end it, and have the bookie take adds again"
    )
    parser.add_argument(
        "--keep-writable",
        action="store_true",
        help="with --for: let the bookie take adds as before",
    )
    add_metadata(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """List, begin or end it."""
    if options.span is None and not options.end:
        if options.bookie_id or options.reason or options.keep_writable:
            raise ConfigError(
                "give --for TIME to begin maintenance of a bookie, or --end to end it"
            )
        return _list(options)
    if not options.bookie_id or (options.span is not None) == options.end:
        raise ConfigError("give the ID of a bookie, and --for TIME or --end")
    uri = metadata_uri(options)
    if options.end:
        was = asyncio.run(_change(uri, options.bookie_id, None))
        is_writable = _set_read_only(uri, options.bookie_id, read_only=False)
        text = (
            f"maintenance of {options.bookie_id} has ended"
            if was
            else f"{options.bookie_id} was not in maintenance"
        )
        facts = {
            "bookie_id": options.bookie_id,
            "maintenance": None,
            "read_only": False if is_writable else None,
        }
        return print_answer(options, facts, text)
    hold = _hold(options)
    # The hold first: writers that leave the bookie, and its stop, must not set off copying.
    asyncio.run(_change(uri, options.bookie_id, hold))
    is_read_only = not options.keep_writable and _set_read_only(
        uri, options.bookie_id, read_only=True
    )
    if is_read_only:
        said = "it refuses normal adds"
    else:
        said = (
            "it takes adds as before"
            if options.keep_writable
            else "it takes adds whenever it is up"
        )
    lines = (
        f"{options.bookie_id} is in maintenance until {format_utc_ms(hold.until_ms)}:",
        f"{said}, and its ledgers are not copied",
        f"`fastbk bookie maintenance {options.bookie_id} --end` ends that",
    )
    facts = {
        "bookie_id": options.bookie_id,
        "maintenance": asdict(hold),
        "read_only": is_read_only or None,
    }
    return print_answer(options, facts, *lines)


def _hold(options: argparse.Namespace) -> HealingHold:
    from fastbk.autorecovery.lost_bookies import HOLD_S_MAX, HealingHold

    try:
        span_s = parse_duration_us(options.span) / 1e6
    except ValueError as error:
        raise ConfigError(f"--for {options.span}: {error}") from error
    if not 0 < span_s <= HOLD_S_MAX:
        raise ConfigError(
            f"--for {options.span}: must be more than 0 and at most {HOLD_S_MAX / 3600:.0f}h"
        )
    return HealingHold(int((time.time() + span_s) * 1000), " ".join(options.reason.split())[:200])


async def _change(uri: str, bookie_id: BookieId, hold: HealingHold | None) -> bool:
    """Store the maintenance of one bookie, None: its end; return whether it was in maintenance. Raises ConfigError."""
    import fastbk
    from fastbk.autorecovery.state import ClusterState, Maintenance, clock_ms

    was = False
    async with fastbk.connect(uri) as client:
        if hold is not None:
            await _check_known(client, bookie_id)

        def decide(before: Maintenance) -> Maintenance:
            nonlocal was
            current = before.current(clock_ms())
            was = bookie_id in current
            others = {one: each for one, each in current.items() if one != bookie_id}
            return replace(before, bookies=others if hold is None else {**others, bookie_id: hold})

        await ClusterState(client.records).maintenance.change(decide)
    return was


async def end_with_bookie(uri: str, bookie_id: BookieId) -> None:
    """End the maintenance of a bookie that is forgotten: another one may get its id."""
    await _change(uri, bookie_id, None)


async def _check_known(client: Client, bookie_id: BookieId) -> None:
    def known(store: MetadataStore) -> set[BookieId]:
        return {one.service.bookie_id for one in store.list_bookies()} | {
            one.bookie_id for one in store.list_identities()
        }

    found = await client.call_store(known)
    if bookie_id not in found:
        raise ConfigError(f"the cluster has no bookie {bookie_id}; it has: {format_names(found)}")


def _set_read_only(uri: str, bookie_id: BookieId, *, read_only: bool) -> bool:
    """Have the bookie refuse or take adds; return whether it does. One that is down does not hinder maintenance."""
    try:
        find_bookie(uri, bookie_id).put(READ_ONLY, {"readOnly": read_only})
    except Error as error:
        wanted = "refuse" if read_only else "take"
        note(
            f"fastbk: {bookie_id} could not be made to {wanted} adds: {' '.join(str(error).split())}"
        )
        return False
    return True


def _list(options: argparse.Namespace) -> int:
    found = read_maintenance(metadata_uri(options))
    facts = {one: asdict(hold) for one, hold in found.items()}
    return print_answer(
        options, facts, *(maintenance_lines(found) or ["no bookie is in maintenance"])
    )


def read_maintenance(uri: str) -> Mapping[BookieId, HealingHold]:
    """Return the bookies that are in maintenance now. Raises Error."""
    import fastbk
    from fastbk.autorecovery.state import ClusterState, clock_ms

    async def read() -> Mapping[BookieId, HealingHold]:
        async with fastbk.connect(uri) as client:
            return (await ClusterState(client.records).maintenance.read()).current(clock_ms())

    return asyncio.run(read())


def maintenance_lines(found: Mapping[BookieId, HealingHold]) -> list[str]:
    """Return a line for each bookie in maintenance."""
    now_ms = int(time.time() * 1000)
    return [
        f"{one} is in {painted('maintenance')} for another {format_age_s(hold.left_s(now_ms))}"
        + (f": {hold.reason}" if hold.reason else "")
        for one, hold in sorted(found.items())
    ]
