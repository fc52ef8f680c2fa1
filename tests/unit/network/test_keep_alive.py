"""The system asks clients that say nothing whether they are still there, as the settings say."""

from __future__ import annotations

import socket

import pytest

from fastbk.server.configuration.settings import NetworkSettings
from fastbk.server.network.network import keep_alive
from tests.fixtures import frames
from tests.fixtures.frames import answer_of
from tests.fixtures.worker_harness import Served, WorkerHarness, served, until

OPTIONS = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)


async def options_of_a_new_connection(bookie: Served) -> list[int]:
    client = await bookie.connect()
    client.send(frames.hello())
    assert answer_of(await client.frame()) == (1, 0)
    (connection,) = bookie.network.connections.values()
    sock = connection._transport.get_extra_info("socket")
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    found = [sock.getsockopt(socket.IPPROTO_TCP, option) for option in OPTIONS]
    await client.close()
    await until(lambda: not bookie.network.connections)
    return found


@pytest.mark.uvloop_too
async def test_a_connection_has_the_keep_alive_that_is_set() -> None:
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            idle_s, interval_s, questions = await options_of_a_new_connection(bookie)
            bookie.network.keep_alive = keep_alive(
                NetworkSettings(keep_alive_idle_s=37, keep_alive_questions_max=3)
            )
            assert (idle_s, questions) != (37, 3), "the system's own differ"
            assert await options_of_a_new_connection(bookie) == [37, interval_s, 3]


def test_what_is_not_set_is_left_to_the_system() -> None:
    assert keep_alive(NetworkSettings()) == ()
    settings = NetworkSettings(keep_alive_interval_s=5)
    assert keep_alive(settings) == ((socket.TCP_KEEPINTVL, 5),)
