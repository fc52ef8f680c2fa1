import pytest

from fastbk.retry import Backoff, exact
from fastbk.server.supervision.lifecycle import Lifecycle, RestartBudget, Restarts, State


def test_a_bookie_is_ready_only_when_writable() -> None:
    life = Lifecycle(10.0)
    assert life.not_ready(12.5) == ["starting for 2.5 s: starting"]
    life.go(State.REPLAYING, "replaying the journal", 13.0)
    life.go(State.WRITABLE, "serving", 14.0)
    assert life.not_ready(15.0) == []
    life.go(State.READ_ONLY, "a disk is full", 16.0)
    assert life.not_ready(17.0) == ["read_only for 1.0 s: a disk is full"]


def test_a_note_speaks_against_readiness_until_it_is_taken_back() -> None:
    life = Lifecycle(0.0)
    life.go(State.REPLAYING, "", 0.0)
    life.go(State.WRITABLE, "", 0.0)
    life.note("disk", "it is full")
    assert life.not_ready(1.0) == ["it is full"]
    life.note("disk", None)
    life.note("disk", None)
    assert life.not_ready(1.0) == []


def test_what_does_not_concern_data_is_a_condition_and_no_reason_against_readiness() -> None:
    life = Lifecycle(0.0)
    life.note("metadata", "no answer", "metadata")
    names = [(one.name, one.concerns) for one in life.conditions(1.0)]
    assert names == [("state", "data"), ("metadata", "metadata")]
    assert life.not_ready(1.0) == ["starting for 1.0 s: starting"]


def test_only_a_failed_bookie_is_not_live() -> None:
    life = Lifecycle(0.0)
    assert life.is_live
    life.go(State.FAILED, "crash loop", 1.0)
    assert not life.is_live


@pytest.mark.parametrize(
    "path",
    [
        [State.WRITABLE],
        [State.REPLAYING, State.STOPPED],
        [State.DRAINING, State.WRITABLE],
        [State.FAILED, State.STARTING],
    ],
)
def test_steps_that_no_bookie_takes_are_refused(path: list[State]) -> None:
    life = Lifecycle(0.0)
    for state in path[:-1]:
        life.go(state, "", 0.0)
    with pytest.raises(ValueError, match="does not go from"):
        life.go(path[-1], "", 0.0)


def test_a_child_may_die_in_any_state_of_a_running_bookie() -> None:
    for states in ([], [State.REPLAYING], [State.REPLAYING, State.WRITABLE]):
        life = Lifecycle(0.0)
        for state in states:
            life.go(state, "", 0.0)
        life.go(State.STARTING, "journal: killed by signal 9", 1.0)
        assert life.state is State.STARTING


def test_the_first_death_is_answered_at_once_and_later_ones_ever_later() -> None:
    budget = RestartBudget(5, 60.0)
    pauses = [budget.died(float(n)) for n in range(4)]
    assert pauses[0] == 0.0
    assert pauses == sorted(pauses)
    assert pauses[3] is not None
    assert 0 < pauses[3] <= 5.0


def test_a_crash_loop_is_found_at_its_bound_and_not_before() -> None:
    budget = RestartBudget(5, 60.0)
    assert [budget.died(float(n)) is None for n in range(5)] == [False] * 4 + [True]


def test_deaths_that_are_long_ago_do_not_count_into_a_crash_loop() -> None:
    budget = RestartBudget(5, 60.0)
    for n in range(20):
        assert budget.died(100.0 * n) == 0.0
    assert budget.total == 20


def made(deaths_max: int) -> Restarts:
    """Return what follows deaths, with pauses that are exact."""
    return Restarts(RestartBudget(deaths_max, 60.0), Backoff(30.0, 600.0), exact)


def crash_loop(restarts: Restarts, deaths: int, now_s: float = 0.0) -> None:
    """Let the journal die so often that only reads are left."""
    for n in range(deaths):
        assert not restarts.reads_only_reason
        assert restarts.died("journal", f"death {n}", was_serving=True, now_s=now_s) is not None


def test_a_crash_loop_leads_to_a_start_that_serves_reads_only() -> None:
    restarts = made(3)
    crash_loop(restarts, 3)
    assert restarts.reads_only_reason == "death 2"
    assert restarts.budget.total == 3


def test_deaths_far_apart_never_lead_there() -> None:
    restarts = made(3)
    for n in range(20):
        assert restarts.died("journal", "", was_serving=True, now_s=100.0 * n) == 0.0
    assert not restarts.reads_only_reason


@pytest.mark.parametrize(
    ("role", "was_serving"), [("index", True), ("index", False), ("worker", False)]
)
def test_when_serving_reads_fails_too_nothing_runs_until_the_next_try(
    role: str, was_serving: bool
) -> None:
    restarts = made(3)
    crash_loop(restarts, 3)
    assert (restarts.reads_only_s, restarts.is_down) == (30.0, False)
    assert restarts.died(role, "", was_serving=was_serving, now_s=1.0) == 60.0
    assert restarts.is_down
    restarts.try_again()
    assert (restarts.is_down, restarts.reads_only_reason) == (False, "")


def test_workers_may_die_of_a_client_while_reads_are_served_but_not_for_ever() -> None:
    restarts = made(3)
    crash_loop(restarts, 3)
    for _ in range(2):
        assert restarts.died("worker", "", was_serving=True, now_s=1.0) < 1.0
    assert not restarts.is_down
    assert restarts.died("worker", "", was_serving=True, now_s=1.0) == 60.0
    assert restarts.is_down
    assert restarts.reads_only_reason == "death 2", "the reason is the first one"


def test_one_death_soon_after_a_try_leads_back_for_twice_as_long() -> None:
    restarts, now_s, pauses = made(2), 0.0, []
    crash_loop(restarts, 2)
    for number in range(7):
        pauses.append(restarts.reads_only_s)
        restarts.try_again()
        assert not restarts.reads_only_reason
        now_s += 1000.0
        if number % 2:  # others die before they serve
            restarts.serves(now_s)
        assert (
            restarts.died("journal", "again", was_serving=bool(number % 2), now_s=now_s + 59.0)
            == 0.0
        )
        assert restarts.reads_only_reason == "again"
    assert pauses == [30.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0]
    assert restarts.budget.crash_loops == 8


def test_a_try_that_serves_ends_the_crash_loop() -> None:
    restarts = made(2)
    crash_loop(restarts, 2)
    restarts.try_again()
    restarts.serves(100.0)
    assert restarts.died("journal", "once", was_serving=True, now_s=161.0) == 0.0
    assert not restarts.reads_only_reason
    assert restarts.died("journal", "twice", was_serving=True, now_s=162.0) == 0.0
    assert restarts.reads_only_reason == "twice"
    assert restarts.reads_only_s == 30.0
