"""The page of events: what happened in the cluster between two moments."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastbk.errors import ConfigError
from fastbk.observe.event_kinds import KINDS
from fastbk.observe.event_record import Query, kinds_of, moments

if TYPE_CHECKING:
    from starlette.responses import Response

    from fastbk.console.context import Context

EVENTS_MAX = 50
"""On a page, which has a link to older ones."""
SINCE_DEFAULT = "-1h"
LEVELS = {"debug": 0, "info": 0, "warning": 2, "error": 3}
"""How an event's level is shown."""


async def events(context: Context) -> Response:
    """Show the newest events that the query admits, the newest first."""
    if context.principal.namespaces is not None:
        raise ConfigError(
            "events are of the whole cluster, and your token is limited to namespaces"
        )
    since, until = context.query("since", SINCE_DEFAULT) or SINCE_DEFAULT, context.query("until")
    kind, bookie_id = context.query("kind"), context.query("bookie")
    found, error = None, ""
    try:
        first, end = moments(since, until, time.time())
        kinds = kinds_of([kind] if kind else [])
        query = Query(since=first, until=end, kinds=kinds, limit=EVENTS_MAX, is_newest=True)
        found = await context.view.events.read(query, (since, until), bookie_id)
    except ConfigError as problem:
        error = str(problem)
    overview = context.view.overview
    return context.page(
        "events.html", found=found, error=error, since=since, until=until, kind=kind, kinds=KINDS, bookie_id=bookie_id,
        bookies=sorted(one.bookie_id for one in (() if overview is None else overview.bookies)),
        levels=LEVELS, count_max=EVENTS_MAX,
    )  # fmt: skip
