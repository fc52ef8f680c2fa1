"""`fastbk stream ...`: streams of a cluster from the command line."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Literal

from fastbk.cli import data_files
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
    some_of,
    table,
)
from fastbk.cli.stream_append import add_append_arguments, append
from fastbk.cli.stream_options import (
    EXAMPLES,
    LOST,
    START_HELP,
    add_inherit,
    add_on_gap,
    add_policy,
    add_range,
    add_verb_of_one,
    cursor_facts,
    cursor_lines,
    origins_of,
    pattern_cursor_facts,
    pattern_cursor_lines,
    pattern_of,
    pattern_start_of,
    policy_facts,
    policy_lines,
    policy_of,
    print_gap,
    print_record,
    range_of,
    run_endless,
    set_policy,
    start_of,
    stream_of,
)
from fastbk.cli.terminal import add_watch
from fastbk.errors import (
    ConfigError,
    Error,
    StreamNotFound,
)
from fastbk.exit_codes import DONE, FAILED
from fastbk.stream.paths import split_stream_path
from fastbk.units import format_age_s, format_count, format_size, parse_duration_us

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from fastbk.admin.metadata_rebuild import PutBack, UnlistedSegments
    from fastbk.stream.client import Client
    from fastbk.stream.cursor.store import CursorInfo
    from fastbk.stream.namespace.listing import StreamInfo
    from fastbk.stream.namespace.namespace import Namespace
    from fastbk.stream.pattern.reader import PatternReader, PatternStart
    from fastbk.stream.positions import DLSN, AtSeq, Start
    from fastbk.stream.reader.stream_reader import StreamReader
    from fastbk.stream.records import Gap
    from fastbk.stream.stream import Stream

DELETIONS_SHOWN_MAX = 10
LEFT_SHOWN_MAX = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    verbs = add_verbs(parser)
    create = add_verb(verbs, "create", _create, "make streams in a namespace that is there")
    create.add_argument("streams", nargs="+", metavar="STREAM", help="such as shop/orders")
    create.add_argument("--exist-ok", action="store_true", help="leave those that are there alone")
    add_policy(create)

    text = "append the lines of a file or stdin, a line a record"
    add_append_arguments(add_verb_of_one(verbs, "append", append, text))
    add_read_arguments(add_verb_of_one(verbs, "read", read, "print records", takes_pattern=True))
    text = "print the last records, and what comes, until Ctrl-C"
    add_tail_arguments(add_verb_of_one(verbs, "tail", tail, text, takes_pattern=True))

    data_files.add_stream_verb(verbs)
    add_watch(add_verb_of_one(verbs, "info", _info, "print what is known of a stream"))
    text = "change a stream's own policy, from its next segment on"
    change = add_verb_of_one(verbs, "set", _set, text)
    add_policy(change)
    add_inherit(change)

    text = "print who appends, one writer or producers; or change it, fencing whoever appends now"
    kind = add_verb_of_one(verbs, "kind", _kind, text)
    kind.add_argument(
        "kind", nargs="?", choices=["writer", "producers"], help="without: nothing is changed"
    )

    listing = add_verb(verbs, "list", _list, "print the streams of a namespace, with sizes")
    listing.add_argument("namespace", nargs="?", default="", metavar="NAMESPACE", help="the root")
    listing.add_argument("--prefix", default="", metavar="TEXT", help="names that begin with it")
    listing.add_argument(
        "--recursive", "-r", action="store_true", help="those of the namespaces below, too"
    )
    add_watch(listing)

    text = "cut off all records before a position, for good"
    truncate = add_verb_of_one(verbs, "truncate", _truncate, text)
    truncate.add_argument("--before", required=True, metavar="POSITION", help=START_HELP)
    text = "give a stream another name in its namespace"
    add_verb_of_one(verbs, "rename", _rename, text).add_argument("name", metavar="NAME")
    text = "print a stream's durable cursors; create, move or delete one"
    cursors = add_verb_of_one(verbs, "cursors", _cursors, text, takes_pattern=True)
    _add_cursor_actions(cursors)
    add_watch(cursors)
    text = "put closed ledgers with records of this stream behind all that it has; again: changes nothing"
    attach = add_verb_of_one(verbs, "attach", _attach, text)
    attach.add_argument(
        "ledgers", nargs="+", type=int, metavar="LEDGER", help="in the order of their records"
    )
    text = "put segments that metadata has lost back, in order; make streams anew whose records are lost"
    again = add_verb(verbs, "reattach", _reattach, text)
    again.add_argument(
        "streams", nargs="*", metavar="STREAM", help="these only; without: all that lack segments"
    )
    text = "end a stream for good: it can be read, not written any more"
    seal = add_verb_of_one(verbs, "seal", _seal, text)
    text = "delete streams for good, data, cursors and all"
    delete = add_verb(verbs, "delete", _delete, text)
    delete.add_argument("streams", nargs="+", metavar="STREAM", help=EXAMPLES["STREAM"])

    add_common(verbs)
    for final in (truncate, seal, delete, cursors):
        add_confirmation(final)


def run(options: argparse.Namespace) -> int:
    """Run one verb against the cluster."""
    return run_verb(options) if options.verb == "export" else run_endless(options)


async def _create(client: Client, options: argparse.Namespace) -> int:
    policy = policy_of(options.set)
    by_namespace: dict[str, list[str]] = {}
    for path in options.streams:
        namespace, name = split_stream_path(path)
        by_namespace.setdefault(namespace, []).append(name)
    for namespace, names in by_namespace.items():
        await client.namespace(namespace).create_streams(names, policy, exist_ok=options.exist_ok)
        if not namespace:
            note(
                f"{', '.join(names)}: created in the root, since no namespace was given (NAMESPACE/STREAM)"
            )
    return print_answer(options, {"created": options.streams})


async def _info(client: Client, options: argparse.Namespace) -> int:
    stream = stream_of(client, options.stream)
    info = await stream.info()
    facts = _facts(info)
    if info.fault:
        note(
            f"nobody can read {info.path}: `fastbk stream delete {info.path}` deletes it with its ledgers"
        )
        print_answer(
            options, facts, *_lines({"stream": info.path, "id": info.id, "fault": info.fault})
        )
        return 1
    last = await stream.last_position()
    if last is not None:
        facts |= {"last_visible": str(last.dlsn), "last_visible_seq": last.seq}
        facts["last_visible_txid"] = last.txid
    begin = await stream.first()
    facts["visible_records"] = 0 if begin is None or last is None else last.seq + 1 - begin.seq
    effective = policy_facts(await stream.effective_policy())
    cursors = await _cursors_of(stream)
    lines = [*_lines(facts), "policy"]
    origins = await origins_of(client, split_stream_path(options.stream)[0])
    lines += policy_lines(effective, policy_facts(await stream.policy()), origins)
    if cursors:
        lines += ["cursors", *(f"  {line}" for line in cursor_lines(cursors))]
    return print_answer(options, facts | {"policy": effective, "cursors": cursors}, *lines)


def _facts(info: StreamInfo) -> dict[str, object]:
    """Return what metadata says of a stream, for JSON and for people."""
    return {
        "stream": info.path,
        "id": info.id,
        "created": info.created.isoformat(timespec="seconds"),
        "kind": info.kind,
        "sealed": info.is_sealed,
        "segments": info.segments,
        "open_segments": info.open_segments,
        "records": info.records,
        "bytes": info.size_bytes,
        "trim": str(info.trim),
        "last_dlsn": None if info.last_dlsn is None else str(info.last_dlsn),
        "last_txid": info.last_txid,
        "last_time": None
        if info.last_time is None
        else info.last_time.isoformat(timespec="milliseconds"),
        "epoch": info.epoch,
        "owner": info.owner,
        **({"fault": info.fault} if info.fault else {}),
    }


def _lines(found: dict[str, object]) -> list[str]:
    """Return facts a line each."""
    return table(
        [(name, "-" if value in (None, "") else str(value)) for name, value in found.items()], "<<"
    )


async def _set(client: Client, options: argparse.Namespace) -> int:
    policy = await set_policy(stream_of(client, options.stream), options)
    return print_answer(options, {"stream": options.stream, "policy": policy})


async def _kind(client: Client, options: argparse.Namespace) -> int:
    stream = stream_of(client, options.stream)
    info = await stream.info()
    kind = options.kind or info.kind
    if kind != info.kind:
        if info.open_segments:
            note(f"fencing whoever appends to {info.path}: {info.owner}")
        await stream.set_kind(kind)
    return print_answer(options, {"stream": info.path, "kind": kind}, kind)


async def _list(client: Client, options: argparse.Namespace) -> int:
    namespace = client.namespace(options.namespace.strip("/"))
    infos = [
        stream async for stream in namespace.streams(options.prefix, recursive=options.recursive)
    ]
    if options.json:
        print_json({"streams": [_facts(info) for info in infos]})
        return 0
    if not infos:
        note("no streams here; `fastbk namespace list` shows the namespaces")
        return 0
    rows = [("stream", "segments", "records", "size", "")]
    for info in infos:
        if info.fault:
            rows.append((info.path, "-", "-", "-", f"bad: {info.fault}"))
            continue
        states = (info.is_sealed, "sealed"), (bool(info.open_segments), "open")
        mark = next((text for is_so, text in states if is_so), "")
        if info.kind != "writer":
            mark = f"{mark} {info.kind}".strip()
        size = format_size(info.size_bytes)
        rows.append((info.path, f"{info.segments:,}", f"{info.records:,}", size, mark))
    print("\n".join(table(rows, "<>>><")))
    if any(info.open_segments for info in infos):
        note("what open segments hold is counted when they are closed")
    return 0


async def _truncate(client: Client, options: argparse.Namespace) -> int:
    from fastbk.stream.stream import truncate

    before = start_of(options.before)
    if before == "earliest":
        raise ConfigError(
            "nothing lies before earliest: --before takes what is to be the first record; latest: all go"
        )
    action = f"cut off all records of stream {options.stream} before {options.before}"
    if (code := exit_without_consent(options, action)) is not None:
        return code
    trim = await truncate(await stream_of(client, options.stream).context(), before)
    if not options.json:
        note(f"{options.stream} begins at {trim}; the janitor deletes segments that lie before it")
    return print_answer(options, {"stream": options.stream, "trim": str(trim)}, str(trim))


async def _rename(client: Client, options: argparse.Namespace) -> int:
    namespace, name = split_stream_path(options.stream)
    renamed = await client.namespace(namespace).rename_stream(name, options.name)
    return print_answer(options, {"stream": renamed.path})


async def _attach(client: Client, options: argparse.Namespace) -> int:
    from fastbk.admin.metadata_rebuild import key_of

    stream = stream_of(client, options.stream)
    last = await stream.attach(options.ledgers, key_of(options.ledgers), 0)
    dlsn = None if last is None else str(last)
    facts = {"stream": options.stream, "attached": options.ledgers, "last_dlsn": dlsn}
    return print_answer(options, facts, *([dlsn] if dlsn else ()))


async def _reattach(client: Client, options: argparse.Namespace) -> int:
    from fastbk.admin.metadata_rebuild import put_back, unlisted_segments

    def find() -> UnlistedSegments:
        with opened_store(metadata_uri(options)) as store:
            return unlisted_segments(store)

    found = await asyncio.to_thread(find)
    wanted = set(options.streams)
    if unknown := wanted - {stream.path for stream in found.streams}:
        raise ConfigError(f"no ledger says that it is a segment which {min(unknown)} lacks")
    done: list[PutBack] = []
    failed = {one: f"a record is damaged: {why}" for one, why in found.damage.items() if not wanted}
    for lost in found.streams:
        if not wanted or lost.path in wanted:
            try:
                done.append(await put_back(client, lost))
            except Error as error:
                failed[lost.path] = str(error)
    facts = {"streams": [asdict(one) for one in done], "failed": failed}
    lines = [line for one in done for line in _put_back_lines(one)]
    lines += [f"FAILED {path}: {why}" for path, why in failed.items()]
    print_answer(options, facts, *(lines or ["no stream lacks segments"]))
    return FAILED if failed else DONE


def _put_back_lines(one: PutBack) -> list[str]:
    made = ", made anew" if one.is_made else ""
    left = [f"  not attached: ledger {ledger_id}: {why}" for ledger_id, why in one.left.items()]
    return [
        f"{one.stream}{made}: {format_count(len(one.attached), 'segment')} put back",
        *(f"  {note}" for note in one.notes),
        *some_of(left, LEFT_SHOWN_MAX),
    ]


def _add_cursor_actions(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--create", metavar="CURSOR", help="make this one, which nobody holds yet")
    what.add_argument(
        "--move", metavar="CURSOR",
        help="have this one go on elsewhere, by --to or --back, and fence whoever holds it; all records from there on"
        " are delivered (again)",
    )  # fmt: skip
    what.add_argument("--delete", metavar="CURSOR", help="delete this one")
    parser.add_argument(
        "--to",
        metavar="POSITION",
        help=f"where the cursor begins (--create: earliest), or goes on: {START_HELP}",
    )
    parser.add_argument(
        "--back", type=int, metavar="N", help="with --move: N records before its mark"
    )
    parser.add_argument(
        "--no-hold",
        action="store_true",
        help="with --create: retention does not keep what it has not acknowledged",
    )
    parser.add_argument(
        "--expire-after",
        metavar="DURATION",
        help="with --create: delete it after so long without a holder (7d)",
    )


async def _cursors(client: Client, options: argparse.Namespace) -> int:
    _check_cursor_options(options)
    found = await pattern_of(client, options.stream)
    if found is not None:
        return await _cursors_of_pattern(*found, options)
    stream = stream_of(client, options.stream)
    if options.create is not None:
        return await _create_cursor(stream, options)
    if options.move is not None:
        return await _move_cursor(stream, options)
    if options.delete is not None:
        action = f"delete cursor {options.delete} of stream {options.stream}"
        if (code := exit_without_consent(options, action)) is not None:
            return code
        if not await stream.delete_cursor(options.delete):
            raise await _no_cursor(stream, options.delete)
        return print_answer(options, {"deleted": options.delete})
    cursors = await _cursors_of(stream)
    if not cursors and not options.json:
        note(f"{options.stream} has no cursors")
        return 0
    return print_answer(
        options, {"stream": options.stream, "cursors": cursors}, *cursor_lines(cursors)
    )


async def _no_cursor(stream: Stream, name: str) -> StreamNotFound:
    """Return the error for a cursor that a stream does not have; one of a pattern is named by its pattern."""
    text = f"{stream.path} has no cursor {name} of its own"
    patterns = [cursor.pattern for cursor in await stream.pattern_cursors() if cursor.name == name]
    if patterns:
        pattern = "/".join((*stream.namespace, patterns[0]))
        text += f": {name} reads the pattern {pattern}. Give that in place of the stream"
    return StreamNotFound(text)


# --- cursors of patterns --------------------------------------------------------------------------------------------


async def _cursors_of_pattern(namespace: Namespace, names: str, options: argparse.Namespace) -> int:
    """Print the cursors that have this pattern; create, move or delete one."""
    name = options.create or options.move or options.delete
    if options.back is not None:
        raise ConfigError(
            "--back counts records of one stream: for a pattern give --to earliest, latest or time:..."
        )
    if name is None:
        now_s = time.time()
        infos = [
            cursor
            for cursor in await namespace.pattern_cursors()
            if cursor.fault or cursor.pattern == names
        ]
        found = [pattern_cursor_facts(one, now_s) for one in infos]
        if not found and not options.json:
            note(
                f"{options.stream} has no cursors; `fastbk namespace cursors` shows those of all patterns"
            )
            return 0
        return print_answer(
            options, {"pattern": options.stream, "cursors": found}, *pattern_cursor_lines(found)
        )
    start = pattern_start_of(options.to or "earliest", "--to")
    if options.create is not None:
        action = f"create cursor {name} of the pattern {options.stream}"
        if options.dry_run and (code := exit_without_consent(options, action)) is not None:
            return code
        expire_s = _expiry_of(options)
        await namespace.create_pattern_cursor(
            names, name, start, hold=not options.no_hold, expire_after=expire_s
        )
        return print_answer(options, {"pattern": options.stream, "created": name})
    info = next(
        (cursor for cursor in await namespace.pattern_cursors() if cursor.name == name), None
    )
    if info is None or not (info.fault or info.pattern == names):
        other = "" if info is None else f": that one reads {info.pattern}"
        raise StreamNotFound(f"the pattern {options.stream} has no cursor {name}{other}")
    if options.delete is not None:
        if (
            code := exit_without_consent(
                options, f"delete cursor {name} of the pattern {options.stream}"
            )
        ) is not None:
            return code
        await namespace.delete_pattern_cursor(name)
        return print_answer(options, {"deleted": name})
    facts: dict[str, object] = {"pattern": options.stream, "moved": name, "to": options.to}
    used = format_age_s(max(0.0, time.time() - info.record.used_at_us / 1e6))
    holder = f"its holder is fenced (last opened by {info.record.holder}, used {used} ago)"
    action = f"move cursor {name} to {options.to} in all streams of the pattern {options.stream}; {holder}"
    if (code := exit_without_consent(options, action, facts)) is not None:
        return code
    await namespace.move_pattern_cursor(names, name, start)
    return print_answer(options, facts)


# --- cursors of a stream --------------------------------------------------------------------------------------------


def _check_cursor_options(options: argparse.Namespace) -> None:
    """Raise ConfigError for options that say nothing together, before anything is changed."""
    is_change = any(one is not None for one in (options.create, options.move, options.delete))
    if is_change and options.watch is not None:
        raise ConfigError(
            "--watch repeats what it shows: leave it out with --create, --move and --delete"
        )
    if options.move is not None and (options.to is None) == (options.back is None):
        raise ConfigError(
            "--move takes the place: --to POSITION, or --back N records before the cursor's mark"
        )
    if options.back is not None and (options.move is None or options.back < 1):
        raise ConfigError("--back takes a number of records above 0, with --move CURSOR")
    if options.to is not None and options.create is None and options.move is None:
        raise ConfigError("--to needs --create CURSOR or --move CURSOR")
    if options.create is None and (options.no_hold or options.expire_after is not None):
        raise ConfigError(
            "--no-hold and --expire-after are said when a cursor is made: give --create CURSOR"
        )


async def _create_cursor(stream: Stream, options: argparse.Namespace) -> int:
    name, start, expire_s = options.create, start_of(options.to or "earliest"), _expiry_of(options)
    if options.dry_run:
        code = exit_without_consent(options, f"create cursor {name} of stream {options.stream}")
        return DONE if code is None else code
    made = await stream.create_cursor(name, start, hold=not options.no_hold, expire_after=expire_s)
    facts = {"stream": options.stream, "created": name, "mark": str(made.mark)}
    return print_answer(options, facts, str(made.mark))


def _expiry_of(options: argparse.Namespace) -> float | None:
    if options.expire_after is None:
        return None
    try:
        return parse_duration_us(options.expire_after) / 1e6
    except ValueError as error:
        raise ConfigError(
            f"--expire-after {options.expire_after}: write it like 90s, 2h or 7d"
        ) from error


async def _move_cursor(stream: Stream, options: argparse.Namespace) -> int:
    from fastbk.stream.cursor.store import move_cursor, place_before, place_of

    name, context = options.move, await stream.context()
    info = next((cursor for cursor in await stream.cursors() if cursor.name == name), None)
    if info is None:
        raise await _no_cursor(stream, name)
    if info.data.get("by") == "spark":
        raise ConfigError(
            f"cursor {name} shows how far a query of Spark's has come: its place is in its checkpoint, and it would"
            " move the cursor back. Begin the query anew, with another checkpoint and `startingOffsets`"
        )
    if options.to is not None:
        mark, seq = await place_of(context, start_of(options.to))
    else:
        mark, seq = await place_before(context, info, options.back)
    facts: dict[str, object] = {
        "stream": options.stream, "moved": name, "from": str(info.mark), "from_seq": info.mark_seq,
        "mark": str(mark), "mark_seq": seq,
    }  # fmt: skip
    if (
        code := exit_without_consent(options, _moving(options.stream, info, str(mark), seq), facts)
    ) is not None:
        return code
    await move_cursor(context, name, mark, seq)
    return print_answer(options, facts, str(mark))


def _moving(stream: str, info: CursorInfo, mark: str, seq: int) -> str:
    """Return what a move does, for who is to agree: how far, and whom it fences."""
    how_far = ""
    if info.mark_seq >= 0:
        count = abs(seq - info.mark_seq)
        what = "delivered again" if seq < info.mark_seq else "never delivered"
        how_far = f" ({format_count(count, 'record')} {what})" if count else " (where it is)"
    used = format_age_s(max(0.0, time.time() - info.used_at_us / 1e6))
    holder = (
        f"; its holder is fenced (last opened by {info.holder}, used {used} ago)"
        if info.holder
        else ""
    )
    return f"move cursor {info.name} of stream {stream} from {info.mark} to {mark}{how_far}{holder}"


async def _cursors_of(stream: Stream) -> list[dict[str, object]]:
    now_s = time.time()
    return [cursor_facts(info, backlog, now_s) for info, backlog in await stream.backlogs()]


async def _seal(client: Client, options: argparse.Namespace) -> int:
    info = await stream_of(client, options.stream).info()
    writer_text = ", fencing its writer" if info.open_segments else ""
    action = f"seal stream {info.path} for good{writer_text}"
    if not info.is_sealed and (code := exit_without_consent(options, action)) is not None:
        return code
    last = await stream_of(client, options.stream).seal()
    dlsn = None if last is None else str(last)
    facts = {"stream": options.stream, "sealed": True, "last_dlsn": dlsn}
    return print_answer(options, facts, *([dlsn] if dlsn else ()))


async def _delete(client: Client, options: argparse.Namespace) -> int:
    # All are read first: a name that is wrong deletes nothing.
    infos = [await stream_of(client, path).info() for path in options.streams]
    if (code := exit_without_consent(options, _deletion_of(infos), _sizes(infos))) is not None:
        return code
    for path in options.streams:
        namespace, name = split_stream_path(path)
        await client.namespace(namespace).delete_stream(name)
    return print_answer(options, {"deleted": options.streams})


def _deletion_of(infos: Sequence[StreamInfo]) -> str:
    named = ", ".join(
        f"{info.path} ({format_count(info.segments, 'segment')}, {format_size(info.size_bytes)})"
        for info in infos[:DELETIONS_SHOWN_MAX]
    )
    if len(infos) > DELETIONS_SHOWN_MAX:
        named += f" and {len(infos) - DELETIONS_SHOWN_MAX} more"
    return f"delete {format_count(len(infos), 'stream')} with all data and cursors: {named}"


def _sizes(infos: Sequence[StreamInfo]) -> dict[str, object]:
    streams = [
        {"stream": info.path, "segments": info.segments, "bytes": info.size_bytes} for info in infos
    ]
    return {"streams": streams}


# `fastbk stream read` and `tail`: records are printed.


STREAMS_AT_ONCE = 16
"""How many streams' last records are looked up at once."""


def add_read_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `read` takes, beside the stream."""
    add_range(parser)
    parser.add_argument("--max", type=int, metavar="N", help="at most so many records")
    _add_manner(parser)


def add_tail_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `tail` takes, beside the stream."""
    parser.add_argument(
        "-n",
        "--last",
        type=int,
        default=10,
        metavar="N",
        help="begin with the last N (10); of a pattern, of each",
    )
    parser.add_argument("--max", type=int, metavar="N", help="end after so many records")
    _add_manner(parser)


def _add_manner(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--payload",
        action="store_true",
        help="the payloads alone, each with a line end; a terminal gets control characters escaped",
    )
    add_on_gap(parser, LOST)


async def read(client: Client, options: argparse.Namespace) -> int:
    """Print records from one position up to another, or up to the last that is visible."""
    _check(options)
    found = await pattern_of(client, options.stream)
    if found is None:
        start, end = range_of(options)
        one = stream_of(client, options.stream).reader(
            start, end=end, tail=False, on_gap=_on_gap(options)
        )
        return await _print(one, options, tail=False)
    if options.end is not None:
        raise ConfigError(
            "--to is a place in one stream: with a pattern leave it out, or name one stream"
        )
    begin = pattern_start_of(options.start, "--from")
    return await _print(
        found[0].reader(found[1], begin, tail=False, on_gap=_on_gap(options)), options, tail=False
    )


async def tail(client: Client, options: argparse.Namespace) -> int:
    """Print the last records, of each stream of a pattern, and what comes, until the stream is sealed."""
    _check(options)
    if options.last < 0:
        raise ConfigError("-n must be 0 or more")
    found = await pattern_of(client, options.stream)
    if found is None:
        stream = stream_of(client, options.stream)
        start: Start = await _last(stream, options.last) if options.last else "latest"
        return await _print(
            stream.reader(start, tail=True, on_gap=_on_gap(options)), options, tail=True
        )
    begin: PatternStart = (
        await _last_of_all(client, *found, options.last) if options.last else "latest"
    )
    return await _print(
        found[0].reader(found[1], begin, tail=True, on_gap=_on_gap(options)), options, tail=True
    )


async def _last(stream: Stream, count: int) -> AtSeq:
    """Return the place of the last so many records."""
    from fastbk.stream.positions import AtSeq

    last, first = await stream.last_position(), await stream.first()
    begin = 0 if first is None else first.seq
    return AtSeq(max(begin, 0 if last is None else last.seq + 1 - count))


async def _last_of_all(
    client: Client, namespace: Namespace, names: str, count: int
) -> dict[str, DLSN]:
    """Return the place of the last so many records of each stream that is there; others begin at their first one."""
    from fastbk.stream.context import gathered
    from fastbk.stream.cursor.store import place_of
    from fastbk.stream.pattern.store import is_match

    async def begin(path: str) -> tuple[str, DLSN] | None:
        stream = stream_of(client, path)
        try:
            return path, (await place_of(await stream.context(), await _last(stream, count)))[0]
        except StreamNotFound:
            return None  # it was deleted just now

    paths = [
        one.path
        async for one in namespace.streams()
        if is_match(names, split_stream_path(one.path)[1])
    ]
    return dict(one for one in await gathered(begin, paths, STREAMS_AT_ONCE) if one is not None)


def _on_gap(options: argparse.Namespace) -> Literal["raise", "yield"]:
    return "yield" if options.on_gap == "tell" else "raise"


def _check(options: argparse.Namespace) -> None:
    """Raise ConfigError for options that say nothing together."""
    if options.max is not None and options.max < 1:
        raise ConfigError("--max must be 1 or more")
    if options.payload and options.json:
        raise ConfigError(
            "--payload prints payloads as they are, --json records as JSON: give one of them"
        )


async def _print(
    reader: StreamReader[Gap] | PatternReader[Gap], options: argparse.Namespace, *, tail: bool
) -> int:
    from fastbk.stream.records import Gap

    left = options.max
    async with reader:
        async for chunk in reader.chunks():
            if isinstance(chunk, Gap):
                print_gap(chunk, options)
                continue
            for record in chunk if left is None else chunk[:left]:
                print_record(record, options)
            if tail:
                sys.stdout.flush()
            if left is not None:
                left -= min(left, len(chunk))
                if left == 0:
                    break
    return 0
