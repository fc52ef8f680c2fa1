"""`fastbk cluster ...`: the state of all bookies, what misses copies, and which bookies the metadata knows."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from fastbk.cli.options import (
    add_confirmation,
    add_json,
    add_metadata,
    exit_without_consent,
    metadata_uri,
    note,
    print_json,
)
from fastbk.errors import ConfigError
from fastbk.units import format_entries, format_size

if TYPE_CHECKING:
    import argparse

    from fastbk.admin.cluster import BookieState
    from fastbk.meta.hold import Hold

def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    status = verbs.add_parser("status", help="how many bookies are up, and whether all is well")
    bookies = verbs.add_parser("bookies", help="every bookie: state, address, disk, why not up")
    lacking = verbs.add_parser(
        "under-replicated", help="ledgers that miss copies: by marks and by bookies that are gone"
    )
    lacking.add_argument(
        "--verify",
        action="store_true",
        help="also ask every bookie which entries it holds (reads no data, but asks once a fragment and bookie)",
    )
    cookies = verbs.add_parser("cookies", help="the bookies that the metadata knows; forget one")
    _add_cookies_options(cookies)
    for one in (status, bookies, lacking, cookies):
        add_metadata(one)
        add_json(one)


def run(options: argparse.Namespace) -> int:
    """Run one verb."""
    if options.verb == "cookies":
        return _cookies(options)
    if options.verb == "bookies":
        return print_bookies(options)
    verbs = {"status": _status, "under-replicated": _under_replicated}
    return asyncio.run(verbs[options.verb](options))


def print_bookies(options: argparse.Namespace) -> int:
    """Print every bookie: `fastbk cluster bookies` and `fastbk bookie list`."""
    return asyncio.run(_bookies(options))


async def _states(options: argparse.Namespace) -> tuple[list[BookieState], Hold | None]:
    """Return the state of every bookie, and the hold that metadata is on."""
    import fastbk
    from fastbk.admin.cluster import bookie_states
    from fastbk.meta import open_store
    from fastbk.meta.hold import read_hold

    uri = metadata_uri(options)
    store = open_store(uri, 10.0, may_make=False)
    try:
        identities = await asyncio.to_thread(store.list_identities)
        hold = await asyncio.to_thread(read_hold, store)
    finally:
        store.close()
    async with fastbk.connect(uri) as client:
        return await bookie_states(client, identities), hold


async def _status(options: argparse.Namespace) -> int:
    states, hold = await _states(options)
    counts = {name: 0 for name in ("up", "read-only", "frozen", "silent", "down")}
    for one in states:
        counts[one.state] += 1
    total = sum(one.info.disk_total_bytes for one in states if one.info)
    free = sum(one.info.disk_free_bytes for one in states if one.info)
    is_well = bool(states) and counts["up"] == len(states) and hold is None
    if options.json:
        print_json(
            {
                "bookies": counts,
                "disk_total_bytes": total,
                "disk_free_bytes": free,
                "metadata_hold": None if hold is None else str(hold),
                "is_well": is_well,
            }
        )
        return 0 if is_well else 1
    said = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    print(f"bookies: {said or 'none'}")
    if total:
        share = 100 * (1 - free / total)
        print(f"disks:   {format_size(total - free)} of {format_size(total)} used ({share:.0f} %)")
    for one in states:
        if one.state != "up":
            print(f"{one.bookie_id} is {one.state}: {one.reason or 'not registered'}")
    if hold is not None:
        print(f"metadata is on hold, nothing is deleted: {hold}; see `fastbk metadata status`")
    return 0 if is_well else 1


async def _bookies(options: argparse.Namespace) -> int:
    states, _ = await _states(options)
    if options.json:
        print_json([asdict(one) for one in states])
        return 0
    width = max([len(one.bookie_id) for one in states] + [6])
    print(f"{'bookie':<{width}}  {'state':<9}  {'address':<21}  {'disk used':<22}  software")
    for one in states:
        info = one.info
        disk = software = "-"
        if info is not None:
            used = info.disk_total_bytes - info.disk_free_bytes
            share = one.used_share
            percent = f" ({100 * share:.0f} %)" if share is not None else ""
            disk = f"{format_size(used)} of {format_size(info.disk_total_bytes)}{percent}"
            software = info.software
        print(
            f"{one.bookie_id:<{width}}  {one.state:<9}  {one.address or '-':<21}  {disk:<22}  {software}"
        )
        if one.reason:
            print(f"{'':<{width}}  {one.reason}")
    return 0


async def _under_replicated(options: argparse.Namespace) -> int:
    """Exit code 1 when anything misses copies, so that scripts can wait for the end of it."""
    import fastbk
    from fastbk.admin.cluster import under_replicated

    found = []
    unlisted: set[str] = set()
    async with fastbk.connect(metadata_uri(options)) as client:
        async for one in under_replicated(client, verify=options.verify, unlisted=unlisted):
            if options.json:
                found.append(asdict(one))
            else:
                found.append({})
                count = one.count
                many = "" if count is None else f" ({format_entries(count)}, from {one.ids[0]})"
                print(
                    f"ledger {one.ledger_id} from entry {one.first_entry_id}: {one.bookie_id}:"
                    f" {one.reason}{many}"
                )
    if unlisted:
        print(
            f"no list of entries comes from {', '.join(sorted(unlisted))}: of these copies the first and last entry of"
            " each fragment was looked for; `fastbk ledger audit` reads all",
            file=sys.stderr,
        )
    if options.json:
        print_json(found)
    elif not found:
        print("nothing misses copies")
    return 1 if found else 0


def _add_cookies_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the verb."""
    parser.add_argument(
        "--forget",
        metavar="ID",
        help="delete the cookie and identity of a bookie that does not run and that no ledger names",
    )
    parser.add_argument(
        "--even-if-named", action="store_true", help="with --forget: also when ledgers name it"
    )
    add_confirmation(parser)


def _cookies(options: argparse.Namespace) -> int:
    """List, or forget one."""
    from fastbk.admin.cookies import forget, known_bookies
    from fastbk.meta import open_store
    from fastbk.model.ids import BookieId

    if options.even_if_named and not options.forget:
        raise ConfigError("--even-if-named goes with --forget ID")
    store = open_store(metadata_uri(options), 10.0, may_make=False)
    try:
        if options.forget:
            action = f"delete the cookie and identity of bookie {options.forget}"
            if (code := exit_without_consent(options, action)) is not None:
                return code
            forget(store, BookieId(options.forget), even_if_named=options.even_if_named)
            note(f"bookie {options.forget} is forgotten; its directories start no bookie any more")
            return 0
        found = known_bookies(store)
        instance_id = store.instance_id()
    finally:
        store.close()
    if options.json:
        print_json({"instance_id": instance_id, "bookies": [asdict(one) for one in found]})
        return 0
    print(f"cluster {instance_id or 'without an instance id'}")
    for one in found:
        state = "running" if one.is_registered else "not running"
        print(f"{one.bookie_id}  incarnation {one.incarnation}, {one.starts + 1} starts, {state}")
        for directory in one.directories:
            print(f"    {directory}")
    return 0
