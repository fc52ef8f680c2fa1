"""The screen of `fastbk top`: a table of bookies, and below it ledgers, streams, cursors or journal
files. Dialogs show one bookie, and the keys.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from fastbk.errors import Error
from fastbk.overview import tables
from fastbk.overview.tables import Column, detail_lines, screen_text
from fastbk.overview.values import BookieRow, ClusterOverview, Severity

STYLES = {Severity.BAD: "bold white on red", Severity.WARN: "bold yellow", Severity.NOTE: "cyan"}
PANELS = ("ledgers", "streams", "cursors", "journals")
_COLUMNS_OF: dict[str, Sequence[Column[Any]]] = {
    "ledgers": tables.LEDGER_COLUMNS,
    "streams": tables.STREAM_COLUMNS,
    "cursors": tables.CURSOR_COLUMNS,
    "journals": tables.JOURNAL_COLUMNS,
}


class RowTable(DataTable[Text]):
    """A table whose columns fit its width, and whose cursor stays at its row when rows move."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id, cursor_type="row", cell_padding=0, zebra_stripes=False)
        self._titles: tuple[object, ...] = ()

    def show(self, rows: Sequence[tuple[str, object, str]], shown: Sequence[Column[Any]]) -> None:
        """Show rows: key, value and style of each."""
        # The screen's width: after a resize the table's own is known later. The bar at the right takes two.
        bar = 2 if len(rows) >= self.size.height else 0
        widths = tables.fitted(shown, max(20, self.app.size.width - 1 - bar))
        titles = tuple((column.title, width) for column, width in zip(shown, widths, strict=True))
        key = self._key_at_cursor()
        scroll_y = self.scroll_offset.y
        if titles != self._titles:
            self.clear(columns=True)
            for column, width in zip(shown, widths, strict=True):
                self.add_column(tables.fit(column.title, width, column.align), width=width + 1)
            self._titles = titles
        else:
            self.clear()
        for row_key, value, style in rows:
            cells = [
                Text(tables.fit(column.cell(value), width, column.align) + " ", style)
                for column, width in zip(shown, widths, strict=True)
            ]
            self.add_row(*cells, key=row_key)
        keys = [row_key for row_key, _, _ in rows]
        # What the cursor was at may have moved up to the top: the eye is not to be pulled elsewhere.
        if key in keys and keys.index(key) != self.cursor_row:
            self.move_cursor(row=keys.index(key), scroll=False)
        self.scroll_to(y=scroll_y, animate=False)

    def _key_at_cursor(self) -> str | None:
        if not self.is_valid_row_index(self.cursor_row):
            return None
        return self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value

    @property
    def selected_key(self) -> str | None:
        """The key of the row at the cursor; None in an empty table."""
        return self._key_at_cursor()


class TopApp(App[int]):
    """Shows overviews as they come, until `q`."""

    TITLE = "fastbk top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: 1; text-style: bold; }
    #healing { height: 1; }
    #bookies { height: 2fr; min-height: 5; }
    #panel-title { height: 1; text-style: reverse; }
    #panel { height: 1fr; min-height: 4; }
    #errors { height: auto; max-height: 3; color: $error; }
    #filter { display: none; height: 1; border: none; padding: 0; }
    DataTable { scrollbar-size-horizontal: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        # Textual's own answer to Ctrl-C is a note that another key quits. An input has the key for copying.
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("s", "sort", "Sort"),
        Binding("S", "sort_back", "Sort back", show=False),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("p", "pause", "Pause"),
        Binding("enter", "details", "Details", priority=False),
        Binding("l", "panel('ledgers')", "Ledgers"),
        Binding("t", "panel('streams')", "Streams"),
        Binding("c", "panel('cursors')", "Cursors"),
        Binding("j", "panel('journals')", "Journals"),
        Binding("escape", "clear", "Clear filter", show=False),
    ]

    def __init__(
        self,
        overviews: AsyncIterator[ClusterOverview],
        uri: str,
        *,
        order: str = "sickness",
        text: str = "",
    ) -> None:
        """`overviews`: read one by one, until the screen ends. `uri`: for the first line. `text`: the filter."""
        super().__init__(ansi_color=True)
        self._overviews = overviews
        self._uri = uri
        self._order = order
        self._filter_text = text
        self._panel = PANELS[0]
        self._is_paused = False
        self.overview: ClusterOverview | None = None
        """What is shown."""

    def compose(self) -> ComposeResult:
        """Make the widgets."""
        yield Static("reading the bookies ...", id="head", markup=False)
        yield Static("", id="healing", markup=False)
        yield RowTable(id="bookies")
        yield Static("", id="panel-title", markup=False)
        yield RowTable(id="panel")
        yield Static("", id="errors", markup=False)
        yield Input(
            placeholder="show rows with this text; Enter keeps it, Esc clears it",
            id="filter",
            compact=True,
        )
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Begin to read."""
        self.query_one("#bookies").focus()
        self.run_worker(self._read(), exclusive=True)

    async def _read(self) -> None:
        had_terminal = os.isatty(0)
        try:
            async for overview in self._overviews:
                if had_terminal and not os.isatty(0):
                    # it was closed: reading keys from it would never wait again
                    self.exit(return_code=1)
                    return
                if not self._is_paused:
                    self.overview = overview
                    self._show()
        except Error as error:
            self.exit(return_code=1, message=Text(screen_text(f"fastbk: {error}")))

    def _show(self) -> None:
        overview = self.overview
        if overview is None:
            return
        head = f"{tables.headline(overview)}  {self._uri}"
        notes = [f"sorted by {self._order}"] if self._order != "sickness" else []
        notes += [f"filter {self._filter_text!r}"] if self._filter_text else []
        notes += ["PAUSED: p goes on"] if self._is_paused else []
        style = STYLES.get(
            max((bookie.severity for bookie in overview.bookies), default=Severity.OK), ""
        )
        self.query_one("#head", Static).update(
            Text(screen_text("  ".join([*notes, head])), style, no_wrap=True)
        )
        healing = Text(screen_text(tables.healing_line(overview.healing)), no_wrap=True)
        self.query_one("#healing", Static).update(healing)
        self._show_bookies(overview)
        self._show_panel(overview)
        self.query_one("#errors", Static).update(screen_text("\n".join(tables.notices(overview))))
        screen = self.screen
        if isinstance(screen, DetailsScreen):
            screen.show(self._row(screen.bookie_id), overview.at_s)

    def _show_bookies(self, overview: ClusterOverview) -> None:
        shown = tables.bookie_columns(overview, self.size.width)
        rows = tables.filtered(
            tables.ordered(overview.bookies, self._order), shown, self._filter_text
        )
        table = self.query_one("#bookies", RowTable)
        table.show([(row.bookie_id, row, STYLES.get(row.severity, "")) for row in rows], shown)

    def _show_panel(self, overview: ClusterOverview) -> None:
        values: dict[str, Sequence[Any]] = {
            "ledgers": overview.hot_ledgers,
            "streams": overview.hot_streams,
            "cursors": overview.cursors,
            "journals": tables.with_journal_files(overview.bookies, self._order),
        }
        shown = _COLUMNS_OF[self._panel]
        rows = tables.filtered(values[self._panel], shown, self._filter_text)
        self.query_one("#panel", RowTable).show(
            [(str(n), row, "") for n, row in enumerate(rows)], shown
        )
        titles = {
            "ledgers": f"hot ledgers, the first {len(rows)}",
            "streams": f"hot streams, the first {len(rows)}",
            "cursors": f"cursors, the longest behind first: {len(rows)}"
            + (
                f" and {overview.cursors_left_out:,} that were not read"
                if overview.cursors_left_out
                else ""
            ),
            "journals": "bytes of entries since the start: adopted by journal files, or copied",
        }
        self.query_one("#panel-title", Static).update(f" {titles[self._panel]} ")

    def _row(self, bookie_id: str) -> BookieRow | None:
        rows = self.overview.bookies if self.overview is not None else ()
        return next((row for row in rows if row.bookie_id == bookie_id), None)

    def on_resize(self) -> None:
        """Fit the columns to the new width."""
        self.call_after_refresh(self._show)

    def action_sort(self, step: int = 1) -> None:
        """Take the next order."""
        names = list(tables.ORDERS)
        self._order = names[(names.index(self._order) + step) % len(names)]
        self._show()

    def action_sort_back(self) -> None:
        """Take the order before."""
        self.action_sort(-1)

    def action_pause(self) -> None:
        """Keep what is shown, or go on; bookies are read meanwhile."""
        self._is_paused = not self._is_paused
        self._show()

    def action_panel(self, name: str) -> None:
        """Show another table below."""
        self._panel = name
        self._show()

    def action_filter(self) -> None:
        """Open the line of the filter."""
        line = self.query_one("#filter", Input)
        line.value = self._filter_text
        # At once, not by `focus`, which would be after the next keys of somebody who types fast.
        line.display = True
        self.screen.set_focus(line)

    def action_clear(self) -> None:
        """Close the line of the filter and show all rows."""
        self._set_filter("")
        self._close_filter()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while it is typed."""
        self._set_filter(event.value)

    def on_input_submitted(self) -> None:
        """Keep the filter."""
        self._close_filter()

    def _set_filter(self, text: str) -> None:
        self._filter_text = text
        self._show()

    def _close_filter(self) -> None:
        self.query_one("#filter", Input).display = False
        self.screen.set_focus(self.query_one("#bookies"))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Show the details of the bookie at the cursor."""
        if event.data_table.id == "bookies":
            self.action_details()

    def action_details(self) -> None:
        """Show everything that is known of the bookie at the cursor."""
        key = self.query_one("#bookies", RowTable).selected_key
        if key is not None and self.overview is not None:
            self.push_screen(DetailsScreen(key, self._row(key), self.overview.at_s))

    def action_help(self) -> None:
        """Show the keys and columns."""
        self.push_screen(HelpScreen())


HELP = """\
keys
  up, down   move among the bookies     Tab    to the table below
  Enter      details of a bookie        Esc    back; clear the filter
  s, S       next order, order before   p      pause, go on
  /          filter all tables          q      quit
  l, t, c    below: hot ledgers, hot streams, cursors that are behind
  j          below: journal files, and why they do not adopt

marks
  !!  it does not serve, or refuses adds
  !   something is wrong
  ~   connections wait

columns (rates and quantiles are of the last 5 s)
  ADDS/S     entries a second that became durable on this bookie
  ADD99      p99 of adds, from the last byte received to the answer
  COM99      p99 of the journal's commits: write and sync of a batch
  QUEUE      adds that the journal has not answered
  DISK       the slowest: J0 is the journal of pair 0, L0 the ledgers'
  FULL       when the first ledger directory is full, at this rate
  LIMBO      ledgers whose data was lost here and is not repaired yet
  ADOPTED    what flushes left in journal files; the rest is in entry logs
  COPIED     what they copied in memory on the way there
  FREE       journal files that may be written to again

A bookie with a problem goes to the top. docs/top.md has the rules.
"""


class Dialog(ModalScreen[None]):
    """Text over the tables, until Esc, Enter or q."""

    DEFAULT_CSS = """
    Dialog { align: center middle; }
    Dialog > VerticalScroll {
        width: 96%; max-width: 110; height: auto; max-height: 90%; border: solid $accent; padding: 0 1;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q", "dismiss", "Back")]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        """Make the widgets."""
        with VerticalScroll() as box:
            # a text alone would be taken for markup
            box.border_title = Text(screen_text(self._title))
            yield Static(Text(screen_text(self._text)), id="text")

    def put(self, text: str) -> None:
        """Show another text."""
        self._text = text
        if self.is_mounted:
            self.query_one("#text", Static).update(Text(screen_text(text)))


class HelpScreen(Dialog):
    """Keys, marks and columns."""

    def __init__(self) -> None:
        super().__init__("help", HELP)


class DetailsScreen(Dialog):
    """All figures of one bookie; they go on while it is open."""

    def __init__(self, bookie_id: str, row: BookieRow | None, at_s: float) -> None:
        self.bookie_id = bookie_id
        super().__init__(f"bookie {bookie_id}", _text(row, at_s))

    def show(self, row: BookieRow | None, at_s: float) -> None:
        """Show the row of a later overview; None: it is in none any more."""
        self.put(_text(row, at_s))


def _text(row: BookieRow | None, at_s: float) -> str:
    return (
        "\n".join(detail_lines(row, at_s))
        if row is not None
        else "the cluster does not have it any more"
    )
