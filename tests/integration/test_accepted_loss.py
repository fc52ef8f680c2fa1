"""A ledger whose writer is gone, and two bookies of a write set: read it, and close it by accepting losses."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

import fastbk
from fastbk import LedgerWriter
from fastbk.errors import ClientClosed, NotEnoughBookies
from fastbk.model.ledger import LedgerState
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.registrations import until_down
from tests.fixtures.shared_cluster import renewed_cluster

pytestmark = pytest.mark.waits

ENTRIES = 60


BOOKIES = 4
cluster = renewed_cluster


async def test_a_ledger_whose_entries_lie_on_healthy_bookies_can_be_read_and_closed(
    cluster: LocalCluster,
) -> None:
    uri = cluster.metadata_uri
    cli = Cli(uri)
    async with fastbk.connect(uri) as client:
        writer = await client.create_ledger(4, 3, 2)
        await writer.append_many([b"%d\n" % one for one in range(ENTRIES)])
        ledger_id = writer.ledger_id
        ensemble = writer.metadata.fragments[0].ensemble
        await writer.write_last_add_confirmed()
        writer.abandon(ClientClosed("the writer is gone"))
        names = [one.name for one in cluster.bookies]
        for lost in ensemble[:2]:
            await cluster.kill_async(names.index(lost))
            await until_down(client, lost)

        with pytest.raises(NotEnoughBookies):
            await client.open_ledger(ledger_id)
        code, _, said = await cli.answer_async("ledger", "recover", str(ledger_id))
        assert code != 0 and "--accept-loss --dry-run" in said

        words = ("cluster", "under-replicated", "--verify")
        code, answer, _ = await cli.answer_async(*words)
        told = [one for one in answer["missing"] if "too few bookies answer" in one["reason"]]
        assert code == 1 and {one["bookie_id"] for one in told} == set(ensemble[:2])
        out = await asyncio.to_thread(cli.raw, "ledger", "read", str(ledger_id), "--raw")
        assert out.split() == [b"%d" % one for one in range(ENTRIES)]
        assert "later entries may have been" in cli.err

        words = ("ledger", "close", str(ledger_id), "--accept-loss")
        code, answer, said = await cli.answer_async(*words, "--dry-run")
        assert (code, answer["last_entry_id"]) == (0, ENTRIES - 1), said
        assert answer["given_up"] == [[ENTRIES, ENTRIES]] and answer["may_still_acknowledge"]
        assert sorted(answer["unanswered"]) == sorted(ensemble[:2])
        code, answer, said = await cli.answer_async(*words)
        assert code == 2 and "--yes" in said, "it asks"
        code, answer, said = await cli.answer_async(*words, "--yes")
        assert code == 0, said
        assert answer["recovered"][0]["entries"] == ENTRIES
        reader = await client.open_ledger(ledger_id)
        found = [bytes(one.data) async for one in reader.read()]
        assert found == [b"%d\n" % one for one in range(ENTRIES)]
        assert [one.ledger_id for one in await client.marks.list()] == [ledger_id]
        code, answer, _ = await cli.answer_async("ledger", "show", str(ledger_id))
        assert "given_up" in answer["metadata"]["fastbk.accepted-loss"]


async def test_ledgers_whose_writers_are_gone_are_listed_and_no_others(
    cluster: LocalCluster,
) -> None:
    async with fastbk.connect(cluster.metadata_uri) as client:
        cli = Cli(cluster.metadata_uri)

        async def written(ensemble: int, write_quorum: int, ack_quorum: int) -> LedgerWriter:
            writer = await client.create_ledger(ensemble, write_quorum, ack_quorum)
            await writer.append(b"x")
            return writer

        idle, empty = await written(3, 3, 2), await client.create_ledger(3, 3, 2)
        closed, deleted = await written(3, 3, 2), await written(3, 3, 2)
        await closed.close()
        recovering, busy, lost = (
            await written(3, 3, 2),
            await written(3, 3, 2),
            await written(1, 1, 1),
        )
        while lost.metadata.fragments[0].ensemble[0] in busy.metadata.fragments[0].ensemble:
            lost = await written(1, 1, 1)
        for one in (idle, empty, recovering, lost):
            one.abandon(ClientClosed("the writer is gone"))
        info = await client.ledger_info(recovering.ledger_id)
        begun = replace(info.metadata, state=LedgerState.IN_RECOVERY)
        await client.call_store(
            lambda store: store.update_ledger(info.ledger_id, begun, info.version)
        )
        gone = lost.metadata.fragments[0].ensemble[0]
        await cluster.kill_async([one.name for one in cluster.bookies].index(gone))
        await until_down(client, gone)

        code, answer, _ = await cli.answer_async("ledger", "list", "--open")
        reasons = {one["ledger_id"]: one["why"] for one in answer["ledgers"]}
        expected = {one.ledger_id for one in (idle, empty, deleted, recovering, busy, lost)}
        assert code == 0 and expected <= reasons.keys() and closed.ledger_id not in reasons
        assert reasons[recovering.ledger_id] == "IN_RECOVERY" and reasons[idle.ledger_id] == "OPEN"

        words = ("ledger", "list", "--abandoned", "--idle-for", "3")
        listing = asyncio.create_task(cli.answer_async(*words))
        await busy.append(b"x")
        await client.delete_ledger(deleted.ledger_id)
        while not listing.done():
            await busy.append(b"x")
            await asyncio.sleep(0.02)
        code, answer, said = await listing
        reasons = {one["ledger_id"]: one["why"] for one in answer["ledgers"]}
        assert code == 0, said
        assert {
            one: reasons.get(one.ledger_id) for one in (busy, closed, deleted)
        } == dict.fromkeys((busy, closed, deleted))
        assert reasons[recovering.ledger_id] == "IN_RECOVERY"
        for one in (idle, empty):
            assert reasons[one.ledger_id] == "open, and nothing was acknowledged for 3 s"
        assert reasons[lost.ledger_id] == "open, and no bookie told its last add confirmed"
        code, _, said = await cli.answer_async("ledger", "list", "--abandoned", "--idle-for", "0")
        assert code == 2 and "--idle-for must be above 0" in said
