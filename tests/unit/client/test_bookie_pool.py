"""A client that watches the bookies in ZooKeeper looks them up after a change, not for each new ledger."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING

import pytest

import fastbk
from fastbk.client.bookie_pool import BookiePool
from fastbk.client.config import ClientConfig
from fastbk.errors import NotEnoughBookies
from fastbk.meta import MetadataStore, open_store
from fastbk.meta.api import BookieRegistration, BookieService
from tests.fixtures.fake_bookie import FakeBookie, fake_bookies
from tests.fixtures.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fastbk.client import Client
    from tests.fixtures.zookeeper import ZooKeeperPlace


class Watched:
    """A client of three fakes that are registered in ZooKeeper."""

    def __init__(self, client: Client, fakes: list[FakeBookie], store: MetadataStore) -> None:
        self.client = client
        self.fakes = fakes
        self.store = store
        self.looks = 0
        self._list_bookies = client.pool._list_bookies
        client.pool._list_bookies = self._look

    async def _look(self) -> list[BookieRegistration]:
        self.looks += 1
        return await self._list_bookies()

    async def create(self, ensemble: int = 3) -> list[str]:
        async with await self.client.create_ledger(ensemble, ensemble) as writer:
            return list(writer.metadata.fragments[0].ensemble)

    async def add_bookie(self, name: str) -> FakeBookie:
        fake = FakeBookie(name)
        await fake.start()
        self.fakes.append(fake)
        fake.register(self.store)
        return fake


@asynccontextmanager
async def watching(zookeeper: ZooKeeperPlace) -> AsyncIterator[Watched]:
    uri = zookeeper.uri()
    with closing(open_store(uri)) as store:
        async with (
            fake_bookies(store, 3, FakeBookie) as fakes,
            fastbk.connect(uri, connect_timeout=0.5) as client,
        ):
            yield Watched(client, fakes, store)


async def test_new_ledgers_take_the_list_of_the_last_change(zookeeper: ZooKeeperPlace) -> None:
    async with watching(zookeeper) as watched:
        for _ in range(5):
            assert sorted(await watched.create()) == ["b0", "b1", "b2"]
        assert watched.looks == 1
        await watched.add_bookie("b3")
        await wait_until_async(
            lambda: watched.looks == 2 and watched.client.pool.listed is not None, "the watch"
        )
        assert sorted(await watched.create(4)) == ["b0", "b1", "b2", "b3"]
        assert watched.looks == 2


async def test_a_list_from_before_the_watch_does_not_count(zookeeper: ZooKeeperPlace) -> None:
    async with watching(zookeeper) as watched:
        await watched.client.list_bookies()
        await watched.client.pool.bookies()
        assert watched.client.pool.listed is None
        await watched.add_bookie("b3")
        assert len(await watched.create(4)) == 4


async def test_too_few_that_answer_are_looked_up_again(zookeeper: ZooKeeperPlace) -> None:
    async with watching(zookeeper) as watched:
        await watched.create()
        pool = watched.client.pool
        assert pool.listed is not None
        pool.listed = pool.listed[:2]
        pool.known.update(pool.listed, asyncio.get_running_loop().time())
        assert len(await watched.create(3)) == 3, "as if the third had just come"
        with pytest.raises(NotEnoughBookies):
            await watched.create(4)


async def test_of_two_looks_the_one_that_began_later_counts() -> None:
    answers: list[asyncio.Future[list[BookieRegistration]]] = []

    async def look() -> list[BookieRegistration]:
        answers.append(asyncio.get_running_loop().create_future())
        return await answers[-1]

    def bookies(*names: str) -> list[BookieRegistration]:
        return [BookieRegistration(BookieService(one, 1, ()), True) for one in names]

    pool = BookiePool(ClientConfig(), look, lambda error: None)
    pool.is_watched = True
    older, newer = (asyncio.ensure_future(pool.bookies()) for _ in range(2))
    await wait_until_async(lambda: len(answers) == 2, "both looks")
    answers[1].set_result(bookies("a", "b"))
    assert await newer == pool.listed == bookies("a", "b")
    answers[0].set_result(bookies("a"))
    assert await older == bookies("a")
    assert pool.listed == bookies("a", "b")
    assert pool.known.is_registered("b")

    failing = asyncio.ensure_future(pool.bookies())
    await wait_until_async(lambda: len(answers) == 3, "the third look")
    answers[2].set_exception(OSError("away"))
    with pytest.raises(OSError, match="away"):
        await failing
    assert pool.listed is None, "what changed was not seen: the next ledger looks again"
