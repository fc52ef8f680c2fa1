"""What is wrong with a cluster, the worst first: each with a page that shows more. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.console.rendering import link
from fastbk.overview.values import Severity
from fastbk.units import format_count, format_size

if TYPE_CHECKING:
    from fastbk.console.cluster_view import ClusterView
    from fastbk.overview.values import CursorLag, Healing

SHOWN_MAX = 20
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
    """Return the first SHOWN_MAX of what is wrong, the worst first. `cursors`: those that the user may see."""
    return sorted(_all(view, cursors), key=lambda one: -one.severity)[:SHOWN_MAX]


def _all(view: ClusterView, cursors: Sequence[CursorLag]) -> Iterator[Trouble]:
    overview = view.overview
    if overview is None:
        return
    if view.hold:
        text = f"metadata is on hold, nothing is deleted: {view.hold}; see “fastbk metadata status”"
        yield Trouble(Severity.BAD, "Metadata", text, "/healing")
    for row in overview.bookies:
        for one in row.problems:
            if one.severity >= Severity.WARN:
                yield Trouble(one.severity, row.bookie_id, one.text, link("bookie", row.bookie_id))
    if overview.healing is not None:
        yield from _of_healing(overview.healing)
    late = [one for one in cursors if (one.oldest_unread_s or 0.0) > LAG_S]
    if late:
        example = f"{late[0].cursor} of {late[0].stream}"
        text = f"{format_count(len(late), 'cursor')} more than an hour behind, such as {example}"
        yield Trouble(Severity.NOTE, "Cursors", text, "/cursors")
    for error in (*overview.errors, view.streams.error):
        if error:
            yield Trouble(Severity.WARN, "Console", error, "/")


def _of_healing(found: Healing) -> Iterator[Trouble]:
    if not found.enabled:
        text = "AutoRecovery is paused: lost copies are not made anew"
        yield Trouble(Severity.WARN, "Healing", text, "/healing")
    elif not found.auditor:
        text = "no auditor is elected: is “fastbk autorecovery” running?"
        yield Trouble(Severity.WARN, "Healing", text, "/healing")
    if found.marked:
        misses = "misses" if found.marked == 1 else "miss"
        text = f"{format_count(found.marked, 'ledger')} {misses} copies, about {format_size(found.bytes_left)} to copy"
        yield Trouble(Severity.WARN, "Healing", text, "/healing")
