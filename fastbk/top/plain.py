"""`fastbk top --once`: the tables of one overview as lines of text."""

from __future__ import annotations

from fastbk.overview.values import ClusterOverview
from fastbk.top import columns


def plain_lines(
    overview: ClusterOverview, width: int, order: str = "sickness", text: str = ""
) -> list[str]:
    """Return everything that the screen shows, one table below the other. `text`: what rows must have."""
    of_bookies = columns.bookie_columns(overview, width)
    rows = columns.filtered(columns.ordered(overview.bookies, order), of_bookies, text)
    found = [columns.headline(overview), columns.healing_line(overview.healing), ""]
    found += columns.lines(rows, of_bookies, width)
    ledgers = columns.filtered(overview.hot_ledgers, columns.LEDGER_COLUMNS, text)
    if ledgers:
        found += ["", *columns.lines(ledgers, columns.LEDGER_COLUMNS, width)]
    streams = columns.filtered(overview.hot_streams, columns.STREAM_COLUMNS, text)
    if streams:
        found += ["", *columns.lines(streams, columns.STREAM_COLUMNS, width)]
    cursors = columns.filtered(overview.cursors, columns.CURSOR_COLUMNS, text)
    if cursors:
        found += ["", *columns.lines(cursors, columns.CURSOR_COLUMNS, width)]
    if overview.cursors_left_out:
        found.append(f"{overview.cursors_left_out:,} more cursors were not read")
    found += [f"not read: {error}" for error in overview.errors]
    return found
