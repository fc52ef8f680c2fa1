"""What the scrub knows of digests: asked for once, waited for with bounded patience, kept within bounds."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fastbk.server.index import scrub
from fastbk.server.index.scrub import DigestTypes
from fastbk.storage.digest_check import NO_TYPE


class Harness:
    """Who asks, a clock, and what was asked."""

    def __init__(self, ledgers_max: int = 100) -> None:
        self.now_s = 1000.0
        self.asked: list[list[int]] = []
        self.has_room = True
        self.types = DigestTypes(self.ask, ledgers_max=ledgers_max, monotonic_s=lambda: self.now_s)

    def ask(self, message: dict[str, Any]) -> bool:
        assert message["type"] == "digests_wanted"
        if self.has_room:
            self.asked.append(sorted(message["ledgers"]))
        return self.has_room

    def waits_s(self, *ledgers: int) -> float:
        """How long it is willing to wait for these if nothing comes."""
        began_s = self.now_s
        while self.types.want(ledgers):
            self.now_s += 0.01
        return self.now_s - began_s


def test_what_is_not_known_is_asked_for_once_and_kept() -> None:
    harness = Harness()
    assert harness.types.want([1, 2])
    assert harness.types.want([1, 2])
    assert harness.asked == [[1, 2]]
    harness.types.put_answers([[1, 3], [2, None]])
    assert not harness.types.want([1, 2])
    assert harness.types.known([1, 2, 5]) == {1: 3, 2: NO_TYPE}
    assert harness.types.want([1, 5])
    assert harness.asked == [[1, 2], [5]]


def test_a_key_comes_in_hex_and_is_kept_as_it_is() -> None:
    harness = Harness()
    harness.types.put_answers([[1, bytes(range(20)).hex()], [2, 2]])
    assert harness.types.known([1, 2]) == {1: bytes(range(20)), 2: 2}


def test_patience_ends_and_is_short_while_nobody_answers() -> None:
    harness = Harness()
    assert harness.waits_s(1) == pytest.approx(scrub.PATIENCE_S, abs=0.1)
    assert harness.waits_s(1) == 0, "asked in vain a moment ago"
    assert harness.waits_s(1, 2) == pytest.approx(scrub.PATIENCE_QUIET_S, abs=0.1)
    assert harness.asked == [[1], [2]], "and asked all the same"
    harness.types.put_answers([[2, 1]])
    assert harness.types.known([1, 2]) == {2: 1}
    assert harness.waits_s(3) == pytest.approx(scrub.PATIENCE_S, abs=0.1), "somebody is there again"
    harness.now_s += scrub.PAUSE_S
    assert harness.waits_s(1) == pytest.approx(scrub.PATIENCE_S, abs=0.1)
    assert harness.asked[-1] == [1]


def test_one_that_nobody_can_tell_of_does_not_cost_the_others_theirs() -> None:
    harness = Harness()
    assert harness.types.want([1, 2])
    harness.types.put_answers([[2, 3]])
    harness.waits_s(1, 2)
    assert harness.types.want([1, 3])
    harness.now_s += scrub.PATIENCE_S / 2
    assert harness.types.want([1, 3]), "something was heard in that wait: patience is whole"
    harness.types.put_answers([[3, 3]])
    assert not harness.types.want([1, 3])


def test_answers_that_come_one_by_one_are_waited_for() -> None:
    harness = Harness()
    wanted = list(range(50))
    for ledger_id in wanted:
        assert harness.types.want(wanted)
        harness.now_s += 0.9 * scrub.PATIENCE_S
        harness.types.put_answers([[ledger_id, 3]])
    assert not harness.types.want(wanted)
    assert len(harness.asked) == 1


def test_a_full_socket_is_tried_again() -> None:
    harness = Harness()
    harness.has_room = False
    assert harness.types.want([1])
    harness.has_room = True
    assert harness.types.want([1])
    assert harness.asked == [[1]]


def test_messages_and_memory_are_bounded() -> None:
    harness = Harness(ledgers_max=100)
    many = list(range(scrub.ASKED_MAX + 10))
    assert harness.types.want(many)
    assert harness.types.want(many)
    assert [len(one) for one in harness.asked] == [scrub.ASKED_MAX, 10]
    harness.types.put_answers([[ledger_id, 3] for ledger_id in many])
    known = harness.types.known(many)
    assert list(known) == many[-100:]
    assert harness.types.want([many[0]]), "forgotten: asked again"


def test_ids_may_get_other_ledgers() -> None:
    harness = Harness()
    harness.types.put_answers([[1, 3], [2, None]])
    harness.types.begin_cycle()
    assert harness.types.known([1, 2]) == {}
    harness.types.put_answers([[1, 1]])
    harness.now_s += scrub.DIGEST_AGE_S_MAX + 1
    assert harness.types.want([1])


def test_an_answer_wakes_who_waits() -> None:
    """With the real clock and a thread, as in the index."""
    told = threading.Event()

    def ask(_: dict[str, Any]) -> bool:
        threading.Thread(target=answer).start()
        return True

    def answer() -> None:
        types.put_answers([[7, 3]])
        told.set()

    types = DigestTypes(ask)
    while types.want([7]):
        types.wait()
    assert told.wait(10.0)
    assert types.known([7]) == {7: 3}
