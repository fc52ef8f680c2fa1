"""Who is asked for entries, on real bookies: the near one, the next when it is lost, the near one again (INV-P9)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import fastbk
from fastbk.client import LedgerReader
from fastbk.meta.placement_record import change_rules
from fastbk.placement.rules import ClusterRules
from fastbk.testing import LocalCluster
from tests.fixtures.wait import wait_until_async

WHERE = {"bookie-1": "/eu/a", "bookie-2": "/eu/b", "bookie-3": "/us/c"}
COUNT = 200


@pytest.fixture(scope="module")
def three() -> Iterator[LocalCluster]:
    """Three bookies: two racks of a region, and another region. All are on this host."""
    with LocalCluster(3) as made:
        yield made


def read_from(client: fastbk.Client) -> dict[str, int]:
    """Return how many entries each bookie has given this client."""
    return {name: client.pool.peer(name).traffic.read_entries for name in WHERE}


async def asked_for_all(client: fastbk.Client, reader: LedgerReader) -> set[str]:
    """Read all, and return who gave something."""
    before = read_from(client)
    found = [entry async for entry in reader.read()]
    assert len(found) == COUNT
    after = read_from(client)
    return {name for name in WHERE if after[name] > before[name]}


async def test_a_near_bookie_is_read_from_while_it_is_there(three: LocalCluster) -> None:
    async with fastbk.connect(three.metadata_uri) as client:
        await client.call_store(
            lambda store: change_rules(store, lambda rules: ClusterRules(rules.rule, WHERE))
        )
        async with await client.create_ledger(3, 3, 3) as writer:
            await writer.append_many([b"entry %d" % number for number in range(COUNT)])
        counts = client.stats()["traffic"]
        assert isinstance(counts, dict)
        stored = {name: each["stored_copies"] for name, each in counts.items()}
        assert sum(stored.values()) == 3 * COUNT
    ledger_id = writer.ledger_id

    for location, near in (("/us/c", "bookie-3"), ("/eu/a", "bookie-1"), ("/eu/b", "bookie-2")):
        async with fastbk.connect(three.metadata_uri, location=location) as client:
            for _ in range(4):  # whichever's turn it would be
                assert await asked_for_all(client, await client.open_ledger(ledger_id)) == {near}

    async with fastbk.connect(three.metadata_uri, location="/eu/b") as client:
        reader = await client.open_ledger(ledger_id)
        assert await asked_for_all(client, reader) == {"bookie-2"}
        await three.kill_async(1)
        assert await asked_for_all(client, reader) <= {"bookie-1", "bookie-2"}, (
            "the same region next; the near one may have answered before it died"
        )
        assert await asked_for_all(client, reader) == {"bookie-1"}
        assert read_from(client)["bookie-3"] == 0
        traffic = client.stats()["traffic"]
        assert isinstance(traffic, dict)
        assert traffic["host"]["read_entries"] >= COUNT, "at the same place, on this host"
        assert traffic["region"]["read_entries"] >= COUNT
        assert traffic["region"]["received_bytes"] > COUNT * len(b"entry 1")
        assert traffic["other"]["received_bytes"] == traffic["other"]["sent_bytes"] == 0, (
            "the other region was not even connected to"
        )
        await three.start_bookie_async(1)

        async def is_back() -> bool:
            return await asked_for_all(client, reader) == {"bookie-2"}

        await wait_until_async(is_back, "the near one is asked again", 60.0)


async def test_a_tail_is_read_from_a_near_bookie(three: LocalCluster) -> None:
    async with (
        fastbk.connect(three.metadata_uri) as writing,
        fastbk.connect(three.metadata_uri, location="/us/c") as reading,
        await writing.create_ledger(3, 3, 3, publish="immediate") as writer,
    ):
        reader = await reading.open_ledger(writer.ledger_id, recovery=False)
        tail = reader.tail()
        for _ in range(20):
            await writer.append_many([b"%d" % number for number in range(50)])
            for _ in range(50):
                await anext(tail)
        await tail.aclose()
        given = read_from(reading)
        # The others prove the LAC with their newest entry, a request each.
        assert given["bookie-3"] > 20 * 40 > given["bookie-1"] + given["bookie-2"]
