"""`GET /events`: the events of a process, on the pages of bookies, janitors and healers."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import msgspec

from fastbk.errors import StorageError
from fastbk.observe.event_record import Query

if TYPE_CHECKING:
    from fastbk.observe.event_log import EventLog
    from fastbk.server.admin.http import PageServer


def add_event_page(server: PageServer, log: EventLog) -> None:
    """Have `server` answer `/events` from `log`: `since`, `until`, `kind`, `limit`, `after`, `newest` are its query."""

    async def answer(parameters: dict[str, Any]) -> object:
        query = Query.of(parameters, time.time())
        try:
            return msgspec.to_builtins(await asyncio.to_thread(log.read, query))
        except OSError as error:
            raise StorageError(
                f"the files of events cannot be read: {error}", retryable=True
            ) from error

    server.add_route("GET", "/events", answer)
