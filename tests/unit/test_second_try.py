"""The rule by which failed tests are tried again: few, once, and a second failure counts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import __main__ as tiers

PLAIN = [word for name in ("anyio", "hypothesispytest") for word in ("-p", f"no:{name}")]
"""Plugins that these runs need nothing of, and that take longer to load than the runs."""


@pytest.fixture
def phase(tmp_path: Path) -> tiers.Phase:
    """A phase in which tests have failed."""
    made = tiers.Phase("services", ["-m", "service"], tmp_path)
    made.code = tiers.EXIT_TESTS_FAILED
    return made


@pytest.mark.parametrize("second", [0, 1])
def test_few_failures_are_tried_once_more_and_the_second_result_counts(
    second: int, phase: tiers.Phase, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def run(phases: Sequence[tiers.Phase]) -> None:
        asked.extend(one.arguments for one in phases)
        phase.code = second

    monkeypatch.setattr(tiers, "run_at_once", run)
    phase.failures.write_text("tests/a.py::test[x y]\ntests/b.py::test\n")
    tiers.second_try(phase)
    assert phase.code == second
    assert asked == [["tests/a.py::test[x y]", "tests/b.py::test"]]


@pytest.mark.parametrize("count", [0, tiers.SECOND_TRIES_MAX + 1])
def test_many_failures_and_unknown_ones_fail_at_once(
    count: int, phase: tiers.Phase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "run_at_once", lambda _: pytest.fail("tried again"))
    phase.failures.write_text("".join(f"tests/a.py::test{n}\n" for n in range(count)))
    tiers.second_try(phase)
    assert phase.code == tiers.EXIT_TESTS_FAILED


@pytest.mark.slow
@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["one_process", "a_worker"])
def test_a_file_that_cannot_be_read_is_among_the_failures(
    workers: list[str], phase: tiers.Phase, tmp_path: Path
) -> None:
    """Else the second try of a test that failed beside it would pass the whole run."""
    (tmp_path / "test_unread.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "test_failed.py").write_text("def test_failed() -> None:\n    assert False\n")
    plugin = ["-q", "-p", "tests.conftest", "--continue-on-collection-errors"]
    phase.arguments = [*plugin, *workers, str(tmp_path)]
    tiers.run_at_once([phase])
    assert phase.code == tiers.EXIT_TESTS_FAILED
    failed = {name.rpartition("/")[2] for name in phase.failures.read_text().splitlines()}
    assert failed == {"test_failed.py::test_failed", "test_unread.py"}


@pytest.mark.slow
def test_two_phases_run_at_once_print_one_after_the_other_and_keep_what_is_compiled(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    file = tmp_path / "test_few.py"
    file.write_text("def test_here() -> None: ...\n")
    first, second = phases = [
        tiers.Phase(title, [*PLAIN, "--co", "-q", f"{file}::{name}"], tmp_path)
        for title, name in [("services", "test_here"), ("parallel", "test_that_is_not_there")]
    ]
    tiers.run_at_once(phases)
    said = capfd.readouterr().out
    assert first.code == 0 and second.code not in (0, tiers.EXIT_TESTS_FAILED)
    assert said.index("1 test collected") < said.index("not found: ")
    assert list((tmp_path / "__pycache__").glob("test_few.*.pyc"))
    assert min(first.wall_s, second.wall_s, first.processor_s, second.processor_s) > 0.1
