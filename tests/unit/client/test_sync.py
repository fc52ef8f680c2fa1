"""The client without `await`: same names, same behaviour, several threads, faults."""

from __future__ import annotations

import inspect
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import fastbk.client
import fastbk.stream.client
import fastbk.sync
from fastbk.errors import (
    BufferFull,
    ClientClosed,
    LedgerClosed,
    LedgerFenced,
    MetadataConflict,
    NoSuchEntry,
    NotEnoughBookies,
    QuorumTimeout,
    RecordTooLarge,
)
from tests.fixtures.fork import exit_code_of_fork
from tests.fixtures.sync_cluster import sync_cluster
from tests.fixtures.wait import wait_until


def test_appends_reads_and_tails() -> None:
    with sync_cluster() as (client, fakes, _):
        with client.create_ledger() as writer:
            assert writer.append(b"zero") == 0
            assert writer.append_many([b"%d" % one for one in range(1, 2000)]) == (1, 1999)
            pending = [writer.append_nowait(b"x") for _ in range(10)]
            assert pending[-1].result() == 2009
            assert all(one.done() for one in pending)
            writer.flush()
            writer.force()
            reader = client.open_ledger(writer.ledger_id, recovery=False)
            assert reader.last_add_confirmed() == 2009
            tail = reader.tail(2005)
            assert [next(tail).entry_id for _ in range(5)] == list(range(2005, 2010))
            assert writer.stats().bytes_in_flight == 0
        assert list(tail) == []
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
        assert list(client.list_ledgers()) == []
        with pytest.raises(MetadataConflict, match="deleted"):
            client.create_ledger(ledger_id=writer.ledger_id)


def test_threads_share_a_client() -> None:
    with sync_cluster() as (client, _, _), ThreadPoolExecutor(4) as threads:

        def work(name: int) -> list[bytes]:
            with client.create_ledger() as writer:
                for one in range(20):
                    writer.append(b"%d %d" % (name, one))
            reader = client.open_ledger(writer.ledger_id)
            return [bytes(entry.data) for entry in reader.read()]

        for name, found in enumerate(threads.map(work, range(4))):
            assert found == [b"%d %d" % (name, one) for one in range(20)]


def test_a_bookie_that_comes_back_gets_what_it_missed() -> None:
    with sync_cluster(laggard_wait=5) as (client, fakes, _):
        writer = client.create_ledger()
        writer.append(b"x")
        fakes.do(fakes.fakes[0].stop())
        writer.append_many([b"y"] * 50)
        assert "b0" in writer.stats().trouble
        fakes.do(fakes.fakes[0].start())
        writer.append(b"z")

        def caught_up() -> bool:
            writer.append(b".")
            # The newest is acknowledged by the two that answer first; b0 may be the third each time.
            return writer.stats().lagging["b0"] <= 1

        wait_until(caught_up, "b0 has all")
        writer.close()
        assert fakes.fakes[0].ids(writer.ledger_id) == list(range(writer.last_add_confirmed + 1))


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
        with pytest.raises(LedgerFenced):
            fenced.append(b"z")
        with pytest.raises(LedgerFenced):
            fenced.close()
        with pytest.raises(NotEnoughBookies, match="5 bookies are needed, but only 3"):
            client.create_ledger(5)


def test_replicas_are_tried_in_turn() -> None:
    with sync_cluster(read_timeout=1.2) as (client, fakes, _):
        with client.create_ledger() as writer:
            writer.append_many([b"%d" % one for one in range(30)])
        fakes.fakes[0].faults.damage_reads = lambda _, entry_id: entry_id == 3
        fakes.fakes[1].faults.silent = True
        for _ in range(3):
            reader = client.open_ledger(writer.ledger_id)
            assert [bytes(one.data) for one in reader.read()] == [b"%d" % one for one in range(30)]


def test_a_closed_or_forked_client_says_so() -> None:
    with sync_cluster() as (client, _, _):
        writer = client.create_ledger()
        writer.append(b"x")

        def child() -> int:
            with pytest.raises(ClientClosed, match="fork"):
                writer.append(b"y")
            return 42

        assert exit_code_of_fork(child) == 42
        assert writer.append(b"y") == 1
        writer.close()
        client.close()
        with pytest.raises(ClientClosed):
            client.create_ledger()


@pytest.mark.parametrize("name", ["Client", "LedgerWriter", "LedgerReader"])
def test_the_sync_names_and_arguments_are_the_async_ones(name: str) -> None:
    def public(kind: type) -> dict[str, list[str]]:
        return {
            key: list(inspect.signature(value).parameters)
            for key, value in vars(kind).items()
            if inspect.isfunction(value) and not key.startswith("_")
        }

    # What only the client itself calls, and what `fastbk.sync` is made of.
    inside = {
        "bookies_changed",
        "abandon",
        "block",
        "mark_forked",
        "send_lac_soon",  # for streams' writers, which are asyncio's
        "tool_io",
        "admit",
        "room",
        "end",
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
