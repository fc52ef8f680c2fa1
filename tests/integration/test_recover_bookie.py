"""A cluster that loses a bookie for good: `fastbk bookie recover|decommission`, `fastbk cluster ...`.

Marks of missing copies are reported by `cluster under-replicated`, and a verified repair removes them.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import fastbk
from fastbk.admin.cluster import under_replicated
from fastbk.admin.healing import BookieRecovery, BookieRepair, RecoveryPlan
from fastbk.client import Client
from fastbk.errors import LedgerFenced
from fastbk.model.missing_replica import MissingReplica
from fastbk.replication.repair_options import RepairOptions
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.registrations import until_down
from tests.fixtures.shared_cluster import renewed_cluster

ENTRIES = 200


BOOKIES = 5
cluster = renewed_cluster


def data_of(ledger_id: int, entry_id: int) -> bytes:
    return b"%d/%d/" % (ledger_id, entry_id) * (entry_id % 7 + 1)


async def fill(client: Client, *, ensemble: int, write_quorum: int) -> int:
    async with await client.create_ledger(ensemble, write_quorum, 2) as writer:
        await writer.append_many([data_of(writer.ledger_id, one) for one in range(ENTRIES)])
    return writer.ledger_id


async def check_all(uri: str, ledger_ids: list[int]) -> None:
    async with fastbk.connect(uri) as client:
        for ledger_id in ledger_ids:
            reader = await client.open_ledger(ledger_id, recovery=False)
            entries = [bytes(one.data) async for one in reader.read()]
            assert entries == [data_of(ledger_id, one) for one in range(ENTRIES)]


def faults(status: dict[str, Any]) -> list[dict[str, str]]:
    """Return what speaks against the cluster, but for slow journals: others may have the processors, or the disk."""
    return [
        one
        for one in status["reasons"]
        if one["verdict"] != "well" and one["name"] != "journal_slow"
    ]


async def test_a_ledger_whose_other_holder_is_down_is_parked_and_the_others_are_done(
    cluster: LocalCluster,
) -> None:
    """It held up the whole run, at "0 of 15", for as long as its entries times twenty seconds."""
    uri = cluster.metadata_uri
    cli = Cli(uri)
    async with fastbk.connect(uri) as client:
        names = [one.name for one in cluster.bookies]
        stuck = await fill(client, ensemble=2, write_quorum=2)
        lost, away = (await client.ledger_info(stuck)).metadata.fragments[0].ensemble
        await cluster.stop_bookie_async(names.index(away))
        await until_down(client, away)
        more = [await fill(client, ensemble=3, write_quorum=3) for _ in range(6)]
        await cluster.stop_bookie_async(names.index(lost))
        await until_down(client, lost)
        done: list[tuple[int, int]] = []
        plan = RecoveryPlan(repair=RepairOptions(patience_s=2.0))
        run = BookieRecovery(
            client, lost, plan, lambda so_far: done.append((so_far.ended, so_far.waiting))
        )
        async with asyncio.timeout(30):
            progress = await run.run()
        assert (progress.failed_count, list(progress.parked)) == (0, [stuck])
        assert progress.ledgers_done == progress.ledgers - 1 > 0
        assert away in progress.parked[stuck]
        # Others were counted before the one that is stuck ended.
        assert (progress.ledgers - 1, 0) in done or (progress.ledgers - 1, 1) in done
        words = ("bookie", "recover", lost, "--patience", "1")
        code, answer, said = await cli.answer_async(*words)
        assert (code, answer["ledgers"], answer["parked"]) == (75, 1, 1)
        assert f"ledger {stuck} still names {lost}; parked: " in said
        assert away in said
        await cluster.start_bookie_async(names.index(away))
        code, answer, said = await cli.answer_async(*words)
        assert (code, answer["done"], answer["parked"]) == (0, 1, 0), said
        found = [one async for one in under_replicated(client)]
        assert found == []
    await check_all(uri, [stuck, *more])


async def test_an_open_ledger_is_closed_after_its_grace_and_a_second_run_has_nothing_to_do(
    cluster: LocalCluster,
) -> None:
    options = {"delayed_ensemble_change": True}
    async with fastbk.connect(cluster.metadata_uri, **options) as client:
        writer = await client.create_ledger(3, 3, 2)
        await writer.append_many([data_of(writer.ledger_id, one) for one in range(ENTRIES)])
        lost = writer.metadata.fragments[-1].ensemble[0]
        await cluster.stop_bookie_async([one.name for one in cluster.bookies].index(lost))
        await until_down(client, lost)
        plan = RecoveryPlan(open_ledgers="skip")
        progress = await BookieRecovery(client, lost, plan).run()
        assert progress.failed_count == 1
        assert "open" in progress.failed[writer.ledger_id]
        progress = await BookieRecovery(client, lost, RecoveryPlan(grace_s=0.2)).run()
        assert progress.is_whole, progress.failed
        with pytest.raises(LedgerFenced):
            await writer.append(b"too late")
        again = await BookieRecovery(client, lost, RecoveryPlan()).run()
        assert (again.ledgers, again.entries_copied) == (0, 0)
        found = [one async for one in under_replicated(client)]
        assert found == []
    await check_all(cluster.metadata_uri, [writer.ledger_id])


async def test_a_mark_is_reported_until_a_repair_has_verified_the_copies(
    cluster: LocalCluster,
) -> None:
    uri = cluster.metadata_uri
    cli = Cli(uri)
    async with fastbk.connect(uri) as client:
        ledger_id = await fill(client, ensemble=3, write_quorum=2)
        other_id = await fill(client, ensemble=3, write_quorum=2)
        deleted_id = await fill(client, ensemble=3, write_quorum=2)
        (first, *_), (second, *_), _ = [
            (await client.ledger_info(one)).metadata.fragments[0].ensemble
            for one in (ledger_id, other_id, deleted_id)
        ]
        code, answer, _ = await cli.answer_async("cluster", "under-replicated")
        assert (code, answer["missing"], answer["known"]["auditor"]) == (1, [], None), (
            "nobody looks"
        )
        await client.marks.update(ledger_id, add=[MissingReplica(first, 10, 19, "it was away")])
        await client.marks.update(other_id, add=[MissingReplica(second, 0)])
        await client.marks.update(deleted_id, add=[MissingReplica(first, 0)])
        await client.delete_ledger(deleted_id)

        code, found, _ = await cli.answer_async("cluster", "under-replicated")
        assert code == 1
        by_ledger = {one["ledger_id"]: one for one in found["missing"]}
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
        words = ("cluster", "under-replicated", "--verify")
        assert (await cli.answer_async(*words))[:2] == (0, {"missing": []})


async def test_a_repair_of_an_open_ledger_keeps_the_mark_of_what_it_did_not_verify(
    cluster: LocalCluster,
) -> None:
    async with fastbk.connect(cluster.metadata_uri) as client:
        async with await client.create_ledger(3, 3, 2) as writer:
            await writer.append(b"x")
            bookie_id = writer.metadata.fragments[0].ensemble[0]
            await client.marks.update(writer.ledger_id, add=[MissingReplica(bookie_id, 0)])
            await BookieRepair(client, bookie_id).run()
            assert len(await client.marks.list()) == 1
        await BookieRepair(client, bookie_id).run()
        assert await client.marks.list() == []


async def test_repair_and_recovery_remove_marks_that_metadata_does_not_expect_any_more(
    cluster: LocalCluster,
) -> None:
    """Apache's AutoRecovery names other bookies, its clients delete ledgers. Our marks stayed."""
    async with fastbk.connect(cluster.metadata_uri) as client:
        closed_id = await fill(client, ensemble=3, write_quorum=2)
        deleted_id = await fill(client, ensemble=3, write_quorum=2)
        await client.delete_ledger(deleted_id)
        named = (await client.ledger_info(closed_id)).metadata.fragments[0].ensemble
        other, _ = {one.name for one in cluster.bookies}.difference(named)
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


async def test_what_a_lost_bookie_held_is_copied_and_the_next_loss_is_survived(
    cluster: LocalCluster,
) -> None:
    uri = cluster.metadata_uri
    cli = Cli(uri)
    async with fastbk.connect(uri) as client:
        shapes = [(3, 3), (3, 2), (4, 3), (4, 2)]
        ledger_ids = [
            await fill(client, ensemble=size, write_quorum=quorum) for size, quorum in shapes * 3
        ]
        _, answer, _ = await cli.answer_async("cluster", "status")
        assert (answer["bookies"]["up"], faults(answer)) == (5, [])
        code, _, said = await cli.answer_async("bookie", "recover", "bookie-1")
        assert code == 2
        assert "is alive: stop it first" in said
        code, answer, said = await cli.answer_async("bookie", "recover", "bookie-9")
        assert (code, answer) == (2, None)
        assert "no bookie bookie-9" in said
        assert "bookie-1, bookie-2" in said

        await cluster.kill_async(0)
        # Its registration ends with its lease.
        await until_down(client, "bookie-1")
        code, answer, _ = await cli.answer_async("cluster", "status")
        assert (code, answer["bookies"]["down"]) == (1, 1)
        code, answer, _ = await cli.answer_async("cluster", "bookies")
        assert {one["bookie_id"]: one["state"] for one in answer}["bookie-1"] == "down"
        assert answer[1]["info"]["disk_total_bytes"] > 0
        code, answer, _ = await cli.answer_async("cluster", "under-replicated", "--verify")
        named = {one["ledger_id"] for one in answer["missing"]}
        assert code == 1
        assert named

        words: tuple[str, ...] = ("bookie", "recover", "bookie-1", "--dry-run")
        code, answer, _ = await cli.answer_async(*words)
        assert (code, answer["ledgers"]) == (0, len(named))
        words = ("bookie", "decommission", "bookie-1", "--yes", "--rate", "50MiB")
        code, answer, said = await cli.answer_async(*words)
        assert (code, answer["done"], answer["failed"]) == (0, len(named), 0), said
        assert answer["entries_copied"] > 0
        assert answer["decommissioned"] is True

        words = ("cluster", "under-replicated", "--verify")
        code, answer, _ = await cli.answer_async(*words)
        assert (code, answer) == (0, {"missing": []})
        _, answer, _ = await cli.answer_async("cluster", "status")
        assert (answer["bookies"]["down"], faults(answer)) == (0, [])
    # With all copies back another loss is one that every ledger survives.
    await cluster.kill_async(1)
    await check_all(uri, ledger_ids)
