"""`fastbk bookie gc status|run|suspend|resume`: garbage collection and compaction of a running bookie."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from fastbk.cli.admin_client import add_bookie, admin_client
from fastbk.cli.options import add_json, note, print_answer
from fastbk.cli.running import add_watch
from fastbk.errors import Error
from fastbk.server.gc_messages import LEDGERS, MAJOR, MINOR
from fastbk.units import format_count, format_size

if TYPE_CHECKING:
    import argparse

    from fastbk.admin.page_client import AdminClient

POLL_S = 0.2
HELP = {
    "status": "what it did last, what it is at, and what is suspended",
    "run": "look for ledgers to delete now, or compact now; wait until it is done",
    "suspend": "let it delete or move nothing until `resume`, or until the bookie is started anew",
    "resume": "end a suspension",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    verbs = parser.add_subparsers(dest="gc_verb", required=True, metavar="VERB")
    for name, text in HELP.items():
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


def run(options: argparse.Namespace) -> int:
    """Do what the verb says. Returns 1 when a run was refused or did not end well."""
    client = admin_client(options)
    if options.gc_verb == "status":
        status = client.get("/gc")
        return print_answer(options, status, as_lines=_lines)
    if options.gc_verb == "run":
        return _run(options, client)
    answer = client.post(f"/gc/{options.gc_verb}", {"what": _what(options)})
    return print_answer(
        options, answer, f"suspended: {', '.join(answer['suspended']) or 'nothing'}"
    )


def _what(options: argparse.Namespace) -> list[str]:
    named = {
        LEDGERS: getattr(options, "ledgers", False),
        MINOR: options.minor,
        MAJOR: options.major,
    }
    return [name for name, is_named in named.items() if is_named]


def _run(options: argparse.Namespace, client: AdminClient) -> int:
    what = _what(options) or [LEDGERS]
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
    print_answer(options, status, as_lines=_lines)
    return 0 if _went_well(status, what) else 1


def _went_well(status: dict[str, Any], what: list[str]) -> bool:
    looks = [status.get("cycle"), status.get("copies")] if LEDGERS in what else []
    runs = [run for run in status.get("compactions", ()) if run["kind"] in what]
    return not any(look and look["stopped"] for look in looks) and not any(
        run["error"] for run in runs
    )


def _lines(status: dict[str, Any]) -> list[str]:
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
    for one in status.get("compactions", ()):
        state = "under way" if one["running"] else "done"
        lines.append(
            f"compaction: {one['kind']}, {state}: {format_count(one['logs'], 'log')},"
            f" {format_size(one['moved_bytes'])} moved, {format_size(one['freed_bytes'])} won back,"
            f" {one['bad_runs']:,} damaged runs left"
        )
        lines += _indented(one["error"])
    return lines


def _indented(text: str) -> list[str]:
    return [f"            {text}"] if text else []
