"""The LAC on a real bookie: explicit, in entries, waited for; and what a bookie takes that takes no normal adds."""

from __future__ import annotations

import asyncio
import time

from fastbk.model.entry import DigestType, make_lac_body
from fastbk.native import client_codec as codec
from fastbk.testing import LocalCluster
from fastbk.wire.statuses import Status
from tests.fixtures.raw_bookie import KEY, raw_bookie

LAST_ID = 2**63 - 1
POLL_MS = 30_000
SETTINGS = {"gc": {"interval": "1h"}, "ledgers": {"waiters_max": 8}}


async def test_explicit_lacs_and_long_polls() -> None:
    async with LocalCluster(1, settings=SETTINGS) as cluster:
        writer = await raw_bookie(cluster.bookies[0])
        reader = await raw_bookie(cluster.bookies[0])

        def poll(ledger_id: int, previous: int, flags: int = 0) -> asyncio.Future:
            return asyncio.ensure_future(
                reader.ask(codec.put_read_lac, ledger_id, previous, POLL_MS, flags)
            )

        async def write_lac(ledger_id: int, lac: int, key: bytes = KEY) -> int:
            body = make_lac_body(ledger_id, lac, DigestType.CRC32C)
            return await writer.status(codec.put_write_lac, ledger_id, lac, key, body)

        # A ledger that a later add creates; the entry behind the LAC that the reader had comes with the answer.
        waiting = poll(5, -1, codec.FLAG_PIGGYBACK)
        assert await write_lac(5, 0) == Status.NO_LEDGER
        assert await writer.add(5, 0, b"zero") == Status.OK
        assert not waiting.done()
        assert await writer.add(5, 1, b"one", lac=0) == Status.OK
        answer = await waiting
        assert (answer.status, answer.lac, answer.entry_id, answer.fenced) == (
            Status.OK,
            0,
            0,
            False,
        )
        assert answer.entries.endswith(b"zero")
        # An explicit LAC wakes, too; an older one and a wrong key change nothing.
        waiting = poll(5, 0)
        assert await write_lac(5, 0) == Status.OK
        assert await write_lac(5, 9, b"x" * 20) == Status.UNAUTHORIZED
        assert not waiting.done()
        assert await write_lac(5, 1) == Status.OK
        answer = await waiting
        assert (answer.lac, answer.extra) == (1, make_lac_body(5, 1, DigestType.CRC32C))
        # A fence: nothing more will come, and whoever asks later need not wait.
        waiting = poll(5, 1)
        assert await writer.fence(5) == Status.OK
        answer = await waiting
        assert (answer.lac, answer.fenced) == (1, True)
        assert (await poll(5, 1)).fenced
        # Not for ever, and not too many.
        began_s = time.monotonic()
        answer = await reader.ask(codec.put_read_lac, 6, -1, 50)
        assert answer.status == Status.NO_LEDGER
        assert time.monotonic() - began_s >= 0.05
        assert await reader.status(codec.put_read_lac, 6, -1, 60_001) == Status.BAD_REQUEST
        polls = [poll(7, LAST_ID - 1) for _ in range(9)]
        done, _ = await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED, timeout=10)
        assert [task.result().status for task in done] == [Status.TOO_MANY_REQUESTS]
        assert await writer.add(7, LAST_ID, b"last", lac=LAST_ID - 1) == Status.OK
        assert sum(not task.done() for task in polls) == 8, "that is not above what they have"
        reader.close()
        await asyncio.gather(*polls, return_exceptions=True)
        writer.close()
