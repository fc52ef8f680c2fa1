"""What a worker says to reads in Apache's protocols: single ones, in batches, the LAC, polls, lists."""

from __future__ import annotations

import struct

import pytest

from tests.fixtures import apache_wire as apache
from tests.fixtures.apache_wire import (
    EIO,
    ELIMBO,
    ENOENTRY,
    ENOLEDGER,
    EOK,
    ETOOMANYREQUESTS,
    EUA,
    KEY,
    LEDGER,
    V2_STATUSES,
    V2Reply,
    V3Reply,
    hear_v2,
    hear_v3,
)
from tests.fixtures.worker_harness import (
    FENCE,
    FORCE,
    LIST,
    MIB,
    READ,
    READ_BATCH,
    READ_LAC,
    WRITE_LAC,
    WorkerHarness,
    served,
)

NO_LEDGER, NO_ENTRY, CANNOT_TELL, FENCED, UNAUTHORIZED, CONFLICT = 10, 11, 12, 20, 21, 22
READ_ONLY, TOO_MANY_REQUESTS, IO_ERROR, NOT_READY = 24, 25, 30, 3
SOME = apache.entry(7, b"some data")


# --- reads --------------------------------------------------------------------------------------------------------


@pytest.mark.uvloop_too
async def test_reads() -> None:
    """Version 3 hears the LAC with every entry; −1, the highest, is repeated as −1."""
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            client.send(
                apache.v2_read(7)
                + apache.v2_read(-1)
                + apache.v3_read(5, 7)
                + apache.v3_read(6, -1)
            )
            for wanted in (7, -1, 7, -1):
                record = await bookie.take_request()
                assert (record.kind, record.ledger_id, record.entry_id) == (READ, LEDGER, wanted)
                worker_harness.say(record, "read", 7, 6, SOME, len(SOME))
            assert await hear_v2(client) == V2Reply(apache.V2_READ, 0, LEDGER, 7, SOME)
            assert await hear_v2(client) == V2Reply(apache.V2_READ, 0, LEDGER, -1, SOME)
            assert await hear_v3(client) == V3Reply(
                apache.READ, 5, EOK, 100, {2: LEDGER, 3: 7, 4: SOME, 5: 6}
            )
            assert await hear_v3(client) == V3Reply(
                apache.READ, 6, EOK, 100, {2: LEDGER, 3: -1, 4: SOME, 5: 6}
            )
            await client.close()


async def test_fencing_reads_go_through_the_journal_and_hear_no_lac() -> None:
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            client.send(
                apache.v2_read(-1, flags=apache.V2_FENCE | apache.V2_HIGH_PRIORITY, key=KEY)
            )
            client.send(apache.v3_read(2, 7, flag=apache.FENCE, key=KEY))
            fences = await bookie.take(2)
            assert [(f.kind, f.entry_id, f.master_key) for f in fences] == [
                (FENCE, -1, KEY),
                (FENCE, 7, KEY),
            ]
            worker_harness.publish()
            for fence in fences:
                worker_harness.say(fence, "read", 7, 6, SOME, len(SOME))
            assert await hear_v2(client) == V2Reply(apache.V2_READ, 0, LEDGER, -1, SOME)
            assert await hear_v3(client) == V3Reply(
                apache.READ, 2, EOK, 100, {2: LEDGER, 3: 7, 4: SOME}
            )
            await client.close()


async def test_a_large_entry_comes_in_and_goes_out() -> None:
    data = bytes(range(256)) * 3900
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            client.send(apache.v2_add(1, data) + apache.v3_add(2, 2, data) + apache.v2_read(1))
            for record in await bookie.take(2):
                assert record.payload[36:] == data
            worker_harness.publish()
            assert (await hear_v2(client)).error == 0
            assert (await hear_v3(client)).status == EOK
            whole = apache.entry(1, data)
            worker_harness.say(await bookie.take_request(), "read", 1, 0, whole, len(whole))
            assert (await hear_v2(client)).rest == whole
            await client.close()


# --- the LAC ------------------------------------------------------------------------------------------------------


async def test_force_and_explicit_lac() -> None:
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            client.send(apache.v3_force(4) + apache.v3_write_lac(5, 6))
            assert (await bookie.take(1))[0].kind == FORCE
            worker_harness.publish()
            assert await hear_v3(client) == V3Reply(apache.FORCE, 4, EOK, 107, {2: LEDGER})
            record = await bookie.take_request()
            body = struct.pack(">qq", LEDGER, 6) + b"dgst"
            assert (record.kind, record.entry_id, record.payload) == (WRITE_LAC, 6, body)
            worker_harness.say(record, "status", 0)
            assert await hear_v3(client) == V3Reply(apache.WRITE_LAC, 5, EOK, 103, {2: LEDGER})
            await client.close()


@pytest.mark.parametrize(
    ("body", "entry", "status"),
    [(b"l" * 20, SOME, EOK), (b"", SOME, EOK), (b"l" * 20, b"", EOK), (b"", b"", ENOENTRY)],
)
async def test_read_lac(body: bytes, entry: bytes, status: int) -> None:
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            client.send(apache.v3_read_lac(8))
            record = await bookie.take_request()
            assert (record.kind, struct.unpack("<qII", record.payload)) == (READ_LAC, (-1, 0, 0))
            worker_harness.say(record, "lac", 6, body, len(body), 7, entry, len(entry))
            fields = {2: LEDGER} | ({3: body} if body else {}) | ({4: entry} if entry else {})
            assert await hear_v3(client) == V3Reply(apache.READ_LAC, 8, status, 104, fields)
            await client.close()


async def test_a_poll_that_takes_the_entry_along() -> None:
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            for lac, entry in ((9, SOME), (9, b""), (6, b"")):
                client.send(
                    apache.v3_read(3, -1, flag=apache.PIGGYBACK, previous_lac=6, timeout_ms=70_000)
                )
                record = await bookie.take_request()
                assert struct.unpack("<qII", record.payload) == (6, 60_000, 1)
                assert bookie.worker.pending == 0, "polls keep no bookie from stopping"
                worker_harness.say(
                    record, "lac", lac, b"", 0, 7 if entry else -1, entry, len(entry)
                )
                reply = await hear_v3(client)
                assert reply.fields.pop(6, None) is not None or lac == 6, "when it moved"
                assert reply == V3Reply(
                    apache.READ,
                    3,
                    EOK,
                    100,
                    {2: LEDGER, 3: 7, 4: entry, 5: lac} if entry else {2: LEDGER, 3: -1, 5: lac},
                )
            client.send(apache.v3_read(4, -1, flag=apache.PIGGYBACK, previous_lac=6, timeout_ms=1))
            worker_harness.say(await bookie.take_request(), "status", NO_LEDGER)
            assert (await hear_v3(client)).status == ENOLEDGER
            await client.close()


async def test_a_poll_without_its_entry_waits_and_then_reads() -> None:
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            client.send(apache.v3_read(3, 4, previous_lac=6, timeout_ms=50))
            poll = await bookie.take_request()
            assert (poll.kind, struct.unpack("<qII", poll.payload)) == (READ_LAC, (6, 50, 1))
            worker_harness.say(poll, "lac", 9, b"", 0, -1, b"", 0)
            read = await bookie.take_request()
            assert (read.kind, read.entry_id, read.request_id) == (READ, 4, poll.request_id)
            worker_harness.say(read, "read", 4, 9, SOME, len(SOME))
            assert await hear_v3(client) == V3Reply(
                apache.READ, 3, EOK, 100, {2: LEDGER, 3: 4, 4: SOME, 5: 9}
            )
            # Without a time it does not wait.
            client.send(apache.v3_read(4, 4, previous_lac=6))
            assert (await bookie.take_request()).kind == READ
            await client.close()


async def test_piggyback_without_previous_lac_is_a_read() -> None:
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            client.send(apache.v3_read(3, 4, flag=apache.PIGGYBACK))
            assert (await bookie.take_request()).kind == READ
            await client.close()


# --- batch reads --------------------------------------------------------------------------------------------------


def packed(entries: list[bytes]) -> tuple[bytes, int, bytes, int]:
    """What `worker_harness.say(..., "batch", next, ...)` takes."""
    whole = b"".join(entries)
    return b"".join(struct.pack("<I", len(one)) for one in entries), len(entries), whole, len(whole)


ENTRIES = [apache.entry(i, b"x" * 64) for i in range(10, 16)]
"""100 bytes each: 104 in a reply."""


@pytest.mark.parametrize(
    ("held", "size_bytes", "sent"),
    [
        (ENTRIES, 1 << 20, 6),
        (ENTRIES, 36 + 3 * 104, 3),
        (ENTRIES, 36 + 3 * 104 - 1, 2),
        (ENTRIES, 0, 1),
        (ENTRIES, -5, 1),
        (ENTRIES[:2] + ENTRIES[3:], 1 << 20, 2),
    ],
)
async def test_batch_reads(held: list[bytes], size_bytes: int, sent: int) -> None:
    """Consecutive ones from the first, counted as Apache counts; the first comes whatever its size."""
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            client.send(apache.v2_batch(77, 10, 6, size_bytes))
            record = await bookie.take_request()
            last, count, most_bytes = struct.unpack("<qII", record.payload)
            assert (record.kind, record.entry_id, last, count) == (READ_BATCH, 10, 15, 6)
            assert most_bytes == min(max(size_bytes - 36, 1), MIB + 4096)
            worker_harness.say(record, "batch", 16, *packed(held))
            reply = await hear_v2(client)
            assert (reply.opcode, reply.error, reply.entry_id) == (apache.V2_BATCH, 0, 10)
            assert apache.v2_batch_entries(reply.rest) == (77, held[:sent])
            await client.close()


@pytest.mark.parametrize("held", [[], ENTRIES[1:]])
async def test_a_batch_without_its_first_entry_says_so(held: list[bytes]) -> None:
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            client.send(apache.v2_batch(77, 10, 0))
            record = await bookie.take_request()
            assert struct.unpack("<qII", record.payload)[1] == 8192, "as many as there may be"
            worker_harness.say(record, "batch", 16, *packed(held))
            reply = await hear_v2(client)
            assert (reply.opcode, reply.error, reply.entry_id) == (apache.V2_BATCH, 2, 10)
            client.send(apache.v2_batch(78, 10, 0))
            worker_harness.say(await bookie.take_request(), "status", CANNOT_TELL)
            assert (await hear_v2(client)).error == V2_STATUSES[ELIMBO]
            await client.close()


async def test_a_batch_that_says_nothing_of_its_first_entry_denies_nothing() -> None:
    """INV-X1: an empty answer that goes on where it began is no "no such entry"."""
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            client.send(apache.v2_batch(77, 10, 0))
            worker_harness.say(await bookie.take_request(), "batch", 10, *packed([]))
            assert (await hear_v2(client)).error == V2_STATUSES[EIO]
            await client.close()


async def test_a_fencing_batch_read_fences_first() -> None:
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            client.send(apache.v2_batch(77, 10, 6, flags=apache.V2_FENCE, key=KEY))
            (fence,) = await bookie.take(1)
            assert (fence.kind, fence.entry_id, fence.master_key) == (FENCE, 10, KEY)
            assert worker_harness.next_request() is None
            worker_harness.publish()
            worker_harness.say(fence, "read", 10, 9, ENTRIES[0], 100)
            record = await bookie.take_request()
            assert (record.kind, record.entry_id) == (READ_BATCH, 10)
            worker_harness.say(record, "batch", 16, *packed(ENTRIES))
            assert apache.v2_batch_entries((await hear_v2(client)).rest) == (77, ENTRIES)
            for status, theirs in ((NO_ENTRY, ENOENTRY), (UNAUTHORIZED, EUA)):
                client.send(apache.v2_batch(78, 10, 6, flags=apache.V2_FENCE, key=KEY))
                (fence,) = await bookie.take(1)
                worker_harness.publish()
                worker_harness.say(fence, "status", status)
                assert (await hear_v2(client)).error == V2_STATUSES[theirs]
            assert worker_harness.next_request() is None
            await client.close()


async def test_a_bookies_own_bound_of_batch_reads() -> None:
    with WorkerHarness() as worker_harness:
        async with served(worker_harness, apache_batch_read_bytes_max=36 + 2 * 104) as bookie:
            client = await bookie.connect()
            client.send(apache.v2_batch(77, 10, 6))
            worker_harness.say(await bookie.take_request(), "batch", 16, *packed(ENTRIES))
            assert len(apache.v2_batch_entries((await hear_v2(client)).rest)[1]) == 2
            await client.close()


# --- lists --------------------------------------------------------------------------------------------------------


def ranges(*pairs: tuple[int, int]) -> tuple[bytes, int]:
    return b"".join(struct.pack("<qq", *pair) for pair in pairs), len(pairs)


async def test_a_list_is_asked_for_page_by_page() -> None:
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            client.send(apache.v3_list(9))
            pages = [
                (0, 12, ((0, 3), (5, 11))),
                (12, 40, ((12, 13),)),
                (40, -1, ((40, 41), (44, 44))),
            ]
            for first, then, page in pages:
                record = await bookie.take_request()
                assert (record.kind, record.entry_id) == (LIST, first)
                worker_harness.say(record, "list", then, *ranges(*page))
            reply = await hear_v3(client)
            assert (reply.operation, reply.txn, reply.status, reply.part) == (
                apache.LIST,
                9,
                EOK,
                108,
            )
            blob = reply.fields[3]
            assert isinstance(blob, bytes)
            assert apache.available(blob) == [0, 1, 2, 3, *range(5, 14), 40, 41, 44]
            await client.close()


async def test_a_list_of_nothing_and_of_no_ledger() -> None:
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            client.send(apache.v3_list(9) + apache.v3_list(10))
            worker_harness.say(await bookie.take_request(), "list", -1, b"", 0)
            blob = (await hear_v3(client)).fields[3]
            assert isinstance(blob, bytes)
            assert apache.available(blob) == []
            worker_harness.say(await bookie.take_request(), "status", NO_LEDGER)
            assert await hear_v3(client) == V3Reply(apache.LIST, 10, ENOLEDGER, 108, {2: LEDGER})
            await client.close()


async def test_lists_under_way_are_bounded() -> None:
    page = struct.pack("<qq", 0, 0)
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            client.send(b"".join(apache.v3_list(txn) for txn in range(9)))
            for _ in range(9):
                worker_harness.say(await bookie.take_request(), "list", 5, page, 1)
            refused = await hear_v3(client)
            assert (refused.txn, refused.status) == (8, ETOOMANYREQUESTS)
            for _ in range(8):
                worker_harness.say(await bookie.take_request(), "list", -1, b"", 0)
            assert [(await hear_v3(client)).status for _ in range(8)] == [EOK] * 8
            client.send(apache.v3_list(9))
            worker_harness.say(await bookie.take_request(), "list", -1, page, 1)
            assert (await hear_v3(client)).status == EOK
            await client.close()


@pytest.mark.slow
async def test_a_list_that_is_too_long_is_refused_and_not_cut() -> None:
    """The bookie does not say that what it left out was not here."""
    count = 16384
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            client.send(apache.v3_list(1))
            for n in range(65):
                first = n * count * 3
                page = b"".join(
                    struct.pack("<qq", first + 3 * i, first + 3 * i) for i in range(count)
                )
                worker_harness.say(
                    await bookie.take_request(), "list", first + 3 * count, page, count
                )
            assert (await hear_v3(client)).status == EIO
            assert worker_harness.next_request() is None
            await client.close()
