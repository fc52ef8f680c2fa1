"""Bookies on hosts of their own (network namespaces) whose cable is pulled: packets vanish, nothing is reset."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import fastbk
from fastbk.client import Client
from tests.fixtures.metadata import new_cluster
from tests.fixtures.namespaces import Host, hosts, skip_without_namespaces
from tests.fixtures.wait import wait_until_async

OPTIONS = {
    "bookie_timeout": 0.5,
    "replace_after": 0.2,
    "connect_timeout": 2.0,
    "probe_timeout": 1.0,
}


@asynccontextmanager
async def cluster(folder: Path, count: int) -> AsyncIterator[tuple[list[Host], str]]:
    skip_without_namespaces()
    uri = new_cluster(folder / "metadata.sqlite")
    with hosts(count, folder) as made:
        for host in made:
            host.start(uri)
        async with fastbk.connect(uri) as client:
            try:
                await wait_until_async(
                    lambda: _all_there(client, count), "all bookies are registered", 30
                )
            except AssertionError:
                pytest.fail("\n".join(f"{one.name}: {one.log()}" for one in made))
        yield made, uri


async def _all_there(client: Client, count: int) -> bool:
    return len(await client.list_bookies()) == count


async def test_a_silent_host_is_replaced_and_comes_back_as_a_stranger_to_nobody(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, 4) as (made, uri), fastbk.connect(uri, **OPTIONS) as client:
        writer = await client.create_ledger(3, 3, 2)
        await writer.append(b"0")
        ensemble = writer.metadata.fragments[-1].ensemble
        silent = next(one for one in made if one.bookie_id == ensemble[0])
        silent.cut()
        slowest_s = 0.0
        count = 1
        async with asyncio.timeout(30):
            while (
                silent.bookie_id
                in (await client.ledger_info(writer.ledger_id)).metadata.fragments[-1].ensemble
            ):
                began_s = time.monotonic()
                await writer.append(b"%d" % count)
                slowest_s = max(slowest_s, time.monotonic() - began_s)
                count += 1
        # Two of three answer all the time: nobody waited for the silent one's timeout and the change together.
        assert slowest_s < 5
        await writer.append(b"%d" % count)
        await writer.close()
        silent.mend()
        reader = await client.open_ledger(writer.ledger_id)
        entries = [bytes(one.data) async for one in reader.read()]
        assert entries == [b"%d" % one for one in range(count + 1)]
