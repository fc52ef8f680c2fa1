"""The console's pages that show: the cluster and what is wrong with it, bookies, events, ledgers, streams, cursors.

The search finds bookies, ledgers, namespaces, streams and cursors by their ids and names.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, RedirectResponse

from fastbk.admin.placement_check import rule_origin
from fastbk.autorecovery.state import ClusterState, clock_ms
from fastbk.cli.stream_options import START_HELP, policy_facts, start_of, stream_of, text_of_gap
from fastbk.client.placement_judge import read_judge
from fastbk.console.cluster_view import lag_name
from fastbk.console.context import cursors_of, streams_of
from fastbk.console.rendering import link
from fastbk.console.sessions import may_read, why_not_change
from fastbk.errors import ConfigError, NoSuchLedger, StreamNotFound
from fastbk.meta.api import VersionedLedger
from fastbk.meta.records import BadRecord
from fastbk.model.ledger import STREAM_KEY
from fastbk.observe.events import KINDS, Query, kinds_of, moments
from fastbk.overview.bookie_history import SEVERITIES
from fastbk.overview.values import DOWN, NO_ANSWER, Severity
from fastbk.placement.rules import rule_of, rule_text
from fastbk.security.rights import Right
from fastbk.stream.paths import split_stream_path
from fastbk.stream.positions import AtSeq
from fastbk.stream.records import Gap
from fastbk.units import format_count, format_size, format_span_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.responses import Response

    from fastbk.console.cluster_view import ClusterView, StreamRow
    from fastbk.console.context import Context
    from fastbk.overview.values import BookieRow, CursorLag
    from fastbk.stream.records import Record
    from fastbk.stream.stream import Stream

PAGE_ROWS = 100
SEGMENTS_SHOWN_MAX = 12
NAMESPACES_MAX = 1000
ORDERS = {
    "name": lambda one: (one.path,),
    "size": lambda one: (-one.size_bytes, one.path),
    "records": lambda one: (-one.records, one.path),
    "segments": lambda one: (-one.segments, one.path),
}


# --- the whole cluster ------------------------------------------------------------------------------

EVENTS_SHOWN_MAX = 8
NAMES_MAX = 8
"""Series of one chart."""


async def cluster(context: Context) -> Response:
    """Show whether all is well, what is not, and how much is going on."""
    overview = context.view.overview
    bookies = () if overview is None else overview.bookies
    happened = [
        one for one in bookies if one.last_event is not None and one.last_event.at_s is not None
    ]
    disks = [disk for one in bookies for disk in one.disks if disk.role == "ledger"]
    free = sum(one.free_bytes for one in disks)
    total = sum(one.free_bytes / max(1 - one.used_ratio, 0.001) for one in disks)
    return context.page(
        "cluster.html",
        problems=problems_of(context.view, cursors_of(context)),
        up=sum(one.state not in (NO_ANSWER, DOWN) for one in bookies),
        warned=sum(one.severity > Severity.NOTE for one in bookies),
        free_bytes=free,
        used_share=1 - free / total if total else None,
        soonest_full_s=min(
            (one.full_in_s for one in bookies if one.full_in_s is not None), default=None
        ),
        happened=sorted(happened, key=_newest_first)[:EVENTS_SHOWN_MAX],
        history=context.view.history,
    )


async def healing(context: Context) -> Response:
    """Show what AutoRecovery does, and what it has to do."""
    state = ClusterState(context.view.client.records)
    audit, workers = await state.audit.read(), await state.workers()
    settings, hold = await state.settings.read(), await state.hold.read()
    return context.page(
        "healing.html", audit=audit, workers=workers, settings=settings, hold=hold, now_ms=clock_ms(),
        history=context.view.history, refused=why_not_change(context.principal, None),
    )  # fmt: skip


async def series(context: Context) -> Response:
    """Answer the points of a chart: {"times": [seconds], "series": [[value or null]]}."""
    names = context.request.query_params.getlist("name")
    if not 0 < len(names) <= NAMES_MAX:
        raise ConfigError(f"a chart has 1 to {NAMES_MAX} series")
    hidden = _hidden_of(context, names)
    found = [
        ([], []) if name in hidden else context.view.history.get(name).last() for name in names
    ]
    times = sorted({at for some, _ in found for at in some})
    values = [dict(zip(*one, strict=True)) for one in found]
    return JSONResponse(
        {"times": times, "series": [[value.get(at) for at in times] for value in values]}
    )


def _newest_first(row: BookieRow) -> float:
    return 0.0 if row.last_event is None else -(row.last_event.at_s or 0.0)


def _hidden_of(context: Context, names: Sequence[str]) -> set[str]:
    """Return the series of cursors that the user may not see."""
    if context.principal.namespaces is None:
        return set()
    shown = {lag_name(cursor.stream, cursor.cursor) for cursor in cursors_of(context)}
    return {name for name in names if name.startswith("cursor/")} - shown


# --- what is wrong ----------------------------------------------------------------------------------------------------

PROBLEMS_SHOWN_MAX = 20
LAG_S = 3600.0
"""A cursor whose oldest unread record is older gets a line."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """One line of the list. `url`: the page that shows more."""

    severity: Severity
    what: str
    text: str
    url: str


def problems_of(view: ClusterView, cursors: Sequence[CursorLag]) -> list[Trouble]:
    """Return the first PROBLEMS_SHOWN_MAX of what is wrong, the worst first. `cursors`: those that the user may see."""
    return sorted(_all(view, cursors), key=lambda one: -one.severity)[:PROBLEMS_SHOWN_MAX]


def _all(view: ClusterView, cursors: Sequence[CursorLag]) -> Iterator[Trouble]:
    overview = view.overview
    if overview is None:
        return
    for reason in overview.reasons:
        is_bookie = view.bookie(reason.subject) is not None
        url = link("bookie", reason.subject) if is_bookie else "/healing"
        text = f"{reason.text}; next: {reason.next_step}"
        what = reason.subject if is_bookie else reason.subject.capitalize()
        yield Trouble(SEVERITIES[reason.verdict], what, text, url)
    healing = overview.healing
    if healing is not None and healing.enabled and not healing.auditor:
        text = "no auditor is elected: is “fastbk autorecovery” running?"
        yield Trouble(Severity.NOTE, "Healing", text, "/healing")
    late = [cursor for cursor in cursors if (cursor.oldest_unread_s or 0.0) > LAG_S]
    if late:
        example = f"{late[0].cursor} of {late[0].stream}"
        text = f"{format_count(len(late), 'cursor')} more than an hour behind, such as {example}"
        yield Trouble(Severity.NOTE, "Cursors", text, "/cursors")
    if view.streams.error:
        yield Trouble(Severity.NOTE, "Console", view.streams.error, "/")


# --- bookies and their disks ------------------------------------------------------------------------------------------


async def bookies(context: Context) -> Response:
    """List all bookies, the sickest first."""
    overview = context.view.overview
    low = context.query("q").lower()
    rows = [
        one
        for one in (() if overview is None else overview.bookies)
        if low in one.bookie_id.lower()
    ]
    return context.page("bookies.html", rows=rows, filter_text=low, history=context.view.history)


async def bookie(context: Context) -> Response:
    """Show one bookie, and what may be done with it."""
    bookie_id = context.request.path_params["bookie_id"]
    row = context.view.bookie(bookie_id)
    if row is None:
        raise HTTPException(404, f"no bookie {bookie_id} is known")
    refused = why_not_change(context.principal, None)
    return context.page("bookie.html", row=row, refused=refused, history=context.view.history)


async def disks(context: Context) -> Response:
    """List the directories of all bookies: bad ones first, then those that are full soonest."""
    overview = context.view.overview
    rows = [
        (one, disk) for one in (() if overview is None else overview.bookies) for disk in one.disks
    ]
    rows.sort(
        key=lambda pair: (
            pair[1].state == "ok",
            not pair[1].slow,
            -pair[1].used_ratio,
            pair[0].bookie_id,
            pair[1].role,
            pair[1].pair,
        )
    )
    return context.page("disks.html", rows=rows)


# --- events -----------------------------------------------------------------------------------------------------------

EVENTS_MAX = 50
"""Maximum events on a page, which has a link to older ones."""
SINCE_DEFAULT = "-1h"
LEVELS = {"debug": 0, "info": 0, "warning": 2, "error": 3}
"""How an event's level is shown."""


async def events(context: Context) -> Response:
    """Show what happened between two moments: the newest events that the query admits, the newest first."""
    if context.principal.namespaces is not None:
        raise ConfigError(
            "events are of the whole cluster, and your token is limited to namespaces"
        )
    since, until = context.query("since", SINCE_DEFAULT) or SINCE_DEFAULT, context.query("until")
    kind, bookie_id = context.query("kind"), context.query("bookie")
    record, error = None, ""
    try:
        first, end = moments(since, until, time.time())
        kinds = kinds_of([kind] if kind else [])
        query = Query(since=first, until=end, kinds=kinds, limit=EVENTS_MAX, is_newest=True)
        record = await context.view.events.read(query, (since, until), bookie_id)
    except ConfigError as problem:
        error = str(problem)
    overview = context.view.overview
    return context.page(
        "events.html", found=record, error=error, since=since, until=until, kind=kind, kinds=KINDS, bookie_id=bookie_id,
        bookies=sorted(one.bookie_id for one in (() if overview is None else overview.bookies)),
        levels=LEVELS, count_max=EVENTS_MAX,
    )  # fmt: skip


# --- ledgers --------------------------------------------------------------------------------------


FRAGMENTS_SHOWN_MAX = 200
MISPLACED_SHOWN_MAX = 10
CUSTOM_CHARACTERS_MAX = 200


async def ledgers(context: Context) -> Response:
    """List ledgers from an id on."""
    first = context.number("from", 0, 0, 2**62)
    client = context.view.client
    ids = await client.call_store(lambda store: store.list_ledgers(first - 1, PAGE_ROWS + 1))
    found = await client.call_store(lambda store: store.read_ledgers(ids[:PAGE_ROWS]))
    names = {row.stream_id: row.path for row in context.view.streams.rows}
    rows = [
        (
            ledger_id,
            one.metadata,
            names.get(one.metadata.custom.get(STREAM_KEY, b"").decode("utf-8", "replace"), ""),
        )
        for ledger_id, one in zip(ids, found, strict=False)
        if isinstance(one, VersionedLedger) and context.principal.is_allowed(one.metadata.namespace)
    ]
    # Of one that nobody can read the namespace is not known: only who may see all of them sees that it is there.
    bad = [
        one for one in found if isinstance(one, BadRecord) and context.principal.namespaces is None
    ]
    following = ids[PAGE_ROWS] if len(ids) > PAGE_ROWS else None
    return context.page("ledgers.html", rows=rows, bad=bad, first=first, following=following)


async def ledger(context: Context) -> Response:
    """Show one ledger. Passwords are never shown."""
    ledger_id = context.request.path_params["ledger_id"]
    client = context.view.client
    try:
        info = await client.ledger_info(ledger_id)
    except NoSuchLedger:
        raise HTTPException(404, f"no ledger {ledger_id}") from None
    metadata = info.metadata
    if not context.principal.is_allowed(metadata.namespace):
        raise HTTPException(404, f"no ledger {ledger_id}")
    mark = await client.marks.read(ledger_id)
    stream_id = metadata.custom.get(STREAM_KEY, b"").decode("utf-8", "replace")
    stream = next((row.path for row in context.view.streams.rows if row.stream_id == stream_id), "")
    custom = {
        name: value.decode("utf-8", "backslashreplace")[:CUSTOM_CHARACTERS_MAX]
        for name, value in metadata.custom.items()
    }
    known = (
        {}
        if context.view.overview is None
        else {one.bookie_id: one for one in context.view.overview.bookies}
    )
    judge = await client.call_store(read_judge)
    rule = rule_of(metadata.custom, judge.rules.rule)
    verdict = judge.judge_ledger(ledger_id, metadata)
    fragments = metadata.fragments[-FRAGMENTS_SHOWN_MAX:]
    members = {member for fragment in fragments for member in fragment.ensemble}
    return context.page(
        "ledger.html", info=info, metadata=metadata, custom=custom, stream=stream, missing=mark.missing,
        mark_fault=mark.fault, fragments=fragments, known=known,
        rule=f"{rule_text(rule)}; it is {rule_origin(metadata.custom)}",
        misplaced=[*verdict.enforced, *verdict.soft][:MISPLACED_SHOWN_MAX],
        locations={member: judge.place(member).location for member in members},
    )  # fmt: skip


# --- the search -----------------------------------------------------------------------------------


FOUND_MAX = 50
"""Maximum results of each kind."""
LEDGER_ID_DIGITS_MAX = 18


@dataclass(frozen=True, slots=True)
class Found:
    """One answer. `is_exact`: its id or whole name is the text."""

    kind: str
    name: str
    about: str
    url: str
    is_exact: bool


async def search(context: Context) -> Response:
    """Show what has this id or name; with one answer, go there."""
    text = context.query("q")
    if not text:
        return context.page("search.html", text="", found=[], query_text="")
    found = await find_all(context, text)
    exact = [one for one in found if one.is_exact]
    if len(exact) == 1:
        return RedirectResponse(exact[0].url, 303)
    return context.page("search.html", text=text, found=found, query_text=text)


async def find_all(context: Context, text: str) -> list[Found]:
    """Return what a user may see that has this text in its id or name; exact answers first."""
    low = text.strip("/").lower()
    found = _bookies(context, low) + _streams(context, low) + _cursors(context, low)
    if low.isascii() and low.isdigit() and len(low) <= LEDGER_ID_DIGITS_MAX:
        found += await _ledger(context, int(low))
    return sorted(found, key=lambda one: not one.is_exact)


def _bookies(context: Context, low: str) -> list[Found]:
    rows = () if context.view.overview is None else context.view.overview.bookies
    return [
        Found("bookie", one, state.replace("_", "-"), link("bookie", one), one.lower() == low)
        for one, state in ((row.bookie_id, row.state) for row in rows)
        if low in one.lower()
    ][:FOUND_MAX]


def _streams(context: Context, low: str) -> list[Found]:
    rows = [
        stream
        for stream in streams_of(context)
        if low in stream.path.lower()
        or low == stream.stream_id
        or (low.isdigit() and int(low) in stream.ledgers)
    ]
    namespaces = dict.fromkeys(row.namespace for row in rows if low in row.namespace.lower())
    found = [
        Found("namespace", name, "", link("namespace", name), name.lower() == low)
        for name in namespaces
    ][:FOUND_MAX]
    for row in rows[:FOUND_MAX]:
        about = f"{format_count(row.records, 'record')}, {format_size(row.size_bytes)}"
        if low.isdigit() and int(low) in row.ledgers:
            about += f"; ledger {low} is a segment of it"
        is_exact = low in (row.path.lower(), row.stream_id)
        found.append(Found("stream", row.path, about, link("stream", row.path), is_exact))
    return found


def _cursors(context: Context, low: str) -> list[Found]:
    return [
        Found(
            "cursor",
            f"{cursor.cursor} of {cursor.stream}",
            "",
            link("stream", cursor.stream) + "#cursors",
            False,
        )
        for cursor in cursors_of(context)
        if low in cursor.cursor.lower()
    ][:FOUND_MAX]


async def _ledger(context: Context, ledger_id: int) -> list[Found]:
    try:
        info = await context.view.client.ledger_info(ledger_id)
    except NoSuchLedger:
        return []
    if not context.principal.is_allowed(info.metadata.namespace):
        return []
    about = info.metadata.state.name.lower().replace("_", " ")
    return [Found("ledger", str(ledger_id), about, link("ledger", ledger_id), True)]


# --- streams, cursors and namespaces ----------------------------------------------------------------


async def streams(context: Context) -> Response:
    """List streams, a page at a time."""
    low = context.query("q").lower()
    order = context.query("order", "name")
    rows = [one for one in streams_of(context) if low in one.path.lower()]
    if order in ORDERS and order != "name":
        rows.sort(key=ORDERS[order])
    number = context.number("page", 1, 1, max(1, -(-len(rows) // PAGE_ROWS)))
    shown = rows[(number - 1) * PAGE_ROWS : number * PAGE_ROWS]
    hot = () if context.view.overview is None else context.view.overview.hot_streams
    return context.page(
        "streams.html", rows=shown, count=len(rows), number=number, pages=max(1, -(-len(rows) // PAGE_ROWS)),
        filter_text=context.query("q"), order=order if order in ORDERS else "name", orders=list(ORDERS),
        rates={one.path: one.adds_per_s for one in hot}, index=context.view.streams,
    )  # fmt: skip


async def stream(context: Context) -> Response:
    """Show one stream: its figures, segments, cursors with their lag, and policy."""
    path = context.request.path_params["stream"].strip("/")
    namespace, _ = split_stream_path(path)
    if not context.principal.is_allowed(namespace):
        raise HTTPException(404, f"no stream {path}")
    found = stream_of(context.view.client, path)
    try:
        info = await found.info()
    except StreamNotFound:
        raise HTTPException(404, f"no stream {path}") from None
    segments, backlogs = [], []
    if not info.fault:
        # The newest ones: a stream may have a hundred thousand.
        behind = (await (await found.context()).store.read()).chain.next_number
        segments = await found.segments(max(1, behind - SEGMENTS_SHOWN_MAX))
        backlogs = await found.backlogs()
    effective, own = (
        policy_facts(await found.effective_policy()),
        policy_facts(await found.policy()),
    )
    return context.page(
        "stream.html", info=info, namespace=namespace, segments=segments, cursors=backlogs,
        policy=policy_rows(effective, own), now_us=int(time.time() * 1e6),
        readable=may_read(context.principal, namespace),
        refused=why_not_change(context.principal, namespace, Right.TRUNCATE),
        history=context.view.history,
    )  # fmt: skip


async def cursors(context: Context) -> Response:
    """List durable cursors, the longest unread first, with their lag over the last hour."""
    overview = context.view.overview
    low = context.query("q").lower()
    rows = [
        cursor
        for cursor in cursors_of(context)
        if low in f"{cursor.stream} {cursor.cursor}".lower()
    ]
    number = context.number("page", 1, 1, max(1, -(-len(rows) // PAGE_ROWS)))
    return context.page(
        "cursors.html", rows=rows[(number - 1) * PAGE_ROWS : number * PAGE_ROWS], count=len(rows), number=number,
        pages=max(1, -(-len(rows) // PAGE_ROWS)), filter_text=context.query("q"), history=context.view.history,
        left_out=0 if overview is None else overview.cursors_left_out,
    )  # fmt: skip


async def namespaces(context: Context) -> Response:
    """List namespaces with the streams and bytes in them, those below included."""
    rows = streams_of(context)
    return context.page("namespaces.html", rows=_totals(rows), index=context.view.streams)


async def namespace(context: Context) -> Response:
    """Show one namespace: its policy, what is below it, and its quota."""
    path = context.request.path_params["namespace"].strip("/")
    if not context.principal.is_allowed(path):
        raise HTTPException(404, f"no namespace {path}")
    found = context.view.client.namespace(path)
    if not await found.exists():
        raise HTTPException(404, f"no namespace {path}")
    effective, own = (
        policy_facts(await found.effective_policy()),
        policy_facts(await found.policy()),
    )
    below = [one async for one in found.namespaces()][:NAMESPACES_MAX]
    inside = [one for one in streams_of(context) if one.namespace == path]
    return context.page(
        "namespace.html", name=path, below=[one.path for one in below if context.principal.is_allowed(one.path)],
        rows=inside[:PAGE_ROWS], count=len(inside), streams=await found.stream_count(),
        stored_bytes=await found.stored_bytes(), policy=policy_rows(effective, own),
    )  # fmt: skip


def _totals(rows: Sequence[StreamRow]) -> list[tuple[str, int, int, int, int]]:
    """Return path, depth, streams, records and bytes of each namespace that has streams, or whose namespaces have."""
    totals: dict[str, list[int]] = {}
    for row in rows:
        words = row.namespace.split("/") if row.namespace else []
        for depth in range(len(words) + 1):
            total = totals.setdefault("/".join(words[:depth]), [0, 0, 0])
            total[0] += 1
            total[1] += row.records
            total[2] += row.size_bytes
    listed = sorted(totals)[:NAMESPACES_MAX]
    return [(path, path.count("/") + bool(path), *totals[path]) for path in listed]  # type: ignore[misc]


def policy_rows(
    effective: dict[str, object], own: dict[str, object]
) -> list[tuple[str, str, str, bool]]:
    """Return field, value, what the value means for people, and whether it is set here."""
    return [
        (name, str(value), _meaning(name, value), name in own) for name, value in effective.items()
    ]


def _meaning(name: str, value: object) -> str:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return ""
    if not value and name.endswith(("_bytes", "_s", "_max")):
        return "never by age" if name == "roll_age_s" else "no limit"
    if name.endswith("_bytes"):
        return format_size(int(value))
    return format_span_s(value) if name.endswith("_s") else ""


# --- a stream's records -----------------------------------------------------------------------------------------------

COUNT_DEFAULT, COUNT_MAX = 25, 200
SHOWN_BYTES_MAX = 4096
"""Maximum bytes of a payload that a page shows; it says how many there are."""
HEX_BYTES_MAX = 1024
READ_BYTES_MAX = 1 << 20
"""Read ahead for one page."""
READ_TIMEOUT_S = 10.0
LINE_CHARACTERS_MAX = 100
"""JSON that is longer is shown with a line for each value."""
FORMATS = ("auto", "text", "json", "hex")
_HEX_WIDTH = 16


@dataclass(frozen=True, slots=True)
class ShownRecord:
    """One record for people. `format`: how the payload is shown; `cut_bytes`: of the payload that are not shown."""

    position: str
    seq: int
    txid: int
    time: datetime
    key: str
    headers: tuple[tuple[str, str], ...]
    payload: str
    payload_bytes: int
    format: str
    cut_bytes: int


async def records(context: Context) -> Response:
    """Show a bounded page of records from a position on, as text, JSON or hexadecimal."""
    path = context.request.path_params["stream"].strip("/")
    namespace, _ = split_stream_path(path)
    if not context.principal.is_allowed(namespace):
        raise HTTPException(404, f"no stream {path}")
    if not may_read(context.principal, namespace):
        name = context.principal.name
        raise ConfigError(
            f"{name} may not read records: this needs a token with the operation `read`"
        )
    begin, format_name = context.query("from"), context.query("as", "auto")
    count = context.number("count", COUNT_DEFAULT, 1, COUNT_MAX)
    if format_name not in FORMATS:
        format_name = "auto"
    stream = stream_of(context.view.client, path)
    shown: list[ShownRecord] = []
    gaps: list[str] = []
    error = ""
    last_seq = -1
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            last = await stream.last_position()
            last_seq = -1 if last is None else last.seq
            if not begin:
                begin = f"seq:{max(0, last_seq + 1 - count)}"
            shown, gaps = await _read(stream, begin, count, format_name)
    except ConfigError as problem:
        error = str(problem)
    except StreamNotFound:
        raise HTTPException(404, f"no stream {path}") from None
    if context.principal.name != "local":
        context.console.audit.note(
            "console.records_read", address=context.address, principal=context.principal.name, target=path,
            position=begin[:100], count=len(shown),
        )  # fmt: skip
    return context.page(
        "records.html", stream=path, shown=shown, gaps=gaps, error=error, begin=begin, count=count, last_seq=last_seq,
        format_name=format_name, formats=FORMATS, help=START_HELP,
    )  # fmt: skip


async def _read(
    stream: Stream, begin: str, count: int, format_name: str
) -> tuple[list[ShownRecord], list[str]]:
    """Return at most `count` records and the gaps before them. Raises ConfigError for what is no position."""
    start = start_of(begin)
    if isinstance(start, AtSeq) and start.seq == 0:
        start = "earliest"  # record 0 may be gone
    shown: list[ShownRecord] = []
    gaps: list[str] = []
    async with stream.reader(
        start, on_gap="yield", tail=False, prefetch_bytes=READ_BYTES_MAX
    ) as reader:
        async for chunk in reader.chunks(max_wait=0.0):
            if isinstance(chunk, Gap):
                gaps.append(text_of_gap(chunk))
                continue
            shown += [shown_record(one, format_name) for one in chunk[: count - len(shown)]]
            if len(shown) >= count:
                break
    return shown, gaps


def shown_record(record: Record, format_name: str) -> ShownRecord:
    """Return a record as the page shows it."""
    payload = bytes(record.payload)
    text, used, shown_bytes = shown_payload(payload, format_name)
    return ShownRecord(
        str(record.dlsn),
        record.seq,
        record.txid,
        record.time,
        "" if record.key is None else _text(record.key[:SHOWN_BYTES_MAX]),
        tuple((name, _text(value[:SHOWN_BYTES_MAX])) for name, value in record.headers),
        text,
        len(payload),
        used,
        max(0, len(payload) - shown_bytes),
    )


def shown_payload(payload: bytes, format_name: str) -> tuple[str, str, int]:
    """Return a payload for people, the format that was used, and how many bytes of it are shown.

    `auto` is JSON where it is JSON and is shown whole, else text where it is printable text, else hexadecimal.
    """
    if format_name in ("auto", "json") and len(payload) <= SHOWN_BYTES_MAX:
        pretty = _json(payload)
        if pretty is not None and (format_name == "json" or payload[:1] in (b"{", b"[")):
            return pretty, "json", len(payload)
    if format_name in ("auto", "json"):
        format_name = "text" if _is_text(payload[:SHOWN_BYTES_MAX]) else "hex"
    if format_name == "text":
        return _text(payload[:SHOWN_BYTES_MAX]), "text", SHOWN_BYTES_MAX
    return hex_lines(payload[:HEX_BYTES_MAX]), "hex", HEX_BYTES_MAX


def hex_lines(data: bytes) -> str:
    """Return bytes as `hexdump -C` does: offset, sixteen bytes, and what is ASCII of them."""
    lines = []
    for offset in range(0, len(data), _HEX_WIDTH):
        row = data[offset : offset + _HEX_WIDTH]
        plain = "".join(chr(one) if 32 <= one < 127 else "." for one in row)
        lines.append(f"{offset:08x}  {row.hex(' '):<{3 * _HEX_WIDTH - 1}}  {plain}")
    return "\n".join(lines)


def _json(payload: bytes) -> str | None:
    try:
        value = json.loads(payload)
        line = json.dumps(value, ensure_ascii=False)
        line.encode()  # JSON can say a lone surrogate, which no page can
        return (
            line
            if len(line) <= LINE_CHARACTERS_MAX
            else json.dumps(value, indent=2, ensure_ascii=False)
        )
    except (ValueError, RecursionError):
        return None


def _is_text(payload: bytes) -> bool:
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        # A character that the limit has cut in two is no reason.
        if error.start < len(payload) - 3:
            return False
        text = payload[: error.start].decode()
    return all(one.isprintable() or one in "\n\r\t" for one in text)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
