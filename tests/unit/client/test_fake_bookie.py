"""The toy bookies' own: what a toy leaves behind would fail whichever test runs next."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest

from tests.fixtures.fake_bookie import ToyBookie


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("turns", range(6))
def test_a_toy_that_stops_while_it_accepts_leaves_no_socket(turns: int) -> None:
    """asyncio's own server forgets a connection that it accepted in the turn in which it was closed."""

    async def stop_early() -> None:
        toy = ToyBookie("b0")
        await toy.start()
        with socket.create_connection(("127.0.0.1", toy.port)):
            for _ in range(turns):
                await asyncio.sleep(0)
            await toy.stop()

    asyncio.run(stop_early())
    gc.collect()
