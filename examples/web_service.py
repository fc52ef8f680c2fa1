"""A web service whose workers all append to one stream, each by a producer of its own.

    fastbk dev                                     # bookies, metadata and a write service; it prints the URI
    export FASTBK_METADATA_URI=...
    uvicorn --app-dir examples web_service:app --workers 4
    curl -d '{"item": "tea"}' http://127.0.0.1:8000/orders

A stream has one writer, and the next one fences it, so four workers cannot each open the writer. A producer sends its
records to the write service, which has the writer. Here it has no name: an order whose answer was lost is stored or is
not, and the client that asks again with the same order gets it stored once more. With a name and numbers of its own,
a worker that begins again would repeat nothing (docs/producers.md).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypedDict

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import fastbk


class State(TypedDict):
    """What each request of a worker finds."""

    orders: fastbk.Producer


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[State]:
    """Open the worker's producer before its first request, and close it behind its last one."""
    async with fastbk.connect(os.environ["FASTBK_METADATA_URI"]) as client:
        shop = client.namespace("shop")
        await shop.create(exist_ok=True)
        await shop.create_stream("orders", exist_ok=True)
        async with shop.stream("orders").producer() as orders:
            yield {"orders": orders}


async def order(request: Request) -> JSONResponse:
    """Answer when the order is durable."""
    orders: fastbk.Producer = request.state.orders
    position = await orders.append(await request.body(), key=b"order")
    return JSONResponse({"stored": str(position)}, status_code=201)


app = Starlette(routes=[Route("/orders", order, methods=["POST"])], lifespan=lifespan)
