"""The thread that all clients without `await` share: its life, its callers, and what is let go."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

import fastbk.sync
from fastbk.client import loop_thread
from fastbk.client.loop_thread import LoopThread
from fastbk.errors import ClientClosed
from tests.fixtures.fork import exit_code_of_fork
from tests.fixtures.interrupts import Interrupted, Interrupts, acting_at
from tests.fixtures.loop_clients import Inner, SlowInner
from tests.fixtures.sync_cluster import sync_cluster
from tests.fixtures.wait import wait_until

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable, Iterator
    from types import FrameType

WAIT_S = 10.0


def thread_of(inner: Inner) -> LoopThread[Inner]:
    return LoopThread(lambda: inner)


def ident(thread: LoopThread[Any]) -> int:
    return thread.call_plain(threading.get_ident)


def test_clients_share_a_thread_that_ends_with_the_last() -> None:
    one, other = Inner(), Inner()
    first, second = thread_of(one), thread_of(other)
    first.call_plain(first.client)
    second.call_plain(second.client)
    assert ident(first) == ident(second) != threading.get_ident()
    first.close(WAIT_S)
    assert one.is_closed and not other.is_closed
    ident(second)
    second.close(WAIT_S)
    assert loop_thread._shared is None
    third = thread_of(Inner())
    ident(third)
    third.close(WAIT_S)


def test_a_thread_that_is_closed_ends_its_own_calls_and_tasks_only() -> None:
    one, other = Inner(), Inner()
    first, second = thread_of(one), thread_of(other)
    task = first.call(one.with_task)
    with ThreadPoolExecutor(2) as callers:
        calls = [
            callers.submit(first.call, one.for_ever),
            callers.submit(second.call, other.for_ever),
        ]
        assert other.has_begun.wait(WAIT_S) and one.has_begun.wait(WAIT_S)
        first.close(WAIT_S)
        with pytest.raises(ClientClosed):
            calls[0].result(WAIT_S)
        assert task.cancelled() and one.was_cancelled
        assert not calls[1].done()
        second.close(WAIT_S)
        with pytest.raises(ClientClosed):
            calls[1].result(WAIT_S)


def test_a_close_is_done_though_the_thread_ended_while_its_caller_looked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine a whole second passes between the end of a wait and the look at the thread."""
    thread = thread_of(inner := Inner())
    assert thread.call_plain(thread.client) is inner
    shared = thread._shared
    assert shared is not None
    wait = loop_thread._Call.wait

    def wait_in_vain_first(call: loop_thread._Call[Any], timeout_s: float) -> bool:
        if shared.thread.is_alive():
            shared.thread.join(WAIT_S)
            return False
        return wait(call, timeout_s)

    monkeypatch.setattr(loop_thread._Call, "wait", wait_in_vain_first)
    thread.close(WAIT_S)
    assert inner.is_closed
    assert shared.has_ended


def test_an_interrupted_call_is_cancelled() -> None:
    inner = Inner()
    thread = thread_of(inner)

    def interrupt() -> None:
        assert inner.has_begun.wait(WAIT_S)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        thread.call(inner.for_ever)
    interrupting.join()
    wait_until(lambda: inner.was_cancelled, "the call is cancelled")
    thread.close(WAIT_S)


def test_a_call_on_the_thread_itself_is_refused() -> None:
    thread = thread_of(Inner())
    with pytest.raises(RuntimeError, match="thread that would have to run it"):
        thread.call_plain(lambda: thread.call_plain(lambda: 1))
    thread.close(WAIT_S)


def test_a_client_that_is_let_go_is_closed() -> None:
    inner = Inner()
    thread = thread_of(inner)
    thread.call_plain(thread.client)
    gone = weakref.ref(thread)
    del thread
    wait_until(lambda: gc.collect() >= 0 and gone() is None, "nobody has it")
    wait_until(lambda: inner.is_closed and loop_thread._shared is None, "its end")


def test_an_iterator_that_is_let_go_on_the_thread_itself_is_closed() -> None:
    thread = thread_of(Inner())
    ended = threading.Event()

    async def numbers() -> AsyncIterator[int]:
        try:
            for one in range(10):
                yield one
        finally:
            ended.set()

    iterator = [thread.iterate(numbers)]
    assert next(iterator[0]) == 0
    thread.call_plain(iterator.clear)
    assert ended.wait(WAIT_S)
    thread.close(WAIT_S)


def test_a_forked_child_makes_a_thread_of_its_own() -> None:
    inner = Inner()
    thread = thread_of(inner)
    ident(thread)

    def child() -> int:
        with pytest.raises(ClientClosed, match="fork"):
            ident(thread)
        another = thread_of(Inner())
        ident(another)
        another.close(WAIT_S)
        return 42

    assert exit_code_of_fork(child) == 42
    ident(thread)
    thread.close(WAIT_S)


def test_many_threads_and_clients_come_and_go() -> None:
    def life(_: int) -> int:
        thread = thread_of(Inner())
        try:
            return sum(thread.call_plain(lambda at=at: at) for at in range(5))  # type: ignore[misc]
        finally:
            thread.close(WAIT_S)

    with ThreadPoolExecutor(8) as callers:
        assert list(callers.map(life, range(200))) == [10] * 200
    assert loop_thread._shared is None


def test_appends_of_many_threads_get_dense_ids_in_their_order() -> None:
    with sync_cluster(entries_in_flight_max=20) as (client, _, _):
        writer = client.create_ledger()

        def work(name: int) -> list[int]:
            if name % 2:
                return [writer.append(b"%d" % name) for _ in range(50)]
            first, last = writer.append_many([b"%d" % name] * 50)
            return list(range(first, last + 1))

        with ThreadPoolExecutor(6) as callers:
            found = list(callers.map(work, range(6)))
        assert sorted(one for ids in found for one in ids) == list(range(300))
        assert all(ids == sorted(ids) for ids in found)
        writer.close()
        datas = [bytes(one.data) for one in client.open_ledger(writer.ledger_id).read()]
        assert [datas[one] for one in found[3]] == [b"3"] * 50
        assert [datas[one] for one in found[4]] == [b"4"] * 50


def test_several_threads_may_wait_for_one_append() -> None:
    with sync_cluster(entries_in_flight_max=1) as (client, fakes, _):
        writer = client.create_ledger()
        for fake in fakes.fakes:
            fake.faults.delay_s = lambda: 0.05
        pending = writer.append_nowait(b"x")
        with ThreadPoolExecutor(4) as callers:
            assert list(callers.map(lambda _: pending.result(WAIT_S), range(4))) == [0] * 4
        writer.append_nowait(b"y")
        writer.ready()
        assert writer.append_nowait(b"z").result() == 2
        writer.close()


def test_a_pending_append_of_a_client_that_is_closed_has_failed() -> None:
    with sync_cluster() as (client, fakes, _):
        writer = client.create_ledger()
        for fake in fakes.fakes:
            fake.faults.swallow_adds = True
        pending = writer.append_nowait(b"x")
        client.close()
        with pytest.raises(ClientClosed) as caught:
            pending.result()
        assert caught.value.outcome == "unknown"
        with pytest.raises(ClientClosed):
            writer.append_nowait(b"y")
        assert writer.stats().entries == 0


# What waits in `fastbk.sync` is closed: by a signal's handler in the same thread, or by another
# thread.


RECORDS = 20
IN_TIME_S = 5.0
"""Less than anybody waits by a clock, and more than a turn of a busy machine."""


@pytest.fixture(scope="module")
def store() -> Iterator[Any]:
    with sync_cluster() as (client, _, store):
        shop = client.namespace("shop")
        shop.create()
        for name in ("orders", "returns"):
            with shop.stream(name).writer(create=True) as writer:
                writer.append_many([b"%d" % one for one in range(RECORDS)])
        yield store


class Waiting:
    """One thing that a thread reads to its end, and then waits for more of."""

    def __init__(self, client: fastbk.sync.Client, kind: str) -> None:
        self.got = 0
        self.client = client
        self.records = 2 * RECORDS if "pattern" in kind else RECORDS
        shop = client.namespace("shop")
        self.name = f"{kind}-{time.monotonic_ns()}".replace(" ", "-")
        self.has_acks = "cursor" in kind
        self._kind = kind
        self.source: Any
        if kind == "ledger":
            self._writer = client.create_ledger()
            self._writer.append_many([b"%d" % one for one in range(RECORDS)])
            self.source = client.open_ledger(self._writer.ledger_id, recovery=False)
        elif "cursor" in kind:
            made = shop.cursor if "pattern" in kind else shop.stream("orders").cursor
            names = ["*", self.name] if "pattern" in kind else [self.name]
            self.source = made(*names, flush_interval=3600.0, flush_acks=1_000_000)  # type: ignore[operator]
        else:
            self.source = shop.reader("*") if "pattern" in kind else shop.stream("orders").reader()
        self._thread = threading.get_ident()

    def read(self) -> None:
        """Read until it is closed. What came is acknowledged, and kept by nothing but the end."""
        self._thread = threading.get_ident()
        with self.source as source:
            if "chunks" in self._kind:
                for chunk in source.chunks():
                    self._take(chunk, len(chunk))
            elif "read" in self._kind.split():
                while True:
                    chunk = source.read()
                    self._take(chunk, len(chunk))
            else:
                for record in source.tail() if self._kind == "ledger" else source:
                    self._take(record, 1)

    def _take(self, item: Any, count: int) -> None:
        self.got += count
        if self.has_acks:
            self.source.ack(item)

    def until_it_waits(self) -> None:
        """Return when its thread has all, and waits for more."""
        wait_until(lambda: self.got == self.records and self._is_in_call(), "it waits")

    def _is_in_call(self) -> bool:
        frame: FrameType | None = sys._current_frames().get(self._thread)
        names = []
        while frame is not None:
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        return "_waited" in names and ("_fetch" in names or "_fetched" in names)

    def check_acks(self, store: Any) -> None:
        """What was acknowledged was kept."""
        if not self.has_acks:
            return
        with fastbk.sync.connect(store) as client:
            shop = client.namespace("shop")
            if "pattern" in self._kind:
                with shop.cursor("*", self.name, tail=False) as again:
                    assert list(again) == []
            else:
                assert [
                    one.mark_seq for one in shop.stream("orders").cursors() if one.name == self.name
                ] == [RECORDS]


KINDS = [
    "reader", "reader chunks", "reader read", "cursor", "cursor chunks", "cursor read",
    "pattern reader", "pattern reader chunks", "pattern cursor", "pattern cursor chunks", "pattern cursor read",
    "ledger",
]  # fmt: skip


@contextmanager
def sigterm_does(act: Callable[[], object]) -> Iterator[None]:
    def handle(number: int, frame: FrameType | None) -> None:
        act()

    former = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def exit_now() -> None:
    raise SystemExit(3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["exit", "close it", "close the client"])
def test_a_handler_of_sigterm_ends_what_waits(store: Any, kind: str, way: str) -> None:
    with fastbk.sync.connect(store) as client:
        waiting = Waiting(client, kind)
        ended: list[float] = []
        act = {
            "exit": exit_now,
            "close it": waiting.source.close,
            "close the client": client.close,
        }[way]

        def send() -> None:
            waiting.until_it_waits()
            ended.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGTERM)

        sender = threading.Thread(target=send)
        with sigterm_does(act):
            sender.start()
            with pytest.raises(SystemExit if way == "exit" else ClientClosed):
                waiting.read()
            sender.join()
        assert time.monotonic() - ended[0] < IN_TIME_S
        waiting.source.close()
        waiting.check_acks(store)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["close it", "close the client"])
def test_another_thread_ends_what_waits(store: Any, kind: str, way: str) -> None:
    with fastbk.sync.connect(store) as client, ThreadPoolExecutor(1) as readers:
        waiting = Waiting(client, kind)
        reading = readers.submit(waiting.read)
        waiting.until_it_waits()
        (waiting.source if way == "close it" else client).close()
        with pytest.raises(ClientClosed):
            reading.result(IN_TIME_S)
        waiting.source.close()
        waiting.check_acks(store)


@pytest.mark.parametrize("kind", ["cursor", "pattern cursor"])
def test_what_was_acknowledged_is_kept_where_nobody_closes_anything(store: Any, kind: str) -> None:
    """The client that nobody has any more is closed, as at the end of a program."""
    client = fastbk.sync.connect(store)
    left = Waiting(client, kind)
    left.source.open()
    while left.got < left.records:
        left._take(next(left.source), 1)
    part, name = client._thread._part, left.name
    del client, left

    def has_ended() -> bool:
        gc.collect()
        return part.has_ended

    wait_until(has_ended, "the client has ended")
    with fastbk.sync.connect(store) as other:
        again = Waiting(other, kind)
        again.name = name
        again.check_acks(store)


def test_a_handler_that_closes_what_is_being_opened_has_closed_it(
    store: Any, rng: random.Random
) -> None:
    with fastbk.sync.connect(store) as client:
        stream = client.namespace("shop").stream("orders")
        readers: list[fastbk.sync.StreamReader] = []
        interrupts = Interrupts(rng, 120, lambda: readers[-1].close())
        for _ in range(40):
            readers.append(reader := stream.reader())
            before = interrupts.count
            with suppress(ClientClosed), interrupts.one():
                reader.open()
            if interrupts.count > before:
                with pytest.raises(ClientClosed):
                    next(reader)
            reader.close()
        assert interrupts.count > 20


def test_a_handler_that_closes_waits_for_nothing_of_its_own_thread(rng: random.Random) -> None:
    """A lock that the interrupted code holds would never be free: neither of a client's first call,
    nor of its close."""
    closing: list[LoopThread[SlowInner]] = []
    interrupts = Interrupts(rng, 150, lambda: closing[-1].close(10.0))
    for _ in range(60):
        inner = SlowInner()
        closing.append(thread := LoopThread(lambda inner=inner: inner))  # type: ignore[misc]
        with suppress(ClientClosed), interrupts.one():
            thread.call_plain(thread.client)
            thread.close(10.0)
        thread.close(10.0)
        with pytest.raises(ClientClosed):
            thread.call_plain(thread.client)
        wait_until(
            lambda: loop_thread._shared is None or thread._part not in loop_thread._shared.clients,
            "it is gone",
        )
    assert interrupts.count > 30
    assert len(interrupts.places) > 5


def test_a_first_call_is_ended_by_what_its_handler_raises_and_leaves_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In `Thread.start` it left a thread that waited for ever, or came out as a RuntimeError."""
    monkeypatch.setattr(loop_thread, "_shared", None)
    before = set(threading.enumerate())

    def handle() -> None:
        raise Interrupted

    place, has_come = 0, True
    while has_come:
        thread = LoopThread(Inner)
        with suppress(Interrupted), acting_at(place, handle) as acted:
            thread.call_plain(thread.client)
        assert isinstance(thread.call_plain(thread.client), Inner)
        thread.close(10.0)
        place, has_come = place + 1, acted()
    assert place > 20
    wait_until(lambda: set(threading.enumerate()) <= before, "no thread is left")


def test_what_is_acknowledged_while_another_thread_closes_is_kept_or_refused(store: Any) -> None:
    """Nothing is said on the standard error, and an acknowledgement that was waited for is kept."""
    refused: list[dict[str, Any]] = []
    for _ in range(10):
        with fastbk.sync.connect(store) as client:
            stream = client.namespace("shop").stream("orders")
            cursor = stream.cursor(name := f"raced-{time.monotonic_ns()}", flush_interval=3600.0)
            cursor.open()
            client._thread.call_plain(
                lambda: asyncio.get_running_loop().set_exception_handler(
                    lambda _, context: refused.append(context)
                )
            )
            kept = -1
            closing = threading.Timer(0.002, cursor.close)
            with suppress(ClientClosed):
                for record in cursor:
                    for _ in range(40):
                        pending = cursor.ack(record)
                    pending.result()
                    kept = record.seq
                    if kept == 0:
                        closing.start()
            closing.join()
            (info,) = [one for one in stream.cursors() if one.name == name]
            assert info.mark_seq > kept
    assert refused == []
