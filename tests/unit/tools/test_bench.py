"""What `./dev bench` shows of its figures."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from tools import bench
from tools.bench import Length
from tools.benchmark.apache import TUNED
from tools.benchmark.cases import (
    CASES,
    RESTART,
    SUSTAINED_1000,
    SUSTAINED_S,
    WINDOW_1,
    WINDOW_100,
    Append,
    chosen_cases,
)
from tools.benchmark.disk_limit import NAME, NoDiskLimit, disk_limit, why_none
from tools.benchmark.page import page
from tools.benchmark.run import Run, ratio
from tools.benchmark.system import Measure, System
from tools.benchmark.systems import CHAIN, THIS, chosen_systems, other_systems
from tools.benchmark.tables import KEPT, PAGES, TABLES, number, with_tables
from tools.benchmark.targets import rows_of_targets, targets_table
from tools.benchmark.terminal import table
from tools.benchmark.trees import Tree

if TYPE_CHECKING:
    from collections.abc import Mapping


@pytest.fixture
def run() -> Run:
    made = Run(seconds_each=1.0, machine="two <processors>")
    for ours, chain in ((100.0, 200.0), (300.0, 400.0), (90.0, 100.0)):
        made.add(
            "append, window 1", "this tree", {"per_s": ours, "p50_us": 190.0, "disk_p50_us": 100.0}
        )
        made.add("append, window 1", "bare-C chain", {"per_s": chain})
    return made


def test_ratios_are_of_pairs_and_not_of_medians(run: Run) -> None:
    these, others = run.cases["append, window 1"].values()
    assert ratio(these, others, "per_s") == 0.75
    assert ratio(these, others, "p50_us") is None
    text = table(run)
    assert "this tree / bare-C chain: a second 0.750" in text
    assert "100 (90…300)" in text
    assert "its disk's 4 KiB commit: p50 1.90" in text


def test_a_run_that_was_cut_off_goes_on(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    run.write(path)
    again = Run.read(path)
    assert again == run
    assert [again.has("append, window 1", "this tree", number) for number in (0, 2, 3)] == [
        True,
        True,
        False,
    ]
    assert not again.has("append, window 1", "disk", 0)
    assert not again.has("another", "disk", 0)


def test_the_page_is_whole_and_names_are_text_in_it(run: Run) -> None:
    text = page(run)
    assert "two &lt;processors&gt;" in text
    for start in range(text.count("<svg")):
        svg = text.split("<svg")[start + 1].split("</svg>")[0]
        assert len(ElementTree.fromstring(f"<svg{svg}</svg>").findall("rect")) == 2
    assert text.count("<svg") == 1, "one figure that both systems have"


def test_cases_are_chosen_by_words_of_their_names_or_by_a_whole_name() -> None:
    assert chosen_cases("", is_full=True) == list(CASES)
    assert {case.is_default for case in chosen_cases("", is_full=False)} == {True}
    words = chosen_cases("window 100,singly", is_full=False)
    assert words == [case for case in CASES if "window 100" in case.name or "singly" in case.name]
    assert chosen_cases("append, window 1", is_full=False) == [WINDOW_1]
    both = chosen_cases("append, window 1; append, window 100", is_full=False)
    assert both == [WINDOW_1, WINDOW_100]
    with pytest.raises(SystemExit, match="no case"):
        chosen_cases("nothing of this name", is_full=False)


def test_a_sustained_load_lasts_until_everything_is_written_twice() -> None:
    assert Length(3, 2.0, 20).of(SUSTAINED_1000) == (3, SUSTAINED_S)
    assert Length(3, 60.0, 20).of(SUSTAINED_1000) == (3, 60.0)
    assert Length(3, 2.0, 20).of(WINDOW_1) == (20, 1.0)


def test_a_disk_is_limited_while_the_block_lasts_or_the_reason_is_given(tmp_path: Path) -> None:
    groups = Path("/proc/self/cgroup")
    why = why_none(tmp_path)
    if why:
        with pytest.raises(NoDiskLimit, match=re.escape(why)), disk_limit(tmp_path, 1 << 40):
            pass
    else:
        with disk_limit(tmp_path, 1 << 40):
            child = subprocess.run(["cat", groups], capture_output=True, text=True, check=True)
        assert NAME in child.stdout, "what is started is limited, too"
    assert NAME not in groups.read_text()


def test_case_and_system_names_are_unique() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    systems = [system.name for system in (Tree(THIS), *other_systems())]
    assert len(set(systems)) == len(systems)


def test_systems_are_chosen_by_words_and_each_case_has_one() -> None:
    names = [system.name for system in chosen_systems("redis,CHAIN", "none", is_full=False)]
    assert names == [THIS, CHAIN, "Redis Streams"]
    every = chosen_systems("", "none", is_full=True)
    assert all(any(system.can(case.load) for system in every) for case in CASES)
    with pytest.raises(SystemExit, match="there are: this tree"):
        chosen_systems("nobody", "none", is_full=False)


def test_a_commit_that_is_none_is_refused() -> None:
    with pytest.raises(SystemExit, match="AGAINST=nothing is no commit"):
        chosen_systems("", "nothing", is_full=False)


class Counted(System):
    """A system without a load: each measurement is one more."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name = name
        self._calls = calls

    def measures(self) -> Mapping[type, Measure]:
        return {Append: self._append}

    def _append(self, _: Append, seconds: float) -> dict[str, float]:
        self._calls.append(self.name)
        return {"per_s": 1.0, "seconds": seconds}


def test_systems_take_turns_and_a_second_run_measures_what_is_missing(tmp_path: Path) -> None:
    calls: list[str] = []
    systems: list[System] = [Counted("one", calls), Counted("other", calls)]
    made = Run(seconds_each=2.0)
    cases = [WINDOW_1, WINDOW_100, RESTART]
    bench.measure(
        made, cases, systems, bench.Length(rounds=2, seconds=2.0, pairs=3), tmp_path / "o"
    )
    assert calls == ["one", "other", "other", "one", "one", "other"] + [
        "one",
        "other",
        "other",
        "one",
    ]
    assert made.cases[WINDOW_1.name]["one"][0]["seconds"] == bench.PAIR_S
    assert made.cases[WINDOW_100.name]["one"][0]["seconds"] == 2.0
    assert RESTART.name not in made.cases
    calls.clear()
    again = Run.read(tmp_path / "o")
    more = bench.Length(rounds=3, seconds=2.0, pairs=3)
    bench.measure(again, cases, [*systems, Counted("third", calls)], more, tmp_path / "o")
    assert calls == ["third"] * 3 + ["third", "third", "one", "other", "third"]


def target_rows(run: Run) -> dict[str, list[str]]:
    return {name: rest for name, *rest in rows_of_targets(run)[1:]}


def test_targets_are_judged_by_the_best_rival_or_said_to_be_unmeasured() -> None:
    made = Run(seconds_each=1.0)
    for _ in range(3):
        made.add(WINDOW_100.name, THIS, {"per_s": 500.0, "bookie_us": 1.0, "p50_us": 150.0})
        made.add(WINDOW_100.name, TUNED[0], {"per_s": 50.0})
        made.add(WINDOW_100.name, TUNED[-1], {"per_s": 125.0})
    rows = target_rows(made)
    assert rows["window 100: adds a second ÷ Apache tuned"] == ["≥ 5 ×", "4", "missed"]
    assert rows["window 100: bookie CPU an entry"] == ["≤ 1.5 µs", "1", "met"]
    assert rows["window 100: p50 ÷ that of window 1"][2] == "not in this run"
    made.add(WINDOW_1.name, THIS, {"p50_us": 100.0})
    assert target_rows(made)["window 100: p50 ÷ that of window 1"][1:] == ["1.5", "met"]
    assert "missed" in targets_table(made)


def test_pages_hold_the_tables_of_the_run_that_is_kept() -> None:
    made = Run.read(KEPT)
    for path in PAGES:
        assert with_tables(path.read_text(), made) == path.read_text(), "run ./dev bench readme"
    assert all(
        f"<!-- table: {name} -->" in "".join(path.read_text() for path in PAGES) for name in TABLES
    )


def test_tables_are_written_between_their_marks_and_nowhere_else(run: Run) -> None:
    text = "before\n<!-- table: floor -->\nold\n<!-- end of table -->\nafter\n"
    written = with_tables(text, run)
    assert written.startswith("before\n<!-- table: floor -->\n|  | fastbk |")
    assert written.endswith("|\n<!-- end of table -->\nafter\n")
    assert "old" not in written
    assert with_tables(written, run) == written


@pytest.mark.parametrize(
    ("value", "figure", "text"),
    [(182.4, "p50_us", "182"), (577_812.0, "per_s", "578,000"), (1.437, "bookie_us", "1.44"),
     (53.21, "bookie_us", "53.2"), (None, "per_s", "–")],
)  # fmt: skip
def test_numbers_in_tables_have_three_digits_that_count(
    value: float | None, figure: str, text: str
) -> None:
    assert number(value, figure) == text
