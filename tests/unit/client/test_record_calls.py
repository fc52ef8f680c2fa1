"""Changes of one ledger's mark take effect in the order of the calls, also those that were given up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

import fastbk
from fastbk.meta.replica_marks import LedgerMark
from fastbk.meta.sqlite import MemoryStore
from fastbk.model.missing_replica import MissingReplica
from tests.fixtures.wait import wait_until_async
from tests.fixtures.zookeeper import ZooKeeperPlace

PATIENCE_S = 20.0


async def test_a_change_that_was_given_up_is_not_done_behind_a_later_one(
    zookeeper: ZooKeeperPlace,
) -> None:
    """Several calls of ZooKeeper run at once: the mark that a close had removed came back."""
    missing = MissingReplica("b1", 0, 9)
    begun, goes_on, ended = threading.Event(), threading.Event(), threading.Event()
    async with fastbk.connect(zookeeper.uri(), metadata_timeout=PATIENCE_S) as client:
        marks = await client._store.call(lambda store: store.marks)
        update = marks.update

        def slow_update(
            ledger_id: int,
            add: Sequence[MissingReplica] = (),
            remove: Sequence[MissingReplica] = (),
        ) -> LedgerMark:
            if not add:
                return update(ledger_id, add, remove)
            begun.set()
            assert goes_on.wait(PATIENCE_S)
            found = update(ledger_id, add, remove)
            ended.set()
            return found

        marks.update = slow_update  # type: ignore[method-assign]
        adding = asyncio.create_task(client.marks.update(7, add=[missing]))
        await wait_until_async(begun.is_set, "the first change in its thread")
        adding.cancel()
        await asyncio.wait([adding])
        removing = asyncio.create_task(client.marks.update(7, remove=[missing]))
        other = await client.marks.update(8, remove=[missing])
        assert other.missing == (), "another ledger's change does not wait"
        goes_on.set()
        await removing
        await wait_until_async(ended.is_set, "the end of the first change")
        assert (await client.marks.read(7)).missing == ()


async def test_a_client_that_is_closed_leaves_no_change_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, begun, goes_on = MemoryStore(), threading.Event(), threading.Event()

    def hang(*_: object, **__: object) -> LedgerMark:
        begun.set()
        assert goes_on.wait(PATIENCE_S)
        return LedgerMark(7, ())

    monkeypatch.setattr(store.marks, "update", hang)
    client = fastbk.connect(store, metadata_timeout=PATIENCE_S)
    before = asyncio.all_tasks()
    adding = asyncio.create_task(client.marks.update(7, add=[MissingReplica("b1", 0, 9)]))
    await wait_until_async(begun.is_set, "the change in its thread")
    adding.cancel()
    await client.close(timeout=0.05)
    await asyncio.wait([adding])
    assert asyncio.all_tasks() == before
    goes_on.set()
