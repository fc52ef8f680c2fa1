"""What `./dev compat` runs of other projects' own tests, and what it leaves out."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.compat.jars import HERE
from tests.compat.java_cells import serve
from tests.compat.results import Result
from tests.compat.sections import BY_NAME_ONLY, chosen_sections
from tests.compat.suite import (
    SUITES,
    TestClass,
    Turns,
    by_class,
    chosen,
    keep,
    read_classes,
    read_kept,
)

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """# a comment
client.TestOne
  testA looks into a Java bookie
client.TestTwo needs TLS
[with a mock of the client]
test.Three
"""


def test_a_list_names_classes_tests_that_cannot_apply_and_classes_that_cannot() -> None:
    one, two, three = read_classes(TEXT)
    assert (one.name, one.excluded, one.reason) == (
        "client.TestOne",
        {"testA": "looks into a Java bookie"},
        "",
    )
    assert (two.reason, three.reason, three.excluded) == ("needs TLS", "", {})
    assert [one.has_mock for one in (one, two, three)] == [False, False, True]


@pytest.mark.parametrize("text", ["  testA looks inside\n", "client.TestOne\n  testA\n"])
def test_nothing_is_left_out_without_a_class_and_a_reason(text: str) -> None:
    with pytest.raises(ValueError, match="no reason, or no class before it"):
        read_classes(text)


def test_words_choose_classes_and_single_tests() -> None:
    found = chosen(read_classes(TEXT), ["Two", "TestOne#testB"])
    assert [(one.name, one.only) for one in found] == [
        ("client.TestTwo", []),
        ("client.TestOne", ["testB"]),
    ]
    assert len(chosen(read_classes(TEXT), [])) == 3


def test_a_java_runs_one_class_after_the_other_and_each_keeps_its_own_results() -> None:
    ended: list[tuple[str, list[str]]] = []

    def end(test_class: TestClass, results: list[Result]) -> None:
        ended.append((test_class.name, [one.name for one in results]))

    turns = Turns(read_classes(TEXT), "org.", end)
    assert turns.next() == "org.client.TestOne\t-testA=looks into a Java bookie"
    turns.results.append(Result("", "testB", "pass", 1.0))
    assert turns.next() == "org.client.TestTwo"
    assert ended == [("client.TestOne", ["testB"])]
    turns.results.append(Result("", "testC", "fail", 1.0))
    turns.over()
    assert ended[1:] == [("client.TestTwo", ["testC"])]
    assert [one.name for one in turns.waiting] == ["test.Three"], "a Java that died left it"


def test_a_java_that_never_asks_has_run_its_first_class() -> None:
    ended: list[str] = []
    turns = Turns(read_classes(TEXT), "org.", lambda one, _: ended.append(one.name))
    turns.over()
    assert ended == ["client.TestOne"]
    assert len(turns.waiting) == 2


def test_a_java_that_ran_all_is_told_so() -> None:
    turns = Turns(read_classes(TEXT)[2:], "org.", lambda *_: None)
    assert (turns.next(), turns.next()) == ("org.test.Three", "")
    turns.over()


@pytest.mark.parametrize("name", SUITES)
def test_a_list_is_sound_and_its_part_runs_only_when_named(name: str) -> None:
    classes = read_classes((HERE / SUITES[name].classes).read_text())
    names = [one.name for one in classes]
    assert len(names) == len(set(names)) > 0
    for against in ("", "apache"):
        assert [part for part, _ in chosen_sections({"PARTS": name, "AGAINST": against})] == [name]
        assert name not in dict(chosen_sections({"AGAINST": against}))


def test_parts_that_are_not_named_are_all_that_do_not_take_long() -> None:
    with pytest.raises(SystemExit) as error:
        chosen_sections({"PARTS": "none"})
    parts = str(error.value).split("there are: ")[1].split(", ")
    assert set(parts) >= BY_NAME_ONLY
    assert len(chosen_sections({})) == len(parts) - len(BY_NAME_ONLY)


def test_figures_of_several_runs_stand_side_by_side(tmp_path: Path) -> None:
    ours = [
        Result("suite > ours", "TestOne#testA", "pass", 1.0),
        Result("suite > ours", "TestOne#testB", "skip", 0.0, "looks inside"),
    ]
    keep(tmp_path, "suite", "ours", "client.TestOne", [Result("", "start", "fail", 1.0)])
    keep(tmp_path, "suite", "ours", "client.TestOne", ours)
    keep(tmp_path, "suite", "apache", "client.TestOne", [*ours, Result("", "c", "fail", 1.0)])
    keep(tmp_path, "suite", "apache", "test.Three", ours)
    keep(tmp_path, "other", "ours", "test.Three", ours)
    kept = {kind: read_kept(tmp_path, "suite", kind) for kind in ("ours", "apache")}
    table = by_class(kept, ["test.Three", "client.TestOne", "client.TestTwo"])
    assert table.splitlines()[2:] == [
        "| test.Three |  |  |  | 1 | 0 | 1 |",
        "| client.TestOne | 1 | 0 | 1 | 1 | 1 | 1 |",
        "| **all** | 1 | 0 | 1 | 2 | 1 | 2 |",
    ]


def test_a_program_that_ends_while_it_asks_ends_alone() -> None:
    """What it said before stays, and the run goes on with the next one."""
    program = ["printf", r"CELL\ta\tpass\t1.0\t\nASK\twait\n"]
    pipe = subprocess.PIPE
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        found = list(serve("column", process, {"wait": lambda: str(process.wait())}))
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    assert [one.name for one in found] == ["a"]
