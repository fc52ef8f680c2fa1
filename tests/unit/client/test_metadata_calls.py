"""Metadata's blocking calls beside the loop: which run at once, in which order, and what a close waits for."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

import fastbk
from fastbk.client import metadata_calls
from fastbk.client.config import ClientConfig
from fastbk.client.metadata_calls import CALLS_AT_ONCE, MetadataCalls, RecordCalls
from fastbk.errors import MetadataConflict, MetadataUnavailable
from fastbk.meta.api import LIST_PAGE_COUNT, BookieService, Endpoint
from fastbk.meta.records import Change
from fastbk.meta.replica_marks import LedgerMark
from fastbk.meta.sqlite.store import MemoryStore
from fastbk.model.missing_replica import MissingReplica
from tests.fixtures.metadata import metadata, new_cluster
from tests.fixtures.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fastbk.meta import MetadataStore
    from tests.fixtures.zookeeper import ZooKeeperPlace

PATIENCE_S = 20.0


async def test_calls_of_zookeeper_go_on_beside_each_other(zookeeper: ZooKeeperPlace) -> None:
    calls = MetadataCalls(zookeeper.uri(), ClientConfig(metadata_timeout=PATIENCE_S))
    together = threading.Barrier(CALLS_AT_ONCE)

    def call(store: MetadataStore) -> int:
        store.instance_id()
        together.wait(PATIENCE_S)  # raises unless all are here
        return id(store)

    stores = await asyncio.gather(*[calls.call(call) for _ in range(CALLS_AT_ONCE)])
    assert len(set(stores)) == 1, "one session, however many asked first"
    await calls.close(PATIENCE_S)


async def test_a_file_is_asked_one_call_after_the_other(tmp_path: Path) -> None:
    calls = MetadataCalls(new_cluster(tmp_path / "m.sqlite"), ClientConfig())
    order: list[int] = []
    goes_on = threading.Event()

    def call(at: int) -> None:
        order.append(at)
        if at == 0:
            goes_on.wait(PATIENCE_S)
        order.append(at)

    def begin(at: int) -> asyncio.Future[None]:
        return asyncio.ensure_future(calls.call(lambda _: call(at)))

    under_way = [begin(at) for at in range(3)]
    while not order:
        await asyncio.sleep(0)
    goes_on.set()
    await asyncio.gather(*under_way)
    assert order == [0, 0, 1, 1, 2, 2]
    await calls.close(PATIENCE_S)


async def test_the_store_is_closed_behind_what_is_under_way(zookeeper: ZooKeeperPlace) -> None:
    """Also behind a call whose caller was cancelled: it may be half of what makes something whole."""
    calls = MetadataCalls(zookeeper.uri(), ClientConfig(metadata_timeout=PATIENCE_S))
    await calls.call(lambda store: store.instance_id())
    began, goes_on, drawn = threading.Event(), threading.Event(), list[int]()

    def call(store: MetadataStore) -> None:
        began.set()
        goes_on.wait(PATIENCE_S)
        drawn.append(store.next_ledger_id())

    under_way = asyncio.ensure_future(calls.call(call))
    while not began.is_set():
        await asyncio.sleep(0)
    under_way.cancel()
    with pytest.raises(asyncio.CancelledError):
        await under_way
    closing = asyncio.ensure_future(calls.close(PATIENCE_S))
    await asyncio.sleep(0)
    goes_on.set()
    await closing
    assert len(drawn) == 1


@pytest.mark.slow
async def test_who_is_told_that_nobody_answers_is_told_where() -> None:
    uri = "zk+hierarchical://127.0.0.1:1/ledgers"
    calls = MetadataCalls(uri, ClientConfig(metadata_timeout=0.3))
    with pytest.raises(MetadataUnavailable, match=r"127\.0\.0\.1:1.* is (ZooKeeper|it) running"):
        await calls.call(lambda store: store.instance_id())
    await calls.close(PATIENCE_S)


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


async def test_which_gateway_does_not_answer_is_said_and_why() -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        calls = MetadataCalls(f"gateway://127.0.0.1:{port}", ClientConfig(metadata_timeout=1.0))
        with pytest.raises(
            MetadataUnavailable, match=f"gateway 127.0.0.1:{port} does not answer: timed out"
        ) as caught:
            await calls.call(lambda store: store.instance_id())
        assert caught.value.outcome == "unknown"
        await calls.close(PATIENCE_S)


async def test_a_store_of_gateways_that_is_long_in_opening_says_which_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its first call imports it: on a busy machine that took what was to be left for the reason."""
    limit_s, opened = 0.6, metadata_calls.open_store

    def open_late(*given: Any, **options: Any) -> MetadataStore:
        threading.Event().wait(limit_s)
        return opened(*given, **options)

    monkeypatch.setattr(metadata_calls, "open_store", open_late)
    calls = MetadataCalls("gateway://127.0.0.1:1", ClientConfig(metadata_timeout=limit_s))
    with pytest.raises(MetadataUnavailable, match=r"gateway 127\.0\.0\.1:1 does not answer"):
        await calls.call(lambda store: store.instance_id())
    await calls.close(PATIENCE_S)


async def test_a_gateway_that_hangs_up_on_a_client_without_tls_has_it_asked_for_tls() -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        calls = MetadataCalls(f"gateway://127.0.0.1:{port}", ClientConfig(metadata_timeout=1.0))
        with pytest.raises(
            MetadataUnavailable, match=r"does not answer: .*FASTBK_TLS_CA_FILE"
        ) as caught:
            await calls.call(lambda store: store.instance_id())
        assert caught.value.outcome == "unknown"
        await calls.close(PATIENCE_S)


async def test_pages_of_ids_grow_while_they_come_quickly() -> None:
    store = MemoryStore("pages of ids")
    ids = list(range(0, 9000, 3))
    for ledger_id in ids:
        store.create_ledger(ledger_id, metadata())
    asked: list[int] = []
    list_ledgers = store.list_ledgers

    def counted(after: int = -1, count_max: int = LIST_PAGE_COUNT) -> list[int]:
        asked.append(count_max)
        return list_ledgers(after, count_max)

    store.list_ledgers = counted  # type: ignore[method-assign]
    async with fastbk.Client(store) as client:
        pages = [page async for page in client.list_ledger_ids()]
    assert [one for page in pages for one in page] == ids
    assert all(pages) and [len(page) for page in pages[:-1]] == asked[:-1]
    assert len(asked) <= 3, "the last page says that it is the last"
    store.close()


# Calls that wait for a file go together with one commit; whoever waits is told what became of his
# own.


COUNT = 40
BOOKIE = BookieService("b1:1", 1, (Endpoint("127.0.0.1", 1),))


class Calls:
    """A sqlite store behind a thread that can be kept busy."""

    def __init__(self, uri: str) -> None:
        self.calls = MetadataCalls(uri, ClientConfig())
        self.records = RecordCalls(self.calls)
        self.statements: list[str] = []
        self._goes_on = threading.Event()

    async def begin(self) -> None:
        """Write down all statements from now on; keep the thread busy until `go_on`."""
        began = threading.Event()

        def call(store: Any) -> None:
            with store._file.reading() as db:
                db.set_trace_callback(self.statements.append)
                db.execute("PRAGMA foreign_keys=ON")
            began.set()
            self._goes_on.wait(PATIENCE_S)

        self.busy = asyncio.ensure_future(self.calls.call(call))
        while not began.is_set():
            await asyncio.sleep(0)

    async def go_on(self) -> None:
        """Wait until what was asked waits for the thread, and let it go on."""
        for _ in range(5):
            await asyncio.sleep(0)
        self._goes_on.set()
        await self.busy

    @property
    def commits(self) -> int:
        return sum(one.startswith("COMMIT") for one in self.statements)


async def test_what_waits_has_one_commit_and_each_its_own_outcome(tmp_path: Path) -> None:
    calls = Calls(new_cluster(tmp_path / "m.sqlite"))
    await calls.records.change(Change("r/7", b"was there before"))
    await calls.begin()
    changes = [
        asyncio.ensure_future(calls.records.change(Change(f"r/{at}", b"%d" % at)))
        for at in range(COUNT)
    ]
    drawn = [asyncio.ensure_future(calls.records.draw_ledger_id()) for _ in range(3)]
    await calls.go_on()
    done = await asyncio.gather(*changes, return_exceptions=True)
    assert [at for at, one in enumerate(done) if isinstance(one, MetadataConflict)] == [7]
    versions = [one[0] for one in done if isinstance(one, list)]
    assert len(set(versions)) == COUNT - 1
    assert len({await one for one in drawn}) == 3
    assert calls.commits == 1
    found = await calls.records.read_all([f"r/{at}" for at in range(COUNT)])
    assert [one.value for at, one in enumerate(found) if one and at != 7] == [
        b"%d" % at for at in range(COUNT) if at != 7
    ]
    await calls.calls.close(PATIENCE_S)


async def test_a_commit_that_fails_is_told_to_all_of_them_and_to_nobody_else(
    tmp_path: Path,
) -> None:
    calls = Calls(new_cluster(tmp_path / "m.sqlite"))

    def tables(store: Any) -> None:
        with store._file.transaction() as db:
            db.execute("CREATE TABLE p (id INTEGER PRIMARY KEY)")
            db.execute("CREATE TABLE c (id REFERENCES p (id) DEFERRABLE INITIALLY DEFERRED)")

    def orphan(store: Any) -> None:
        with store._file.transaction() as db:
            db.execute("INSERT INTO c VALUES (7)")

    await calls.calls.call(tables)
    await calls.begin()
    some: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(calls.records.change(Change(f"r/{at}", b"x"))) for at in range(3)
    ]
    # Refused, by what is not there in the end: to be told of the conflict would be wrong.
    some.append(asyncio.ensure_future(calls.records.change(Change("r/0", b"x"))))
    some.append(asyncio.ensure_future(calls.calls.call(orphan)))
    await calls.go_on()
    done = await asyncio.gather(*some, return_exceptions=True)
    assert all(isinstance(one, MetadataUnavailable) and one.outcome == "unknown" for one in done)
    assert len(set(map(id, done))) == len(done), "an error of his own for each"
    await calls.records.change(Change("r/0", b"new"))
    await calls.calls.close(PATIENCE_S)


async def test_who_has_gone_is_not_called_and_disturbs_nobody(tmp_path: Path) -> None:
    calls = Calls(new_cluster(tmp_path / "m.sqlite"))
    called: list[int] = []

    def call(_: MetadataStore, at: int) -> None:
        called.append(at)

    await calls.begin()
    some = [
        asyncio.ensure_future(calls.calls.call(lambda store, at=at: call(store, at)))  # type: ignore[misc]
        for at in range(4)
    ]
    for _ in range(5):
        await asyncio.sleep(0)
    some[2].cancel()
    await calls.go_on()
    await asyncio.gather(*some, return_exceptions=True)
    assert called == [0, 1, 3]
    await calls.calls.close(PATIENCE_S)


async def test_a_store_that_cannot_be_opened_is_told_to_everybody(tmp_path: Path) -> None:
    calls = Calls(f"sqlite:{tmp_path}")  # a folder
    done = await asyncio.wait_for(
        asyncio.gather(*[calls.records.read(f"r/{at}") for at in range(5)], return_exceptions=True),
        PATIENCE_S,
    )
    assert [type(one) for one in done] == [MetadataUnavailable] * 5
    await calls.calls.close(PATIENCE_S)


async def test_all_who_ask_for_bookies_before_they_are_looked_up_share_one_look(
    tmp_path: Path,
) -> None:
    calls = Calls(new_cluster(tmp_path / "m.sqlite"))
    await calls.begin()
    some = [asyncio.ensure_future(calls.calls.list_bookies()) for _ in range(20)]
    await asyncio.sleep(0)
    some[0].cancel()
    await calls.go_on()
    done = await asyncio.gather(*some, return_exceptions=True)
    assert isinstance(done[0], asyncio.CancelledError) and done[1:] == [[]] * 19
    assert sum("FROM bookies" in one for one in calls.statements) == 1
    await calls.calls.call(lambda store: store.register_bookie(BOOKIE, writable=True))
    assert [one.service for one in await calls.calls.list_bookies()] == [BOOKIE]
    await calls.calls.close(PATIENCE_S)


async def test_an_error_of_a_shared_look_is_told_to_each_and_the_next_look_is_another(
    tmp_path: Path,
) -> None:
    place = tmp_path / "late"
    place.mkdir()
    calls = Calls(f"sqlite:{place}")
    done = await asyncio.gather(
        *[calls.calls.list_bookies() for _ in range(3)], return_exceptions=True
    )
    assert [type(one) for one in done] == [MetadataUnavailable] * 3
    assert len(set(map(id, done))) == 3
    place.rmdir()
    new_cluster(place)
    assert await calls.calls.list_bookies() == []
    await calls.calls.close(PATIENCE_S)
