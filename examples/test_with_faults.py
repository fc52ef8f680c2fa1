"""An application's own tests against real bookies that fail: nothing that it confirmed may be missing.

The application takes orders. It confirms an order once a quorum of bookies has it on disk, and asks the customer to
try again later when that takes too long. Two tests: one bookie of three may fail in any way, and nobody notices; with
two of them away customers are asked to come back, and afterwards all goes on.

    python -m pytest examples/test_with_faults.py
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

import fastbk
from fastbk import StreamWriter
from fastbk.testing import Fault, LocalCluster

PATIENCE_S = 2.0


class OrderDesk:
    """The application: what it has confirmed is in the stream, once."""

    def __init__(self, writer: StreamWriter) -> None:
        self._writer = writer
        self.confirmed: list[str] = []
        self.unknown: list[str] = []
        """Customers were asked to try again: such an order may be in the stream or not."""

    async def take(self, order: str) -> bool:
        """Return whether the order is confirmed."""
        try:
            await self._writer.append(order.encode(), timeout=PATIENCE_S)
        except fastbk.QuorumTimeout:
            self.unknown.append(order)
            return False
        self.confirmed.append(order)
        return True


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Bookies for all tests: each fault ends with its block. Starting them takes longer than most tests."""
    with LocalCluster(3, proxies=True) as made:
        yield made


@asynccontextmanager
async def order_desk(cluster: LocalCluster, name: str) -> AsyncIterator[OrderDesk]:
    """Open a stream of the application, and check at the end that it kept its word."""
    async with fastbk.connect(cluster.metadata_uri) as client:
        shop = client.namespace("shop")
        await shop.create(exist_ok=True)
        orders = shop.stream(name)
        async with orders.writer(create=True) as writer:
            desk = OrderDesk(writer)
            yield desk
        async with orders.reader(tail=False) as reader:
            kept = [record.value.decode() async for record in reader]
        assert len(kept) == len(set(kept))
        assert set(desk.confirmed) <= set(kept) <= {*desk.confirmed, *desk.unknown}


FAULTS: dict[str, Callable[[LocalCluster], Fault]] = {
    "a bookie dies": lambda cluster: cluster.killed(0),
    "a bookie stands still": lambda cluster: cluster.frozen(0),
    "a disk is full": lambda cluster: cluster.filled(0),
    "a disk is slow": lambda cluster: cluster.delayed(0, journal_ms=200),
    "a bookie is cut off": lambda cluster: cluster.partitioned(0),
}


async def confirm_through(cluster: LocalCluster, fault: str) -> None:
    """Orders come before, during and after a fault of one bookie; all of them are confirmed."""
    async with order_desk(cluster, fault.replace(" ", "-")) as desk:
        assert await desk.take("before")
        async with FAULTS[fault](cluster):
            for number in range(20):
                assert await desk.take(f"during {number}")
        assert await desk.take("after")


async def refuse_then_go_on(cluster: LocalCluster) -> None:
    """Without a quorum nothing is confirmed; once it is back, the desk works as before."""
    async with order_desk(cluster, "no-quorum") as desk:
        assert await desk.take("before")
        async with cluster.frozen(0), cluster.frozen(1):
            assert not await desk.take("during")
        assert await desk.take("after")


@pytest.mark.parametrize("fault", FAULTS)
def test_one_faulty_bookie_of_three_is_not_noticed(cluster: LocalCluster, fault: str) -> None:
    """Any two of three bookies are an ack quorum."""
    asyncio.run(confirm_through(cluster, fault))


def test_customers_are_asked_to_come_back_while_there_is_no_quorum(cluster: LocalCluster) -> None:
    """What an application does then is its own choice: this one gives up waiting, and says so."""
    asyncio.run(refuse_then_go_on(cluster))
