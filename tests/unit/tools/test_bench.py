"""What `./dev bench` shows of its figures."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from tools import ROOT, bench
from tools.bench import Length
from tools.benchmark import disk_limit as disk_limits
from tools.benchmark.apache import TUNED
from tools.benchmark.cases import (
    BYTES,
    CASES,
    RESTART,
    SUSTAINED_1000,
    SUSTAINED_S,
    WINDOW_1,
    WINDOW_100,
    WINDOW_1000,
    Append,
    chosen_cases,
)
from tools.benchmark.disk_limit import NAME, PREFIX, NoDiskLimit, disk_limit, why_none
from tools.benchmark.page import page
from tools.benchmark.run import Run, ratio
from tools.benchmark.system import Measure, System
from tools.benchmark.systems import CHAIN, THIS, chosen_systems, other_systems
from tools.benchmark.tables import KEPT, PAGES, TABLES, number, with_tables
from tools.benchmark.targets import rows_of_targets, targets_table
from tools.benchmark.terminal import table
from tools.benchmark.trees import Tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


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
    assert Length(3, 2.0, 20, sustained_s=5.0).of(SUSTAINED_1000) == (3, 5.0)
    assert Length(3, 2.0, 20, sustained_s=5.0).of(BYTES[0]) == (3, 5.0)
    assert Length(3, 2.0, 20, sustained_s=5.0).of(WINDOW_100) == (3, 2.0)


GROUPS = Path("/proc/self/cgroup")


def test_a_disk_is_limited_while_the_block_lasts_or_the_reason_is_given(tmp_path: Path) -> None:
    why = why_none(tmp_path)
    if why:
        with pytest.raises(NoDiskLimit, match=re.escape(why)), disk_limit(tmp_path, 1 << 40):
            pass
    else:
        with disk_limit(tmp_path, 1 << 40):
            child = subprocess.run(["cat", GROUPS], capture_output=True, text=True, check=True)
        assert NAME in child.stdout, "what is started is limited, too"
    assert NAME not in GROUPS.read_text()
    with disk_limit(tmp_path, 0):
        assert NAME not in GROUPS.read_text()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_processes_that_run_are_limited_and_an_interrupt_leaves_no_group(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    if why := why_none(tmp_path):
        pytest.skip(why)
    groups = Path(f"/proc/{sleeper.pid}/cgroup")
    with pytest.raises(KeyboardInterrupt), disk_limit(tmp_path, 1 << 40, [sleeper.pid]):
        assert NAME in groups.read_text()
        raise KeyboardInterrupt
    assert sleeper.poll() is None
    assert NAME not in groups.read_text() + GROUPS.read_text(), "and it is back where it was"


def test_the_group_of_a_bench_that_was_killed_is_removed_by_the_next_one(tmp_path: Path) -> None:
    if why := why_none(tmp_path):
        pytest.skip(why)
    text = (
        "import os, pathlib, signal, sys\n"
        "from tools.benchmark.disk_limit import disk_limit\n"
        "with disk_limit(pathlib.Path(sys.argv[1]), 1 << 40):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.Popen([sys.executable, "-c", text, tmp_path], cwd=ROOT)
    assert killed.wait(60) == -signal.SIGKILL
    with disk_limit(tmp_path, 1 << 40):
        own = re.findall(rf".*:(/.*{NAME})", GROUPS.read_text())[0]
        hierarchies = [
            path for path in Path("/sys/fs/cgroup").glob("*") if (path / own[1:]).is_dir()
        ]
        assert hierarchies, "that is where groups are"
        for path in hierarchies:
            assert not (path / own[1:]).with_name(f"{PREFIX}{killed.pid}").exists()


@pytest.mark.parametrize(
    ("mounts", "groups", "wanted"),
    [
        # Version 1 comes first, and the group is below what is mounted of the hierarchy.
        (
            "30 23 0:26 /pod /{}/blkio rw - cgroup none rw,blkio\n31 23 0:27 / /{}/two rw - cgroup2 none rw\n",
            "7:blkio:/pod/mine\n0::/mine\n",
            ("blkio/mine", "blkio.throttle.write_bps_device", "8:0 200", "blkio/mine"),
        ),
        # Version 2: a group of the root, which this process leaves for its own again.
        (
            "31 23 0:27 / /{}/two rw - cgroup2 none rw\n",
            "0::/user/mine\n",
            ("two", "io.max", "8:0 wbps=200", "two/user/mine"),
        ),
    ],
)
def test_the_controller_is_version_1s_or_else_version_2s(
    mounts: str,
    groups: str,
    wanted: tuple[str, str, str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "two").mkdir()
    (tmp_path / "two/cgroup.controllers").write_text("cpu io memory\n")
    (tmp_path / "mountinfo").write_text(mounts.replace("/{}", str(tmp_path)))
    (tmp_path / "cgroup").write_text(groups)
    monkeypatch.setattr(disk_limits, "PROC", tmp_path)
    made = disk_limits.controller_of("8:0", 200)
    parent, file, text, home = wanted
    assert (made.parent, made.file, made.text) == (tmp_path / parent, file, text)
    assert made.home == tmp_path / home
    (tmp_path / "two/cgroup.controllers").write_text("cpu\n")
    (tmp_path / "mountinfo").write_text("31 23 0:27 / /proc rw - proc none rw\n")
    with pytest.raises(NoDiskLimit, match="no control group limits disks here"):
        disk_limits.controller_of("8:0", 200)


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


def test_sustained_loads_and_bytes_have_tables_of_their_own_beside_the_commit_before() -> None:
    made = Run(seconds_each=1.0)
    for case in (WINDOW_1000.name, SUSTAINED_1000.name):
        made.add(case, THIS, {"per_s": 500.0, "p999_us": 20.0, "bookie_us": 1.0})
        made.add(case, "before (abc)", {"per_s": 250.0, "p999_us": 40.0})
        made.add(case, CHAIN, {"per_s": 1000.0, "p999_us": 10.0})
        made.add(case, TUNED[0], {"per_s": 100.0, "p999_us": 80.0})
    made.add(BYTES[0].name, THIS, {"disk_bytes": 1.1})
    made.add(BYTES[0].name, "before (abc)", {"disk_bytes": 2.2})
    assert WINDOW_1000.name in TABLES["rivals"](made)
    assert SUSTAINED_1000.name not in TABLES["rivals"](made)
    rows = TABLES["sustained"](made).splitlines()[2:]
    assert rows == [
        f"| {SUSTAINED_1000.name} | 500 | 250 | 1,000 | – | 100 | 2.00 | 0.50 | 5.00 |",
        f"| {SUSTAINED_1000.name}: p99.9, µs | 20 | 40 | 10 | – | 80 | 0.50 | 2.00 | 0.25 |",
    ]
    assert TABLES["bytes"](made).splitlines()[2:] == [
        "| 100 B, 1 ledger | 1.10 | 2.20 | – | 0.50 |"
    ]
    assert TABLES["bytes"](Run(seconds_each=1.0)) == "", "no rows, no table"


@pytest.mark.parametrize(
    ("value", "figure", "text"),
    [(182.4, "p50_us", "182"), (577_812.0, "per_s", "578,000"), (1.437, "bookie_us", "1.44"),
     (53.21, "bookie_us", "53.2"), (None, "per_s", "–")],
)  # fmt: skip
def test_numbers_in_tables_have_three_digits_that_count(
    value: float | None, figure: str, text: str
) -> None:
    assert number(value, figure) == text
