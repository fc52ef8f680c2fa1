"""What a user may see of streams and cursors: those of the namespaces that the token is for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastbk.console.context import Context
    from fastbk.console.stream_index import StreamRow
    from fastbk.overview.values import CursorLag


def streams_of(context: Context) -> Sequence[StreamRow]:
    """Return the streams, by path."""
    rows = context.view.streams.rows
    if context.principal.namespaces is None:
        return rows
    return [one for one in rows if context.principal.is_allowed(one.namespace)]


def cursors_of(context: Context) -> Sequence[CursorLag]:
    """Return the cursors, the longest unread first."""
    overview = context.view.overview
    found = () if overview is None else overview.cursors
    return [one for one in found if context.principal.is_allowed(one.stream.rpartition("/")[0])]
