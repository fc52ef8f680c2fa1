"""The client without `await`: the asyncio client's names, and one example of each kind of call.

What the asyncio client does has its tests there. The thread and its callers: test_loop_thread.py.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from contextlib import nullcontext

import pytest

import fastbk.client
import fastbk.stream.client
import fastbk.sync
from fastbk.errors import (
    BufferFull,
    DuplicateEntryId,
    LedgerClosed,
    LedgerFenced,
    MetadataConflict,
    NoSuchEntry,
    NotEnoughBookies,
    QuorumTimeout,
    RecordTooLarge,
)
from fastbk.wire.statuses import Status
from tests.fixtures.sync_cluster import sync_cluster
from tests.fixtures.wait import wait_until
from tests.unit.client.fake_cluster import numbers, taken_over


@pytest.mark.slow
def test_appends_reads_and_tails() -> None:
    with sync_cluster() as (client, fakes, _):
        with client.create_ledger() as writer:
            assert writer.append(b"zero") == 0
            assert writer.append_many(numbers(1, 2000)) == (1, 1999)
            pending = [writer.append_nowait(b"x") for _ in range(10)]
            wait_until(pending[-1].done, "work that goes on between calls")
            assert pending[-1].result() == 2009
            assert all(one.done() for one in pending)
            writer.flush()
            writer.force()
            assert writer.write_last_add_confirmed() == 2009
            watch = client.watch_ledger(writer.ledger_id)
            assert not next(watch).metadata.is_closed
            reader = client.open_ledger(writer.ledger_id, recovery=False)
            assert reader.last_add_confirmed() == 2009
            ledger = f"of ledger {writer.ledger_id}"
            assert (
                repr(writer)
                == f"<fastbk.sync LedgerWriter {ledger}: next entry 2010, 0 not acknowledged>"
            )
            assert (
                repr(reader) == f"<fastbk.sync LedgerReader {ledger}, open, entries to 2009 known>"
            )
            assert repr(client).startswith("<fastbk.sync.Client of ")
            tail = reader.tail(2005)
            assert [next(tail).entry_id for _ in range(5)] == list(range(2005, 2010))
            assert writer.stats().bytes_in_flight == 0
        assert list(tail) == []
        assert next(watch).metadata.is_closed
        assert client.repairs.waiting == 0
        assert all(fake.ids(writer.ledger_id) == list(range(2010)) for fake in fakes.fakes)
        again = client.open_ledger(writer.ledger_id)
        assert [bytes(one.data) for one in again.read(0, 3)] == [b"zero", b"1", b"2", b"3"]
        assert sum(len(batch) for batch in again.read_batches()) == 2010
        assert len(again.read_unconfirmed(2000, 3000)) == 10
        with pytest.raises(NoSuchEntry):
            list(again.read(0, 2010))
        with pytest.raises(LedgerClosed):
            writer.append(b"x")
        with client.create_ledger() as other, pytest.raises(RecordTooLarge, match="append smaller"):
            other.append(bytes(6 * 1024 * 1024))
        client.delete_ledger(other.ledger_id)
        assert [info.ledger_id for info in client.list_ledgers()] == [writer.ledger_id]
        client.delete_ledger(writer.ledger_id)
        assert list(watch) == list(client.list_ledgers()) == []
        with pytest.raises(MetadataConflict, match="deleted"):
            client.create_ledger(ledger_id=writer.ledger_id)


def test_a_writer_takes_ids_in_any_order() -> None:
    with sync_cluster() as (client, _, _):
        writer = client.create_ledger(explicit_ids=True)
        pending = [writer.append_nowait(b"%d" % one, entry_id=one) for one in (3, 1, 2)]
        assert not any(one.done() for one in pending)
        with pytest.raises(DuplicateEntryId):
            writer.append(b"again", entry_id=1)
        assert writer.append(b"0", entry_id=0) == 0
        assert [one.result() for one in pending] == [3, 1, 2]
        late = writer.append_nowait(b"9", entry_id=9)
        writer.close()
        with pytest.raises(LedgerClosed):
            late.result()
        reader = client.open_ledger(writer.ledger_id)
        assert [bytes(one.data) for one in reader.read()] == [b"0", b"1", b"2", b"3"]


@pytest.mark.slow
def test_failures_say_the_same_as_the_async_client() -> None:
    with sync_cluster(append_timeout=0.3, entries_in_flight_max=5, laggard_wait=0.01) as (
        client,
        fakes,
        store,
    ):
        writer = client.create_ledger()
        for fake in fakes.fakes:
            fake.faults.swallow_adds = True
        for _ in range(5):
            writer.append_nowait(b"x")
        with pytest.raises(BufferFull):
            writer.append_nowait(b"x")
        with pytest.raises(QuorumTimeout) as caught:
            writer.append(b"x", timeout=0.02)
        assert caught.value.outcome == "not_written"
        with pytest.raises(QuorumTimeout) as ended:
            writer.flush()
        assert ended.value.outcome == "unknown"
        with pytest.raises(QuorumTimeout):
            writer.close()
        assert store.read_ledger(writer.ledger_id).metadata.last_entry_id == -1
        for fake in fakes.fakes:
            fake.faults.swallow_adds = False
            fake.faults.refuse_adds = lambda _, entry_id: 20 if entry_id == 2 else 0
        fenced = client.create_ledger()
        assert fenced.append_many([b"x", b"y"]) == (0, 1)
        taken_over(store, fenced.ledger_id)
        with pytest.raises(LedgerFenced):
            fenced.append(b"z")
        with pytest.raises(LedgerFenced):
            fenced.close()
        with pytest.raises(NotEnoughBookies, match="5 bookies are needed, but only 3"):
            client.create_ledger(5)


@pytest.mark.parametrize("how", ["append", "result", "append_many", "nowait", "flush", "nothing"])
def test_the_end_of_a_block_says_nothing_that_was_said_before(how: str) -> None:
    def told(writer: fastbk.sync.LedgerWriter) -> None:
        pending = (
            writer.append_nowait(b"x") if how in ("result", "nowait", "flush", "nothing") else None
        )
        if how == "append":
            writer.append(b"x")
        elif how == "append_many":
            writer.append_many([b"x", b"y"])
        elif how == "result" and pending is not None:
            pending.result()
        elif how == "flush":
            writer.flush()
        elif how == "nowait" and pending is not None:
            wait_until(pending.done, "it has failed")
            writer.append_nowait(b"y")

    with sync_cluster() as (client, fakes, store):
        is_told = how != "nothing"
        with (
            nullcontext() if is_told else pytest.raises(LedgerFenced),
            client.create_ledger() as writer,
        ):
            writer.append(b"kept")
            taken_over(store, writer.ledger_id)
            for fake in fakes.fakes:
                fake.faults.refuse_adds = lambda *_: Status.FENCED
            with pytest.raises(LedgerFenced) if is_told else nullcontext():
                told(writer)


@pytest.mark.parametrize("name", ["Client", "LedgerWriter", "LedgerReader"])
def test_the_sync_names_and_arguments_are_the_async_ones(name: str) -> None:
    def public(kind: type) -> dict[str, list[str]]:
        return {
            # of readers of streams
            key: [one for one in inspect.signature(value).parameters if one != "turns"]
            for key, value in vars(kind).items()
            if inspect.isfunction(value) and not key.startswith("_")
        }

    # What only the client itself calls, and what `fastbk.sync` is made of.
    inside = {
        "bookies_changed",
        "abandon",
        "block",
        "mark_forked",
        "fence",  # for deletions
        "settle",
        "until_settled",
        "send_lac",  # for streams' writers, which are asyncio's
        "has_room",
        "guarded_by",
        "publish_at_once",
        "tool_io",
        "admit",
        "room",
        "end",
        "measure",
        "found_batches",
        "tailed_batches",
    }
    ours, theirs = public(getattr(fastbk.sync, name)), public(getattr(fastbk.client, name))
    if name == "Client":
        theirs |= public(fastbk.stream.client.Client)  # what `fastbk.connect` makes
    assert {k: v for k, v in ours.items() if k not in inside} == {
        k: v for k, v in theirs.items() if k not in inside
    }


def test_importing_fastbk_imports_neither_asyncio_nor_the_native_part() -> None:
    code = "import sys, fastbk; print([m for m in ('asyncio', 'cffi', 'fastbk.client') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
