"""The pages of the whole cluster: its state, healing, the search, and the points of charts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import JSONResponse, RedirectResponse

from fastbk.autorecovery.state import ClusterState, clock_ms
from fastbk.console.access import why_not_change
from fastbk.console.cluster_view import lag_name
from fastbk.console.problems import problems_of
from fastbk.console.searching import find_all
from fastbk.console.visible import cursors_of
from fastbk.errors import ConfigError
from fastbk.overview.values import DOWN, NO_ANSWER, Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.responses import Response

    from fastbk.console.context import Context
    from fastbk.overview.values import BookieRow

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
        {"times": times, "series": [[one.get(at) for at in times] for one in values]}
    )


def _newest_first(row: BookieRow) -> float:
    return 0.0 if row.last_event is None else -(row.last_event.at_s or 0.0)


def _hidden_of(context: Context, names: Sequence[str]) -> set[str]:
    """Return the series of cursors that the user may not see."""
    if context.principal.namespaces is None:
        return set()
    shown = {lag_name(one.stream, one.cursor) for one in cursors_of(context)}
    return {name for name in names if name.startswith("cursor/")} - shown
