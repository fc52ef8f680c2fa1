"""Requests that wait for a change: none is missed, none is watched twice, and all is bounded. INV-W5, INV-B1."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest

from fastbk.client.config import ClientConfig
from fastbk.client.metadata_calls import CALLS_AT_ONCE, MetadataCalls
from fastbk.errors import MetadataUnavailable
from fastbk.gateway import service as module
from fastbk.gateway.service import CALLS_OF_ONE_MAX, Shares, Turns, Waits
from fastbk.meta.api import Subject
from fastbk.meta.gateway.messages import ABSENT, FORBIDDEN, ReadStates
from tests.fixtures.metadata import new_cluster
from tests.fixtures.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from fastbk.meta.api import MetadataStore

LONG_MS = 30_000


class FakeStore:
    """Watches that fire when the test says so."""

    def __init__(self) -> None:
        self.states: dict[Subject, str] = {}
        self.watches: list[tuple[Subject, Callable[[], None]]] = []
        self.begun = 0
        self.fails_at: Subject = "none"
        self.records = self

    def watch_ledger(self, ledger_id: int, callback: Callable[[int], None]) -> FakeWatch:
        if ledger_id == self.fails_at:
            raise MetadataUnavailable("away")
        return self._begin(ledger_id, lambda: callback(ledger_id))

    def watch_bookies(self, callback: Callable[[], None]) -> FakeWatch:
        return self._begin(None, callback)

    def watch(self, path: str, callback: Callable[[], None]) -> FakeWatch:
        return self._begin(f"={path}", callback)

    def watch_children(self, path: str, callback: Callable[[], None]) -> FakeWatch:
        return self._begin(f"/{path}", callback)

    def _begin(self, subject: Subject, callback: Callable[[], None]) -> FakeWatch:
        self.begun += 1
        self.watches.append((subject, callback))
        return FakeWatch(self, (subject, callback))

    def set(self, subject: Subject, state: str, *, fires: bool = True) -> None:
        self.states[subject] = state
        for one, callback in list(self.watches):
            if one == subject and fires:
                callback()


class FakeWatch:
    def __init__(self, store: FakeStore, entry: tuple[Subject, Callable[[], None]]) -> None:
        self._store, self._entry = store, entry

    def close(self) -> None:
        if self._entry in self._store.watches:
            self._store.watches.remove(self._entry)


class FakeTurns:
    """Runs what it gets at once."""

    def __init__(self, store: FakeStore) -> None:
        self._store = store

    async def call(self, client: str, work: Callable[[Any], Any], limit_s: float) -> Any:
        del client, limit_s
        await asyncio.sleep(0)
        return work(self._store)


class Harness:
    def __init__(self, **states: str) -> None:
        self.store = FakeStore()
        self.store.states = {f"={name}": state for name, state in states.items()}
        self.noted: list[str] = []
        self.waits = Waits(cast("Turns", FakeTurns(self.store)), self.noted.append)
        self.reads = 0
        self.after_read: Callable[[], None] = lambda: None

    def ask(
        self, *subjects: Subject, wait_ms: int = LONG_MS, client: str = "one"
    ) -> asyncio.Task[list[str]]:
        """Request states of what the client has seen as it is now."""
        seen = tuple(self.store.states.get(one, ABSENT) for one in subjects)
        request = ReadStates(1000, subjects, seen, wait_ms)

        async def read() -> list[str]:
            self.reads += 1
            found = [self.store.states.get(one, ABSENT) for one in subjects]
            self.after_read()
            return found

        return asyncio.get_running_loop().create_task(self.waits.states(client, request, read))

    async def until_read(self, count: int) -> None:
        await wait_until_async(lambda: self.reads >= count, "the states are read")


async def test_a_change_ends_the_wait() -> None:
    harness = Harness(a="1", b="1")
    asked = harness.ask("=a", "=b")
    await harness.until_read(2)
    harness.store.set("=b", "2")
    assert await asked == ["1", "2"]


async def test_a_change_before_the_watch_is_there_is_not_missed() -> None:
    """INV-W5: no watch fires here."""
    harness = Harness(a="1")
    harness.after_read = lambda: harness.store.set("=a", "2", fires=False)
    assert await harness.ask("=a") == ["2"]
    assert harness.reads == 2


async def test_a_change_back_and_foreign_changes_do_not_end_it() -> None:
    harness = Harness(a="1")
    asked = harness.ask("=a", wait_ms=200)
    await harness.until_read(2)
    harness.store.set("=a", "1")
    assert await asked == ["1"]
    assert harness.reads >= 3


@pytest.mark.parametrize("wait_ms", [0, 50])
async def test_without_a_change_the_answer_comes_in_time(wait_ms: int) -> None:
    harness = Harness(a="1")
    assert await harness.ask("=a", wait_ms=wait_ms) == ["1"]
    assert harness.store.begun == (wait_ms > 0)


async def test_what_is_absent_or_forbidden_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ABSENT_WAIT_S", 0.05)
    harness = Harness(there="1", hidden=FORBIDDEN)
    assert await harness.ask("=there", "=hidden", "=absent", 7) == ["1", FORBIDDEN, ABSENT, ABSENT]
    assert [subject for subject, _ in harness.store.watches] == ["=there"]


async def test_all_who_wait_share_a_watch_that_ends_behind_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LINGER_S", 0.05)
    harness = Harness(a="1")
    asked = [harness.ask("=a", client=str(number)) for number in range(5)]
    await harness.until_read(10)
    assert len(harness.store.watches) == 1
    harness.store.set("=a", "2")
    assert await asyncio.gather(*asked) == [["2"]] * 5
    await wait_until_async(lambda: not harness.store.watches, "the watch ends")
    assert harness.waits._timer is None


async def test_watches_of_a_request_that_fails_end() -> None:
    harness = Harness()
    harness.store.states = {1: "1", 2: "1", None: "1"}
    harness.store.fails_at = 2
    asked = harness.ask(None, 1, 2)
    with pytest.raises(MetadataUnavailable):
        await asked
    assert not harness.store.watches


async def test_places_are_bounded_of_all_clients_and_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = Harness().waits
    monkeypatch.setattr(waits, "_subjects", Shares(7, 5))
    assert [waits.enter(*one) for one in (("one", 4), ("one", 2), ("two", 4), ("two", 3))] == [
        True,
        False,
        False,
        True,
    ]
    assert waits.count == 2
    monkeypatch.setattr(waits, "_requests", Shares(2, 1))
    monkeypatch.setattr(waits, "_subjects", Shares(9, 9))
    entered = [waits.enter(client, 1) for client in ("one", "one", "two", "three")]
    assert entered == [True, False, True, False]
    waits.leave("one", 1)
    assert waits.enter("three", 1)
    assert waits._subjects.total == 2


async def test_changes_that_show_nothing_have_the_states_read_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Names that its client may not see come and go all the time."""
    monkeypatch.setattr(module, "QUIET_S", 0.1)
    harness = Harness(a="1")
    asked = harness.ask("=a", wait_ms=1000)
    await harness.until_read(2)
    while not asked.done():
        harness.store.set("=a", "1")
        await asyncio.sleep(0)
    assert 4 <= harness.reads < 20
    asked = harness.ask("=a")
    harness.store.set("=a", "1")
    await harness.until_read(2)
    harness.store.set("=a", "2")
    assert await asked == ["2"]


async def test_a_change_in_the_last_pause_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-W5."""
    monkeypatch.setattr(module, "QUIET_S", 30.0)
    harness = Harness(a="1")
    asked = harness.ask("=a", wait_ms=500)
    await harness.until_read(2)
    harness.store.set("=a", "1")
    await harness.until_read(3)
    harness.store.set("=a", "2")
    assert await asked == ["2"]


async def test_watches_that_nobody_waits_for_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGERING_MAX", 3)
    names = [f"={number}" for number in range(10)]
    harness = Harness(**{name[1:]: "1" for name in names})
    held = harness.ask("=0")
    await harness.until_read(2)
    for name in names:
        assert await harness.ask(name, wait_ms=1) == ["1"]
    assert [subject for subject, _ in harness.store.watches] == ["=0", "=7", "=8", "=9"]
    again = harness.ask("=7")
    await harness.until_read(harness.reads + 2)
    assert await harness.ask("=3", "=4", wait_ms=1) == ["1", "1"]
    assert [subject for subject, _ in harness.store.watches] == ["=0", "=7", "=9", "=3", "=4"]
    for name, one in (("=0", held), ("=7", again)):
        harness.store.set(name, "2")
        assert await one == ["2"]


async def test_a_wait_that_is_given_up_leaves_nothing() -> None:
    harness = Harness(a="1")
    asked = harness.ask("=a")
    await harness.until_read(2)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert not any(one.waiting for one in harness.waits._watched.values())
    harness.waits.close()
    assert not harness.store.watches


# One client does not get all threads of a gateway's store, not even by giving its calls up.
# INV-B1.


@asynccontextmanager
async def opened(tmp_path: Path) -> AsyncIterator[MetadataCalls]:
    """A store with as many threads as ZooKeeper's has."""
    made = MetadataCalls(new_cluster(tmp_path / "metadata.sqlite"), ClientConfig())
    made._is_single = False
    yield made
    await made.close(5.0)


async def test_who_gives_up_its_calls_gets_no_more_threads_by_that(tmp_path: Path) -> None:
    assert CALLS_OF_ONE_MAX < CALLS_AT_ONCE
    async with opened(tmp_path) as calls:
        await _check_greedy(Turns(calls))


async def _check_greedy(turns: Turns) -> None:
    release = threading.Event()
    begun: list[int] = []

    def stuck(store: MetadataStore) -> int:
        del store
        begun.append(1)
        assert release.wait(30)
        return 1

    async def impatient() -> None:
        with pytest.raises(MetadataUnavailable):
            await turns.call("greedy", stuck, 0.2)

    try:
        await asyncio.gather(*[impatient() for _ in range(3 * CALLS_OF_ONE_MAX)])
        with pytest.raises(MetadataUnavailable, match="send fewer at once") as caught:
            await turns.call("greedy", stuck, 0.1)
        assert caught.value.outcome == "not_written"
        assert len(begun) == CALLS_OF_ONE_MAX
        assert await turns.call("other", lambda store: store.next_ledger_id(), 5.0) >= 0
    finally:
        release.set()
    await wait_until_async(lambda: not turns._turns, "all turns are over")
    assert await turns.call("greedy", lambda store: store.next_ledger_id(), 5.0) >= 0


async def test_what_a_call_raises_is_raised_and_its_turn_is_over(tmp_path: Path) -> None:
    def failing(store: MetadataStore) -> None:
        del store
        raise ValueError("as planned")

    async with opened(tmp_path) as calls:
        turns = Turns(calls)
        for _ in range(2 * CALLS_OF_ONE_MAX):
            with pytest.raises(ValueError, match="as planned"):
                await turns.call("one", failing, 5.0)
