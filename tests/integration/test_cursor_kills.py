"""A cursor on real bookies whose holder is killed at any moment: nothing that was kept is lost (INV-S8, INV-S10)."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys

import fastbk
from fastbk.stream.cursor.store import cursors_of
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.records import Record
from fastbk.testing import LocalCluster

RECORDS = 3000
HOLD = """
import asyncio, sys
import fastbk

async def main(uri):
    async with fastbk.connect(uri) as client:
        async with client.namespace("test").stream("s").cursor("c", flush_acks=20, tail=False) as cursor:
            print("began", cursor.mark_seq, cursor.epoch, flush=True)
            async for record in cursor:
                assert bytes(record.payload) == b"%d" % record.seq
                print("acked", record.seq, flush=True)
                kept = cursor.ack(record, data={"seq": record.seq})
                if record.seq % 3 == 0:
                    await kept
                    print("kept", record.seq, flush=True)
        print("closed", flush=True)

asyncio.run(main(sys.argv[1]))
"""


async def hold(uri: str, lines: int) -> list[tuple[str, int]]:
    """Let a process hold the cursor until it has said so many lines, and kill it; return all that it said."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLD, uri, stdout=subprocess.PIPE
    )
    said: list[bytes] = []
    try:
        assert process.stdout is not None
        for _ in range(lines):
            line = await asyncio.wait_for(process.stdout.readline(), 30)
            if not line:
                break
            said.append(line)
    finally:
        if process.returncode is None:
            process.kill()
        rest, _ = await process.communicate()
    # The last line may be cut off.
    told = [*said, *rest.splitlines(keepends=True)]
    words = [line.split() for line in told if line.endswith(b"\n")]
    return [(word[0].decode(), int(word[1])) for word in words if len(word) > 1]


async def test_marks_outlive_holders_that_are_killed(
    fastbk_cluster: LocalCluster, rng: random.Random
) -> None:
    uri = fastbk_cluster.metadata_uri
    async with fastbk.connect(uri) as client:
        namespace = client.namespace("test")
        await namespace.create(PolicyPatch(roll_bytes=40_000))
        stream = await namespace.create_stream("s")
        async with stream.writer() as writer:
            for at in range(RECORDS):
                writer.append(b"%d" % at)
                await writer.ready()
        kept = acked = -1
        seen: set[int] = set()
        had_ledger = 0
        for epoch in range(1, 9):
            said = await hold(uri, rng.randint(5, 400))
            (began,) = (seq for what, seq in said if what == "began")
            assert kept < max(began, 0) <= acked + 1 or epoch == 1, "INV-S10"
            took = [seq for what, seq in said if what == "acked"]
            assert took == list(range(max(began, 0), max(began, 0) + len(took))), (
                "in order, none left out"
            )
            seen |= set(took)
            acked = max([acked, *took])
            kept = max([kept, *(seq for what, seq in said if what == "kept")])
            context = await stream.context()
            (info,) = await cursors_of(client.records, context.stream_id)
            assert info.epoch == epoch
            had_ledger += bool(info.ledgers)
            listed = {one.ledger_id async for one in client.list_ledgers()}
            chain = (await context.store.read()).chain
            assert listed <= {*info.ledgers, *(row.ledger_id for row in chain.rows)}, "INV-S8"
        assert had_ledger > 3, "each kept enough for a ledger"
        async with stream.cursor("c", tail=False) as cursor:
            assert kept < cursor.mark_seq <= acked + 1, "INV-S10"
            assert cursor.data == {"seq": cursor.mark_seq - 1}
            backlog = await cursor.backlog()
            assert backlog.records == RECORDS - cursor.mark_seq and backlog.seconds > 0
            async for record in cursor:
                assert isinstance(record, Record)
                seen.add(record.seq)
                cursor.ack(record)
        assert seen == set(range(RECORDS))
        (info,) = await stream.cursors()
        assert (info.mark_seq, info.ledgers) == (RECORDS, ())
        assert await stream.delete_cursor("c")
        assert await stream.cursors() == []
        rows = (await context.store.read()).chain.rows
        left = [one.ledger_id async for one in client.list_ledgers()]
        assert left == [row.ledger_id for row in rows], "INV-S8: no ledger of the cursor is left"
