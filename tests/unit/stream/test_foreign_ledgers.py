"""Ledgers that a record names for deletion and that are not its stream's stay, whoever deletes. INV-W4."""

from __future__ import annotations

from dataclasses import replace

from fastbk.client.config import ClientConfig
from fastbk.client.metadata_calls import MetadataCalls, RecordCalls
from fastbk.meta.sqlite.store import MemoryStore
from fastbk.stream.cursor.store import of_cursor
from tests.fixtures.metadata import metadata


async def test_only_a_streams_own_ledgers_are_deleted() -> None:
    store = MemoryStore("foreign ledgers")
    calls = MetadataCalls(store, ClientConfig())
    records = RecordCalls(calls)
    marked = {None: 1, b"mine": 2, b"theirs": 3}
    for owner, ledger_id in marked.items():
        custom = {} if owner is None else {"fastbk.stream": owner}
        store.create_ledger(ledger_id, replace(metadata(9), custom=custom))
    for ledger_id in (*marked.values(), 4):
        await records.retire_ledger_id(ledger_id, "mine")
    assert store.list_ledgers() == [1, 3]
    # A segment from before ledgers said whose they are is the chain's, one of another stream never.
    for ledger_id in (1, 3):
        await records.retire_ledger_id(ledger_id, "mine", is_segment=True)
    assert store.list_ledgers() == [3]
    # One that was never made never will be, by nobody who is slow.
    await records.retire_ledger_id(4, "mine")
    assert 4 not in store.list_ledgers()
    # What a cursor names is deleted only if it holds that cursor's states: a reader may write cursors.
    for ledger_id, more in (
        (5, {}),
        (6, {"fastbk.cursor": b"other"}),
        (7, {"fastbk.cursor": b"c"}),
    ):
        store.create_ledger(
            ledger_id, replace(metadata(9), custom={"fastbk.stream": b"mine", **more})
        )
        await records.retire_ledger_id(ledger_id, "mine", of_cursor("c"))
    assert store.list_ledgers() == [3, 5, 6]
    await calls.close(1.0)
    store.close()
