"""Charts: the numbers that were given are those that are drawn, on axes with round places, into whole files."""

from __future__ import annotations

import importlib
import random
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fastbk.errors import ConfigError
from fastbk.spark import charts
from fastbk.spark.charts import LINES_INCHES, bars, bars_inches, largest, lines, sheet, ticks_of

BEGAN = datetime(2026, 11, 1, tzinfo=UTC)


def test_bars_have_the_lengths_and_the_numbers_that_were_given() -> None:
    page = sheet("Title", heights=(bars_inches(3), bars_inches(2)))
    bars(page.panels[0], "One", {"a": 3 << 30, "b": 1 << 20, "c": 0}, unit="B")
    assert [one.get_width() for one in page.panels[0].patches] == [3 << 30, 1 << 20, 0]
    assert [one.get_text() for one in page.panels[0].texts] == ["3.0 GiB", "1.0 MiB", "0 B"]
    assert [one.get_text() for one in page.panels[0].get_yticklabels()] == ["a", "b", "c"]
    parts = {"x": {"shop": 5.0, "(others)": 2.0}, "y": {"(others)": 1500.0}}
    bars(page.panels[1], "Two", parts, unit="rows/s")
    drawn = [(one.get_x(), one.get_width()) for one in page.panels[1].patches]
    assert drawn == [(0, 5), (0, 0), (5, 2), (0, 1500)]
    assert [one.get_text() for one in page.panels[1].texts] == ["7 rows/s", "1.5 k rows/s"]


def test_lines_are_drawn_by_time_and_stacked_areas_on_each_other() -> None:
    page = sheet("Title", heights=(LINES_INCHES, LINES_INCHES))
    days = [BEGAN + timedelta(days=day) for day in range(3)]
    series = {"a": list(zip(days, (1.0, 2.0, 3.0), strict=True)), "b": [(days[0], 9.0)]}
    lines(page.panels[0], "Lines", series, unit="B")
    first, second = page.panels[0].lines
    assert list(first.get_ydata()) == [1, 2, 3] and list(second.get_ydata()) == [9]
    assert list(first.get_xdata()) == [one.timestamp() / 86_400 for one in days]
    numbers = {"a": [(0.0, 4.0), (1.0, 5.0)], "(others)": [(0.0, 1.0), (1.0, 10.0)]}
    lines(page.panels[1], "Areas", numbers, unit="", stacked=True, along="parts")
    tops = [max(y for _, y in one.get_paths()[0].vertices) for one in page.panels[1].collections]
    assert tops == [5, 15]


def test_names_are_shown_as_they_are() -> None:
    """Where matplotlib would leave out "_name" and set "$x$" as mathematics."""
    names = ["_hidden", "$a$", "one/of/many/levels/that/is/too/long/to/be/shown"]
    page = sheet("Sales in $ and $", heights=(bars_inches(3), LINES_INCHES))
    bars(page.panels[0], "Bars", {one: {one: 1.0} for one in names}, unit="")
    lines(page.panels[1], "Lines", {one: [(0.0, 1.0), (1.0, 2.0)] for one in names}, unit="")
    page.figure.draw_without_rendering()
    shown = ["_hidden", "$a$", charts.shortened(names[2])]
    for panel in page.panels:
        legend = panel.get_legend()
        assert legend is not None
        assert [one.get_text() for one in legend.get_texts()] == shown
    labels = page.panels[0].get_yticklabels()
    assert [one.get_text() for one in labels] == shown
    assert not any(one.get_parse_math() for one in (*labels, *page.figure.texts))
    assert len(shown[2]) == charts.LABEL_MAX and "…" in shown[2]


def test_nothing_can_be_drawn_too(tmp_path: Path) -> None:
    page = sheet("Nothing", heights=(bars_inches(0), LINES_INCHES))
    bars(page.panels[0], "Bars", {}, unit="B")
    lines(page.panels[1], "Lines", {}, unit="B")
    page.save(tmp_path / "empty.png")
    assert (tmp_path / "empty.png").read_bytes().startswith(b"\x89PNG")


def test_a_file_is_written_whole_or_not_at_all_and_the_same_each_time(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        page = sheet("Title", heights=(bars_inches(1),))
        bars(page.panels[0], "Bars", {"a": 1}, unit="")
        page.save(tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    with pytest.raises(ConfigError, match=r"cannot be written to .*No such file or directory"):
        page.save(tmp_path / "missing" / "c.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ConfigError, match="Is a directory"):
        page.save(tmp_path / "folder.png")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.png", "b.png", "folder.png"]


@pytest.mark.parametrize("unit", ["B", "B/s", "", "rows/s"])
def test_axes_have_a_few_round_places_up_to_the_largest_amount(
    unit: str, rng: random.Random
) -> None:
    for _ in range(500):
        top = 10 ** rng.uniform(0.1, 15)
        ticks = ticks_of(top, unit)
        step = ticks[1] - ticks[0] if len(ticks) > 1 else 1.0
        assert ticks[0] == 0 and 2 <= len(ticks) <= charts.TICKS_MAX + 1, (top, ticks)
        assert top - step * 1.001 <= ticks[-1] <= top * 1.001
        if unit.startswith("B"):
            assert step == 2 ** round(step).bit_length() / 2
        else:
            assert f"{step:.3e}"[0] in "125" and float(f"{step:.0e}") == pytest.approx(step)


def test_the_largest_are_kept_and_the_rest_is_one_sum() -> None:
    amounts = {"a": 1.0, "b": 5.0, "c": 3.0, "d": 1.0}
    assert largest(amounts, 2) == {"b": 5, "c": 3, "(others)": 2}
    assert list(largest(amounts, 4)) == ["b", "c", "a", "d"]


def test_without_matplotlib_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "fastbk.spark.charts")
    with pytest.raises(ConfigError, match=r"matplotlib: pip install 'fastbk\[charts\]'"):
        importlib.import_module("fastbk.spark.charts")
