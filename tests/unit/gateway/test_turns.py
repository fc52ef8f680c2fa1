"""One client does not get all threads of a gateway's store, not even by giving its calls up. INV-B1."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fastbk.client.config import ClientConfig
from fastbk.client.metadata_calls import CALLS_AT_ONCE, MetadataCalls
from fastbk.errors import MetadataUnavailable
from fastbk.gateway.shares import CALLS_OF_ONE_MAX, Turns
from fastbk.meta.api import MetadataStore
from tests.fixtures.metadata import new_cluster
from tests.fixtures.wait import wait_until_async


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
