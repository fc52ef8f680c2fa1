"""The thread that all clients without `await` share: its life, its callers, and what is let go."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import weakref
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fastbk.client import loop_thread
from fastbk.client.loop_thread import LoopThread
from fastbk.errors import ClientClosed
from tests.fixtures.fork import exit_code_of_fork
from tests.fixtures.sync_cluster import sync_cluster
from tests.fixtures.wait import wait_until

WAIT_S = 10.0


class Inner:
    """A client that only notes its end."""

    def __init__(self) -> None:
        self.is_closed = False
        self.has_begun = threading.Event()
        self.was_cancelled = False

    async def settle(self, timeout_s: float) -> list[str]:
        return []

    async def close(self, *, timeout: float | None = None) -> None:
        self.is_closed = True

    async def for_ever(self) -> None:
        self.has_begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise

    async def with_task(self) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self.for_ever())


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
