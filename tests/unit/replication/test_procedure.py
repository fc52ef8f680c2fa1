"""What every procedure gets from its base: tags, parts, withdrawing, one end."""

from __future__ import annotations

import pytest

from fastbk.errors import NotEnoughBookies
from fastbk.replication.actions import ReadLac, Sleep, Withdraw
from fastbk.replication.procedure import Procedure


class Naps(Procedure[int]):
    """Sleeps `count` times at once and counts how often it woke; fails instead if it is told to."""

    def __init__(self, count: int, fails: bool = False) -> None:
        super().__init__()
        self.count = count
        self.fails = fails
        self.woken = 0
        self.tags: list[int] = []

    def begin(self, now_s: float) -> None:
        self.tags = [self._sleep(1.0, self._woke) for _ in range(self.count)]

    def _woke(self, now_s: float) -> None:
        self.woken += 1
        if self.fails:
            self._fail(NotEnoughBookies("no"), now_s)
        elif self.woken == 2:
            self._finish(self.woken, now_s)


class Parent(Procedure[list[int]]):
    """Runs naps as its parts, one after another."""

    def __init__(self, *parts: Naps) -> None:
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


def sleeps(procedure: Procedure[list[int]]) -> list[Sleep]:
    return [one for one in procedure.take_actions() if isinstance(one, Sleep)]


def test_an_end_lets_go_of_what_is_under_way_and_drops_what_comes_late() -> None:
    naps = Naps(4)
    naps.start(0.0)
    tags = [one.tag for one in naps.take_actions()]
    naps.completed(tags[2], None, 1.0)
    naps.completed(tags[2], None, 1.0)  # an outcome counts once
    assert not naps.is_finished
    naps.completed(tags[0], None, 1.0)
    assert naps.value() == 2
    assert naps.take_actions() == [Withdraw(tags[1]), Withdraw(tags[3])]
    naps.completed(tags[1], None, 1.0)
    assert naps.woken == 2


def test_parts_share_tags_and_actions_with_the_whole() -> None:
    parent = Parent(Naps(2), Naps(3))
    parent.start(0.0)
    seen: set[int] = set()
    while not parent.is_finished:
        for action in parent.take_actions():
            if not isinstance(action, Withdraw):
                assert action.tag not in seen
                seen.add(action.tag)
            if isinstance(action, Sleep):
                parent.completed(action.tag, None, 1.0)
    assert parent.value() == [2, 2]
    assert Withdraw(1) in parent.take_actions()  # the question that nobody waits for any more


def test_a_failed_part_says_why_and_every_caller_gets_its_own_error() -> None:
    parent = Parent(Naps(2, fails=True), Naps(1))
    parent.start(0.0)
    parent.completed(sleeps(parent)[0].tag, None, 1.0)
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
    tags = {one.tag for one in parent.take_actions()}
    parent.cancel()
    assert {one.tag for one in parent.take_actions() if isinstance(one, Withdraw)} == tags
    for tag in tags:
        parent.completed(tag, None, 1.0)
    assert not parent.is_finished
    assert parent.take_actions() == []
