"""A client's watches by a gateway: two threads that wait for answers."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from fastbk.errors import ClientClosed, MetadataUnavailable
from fastbk.meta import gateway_watches as module
from fastbk.meta.gateway_messages import KEYS_MAX
from fastbk.meta.gateway_watches import LONG_WAIT_S, SHORT_WAIT_S, GatewayWatches
from fastbk.meta.subscriptions import Subject
from tests.fixtures.wait import wait_until


class FakeGateway:
    """Holds requests until what they name changes, or the test ends their time."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, float]] = []
        self.failures = 0
        self._states: dict[Subject, str] = {}
        self._round = 0
        self._wake = threading.Condition()

    def states(self, subjects: Sequence[Subject], seen: Sequence[str] | None, wait_s: float) -> list[str]:
        with self._wake:
            if seen is not None:
                self.requests.append((len(subjects), wait_s))
                if self.failures:
                    self.failures -= 1
                    raise MetadataUnavailable("away")
            begun = self._round
            while seen is not None and wait_s and self._now(subjects) == list(seen) and self._round == begun:
                assert self._wake.wait(30)
            return self._now(subjects)

    def _now(self, subjects: Sequence[Subject]) -> list[str]:
        return [self._states.get(one, "1") for one in subjects]

    def set(self, subject: Subject, state: str) -> None:
        with self._wake:
            self._states[subject] = state
            self._wake.notify_all()

    def end_waits(self) -> None:
        with self._wake:
            self._round += 1
            self._wake.notify_all()


def finish(gateway: FakeGateway, watches: GatewayWatches) -> None:
    watches.close()

    def is_over() -> bool:
        gateway.end_waits()
        return not _threads()

    wait_until(is_over, "the threads end")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.01)
    monkeypatch.setattr(module, "CHANGE_S", 0.0)


@pytest.mark.usefixtures("quick")
def test_what_came_while_a_request_waits_is_waited_for_by_another_one() -> None:
    gateway, changed = FakeGateway(), threading.Event()
    watches = GatewayWatches(gateway.states)
    watches.add(1, lambda: None)
    wait_until(lambda: gateway.requests == [(1, LONG_WAIT_S)], "the first request waits")
    watches.add(2, changed.set)
    wait_until(lambda: gateway.requests[1:] == [(1, SHORT_WAIT_S)], "the second one waits")
    gateway.set(2, "2")
    assert changed.wait(10)

    def is_one() -> bool:
        gateway.end_waits()  # those of the other one end by their time soon
        return gateway.requests[-1:] == [(2, LONG_WAIT_S)]

    wait_until(is_one, "one request waits for both")
    finish(gateway, watches)


@pytest.mark.usefixtures("quick")
def test_what_changed_while_no_gateway_answered_is_told_later() -> None:
    gateway, changed = FakeGateway(), threading.Event()
    watches = GatewayWatches(gateway.states)
    watches.add(1, changed.set)
    wait_until(lambda: len(gateway.requests) == 1, "it waits")
    gateway.failures = 3
    gateway.end_waits()
    wait_until(lambda: gateway.failures == 0, "no gateway answers")
    gateway.set(1, "2")
    assert changed.wait(10)
    finish(gateway, watches)


@pytest.mark.usefixtures("quick")
def test_more_than_a_request_has_room_for_is_polled() -> None:
    gateway, changed = FakeGateway(), threading.Event()
    watches = GatewayWatches(gateway.states)
    for number in range(KEYS_MAX + 1):
        watches.add(number, changed.set)

    def polls() -> bool:
        gateway.end_waits()  # of requests for the first ones
        return gateway.requests[-1:] == [(KEYS_MAX + 1, 0.0)]

    wait_until(polls, "it polls")
    gateway.set(KEYS_MAX, "2")
    assert changed.wait(10)
    finish(gateway, watches)


def test_one_that_cannot_be_read_begins_no_thread() -> None:
    def closed(subjects: Sequence[Subject], seen: Sequence[str] | None, wait_s: float) -> list[str]:
        raise ClientClosed("closed")

    with pytest.raises(ClientClosed):
        GatewayWatches(closed).add(1, lambda: None)
    assert not _threads()


def _threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "fastbk-watch"]
