"""The rule by which a failed test is tried again: few, once, and a second failure counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import __main__ as tiers


@pytest.mark.parametrize("second", [0, 1])
def test_few_failures_are_tried_once_more_and_the_second_result_counts(
    second: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def run(arguments: list[str], *_: object) -> int:
        asked.append(arguments)
        return second

    monkeypatch.setattr(tiers, "run_pytest", run)
    (tmp_path / "failed").write_text("tests/a.py::test[x y]\ntests/b.py::test\n")
    assert tiers.second_try(tmp_path / "failed", tmp_path, "run") == second
    assert asked == [["tests/a.py::test[x y]", "tests/b.py::test"]]


@pytest.mark.parametrize("count", [0, tiers.SECOND_TRIES_MAX + 1])
def test_many_failures_and_unknown_ones_fail_at_once(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "run_pytest", lambda *_: pytest.fail("tried again"))
    (tmp_path / "failed").write_text("".join(f"tests/a.py::test{n}\n" for n in range(count)))
    assert tiers.second_try(tmp_path / "failed", tmp_path, "run") == tiers.EXIT_TESTS_FAILED
