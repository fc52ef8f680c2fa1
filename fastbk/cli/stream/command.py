"""`fastbk stream ...`: streams of a cluster from the command line."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from fastbk.cli import export
from fastbk.cli.options import (
    add_confirmation,
    add_json,
    add_metadata,
    exit_without_consent,
    note,
    print_json,
)
from fastbk.cli.stream import append, read
from fastbk.cli.stream.cursors import cursor_facts, cursor_lines
from fastbk.cli.stream.options import (
    EXAMPLES,
    START_HELP,
    add_inherit,
    add_policy,
    add_verb,
    add_verb_of_one,
    policy_facts,
    policy_lines,
    policy_of,
    run_verb,
    start_of,
    stream_of,
)
from fastbk.errors import ConfigError, StreamNotFound
from fastbk.stream.paths import split_stream_path
from fastbk.units import format_count, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastbk.cli.stream.options import Verb
    from fastbk.stream.client import Client
    from fastbk.stream.namespace.listing import StreamInfo
    from fastbk.stream.stream import Stream

DELETIONS_SHOWN_MAX = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    create = add_verb(verbs, "create", "make streams in a namespace that is there")
    create.add_argument("streams", nargs="+", metavar="STREAM", help="such as shop/orders")
    create.add_argument("--exist-ok", action="store_true", help="leave those that are there alone")
    add_policy(create)

    appending = add_verb_of_one(
        verbs, "append", "append the lines of a file or stdin, a line a record", "STREAM"
    )
    append.add_arguments(appending)
    reading = add_verb_of_one(verbs, "read", "print records", "STREAM")
    read.add_read_arguments(reading)
    tailing = add_verb_of_one(
        verbs, "tail", "print the last records, and what comes, until Ctrl-C", "STREAM"
    )
    read.add_tail_arguments(tailing)

    export.add_stream_verb(verbs)
    info = add_verb_of_one(verbs, "info", "print what is known of a stream", "STREAM")
    change = add_verb_of_one(
        verbs, "set", "change a stream's own policy, from its next segment on", "STREAM"
    )
    add_policy(change)
    add_inherit(change)

    listing = add_verb(verbs, "list", "print the streams of a namespace, with sizes")
    listing.add_argument("namespace", nargs="?", default="", metavar="NAMESPACE", help="the root")
    listing.add_argument("--prefix", default="", metavar="TEXT", help="names that begin with it")
    listing.add_argument(
        "--recursive", "-r", action="store_true", help="those of the namespaces below, too"
    )

    truncate = add_verb_of_one(
        verbs, "truncate", "cut off all records before a position, for good", "STREAM"
    )
    truncate.add_argument("--before", required=True, metavar="POSITION", help=START_HELP)
    rename = add_verb_of_one(
        verbs, "rename", "give a stream another name in its namespace", "STREAM"
    )
    rename.add_argument("name", metavar="NAME")
    cursors = add_verb_of_one(verbs, "cursors", "print a stream's durable cursors", "STREAM")
    cursors.add_argument("--delete", metavar="CURSOR", help="delete this one instead")
    seal = add_verb_of_one(
        verbs, "seal", "end a stream for good: it can be read, not written any more", "STREAM"
    )
    delete = add_verb(verbs, "delete", "delete streams for good, data, cursors and all")
    delete.add_argument("streams", nargs="+", metavar="STREAM", help=EXAMPLES["STREAM"])

    for one in (
        create,
        appending,
        reading,
        tailing,
        info,
        change,
        listing,
        truncate,
        rename,
        cursors,
        seal,
        delete,
    ):
        add_metadata(one)
        add_json(one)
    for final in (truncate, seal, delete, cursors):
        add_confirmation(final)


def run(options: argparse.Namespace) -> int:
    """Run one verb against the cluster."""
    if options.verb == "export":
        return export.run_stream(options)
    return run_verb(options, _VERBS)


async def _create(client: Client, options: argparse.Namespace) -> int:
    policy = policy_of(options.set)
    by_namespace: dict[str, list[str]] = {}
    for path in options.streams:
        namespace, name = split_stream_path(path)
        by_namespace.setdefault(namespace, []).append(name)
    for namespace, names in by_namespace.items():
        await client.namespace(namespace).create_streams(names, policy, exist_ok=options.exist_ok)
    if options.json:
        print_json({"created": options.streams})
    return 0


async def _info(client: Client, options: argparse.Namespace) -> int:
    stream = stream_of(client, options.stream)
    info = await stream.info()
    found = facts(info)
    last = await stream.last_position()
    if last is not None:
        found |= {"last_visible": str(last.dlsn), "last_visible_seq": last.seq}
        found["last_visible_txid"] = last.txid
    begin = await stream.first()
    found["visible_records"] = 0 if begin is None or last is None else last.seq + 1 - begin.seq
    effective = policy_facts(await stream.effective_policy())
    cursors = await _cursors_of(stream)
    if options.json:
        print_json(found | {"policy": effective, "cursors": cursors})
        return 0
    print_facts(found)
    print("policy")
    print("\n".join(policy_lines(effective, policy_facts(await stream.policy()))))
    if cursors:
        print("cursors")
        print("\n".join(f"  {line}" for line in cursor_lines(cursors)))
    return 0


def facts(info: StreamInfo) -> dict[str, object]:
    """Return what metadata says of a stream, for JSON and for people."""
    return {
        "stream": info.path,
        "id": info.id,
        "created": info.created.isoformat(timespec="seconds"),
        "sealed": info.is_sealed,
        "segments": info.segments,
        "open_segments": info.open_segments,
        "records": info.records,
        "bytes": info.size_bytes,
        "trim": str(info.trim),
        "last_dlsn": None if info.last_dlsn is None else str(info.last_dlsn),
        "last_txid": info.last_txid,
        "epoch": info.epoch,
        "owner": info.owner,
    }


def print_facts(found: dict[str, object]) -> None:
    """Print facts a line each."""
    width = max(map(len, found))
    for name, value in found.items():
        text = "-" if value is None or value == "" else str(value)
        print(f"{name:<{width}}  {text}")


async def _set(client: Client, options: argparse.Namespace) -> int:
    if not options.set and not options.inherit:
        raise ConfigError("nothing to change: give --set FIELD=VALUE or --inherit FIELD")
    stream = stream_of(client, options.stream)
    await stream.set_policy(policy_of(options.set), inherit=options.inherit)
    if options.json:
        print_json({"stream": options.stream, "policy": policy_facts(await stream.policy())})
    return 0


async def _list(client: Client, options: argparse.Namespace) -> int:
    namespace = client.namespace(options.namespace.strip("/"))
    infos = [one async for one in namespace.streams(options.prefix, recursive=options.recursive)]
    if options.json:
        print_json({"streams": [facts(info) for info in infos]})
        return 0
    if not infos:
        note("no streams here; `fastbk namespace list` shows the namespaces")
        return 0
    rows = [("stream", "segments", "records", "size", "")]
    for info in infos:
        mark = "sealed" if info.is_sealed else ("open" if info.open_segments else "")
        size = format_size(info.size_bytes)
        rows.append((info.path, f"{info.segments:,}", f"{info.records:,}", size, mark))
    widths = [max(len(row[at]) for row in rows) for at in range(5)]
    for name, *numbers, mark in rows:
        cells = (f"{text:>{width}}" for text, width in zip(numbers, widths[1:], strict=False))
        print(f"{name:<{widths[0]}}  {'  '.join(cells)}  {mark}".rstrip())
    open_ones = sum(info.open_segments > 0 for info in infos)
    if open_ones:
        note("what open segments hold is counted when they are closed")
    return 0


async def _truncate(client: Client, options: argparse.Namespace) -> int:
    from fastbk.stream.janitor.truncation import truncate

    before = start_of(options.before)
    if before == "earliest":
        raise ConfigError(
            "nothing lies before earliest: --before takes what is to be the first record; latest: all go"
        )
    action = f"cut off all records of stream {options.stream} before {options.before}"
    if (code := exit_without_consent(options, action)) is not None:
        return code
    trim = await truncate(await stream_of(client, options.stream).context(), before)
    if options.json:
        print_json({"stream": options.stream, "trim": str(trim)})
    else:
        print(trim)
        note(f"{options.stream} begins at {trim}; the janitor deletes segments that lie before it")
    return 0


async def _rename(client: Client, options: argparse.Namespace) -> int:
    namespace, name = split_stream_path(options.stream)
    renamed = await client.namespace(namespace).rename_stream(name, options.name)
    if options.json:
        print_json({"stream": renamed.path})
    return 0


async def _cursors(client: Client, options: argparse.Namespace) -> int:
    stream = stream_of(client, options.stream)
    if options.delete is not None:
        action = f"delete cursor {options.delete} of stream {options.stream}"
        if (code := exit_without_consent(options, action)) is not None:
            return code
        if not await stream.delete_cursor(options.delete):
            raise StreamNotFound(f"{options.stream} has no cursor {options.delete}")
        if options.json:
            print_json({"deleted": options.delete})
        return 0
    found = await _cursors_of(stream)
    if options.json:
        print_json({"stream": options.stream, "cursors": found})
    elif found:
        print("\n".join(cursor_lines(found)))
    else:
        note(f"{options.stream} has no cursors")
    return 0


async def _cursors_of(stream: Stream) -> list[dict[str, object]]:
    now_s = time.time()
    return [cursor_facts(info, backlog, now_s) for info, backlog in await stream.backlogs()]


async def _seal(client: Client, options: argparse.Namespace) -> int:
    info = await stream_of(client, options.stream).info()
    writer_text = ", fencing its writer" if info.open_segments else ""
    action = f"seal stream {info.path} for good{writer_text}"
    if not info.is_sealed and (code := exit_without_consent(options, action)) is not None:
        return code
    async with stream_of(client, options.stream).writer(over_quota=True) as writer:
        last = await writer.seal()
    if options.json:
        print_json(
            {
                "stream": options.stream,
                "sealed": True,
                "last_dlsn": None if last is None else str(last),
            }
        )
    elif last is not None:
        print(last)
    return 0


async def _delete(client: Client, options: argparse.Namespace) -> int:
    # All are read first: a name that is wrong deletes nothing.
    infos = [await stream_of(client, path).info() for path in options.streams]
    if (code := exit_without_consent(options, _deletion_of(infos), _sizes(infos))) is not None:
        return code
    for path in options.streams:
        namespace, name = split_stream_path(path)
        await client.namespace(namespace).delete_stream(name)
    if options.json:
        print_json({"deleted": options.streams})
    return 0


def _deletion_of(infos: Sequence[StreamInfo]) -> str:
    named = ", ".join(
        f"{one.path} ({format_count(one.segments, 'segment')}, {format_size(one.size_bytes)})"
        for one in infos[:DELETIONS_SHOWN_MAX]
    )
    more = (
        f" and {len(infos) - DELETIONS_SHOWN_MAX} more" if len(infos) > DELETIONS_SHOWN_MAX else ""
    )
    return f"delete {format_count(len(infos), 'stream')} with all data and cursors: {named}{more}"


def _sizes(infos: Sequence[StreamInfo]) -> dict[str, object]:
    streams = [
        {"stream": one.path, "segments": one.segments, "bytes": one.size_bytes} for one in infos
    ]
    return {"streams": streams}


_VERBS: dict[str, Verb] = {
    "create": _create,
    "append": append.append,
    "read": read.read,
    "tail": read.tail,
    "info": _info,
    "set": _set,
    "list": _list,
    "truncate": _truncate,
    "rename": _rename,
    "cursors": _cursors,
    "seal": _seal,
    "delete": _delete,
}
