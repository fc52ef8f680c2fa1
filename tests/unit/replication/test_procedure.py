"""What every procedure gets from its base: tags, parts, withdrawing, one end; steps that yield what they wait for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fastbk.errors import NotEnoughBookies
from fastbk.replication.procedure import (
    Gather,
    Procedure,
    ReadLac,
    ReadMetadata,
    Sleep,
    Steps,
    Withdraw,
)


class Naps(Procedure[int]):
    """Sleeps `count` times at once and counts how often it woke; fails instead if it is told to."""

    def __init__(self, count: int, fails: bool = False) -> None:
        super().__init__()
        self.count = count
        self.fails = fails
        self.woken = 0

    def begin(self, now_s: float) -> None:
        for _ in range(self.count):
            self._sleep(1.0, self._woke)

    def _woke(self, now_s: float) -> None:
        self.woken += 1
        if self.fails:
            self._fail(NotEnoughBookies("no"), now_s)
        elif self.woken == 2:
            self._finish(self.woken, now_s)


class Parent(Procedure[list[int]]):
    """Runs naps as its parts, one after another, by callbacks."""

    def __init__(self, *parts: Procedure[int]) -> None:
        super().__init__()
        self.parts = list(parts)
        self.results: list[int] = []

    def begin(self, now_s: float) -> None:
        self._ask("b0", ReadLac(), 1.0, lambda *_: None)
        self._next(now_s)

    def _next(self, now_s: float) -> None:
        if not self.parts:
            self._finish(self.results, now_s)
            return
        self._run(self.parts.pop(0), self._ended, now_s)

    def _ended(self, part: Procedure[int], now_s: float) -> None:
        if part.error is not None:
            self._fail(part.error, now_s)
            return
        self.results.append(part.value())
        self._next(now_s)


class Straight(Procedure[object]):
    """Runs the steps that a test gives."""

    def __init__(self, steps: Callable[[Straight], Steps[object]]) -> None:
        super().__init__()
        self._given = steps

    def steps(self) -> Steps[object]:
        return self._given(self)

    @property
    def now_s(self) -> float:
        return self._now_s


def started(steps: Callable[[Straight], Steps[object]]) -> Straight:
    straight = Straight(steps)
    straight.start(0.0)
    return straight


def sleeps(procedure: Procedure[list[int]]) -> list[int]:
    """The tags of the pauses that are asked for."""
    return [tag for tag, action in procedure.take_actions() if isinstance(action, Sleep)]


def test_an_end_lets_go_of_what_is_under_way_and_drops_what_comes_late() -> None:
    naps = Naps(4)
    naps.start(0.0)
    tags = [tag for tag, _ in naps.take_actions()]
    naps.completed(tags[2], None, 1.0)
    naps.completed(tags[2], None, 1.0)  # an outcome counts once
    assert not naps.is_finished
    naps.completed(tags[0], None, 1.0)
    assert naps.value() == 2
    assert naps.take_actions() == [(tags[1], Withdraw()), (tags[3], Withdraw())]
    naps.completed(tags[1], None, 1.0)
    assert naps.woken == 2


def test_parts_share_tags_and_actions_with_the_whole() -> None:
    parent = Parent(Naps(2), Naps(3))
    parent.start(0.0)
    seen: set[int] = set()
    while not parent.is_finished:
        for tag, action in parent.take_actions():
            if not isinstance(action, Withdraw):
                assert tag not in seen
                seen.add(tag)
            if isinstance(action, Sleep):
                parent.completed(tag, None, 1.0)
    assert parent.value() == [2, 2]
    assert (1, Withdraw()) in parent.take_actions()  # the question that nobody waits for any more


def test_a_failed_part_says_why_and_every_caller_gets_its_own_error() -> None:
    parent = Parent(Naps(2, fails=True), Naps(1))
    parent.start(0.0)
    parent.completed(sleeps(parent)[0], None, 1.0)
    errors = []
    for _ in range(2):
        with pytest.raises(NotEnoughBookies) as caught:
            parent.value()
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert sleeps(parent) == []


def test_cancelling_the_whole_cancels_its_parts() -> None:
    parent = Parent(Naps(3))
    parent.start(0.0)
    tags = {tag for tag, _ in parent.take_actions()}
    parent.cancel()
    assert dict(parent.take_actions()) == dict.fromkeys(tags, Withdraw())
    for tag in tags:
        parent.completed(tag, None, 1.0)
    assert not parent.is_finished
    assert parent.take_actions() == []


# --- steps --------------------------------------------------------------------------------------


def test_steps_get_outcomes_results_and_the_time() -> None:
    def steps(straight: Straight) -> Steps[object]:
        outcome: int = yield ReadMetadata()
        naps = yield from Naps(2)
        return outcome, naps, straight.now_s

    straight = started(steps)
    assert straight.take_actions() == [(1, ReadMetadata())]
    straight.completed(1, 7, 1.0)
    for tag, _ in straight.take_actions():
        straight.completed(tag, None, 1.0 + tag)
    assert straight.value() == (7, 2, 4.0)


def test_errors_of_actions_and_parts_are_raised_in_the_steps() -> None:
    def steps(_: Straight) -> Steps[object]:
        with pytest.raises(NotEnoughBookies, match="action"):
            yield ReadMetadata()
        with pytest.raises(NotEnoughBookies, match="no"):
            yield from Naps(1, fails=True)
        yield ReadMetadata()
        return None

    straight = started(steps)
    straight.completed(1, NotEnoughBookies("action"), 1.0)
    straight.completed(2, None, 1.0)
    assert not straight.is_finished
    error = NotEnoughBookies("uncaught")
    straight.completed(3, error, 1.0)
    assert straight.error is error
    assert error.__traceback__ is None, "it would keep everything that the steps had"


def test_an_error_after_the_end_of_a_part_says_nothing_of_that() -> None:
    def nap(_: Straight) -> Steps[object]:
        return (yield Sleep(1.0))

    def steps(_: Straight) -> Steps[object]:
        yield from Straight(nap)
        raise NotEnoughBookies("no")

    straight = started(steps)
    straight.completed(1, None, 1.0)
    with pytest.raises(NotEnoughBookies) as caught:
        straight.value()
    assert caught.value.__context__ is None


def test_whatever_is_no_error_of_ours_comes_out_at_the_driver() -> None:
    def steps(_: Straight) -> Steps[object]:
        yield ReadMetadata()
        raise ZeroDivisionError

    straight = started(steps)
    with pytest.raises(ZeroDivisionError):
        straight.completed(1, 7, 1.0)


@pytest.mark.parametrize("is_in_a_part", [True, False])
def test_cancelling_closes_the_steps_and_withdraws_what_they_wait_for(is_in_a_part: bool) -> None:
    closed: list[str] = []

    def inner(_: Straight) -> Steps[object]:
        try:
            return (yield ReadMetadata())
        finally:
            closed.append("inner")

    def outer(_: Straight) -> Steps[object]:
        try:
            return (yield from Straight(inner))
        finally:
            closed.append("outer")

    straight = started(outer if is_in_a_part else inner)
    straight.take_actions()
    straight.cancel()
    assert straight.take_actions() == [(1, Withdraw())]
    assert set(closed) == ({"inner", "outer"} if is_in_a_part else {"inner"})
    straight.completed(1, 7, 1.0)
    assert not straight.is_finished


def test_parts_that_end_at_once_do_not_nest() -> None:
    def nothing(_: Straight) -> Steps[object]:
        return 1
        yield ReadMetadata()

    def steps(_: Straight) -> Steps[object]:
        total = 0
        for _ in range(5000):
            one = yield from Straight(nothing)
            assert isinstance(one, int)
            total += one
        return total

    assert started(steps).value() == 5000


def test_gathered_steps_run_side_by_side_and_give_their_results_in_order() -> None:
    def branch(count: int) -> Steps[int]:
        for _ in range(count):
            yield Sleep(1.0)
        return count

    gather = Gather(branch(one) for one in (2, 0, 1))
    gather.start(0.0)
    assert [tag for tag, _ in gather.take_actions()] == [1, 2]
    gather.completed(2, None, 1.0)
    gather.completed(1, None, 1.0)
    assert not gather.is_finished
    gather.completed(3, None, 1.0)
    assert gather.value() == [2, 0, 1]
    nothing: Gather[int] = Gather([])
    nothing.start(0.0)
    assert nothing.value() == []


def test_the_first_error_of_gathered_steps_withdraws_the_others() -> None:
    def branch() -> Steps[object]:
        return (yield ReadMetadata())

    gather = Gather([branch(), branch(), branch()])
    gather.start(0.0)
    gather.take_actions()
    gather.completed(2, NotEnoughBookies("no"), 1.0)
    assert isinstance(gather.error, NotEnoughBookies)
    assert gather.take_actions() == [(1, Withdraw()), (3, Withdraw())]
