"""What is wrong with a cluster, the worst first: each with a page that shows more. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.console.rendering import link
from fastbk.overview.bookie_history import SEVERITIES
from fastbk.overview.values import Severity
from fastbk.units import format_count

if TYPE_CHECKING:
    from fastbk.console.cluster_view import ClusterView
    from fastbk.overview.values import CursorLag

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
    for reason in overview.reasons:
        is_bookie = view.bookie(reason.subject) is not None
        url = link("bookie", reason.subject) if is_bookie else "/healing"
        text = f"{reason.text}; next: {reason.next_step}"
        what = reason.subject if is_bookie else reason.subject.capitalize()
        yield Trouble(SEVERITIES[reason.verdict], what, text, url)
    healing = overview.healing
    if healing is not None and healing.enabled and not healing.auditor:
        text = "no auditor is elected: is “fastbk autorecovery” running?"
        yield Trouble(Severity.NOTE, "Healing", text, "/healing")
    late = [one for one in cursors if (one.oldest_unread_s or 0.0) > LAG_S]
    if late:
        example = f"{late[0].cursor} of {late[0].stream}"
        text = f"{format_count(len(late), 'cursor')} more than an hour behind, such as {example}"
        yield Trouble(Severity.NOTE, "Cursors", text, "/cursors")
    if view.streams.error:
        yield Trouble(Severity.NOTE, "Console", view.streams.error, "/")
