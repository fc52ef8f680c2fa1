"""What `./dev compat PARTS=suite` runs of Apache's own tests, and what it leaves out."""

from __future__ import annotations

import contextlib
import subprocess

import pytest

from tests.compat.jars import HERE
from tests.compat.java_cells import serve
from tests.compat.results import Result
from tests.compat.sections import BY_NAME_ONLY, chosen_sections
from tests.compat.suite import COLUMN, by_class, chosen, read_classes

TEXT = """# a comment
client.TestOne
  testA looks into a Java bookie
client.TestTwo needs TLS
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


def test_the_list_is_sound_and_its_part_runs_only_when_named() -> None:
    classes = read_classes((HERE / "suite.txt").read_text())
    names = [one.name for one in classes]
    assert len(names) == len(set(names)) and all("." in name for name in names)
    assert len(chosen_sections({"PARTS": "suite"})) == 1
    with pytest.raises(SystemExit) as error:
        chosen_sections({"PARTS": "none"})
    parts = str(error.value).split("there are: ")[1].split(", ")
    assert set(parts) >= BY_NAME_ONLY
    assert len(chosen_sections({})) == len(parts) - len(BY_NAME_ONLY)


def test_figures_are_counted_by_class() -> None:
    results = [
        Result(COLUMN, "TestOne#testA", "pass", 1.0),
        Result(COLUMN, "TestOne#testB", "skip", 0.0, "looks inside"),
        Result("java v3 > ours", "append", "pass", 1.0),
    ]
    assert by_class(results).splitlines()[2:] == ["| TestOne | 1 | 0 | 1 |"]


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
