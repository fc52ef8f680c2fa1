"""P1 to P33 as exact interleavings: each must hold, and must notice the faults that are planted for it."""

from __future__ import annotations

from pathlib import Path

import pytest

import tests.simulation.scripts.bookies
import tests.simulation.scripts.recovering
import tests.simulation.scripts.writing  # these register
from fastbk.errors import Error
from tests.simulation.kernel import Violation
from tests.simulation.mutations import MUTATIONS
from tests.simulation.planting import planted
from tests.simulation.scripts.registry import SCRIPTS, Script

# Played on real files and directories.
ELSEWHERE = {
    20: "integration/test_pairs.py",
    21: "unit/gc/test_dead_ledgers.py",
    22: "crash/test_gc_bad_headers.py",
    23: "crash/test_unclean_stop.py",
    28: "crash/test_journal_faults.py",
    29: "crash/test_store_faults.py",
    30: "property/test_journal_format.py",
    31: "property/test_journal_format.py",
}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_script(script: Script) -> None:
    script.play()


@pytest.mark.parametrize(
    ("script", "fault"),
    [(one, fault) for one in SCRIPTS for fault in one.noticed],
    ids=lambda value: value.name if isinstance(value, Script) else value,
)
def test_script_notices(script: Script, fault: str) -> None:
    with planted(MUTATIONS[fault]), pytest.raises((Violation, AssertionError, Error)):
        script.play()


def test_every_scenario_has_a_script() -> None:
    assert {int(one.name.strip("Pbc")) for one in SCRIPTS} == set(range(1, 34)) - set(ELSEWHERE)
    for number, path in ELSEWHERE.items():
        text = (Path(tests.simulation.__file__).parents[1] / path).read_text()
        assert f"P{number}" in text or f"P{number - 1} and P{number}" in text, path
