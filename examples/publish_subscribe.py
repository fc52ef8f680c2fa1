"""Publish and subscribe: one stream of orders, and several subscribers, each with a durable cursor of its own.

Each subscriber gets all orders, in order, at its own pace, and goes on where it was when it comes back; what it
acknowledged is not delivered again, what it was about when it died is. Nothing has to be declared for that: a
subscriber is the name of its cursor.

    python examples/publish_subscribe.py URI       (or FASTBK_METADATA; `fastbk dev` starts a cluster)
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable

import fastbk
from fastbk import Record, Stream

Handle = Callable[[dict[str, object]], None]


class Crash(Exception):
    """A subscriber dies."""


async def publish(stream: Stream, orders: list[dict[str, object]]) -> None:
    """Append orders; the number of an order is its transaction id, so that a repeat publishes nothing twice."""
    async with stream.writer() as writer:
        for order in orders:
            number = int(str(order["number"]))
            if number > writer.last_txid:
                writer.append_nowait(json.dumps(order).encode(), txid=number)
                await writer.ready()
        await writer.publish()


async def subscribe(stream: Stream, name: str, handle: Handle, *, until: int) -> None:
    """Have all orders up to this number handled that this subscriber has not acknowledged."""
    async with stream.cursor(name) as cursor:
        async for record in cursor:
            assert isinstance(record, Record)
            handle(json.loads(record.value))
            cursor.ack(record)
            if record.txid >= until:
                return


async def main(uri: str | None) -> None:
    """Three subscribers; one dies half-way and comes back."""
    seen: dict[str, list[int]] = {"mail": [], "stock": [], "audit": []}

    def note(name: str, dies_at: int = -1) -> Handle:
        def handle(order: dict[str, object]) -> None:
            number = int(str(order["number"]))
            if number == dies_at:
                raise Crash
            seen[name].append(number)

        return handle

    async with fastbk.connect(uri) as client:
        namespace = client.namespace("examples/shop")
        await namespace.create(exist_ok=True)
        stream = await namespace.create_stream("orders", exist_ok=True)
        first = await stream.last_position()
        begin = 0 if first is None else first.txid + 1
        orders: list[dict[str, object]] = [{"number": begin + at} for at in range(1000)]
        until = begin + 999
        async with asyncio.TaskGroup() as group:
            group.create_task(publish(stream, orders))
            group.create_task(subscribe(stream, "mail", note("mail"), until=until))
            group.create_task(subscribe(stream, "stock", note("stock"), until=until))
            try:
                await subscribe(stream, "audit", note("audit", begin + 500), until=until)
            except Crash:
                print(f"audit died after {len(seen['audit'])} orders")
            await subscribe(stream, "audit", note("audit"), until=until)
        for name, numbers in seen.items():
            print(f"{name} handled {len(numbers)} orders, {numbers[0]} to {numbers[-1]}")
            assert numbers == list(range(begin, until + 1))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
