"""One byte flipped in a journal of a real bookie: an operator repairs it, and nothing of it is left (INV-X6).

A roll is possible again: test_operator_walk.
"""

from __future__ import annotations

import fastbk
from fastbk.devcluster import Bookie
from fastbk.errors import Error
from fastbk.native import client_codec as codec
from fastbk.testing import LocalCluster
from fastbk.wire.statuses import Status
from tests.fixtures.cli import Cli
from tests.fixtures.raw_bookie import raw_bookie
from tests.fixtures.wait import wait_until_async

ENTRIES = 40
SICK = 2
SETTINGS = {"gc": {"interval": "200ms"}, "ledgers": {"flush_interval": "1h"}}


def data_of(ledger_id: int, entry_id: int) -> bytes:
    return b"entry %d of ledger %d, " % (entry_id, ledger_id) * 4


async def fill(client: fastbk.Client, *quorums: int) -> int:
    """A closed ledger, appended one entry after the other: each lies in a batch of its own."""
    async with await client.create_ledger(*quorums) as writer:
        for entry_id in range(ENTRIES):
            await writer.append(data_of(writer.ledger_id, entry_id))
        return writer.ledger_id


async def read_whole(client: fastbk.Client, ledger_id: int) -> None:
    reader = await client.open_ledger(ledger_id)
    found = [bytes(one.data) async for one in reader.read(0, ENTRIES - 1)]
    assert found == [data_of(ledger_id, entry_id) for entry_id in range(ENTRIES)]


def flip_one_byte(bookie: Bookie, of_entry: bytes) -> None:
    """Turn over one bit of an entry where it lies in the journal; the bookie does not run."""
    for path in sorted((bookie.directory / "journal").glob("*.journal")):
        raw = bytearray(path.read_bytes())
        at = raw.find(of_entry)
        if at >= 0:
            raw[at + 3] ^= 1
            path.write_bytes(raw)
            return
    raise AssertionError("the journal does not hold that entry any more")


async def test_a_flipped_byte_in_a_journal_is_repaired_and_forgotten() -> None:
    async with LocalCluster(3, settings=SETTINGS) as cluster:
        uri, sick = cluster.metadata_uri, cluster.bookies[SICK]
        cli = Cli(uri)
        async with fastbk.connect(uri) as client:
            whole = await fill(client, 3, 3, 2)
            striped = await fill(client, 3, 2, 2)
            fenced = await client.create_ledger(3, 3, 2)
            await fenced.append(b"before the fence")
            await (await client.open_ledger(fenced.ledger_id)).close()
            await cluster.kill_async(SICK)
            flip_one_byte(sick, data_of(whole, 7))
            sick.sections["ledgers"]["flush_interval"] = "200ms"
            await cluster.start_bookie_async(SICK)
            assert '"journal.damaged"' in sick.log_path.read_text()
            assert '"damage.in_limbo"' in sick.log_path.read_text(), "the record has ended"
            raw = await raw_bookie(sick)
            add = await raw.add(fenced.ledger_id, 1, b"an old writer's")
            assert add == Status.FENCED
            assert await raw.status(codec.put_read, whole, ENTRIES) == Status.CANNOT_TELL
            assert await raw.status(codec.put_read, 987654, 0) == Status.NO_LEDGER
            await read_whole(client, whole)

            words = ("bookie", "repair", sick.name)
            code, answer, said = await cli.answer_async(*words)
            assert (code, answer["entries_lost"]) == (0, 0), said
            assert answer["entries_copied"] > 0
            code, answer, said = await cli.answer_async(*words)
            assert (code, answer["entries_copied"]) == (0, 0), "also while it is still in limbo"

            async def is_over() -> bool:
                statuses = [
                    await raw.status(codec.put_read, one, ENTRIES)
                    for one in (whole, striped, fenced.ledger_id)
                ]
                return statuses == [Status.NO_ENTRY] * 3

            await wait_until_async(is_over, "all ledgers are out of limbo")
            new = await fill(client, 3, 3, 3)
            assert await raw.status(codec.put_read, new, ENTRIES) == Status.NO_ENTRY
            assert await raw.add(fenced.ledger_id, 1, b"an old writer's") == Status.FENCED
            raw.close()
            code, answer, said = await cli.answer_async("cluster", "under-replicated", "--verify")
            assert (code, answer["missing"]) == (0, []), said
            code, answer, said = await cli.answer_async(*words)
            assert (code, answer["entries_copied"]) == (0, 0), said

            code, answer, said = await cli.answer_async("ledger", "audit")
            assert (code, answer["is_whole"]) == (0, True), said
            for ledger_id in (whole, striped, new):
                await read_whole(client, ledger_id)
            try:
                await fenced.append(b"an old writer's")
            except Error:
                pass
            else:
                raise AssertionError("a fenced ledger has taken an add")
