"""Each check of the simulator is shown histories that must not be, and has to say which invariant they break."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

import tests.unit.simulation.bad_for_clients
import tests.unit.simulation.bad_for_the_cluster  # noqa: F401 - these register
from fastbk.model.ledger import LedgerState
from fastbk.replication.procedure import ReadEntry, Reply
from fastbk.wire.statuses import Status
from tests.simulation.checks import INVARIANTS
from tests.simulation.kernel import Violation
from tests.unit.simulation.judge import BAD, Judge


@pytest.mark.parametrize(
    ("name", "history"), [(name, one) for name, _, one in BAD], ids=[f"{a}-{b}" for a, b, _ in BAD]
)
def test_a_bad_history_is_refused(name: str, history: Callable[[Judge], None]) -> None:
    judge = Judge()
    with pytest.raises(Violation) as found:
        history(judge)
    assert found.value.invariant == name, str(found.value)


def test_a_lac_behind_the_last_force_is_refused() -> None:
    judge = Judge(is_deferred=True)
    judge.store(2)
    judge.acked(2)
    judge.checks.forced("c0", 0, 0)
    judge.checks.lac_told("c1", 0, -1, 0)
    with pytest.raises(Violation, match="I21"):
        judge.checks.lac_told("c1", 0, 0, 1)


def test_every_invariant_has_a_bad_history() -> None:
    assert {name for name, _, _ in BAD} == set(INVARIANTS)


def test_a_good_life_is_accepted() -> None:
    judge = Judge()
    judge.store(3)
    judge.acked(2)
    judge.checks.lac_told("c2", 0, -1, 1)
    judge.write(1)
    judge.add(0, 3)
    judge.ensemble(2, "b0", "b1", "b3")
    judge.add(3, 2)
    judge.acked(3)
    judge.change(replace(judge.metadata, state=LedgerState.IN_RECOVERY))
    for bookie in (0, 1, 3):
        judge.fence(bookie)
    judge.recovery_reads()
    judge.add(1, 3, recovery=True)
    judge.close(3)
    judge.checks.believes_closed("c1", 0, judge.metadata)
    judge.checks.was_read("c2", 0, 3, judge.ledger.written[3])
    judge.answer(2, ReadEntry(3), Reply(Status.NO_ENTRY))
    judge.checks.wiped(judge.world.bookies["b0"])
    judge.answer(0, ReadEntry(0), Reply(Status.CANNOT_TELL))


def test_a_liar_alone_may_lose_what_it_acknowledged() -> None:
    judge = Judge()
    judge.checks.liars = 1 << judge.world.bookies["b0"].index
    judge.world.bookies["b0"].is_liar = True
    judge.store(1)
    judge.acked(1)
    judge.store(2, (0, 1))
    judge.acked(3)
    judge.close(0)
    with pytest.raises(Violation, match="I1"):
        judge.checks.not_readable("r", 0, 0, "gone")
