"""The pages of ledgers: a list by id, and one ledger with its fragments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from fastbk.errors import NoSuchLedger
from fastbk.meta.api import VersionedLedger
from fastbk.meta.records import BadRecord
from fastbk.model.ledger import STREAM_KEY

if TYPE_CHECKING:
    from starlette.responses import Response

    from fastbk.console.context import Context

PAGE_ROWS = 100
FRAGMENTS_SHOWN_MAX = 200
CUSTOM_CHARACTERS_MAX = 200


async def ledgers(context: Context) -> Response:
    """List ledgers from an id on."""
    first = context.number("from", 0, 0, 2**62)
    client = context.view.client
    ids = await client.call_store(lambda store: store.list_ledgers(first - 1, PAGE_ROWS + 1))
    found = await client.call_store(lambda store: store.read_ledgers(ids[:PAGE_ROWS]))
    names = {one.stream_id: one.path for one in context.view.streams.rows}
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
    stream = next((one.path for one in context.view.streams.rows if one.stream_id == stream_id), "")
    custom = {
        name: value.decode("utf-8", "backslashreplace")[:CUSTOM_CHARACTERS_MAX]
        for name, value in metadata.custom.items()
    }
    known = (
        {}
        if context.view.overview is None
        else {one.bookie_id: one for one in context.view.overview.bookies}
    )
    return context.page(
        "ledger.html", info=info, metadata=metadata, custom=custom, stream=stream, missing=mark.missing,
        mark_fault=mark.fault, fragments=metadata.fragments[-FRAGMENTS_SHOWN_MAX:], known=known,
    )  # fmt: skip
