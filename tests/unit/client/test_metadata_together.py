"""Calls that wait for a file go together with one commit; whoever waits is told what became of his own."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

from fastbk.client.config import ClientConfig
from fastbk.client.metadata_calls import MetadataCalls, RecordCalls
from fastbk.errors import MetadataConflict, MetadataUnavailable
from fastbk.meta import MetadataStore
from fastbk.meta.api import BookieService, Endpoint
from fastbk.meta.records import Change
from tests.fixtures.metadata import new_cluster

PATIENCE_S = 20.0
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


async def test_what_waits_has_one_commit_and_each_its_own_outcome(
    tmp_path: Path,
) -> None:
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


async def test_who_has_gone_is_not_called_and_disturbs_nobody(
    tmp_path: Path,
) -> None:
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
