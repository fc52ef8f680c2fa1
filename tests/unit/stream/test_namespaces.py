"""Namespaces and streams on every metadata driver: created, found, renamed, deleted, counted. INV-S12."""

from __future__ import annotations

import asyncio

import pytest

import fastbk
from fastbk.errors import (
    ConfigError,
    NamespaceNotEmpty,
    NotEnoughBookies,
    PolicyInvalid,
    QuotaExceeded,
    StreamExists,
    StreamNotFound,
)
from fastbk.stream.namespace.tree import ROOT_ID, StreamRecord, get
from fastbk.stream.paths import STREAMS, namespace_path, stream_path
from fastbk.stream.policy import PolicyPatch
from tests.unit.meta.test_metadata_store import Open, open_driver

__all__ = ["open_driver"]

pytestmark = pytest.mark.parametrize(
    "open_driver", ["memory", "sqlite", "zookeeper"], indirect=True
)


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


async def test_a_value_of_a_wrong_type_is_refused_by_its_name(open_driver: Open) -> None:
    async with fastbk.connect(open_driver()) as client:
        space = client.namespace("a")
        await space.create(PolicyPatch(digest="none"))  # type: ignore[arg-type]
        assert (await space.policy()).digest == "dummy"
        for wrong in ({"digest": "md5"}, {"ensemble": "3"}, {"roll_age_s": "2h"}):
            with pytest.raises(PolicyInvalid, match=next(iter(wrong))):
                await space.set_policy(PolicyPatch(**wrong))  # type: ignore[arg-type]


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


async def test_a_writer_that_makes_its_stream_makes_the_namespaces_too(open_driver: Open) -> None:
    async with fastbk.connect(open_driver()) as client:
        stream = client.namespace("new/below").stream("s")
        with pytest.raises(NotEnoughBookies):  # there are none here
            await stream.writer(create=True).open()
        assert await stream.exists()
        with pytest.raises(NotEnoughBookies):
            await stream.writer(create=True).open()
        assert (await stream.info()).records == 0
