"""The search: bookies, ledgers, namespaces, streams and cursors by their ids and names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse

from fastbk.console.context import cursors_of, streams_of
from fastbk.console.rendering import link
from fastbk.errors import NoSuchLedger
from fastbk.units import format_count, format_size

if TYPE_CHECKING:
    from starlette.responses import Response

    from fastbk.console.context import Context

FOUND_MAX = 50
"""Of each kind."""
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
        one
        for one in streams_of(context)
        if low in one.path.lower()
        or low == one.stream_id
        or (low.isdigit() and int(low) in one.ledgers)
    ]
    namespaces = dict.fromkeys(one.namespace for one in rows if low in one.namespace.lower())
    found = [
        Found("namespace", name, "", link("namespace", name), name.lower() == low)
        for name in namespaces
    ][:FOUND_MAX]
    for one in rows[:FOUND_MAX]:
        about = f"{format_count(one.records, 'record')}, {format_size(one.size_bytes)}"
        if low.isdigit() and int(low) in one.ledgers:
            about += f"; ledger {low} is a segment of it"
        is_exact = low in (one.path.lower(), one.stream_id)
        found.append(Found("stream", one.path, about, link("stream", one.path), is_exact))
    return found


def _cursors(context: Context, low: str) -> list[Found]:
    return [
        Found(
            "cursor",
            f"{one.cursor} of {one.stream}",
            "",
            link("stream", one.stream) + "#cursors",
            False,
        )
        for one in cursors_of(context)
        if low in one.cursor.lower()
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
