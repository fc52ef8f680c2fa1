"""`fastbk ledger audit` on real bookies: what is whole is told so, what was damaged or is away is named exactly."""

from __future__ import annotations

import asyncio

import fastbk
from fastbk.testing import LocalCluster
from tests.integration.test_repair_bookie import ENTRIES, SETTINGS, data_of, fastbk_cli, fill, harm


async def test_every_copy_is_read_and_damage_is_named() -> None:
    victims = [0, 7, 8, 150, ENTRIES - 1]
    async with LocalCluster(3, settings=SETTINGS) as cluster:
        uri, sick = cluster.metadata_uri, cluster.bookies[2]
        ledger_id = await fill(uri)
        async with fastbk.connect(uri) as client:
            striped = await client.create_ledger(3, 2, 2)
            await striped.append_many([data_of(one) + b"striped" for one in range(ENTRIES)])
            await striped.close()
            still_open = await client.create_ledger(3, 3, 2)
            await still_open.append(b"x")
            code, answer, said = await asyncio.to_thread(fastbk_cli, uri, "ledger", "audit")
            assert code == 0, said
            assert (answer["ledgers"], answer["open"], answer["entries"]) == (3, 1, 2 * ENTRIES)
            assert sum(one["good"] for one in answer["bookies"].values()) == 5 * ENTRIES
            assert answer["findings"] == []
            assert answer["is_whole"]
            await still_open.close()

        await cluster.stop_bookie_async(2)
        code, answer, said = await asyncio.to_thread(
            fastbk_cli, uri, "ledger", "audit", str(ledger_id)
        )
        assert (code, answer["lost"]) == (1, 0), said
        assert answer["findings"] == [
            f"{sick.name}: ledger {ledger_id}, entries 0..{ENTRIES - 1}: the bookie is not up"
        ]
        harm(sick, victims)
        await cluster.start_bookie_async(2)
        code, answer, said = await asyncio.to_thread(
            fastbk_cli, uri, "ledger", "audit", str(ledger_id)
        )
        assert code == 1, said
        bookies = answer["bookies"]
        assert (bookies[sick.name]["good"], bookies[sick.name]["bad"]) == (ENTRIES - 5, 5)
        assert [one["bad"] for name, one in bookies.items() if name != sick.name] == [0, 0]
        assert answer["finding_count"] == len(answer["findings"])
        named = {line.split(":")[1].strip() for line in answer["findings"]}
        spans = ("entry 0", "entries 7..8", "entry 150", f"entry {ENTRIES - 1}")
        assert named == {f"ledger {ledger_id}, {span}" for span in spans}
        assert all(line.startswith(f"{sick.name}: ") for line in answer["findings"])
        said_of_it = "damaged or lost: the bookie cannot show it, nor say that it never had it"
        assert all(line.endswith(f": {said_of_it}") for line in answer["findings"])

        code, _, said = await asyncio.to_thread(fastbk_cli, uri, "ledger", "audit", "987654")
        assert code == 1
        assert said.strip() == "fastbk: there is no ledger 987654"
