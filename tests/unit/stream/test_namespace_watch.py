"""Watching a namespace: all that is there, then all that happens; nothing between the two is lost."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing

import pytest

import fastbk
from fastbk.errors import Error
from fastbk.stream.namespace.catalog import Catalog
from fastbk.stream.namespace.listing import NamespaceEvent
from fastbk.stream.namespace.namespace import Namespace
from fastbk.stream.policy import PolicyPatch
from tests.fixtures.fake_ledgers import Cluster, RandomPlan
from tests.fixtures.wait import wait_until_async
from tests.unit.meta.test_metadata_store import Open, open_driver

__all__ = ["open_driver"]

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


@pytest.mark.parametrize("turn", range(6))
async def test_who_watches_knows_in_the_end_what_is_there(turn: int, seed: int) -> None:
    """Names come and go at random while metadata is away, loses answers, and watchers list."""
    rng = random.Random(seed + turn)
    cluster = Cluster(RandomPlan(rng, away=0.03, lost=0.05))
    quiet = Cluster(RandomPlan(rng), records=cluster.records, watchers=cluster.watchers)

    def space_of(harness: Cluster) -> Namespace:
        return Namespace(Catalog(harness.client()), "a")  # type: ignore[arg-type]

    mine = space_of(quiet)
    await mine.create()
    known: dict[str, str] = {}
    gone: set[str] = set()

    async def watch() -> None:
        async with aclosing(space_of(quiet).watch()) as events:
            async for event in events:
                if event.kind == "deleted":
                    assert known.pop(event.id) == event.name
                    gone.add(event.id)
                elif event.kind == "renamed":
                    assert known[event.id] == event.former
                    known[event.id] = event.name
                elif event.kind != "policy":
                    assert event.id not in known and event.id not in gone
                    known[event.id] = event.name

    async def meddle() -> None:
        space = space_of(cluster)
        for _ in range(30):
            name, other = (f"s{rng.randrange(5)}" for _ in range(2))
            try:
                match rng.randrange(4):
                    case 0 | 1:
                        await space.create_stream(name)
                    case 2:
                        await space.delete_stream(name)
                    case _:
                        await space.rename_stream(name, other)
            except Error:
                continue

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(meddle() for _ in range(3)))
    there = {info.id: info.name async for info in mine.streams()}
    await wait_until_async(lambda: known == there, f"{known} becomes {there}", LIMIT_S)
    assert await mine.stream_count() == len(there)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
