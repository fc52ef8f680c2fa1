"""How a tail learns of an entry: when a writer tells its LAC, and what a tail's polls cost."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import threading
import warnings
import weakref
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

import fastbk
from fastbk.client import Client, explicit_lac_sender, ledger_reader
from fastbk.client.connection import Connection
from fastbk.client.explicit_lac_sender import UNANSWERED_MAX
from fastbk.errors import ClientClosed, ConfigError, NotEnoughBookies
from fastbk.replication.lac_procedures import PollOptions
from tests.fixtures.fake_apache_bookie import FakeApacheBookie
from tests.fixtures.fake_bookie import FakeBookie
from tests.fixtures.sync_cluster import FakeBookies, bookies_in_a_thread, sync_cluster
from tests.fixtures.wait import wait_until, wait_until_async
from tests.unit.client.fake_cluster import fake_cluster, one_ledger, some_turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fastbk.meta import MetadataStore
    from fastbk.meta.api import VersionedLedger


class Wire:
    """What a writer has written to its connections, looked at without a turn of the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writes = 0
        write = Connection.write

        def written(connection: Connection, frames: bytes | bytearray | memoryview) -> None:
            self.writes += 1
            write(connection, frames)

        monkeypatch.setattr(Connection, "write", written)


@pytest.mark.parametrize("in_flight", [0, 1, 20])
async def test_a_lac_is_sent_before_the_call_returns(
    in_flight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-C4"""
    async with fake_cluster(explicit_lac_interval=0.0) as (client, fakes, _):
        for fake in fakes:
            fake.faults.drop_adds = lambda _, entry_id: entry_id > 0
        writer = await client.create_ledger()
        first, *late = [writer.append_nowait(b"x") for _ in range(1 + in_flight)]
        await first
        wire = Wire(monkeypatch)
        writer.send_lac()
        assert wire.writes == 3, "to each bookie, in this turn of the loop"
        writer.send_lac()
        assert wire.writes == 3, "the same one is not sent twice"
        held = [fake.ledgers[writer.ledger_id] for fake in fakes]
        await wait_until_async(lambda: all(one.lac == 0 for one in held), "all were told")
    await asyncio.gather(*late, return_exceptions=True)


async def test_an_entry_that_waits_to_be_sent_carries_the_lac() -> None:
    """INV-C4"""
    async with fake_cluster(1, explicit_lac_interval=0.0) as (client, (fake,), _):
        fake.faults.drop_adds = lambda _, entry_id: entry_id == 1
        writer = await client.create_ledger(ensemble=1, write_quorum=1, ack_quorum=1)
        first, second = writer.append_nowait(b"0"), writer.append_nowait(b"1")
        await first
        # is encoded in the next turn of the loop, as one is in flight
        third = writer.append_nowait(b"2")
        before = fake.requests
        writer.send_lac()
        await wait_until_async(lambda: fake.requests == before + 1, "it was sent")
        ledger = fake.ledgers[writer.ledger_id]
        assert ledger.lac == 0
    await asyncio.gather(second, third, return_exceptions=True)


async def test_a_bookie_that_answers_no_lac_is_sent_only_so_many() -> None:
    """INV-B1"""
    async with one_ledger(explicit_lac_interval=0.0) as (_, fakes, _, writer):
        await writer.append(b"x")
        silent = fakes[1]
        await wait_until_async(lambda: silent.adds == 1, "it has answered")
        silent.faults.silent = True
        before = silent.requests
        for _ in range(UNANSWERED_MAX + 50):
            await writer.append(b"x")
            writer.send_lac()
        expected = before + UNANSWERED_MAX + 50 + UNANSWERED_MAX
        await wait_until_async(lambda: silent.requests >= expected, "it has read all")
        await some_turns()
        assert silent.requests == expected
        silent.faults.silent = False


async def test_a_timer_sends_the_lac_while_entries_wait_for_their_quorum() -> None:
    """INV-C4"""
    async with fake_cluster(explicit_lac_interval=0.01) as (client, fakes, _):
        for fake in fakes:
            fake.faults.drop_adds = lambda _, entry_id: entry_id > 0
        writer = await client.create_ledger()
        first, *late = [writer.append_nowait(b"x") for _ in range(30)]
        await first
        held = [fake.ledgers[writer.ledger_id] for fake in fakes]
        await wait_until_async(lambda: all(one.lac == 0 for one in held), "all were told")
    await asyncio.gather(*late, return_exceptions=True)


@pytest.mark.parametrize("count", [1, 30])
async def test_the_lac_leaves_before_the_last_acknowledgement_is_told(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-C5: the application may keep the loop for itself from then on."""
    async with fake_cluster(explicit_lac_interval=0.0) as (client, fakes, _):
        writer = await client.create_ledger(publish="immediate")
        await asyncio.gather(*(writer.append(b"x") for _ in range(count)))
        wire = Wire(monkeypatch)
        writer.send_lac()
        assert wire.writes == 0, "all bookies were sent it before"
        held = [fake.ledgers[writer.ledger_id] for fake in fakes]
        await wait_until_async(lambda: all(one.lac == count - 1 for one in held), "all were told")
        reader = await client.open_ledger(writer.ledger_id, recovery=False)
        assert await reader.last_add_confirmed() == count - 1


async def test_by_default_a_lone_append_sends_no_lac_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with one_ledger(explicit_lac_interval=60.0) as (client, _, _, writer):
        await writer.append(b"x")
        wire = Wire(monkeypatch)
        writer.send_lac()
        assert wire.writes == 3
        with pytest.raises(ConfigError, match="publish='soon': must be 'immediate' or 'piggyback'"):
            await client.create_ledger(publish="soon")  # type: ignore[arg-type]


@pytest.mark.parametrize("end", ["abandoned", "failed", "client closed"])
async def test_a_writer_that_ends_sends_its_lac_first(end: str) -> None:
    """INV-C4"""
    async with one_ledger(explicit_lac_interval=0.0) as (client, fakes, _, writer):
        await writer.append(b"x")
        held = [fake.ledgers[writer.ledger_id] for fake in fakes]
        assert [one.lac for one in held] == [-1, -1, -1]
        if end == "abandoned":
            writer.abandon(ClientClosed("it was given up"))
        elif end == "failed":
            writer._pipe.end(ClientClosed("it has failed"))
        else:
            await client.close()
        await wait_until_async(lambda: all(one.lac == 0 for one in held), "all were told")


async def test_bookies_that_were_restarted_learn_the_lac_of_an_idle_writer() -> None:
    async with one_ledger() as (client, fakes, _, writer):
        await writer.append(b"the last entry for a long time")
        held = [fake.ledgers[writer.ledger_id] for fake in fakes]
        await wait_until_async(lambda: all(one.lac == 0 for one in held), "all were told")
        for fake, ledger in zip(fakes, held, strict=True):
            ledger.lac, ledger.lac_body = -1, b""
            fake.cut()
        await wait_until_async(lambda: all(one.lac == 0 for one in held), "all were told again")
        reader = await client.open_ledger(writer.ledger_id, recovery=False)
        assert await reader.last_add_confirmed() == 0


ENTRIES = 20


async def test_an_entry_that_is_told_at_once_costs_a_tail_one_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # However slow the machine is, the carrier is in time.
    patient = functools.partial(PollOptions, grace_s=30.0)
    monkeypatch.setattr(ledger_reader, "PollOptions", patient)
    async with one_ledger(explicit_lac_interval=0.0, poll_interval=60.0, closes=True) as (
        client,
        fakes,
        _,
        writer,
    ):
        await writer.append(b"0")
        await writer.write_last_add_confirmed()
        reader = await client.open_ledger(writer.ledger_id, recovery=False)
        async with contextlib.aclosing(reader.tail(1)) as tail:
            waiting = asyncio.ensure_future(anext(tail))
            await some_turns()
            before = sum(fake.requests for fake in fakes)
            for entry_id in range(1, ENTRIES + 1):
                await writer.append(b"%d" % entry_id)
                writer.send_lac()
                entry = await waiting
                assert (entry.entry_id, bytes(entry.data)) == (entry_id, b"%d" % entry_id)
                waiting = asyncio.ensure_future(anext(tail))
            of_the_writer = 2 * 3 * ENTRIES  # each entry, and its LAC, to three bookies
            assert sum(fake.requests for fake in fakes) - before - of_the_writer <= ENTRIES
            waiting.cancel()
            await asyncio.wait([waiting])


async def test_a_change_that_comes_while_a_poll_ends_is_not_forgotten() -> None:
    async with one_ledger(poll_interval=60.0, closes=True) as (client, _, _, writer):
        await writer.append(b"0")
        reader = await client.open_ledger(writer.ledger_id, recovery=False)
        store, asked, may_answer = reader._io.store, 0, asyncio.Event()

        async def held(ledger_id: int) -> VersionedLedger:
            nonlocal asked
            asked += 1
            await may_answer.wait()
            return await store.read_ledger(ledger_id)

        async with contextlib.aclosing(reader.tail()) as tail:
            assert (await anext(tail)).entry_id == 0
            waiting = asyncio.ensure_future(anext(tail))
            await some_turns()
            reader._io = replace(reader._io, store=SimpleNamespace(read_ledger=held))  # type: ignore[arg-type]
            await client.edit_metadata(writer.ledger_id, {"owner": b"somebody"})
            await wait_until_async(lambda: asked == 1, "the watch has told of it")
            await writer.append(b"1")
            assert (await waiting).entry_id == 1
            assert "owner" not in reader.metadata.custom
            may_answer.set()
            waiting = asyncio.ensure_future(anext(tail))
            await wait_until_async(
                lambda: "owner" in reader.metadata.custom, "the next poll looks again"
            )
            waiting.cancel()
            await asyncio.wait([waiting])


@pytest.mark.parametrize("ends_client", [False, True])
async def test_telling_the_lac_ends_when_the_writer_is_closed(ends_client: bool) -> None:
    async with one_ledger(explicit_lac_interval=0) as (client, fakes, _, writer):
        await writer.append(b"x")
        for fake in fakes:
            fake.faults.silent = True
        telling = asyncio.ensure_future(writer.write_last_add_confirmed())
        await asyncio.sleep(0)
        await (client.close() if ends_client else writer.close())
        with pytest.raises(ClientClosed if ends_client else NotEnoughBookies):
            await asyncio.wait_for(telling, 2)


# --- while the application keeps the loop for itself ------------------------------------------------------------
# `wait_until` does so: nothing of the client's loop runs in it.


def _guards() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "fastbk-lac-guard"]


@contextlib.asynccontextmanager
async def _blocked_client(
    kind: type[FakeBookie] = FakeBookie, **options: object
) -> AsyncIterator[tuple[Client, FakeBookies[FakeBookie]]]:
    """A client on the running loop, and bookies that are on another."""
    with bookies_in_a_thread(kind) as (bookies, store):
        async with fastbk.connect(store, **options) as client:
            yield client, bookies
        assert not _guards()


def _lacs(bookies: FakeBookies[FakeBookie], ledger_id: int) -> list[int]:
    """What they were told by requests of their own."""
    return [
        fake.ledgers[ledger_id].lac if ledger_id in fake.ledgers else -1 for fake in bookies.fakes
    ]


@pytest.mark.parametrize("protocol", ["own", "v2", "v3"])
async def test_a_guard_sends_the_lac_while_the_loop_does_not_run(protocol: str) -> None:
    """INV-C7"""
    kind = FakeBookie if protocol == "own" else FakeApacheBookie
    options = {} if protocol == "own" else {"apache_protocol": protocol}
    async with _blocked_client(kind, **options) as (client, bookies):
        writer = await client.create_ledger(digest="hmac", password=b"secret")
        for expected in range(2):
            await writer.append(b"x")
            wait_until(
                lambda at=expected: _lacs(bookies, writer.ledger_id) == [at] * 3, "all were told"
            )
            await some_turns()
        reader = await client.open_ledger(writer.ledger_id, recovery=False, password=b"secret")
        assert await reader.last_add_confirmed() == 1
        await writer.close()


async def test_a_guard_sends_nothing_that_is_not_acknowledged() -> None:
    """INV-C7: nor what is acknowledged and not forced."""
    async with _blocked_client() as (client, bookies):
        for fake in bookies.fakes:
            fake.faults.drop_adds = lambda _, entry_id: entry_id > 0
        writer = await client.create_ledger()
        deferred = await client.create_ledger(deferred_sync=True)
        await deferred.append(b"x")
        first, *late = [writer.append_nowait(b"x") for _ in range(5)]
        await first
        wait_until(lambda: _lacs(bookies, writer.ledger_id) == [0] * 3, "all were told")
        assert _lacs(bookies, deferred.ledger_id) == [-1] * 3
        await deferred.force()
        wait_until(lambda: _lacs(bookies, deferred.ledger_id) == [0] * 3, "all were told")
        assert _lacs(bookies, writer.ledger_id) == [0] * 3
    await asyncio.gather(*late, return_exceptions=True)


async def test_a_guard_sends_lacs_that_wait_for_the_end_of_the_turn() -> None:
    """INV-C7: what several writers send in one turn of the loop shares the connections, and leaves at its end."""
    async with _blocked_client() as (client, bookies):
        one, other = await client.create_ledger(), await client.create_ledger()
        await asyncio.gather(one.append(b"x"), other.append(b"x"))
        late = one.append_nowait(b"y"), other.append_nowait(b"y")
        assert other._pipe.carried_lac == 0
        wait_until(lambda: _lacs(bookies, other.ledger_id) == [0] * 3, "all were told")
        assert await asyncio.gather(*late) == [1, 1]


async def test_a_guard_sends_the_lac_to_a_bookie_that_comes_back() -> None:
    """INV-C7"""
    async with _blocked_client() as (client, bookies):
        writer = await client.create_ledger()
        await writer.append(b"x")
        bookies.do(bookies.fakes[0].stop())
        wait_until(
            lambda: _lacs(bookies, writer.ledger_id)[1:] == [0] * 2, "those that run were told"
        )
        bookies.do(bookies.fakes[0].start())
        wait_until(lambda: _lacs(bookies, writer.ledger_id) == [0] * 3, "all were told")


async def test_a_guard_keeps_no_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-C7"""
    monkeypatch.setattr(explicit_lac_sender, "UNUSED_S", 0.3)
    async with _blocked_client() as (client, bookies):
        writer = await client.create_ledger()
        await writer.append(b"x")
        before = [len(fake._writers) for fake in bookies.fakes]
        made = [fake.connections for fake in bookies.fakes]
        wait_until(lambda: _lacs(bookies, writer.ledger_id) == [0] * 3, "all were told")
        assert [fake.connections for fake in bookies.fakes] == [one + 1 for one in made]
        wait_until(
            lambda: [len(fake._writers) for fake in bookies.fakes] == before,
            "its connections are closed",
        )
        await writer.close()
        await wait_until_async(lambda: not _guards(), "without a writer there is no thread")
        again = await client.create_ledger()
        await again.append(b"x")
        wait_until(lambda: _lacs(bookies, again.ledger_id) == [0] * 3, "all were told")


async def test_a_client_that_is_closed_ends_its_guard_at_once() -> None:
    """INV-C7: also while the guard waits for bookies that do not answer."""
    async with _blocked_client() as (client, bookies):
        writer = await client.create_ledger()
        await writer.append(b"x")
        made = [fake.connections for fake in bookies.fakes]
        for fake in bookies.fakes:
            fake.faults.silent = True
        wait_until(
            lambda: all(f.connections > n for f, n in zip(bookies.fakes, made, strict=True)),
            "it has asked",
        )
        (guard,) = _guards()
        await client.close(timeout=5)
        assert not guard.is_alive()


def test_a_guard_sends_what_a_loop_has_left_that_was_closed() -> None:
    """INV-C7: the application ends its loop, and nothing else."""

    async def append(store: MetadataStore) -> int:
        writer = await fastbk.connect(store).create_ledger()
        clients.add(writer)
        await writer.append(b"x")
        return writer.ledger_id

    clients = weakref.WeakSet[fastbk.LedgerWriter]()
    with warnings.catch_warnings():
        # of the connections that nobody has closed
        warnings.simplefilter("ignore", ResourceWarning)
        with bookies_in_a_thread(FakeBookie) as (bookies, store):
            ledger_id = asyncio.run(append(store))
            wait_until(lambda: _lacs(bookies, ledger_id) == [0] * 3, "all were told")
            wait_until(lambda: not _guards(), "nothing is left to guard")
        gc.collect()
    assert not clients, "the guard keeps nothing"


async def test_who_has_no_guard() -> None:
    """The loop of `fastbk.sync` is no application's; the other clients send no LACs by themselves."""
    with sync_cluster() as (blocking, bookies, store):
        with blocking.create_ledger() as writer:
            writer.append(b"x")
            assert not _guards()
            wait_until(lambda: _lacs(bookies, writer.ledger_id) == [0] * 3, "all were told")
        async with (
            fastbk.connect(store) as client,
            fastbk.connect(store, explicit_lac_interval=0.0) as silent,
        ):
            await client.open_ledger(writer.ledger_id)
            async with await silent.create_ledger() as other:
                await other.append(b"x")
            assert not _guards()
            async with await client.create_ledger() as other:
                await other.append(b"x")
                assert len(_guards()) == 1
        assert not _guards()


async def test_a_writer_works_without_a_guard(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with _blocked_client() as (client, bookies):
        await client.create_ledger()  # which starts the threads of metadata
        await client._lac_guard.end(5)  # type: ignore[union-attr]
        client._lac_guard = explicit_lac_sender.LacGuard(client.pool)
        with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
            patched.setattr(threading.Thread, "start", refused)
            writer = await client.create_ledger()
        assert "client.lac_guard_failed" in caplog.text
        assert await writer.append(b"x") == 0
        await wait_until_async(
            lambda: _lacs(bookies, writer.ledger_id) == [0] * 3, "its timer sends the LAC"
        )
