"""Bookies keep a LAC that was told in memory only: an idle writer tells it again to those that come back."""

from __future__ import annotations

from tests.fixtures.wait import wait_until_async
from tests.unit.client.clients import toy_cluster


async def test_bookies_that_were_restarted_learn_the_lac_of_an_idle_writer() -> None:
    async with toy_cluster() as (client, toys, _):
        writer = await client.create_ledger()
        await writer.append(b"the last entry for a long time")
        held = [toy.ledgers[writer.ledger_id] for toy in toys]
        await wait_until_async(lambda: all(one.lac == 0 for one in held), "all were told")
        for toy, ledger in zip(toys, held, strict=True):
            ledger.lac, ledger.lac_body = -1, b""
            toy.cut()
        await wait_until_async(lambda: all(one.lac == 0 for one in held), "all were told again")
        reader = await client.open_ledger(writer.ledger_id, recovery=False)
        assert await reader.last_add_confirmed() == 0
