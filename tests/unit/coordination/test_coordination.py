"""Leases, locks, elections, counters, configuration and guarded writers, on ledgers and records in memory."""

from __future__ import annotations

import asyncio
import inspect
import random
from contextlib import aclosing

import pytest

import fastbk
import fastbk.sync
from fastbk.coordination import Config, Counter, Election, GuardedWriter, Lease, Lock
from fastbk.coordination.guarded_writer import HEADER_OF_TOKENS
from fastbk.coordination.lease import Leader, release_lease
from fastbk.coordination.records import KEYS_KEPT, NAMES_MAX, NamesRecord, put_names
from fastbk.coordination.store import delete_name, list_names
from fastbk.coordination.values import RevisionPassed
from fastbk.errors import (
    ConfigError,
    LeaseBusy,
    LeaseLost,
    MetadataUnavailable,
    QuotaExceeded,
    StorageError,
    StreamAdvanced,
    StreamNotFound,
    TokenOutdated,
    WriterFenced,
)
from fastbk.meta.records import Change
from fastbk.stream.deletion import delete_coordination
from fastbk.stream.janitor import Janitor
from fastbk.stream.namespace.catalog import Catalog
from fastbk.stream.namespace.namespace import Namespace
from fastbk.stream.paths import coordination_path
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan
from tests.fixtures.streams import as_client
from tests.fixtures.wait import wait_until_async


class World:
    """A cluster with a namespace `shop`."""

    def __init__(self, plan: Plan | None = None) -> None:
        self.cluster = Cluster(plan or Plan())

    def space(self, path: str = "shop") -> Namespace:
        """Return the namespace as a client of its own has it."""
        return Namespace(Catalog(as_client(self.cluster.client())), path)

    async def made(self) -> World:
        await self.space().create()
        return self


@pytest.mark.parametrize(
    "name", ["Config", "Counter", "Election", "GuardedWriter", "Lease", "Lock"]
)
def test_each_is_there_without_await(name: str) -> None:
    asynchronous = getattr(fastbk.coordination, name)
    blocking = getattr(fastbk.sync, name)
    names = {attribute for attribute in dir(asynchronous) if not attribute.startswith("_")}
    assert names <= {*dir(blocking)}
    for method in names:
        if callable(getattr(asynchronous, method)):
            wanted = [*inspect.signature(getattr(asynchronous, method)).parameters]
            assert [*inspect.signature(getattr(blocking, method)).parameters] == wanted, method


# --- leases ---------------------------------------------------------------------------------------


async def test_tokens_rise_with_each_granting_and_over_a_deletion() -> None:
    """INV-K1."""
    world = await World().made()
    tokens = []
    for _ in range(3):
        async with Lease(world.space(), "nightly") as lease:
            tokens.append(lease.check())
    assert await delete_name(world.space(), "nightly")
    assert not await delete_name(world.space(), "nightly")
    async with Lease(world.space(), "nightly") as lease:
        tokens.append(lease.token)
    assert tokens == [1, 2, 3, 4]


async def test_one_that_is_held_is_refused_and_one_that_is_released_granted_at_once() -> None:
    world = await World().made()
    first, second = Lease(world.space(), "a", holder="first"), Lease(world.space(), "a")
    await first.acquire()
    with pytest.raises(LeaseBusy, match="first has it"):
        await second.acquire(timeout=0)
    with pytest.raises(ConfigError, match="one for each candidate"):
        await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    await first.release()
    assert await waiting == 2
    with pytest.raises(LeaseLost, match="not taken"):
        first.check()
    await second.release()
    await second.release()


async def test_one_that_was_taken_away_is_lost_at_the_next_renewal() -> None:
    world = await World().made()
    async with Lease(world.space(), "a", duration=0.5, holder="me") as lease:
        assert await release_lease(world.space(), "a") == "me"
        assert await release_lease(world.space(), "a") == ""
        async with Lease(world.space(), "a", holder="other") as other:
            assert other.token == 2
            error = await lease.until_lost()
            assert "other has it" in str(error)
            assert not lease.is_held
            with pytest.raises(LeaseLost, match="token 1"):
                lease.check()
        assert other.token == 2
    with pytest.raises(ConfigError, match="no lease shop/none"):
        await release_lease(world.space(), "none")


class Away(Plan):
    """Metadata does not answer those who are cut off."""

    def __init__(self) -> None:
        self.cut: set[object] = set()

    async def before(self, client: FakeClient, what: str) -> None:
        if client in self.cut and what.startswith("metadata"):
            raise MetadataUnavailable("cut off")


async def test_a_holder_that_is_cut_off_loses_it_before_another_takes_it() -> None:
    """INV-K2, INV-K3."""
    plan = Away()
    world = await World(plan).made()
    space, other = world.space(), Lease(world.space(), "a", duration=0.5)
    async with Lease(space, "a", duration=0.5) as lease:
        plan.cut.add(space.client)
        was_lost = asyncio.create_task(lease.until_lost())
        assert await other.acquire() == 2
        assert was_lost.done()
        assert "not renewed in time" in str(await was_lost)
        plan.cut.clear()
    assert other.check() == 2, "the end of the first one's block releases nothing of the second's"
    await other.release()


async def test_a_namespace_without_room_or_gone_takes_none() -> None:
    world = await World().made()
    folder = coordination_path(await world.space().namespace_id())
    await world.space().client.records.change(Change(folder, put_names(NamesRecord(NAMES_MAX))))
    with pytest.raises(QuotaExceeded, match="fastbk coordination delete"):
        await Lease(world.space(), "a").acquire()
    with pytest.raises(StreamNotFound):
        await Lease(world.space("none"), "a").acquire()
    for bad in ({"duration": 0.1}, {"holder": "a\nb"}, {"data": bytes(1 << 17)}):
        with pytest.raises(ConfigError):
            Lease(world.space(), "a", **bad)


async def test_they_go_with_their_namespace() -> None:
    world = await World().made()
    async with Lease(world.space(), "a"):
        await Counter(world.space(), "n").add()
    space_id = await world.space().namespace_id()
    assert [info.name for info in await list_names(world.space())] == ["a", "n"]
    await world.space().delete()
    records = world.cluster.client().records
    assert await records.children(coordination_path(space_id)) == []
    assert await records.read(coordination_path(space_id)) is None
    assert await delete_coordination(as_client(world.cluster.client()).records, space_id) == 0


async def test_one_that_nobody_can_read_stops_no_other() -> None:
    """INV-M17: and the call that needs it says what to do."""
    world = await World().made()
    await Counter(world.space(), "good").add()
    folder = coordination_path(await world.space().namespace_id())
    records = world.space().client.records
    count = await records.read(folder)
    assert count is not None
    await records.change(
        Change(folder, b"garbage", count.version), Change(f"{folder}/bad", b"garbage")
    )
    assert await Counter(world.space(), "good").add() == 2
    infos = {info.name: bool(info.fault) for info in await list_names(world.space())}
    assert infos == {"bad": True, "good": False}
    for name in ("bad", "new"):
        with pytest.raises(StorageError):
            await Counter(world.space(), name).add()
    with pytest.raises(StorageError, match="bad-records"):
        await delete_name(world.space(), "bad")


async def test_a_janitor_deletes_what_a_deletion_left() -> None:
    world = await World().made()
    await Counter(world.space(), "n").add()
    await Counter(Namespace(Catalog(as_client(world.cluster.client()))), "of the root").add()
    space_id = await world.space().namespace_id()
    kept = dict(world.cluster.records.values)
    await world.space().delete()
    folder = coordination_path(space_id)
    left = {path: value for path, value in kept.items() if path.startswith(folder)}
    world.cluster.records.values |= left
    await Janitor(as_client(world.cluster.client())).pass_once()
    assert not left.keys() & world.cluster.records.values.keys()
    assert await Counter(Namespace(Catalog(as_client(world.cluster.client()))), "of the root").value() == 1  # fmt: skip


async def test_a_name_stays_of_its_kind() -> None:
    world = await World().made()
    await Counter(world.space(), "x").add()
    with pytest.raises(ConfigError, match="shop/x is a counter already"):
        await Lease(world.space(), "x").acquire()


# --- locks and elections --------------------------------------------------------------------------


async def test_a_lock_serves_one_block_at_a_time() -> None:
    world = await World().made()
    inside = most = 0

    async def work() -> None:
        nonlocal inside, most
        async with Lock(world.space(), "x", duration=0.5):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(work() for _ in range(5)))
    assert most == 1


async def test_a_block_whose_lock_is_lost_is_cancelled() -> None:
    world = await World().made()
    began = asyncio.Event()

    async def work() -> None:
        async with Lock(world.space(), "x", duration=0.5):
            began.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await began.wait()
    await release_lease(world.space(), "x")
    with pytest.raises(LeaseLost):
        await task
    assert task.cancelling() == 0


async def test_a_block_that_ends_after_its_lock_was_lost_says_so() -> None:
    world = await World().made()
    lock = Lock(world.space(), "x")
    with pytest.raises(LeaseLost, match="not renewed in time"):
        async with lock:
            lock._tenure.until_s = 0.0  # the process was paused


async def test_others_see_who_leads() -> None:
    world = await World().made()
    watched = Election(world.space(), "leader")
    async with aclosing(watched.follow()) as leaders:
        assert await anext(leaders) is None
        async with Election(world.space(), "leader", holder="a", data=b"a:80") as first:
            assert await anext(leaders) == Leader(1, "a", b"a:80") == await watched.leader()
            assert first.token == 1
        assert await anext(leaders) is None
        assert await watched.leader() is None


async def test_one_whose_beat_stands_still_leads_no_more() -> None:
    plan = Away()
    world = await World(plan).made()
    space = world.space()
    leader = Election(space, "leader", duration=0.5, holder="a")
    await leader.acquire()
    async with aclosing(Election(world.space(), "leader").follow()) as leaders:
        assert await anext(leaders) == Leader(1, "a", b"")
        plan.cut.add(space.client)
        assert await anext(leaders) is None
    await leader.release()


# --- counters and configuration -------------------------------------------------------------------


class LostAnswers(Plan):
    """Answers to changes are lost by chance."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    async def after(self, client: FakeClient, what: str) -> None:
        for _ in range(self._rng.randrange(3)):
            await asyncio.sleep(0)
        if what == "metadata.change" and self._rng.random() < 0.3:
            raise MetadataUnavailable("the answer was lost")


async def test_each_add_happens_once_whatever_answers_are_lost(rng: random.Random) -> None:
    """INV-K5."""
    world = await World().made()
    world.cluster.plan = LostAnswers(rng)

    async def add(count: int) -> list[int]:
        counter = Counter(world.space(), "n")
        return [await counter.add() for _ in range(count)]

    made = await asyncio.gather(*(add(10) for _ in range(4)))
    assert sorted(value for values in made for value in values) == list(range(1, 41))
    assert all(values == sorted(values) for values in made)
    assert await Counter(world.space(), "n").value() == 40


class Faster(Plan):
    """Others are faster, each time that one client changes something."""

    def __init__(self) -> None:
        self.world: World | None = None

    async def before(self, client: FakeClient, what: str) -> None:
        if what == "metadata.change" and self.world is not None:
            world, self.world = self.world, None
            for _ in range(KEYS_KEPT + 1):
                await Counter(world.space(), "n").add()


async def test_an_add_that_others_outran_is_tried_again() -> None:
    """INV-K5: of a change that was refused everybody knows that it did not happen."""
    plan = Faster()
    world = await World(plan).made()
    await Counter(world.space(), "n").add()
    plan.world = world
    assert await Counter(world.space(), "n").add() == KEYS_KEPT + 3


class Overtaken(Plan):
    """The answer to the first change is lost, and many others come before it is looked for."""

    def __init__(self, others: int) -> None:
        self._others = others
        self.world: World | None = None

    async def after(self, client: FakeClient, what: str) -> None:
        if what == "metadata.change" and self.world is not None:
            world, self.world = self.world, None
            for _ in range(self._others):
                await Counter(world.space(), "n").add()
            raise MetadataUnavailable("the answer was lost")


async def test_an_add_whose_fate_nobody_knows_says_so() -> None:
    """INV-K5."""
    for others, is_known in ((KEYS_KEPT - 1, True), (KEYS_KEPT, False)):
        plan = Overtaken(others)
        world = await World(plan).made()
        plan.world = world
        if is_known:
            assert await Counter(world.space(), "n").add() == 1
        else:
            with pytest.raises(MetadataUnavailable, match="nobody knows") as caught:
                await Counter(world.space(), "n").add()
            assert (caught.value.outcome, caught.value.retryable) == ("unknown", False)
        assert await Counter(world.space(), "n").value() == others + 1


async def test_a_configuration_is_followed_and_changed_on_a_condition() -> None:
    world = await World().made()
    config = Config(world.space(), "flags")
    assert await config.get() is None
    async with aclosing(Config(world.space(), "flags").follow()) as values:
        assert await anext(values) is None
        assert await config.set(b"a", if_revision=0) == 1
        value = await anext(values)
        assert value is not None and (value.data, value.revision) == (b"a", 1)
        with pytest.raises(RevisionPassed, match="revision 1, not 0"):
            await config.set(b"b", if_revision=0)
        assert await config.set(b"b", if_revision=1) == 2
        await delete_name(world.space(), "flags")
        assert await config.set(b"c") == 3, "INV-K1"


# --- appends on a condition -----------------------------------------------------------------------


async def test_an_append_comes_right_behind_what_it_names_or_not_at_all() -> None:
    """INV-K6."""
    world = await World().made()
    async with GuardedWriter(world.space().stream("log"), create=True) as writer:
        first = await writer.append_if_last(b"1", expected=None)
        with pytest.raises(StreamAdvanced, match="the last record is at") as caught:
            await writer.append_if_last(b"x", expected=None)
        assert caught.value.last == str(first)
        second = await writer.append_if_last(b"2", expected=first)
        # of many at once that name the same record one comes
        tried = await asyncio.gather(
            *(writer.append_if_last(b"%d" % one, expected=second) for one in range(5)),
            return_exceptions=True,
        )
        assert sum(isinstance(one, StreamAdvanced) for one in tried) == 4
    async with GuardedWriter(world.space().stream("log")) as again:
        assert again.last_dlsn is not None and again.last_dlsn > second


async def test_a_later_holder_fences_the_earlier_one_and_tokens_do_not_fall() -> None:
    """INV-K4."""
    world = await World().made()
    stream = world.space().stream("log")
    first = Lease(world.space(), "leader")
    await first.acquire()
    old = GuardedWriter(stream, first, create=True)
    await old.open()
    await old.append(b"1", headers={"a": b"b"})
    first._tenure.until_s = float("inf")  # its clock stands still: it believes for ever
    await release_lease(world.space(), "leader")
    async with (
        Lease(world.space(), "leader") as second,
        GuardedWriter(world.space().stream("log"), second) as new,
    ):
        await new.append(b"2")
        with pytest.raises(WriterFenced):
            await old.append(b"late")
        # Opened again it fences the new one, finds that its lease is another's, and appends nothing.
        with pytest.raises((TokenOutdated, LeaseLost)):
            await GuardedWriter(stream, first).open()
        await new.append(b"3")
    async with stream.reader(tail=False) as reader:
        found = [(record.value, dict(record.headers)[HEADER_OF_TOKENS]) async for record in reader]
    assert found == [(b"1", b"1"), (b"2", b"2"), (b"3", b"2")]
    await first.release()


async def test_a_holder_that_loses_its_lease_while_it_opens_the_stream_appends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """INV-K4: the lease is looked at when the stream is open."""
    world = await World().made()
    lease = Lease(world.space(), "leader")
    await lease.acquire()
    lease._tenure.until_s = float("inf")
    writer = GuardedWriter(world.space().stream("log"), lease, create=True)
    opened = writer._writer.open

    async def paused() -> None:
        await release_lease(world.space(), "leader")
        await opened()

    monkeypatch.setattr(writer._writer, "open", paused)
    with pytest.raises(TokenOutdated, match="token 1"):
        await writer.open()
    await lease.release()


async def test_the_tokens_header_is_the_leases() -> None:
    world = await World().made()
    async with (
        Lease(world.space(), "leader") as lease,
        GuardedWriter(world.space().stream("log"), lease, create=True) as writer,
    ):
        with pytest.raises(ConfigError, match=HEADER_OF_TOKENS):
            await writer.append(b"x", headers=[(HEADER_OF_TOKENS, b"7")])
        lease._tenure.until_s = 0.0
        with pytest.raises(LeaseLost):
            await writer.append(b"x")


async def test_a_record_larger_than_the_room_that_is_left_waits_for_it() -> None:
    world = await World().made()
    writer = GuardedWriter(world.space().stream("log"), create=True, unacked_bytes_max=1 << 16)
    async with writer:
        places = await asyncio.gather(*(writer.append(bytes(50_000)) for _ in range(4)))
    assert places == sorted(places)


async def test_what_waits_outlasts_metadata_that_does_not_answer() -> None:
    plan = Away()
    world = await World(plan).made()
    space = world.space()
    async with Lease(world.space(), "a", duration=0.5):
        waiter = Lease(space, "a", duration=0.5)
        waiting = asyncio.create_task(waiter.acquire())
        await wait_until_async(lambda: bool(world.cluster.watchers), "it waits")
        plan.cut.add(space.client)
        for _ in range(20):
            await asyncio.sleep(0)
    plan.cut.clear()
    assert await waiting == 2
    await waiter.release()
