"""A client's watches by a gateway: two threads that wait for answers."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from fastbk.errors import ClientClosed, MetadataUnavailable
from fastbk.meta.api import Subject, WatchHandle
from fastbk.meta.gateway import store as module
from fastbk.meta.gateway.messages import KEYS_MAX
from fastbk.meta.gateway.store import LONG_WAIT_S, SHORT_WAIT_S, THREADS_MAX, GatewayWatches
from tests.fixtures.wait import wait_until


@dataclass
class LateAnswers:
    subject: Subject
    is_held: bool = False
    released: threading.Event = field(default_factory=threading.Event)

    def release(self) -> None:
        self.released.set()


class FakeGateway:
    """Holds requests until what they name changes, or the test ends their time."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, float]] = []
        self.failures = 0
        self.is_closed = False
        self._late: LateAnswers | None = None
        self._states: dict[Subject, str] = {}
        self._round = 0
        self._wake = threading.Condition()

    def states(
        self, subjects: Sequence[Subject], seen: Sequence[str] | None, wait_s: float
    ) -> list[str]:
        with self._wake:
            if seen is not None:
                self.requests.append((len(subjects), wait_s))
                if self.failures:
                    self.failures -= 1
                    raise MetadataUnavailable("away")
            begun = self._round
            while (
                seen is not None
                and wait_s
                and self._now(subjects) == list(seen)
                and self._round == begun
            ):
                assert self._wake.wait(30)
            if self.is_closed:
                raise ClientClosed("closed")
            found, late = self._now(subjects), self._late
            if late is None or seen is None or late.subject not in subjects:
                return found
            self._late, late.is_held = None, True
        assert late.released.wait(30)
        return found

    def hold_answers(self, subject: Subject) -> LateAnswers:
        """Have the next answer about a subject reach its client later."""
        self._late = LateAnswers(subject)
        return self._late

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


@pytest.mark.usefixtures("quick")
def test_watches_that_come_and_go_one_by_one_have_a_bounded_number_of_threads() -> None:
    """Each request that waits is a thread, a connection, and a place at the gateway. INV-B1."""
    gateway = FakeGateway()
    watches = GatewayWatches(gateway.states)
    for number in range(THREADS_MAX // 2):
        watch = watches.add(number, lambda: None)
        wait_until(lambda n=number: len(gateway.requests) > n, "a request waits for it")  # type: ignore[misc]
        watch.close()
    for number in range(20):
        watches.add(number, lambda: None).close()
    wait_until(lambda: len(_threads()) <= THREADS_MAX, "it has no others")
    changed = threading.Event()
    watches.add(1, changed.set)
    gateway.set(1, "2")
    gateway.end_waits()
    assert changed.wait(10)
    finish(gateway, watches)


@pytest.mark.usefixtures("quick")
def test_an_answer_to_an_older_state_changes_nothing() -> None:
    gateway, told = FakeGateway(), list[str]()
    watches = GatewayWatches(gateway.states)
    first = watches.add(1, lambda: None)
    wait_until(lambda: gateway.requests == [(1, LONG_WAIT_S)], "the first request waits")
    first.close()
    late = gateway.hold_answers(1)
    gateway.set(1, "2")
    wait_until(lambda: late.is_held, "its answer is on its way")
    gateway.set(1, "3")
    watches.add(1, lambda: told.append("changed"))
    late.release()
    wait_until(lambda: len(gateway.requests) == 2, "the next request waits")
    assert not told
    gateway.set(1, "2")
    wait_until(lambda: told == ["changed"], "the change is told once")
    finish(gateway, watches)


@pytest.mark.usefixtures("quick")
def test_the_threads_end_with_the_store_even_if_a_watch_is_left() -> None:
    gateway = FakeGateway()
    watches = GatewayWatches(gateway.states)
    watches.add(1, lambda: None)
    wait_until(lambda: len(gateway.requests) == 1, "it waits")
    gateway.is_closed = True
    gateway.end_waits()
    wait_until(lambda: not _threads(), "the threads end")


@pytest.mark.usefixtures("quick")
def test_a_callback_may_end_its_watch_and_begin_others() -> None:
    gateway, done = FakeGateway(), threading.Event()
    watches = GatewayWatches(gateway.states)
    handles: list[WatchHandle] = []

    def first() -> None:
        handles.pop().close()
        handles.append(watches.add(2, second))

    def second() -> None:
        watches.close()
        done.set()

    handles.append(watches.add(1, first))
    wait_until(lambda: len(gateway.requests) == 1, "it waits")
    gateway.set(1, "2")
    wait_until(lambda: handles and handles[0].subject == 2, "the other watch is there")
    gateway.set(2, "2")
    assert done.wait(10)
    finish(gateway, watches)


def test_one_that_cannot_be_read_begins_no_thread() -> None:
    def closed(subjects: Sequence[Subject], seen: Sequence[str] | None, wait_s: float) -> list[str]:
        raise ClientClosed("closed")

    with pytest.raises(ClientClosed):
        GatewayWatches(closed).add(1, lambda: None)
    assert not _threads()


def _threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "fastbk-watch"]
