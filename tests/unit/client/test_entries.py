"""What readers of ledgers hand out can be kept, copied, pickled and printed, as records of streams can."""

from __future__ import annotations

import copy
import json
import pickle

from fastbk.client.ledger_reader import Batch, Entry
from tests.unit.client.fake_cluster import fake_cluster


async def test_entries_and_batches_go_through_pickle_and_say_what_they_are() -> None:
    async with fake_cluster() as (client, _, _):
        async with await client.create_ledger() as writer:
            await writer.append_many([b'{"n": %d}' % one for one in range(20)])
        reader = await client.open_ledger(writer.ledger_id)
        entries = [one async for one in reader.read()]
        batches = [one async for one in reader.read_batches(0, 19)]
        for entry in entries:
            assert type(entry.value) is bytes and entry.value == entry.data
            assert json.loads(entry.value) == {"n": entry.entry_id}
            for copied in (
                pickle.loads(pickle.dumps(entry)),
                copy.deepcopy(entry),
                copy.copy(entry),
            ):
                assert copied == entry and isinstance(copied.data, memoryview)
        assert (
            repr(entries[7]) == f"<Entry 7 of ledger {writer.ledger_id}: 8 bytes b'{{\"n\": 7}}'>"
        )
        for batch in batches:
            assert (
                repr(batch) == f"<Batch of ledger {writer.ledger_id}: 20 entries from 0, 170 bytes>"
            )
            for again in (pickle.loads(pickle.dumps(batch)), copy.deepcopy(batch)):
                assert isinstance(again, Batch) and list(again) == list(batch) == entries
                assert (again.lengths, again.size_bytes, len(again)) == (
                    batch.lengths,
                    batch.size_bytes,
                    20,
                )
                assert [bytes(one) for one in again.datas] == [one.value for one in entries]
                assert [len(one) for one in again.tables()] == [len(one) for one in batch.tables()]


def test_large_entries_are_shown_in_part() -> None:
    shown = repr(Entry(3, 4, memoryview(bytes(1 << 20))))
    assert shown.startswith("<Entry 4 of ledger 3: 1048576 bytes b'") and len(shown) < 300
