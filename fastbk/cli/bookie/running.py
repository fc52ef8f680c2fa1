"""The verbs about a running bookie: `fastbk bookie info`, `disk`, `log-level`, `gc` and `maintenance`.

They request its pages over HTTP. A bookie is named by `--http HOST:PORT`, by its id in a cluster's metadata, or not at
all where the cluster has only one. `maintenance` also stores in metadata that the bookie may be away for a while.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from fastbk.admin.page_client import AdminClient, client_at, find_bookie
from fastbk.cli.options import add_json, add_metadata, metadata_uri, note, print_answer, table
from fastbk.cli.terminal import add_watch, painted
from fastbk.errors import ConfigError, Error
from fastbk.observe import logs
from fastbk.units import (
    format_age_s,
    format_count,
    format_names,
    format_size,
    format_utc_ms,
    parse_duration_us,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from fastbk.autorecovery.lost_bookies import HealingHold
    from fastbk.client import Client
    from fastbk.meta import MetadataStore
    from fastbk.model.ids import BookieId


def add_bookie(parser: argparse.ArgumentParser) -> None:
    """Add the options that name one running bookie."""
    parser.add_argument(
        "bookie_id",
        nargs="?",
        metavar="ID",
        help="the bookie's id, as `fastbk bookie list` shows it; may be left out where there is only one",
    )
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="where it listens for HTTP, instead of its id; https://HOST:PORT with TLS",
    )
    add_metadata(parser)


def admin_client(options: argparse.Namespace) -> AdminClient:
    """Return the client of the bookie that the options name. Raises ConfigError, Error."""
    if options.http:
        return client_at(options.http, "--http")
    return find_bookie(metadata_uri(options), options.bookie_id)


WRITABLE = "writable"
WELL = ("ok", "warn")
CAUSES = {"wake_up": "a late wake-up", "ring": "a full ring or no credit"}
"""How a cause of slow commits is called, where its name does not say it."""


def add_info_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of both."""
    add_bookie(parser)
    add_json(parser)
    add_watch(parser)


def info(options: argparse.Namespace) -> int:
    """Print state, reasons and disks. Returns 1 when the bookie does not take writes."""
    found = admin_client(options).get("/info")
    print_answer(options, found, as_lines=_info_lines)
    return 0 if found["state"] == WRITABLE and not found["not_ready"] else 1


def disk(options: argparse.Namespace) -> int:
    """Print every directory's disk. Returns 1 when one is worse than a warning, or slow."""
    disks = admin_client(options).get("/disks")["disks"]
    print_answer(options, disks, as_lines=_disk_lines)
    is_well = all(each["state"] in WELL and not each["slow"] for each in disks)
    return 0 if is_well and disks else 1


def _info_lines(found: dict[str, Any]) -> list[str]:
    facts = [
        ("bookie", found["bookie_id"]),
        ("software", found["software"]),
        ("state", f"{painted(found['state'])} for {format_age_s(found['state_seconds'])}"),
        ("address", found["address"]),
        ("restarts", f"{found['restarts']} (epoch {found['epoch']})"),
        ("processes", ", ".join(f"{name} {pid}" for name, pid in found["pids"].items())),
    ]
    if found["quarantined"] or found["limbo"]:
        text = (
            f"{found['quarantined']:,} ranges of entries in quarantine, {found['limbo']:,} ledgers in limbo;"
            f" `fastbk bookie repair {found['bookie_id']}` heals them"
        )
        facts.append(("damaged", text))
    if found.get("bad_digests"):
        text = (
            f"{found['bad_digests']:,} ranges of entries came with a wrong digest; readers take other bookies' copies"
            " (GET /scrub names them)"
        )
        facts.append(("digests", text))
    facts += [("because", reason) for reason in found["not_ready"]]
    conditions = found.get("conditions", ())
    facts += [
        (condition["concerns"], condition["reason"])
        for condition in conditions
        if condition["concerns"] != "data"
    ]
    slow = found.get("slow") or {}
    if slow.get("counts"):
        causes = ", ".join(
            f"{CAUSES.get(cause, cause)} {count:,} (longest {slow['longest_ms'][cause]:,.0f} ms)"
            for cause, count in slow["counts"].items()
        )
        last = slow["last"]
        facts.append(("slow", f"over 10 ms because of: {causes}; GET /slow has the stages"))
        facts.append(("", f"last: {last['event']}, {last['took_ms']:,.0f} ms: {last['reason']}"))
    lines = [f"{name + ':' if name else '':<11} {text}" for name, text in facts]
    return lines + _disk_lines(found["disks"])


def _disk_lines(disks: list[dict[str, Any]]) -> list[str]:
    if not disks:
        return ["nothing is known of the disks yet: the bookie is starting"]
    rows = [("directory", "state", "for", "takes", "used", "free", "path")]
    for one in disks:
        lasted, free = (
            format_age_s(time.time() - one["state_since_s"]),
            format_size(one["free_bytes"]),
        )
        used = f"{one['used_ratio']:.0%}"
        which = f"{one['role']} {one['pair']}"
        rows.append(
            (which, painted(one["state"]), lasted, one["takes"], used, free, one["directory"])
        )
    lines: list[str] = []
    for row, one in zip(table(rows, "<<<<>><"), [{}, *disks], strict=True):
        lines.append(row)
        for key, said in (
            ("reason", "because"),
            ("slow", "slow"),
            ("errors", "failed writes since the start"),
        ):
            if one.get(key):
                lines.append(f"{'':<10}  {painted(said, 'slow')}: {one[key]}")
        if one.get("journal_files"):
            lines.append(f"{'':<10}  journal files: {one['journal_files']}")
    return lines


_LOG_LEVEL_PATH = "/log_level"


def add_log_level_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_bookie(parser)
    parser.add_argument(
        "level",
        nargs="?",
        metavar="LEVEL",
        help=f"{', '.join(logs.LEVELS)}; without: print the level that it has",
    )
    add_json(parser)


def log_level(options: argparse.Namespace) -> int:
    """Print or change it."""
    if options.level is None and options.bookie_id in logs.LEVELS:
        # `log-level debug` of the only bookie.
        options.bookie_id, options.level = None, options.bookie_id
    if options.level is None:
        found = admin_client(options).get(_LOG_LEVEL_PATH)
        return print_answer(options, found, found["level"])
    if options.level not in logs.LEVELS:
        raise ConfigError(f"no log level {options.level!r}: choose one of {', '.join(logs.LEVELS)}")
    found = admin_client(options).put(_LOG_LEVEL_PATH, {"level": options.level})
    text = f"{', '.join(found['processes'])} log from {found['level']} on, until the bookie is restarted"
    return print_answer(options, found, text)


POLL_S = 0.2
_GC_HELP = {
    "status": "what it did last, what it is at, and what is suspended",
    "run": "look for ledgers to delete now, or compact now; wait until it is done",
    "suspend": "let it delete or move nothing until `resume`, or until the bookie is started anew",
    "resume": "end a suspension",
}


def add_gc_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    verbs = parser.add_subparsers(dest="gc_verb", required=True, metavar="VERB")
    for name, text in _GC_HELP.items():
        verb = verbs.add_parser(name, help=text)
        add_bookie(verb)
        if name == "run":
            verb.add_argument(
                "--timeout",
                type=float,
                default=3600.0,
                metavar="SECONDS",
                help="longest wait (3600)",
            )
        add_json(verb)
        if name == "status":
            add_watch(verb)
            continue
        verb.add_argument("--minor", action="store_true", help="compaction of nearly empty logs")
        verb.add_argument("--major", action="store_true", help="compaction of half empty logs")
        if name != "run":
            verb.add_argument(
                "--ledgers", action="store_true", help="deletions; without any of these: all"
            )
            continue
        verb.add_argument(
            "--force",
            action="store_true",
            help="delete even most of the ledgers here, if metadata does not list them: your word that it is the right"
            " metadata store",
        )
        verb.add_argument("--no-wait", action="store_true", help="only ask for it")


def gc(options: argparse.Namespace) -> int:
    """Do what the verb says. Returns 1 when a run was refused or did not end well."""
    client = admin_client(options)
    if options.gc_verb == "status":
        status = client.get("/gc")
        return print_answer(options, status, as_lines=_gc_lines)
    if options.gc_verb == "run":
        return _run_gc(options, client)
    answer = client.post(f"/gc/{options.gc_verb}", {"what": _gc_kinds(options)})
    return print_answer(
        options, answer, f"suspended: {', '.join(answer['suspended']) or 'nothing'}"
    )


def _gc_kinds(options: argparse.Namespace) -> list[str]:
    from fastbk.server.gc_messages import LEDGERS, MAJOR, MINOR

    named = {
        LEDGERS: getattr(options, "ledgers", False),
        MINOR: options.minor,
        MAJOR: options.major,
    }
    return [name for name, is_named in named.items() if is_named]


def _run_gc(options: argparse.Namespace, client: AdminClient) -> int:
    from fastbk.server.gc_messages import LEDGERS

    what = _gc_kinds(options) or [LEDGERS]
    number = client.post("/gc/run", {"what": what, "force": options.force})["number"]
    if options.no_wait:
        note("asked for; `fastbk bookie gc status` tells how it goes")
        return 0
    end_s = time.monotonic() + options.timeout
    while True:
        status = client.get("/gc")
        if status.get("run_done", 0) >= number:
            break
        if status["runs_lost"] >= number or not status["running"]:
            raise Error("the gc process ended meanwhile: see the bookie's log, and run this again")
        if time.monotonic() >= end_s:
            raise Error(
                f"not done within {options.timeout:g} s; it goes on, see `fastbk bookie gc status`"
            )
        time.sleep(POLL_S)
    print_answer(options, status, as_lines=_gc_lines)
    return 0 if _went_well(status, what) else 1


def _went_well(status: dict[str, Any], what: list[str]) -> bool:
    from fastbk.server.gc_messages import LEDGERS

    looks = [status.get("cycle"), status.get("copies")] if LEDGERS in what else []
    runs = [run for run in status.get("compactions", ()) if run["kind"] in what]
    return not any(look and look["stopped"] for look in looks) and not any(
        run["error"] for run in runs
    )


def _gc_lines(status: dict[str, Any]) -> list[str]:
    """Return what people read."""
    if not status["running"]:
        return ["no gc process runs now: the bookie is starting, stopping, or serves reads only"]
    lines = [f"doing:      {status.get('doing') or 'nothing'}"]
    if status["suspended"]:
        lines.append(f"suspended:  {', '.join(status['suspended'])}")
    if cycle := status.get("cycle"):
        lines.append(
            f"deleted:    {cycle['deleted']:,} of {format_count(cycle['local'], 'ledger')} in the last look;"
            f" {cycle['candidates']:,} not in metadata, which go once the next look says so, too"
        )
        lines += _indented(cycle["stopped"])
    if copies := status.get("copies"):
        lines.append(
            f"copies:     {copies['dropped']:,} dropped in the last look; {copies['candidates']:,} that metadata does"
            " not count on now"
        )
        lines += _indented(copies["stopped"])
    for compaction in status.get("compactions", ()):
        state = "under way" if compaction["running"] else "done"
        lines.append(
            f"compaction: {compaction['kind']}, {state}: {format_count(compaction['logs'], 'log')},"
            f" {format_size(compaction['moved_bytes'])} moved, {format_size(compaction['freed_bytes'])} won back,"
            f" {compaction['bad_runs']:,} damaged runs left"
        )
        lines += _indented(compaction["error"])
    return lines


def _indented(text: str) -> list[str]:
    return [f"            {text}"] if text else []


READ_ONLY = "/api/v1/bookie/state/readonly"


def add_maintenance_arguments(parser: argparse.ArgumentParser) -> None:
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


def maintenance(options: argparse.Namespace) -> int:
    """List, begin or end it."""
    if options.span is None and not options.end:
        if options.bookie_id or options.reason or options.keep_writable:
            raise ConfigError(
                "give --for TIME to begin maintenance of a bookie, or --end to end it"
            )
        return _list_maintenance(options)
    if not options.bookie_id or (options.span is not None) == options.end:
        raise ConfigError("give the ID of a bookie, and --for TIME or --end")
    uri = metadata_uri(options)
    if options.end:
        was = asyncio.run(_change_maintenance(uri, options.bookie_id, None))
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
    asyncio.run(_change_maintenance(uri, options.bookie_id, hold))
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


async def _change_maintenance(uri: str, bookie_id: BookieId, hold: HealingHold | None) -> bool:
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
    await _change_maintenance(uri, bookie_id, None)


async def _check_known(client: Client, bookie_id: BookieId) -> None:
    def known(store: MetadataStore) -> set[BookieId]:
        return {bookie.service.bookie_id for bookie in store.list_bookies()} | {
            identity.bookie_id for identity in store.list_identities()
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


def _list_maintenance(options: argparse.Namespace) -> int:
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
