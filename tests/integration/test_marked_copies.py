"""Marks of missing copies: `cluster under-replicated` reports them, and a verified repair removes them."""

from __future__ import annotations

import fastbk
from fastbk.admin.bookie_recovery import BookieRecovery, RecoveryPlan
from fastbk.admin.bookie_repair import BookieRepair
from fastbk.model.missing_replica import MissingReplica
from fastbk.testing import LocalCluster
from tests.integration.test_recover_bookie import fastbk_cli, fill


async def test_a_mark_is_reported_until_a_repair_has_verified_the_copies() -> None:
    async with LocalCluster(4) as cluster:
        uri = cluster.metadata_uri
        async with fastbk.connect(uri) as client:
            ledger_id = await fill(client, ensemble=3, write_quorum=2)
            other_id = await fill(client, ensemble=3, write_quorum=2)
            deleted_id = await fill(client, ensemble=3, write_quorum=2)
            (first, *_), (second, *_), _ = [
                (await client.ledger_info(one)).metadata.fragments[0].ensemble
                for one in (ledger_id, other_id, deleted_id)
            ]
            assert fastbk_cli(uri, "cluster", "under-replicated")[:2] == (0, [])
            await client.marks.update(ledger_id, add=[MissingReplica(first, 10, 19, "it was away")])
            await client.marks.update(other_id, add=[MissingReplica(second, 0)])
            await client.marks.update(deleted_id, add=[MissingReplica(first, 0)])
            await client.delete_ledger(deleted_id)

            code, found, _ = fastbk_cli(uri, "cluster", "under-replicated")
            assert code == 1
            by_ledger = {one["ledger_id"]: one for one in found}
            assert by_ledger.keys() == {ledger_id, other_id}
            mark = by_ledger[ledger_id]
            assert mark["reason"] == "marked: it was away"
            assert mark["bookie_id"] == first
            assert 6 <= mark["count"] <= 7, "its share of ten entries, two of three bookies each"

            healing = BookieRepair(client, first)
            assert (await healing.run()).is_whole
            assert [one.ledger_id for one in await client.marks.list()] == (
                [] if first == second else [other_id]
            )
            await client.marks.update(other_id, add=[MissingReplica(second, 5, 5)])
            plan = RecoveryPlan(even_if_alive=True)
            assert (await BookieRecovery(client, second, plan).run()).is_whole
            assert await client.marks.list() == []
            assert fastbk_cli(uri, "cluster", "under-replicated", "--verify")[:2] == (0, [])


async def test_a_repair_of_an_open_ledger_keeps_the_mark_of_what_it_did_not_verify() -> None:
    async with LocalCluster(3) as cluster, fastbk.connect(cluster.metadata_uri) as client:
        async with await client.create_ledger(3, 3, 2) as writer:
            await writer.append(b"x")
            bookie_id = writer.metadata.fragments[0].ensemble[0]
            await client.marks.update(writer.ledger_id, add=[MissingReplica(bookie_id, 0)])
            await BookieRepair(client, bookie_id).run()
            assert len(await client.marks.list()) == 1
        await BookieRepair(client, bookie_id).run()
        assert await client.marks.list() == []


async def test_repair_and_recovery_remove_marks_that_metadata_does_not_expect_any_more() -> None:
    """Apache's AutoRecovery names other bookies, its clients delete ledgers. Our marks stayed."""
    async with LocalCluster(4) as cluster, fastbk.connect(cluster.metadata_uri) as client:
        closed_id = await fill(client, ensemble=3, write_quorum=2)
        deleted_id = await fill(client, ensemble=3, write_quorum=2)
        await client.delete_ledger(deleted_id)
        named = (await client.ledger_info(closed_id)).metadata.fragments[0].ensemble
        (other,) = {one.name for one in cluster.bookies}.difference(named)
        async with await client.create_ledger(3, 3, 2) as writer:
            await client.marks.update(writer.ledger_id, add=[MissingReplica(other, 5)])
            plan = RecoveryPlan(even_if_alive=True, open_ledgers="skip")
            for verb in (BookieRepair(client, other), BookieRecovery(client, other, plan)):
                both = [MissingReplica(other, 5, 9), MissingReplica(named[0], 5, 5)]
                await client.marks.update(closed_id, add=both)
                await client.marks.update(deleted_id, add=[MissingReplica(other, 0)])
                await verb.run()
                assert {
                    one.ledger_id: [copies.bookie_id for copies in one.missing]
                    for one in await client.marks.list()
                } == {closed_id: [named[0]], writer.ledger_id: [other]}, "an open ledger's stays"
