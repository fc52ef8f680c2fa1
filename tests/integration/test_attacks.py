"""Attacks on a real bookie, scaled down by its settings: `./dev torture RIG=attacks` has them at full size."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import fastbk
from fastbk.client import bookie_pool
from fastbk.client.config import ClientConfig
from fastbk.client.connection import ApacheTranslation, Use
from fastbk.client.known_bookies import KnownBookies
from fastbk.meta.api import Endpoint
from fastbk.native.client_codec import put_read
from fastbk.testing import LocalCluster
from fastbk.units import KIB, MIB
from fastbk.wire.messages import MAGIC
from fastbk.wire.statuses import Status
from tests.fixtures import apache_wire as apache
from tests.fixtures.pages import metrics
from tests.fixtures.raw_bookie import RawBookie, raw_bookie
from tests.fixtures.users import as_user, sasl_section
from tests.fixtures.wait import beats, wait_until, wait_until_async
from tests.integration.test_limits import can_connect, counted, dial, hello
from tests.rigs.attacks import own_bytes

ONE_WORKER = {"workers": 1}
APACHES_AUTHENTICATION = bytes.fromhex("0a06 0803 1005 1800")
"""The header of such a request of version 3, behind its length; connections of version 2 begin with it, too."""


def reached(cluster: LocalCluster, counter: str) -> float:
    """How often a limit was reached; its series begins with the first time."""
    return metrics(cluster.bookies[0]).get(f"fastbk_worker_{counter}_total", 0.0)


async def use(bookie: RawBookie, ledger_id: int, count: int) -> None:
    """Add and read, as somebody who has nothing to do with the attack."""
    for entry_id in range(count):
        data = bytes([entry_id]) * (16 * KIB)
        assert await bookie.add(ledger_id, entry_id, data) == Status.OK
        assert await bookie.read(ledger_id, entry_id) == data


async def test_clients_that_never_read_take_bounded_memory_which_comes_back() -> None:
    settings = {
        "bookie": ONE_WORKER,
        "network": {"unread_replies_max": "16MiB", "reply_backlog_max": "8MiB"},
    }
    async with LocalCluster(1, settings=settings) as cluster:
        worker = cluster.bookies[0].pids["worker.0"]
        bookie = await raw_bookie(cluster.bookies[0])
        for entry_id in range(64):
            assert await bookie.add(7, entry_id, bytes(64 * KIB)) == Status.OK
        before = own_bytes(worker)
        most = 0
        with ExitStack() as stack:
            for number in range(40):
                deaf = stack.enter_context(dial(cluster.bookies[0], receive_bytes=4096))
                hello(deaf)
                # 7 MiB: less than the bound of one connection.
                deaf.sendall(b"".join(put_read(n, 7, n % 64) for n in range(10, 120)))
                await use(bookie, 100 + number, 2)
                most = max(most, own_bytes(worker))
            await wait_until_async(lambda: reached(cluster, "unread_replies_cut") > 0, "a cut")
        assert most - before < 64 * MIB, f"{(most - before) / MIB:.0f} MiB more"
        await wait_until_async(lambda: own_bytes(worker) - before < 8 * MIB, "memory to come back")
        log = cluster.bookies[0].log_path
        wait_until(lambda: '"limit":"unread_replies"' in log.read_text(), "a line of the log")
        assert log.read_text().count('"limit":"unread_replies"') <= 3, "one every ten seconds"
        bookie.close()


async def test_frames_that_trickle_in_do_not_hold_up_others() -> None:
    """Before memory was taken as bytes arrive, four of these starved every frame that came in two pieces."""
    settings = {
        "bookie": ONE_WORKER,
        "limits": {"frame_size_max": "1MiB"},
        "network": {"partial_frames_max": "4MiB"},
    }
    async with LocalCluster(1, settings=settings) as cluster:
        bookie = await raw_bookie(cluster.bookies[0])
        with ExitStack() as stack:
            for _ in range(100):
                slow = stack.enter_context(dial(cluster.bookies[0]))
                hello(slow)
                slow.sendall(struct.pack("<I", MIB - 4) + bytes(10_000))
            for entry_id in range(20):
                data = bytes([entry_id]) * (900 * KIB)
                assert await bookie.add(8, entry_id, data) == Status.OK
                await use(bookie, 100 + entry_id, 2)
        assert counted(cluster, "frame_timeouts") == 0, "nobody had to wait for the timeout"
        bookie.close()


async def test_silent_connections_stay_below_three_quarters_and_make_room_above() -> None:
    settings = {"bookie": ONE_WORKER, "network": {"connections_max": 64}}
    async with LocalCluster(1, settings=settings) as cluster:
        bookie = await raw_bookie(cluster.bookies[0])
        with ExitStack() as stack:
            silent = [stack.enter_context(dial(cluster.bookies[0])) for _ in range(47)]
            wakes = counted(cluster, "wakes")
            # The timer rings once a second: longer than a connection may be silent above three quarters.
            await wait_until_async(lambda: counted(cluster, "wakes") >= wakes + 4, "some seconds")
            for sock in silent:
                hello(sock)
            assert reached(cluster, "silent_closed") == 0
        await wait_until_async(
            lambda: metrics(cluster.bookies[0])["fastbk_worker_connections"] <= 2, "they are gone"
        )
        with ExitStack() as stack:
            for _ in range(70):
                stack.enter_context(dial(cluster.bookies[0]))
            wait_until(lambda: reached(cluster, "silent_closed") >= 16, "silent ones to be closed")
            for _ in range(10):
                assert await can_connect(cluster)
            await use(bookie, 100, 2)
        bookie.close()


async def send_without_end(port: int) -> None:
    """Hold a connection as somebody who may not: send requests that are refused; when it is closed, connect again."""
    async for _ in beats(0.2):
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                async for _ in beats(0.2):
                    if reader.at_eof():
                        break
                    writer.write(apache.v3_read(1, 0))
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(reader.read(1 << 16), 0.2)
            finally:
                writer.close()


def _as_apaches(
    config: ClientConfig, known: KnownBookies, bookie_id: str, _: Endpoint, use: Use
) -> ApacheTranslation:
    return ApacheTranslation(config, known, bookie_id, use)


@pytest.mark.parametrize("protocol", ["own", "v2", "v3"])
async def test_a_client_whose_connections_end_before_it_is_known_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """A crowded bookie ends the oldest connection of which it does not know whose it is, an honest client's too."""
    begins, options = MAGIC, dict[str, Any]()
    if protocol != "own":
        monkeypatch.setattr(bookie_pool, "translation_of", _as_apaches)
        begins, options = APACHES_AUTHENTICATION, {"apache_protocol": protocol}
    settings = {"authentication": sasl_section(tmp_path, "honest")}
    async with LocalCluster(1, settings=settings, proxies=True) as cluster:
        (proxy,) = cluster._injected._proxies(cluster._injected._network(0), "clients")
        ended = 0

        def mangle(data: bytes, to_client: bool) -> bytes:
            nonlocal ended
            if to_client or begins not in data[:12] or ended == 3:
                return data
            ended += 1
            return bytes(len(data))  # the bookie takes that for nobody's, and ends the connection

        proxy.mangle = mangle
        async with (
            fastbk.connect(
                cluster.metadata_uri, credentials=as_user(tmp_path, "honest"), **options
            ) as client,
            await client.create_ledger(1, 1, 1) as writer,
        ):
            assert await writer.append(b"served") == 0
        assert ended == 3


async def test_strangers_who_keep_sending_leave_room_for_who_authenticates(tmp_path: Path) -> None:
    """As many of them as there may be connections, from the honest client's own address."""
    settings = {
        "bookie": ONE_WORKER,
        "network": {"connections_max": 200},
        "authentication": sasl_section(tmp_path, "honest"),
    }
    async with LocalCluster(1, settings=settings) as cluster:
        strangers = [
            asyncio.create_task(send_without_end(cluster.bookies[0].port)) for _ in range(200)
        ]
        try:
            await wait_until_async(
                lambda: reached(cluster, "unauthenticated_closed") >= 100, "strangers to be closed"
            )
            waits_s = []
            for _ in range(10):
                began_s = time.monotonic()
                credentials = as_user(tmp_path, "honest")
                async with fastbk.connect(cluster.metadata_uri, credentials=credentials) as client:
                    writer = await client.create_ledger(1, 1, 1)
                    await writer.append(b"served")
                    await writer.close()
                waits_s.append(time.monotonic() - began_s)
        finally:
            for task in strangers:
                task.cancel()
            await asyncio.gather(*strangers, return_exceptions=True)
        print(f"an honest client's waits: {sorted(round(one, 3) for one in waits_s)}")
        assert max(waits_s) < 5.0, waits_s
        assert metrics(cluster.bookies[0])["fastbk_worker_connections_refused_total"] == 0
