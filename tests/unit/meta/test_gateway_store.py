"""A store behind a gateway keeps what all stores promise: the suites of the drivers, by a client with all rights."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar
from unittest import mock

import pytest

from fastbk.errors import ClientClosed, ConfigError, MetadataUnavailable
from fastbk.meta import MetadataStore, open_store
from fastbk.meta.api import Subject, WatchHandle
from fastbk.meta.gateway import store as module
from fastbk.meta.gateway.messages import KEYS_MAX
from fastbk.meta.gateway.store import (
    LONG_WAIT_S,
    SHORT_WAIT_S,
    THREADS_MAX,
    GatewayCalls,
    GatewayStore,
    GatewayWatches,
    _Connection,
    messages,
)
from fastbk.safe_files import write_text
from fastbk.security.credentials import Credentials
from fastbk.security.rights import OPERATIONS
from fastbk.web.client import HttpConnection
from tests.fixtures.fork import exit_code_of_fork
from tests.fixtures.gateway_store import behind_gateway, principal
from tests.fixtures.wait import wait_until
from tests.unit.meta import test_metadata_store as ledgers
from tests.unit.meta import test_records as records

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.unit.meta.test_metadata_store import Open


@pytest.fixture
def open_driver(tmp_path: Path) -> Iterator[Open]:
    with ExitStack() as stack:

        def one() -> MetadataStore:
            store = open_store(f"memory:{tmp_path}")
            stack.callback(store.close)
            gateway, _ = behind_gateway(store, principal(*OPERATIONS))
            stack.callback(gateway.close)
            return gateway

        one()
        yield one


def _suite(module: object, *left_out: str) -> dict[str, object]:
    found = {name: value for name, value in vars(module).items() if name.startswith("test_")}
    assert set(left_out) <= set(found)
    return {name: value for name, value in found.items() if name not in left_out}


globals().update(_suite(records))
LEFT_OUT = (
    # Registrations, identities and connections are not the gateway's, or not there in this process.
    "test_a_registration_says_how_to_reach_the_bookie",
    "test_a_registration_says_that_an_endpoint_has_tls",
    "test_the_same_data_takes_its_registration_over_and_other_data_does_not",
    "test_a_lease_that_is_not_renewed_runs_out",
    "test_a_closed_store_says_so",
    "test_a_forked_child_is_told_to_open_its_own",
    "test_a_uri_that_cannot_be_served_says_why",
    "test_identities_are_kept_by_compare_and_set",
    "test_an_update_can_depend_on_a_bookies_identity",
    # They create ledgers that have entries already, or change what never changes: a gateway refuses that.
    "test_several_ledgers_are_read_at_once",
    "test_watches_tell_of_changes_made_through_another_handle",
    "test_a_callback_that_fails_ends_no_watch",
    "test_any_sequence_of_changes_agrees_with_a_dictionary",
    "test_any_sequence_of_changes_of_a_cluster_agrees_with_a_dictionary",
)
globals().update(_suite(ledgers, *LEFT_OUT))


def test_what_only_bookies_and_repairs_need_is_refused_with_what_to_use(open_driver: Open) -> None:
    store = open_driver()
    for call in (
        store.highest_drawn_id,
        lambda: store.read_identity("b1"),
        lambda: store.coordination,
    ):
        with pytest.raises(ConfigError, match="give the URI of the metadata store behind it"):
            call()


# A client's watches by a gateway: two threads that wait for answers.


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


# A client's connections to gateways: the end of waiting ones, and what is no token.


T = TypeVar("T")


@pytest.fixture
def calls() -> GatewayCalls:
    return GatewayCalls(["127.0.0.1:1"], 1.0, None, None)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def waiting(calls: GatewayCalls, sock: socket.socket | None) -> None:
    connection = HttpConnection("127.0.0.1", 1, tls=None, bytes_max=1)
    connection._socket = sock
    calls._waiting.add(_Connection(connection, "127.0.0.1:1", 0.0))


def is_open(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(1, socket.MSG_DONTWAIT))
    except BlockingIOError:
        return True


def test_closing_ends_what_waits_beside_a_request_that_has_just_ended(
    calls: GatewayCalls, pair: tuple[socket.socket, socket.socket]
) -> None:
    waiting(calls, None)
    waiting(calls, pair[0])
    calls.close()
    assert not is_open(pair[1])


def test_a_forked_child_that_closes_leaves_the_parents_requests_alone(
    calls: GatewayCalls, pair: tuple[socket.socket, socket.socket]
) -> None:
    waiting(calls, pair[0])

    def child() -> int:
        calls.close()
        return 0

    assert exit_code_of_fork(child) == 0
    assert is_open(pair[1])


@pytest.mark.parametrize("text", ["one\ntwo", "t\u00f6ken", "one two"])
def test_a_file_with_something_else_than_a_token_is_the_clients_mistake(
    tmp_path: Path, text: str
) -> None:
    """It may be there for a moment only: the threads of watches go on after it."""
    write_text(tmp_path / "token", text)
    calls = GatewayCalls(
        ["127.0.0.1:1"], 1.0, None, Credentials(token_file=str(tmp_path / "token"))
    )
    calls._context = mock.Mock()
    with pytest.raises(ConfigError, match="is no token"):
        calls.call(messages.InstanceId(1000), str)


def test_an_answer_with_another_number_of_states_is_an_error() -> None:
    class Other:
        def call(self, request: messages.Request, kind: type[T]) -> T:
            del request
            return kind()

        def close(self) -> None:
            pass

    with pytest.raises(MetadataUnavailable, match="another version"):
        GatewayStore("gateway://test", Other()).watch_bookies(lambda: None)
