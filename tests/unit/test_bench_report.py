"""What `./dev bench` shows of its figures."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.tools import bench
from tests.tools.bench_report import Run, page, ratio, table


@pytest.fixture
def run() -> Run:
    made = Run(seconds_each=1.0, machine="two <processors>")
    for ours, chain in ((100.0, 200.0), (300.0, 400.0), (90.0, 100.0)):
        made.add("append, window 1", "this tree", {"per_s": ours, "p50_us": 190.0, "disk_p50_us": 100.0})
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
    assert [again.has("append, window 1", "this tree", number) for number in (0, 2, 3)] == [True, True, False]
    assert not again.has("append, window 1", "disk", 0)
    assert not again.has("another", "disk", 0)


def test_the_page_is_whole_and_names_are_text_in_it(run: Run) -> None:
    text = page(run)
    assert "two &lt;processors&gt;" in text
    for start in range(text.count("<svg")):
        svg = text.split("<svg")[start + 1].split("</svg>")[0]
        assert len(ElementTree.fromstring(f"<svg{svg}</svg>").findall("rect")) == 2
    assert text.count("<svg") == 1, "one figure that both systems have"


def test_cases_are_chosen_by_words_of_their_names() -> None:
    assert bench.chosen("") == list(bench.CASES)
    assert [case.name for case in bench.chosen("window 100,singly")] == [
        case.name for case in bench.CASES if "window 100" in case.name or "singly" in case.name
    ]
    with pytest.raises(SystemExit, match="no case"):
        bench.chosen("nothing of this name")
