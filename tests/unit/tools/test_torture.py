"""`./dev torture` adds up what the rigs say, and its exit code is theirs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.rigs.report import Plan, Report
from tools import torture

if TYPE_CHECKING:
    from pathlib import Path


def good(plan: Plan) -> Report:
    return Report("good", cases=plan.cases or 7)


def lossy(plan: Plan) -> Report:
    report = Report("lossy", cases=1)
    report.lose(["an entry"], "here")
    return report


def broken(plan: Plan) -> Report:
    raise RuntimeError("no such thing")


def out_of_time(plan: Plan) -> Report:
    return Report("slow", cases=0)


def idle(plan: Plan) -> Report:
    return Report("idle", skipped="needs root")


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RIG", "ROUNDS", "CASES", "N", "JOBS", "DATA"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("rigs", "code", "text"),
    [
        ({"good": good}, 0, "cases=7 losses=0"),
        ({"good": good, "lossy": lossy}, 1, "LOSS here: an entry"),
        ({"broken": broken, "good": good}, 1, "no such thing"),
        ({"idle": idle, "good": good}, 0, "skipped: needs root"),
        ({"idle": idle}, 1, "cases=0"),
        ({"slow": out_of_time, "good": good}, 1, "no case was done by: slow"),
    ],
)
def test_the_exit_code(
    rigs: dict[str, object],
    code: int,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = {name: torture.Rig(run, "", 1.0) for name, run in rigs.items()}  # type: ignore[arg-type]
    monkeypatch.setattr(torture, "RIGS", made)
    assert torture.main() == code
    assert text in capsys.readouterr().out


def test_cases_are_split_over_jobs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rigs = {"good": torture.Rig(good, "", 1.0, splits=True), "idle": torture.Rig(idle, "", 1.0)}
    monkeypatch.setattr(torture, "RIGS", rigs)
    monkeypatch.setenv("RIG", "good")
    monkeypatch.setenv("CASES", "9")
    monkeypatch.setenv("JOBS", "2")
    assert torture.main() == 0
    out = capsys.readouterr().out
    assert "1 rigs, cases=10 losses=0" in out


def test_rounds_mean_the_live_rig(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rigs = {"live": torture.Rig(good, "", 1.0, cases=3), "lossy": torture.Rig(lossy, "", 1.0)}
    monkeypatch.setattr(torture, "RIGS", rigs)
    monkeypatch.setenv("ROUNDS", "5")
    assert torture.main() == 0
    assert "cases=5" in capsys.readouterr().out


def test_help_and_wrong_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RIG", "help")
    assert torture.main() == 0
    monkeypatch.setenv("RIG", "nonsense")
    assert torture.main() == 2
    out, said = capsys.readouterr()
    assert all(name in out for name in torture.RIGS)
    assert "no rig 'nonsense'" in said


def test_the_first_case_begins_although_the_start_took_all_the_time(tmp_path: Path) -> None:
    plan = Plan(1, 4, 6.0, tmp_path, began_s=time.monotonic() - 10.0)
    assert [plan.goes_on(0), plan.begins(0), plan.begins(1)] == [False, True, False]
    assert not Plan(1, 4, 0.0, tmp_path).begins(0), "no time was given"
