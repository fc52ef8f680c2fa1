"""Namespaces and streams on every metadata driver: created, found, renamed, deleted, counted. INV-S12."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

import fastbk
from fastbk.errors import (
    ConfigError,
    MetadataConflict,
    MetadataUnavailable,
    NamespaceNotEmpty,
    NotEnoughBookies,
    PolicyInvalid,
    QuotaExceeded,
    StreamExists,
    StreamNotFound,
)
from fastbk.meta.records import Change
from fastbk.placement.config import PlacementConfig
from fastbk.stream.deletion import delete_stream
from fastbk.stream.namespace.catalog import Catalog
from fastbk.stream.namespace.namespace import Namespace
from fastbk.stream.namespace.tree import ROOT_ID, StreamRecord, get, put
from fastbk.stream.paths import STREAMS, namespace_path, stream_path
from fastbk.stream.policy import PolicyPatch
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan, RandomPlan
from tests.fixtures.metadata import set_level
from tests.fixtures.wait import wait_until_async
from tests.unit.meta.test_metadata_store import Open, open_driver

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from fastbk.stream.namespace.listing import NamespaceEvent

__all__ = ["open_driver"]


@pytest.mark.parametrize("open_driver", ["memory", "sqlite", "zookeeper"], indirect=True)
async def test_what_one_client_creates_another_finds(open_driver: Open) -> None:
    async with fastbk.connect(open_driver()) as mine, fastbk.connect(open_driver()) as other:
        await mine.namespace("tenant/app").create(PolicyPatch(ensemble=5, compression="lz4"))
        stream = await mine.namespace("tenant/app").create_stream("größe 1")
        assert (stream.name, stream.path) == ("größe 1", "tenant/app/größe 1")
        found = other.namespace("tenant").namespace("app")
        assert [one.path async for one in other.namespace("tenant").namespaces()] == ["tenant/app"]
        (info,) = [one async for one in found.streams()]
        context = await found.stream("größe 1").context()
        assert (info.name, info.id) == ("größe 1", context.stream_id)
        assert (info.segments, info.records, info.size_bytes, info.last_dlsn) == (0, 0, 0, None)
        assert context.stream_id == (await stream.context()).stream_id
        assert (await context.store.read()).chain.stream_id == context.stream_id
        policy = await context.policy()
        assert (policy.ensemble, policy.compression) == (5, "lz4")
        assert await stream.info() == info and await stream.exists()
        assert [await other.namespace(one).exists() for one in ("", "tenant", "x")] == [
            True,
            True,
            False,
        ]


@pytest.mark.parametrize("open_driver", ["memory", "sqlite", "zookeeper"], indirect=True)
async def test_what_is_there_is_not_created_again(open_driver: Open) -> None:
    async with fastbk.connect(open_driver()) as client:
        space = client.namespace("a")
        await space.create()
        await space.create(PolicyPatch(ensemble=9), exist_ok=True)
        assert await space.policy() == PolicyPatch()
        first = await space.create_stream("s")
        again = await space.create_stream("s", exist_ok=True)
        assert (await first.context()).stream_id == (await again.context()).stream_id
        for call in (
            space.create(),
            space.create_stream("s"),
            space.namespace("s").create(exist_ok=True),
            client.namespace("").create_stream("a", exist_ok=True),
            space.create_streams(["new", "s"]),
        ):
            with pytest.raises(StreamExists):
                await call
        assert [one.name async for one in space.streams()] == ["s"], "all or none"
        assert await space.stream_count() == 1


@pytest.mark.parametrize("open_driver", ["memory", "sqlite", "zookeeper"], indirect=True)
async def test_what_is_not_there_is_not_found(open_driver: Open) -> None:
    async with fastbk.connect(open_driver()) as client:
        space = client.namespace("a/b")
        for call in (
            space.create_stream("s"),
            space.stream("s").context(),
            space.policy(),
            space.delete(),
            space.delete_stream("s"),
            space.delete_stream("s", missing_ok=True),
            anext(space.streams()),
            anext(space.watch()),
        ):
            with pytest.raises(StreamNotFound):
                await call
        await space.create()
        for call in (
            space.delete_stream("s"),
            space.rename_stream("s", "t"),
            space.stream("s").info(),
        ):
            with pytest.raises(StreamNotFound):
                await call
        await space.delete_stream("s", missing_ok=True)
        with pytest.raises(ConfigError):
            space.stream("a/b")
        with pytest.raises(ConfigError):
            client.namespace("a//b")


@pytest.mark.parametrize("open_driver", ["memory", "sqlite", "zookeeper"], indirect=True)
async def test_a_renamed_stream_stays_what_it_is(open_driver: Open) -> None:
    async with fastbk.connect(open_driver()) as client:
        space = client.namespace("a/b")
        await space.create()
        stream = await space.create_stream("old", PolicyPatch(roll_bytes=1))
        context = await stream.context()
        renamed = await space.rename_stream("old", "new")
        assert (await renamed.context()).stream_id == context.stream_id
        assert await space.rename_stream("new", "new") is not None
        assert (await stream.info()).name == "new"
        with pytest.raises(StreamNotFound):
            await space.stream("old").context()
        await stream.set_policy(PolicyPatch(roll_bytes=2))
        assert (await renamed.policy(), (await context.policy()).roll_bytes) == (
            PolicyPatch(roll_bytes=2),
            2,
        )
        await space.create_stream("old")
        with pytest.raises(StreamExists):
            await space.rename_stream("old", "new")
        moved = await space.rename("c")
        assert moved.path == "a/c"
        assert [one.path async for one in moved.streams()] == ["a/c/new", "a/c/old"]
        assert (await moved.stream("new").context()).stream_id == context.stream_id
        with pytest.raises(StreamNotFound):
            await space.policy()
        await space.create()
        with pytest.raises(StreamExists):
            await moved.rename("b")
        assert [one async for one in space.streams()] == [], "another one, of the same name"


@pytest.mark.parametrize("open_driver", ["memory", "sqlite", "zookeeper"], indirect=True)
async def test_policies_are_inherited_from_the_next_segment_on(open_driver: Open) -> None:
    async with fastbk.connect(open_driver()) as client, fastbk.connect(open_driver()) as other:
        root, top, space = client.namespace(), client.namespace("a"), client.namespace("a/b")
        await space.create(PolicyPatch(retention_age_s=60.0))
        stream = await space.create_stream("s", PolicyPatch(ensemble=4))
        policy = (await stream.context()).policy
        assert (await policy()).ensemble == 4
        await other.namespace("a").set_policy(PolicyPatch(ensemble=7, roll_bytes=5, streams_max=9))
        await other.namespace().set_policy(PolicyPatch(digest="hmac", roll_bytes=4))
        found = await policy()
        assert (found.ensemble, found.digest, found.roll_bytes, found.retention_age_s) == (
            4,
            "hmac",
            5,
            60.0,
        )
        assert found == await stream.effective_policy() == await space.effective_policy("s")
        assert (await space.effective_policy()).ensemble == 7
        await top.set_policy(inherit=["roll_bytes", "ensemble"])
        await stream.set_policy(inherit=["ensemble"])
        found = await policy()
        assert (found.ensemble, found.roll_bytes) == (3, 4)
        assert await top.policy() == PolicyPatch(streams_max=9)
        with pytest.raises(PolicyInvalid):
            await root.set_policy(inherit=["colour"])


@pytest.mark.parametrize("open_driver", ["memory", "sqlite", "zookeeper"], indirect=True)
async def test_a_policy_that_cannot_be_is_refused_wherever_it_would_hold(open_driver: Open) -> None:
    async with fastbk.connect(open_driver()) as client:
        top, space = client.namespace("a"), client.namespace("a/b")
        await space.create()
        stream = await space.create_stream("s", PolicyPatch(write_quorum=3))
        with pytest.raises(PolicyInvalid, match="a/b/s"):
            await top.set_policy(PolicyPatch(ensemble=2, write_quorum=2))
        with pytest.raises(PolicyInvalid):
            await stream.set_policy(PolicyPatch(write_quorum=4))
        with pytest.raises(PolicyInvalid):
            await space.create_stream("t", PolicyPatch(ack_quorum=4))
        with pytest.raises(PolicyInvalid):
            await space.namespace("c").create(PolicyPatch(roll_bytes=-1))
        assert await top.policy() == PolicyPatch() and await space.stream_count() == 1


@pytest.mark.parametrize("open_driver", ["memory", "sqlite", "zookeeper"], indirect=True)
async def test_a_policy_that_places_segments_waits_for_the_level_of_its_readers(
    open_driver: Open,
) -> None:
    """INV-U1: versions before level 4 could read no record that names such a field."""
    store = open_driver()
    places = PolicyPatch(placement="rack", placement_enforced=True, racks_min=3)
    async with fastbk.connect(store) as client:
        top = client.namespace("a")
        await top.create()
        stream = await top.create_stream("s")
        set_level(store, 3)
        for refused in (
            top.set_policy(places),
            top.namespace("b").create(PolicyPatch(bookie_group_is_hard=True)),
            top.create_stream("t", PolicyPatch(regions_min=1)),
            stream.set_policy(PolicyPatch(zones_min=1)),
            stream.set_policy(PolicyPatch(ack_racks_min=2)),
        ):
            with pytest.raises(PolicyInvalid, match="needs format level 4, and the cluster has 3"):
                await refused
        await top.set_policy(PolicyPatch(bookie_group="ssd"))
        set_level(store, 4)
        await top.set_policy(places)
        await stream.set_policy(PolicyPatch(racks_min=2))
        found = (await stream.effective_policy()).placement_for(PlacementConfig(local_first=True))
        assert found == PlacementConfig(
            policy="rack",
            enforce=True,
            min_racks_per_write_quorum=2,
            group="ssd",
            local_first=True,
        )
        await stream.set_policy(PolicyPatch(ack_racks_min=2))
        found = (await stream.effective_policy()).placement_for(PlacementConfig())
        assert (found.min_racks_per_write_quorum, found.min_racks_per_ack_quorum) == (2, 2)
        with pytest.raises(PolicyInvalid, match="durable in 2 racks, and write_quorum=1"):
            await stream.set_policy(PolicyPatch(write_quorum=1, ack_quorum=1))
        with pytest.raises(PolicyInvalid, match="min_racks_per_ack_quorum=3 is more than"):
            await stream.set_policy(PolicyPatch(ack_racks_min=3))
        for wrong in ({"placement": "moon"}, {"racks_min": 0}, {"zones_min": 65}):
            with pytest.raises(PolicyInvalid, match=next(iter(wrong)).removesuffix("_min")):
                await stream.set_policy(PolicyPatch(**wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize("open_driver", ["memory", "sqlite", "zookeeper"], indirect=True)
async def test_a_value_of_a_wrong_type_is_refused_by_its_name(open_driver: Open) -> None:
    async with fastbk.connect(open_driver()) as client:
        space = client.namespace("a")
        await space.create(PolicyPatch(digest="none"))  # type: ignore[arg-type]
        assert (await space.policy()).digest == "dummy"
        for wrong in ({"digest": "md5"}, {"ensemble": "3"}, {"roll_age_s": "2h"}):
            with pytest.raises(PolicyInvalid, match=next(iter(wrong))):
                await space.set_policy(PolicyPatch(**wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize("open_driver", ["memory", "sqlite", "zookeeper"], indirect=True)
async def test_a_quota_counts_all_streams_below(open_driver: Open) -> None:
    async with fastbk.connect(open_driver()) as client:
        top, below = client.namespace("a"), client.namespace("a/b/c")
        await below.create()
        await top.set_policy(PolicyPatch(streams_max=3))
        await below.create_streams(["1", "2"])
        with pytest.raises(QuotaExceeded, match="a has 2 streams of 3"):
            await below.create_streams(["3", "4"])
        await top.create_stream("3")
        with pytest.raises(QuotaExceeded):
            await below.create_stream("4")
        await client.namespace("").create_stream("elsewhere")
        await below.delete_stream("1")
        await below.create_stream("4")
        counts = [await client.namespace(one).stream_count() for one in ("", "a", "a/b", "a/b/c")]
        assert counts == [4, 3, 2, 2]


@pytest.mark.parametrize("open_driver", ["memory", "sqlite", "zookeeper"], indirect=True)
@pytest.mark.slow
async def test_of_many_who_create_one_wins_and_no_quota_is_passed(open_driver: Open) -> None:
    clients = [fastbk.connect(open_driver()) for _ in range(3)]
    try:
        await clients[0].namespace("a").create(PolicyPatch(streams_max=10))

        async def create(number: int, name: str) -> str:
            try:
                await clients[number % 3].namespace("a").create_stream(name)
            except (StreamExists, QuotaExceeded) as error:
                return type(error).__name__
            return "done"

        same = await asyncio.gather(*(create(number, "same") for number in range(6)))
        assert sorted(same) == ["StreamExists"] * 5 + ["done"]
        others = await asyncio.gather(*(create(number, f"s{number}") for number in range(15)))
        assert sorted(others) == ["QuotaExceeded"] * 6 + ["done"] * 9
        found = [one.name async for one in clients[1].namespace("a").streams()]
        assert len(found) == await clients[2].namespace("a").stream_count() == 10
    finally:
        for client in clients:
            await client.close()


@pytest.mark.parametrize("open_driver", ["memory", "sqlite", "zookeeper"], indirect=True)
@pytest.mark.slow
async def test_a_namespace_that_is_deleted_takes_nobody_in(open_driver: Open) -> None:
    async with fastbk.connect(open_driver()) as client, fastbk.connect(open_driver()) as other:
        for number in range(8):
            mine = client.namespace(f"n{number}")
            await mine.create()
            await other.namespace(f"n{number}").policy()

            async def create(path: str = mine.path) -> bool:
                try:
                    await other.namespace(path).create_stream("s")
                except StreamNotFound:
                    return False
                return True

            async def delete(path: str = mine.path) -> bool:
                try:
                    await client.namespace(path).delete()
                except NamespaceNotEmpty:
                    return False
                return True

            created, deleted = await asyncio.gather(create(), delete())
            assert created != deleted
            assert await mine.exists() == created
        left = [one.path async for one in client.namespace().namespaces()]
        assert await client.namespace().stream_count() == len(left)


@pytest.mark.parametrize("open_driver", ["memory", "sqlite", "zookeeper"], indirect=True)
@pytest.mark.slow
async def test_deletion_takes_the_names_at_once(open_driver: Open) -> None:
    async with fastbk.connect(open_driver()) as client:
        top, below = client.namespace("a"), client.namespace("a/b")
        await below.create()
        streams = await below.create_streams([f"s{number}" for number in range(130)])
        ids = [(await one.context()).stream_id for one in streams[:2]]
        with pytest.raises(NamespaceNotEmpty):
            await top.delete()
        await below.delete_streams(["s0", "s1", "s0"])
        assert await below.stream_count() == 128
        assert not await streams[0].exists()
        with pytest.raises(StreamNotFound):
            await streams[0].info()
        for stream_id in ids:
            raw = await client.records.read(stream_path(stream_id))
            assert raw is None or get(StreamRecord, raw.value, "").deleting
        again = await below.create_stream("s0")
        assert (await again.context()).stream_id not in ids
        await top.delete(recursive=True)
        assert not await top.exists() and await client.namespace().stream_count() == 0
        assert [one.path async for one in client.namespace().namespaces()] == []
        part = namespace_path(ROOT_ID).rpartition("/")[0]
        folder, _, root_part = part.rpartition("/")
        assert await client.records.children(folder) in ([], [root_part])
        assert await client.records.children(part) in ([], [ROOT_ID])
        assert await client.records.children(STREAMS) == [], "what they held is gone, too"
        with pytest.raises(StreamNotFound):
            await top.delete()


@pytest.mark.parametrize("open_driver", ["memory", "sqlite", "zookeeper"], indirect=True)
async def test_a_writer_that_makes_its_stream_makes_the_namespaces_too(open_driver: Open) -> None:
    async with fastbk.connect(open_driver()) as client:
        stream = client.namespace("new/below").stream("s")
        with pytest.raises(NotEnoughBookies):  # there are none here
            await stream.writer(create=True).open()
        assert await stream.exists()
        with pytest.raises(NotEnoughBookies):
            await stream.writer(create=True).open()
        assert (await stream.info()).records == 0


# Changes of names while somebody else goes on, many with lost answers: nothing is done to
# another, or told of one.


class LosesOnce(Plan):
    """The first change that `client` makes takes effect, `meanwhile` happens, and its answer is lost.

    `before_it`, too, happens once: it has no effect then.
    """

    def __init__(self) -> None:
        self.client: FakeClient | None = None
        self.before_it: Callable[[], Awaitable[object]] | None = None
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def before(self, client: FakeClient, what: str) -> None:
        if what == "metadata.change" and client is self.client and self.before_it is not None:
            before_it, self.before_it = self.before_it, None
            await before_it()
            raise MetadataUnavailable("metadata is away", outcome="not_written")

    async def after(self, client: FakeClient, what: str) -> None:
        if what == "metadata.change" and client is self.client and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
            raise MetadataUnavailable("the answer was lost")


class BetweenCalls(Plan):
    """`meanwhile` happens before the second call that `client` makes."""

    def __init__(self, client: FakeClient, meanwhile: Callable[[], Awaitable[object]]) -> None:
        self._client = client
        self._meanwhile = meanwhile
        self._calls = 0

    async def before(self, client: FakeClient, what: str) -> None:
        if client is self._client:
            self._calls += 1
            if self._calls == 2:
                await self._meanwhile()


class Harness:
    """Two clients of one cluster, and a namespace that both see."""

    def __init__(self) -> None:
        self.plan = LosesOnce()
        self.cluster = Cluster(self.plan)
        self.plan.client = self.cluster.client()
        self.mine = Namespace(Catalog(self.plan.client), "a")  # type: ignore[arg-type]
        self.other = Namespace(Catalog(self.cluster.client()), "a")  # type: ignore[arg-type]

    async def ids(self) -> dict[str, str]:
        return {info.name: info.id async for info in self.other.streams()}


async def made() -> Harness:
    harness = Harness()
    await harness.other.create()
    return harness


async def test_a_stream_created_deleted_and_created_again_has_another_id() -> None:
    """INV-S12: an id is never used again, whoever deletes what the lost answer told of."""
    harness = await made()
    ids: list[str] = []

    async def delete() -> None:
        ids.append((await harness.ids())["s"])
        await harness.other.delete_stream("s")

    harness.plan.meanwhile = delete
    await harness.mine.create_stream("s")
    assert (await harness.ids())["s"] not in ids
    assert await harness.other.stream_count() == 1


async def test_a_stream_that_was_created_is_found_again() -> None:
    harness = await made()

    async def nothing() -> None:
        pass

    harness.plan.meanwhile = nothing
    await harness.mine.create_stream("s")
    assert list(await harness.ids()) == ["s"]
    assert await harness.other.stream_count() == 1


async def test_a_namespace_created_deleted_and_created_again_has_another_id() -> None:
    harness = await made()
    ids: list[str] = []

    async def id_of() -> str:
        below = harness.other.namespace("below")
        return (await below._catalog.place(("a", "below"))).here.id

    async def delete() -> None:
        ids.append(await id_of())
        await harness.other.namespace("below").delete()

    harness.plan.meanwhile = delete
    await harness.mine.namespace("below").create()
    assert await id_of() not in ids


async def test_a_deletion_spares_what_got_the_name_meanwhile() -> None:
    harness = await made()
    await harness.other.create_streams(["s", "t"])

    async def anew() -> None:
        await harness.other.create_stream("s")

    harness.plan.meanwhile = anew
    await harness.mine.delete_streams(["s", "t"])
    assert list(await harness.ids()) == ["s"], "the stream of somebody else is still there"
    assert await harness.other.stream_count() == 1


@pytest.mark.parametrize("missing_ok", [False, True])
async def test_a_deletion_spares_a_stream_that_was_renamed_meanwhile(missing_ok: bool) -> None:
    """INV-S12: its name is gone at the second attempt, and not by the first one, which had no effect."""
    harness = await made()
    await harness.other.create_streams(["s", "t"])

    async def rename() -> None:
        await harness.other.rename_stream("s", "u")

    harness.plan.before_it = rename
    if missing_ok:
        await harness.mine.delete_streams(["s", "t"], missing_ok=True)
        assert list(await harness.ids()) == ["u"]
    else:
        with pytest.raises(StreamNotFound):
            await harness.mine.delete_streams(["s", "t"])
        assert sorted(await harness.ids()) == ["t", "u"]
    assert (await harness.other.stream("u").info()).segments == 0
    assert await harness.other.stream_count() == len(await harness.ids())


async def test_data_of_a_stream_that_has_a_name_is_not_deleted() -> None:
    harness = await made()
    await harness.other.create_stream("s")
    assert harness.plan.client is not None
    with pytest.raises(MetadataConflict):
        await delete_stream(harness.plan.client, (await harness.ids())["s"])  # type: ignore[arg-type]
    assert list(await harness.ids()) == ["s"]


async def test_a_renaming_spares_what_got_the_name_meanwhile() -> None:
    harness = await made()
    await harness.other.create_stream("s")
    mine = (await harness.ids())["s"]

    async def further() -> None:
        await harness.other.rename_stream("t", "u")
        await harness.other.create_stream("s")

    harness.plan.meanwhile = further
    await harness.mine.rename_stream("s", "t")
    after = await harness.ids()
    assert after["u"] == mine and set(after) == {"s", "u"}


async def test_a_renamed_stream_that_is_deleted_meanwhile_is_not_found() -> None:
    harness = await made()
    await harness.other.create_stream("s")

    async def further() -> None:
        await harness.other.delete_stream("t")
        await harness.other.create_stream("s")

    harness.plan.meanwhile = further
    with pytest.raises(StreamNotFound):
        await harness.mine.rename_stream("s", "t")
    assert list(await harness.ids()) == ["s"]


async def test_a_renaming_of_a_namespace_spares_what_got_the_name_meanwhile() -> None:
    harness = await made()
    await harness.other.create_stream("s")

    async def again() -> None:
        renamed = Namespace(harness.other._catalog, "b")
        await renamed.rename("c")
        await harness.other.create()

    harness.plan.meanwhile = again
    await harness.mine.rename("b")
    streams = [info.name async for info in Namespace(harness.other._catalog, "c").streams()]
    assert streams == ["s"]
    assert await harness.other.exists() and await harness.other.stream_count() == 0
    assert not await Namespace(harness.other._catalog, "b").exists()


async def test_a_renaming_that_somebody_else_forestalled_is_not_told_as_done() -> None:
    """What its own attempts surely did not do another one did: the stream has not the name that was asked for."""
    harness = await made()
    await harness.other.create_stream("s")

    async def rename() -> None:
        await harness.other.rename_stream("s", "u")

    harness.plan.before_it = rename
    with pytest.raises(StreamNotFound):
        await harness.mine.rename_stream("s", "t")
    assert list(await harness.ids()) == ["u"]


async def test_a_renaming_of_a_namespace_that_somebody_else_forestalled_is_not_told_as_done() -> (
    None
):
    harness = await made()

    async def rename() -> None:
        await harness.other.rename("c")

    harness.plan.before_it = rename
    with pytest.raises(StreamNotFound):
        await harness.mine.rename("b")
    assert await Namespace(harness.other._catalog, "c").exists()
    assert not await Namespace(harness.other._catalog, "b").exists()


async def test_a_namespace_goes_with_a_stream_that_was_renamed_in_it_meanwhile() -> None:
    harness = await made()
    await harness.other.create_streams(["s", "t"])

    async def rename() -> None:
        await harness.other.rename_stream("s", "u")

    harness.plan.before_it = rename
    await harness.mine.delete(recursive=True)
    assert not await harness.other.exists()


async def test_a_namespace_goes_with_one_below_it_that_somebody_else_deletes_meanwhile() -> None:
    harness = await made()
    await harness.other.namespace("first").create()
    await harness.other.namespace("second").create()

    async def delete() -> None:
        await harness.other.namespace("second").delete()

    harness.plan.before_it = delete
    await harness.mine.delete(recursive=True)
    assert not await harness.other.exists()


async def test_a_namespace_that_was_renamed_meanwhile_is_not_told_as_deleted() -> None:
    harness = await made()

    async def rename() -> None:
        await harness.other.rename("c")

    harness.plan.before_it = rename
    with pytest.raises(StreamNotFound):
        await harness.mine.delete()
    assert await Namespace(harness.other._catalog, "c").exists()


@pytest.mark.parametrize(
    "call",
    [lambda mine: mine.rename_stream("s", "t"), lambda mine: mine.create_streams(["t"])],
    ids=["rename_stream", "create_streams"],
)
async def test_a_name_in_a_namespace_that_was_renamed_meanwhile_is_not_told_as_taken(
    call: Callable[[Namespace], Coroutine[None, None, object]],
) -> None:
    """INV-S12: a/t never was there, and c/t is none of the caller's business."""
    harness = await made()
    await harness.other.create_stream("s")
    assert await harness.mine.stream_count() == 1, "its path is known, so one request finds it"

    async def taken_elsewhere() -> None:
        await (await harness.other.rename("c")).create_stream("t")

    client = harness.plan.client
    assert client is not None
    harness.cluster.plan = BetweenCalls(client, taken_elsewhere)
    with pytest.raises(StreamNotFound):
        await call(harness.mine)
    found = Namespace(harness.other._catalog, "c").streams()
    assert sorted([info.name async for info in found]) == ["s", "t"]


# Watching a namespace: all that is there, then all that happens; nothing between the two is lost.


LIMIT_S = 20.0


def said(event: NamespaceEvent) -> tuple[str, ...]:
    return (event.kind, event.what, event.name, *([event.former] if event.former else []))


@pytest.mark.slow
@pytest.mark.parametrize("open_driver", ["memory", "sqlite", "zookeeper"], indirect=True)
async def test_what_happens_is_told_until_the_namespace_is_gone(open_driver: Open) -> None:
    async with fastbk.connect(open_driver()) as mine, fastbk.connect(open_driver()) as other:
        space = other.namespace("a/b")
        await space.create()
        await space.create_stream("s")
        told: list[tuple[str, ...]] = []

        async def watch() -> None:
            async with aclosing(mine.namespace("a/b").watch()) as events:
                async for event in events:
                    told.append(said(event))

        async def told_of(*event: str) -> None:
            await wait_until_async(lambda: event in told, f"{event} in {told}", LIMIT_S)

        async with asyncio.timeout(3 * LIMIT_S), asyncio.TaskGroup() as group:
            group.create_task(watch())
            await told_of("present", "stream", "s")
            await space.namespace("below").create()
            await told_of("created", "namespace", "below")
            await space.rename_stream("s", "t")
            await told_of("renamed", "stream", "t", "s")
            await space.stream("t").set_policy(PolicyPatch(ensemble=4))
            await told_of("policy", "stream", "t")
            await space.namespace("below").set_policy(PolicyPatch(ensemble=4))
            await told_of("policy", "namespace", "below")
            await other.namespace("a").set_policy(PolicyPatch(ensemble=5))
            await told_of("policy", "namespace", "a/b")
            await space.delete_stream("t")
            await told_of("deleted", "stream", "t")
            moved = await space.rename("c")
            await told_of("renamed", "namespace", "a/c", "a/b")
            await moved.delete(recursive=True)
            await told_of("deleted", "namespace", "a/c")
        assert len(told) == len(set(told)), "each is told once"


async def test_a_stream_made_anew_under_its_name_is_told(tmp_path: object) -> None:
    """Between two looks the names are the same, and it is another stream all the same."""
    async with fastbk.connect(f"memory:{tmp_path}") as client:
        space = client.namespace("a")
        await space.create()
        await space.create_stream("s")
        async with asyncio.timeout(LIMIT_S), aclosing(space.watch()) as events:
            first = await anext(events)
            await space.delete_stream("s")
            await space.create_stream("s")
            after = [await anext(events) for _ in range(2)]
        assert [said(one) for one in after] == [
            ("deleted", "stream", "s"),
            ("created", "stream", "s"),
        ]
        assert after[0].id == first.id != after[1].id


# The policy in force: what held last goes on while metadata is away, or policies do not go
# together.


async def test_the_last_policy_holds_until_another_one_can() -> None:
    cluster = Cluster()
    space = Namespace(Catalog(cluster.client()), "a")  # type: ignore[arg-type]
    await space.create()
    stream = await space.create_stream("s", PolicyPatch(ensemble=4))
    late = (await space.stream("s").context()).policy
    policy = (await stream.context()).policy
    assert (await policy()).ensemble == 4

    cluster.plan = RandomPlan(random.Random(1), away=1.0)
    assert (await policy()).ensemble == 4
    with pytest.raises(MetadataUnavailable):
        await late()

    cluster.plan = Plan()
    where = stream_path((await stream.context()).stream_id)
    found = await cluster.client().records.read(where)
    assert found is not None
    # As two who change policies at the same moment may leave it: each alone would have been allowed.
    record = StreamRecord("x", "s", PolicyPatch(ensemble=1, write_quorum=2))
    (version,) = await cluster.client().records.change(Change(where, put(record), found.version))
    assert (await policy()).ensemble == 4
    with pytest.raises(PolicyInvalid):
        await late()

    record = StreamRecord("x", "s", PolicyPatch(ensemble=6))
    await cluster.client().records.change(Change(where, put(record), version))
    assert (await policy()).ensemble == (await late()).ensemble == 6
    await space.delete_stream("s")
    with pytest.raises(StreamNotFound):
        await policy()


async def test_an_outage_is_told_once_however_often_the_policy_is_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster()
    space = Namespace(Catalog(cluster.client()), "a")  # type: ignore[arg-type]
    await space.create()
    policy = (await (await space.create_stream("s")).context()).policy
    await policy()
    for _ in range(2):
        cluster.plan = RandomPlan(random.Random(1), away=1.0)
        for _ in range(10):
            await policy()
        cluster.plan = Plan()
        await policy()
    told = [line for line in caplog.messages if "policy_kept" in line]
    assert len(told) == 2
