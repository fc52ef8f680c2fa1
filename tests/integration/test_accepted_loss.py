"""A ledger whose writer is gone, and two bookies of a write set: read it, and close it by accepting losses."""

from __future__ import annotations

import asyncio

import pytest

import fastbk
from fastbk.errors import ClientClosed, NotEnoughBookies
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.registrations import until_down

ENTRIES = 60


async def test_a_ledger_whose_entries_lie_on_healthy_bookies_can_be_read_and_closed() -> None:
    async with LocalCluster(5) as cluster:
        uri = cluster.metadata_uri
        cli = Cli(uri)
        async with fastbk.connect(uri) as client:
            writer = await client.create_ledger(5, 3, 2)
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
