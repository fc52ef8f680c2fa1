"""`./dev sim`: what it prints and how it ends; and what the recorder of traces writes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from fastbk.meta.api import VersionedLedger
from fastbk.model.ledger import Fragment, LedgerMetadata
from tests.simulation.finders import FINDERS
from tests.simulation.finding import FOUND, is_found
from tests.simulation.model_trace import Recorder, trace_of
from tests.simulation.mutations import MUTATIONS
from tests.simulation.plan import draw_plan
from tests.simulation.planting import planted
from tests.simulation.shrinking import shrink
from tests.simulation.streams.running import KINDS, MUTATIONS_OF
from tests.simulation.world import run_seed
from tools.sim import main

if TYPE_CHECKING:
    from pathlib import Path

LAST_LINE = re.compile(r"seeds=(\d+) events=(\d+) violations=(\d+) seconds=[\d.]+")


@pytest.mark.slow
def test_a_quiet_run_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main({"SEEDS": "30", "SEED": "1", "JOBS": "1"}) == 0
    lines = capsys.readouterr().out.splitlines()
    found = LAST_LINE.fullmatch(lines[-1])
    assert found, lines[-1]
    seeds, events, violations = map(int, found.groups())
    assert 0 < seeds <= 30 and events >= 200 * seeds and violations == 0
    assert any(line.startswith("branches: ") for line in lines)


CALL = re.compile(r" *\d+\.\d{3} +(\d+\.\d{3}  )?\S+ +\w[\w.]+")


@pytest.mark.parametrize("worlds", [*KINDS, "healing"])
def test_a_seed_of_another_kind_of_worlds_is_replayed_as_that_kind(
    worlds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It showed the world of ledgers that has this seed."""
    of_kind = {"HEALING": "1"} if worlds == "healing" else {"STREAMS": "1", "WORLDS": worlds}
    assert main({**of_kind, "REPLAY": "3"}) == 0
    first, _, *calls, last = capsys.readouterr().out.splitlines()
    assert (first, last) == (f"{worlds}, seed 3", "no violation")
    assert calls
    for one in calls:
        assert CALL.match(one), one


def test_a_planted_fault_of_a_stream_is_replayed_in_its_world(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fault = next(
        one for one in MUTATIONS_OF["writers"] if is_found(one, KINDS["writers"], one.seed)
    )
    settings = {"STREAMS": "1", "REPLAY": str(fault.seed), "MUTATION": fault.name}
    assert main(settings) == 1
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == f"writers, seed {fault.seed}"
    assert last.split(":")[0] in {one.__name__ for one in FOUND}
    assert main({**settings, "MUTATION": "none such"}) == 2
    assert main({"STREAMS": "1", "SHRINK": "3"}) == 2


@pytest.mark.slow
def test_several_processes_see_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    reports = []
    for jobs in ("1", "2"):
        assert main({"SEEDS": "30", "SEED": "9", "JOBS": jobs}) == 0
        found = LAST_LINE.fullmatch(capsys.readouterr().out.splitlines()[-1])
        assert found
        reports.append(found.groups())
    assert reports[0] == reports[1]


def test_a_violation_ends_with_1_and_says_how_to_see_it_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = {"SEEDS": "50", "SEED": "1", "JOBS": "1", "MUTATION": "one-ack-short"}
    assert main(settings) == 1
    out = capsys.readouterr().out
    again = re.search(r"\./dev sim REPLAY=(\d+) MUTATION=one-ack-short", out)
    assert again
    assert not out.splitlines()[-1].count("violations=0")
    assert main({"REPLAY": again[1], "MUTATION": "one-ack-short"}) == 1
    shown = capsys.readouterr().out
    assert "c0" in shown and "I1" in shown
    assert main({"REPLAY": again[1]}) == 0


def test_an_unknown_mutation_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main({"MUTATION": "nonsense"}) == 2
    assert "no-freeze" in capsys.readouterr().out


SHRINK_S_MAX = 90.0
"""It ends by itself after a few seconds of the processor's: a limit that it meets would judge the machine."""


@pytest.mark.long
@pytest.mark.slow
def test_shrinking_leaves_what_the_failure_needs() -> None:
    name = "recovery-reads-do-not-fence"
    seed = FINDERS[name]
    with planted(MUTATIONS[name]):
        violation = run_seed(seed).violation
        assert violation is not None
        plan = draw_plan(seed)
        before = len(plan.faults) + len(plan.work)
        small, result = shrink(plan, violation, SHRINK_S_MAX)
        assert result.violation == violation
    assert len(small.faults) + len(small.work) < before / 2
    kinds = {item.kind for item in small.work}
    assert {"append", "recover"} <= kinds, "without these the fault cannot show"
    assert len(plan.faults) + len(plan.work) == before, "the given plan is left alone"


def test_traces_are_lines_for_the_model(tmp_path: Path) -> None:
    assert main({"TRACES": "5", "OUT": str(tmp_path), "SEED": "40"}) == 0
    lines = [json.loads(line) for line in (tmp_path / "traces.jsonl").read_text().splitlines()]
    headers = [line["trace"] for line in lines if "trace" in line]
    assert headers == [f"seed {seed}" for seed in range(40, 45)]
    events = {line["event"] for line in lines if "event" in line}
    assert {"AddSent", "AddAck", "Acked", "CloseCas", "LacRead"} <= events


# --- the recorder of traces ----------------------------------------------------------------------------------------

FIRST, CHANGED = ("b1", "b2"), ("b1", "b3")
BEGUN = LedgerMetadata(
    ensemble_size=2, write_quorum=2, ack_quorum=1, fragments=(Fragment(0, FIRST),)
)


def recorded(old: LedgerMetadata, new: LedgerMetadata) -> dict[str, Any]:
    recorder = Recorder("by hand")
    recorder.created(0, BEGUN)
    recorder.metadata_changed("c0", 0, old, VersionedLedger(new, 7))
    _, event = map(json.loads, recorder.lines)
    assert event["version"] == 7
    return event  # type: ignore[no-any-return]


def test_a_naming_is_told_from_an_ensemble_change() -> None:
    changed = replace(BEGUN, fragments=(Fragment(0, FIRST), Fragment(5, CHANGED)))
    named = replace(
        BEGUN, fragments=(Fragment(0, FIRST), Fragment(3, CHANGED), Fragment(5, CHANGED))
    )
    change = recorded(BEGUN, changed)
    assert (change["event"], change["first"]) == ("EnsembleCas", 5)
    naming = recorded(changed, named)
    assert naming["event"] == "NameCas"
    assert naming["segments"] == [[0, ["b1", "b2"]], [3, ["b1", "b3"]], [5, ["b1", "b3"]]]


@pytest.mark.slow
def test_worlds_for_the_model_give_copies_and_name_their_holders() -> None:
    for seed in range(5_000_000, 5_000_400):
        if any('"NameCas"' in line for line in trace_of(seed)):
            return
    pytest.fail("no replacement was named for copies")
