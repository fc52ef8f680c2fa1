"""What `fastbk top` shows over its tables: the details of a bookie, and help."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from fastbk.overview.values import BookieRow
from fastbk.top.columns import detail_lines, screen_text

HELP = """\
keys
  up, down   move among the bookies     Tab    to the table below
  Enter      details of a bookie        Esc    back; clear the filter
  s, S       next order, order before   p      pause, go on
  /          filter all tables          q      quit
  l, t, c    below: hot ledgers, hot streams, cursors that are behind

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
            box.border_title = Text(
                screen_text(self._title)
            )  # a text alone would be taken for markup
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
