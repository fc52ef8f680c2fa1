"""`fastbk top --once`: the tables of one overview as lines of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from fastbk.overview.values import ClusterOverview
from fastbk.top import columns

T = TypeVar("T")


def plain_lines(
    overview: ClusterOverview, width: int, order: str = "sickness", text: str = ""
) -> list[str]:
    """Return everything that the screen shows, one table below the other. `text`: what rows must have."""
    of_bookies = columns.bookie_columns(overview, width)
    rows = columns.filtered(columns.ordered(overview.bookies, order), of_bookies, text)
    found = [columns.headline(overview), columns.healing_line(overview.healing), ""]
    found += columns.lines(rows, of_bookies, width)
    found += _table(overview.hot_ledgers, columns.LEDGER_COLUMNS, text, width)
    found += _table(overview.hot_streams, columns.STREAM_COLUMNS, text, width)
    found += _table(overview.cursors, columns.CURSOR_COLUMNS, text, width)
    if overview.cursors_left_out:
        found.append(f"{overview.cursors_left_out:,} more cursors were not read")
    return [*found, *columns.notices(overview)]


def _table(rows: Iterable[T], of: Sequence[columns.Column[T]], text: str, width: int) -> list[str]:
    """Return a table below an empty line; nothing without rows."""
    found = columns.filtered(rows, of, text)
    return ["", *columns.lines(found, of, width)] if found else []
