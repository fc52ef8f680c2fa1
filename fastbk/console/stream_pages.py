"""The pages of streams, their cursors, and namespaces with their policies."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from fastbk.cli.stream.options import policy_facts, stream_of
from fastbk.console.access import may_read, why_not_change
from fastbk.console.visible import cursors_of, streams_of
from fastbk.errors import StreamNotFound
from fastbk.security.rights import Right
from fastbk.stream.paths import split_stream_path
from fastbk.units import format_size, format_span_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.responses import Response

    from fastbk.console.context import Context
    from fastbk.console.stream_index import StreamRow

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
    rows = [one for one in cursors_of(context) if low in f"{one.stream} {one.cursor}".lower()]
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
    for one in rows:
        words = one.namespace.split("/") if one.namespace else []
        for depth in range(len(words) + 1):
            total = totals.setdefault("/".join(words[:depth]), [0, 0, 0])
            total[0] += 1
            total[1] += one.records
            total[2] += one.size_bytes
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
