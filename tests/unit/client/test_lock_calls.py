"""Locks of ledgers through the asyncio client: no way out of the block leaves one behind. INV-H2."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pytest

from fastbk.client import Client, lock_calls
from fastbk.client.lock_calls import LockLost, _Taking
from fastbk.errors import MetadataUnavailable
from fastbk.meta import MetadataStore, open_store
from fastbk.meta.sqlite.store import MemoryStore
from tests.fixtures.wait import wait_until_async

T = TypeVar("T")


async def test_a_lock_is_held_during_the_block_and_another_one_is_refused(tmp_path: Path) -> None:
    uri = f"sqlite:{tmp_path}/meta.db"
    open_store(uri).close()
    async with Client(uri) as client:
        with pytest.raises(ZeroDivisionError):
            async with client.locks.hold(7, "host-1") as lock:
                assert lock is not None
                assert lock.is_held()
                assert await client.locks.holder_of(7) == "host-1"
                async with client.locks.hold(7, "host-2") as other:
                    assert other is None
                assert await client.locks.holder_of(7) == "host-1"
                _ = 1 / 0
        assert await client.locks.holder_of(7) is None


def test_a_lock_that_comes_after_its_caller_gave_up_is_released() -> None:
    with closing(MemoryStore("late lock")) as store:
        taking = _Taking(7, "host")
        assert taking.give_up() is None
        taking.take(store)
        assert list(store.coordination.locks()) == []


async def test_a_call_that_is_cancelled_while_the_store_is_busy_leaves_no_lock(
    tmp_path: Path,
) -> None:
    path = f"{tmp_path}/meta.db"
    open_store(f"sqlite:{path}").close()
    async with Client(f"sqlite:{path}") as client:
        assert await client.locks.holder_of(7) is None

        async def take() -> None:
            async with client.locks.hold(7, "host"):
                pass

        with closing(sqlite3.connect(path, isolation_level=None)) as busy:
            busy.execute("BEGIN IMMEDIATE")
            task = asyncio.create_task(take())
            await asyncio.sleep(0)
            await wait_until_async(lambda: not client._store._waiting, "the thread makes the call")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            busy.execute("ROLLBACK")
        assert await client.locks.holder_of(7) is None
    with closing(open_store(f"sqlite:{path}")) as store:
        assert store.records.children("autorecovery/locks") == []


async def test_a_release_that_was_never_made_is_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that waits for its thread until its deadline is not made at all: the lock would stay with the session."""
    with closing(MemoryStore("late release")) as store:
        async with Client(store) as client:
            call, failed = client.locks._store.call, 0

            async def fails_twice(one: Callable[[MetadataStore], T]) -> T:
                nonlocal failed
                if failed < 2:
                    failed += 1
                    raise MetadataUnavailable("no answer in time")
                return await call(one)

            async with client.locks.hold(7, "host") as lock:
                assert lock is not None
                monkeypatch.setattr(client.locks._store, "call", fails_twice)
            await wait_until_async(
                lambda: not store.records.children("autorecovery/locks"), "it is released"
            )
        assert failed == 2


async def test_work_ends_with_the_lock_that_it_is_done_under(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lock_calls, "LOOK_INTERVAL_S", 0.01)
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("it was cancelled")

    with closing(MemoryStore("lost lock")) as store:
        async with Client(store) as client, client.locks.hold(7, "host") as lock:
            assert lock is not None
            assert await client.locks.run(lock, client.locks.holder_of(7)) == "host"
            store.coordination.sessions.close()
            with pytest.raises(LockLost):
                await client.locks.run(lock, work())
    assert ended == ["it was cancelled"]
