"""The steps of requests by Apache's names: how many of each, and that their times add up to those of the whole."""

from __future__ import annotations

import time

from fastbk.model.entry import master_key
from fastbk.native import client_codec as codec
from fastbk.testing import LocalCluster
from fastbk.wire.statuses import Status
from tests.fixtures import apache_wire as apache
from tests.fixtures.apache_wire import LEDGER
from tests.fixtures.exposition import Exposition, scraped
from tests.fixtures.raw_bookie import raw_bookie
from tests.integration.test_apache_metrics_sums import POLL_MS, ask_v2, ask_v3, connected, entry

KEY = master_key(b"")
SERVER = "bookkeeper_server_"
JOURNAL = "bookie_journal_JOURNAL_"
CLOCK_MS = 0.01
"""Steps are timed by two processes, each to whole microseconds."""


def ends(shown: Exposition, name: str) -> tuple[float, float]:
    """How many went well, and how many did not."""
    good, bad = (shown.value(f"{name}_count", success=one) for one in ("true", "false"))
    return good, bad


def time_of(shown: Exposition, *names: str) -> float:
    """Milliseconds of all of these, however they ended."""
    return sum(
        value
        for (name, _), value in shown.samples.items()
        if name in {f"{one}_sum" for one in names}
    )


async def test_recovery_adds_are_told_apart_over_all_protocols() -> None:
    async with LocalCluster(1) as cluster:
        own = await raw_bookie(cluster.bookies[0])
        other = await connected(cluster)
        for entry_id in range(3):
            assert await own.add(LEDGER, entry_id, b"hello", lac=entry_id - 1) == Status.OK
        assert await own.fence(LEDGER) == Status.OK
        assert await own.add(LEDGER, 3, b"late") == Status.FENCED
        assert await own.add(LEDGER, 3, b"new", lac=2, recovery=True) == Status.OK
        assert await own.add(LEDGER, 1, b"hello", lac=0, recovery=True) == Status.OK, "it is there"
        assert await own.add(LEDGER, 1, b"other", lac=0, recovery=True) == Status.CONFLICT
        assert await own.add(LEDGER, 4, b"new", password=b"x", recovery=True) == Status.UNAUTHORIZED
        again = apache.v2_add(0, flags=apache.V2_RECOVERY, body=entry(5), key=KEY)
        assert await ask_v2(other, again) == [0]
        third = await connected(cluster)
        assert await ask_v3(third, apache.v3_add(1, 6, body=entry(6), key=KEY, recovery=True)) == [
            0
        ]
        shown = await scraped(cluster)
        for client in (other, third):
            await client.close()
        own.close()
    assert ends(shown, "bookie_BOOKIE_RECOVERY_ADD_ENTRY") == (4, 2)
    assert ends(shown, "bookie_BOOKIE_ADD_ENTRY") == (3, 1)
    assert ends(shown, f"{SERVER}ADD_ENTRY_REQUEST") == (7, 3)
    apart = time_of(shown, "bookie_BOOKIE_RECOVERY_ADD_ENTRY", "bookie_BOOKIE_ADD_ENTRY")
    assert abs(apart - time_of(shown, f"{SERVER}ADD_ENTRY_REQUEST")) < 1e-6


async def test_fences_and_polls_by_their_steps() -> None:
    fence, poll = f"{SERVER}READ_ENTRY_FENCE_", f"{SERVER}READ_ENTRY_LONG_POLL_"
    async with LocalCluster(1) as cluster:
        client, other = await connected(cluster), await connected(cluster)
        for number in (0, 1, 3):  # 2 lies elsewhere
            assert await ask_v3(
                client, apache.v3_add(number, number, body=entry(number), key=KEY)
            ) == [0]
        client.send(apache.v3_read(4, -1, flag=apache.PIGGYBACK, previous_lac=2, timeout_ms=30_000))
        assert await ask_v3(other, apache.v3_add(5, 4, body=entry(4), key=KEY)) == [0]
        assert (await apache.hear_v3(client)).status == 0
        late = apache.v3_read(6, -1, flag=apache.PIGGYBACK, previous_lac=9, timeout_ms=POLL_MS)
        assert await ask_v3(client, late) == [0]
        early = apache.v3_read(7, -1, flag=apache.PIGGYBACK, previous_lac=1, timeout_ms=30_000)
        assert await ask_v3(client, early) == [0], "at once, but without the entry"
        for number, ledger_entry in ((8, -1), (9, 0), (10, 77)):
            frame = apache.v3_read(number, ledger_entry, flag=apache.FENCE, key=KEY)
            assert await ask_v3(client, frame) == [0 if ledger_entry < 77 else 403]
        shown = await scraped(cluster)
        for one in (client, other):
            await one.close()
    assert ends(shown, f"{poll}REQUEST") == ends(shown, f"{poll}READ") == (3, 0)
    assert shown.value(f"{poll}PRE_WAIT_count") == 3
    assert ends(shown, f"{poll}WAIT") == (1, 1)
    assert shown.value(f"{poll}WAIT_sum", success="false") >= POLL_MS
    steps = time_of(shown, f"{poll}PRE_WAIT", f"{poll}WAIT", f"{poll}READ")
    assert 0 < steps <= time_of(shown, f"{poll}REQUEST") + 3 * CLOCK_MS
    assert shown.value(f"{SERVER}READ_LAST_ENTRY_NOENTRY_ERROR") == 1
    assert ends(shown, f"{fence}REQUEST") == ends(shown, f"{fence}READ") == (2, 1)
    assert shown.value(f"{fence}WAIT_count") == 3
    steps = time_of(shown, f"{fence}WAIT", f"{fence}READ")
    assert 0 < steps <= time_of(shown, f"{fence}REQUEST") + 3 * CLOCK_MS


async def test_reads_wait_in_a_ring_and_records_for_their_batch() -> None:
    async with LocalCluster(1) as cluster:
        own = await raw_bookie(cluster.bookies[0])
        for entry_id in range(50):
            assert await own.add(LEDGER, entry_id, b"hello", lac=entry_id - 1) == Status.OK
        for entry_id in range(20):
            assert await own.read(LEDGER, entry_id) == b"hello"
        assert await own.status(codec.put_read_batch, LEDGER, 0, 5, 6, 1 << 20) == Status.OK
        assert await own.fence(LEDGER) == Status.OK
        shown = await scraped(cluster)
        own.close()
    assert shown.value(f"{SERVER}READ_ENTRY_SCHEDULING_DELAY_count") == 21
    read = time_of(shown, f"{SERVER}READ_ENTRY_REQUEST")
    assert 0 < time_of(shown, f"{SERVER}READ_ENTRY_SCHEDULING_DELAY") <= read + 21 * CLOCK_MS
    assert shown.value(f"{JOURNAL}QUEUE_LATENCY_count") == 51, "the fence too"
    asked = time_of(shown, f"{SERVER}ADD_ENTRY_REQUEST", f"{SERVER}READ_ENTRY_FENCE_REQUEST")
    assert 0 < time_of(shown, f"{JOURNAL}QUEUE_LATENCY") <= asked
    why = ("EMPTY_QUEUE", "MAX_OUTSTANDING_BYTES", "MAX_WAIT")
    reasons = [shown.value(f"{JOURNAL}NUM_FLUSH_{one}") for one in why]
    assert reasons == [shown.value("fastbk_journal_batches_total"), 0, 0]
    for one in ("count", "sum"):
        grouped = shown.value(f"{JOURNAL}FORCE_WRITE_GROUPING_TOTAL_{one}", success="true")
        assert grouped == shown.value(f"{JOURNAL}FORCE_WRITE_BATCH_ENTRIES_{one}", success="true")
    made = shown.value("fastbk_journal_files_made_total") + shown.value(
        "fastbk_journal_files_recycled_total"
    )
    assert made - 1 <= shown.value(f"{JOURNAL}CREATION_LATENCY_count") <= made, (
        "one may be under way"
    )
    assert shown.value(f"{JOURNAL}CREATION_LATENCY_sum") > 0


async def test_batches_end_because_they_are_full_or_have_all_there_is() -> None:
    settings: dict[str, dict[str, object]] = {"journal": {"batch_size_max": "16KiB"}}
    async with LocalCluster(1, settings=settings) as cluster:
        client = await connected(cluster)
        adds = [apache.v2_add(number, data=b"x" * 4000, key=KEY) for number in range(400)]
        assert await ask_v2(client, *adds) == [0] * 400
        shown = await scraped(cluster)
        await client.close()
    full = shown.value(f"{JOURNAL}NUM_FLUSH_MAX_OUTSTANDING_BYTES")
    empty = shown.value(f"{JOURNAL}NUM_FLUSH_EMPTY_QUEUE")
    batches = shown.value("fastbk_journal_batches_total")
    assert full > 0
    assert empty > 0
    assert full + empty == batches >= 400 / 4


async def test_connections_wait_for_their_turn_with_the_next_add_or_read() -> None:
    """One request of each kind at a time: of twenty that come together, nineteen wait, one after the other."""
    waits = (f"{SERVER}ADD_ENTRY_BLOCKED_WAIT", f"{SERVER}READ_ENTRY_BLOCKED_WAIT")
    most = {"apache_adds_in_progress_max": 1, "apache_reads_in_progress_max": 1}
    settings: dict[str, dict[str, object]] = {"network": dict(most)}
    async with LocalCluster(1, settings=settings) as cluster:
        client = await connected(cluster)
        began_s = time.monotonic()
        adds = [apache.v3_add(number, number, body=entry(number), key=KEY) for number in range(20)]
        assert await ask_v3(client, *adds) == [0] * 20
        shown = await scraped(cluster)
        assert [shown.value(f"{name}_count") for name in waits] == [19, 0]
        reads = [apache.v3_read(number, number) for number in range(20)]
        assert await ask_v3(client, *reads) == [0] * 20
        took_ms = 1000 * (time.monotonic() - began_s)
        shown = await scraped(cluster)
        await client.close()
    assert [shown.value(f"{name}_count") for name in waits] == [19, 19]
    assert all(time_of(shown, name) > 0 for name in waits)
    assert time_of(shown, *waits) <= took_ms
