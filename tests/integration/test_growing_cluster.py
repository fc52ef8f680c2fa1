"""Bookies are added to a cluster that runs: new ledgers use them, and nobody is told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import fastbk
from fastbk.devcluster import DevCluster


async def test_new_ledgers_use_bookies_that_came_later(tmp_path: Path) -> None:
    small = DevCluster(tmp_path, 3)
    await asyncio.to_thread(small.start)
    more = None
    try:
        async with fastbk.connect(small.metadata_uri) as client:
            writer = await client.create_ledger(3, 3, 2)
            await writer.append(b"before")
            # The same folder with two bookies more: only these are started.
            more = DevCluster(tmp_path, 5)
            new = more.bookies[3:]
            for bookie in new:
                bookie.spawn()
            await asyncio.to_thread(more.wait_ready, new)
            used: set[str] = set()
            async with asyncio.timeout(60):
                while not {one.name for one in new} <= used:
                    async with await client.create_ledger(3, 3, 2) as fresh:
                        await fresh.append(b"after")
                    used |= set(fresh.metadata.fragments[0].ensemble)
            # Five need all five: nobody is left out.
            async with await client.create_ledger(5, 3, 2) as wide:
                await wide.append_many([b"%d" % one for one in range(20)])
            await writer.append(b"the old writer goes on")
            await writer.close()
            reader = await client.open_ledger(wide.ledger_id)
            entries = [bytes(one.data) async for one in reader.read()]
            assert entries == [b"%d" % one for one in range(20)]
    finally:
        if more is not None:
            for bookie in more.bookies[3:]:
                bookie.request_stop()
            for bookie in more.bookies[3:]:
                bookie.wait_gone()
        await asyncio.to_thread(small.stop)
