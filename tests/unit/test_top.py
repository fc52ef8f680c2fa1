"""The screen, driven by Textual's pilot: what stands on it after which keys."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from textual.widgets import DataTable, Input, Static

from fastbk.errors import StorageError
from fastbk.overview.values import BookieRow, ClusterOverview, Problem, Severity
from fastbk.top import Dialog, TopApp
from tests.fixtures.overviews import ADOPTING, HEALTHY, NOT_ADOPTING, overview
from tests.fixtures.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from textual.pilot import Pilot

pytest.importorskip("textual")
SIZE = (80, 24)


class Feed:
    """Overviews that the test puts."""

    def __init__(self, *first: ClusterOverview) -> None:
        self._queue: asyncio.Queue[ClusterOverview | Exception] = asyncio.Queue()
        for one in first:
            self.put(one)

    def put(self, one: ClusterOverview | Exception) -> None:
        self._queue.put_nowait(one)

    async def __aiter__(self) -> AsyncIterator[ClusterOverview]:
        while True:
            one = await self._queue.get()
            if isinstance(one, Exception):
                raise one
            yield one


def app_of(feed: Feed, **options: str) -> TopApp:
    return TopApp(aiter(feed), "sqlite:/tmp/m", **options)


async def shown(pilot: Pilot[int], condition: Callable[[], object], what: str) -> None:
    await pilot.pause()
    await wait_until_async(condition, what)
    await pilot.pause()


def ids(app: TopApp) -> list[str]:
    table = app.query_one("#bookies", DataTable)
    return [str(key.value) for key in table.rows]


def text_of(app: TopApp, name: str) -> str:
    return str(app.screen.query_one(name, Static).render())


def screen_text(app: TopApp) -> str:
    """Return the characters on the screen."""
    return "\n".join(
        "".join(one.text for one in line) for line in app.screen._compositor.render_strips()
    )


async def test_the_sickest_is_first_marked_and_coloured() -> None:
    app = app_of(Feed(overview()))
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot, lambda: len(ids(app)) == 4, "four bookies")
        assert ids(app) == ["bookie-4", "bookie-3", "bookie-1", "bookie-2"]
        text = screen_text(app)
        assert "!! bookie-4" in text
        assert "!  bookie-3" in text
        assert "slow journal" in text
        assert "healing: auditor bookie-9; 12 ledgers marked" in text
        assert "shop/orders" in text
        assert "not read: known bookies" in text
        (mark, *_) = app.query_one("#bookies", DataTable).get_row("bookie-4")
        assert mark.style == "bold white on red"


async def test_a_bookie_that_falls_ill_moves_up_and_the_cursor_stays_at_its_row() -> None:
    rows = [replace(HEALTHY, bookie_id=f"b{n}") for n in range(3)]
    feed = Feed(overview(*rows))
    app = app_of(feed)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot, lambda: ids(app) == ["b0", "b1", "b2"], "three bookies")
        await pilot.press("down")
        ill = replace(rows[2], problems=(Problem(Severity.WARN, "slow journal: commit p99 33 ms"),))
        feed.put(overview(*rows[:2], ill))
        await shown(pilot, lambda: ids(app) == ["b2", "b0", "b1"], "b2 at the top")
        assert app.query_one("#bookies", DataTable).cursor_row == 2


async def test_keys_sort_and_pause() -> None:
    feed = Feed(overview())
    app = app_of(feed)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot, lambda: len(ids(app)) == 4, "four bookies")
        await pilot.press("s")
        assert ids(app) == ["bookie-1", "bookie-2", "bookie-3", "bookie-4"]
        assert "sorted by name" in text_of(app, "#head")
        await pilot.press("S")
        assert ids(app)[0] == "bookie-4"
        await pilot.press("p")
        assert "PAUSED" in text_of(app, "#head")
        feed.put(overview(HEALTHY))
        feed.put(overview(HEALTHY))
        await shown(pilot, lambda: feed._queue.empty(), "read while paused")
        assert len(ids(app)) == 4
        await pilot.press("p")
        feed.put(overview(HEALTHY))
        await shown(pilot, lambda: ids(app) == ["bookie-1"], "it goes on")


async def test_the_filter_is_typed_kept_and_cleared() -> None:
    app = app_of(Feed(overview()))
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot, lambda: len(ids(app)) == 4, "four bookies")
        await pilot.press("slash", *"slow")
        assert ids(app) == ["bookie-3"]
        assert app.query_one("#panel", DataTable).row_count == 0
        await pilot.press("enter")
        assert not app.query_one("#filter", Input).display
        assert ids(app) == ["bookie-3"]
        assert "filter 'slow'" in text_of(app, "#head")
        await pilot.press("escape")
        assert len(ids(app)) == 4


@pytest.mark.parametrize(
    ("key", "title", "text"),
    [
        ("l", "hot ledgers", "17"),
        ("t", "hot streams", "shop/orders"),
        ("c", "and 3 that were not read", "billing"),
    ],
)
async def test_the_table_below_changes(key: str, title: str, text: str) -> None:
    app = app_of(Feed(overview()))
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot, lambda: len(ids(app)) == 4, "four bookies")
        await pilot.press(key)
        await pilot.pause()
        assert title in text_of(app, "#panel-title")
        assert text in screen_text(app)


async def test_journal_files_are_below_in_the_order_of_the_bookies() -> None:
    app = app_of(Feed(overview(ADOPTING, NOT_ADOPTING)), order="name")
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot, lambda: len(ids(app)) == 2, "two bookies")
        assert "j Journals" in screen_text(app), "the key is on the screen of 80 columns"
        await pilot.press("j")
        await pilot.pause()
        assert "adopted by journal files" in text_of(app, "#panel-title")
        panel = app.query_one("#panel", DataTable)
        cells = [[str(cell).strip() for cell in panel.get_row_at(n)] for n in range(2)]
        assert cells == [
            ["bookie-1", "4.0 GiB", "3.0 GiB", "200.0 MiB", "96.0 MiB", ""],
            ["bookie-3", "2.0 GiB", "0 B", "1.0 GiB", "64.0 MiB", "J0 level, J1 othe…"],
        ]


async def test_details_follow_their_bookie_until_it_is_gone() -> None:
    feed = Feed(overview())
    app = app_of(feed)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot, lambda: len(ids(app)) == 4, "four bookies")
        await pilot.press("down", "enter")
        await shown(pilot, lambda: isinstance(app.screen, Dialog), "details")
        assert "slow journal: commit p99 33.4 ms" in text_of(app, "#text")
        rows: list[BookieRow] = list(overview().bookies)
        feed.put(overview(*(replace(row, problems=()) for row in rows)))
        await shown(pilot, lambda: "no problem" in text_of(app, "#text"), "its problem is over")
        feed.put(overview(HEALTHY))
        await shown(pilot, lambda: "does not have it" in text_of(app, "#text"), "it is gone")
        await pilot.press("escape")
        await shown(pilot, lambda: not isinstance(app.screen, Dialog), "back")


async def test_help_and_quit() -> None:
    app = app_of(Feed(overview()))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("question_mark")
        await shown(pilot, lambda: isinstance(app.screen, Dialog), "help")
        assert "p99 of the journal's commits" in text_of(app, "#text")
        await pilot.press("escape", "q")
        await shown(pilot, lambda: not app.is_running, "the end")
    assert app.return_code == 0


async def test_an_id_is_no_markup_and_no_control_sequence() -> None:
    hostile = "[red]b[/red]\x1b[2J"
    app = app_of(Feed(overview(replace(HEALTHY, bookie_id=hostile))))
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot, lambda: len(ids(app)) == 1, "a bookie")
        await pilot.press("enter")
        await shown(pilot, lambda: isinstance(app.screen, Dialog), "its details")
        assert "bookie [red]b[/red]\\x1b[2J" in screen_text(app)


@pytest.mark.parametrize("before", ["", "question_mark", "slash"])
async def test_ctrl_c_quits_from_everywhere(before: str) -> None:
    app = app_of(Feed(overview()))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press(*filter(None, (before, "ctrl+c")))
        await shown(pilot, lambda: not app.is_running, "the end")
    assert app.return_code == 0


async def test_a_wider_screen_shows_more_columns() -> None:
    app = app_of(Feed(overview()))
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot, lambda: len(ids(app)) == 4, "four bookies")
        assert "COMMIT P50/P99" not in screen_text(app)
        await pilot.resize_terminal(150, 40)
        await shown(pilot, lambda: "COMMIT P50/P99" in screen_text(app), "all columns")
        assert "journal.slow" in screen_text(app)


async def test_an_error_ends_the_screen_with_its_text() -> None:
    feed = Feed(overview())
    app = app_of(feed)
    async with app.run_test(size=SIZE) as pilot:
        feed.put(StorageError("metadata is gone"))
        await shown(pilot, lambda: not app.is_running, "the end")
    assert app.return_code == 1


async def test_two_hundred_bookies_are_shown_without_a_stall() -> None:
    rows = [replace(HEALTHY, bookie_id=f"10.0.{n // 100}.{n % 100}:3181") for n in range(200)]
    app = app_of(Feed(overview(*rows)))
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot, lambda: len(ids(app)) == 200, "all bookies")
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        app._show()
        took_s = loop.time() - began_s
        assert took_s < 1.0, took_s
