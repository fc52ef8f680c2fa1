"""The mutation gate: every planted fault is found by the world of its recorded seed; without faults worlds are quiet.

When the product's source changes, a fault may have to be written anew in tests/simulation/mutations.py (NotPlantable
says which), or a seed may no longer find it: `./dev sim MUTATIONS=1 ONLY=name` looks for another one.
"""

from __future__ import annotations

import os
import time

import pytest

from tests.simulation.checks import INVARIANTS
from tests.simulation.finders import FINDERS, SCRIPTED
from tests.simulation.mutations import MUTATIONS
from tests.simulation.planting import Edit, Mutation, NotPlantable, planted
from tests.simulation.scripts.registry import SCRIPTS
from tests.simulation.scripts.test_scripts import ELSEWHERE
from tests.simulation.world import run_seed

FAULTS_MIN = 25
FRESH_S = 12.0
# Found by fresh seeds within a few tries each: the others have their recorded ones.
QUICK = (
    "rewriting-without-the-flag",
    "one-ack-short",
    "lac-is-what-was-sent",
    "fence-is-not-asked",
)


@pytest.mark.parametrize("name", FINDERS)
def test_its_seed_finds_the_fault(name: str) -> None:
    with planted(MUTATIONS[name]):
        result = run_seed(FINDERS[name])
    assert result.violation in INVARIANTS, (
        f"seed {FINDERS[name]} no longer finds {name}; look for another one:"
        f" ./dev sim MUTATIONS=1 ONLY={name} SECONDS_EACH=300"
    )


@pytest.mark.parametrize("seed", sorted(set(FINDERS.values())))
def test_the_same_seed_is_quiet_without_it(seed: int) -> None:
    result = run_seed(seed)
    assert result.violation is None, result.text


@pytest.mark.slow
def test_fresh_seeds_find_faults() -> None:
    first = int(os.environ["SEED"]) * 1_000_000 + 700_000
    end_s = time.process_time() + FRESH_S  # not what others take of the machine meanwhile
    missed = set(QUICK)
    for name in QUICK:
        with planted(MUTATIONS[name]):
            number = 0
            while name in missed and time.process_time() < end_s:
                if run_seed(first + number).violation in INVARIANTS:
                    missed.discard(name)
                number += 1
    assert not missed, "these were found within a second or two when they were written down"


def test_there_are_enough_faults_and_each_has_its_finder() -> None:
    assert len(FINDERS) >= FAULTS_MIN
    assert set(FINDERS) | set(SCRIPTED) == set(MUTATIONS)
    noticed = {fault for one in SCRIPTS for fault in one.noticed}
    assert set(SCRIPTED) <= noticed
    assert ELSEWHERE


def test_a_fault_that_fits_no_longer_says_so() -> None:
    where = "fastbk.replication.add_machine:AddMachine.freeze"
    with (
        pytest.raises(NotPlantable, match="no longer contains"),
        planted(Mutation("x", "", (Edit(where, "self.is_cold = True", "pass"),))),
    ):
        pass


def test_a_planted_fault_is_gone_afterwards() -> None:
    from fastbk.replication.add_machine import AddMachine

    before = AddMachine.freeze
    with planted(MUTATIONS["no-freeze"]):
        assert AddMachine.freeze is not before
    assert AddMachine.freeze is before
