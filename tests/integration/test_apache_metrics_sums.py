"""A known number of requests of each kind over three protocols, found exactly in Apache's names (INV-O1).

The times of their steps add up to those of the whole.
"""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Iterator

import pytest

from fastbk.model.entry import master_key
from fastbk.native import client_codec as codec
from fastbk.testing import LocalCluster
from fastbk.wire.statuses import Status
from tests.fixtures import apache_wire as apache
from tests.fixtures.apache_wire import LEDGER, hear_v2, hear_v3, whole_entry
from tests.fixtures.exposition import Exposition, scraped
from tests.fixtures.raw_bookie import raw_bookie
from tests.fixtures.wait import wait_until_async
from tests.fixtures.worker_harness import Client, connected

KEY = master_key(b"")
SERVER = "bookkeeper_server_"
JOURNAL = "bookie_journal_JOURNAL_"
CLOCK_MS = 0.01
"""Steps are timed by two processes, each to whole microseconds."""
POLL_MS = 50
_ledger_ids = itertools.count(100)

NAMES = {
    "adds": ["ADD_ENTRY", "ADD_ENTRY_REQUEST"],
    "reads": ["READ_ENTRY", "READ_ENTRY_REQUEST"],
    "fences": ["READ_ENTRY_FENCE_REQUEST"],
    "polls": ["READ_ENTRY_LONG_POLL_REQUEST"],
    "lac_reads": ["READ_LAC", "READ_LAC_REQUEST"],
    "lac_writes": ["WRITE_LAC", "WRITE_LAC_REQUEST"],
    "forces": ["FORCE_LEDGER", "FORCE_LEDGER_REQUEST"],
    "lists": ["GET_LIST_OF_ENTRIES_OF_LEDGER", "GET_LIST_OF_ENTRIES_OF_LEDGER_REQUEST"],
    "infos": ["GET_BOOKIE_INFO", "GET_BOOKIE_INFO_REQUEST"],
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """One bookie for the tests that look at what they added to its counters."""
    with LocalCluster(1) as made:
        yield made


@pytest.fixture
def ledger_id(monkeypatch: pytest.MonkeyPatch) -> int:
    """A ledger of this test's own, which its frames name."""
    monkeypatch.setattr(apache, "used_ledger_id", next(_ledger_ids))
    return apache.used_ledger_id


def counts(shown: Exposition) -> dict[str, tuple[int, int]]:
    """Of each kind of request: how many went well, and how many did not; all its names say the same."""
    found = {}
    for kind, names in NAMES.items():
        both = {
            tuple(
                int(shown.value(f"{SERVER}{name}_count", success=one)) for one in ("true", "false")
            )
            for name in names
        }
        assert len(both) == 1, (kind, both)
        good, bad = both.pop()
        found[kind] = (good, bad)
    return found


async def ask_v2(client: Client, *frames: bytes) -> list[int]:
    client.send(b"".join(frames))
    return [(await hear_v2(client)).error for _ in frames]


async def ask_v3(client: Client, *frames: bytes) -> list[int]:
    client.send(b"".join(frames))
    return [(await hear_v3(client)).status for _ in frames]


async def until_a_poll_waits(cluster: LocalCluster) -> None:
    """What another connection adds would be there before it otherwise, and answer it at once."""

    async def waits() -> bool:
        return (await scraped(cluster, "?names=fastbk")).value("fastbk_index_waiters") == 1

    await wait_until_async(waits, "the index has the long poll")


async def test_version_2(cluster: LocalCluster, ledger_id: int) -> None:
    before = await scraped(cluster)
    client = await connected(cluster.bookies[0].port)
    adds = [apache.v2_add(0, body=whole_entry(i), key=KEY) for i in range(7)]
    stranger = apache.v2_add(0, body=whole_entry(7), key=b"x" * 20)
    assert await ask_v2(client, *adds, stranger) == [0] * 7 + [102]
    reads = [apache.v2_read(i) for i in (0, 6, -1, 7)]
    assert await ask_v2(client, *reads) == [0, 0, 0, 2]
    assert await ask_v2(client, apache.v2_batch(1, 2, 3), apache.v2_batch(2, 9, 1)) == [0, 2]
    fence = apache.v2_read(-1, flags=apache.V2_FENCE, key=KEY)
    assert await ask_v2(client, fence) == [0]
    assert await ask_v2(client, apache.v2_batch(3, 0, 9, flags=apache.V2_FENCE, key=KEY)) == [0]
    late = apache.v2_add(0, body=whole_entry(7), key=KEY)
    assert await ask_v2(client, late, late) == [104, 104]
    shown = (await scraped(cluster)).since(before)
    await client.close()
    nothing = dict.fromkeys(NAMES, (0, 0))
    assert counts(shown) == nothing | {"adds": (7, 3), "reads": (4, 2), "fences": (2, 0)}
    check_sums(shown)


async def test_version_3(cluster: LocalCluster, ledger_id: int) -> None:
    before = await scraped(cluster)
    client, other = (
        await connected(cluster.bookies[0].port),
        await connected(cluster.bookies[0].port),
    )
    assert await ask_v3(client, apache.v3_read_lac(1), apache.v3_list(2)) == [402, 402]
    adds = [apache.v3_add(i, i, body=whole_entry(i), key=KEY) for i in range(4)]
    assert await ask_v3(client, *adds) == [0] * 4
    assert await ask_v3(client, apache.v3_read(1, 0), apache.v3_read(2, 8)) == [0, 403]
    assert await ask_v3(client, apache.v3_read_lac(3), apache.v3_list(4)) == [0, 0]
    # One poll is answered by the entry that comes, one by its time, one has its answer already.
    client.send(apache.v3_read(5, -1, flag=apache.PIGGYBACK, previous_lac=2, timeout_ms=30_000))
    await until_a_poll_waits(cluster)
    assert await ask_v3(other, apache.v3_add(6, 4, body=whole_entry(4), key=KEY)) == [0]
    assert (await hear_v3(client)).status == 0
    late = apache.v3_read(7, -1, flag=apache.PIGGYBACK, previous_lac=9, timeout_ms=POLL_MS)
    assert await ask_v3(client, late) == [0]
    assert await ask_v3(client, apache.v3_read(8, 0, previous_lac=0, timeout_ms=30_000)) == [0]
    write = apache.v3_write_lac(9, 3, body=lac_body(3), key=KEY)
    assert await ask_v3(client, write, apache.v3_force(10)) == [0, 0]
    assert await ask_v3(client, apache.v3_info(11, 3)) == [0]
    fence = apache.v3_read(12, -1, flag=apache.FENCE, key=KEY)
    assert await ask_v3(client, fence) == [0]
    assert await ask_v3(client, apache.v3_add(13, 5, body=whole_entry(5), key=KEY)) == [504]
    shown = (await scraped(cluster)).since(before)
    for one in (client, other):
        await one.close()
    assert counts(shown) == {
        "adds": (5, 1),
        "reads": (1, 1),
        "fences": (1, 0),
        "polls": (3, 0),
        "lac_reads": (1, 1),
        "lac_writes": (1, 0),
        "forces": (1, 0),
        "lists": (1, 1),
        "infos": (1, 0),
    }
    check_sums(shown)
    assert shown.value(f"{SERVER}READ_ENTRY_LONG_POLL_REQUEST_sum", success="true") >= POLL_MS


async def test_our_protocol(cluster: LocalCluster, ledger_id: int) -> None:
    before = await scraped(cluster)
    own = await raw_bookie(cluster.bookies[0])
    assert await own.status(codec.put_read, ledger_id, 0) == Status.NO_LEDGER
    for entry_id in range(6):
        assert await own.add(ledger_id, entry_id, b"hello", lac=entry_id - 1) == Status.OK
    assert await own.add(ledger_id, 6, b"hello", password=b"other") == Status.UNAUTHORIZED
    assert await own.read(ledger_id, 5) == b"hello"
    assert await own.status(codec.put_read, ledger_id, 17) == Status.NO_ENTRY
    assert await own.status(codec.put_read, ledger_id, -2) == Status.BAD_REQUEST
    assert await own.status(codec.put_read_batch, ledger_id, 0, 5, 6, 1 << 20) == Status.OK
    assert await own.status(codec.put_read_lac, ledger_id, -1) == Status.OK
    assert await own.status(codec.put_read_lac, ledger_id, 9, POLL_MS) == Status.OK
    assert await own.status(codec.put_read_lac, ledger_id, 0, 30_000) == Status.OK
    assert await own.status(codec.put_read_lac, 77, 0, 0) == Status.NO_LEDGER
    assert await own.status(codec.put_write_lac, ledger_id, 4, KEY, lac_body(4)) == Status.OK
    assert await own.status(codec.put_force, ledger_id) == Status.OK
    assert await own.status(codec.put_list_entries, ledger_id, 0, 100) == Status.OK
    await own.info()
    assert await own.status(codec.put_ping) == Status.OK
    assert await own.fence(ledger_id) == Status.OK
    assert await own.add(ledger_id, 6, b"late") == Status.FENCED
    shown = (await scraped(cluster)).since(before)
    own.close()
    assert counts(shown) == {
        "adds": (6, 2),
        "reads": (2, 3),
        "fences": (1, 0),
        "polls": (2, 0),
        "lac_reads": (1, 1),
        "lac_writes": (1, 0),
        "forces": (1, 0),
        "lists": (1, 0),
        "infos": (1, 0),
    }
    check_sums(shown)
    assert shown.value(f"{SERVER}READ_ENTRY_LONG_POLL_REQUEST_sum", success="true") >= POLL_MS
    assert shown.value("bookie_BOOKIE_ADD_ENTRY_BYTES_count", success="true") == 6
    assert shown.value("bookie_BOOKIE_ADD_ENTRY_BYTES_sum", success="true") == 6 * (32 + 4 + 5)
    assert shown.value("bookie_BOOKIE_READ_ENTRY_BYTES_count", success="true") == 1 + 6 + 1


def lac_body(lac: int) -> bytes:
    return struct.pack(">qq", apache.used_ledger_id, lac) + b"dgst"


def check_sums(shown: Exposition) -> None:
    """Apache's milliseconds are ours, to the last one."""
    for kind, names in NAMES.items():
        for success, end in (("true", "done"), ("false", "failed")):
            ours = f"fastbk_worker_{kind}_{end}_seconds_total"
            if success == "true" and kind in ("adds", "reads"):
                ours = f"fastbk_worker_{kind[:-1]}_seconds_sum"
            for name in names:
                summed = shown.value(f"{SERVER}{name}_sum", success=success)
                assert abs(summed - 1000 * shown.value(ours)) < 1e-6, name


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


async def test_recovery_adds_are_told_apart_over_all_protocols(
    cluster: LocalCluster, ledger_id: int
) -> None:
    before = await scraped(cluster)
    own = await raw_bookie(cluster.bookies[0])
    other = await connected(cluster.bookies[0].port)
    for entry_id in range(3):
        assert await own.add(ledger_id, entry_id, b"hello", lac=entry_id - 1) == Status.OK
    assert await own.fence(ledger_id) == Status.OK
    assert await own.add(ledger_id, 3, b"late") == Status.FENCED
    assert await own.add(ledger_id, 3, b"new", lac=2, recovery=True) == Status.OK
    assert await own.add(ledger_id, 1, b"hello", lac=0, recovery=True) == Status.OK, "it is there"
    assert await own.add(ledger_id, 1, b"other", lac=0, recovery=True) == Status.CONFLICT
    assert await own.add(ledger_id, 4, b"new", password=b"x", recovery=True) == Status.UNAUTHORIZED
    again = apache.v2_add(0, flags=apache.V2_RECOVERY, body=whole_entry(5), key=KEY)
    assert await ask_v2(other, again) == [0]
    third = await connected(cluster.bookies[0].port)
    assert await ask_v3(
        third, apache.v3_add(1, 6, body=whole_entry(6), key=KEY, recovery=True)
    ) == [0]
    shown = (await scraped(cluster)).since(before)
    for client in (other, third):
        await client.close()
    own.close()
    assert ends(shown, "bookie_BOOKIE_RECOVERY_ADD_ENTRY") == (4, 2)
    assert ends(shown, "bookie_BOOKIE_ADD_ENTRY") == (3, 1)
    assert ends(shown, f"{SERVER}ADD_ENTRY_REQUEST") == (7, 3)
    apart = time_of(shown, "bookie_BOOKIE_RECOVERY_ADD_ENTRY", "bookie_BOOKIE_ADD_ENTRY")
    assert abs(apart - time_of(shown, f"{SERVER}ADD_ENTRY_REQUEST")) < 1e-6


async def test_fences_and_polls_by_their_steps(cluster: LocalCluster, ledger_id: int) -> None:
    fence, poll = f"{SERVER}READ_ENTRY_FENCE_", f"{SERVER}READ_ENTRY_LONG_POLL_"
    before = await scraped(cluster)
    client, other = (
        await connected(cluster.bookies[0].port),
        await connected(cluster.bookies[0].port),
    )
    began_s = time.monotonic()
    for number in (0, 1, 3):  # 2 lies elsewhere
        assert await ask_v3(
            client, apache.v3_add(number, number, body=whole_entry(number), key=KEY)
        ) == [0]
    client.send(apache.v3_read(4, -1, flag=apache.PIGGYBACK, previous_lac=2, timeout_ms=30_000))
    await until_a_poll_waits(cluster)
    assert await ask_v3(other, apache.v3_add(5, 4, body=whole_entry(4), key=KEY)) == [0]
    assert (await apache.hear_v3(client)).status == 0
    late = apache.v3_read(6, -1, flag=apache.PIGGYBACK, previous_lac=9, timeout_ms=POLL_MS)
    assert await ask_v3(client, late) == [0]
    early = apache.v3_read(7, -1, flag=apache.PIGGYBACK, previous_lac=1, timeout_ms=30_000)
    assert await ask_v3(client, early) == [0], "at once, but without the entry"
    for number, ledger_entry in ((8, -1), (9, 0), (10, 77)):
        frame = apache.v3_read(number, ledger_entry, flag=apache.FENCE, key=KEY)
        assert await ask_v3(client, frame) == [0 if ledger_entry < 77 else 403]
    # Not by the sum of the requests: the worker looks at the clock once a turn, so an answer that the index gives in
    # that turn has taken longer than the worker says.
    took_ms = (time.monotonic() - began_s) * 1e3
    shown = (await scraped(cluster)).since(before)
    for one in (client, other):
        await one.close()
    assert ends(shown, f"{poll}REQUEST") == ends(shown, f"{poll}READ") == (3, 0)
    assert shown.value(f"{poll}PRE_WAIT_count") == 3
    assert ends(shown, f"{poll}WAIT") == (1, 1)
    assert shown.value(f"{poll}WAIT_sum", success="false") >= POLL_MS
    steps = time_of(shown, f"{poll}PRE_WAIT", f"{poll}WAIT", f"{poll}READ")
    assert 0 < steps <= took_ms
    assert 0 < time_of(shown, f"{poll}REQUEST") <= took_ms
    assert shown.value(f"{SERVER}READ_LAST_ENTRY_NOENTRY_ERROR") == 1
    assert ends(shown, f"{fence}REQUEST") == ends(shown, f"{fence}READ") == (2, 1)
    assert shown.value(f"{fence}WAIT_count") == 3
    steps = time_of(shown, f"{fence}WAIT", f"{fence}READ")
    assert 0 < steps <= took_ms
    assert 0 < time_of(shown, f"{fence}REQUEST") <= took_ms


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
        client = await connected(cluster.bookies[0].port)
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
        client = await connected(cluster.bookies[0].port)
        began_s = time.monotonic()
        adds = [
            apache.v3_add(number, number, body=whole_entry(number), key=KEY) for number in range(20)
        ]
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
