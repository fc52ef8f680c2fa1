"""P1 to P33 as exact interleavings: each must hold, and must notice the faults that are planted for it."""

from __future__ import annotations

import pytest

import tests.simulation.scripts.bookies
import tests.simulation.scripts.recovering
import tests.simulation.scripts.writing  # noqa: F401 - these register
from fastbk.errors import Error
from tests.simulation.kernel import Violation
from tests.simulation.mutations import MUTATIONS
from tests.simulation.planting import planted
from tests.simulation.scripts.registry import SCRIPTS, Script

# P20 to P23 come with storage; P28 to P31 are about the real journal's files.
ELSEWHERE = {20, 21, 22, 23, 28, 29, 30, 31}


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
    assert {int(one.name.strip("Pb")) for one in SCRIPTS} == set(range(1, 34)) - ELSEWHERE
