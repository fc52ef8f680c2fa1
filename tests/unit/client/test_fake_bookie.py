"""The fake bookies' own: what a fake leaves behind would fail whichever test runs next."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest

from tests.fixtures.fake_bookie import FakeBookie


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("turns", range(6))
def test_a_fake_that_stops_while_it_accepts_leaves_no_socket(turns: int) -> None:
    """asyncio's own server forgets a connection that it accepted in the turn in which it was closed."""

    async def stop_early() -> None:
        fake = FakeBookie("b0")
        await fake.start()
        with socket.create_connection(("127.0.0.1", fake.port)):
            for _ in range(turns):
                await asyncio.sleep(0)
            await fake.stop()

    asyncio.run(stop_early())
    gc.collect()
