"""The pages of bookies and their disks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from fastbk.console.access import why_not_change

if TYPE_CHECKING:
    from starlette.responses import Response

    from fastbk.console.context import Context


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
