"""The pages of streams, their records and cursors, and namespaces with their policies."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from fastbk.cli.stream_options import START_HELP, policy_facts, start_of, stream_of, text_of_gap
from fastbk.console.context import cursors_of, streams_of
from fastbk.console.sessions import may_read, why_not_change
from fastbk.errors import ConfigError, StreamNotFound
from fastbk.security.rights import Right
from fastbk.stream.paths import split_stream_path
from fastbk.stream.positions import AtSeq
from fastbk.stream.records import Gap
from fastbk.units import format_size, format_span_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.responses import Response

    from fastbk.console.cluster_view import StreamRow
    from fastbk.console.context import Context
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
"""Of one payload; the page says how many there are."""
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
