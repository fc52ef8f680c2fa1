"""Calls that wait while somebody else ends what they wait for."""

from __future__ import annotations

import asyncio

import pytest

from fastbk.errors import ClientClosed, NotEnoughBookies
from tests.unit.client.clients import toy_cluster


@pytest.mark.parametrize("ends_client", [False, True])
async def test_telling_the_lac_ends_when_the_writer_is_closed(ends_client: bool) -> None:
    async with toy_cluster(explicit_lac_interval=0) as (client, toys, _):
        writer = await client.create_ledger()
        await writer.append(b"x")
        for toy in toys:
            toy.faults.silent = True
        telling = asyncio.ensure_future(writer.tell_last_add_confirmed())
        await asyncio.sleep(0)
        await (client.close() if ends_client else writer.close())
        with pytest.raises(ClientClosed if ends_client else NotEnoughBookies):
            await asyncio.wait_for(telling, 2)
