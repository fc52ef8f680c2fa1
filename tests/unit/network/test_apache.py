"""What a worker says to clients that speak Apache's protocols: each operation of both versions, good and refused.

The client's side is written from the description of the bytes (`tests/fixtures/apache_wire.py`)."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import TYPE_CHECKING

import pytest

from fastbk.native.worker import COLLECT, PAUSE, Worker
from fastbk.observe.names import SLOTS
from tests.fixtures import apache_wire as apache
from tests.fixtures.apache_messages import AuthMessage
from tests.fixtures.apache_wire import (
    EBADREQ,
    EFENCED,
    EIO,
    ELIMBO,
    ENOENTRY,
    ENOLEDGER,
    EOK,
    EREADONLY,
    ETOOMANYREQUESTS,
    EUA,
    KEY,
    LEDGER,
    V2_STATUSES,
    V2Reply,
    V3Reply,
    hear,
    hear_v2,
    hear_v3,
)
from tests.fixtures.worker_harness import (
    ADD,
    CHECK,
    FENCE,
    FORCE,
    FRAME_SIZE_BYTES_MAX,
    LIST,
    MIB,
    READ,
    READ_BATCH,
    READ_LAC,
    WRITE_LAC,
    Record,
    WorkerHarness,
    one_client,
    one_worker,
    served,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

NO_LEDGER, NO_ENTRY, CANNOT_TELL, FENCED, UNAUTHORIZED, CONFLICT = 10, 11, 12, 20, 21, 22
READ_ONLY, TOO_MANY_REQUESTS, IO_ERROR, NOT_READY = 24, 25, 30, 3
SOME = apache.entry(7, b"some data")
MAPPED = [
    (3, EIO),
    (NO_LEDGER, ENOLEDGER),
    (NO_ENTRY, ENOENTRY),
    (CANNOT_TELL, ELIMBO),
    (FENCED, EFENCED),
    (UNAUTHORIZED, EUA),
    (CONFLICT, EIO),
    (READ_ONLY, EREADONLY),
    (TOO_MANY_REQUESTS, ETOOMANYREQUESTS),
    (IO_ERROR, EIO),
    (1, EBADREQ),
    (2, EBADREQ),
    (23, EBADREQ),
    (26, EBADREQ),
]


def add_record(record: Record) -> tuple[int, int, int, int, bytes, bytes]:
    return (
        record.kind,
        record.ledger_id,
        record.entry_id,
        record.flags,
        record.master_key,
        record.payload,
    )


# --- adds ---------------------------------------------------------------------------------------------------------


@pytest.mark.uvloop_too
async def test_adds_of_both_versions_on_one_connection() -> None:
    """Which version a frame is in is told frame by frame; the entry is stored as it came, with an unknown digest."""
    async with one_client() as (worker_harness, bookie, client):
        client.send(apache.v2_add(7) + apache.v3_add(900, 8, b"more") + apache.v2_add(9, b""))
        records = await bookie.take(3)
        for record, (entry_id, data) in zip(
            records, [(7, b"hello"), (8, b"more"), (9, b"")], strict=True
        ):
            stored = apache.entry(entry_id, data)
            assert add_record(record) == (ADD, LEDGER, entry_id, 0, KEY, stored)
            assert record.digest_type == 0
        worker_harness.publish()
        assert await hear_v2(client) == V2Reply(apache.V2_ADD, 0, LEDGER, 7, b"")
        assert await hear_v3(client) == V3Reply(apache.ADD, 900, EOK, 101, {2: LEDGER, 3: 8})
        assert await hear_v2(client) == V2Reply(apache.V2_ADD, 0, LEDGER, 9, b"")


async def test_the_bytes_of_the_test_vectors() -> None:
    """A frame as Apache's own client writes it, and the answer to the byte."""
    add = bytes.fromhex(
        "00000041020100009596625852f7fafc2c9cf0f9f7f3e5995206452b00000000000000050000000000000007"
        "0000000000000006000000000000007b8f06b47a68656c6c6f"
    )
    async with one_client() as (worker_harness, bookie, client):
        client.send(add)
        (record,) = await bookie.take(1)
        assert record.master_key == bytes.fromhex("9596625852f7fafc2c9cf0f9f7f3e5995206452b")
        assert record.payload == add[28:]
        worker_harness.publish()
        answer = "00000018020100000000000000000000000000050000000000000007"
        assert await client.frame("big") == bytes.fromhex(answer)


async def test_flags_of_adds() -> None:
    async with one_client() as (_, bookie, client):
        client.send(apache.v2_add(1, flags=apache.V2_RECOVERY | apache.V2_HIGH_PRIORITY))
        client.send(apache.v3_add(2, 2, recovery=True, priority=100))
        client.send(apache.v3_add(3, 3, write_flags=1))
        assert [record.flags for record in await bookie.take(3)] == [1, 1, 2]


async def test_the_ids_inside_the_entry_count_and_those_asked_for_are_repeated() -> None:
    async with one_client() as (worker_harness, bookie, client):
        client.send(apache.v3_add(1, 99, body=apache.entry(7, ledger_id=6)))
        (record,) = await bookie.take(1)
        assert (record.ledger_id, record.entry_id) == (6, 7)
        worker_harness.publish()
        assert (await hear_v3(client)).fields == {2: LEDGER, 3: 99}


@pytest.mark.parametrize(("ours", "theirs"), MAPPED)
async def test_every_status_has_its_name_at_apaches(ours: int, theirs: int) -> None:
    async with one_client() as (worker_harness, bookie, client):
        client.send(apache.v2_add(7) + apache.v3_add(1, 8) + apache.v3_add(2, 9))
        records = await bookie.take(3)
        for record in records[:2]:
            worker_harness.verdict(record, ours)
        worker_harness.verdict(records[2], CHECK)  # the index decides
        worker_harness.publish()
        assert await hear_v2(client) == V2Reply(apache.V2_ADD, V2_STATUSES[theirs], LEDGER, 7, b"")
        assert await hear_v3(client) == V3Reply(apache.ADD, 1, theirs, 101, {2: LEDGER, 3: 8})
        worker_harness.say(records[2], "status", ours)
        assert (await hear_v3(client)).status == theirs
        client.send(apache.v2_read(7) + apache.v3_read(3, 7))
        for _ in range(2):
            worker_harness.say(await bookie.take_request(), "status", ours)
        read = await hear_v2(client)
        assert (read.error, read.rest) == (V2_STATUSES[theirs], b"")
        assert await hear_v3(client) == V3Reply(apache.READ, 3, theirs, 100, {2: LEDGER, 3: 7})


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (apache.v3_add(1, 7, key=b"short"), EUA),
        (apache.v3_add(1, 7, body=b"x" * 31), EBADREQ),
        (apache.v3_add(1, 7, body=apache.entry(-5)), EBADREQ),
        (apache.v3_read(1, 7, flag=apache.FENCE), EUA),
        (apache.v3_read(1, 7, flag=apache.PIGGYBACK, previous_lac=6), EBADREQ),
        (apache.v3_read(1, 7, version=2), 503),
        (apache.v3_write_lac(1, 7, body=b"short"), EBADREQ),
        (apache.v3(3, 1), EBADREQ),  # RANGE_READ_ENTRY, which nobody has
        (apache.v3_start_tls(1), EBADREQ),
    ],
)
async def test_what_is_refused_at_once_ends_nothing(sent: bytes, status: int) -> None:
    async with one_client() as (worker_harness, bookie, client):
        client.send(sent + apache.v2_add(3))
        reply = await hear_v3(client)
        assert (reply.txn, reply.status) == (1, status)
        await bookie.take(1)
        worker_harness.publish()
        assert (await hear_v2(client)).entry_id == 3


async def test_a_bookie_that_takes_no_adds() -> None:
    """Repairs go on while there is room, whatever their priority; explicit LACs don't, as with Apache's bookies."""
    async with one_worker() as (worker_harness, bookie):
        worker_harness.read_only(1)
        client = await bookie.connect()
        client.send(apache.v2_add(1) + apache.v3_add(2, 2) + apache.v3_write_lac(3, 1))
        assert (await hear_v2(client)).error == V2_STATUSES[EREADONLY]
        assert (await hear_v3(client)).status == EREADONLY
        refused = await hear_v3(client)
        assert (refused.operation, refused.status) == (apache.WRITE_LAC, EREADONLY)
        client.send(apache.v2_add(4, flags=apache.V2_RECOVERY))
        assert (await bookie.take(1))[0].entry_id == 4
        await client.close()


# --- what Python answers ------------------------------------------------------------------------------------------


async def test_authentication_is_switched_off() -> None:
    disabled = AuthMessage(authPluginName="AuthDisabledPlugin", payload=b"")
    async with one_client() as (_, bookie, client):
        client.send(apache.v2_auth() + apache.v3_auth(4) + apache.v2_add(1))
        message = apache.v2_header(apache.V2_AUTH) + disabled.SerializeToString()
        assert await hear(client) == message
        fields = {1: "AuthDisabledPlugin", 2: b""}
        assert await hear_v3(client) == V3Reply(apache.AUTH, 4, EOK, 102, fields)
        assert (await bookie.take(1))[0].entry_id == 1


@pytest.mark.parametrize("wanted", [0, 1, 2, 3])
async def test_disk_figures_are_said_as_asked_for(wanted: int) -> None:
    async with one_client() as (_, _, client):
        client.send(apache.v3_info(4, wanted))
        reply = await hear_v3(client)
        assert (reply.operation, reply.txn, reply.status) == (apache.INFO, 4, EOK)
        assert set(reply.fields) == ({2} if wanted & 1 else set()) | ({3} if wanted & 2 else set())
        assert all(isinstance(value, int) and value > 0 for value in reply.fields.values())


async def test_counters_tell_versions_and_operations_apart() -> None:
    async with one_client() as (worker_harness, bookie, client):
        client.send(apache.v2_add(1) + apache.v3_add(1, 2) + apache.v3_add(2, 3))
        records = await bookie.take(3)
        worker_harness.verdict(records[2], FENCED)
        worker_harness.publish()
        client.send(apache.v2_read(1))
        for _ in range(3):
            await hear(client)
        worker_harness.say(await bookie.take_request(), "read", 1, 0, SOME, len(SOME))
        await hear(client)
        names = {
            "V2_ADDS": 1,
            "V3_ADDS": 2,
            "V3_EFENCED": 1,
            "V2_READS": 1,
            "V2_READ_BYTES": len(SOME),
        }
        names |= {"V2_ADD_BYTES": 41, "V3_ADD_BYTES": 82, "APACHE_CONNECTIONS": 1, "V2_EFENCED": 0}
        for name, value in names.items():
            assert worker_harness.counter(SLOTS[f"FBK_C_WORKER_{name}"]) == value, name


async def test_a_bookie_without_a_journal_serves_reads_only() -> None:
    async with one_client(is_reads_only=True) as (worker_harness, bookie, client):
        client.send(apache.v2_add(1, flags=apache.V2_RECOVERY) + apache.v3_write_lac(2, 1))
        client.send(apache.v3_force(3) + apache.v3_read(4, 1, flag=apache.FENCE, key=KEY))
        assert (await hear_v2(client)).error == V2_STATUSES[EREADONLY]
        assert [(await hear_v3(client)).status for _ in range(3)] == [EREADONLY] * 3
        client.send(apache.v2_read(1))
        worker_harness.say(await bookie.take_request(), "read", 1, 0, SOME, len(SOME))
        assert (await hear_v2(client)).rest == SOME


# What a worker says to reads in Apache's protocols: single ones, in batches, the LAC, polls,
# lists.


# --- reads --------------------------------------------------------------------------------------------------------


@pytest.mark.uvloop_too
async def test_reads() -> None:
    """Version 3 hears the LAC with every entry; −1, the highest, is repeated as −1."""
    async with one_client() as (worker_harness, bookie, client):
        client.send(
            apache.v2_read(7) + apache.v2_read(-1) + apache.v3_read(5, 7) + apache.v3_read(6, -1)
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


async def test_fencing_reads_go_through_the_journal_and_hear_no_lac() -> None:
    async with one_client() as (worker_harness, bookie, client):
        client.send(apache.v2_read(-1, flags=apache.V2_FENCE | apache.V2_HIGH_PRIORITY, key=KEY))
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


async def test_a_large_entry_comes_in_and_goes_out() -> None:
    data = bytes(range(256)) * 3900
    async with one_client() as (worker_harness, bookie, client):
        client.send(apache.v2_add(1, data) + apache.v3_add(2, 2, data) + apache.v2_read(1))
        for record in await bookie.take(2):
            assert record.payload[36:] == data
        worker_harness.publish()
        assert (await hear_v2(client)).error == 0
        assert (await hear_v3(client)).status == EOK
        whole = apache.entry(1, data)
        worker_harness.say(await bookie.take_request(), "read", 1, 0, whole, len(whole))
        assert (await hear_v2(client)).rest == whole


# --- the LAC ------------------------------------------------------------------------------------------------------


async def test_force_and_explicit_lac() -> None:
    async with one_client() as (worker_harness, bookie, client):
        client.send(apache.v3_force(4) + apache.v3_write_lac(5, 6))
        assert (await bookie.take(1))[0].kind == FORCE
        worker_harness.publish()
        assert await hear_v3(client) == V3Reply(apache.FORCE, 4, EOK, 107, {2: LEDGER})
        record = await bookie.take_request()
        body = struct.pack(">qq", LEDGER, 6) + b"dgst"
        assert (record.kind, record.entry_id, record.payload) == (WRITE_LAC, 6, body)
        worker_harness.say(record, "status", 0)
        assert await hear_v3(client) == V3Reply(apache.WRITE_LAC, 5, EOK, 103, {2: LEDGER})


@pytest.mark.parametrize(
    ("body", "entry", "status"),
    [(b"l" * 20, SOME, EOK), (b"", SOME, EOK), (b"l" * 20, b"", EOK), (b"", b"", ENOENTRY)],
)
async def test_read_lac(body: bytes, entry: bytes, status: int) -> None:
    async with one_client() as (worker_harness, bookie, client):
        client.send(apache.v3_read_lac(8))
        record = await bookie.take_request()
        assert (record.kind, struct.unpack("<qII", record.payload)) == (READ_LAC, (-1, 0, 0))
        worker_harness.say(record, "lac", 6, body, len(body), 7, entry, len(entry))
        fields = {2: LEDGER} | ({3: body} if body else {}) | ({4: entry} if entry else {})
        assert await hear_v3(client) == V3Reply(apache.READ_LAC, 8, status, 104, fields)


async def test_a_poll_that_takes_the_entry_along() -> None:
    async with one_client() as (worker_harness, bookie, client):
        for lac, entry in ((9, SOME), (9, b""), (6, b"")):
            client.send(
                apache.v3_read(3, -1, flag=apache.PIGGYBACK, previous_lac=6, timeout_ms=70_000)
            )
            record = await bookie.take_request()
            assert struct.unpack("<qII", record.payload) == (6, 60_000, 1)
            assert bookie.worker.pending == 0, "polls keep no bookie from stopping"
            worker_harness.say(record, "lac", lac, b"", 0, 7 if entry else -1, entry, len(entry))
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


async def test_a_poll_without_its_entry_waits_and_then_reads() -> None:
    async with one_client() as (worker_harness, bookie, client):
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


async def test_piggyback_without_previous_lac_is_a_read() -> None:
    async with one_client() as (_, bookie, client):
        client.send(apache.v3_read(3, 4, flag=apache.PIGGYBACK))
        assert (await bookie.take_request()).kind == READ


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
    async with one_client() as (worker_harness, bookie, client):
        client.send(apache.v2_batch(77, 10, 6, size_bytes))
        record = await bookie.take_request()
        last, count, most_bytes = struct.unpack("<qII", record.payload)
        assert (record.kind, record.entry_id, last, count) == (READ_BATCH, 10, 15, 6)
        assert most_bytes == min(max(size_bytes - 36, 1), MIB + 4096)
        worker_harness.say(record, "batch", 16, *packed(held))
        reply = await hear_v2(client)
        assert (reply.opcode, reply.error, reply.entry_id) == (apache.V2_BATCH, 0, 10)
        assert apache.v2_batch_entries(reply.rest) == (77, held[:sent])


@pytest.mark.parametrize("held", [[], ENTRIES[1:]])
async def test_a_batch_without_its_first_entry_says_so(held: list[bytes]) -> None:
    async with one_client() as (worker_harness, bookie, client):
        client.send(apache.v2_batch(77, 10, 0))
        record = await bookie.take_request()
        assert struct.unpack("<qII", record.payload)[1] == 8192, "as many as there may be"
        worker_harness.say(record, "batch", 16, *packed(held))
        reply = await hear_v2(client)
        assert (reply.opcode, reply.error, reply.entry_id) == (apache.V2_BATCH, 2, 10)
        client.send(apache.v2_batch(78, 10, 0))
        worker_harness.say(await bookie.take_request(), "status", CANNOT_TELL)
        assert (await hear_v2(client)).error == V2_STATUSES[ELIMBO]


async def test_a_batch_that_says_nothing_of_its_first_entry_denies_nothing() -> None:
    """INV-X1: an empty answer that goes on where it began is no "no such entry"."""
    async with one_client() as (worker_harness, bookie, client):
        client.send(apache.v2_batch(77, 10, 0))
        worker_harness.say(await bookie.take_request(), "batch", 10, *packed([]))
        assert (await hear_v2(client)).error == V2_STATUSES[EIO]


async def test_a_fencing_batch_read_fences_first() -> None:
    async with one_client() as (worker_harness, bookie, client):
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


async def test_a_bookies_own_bound_of_batch_reads() -> None:
    async with one_client(apache_batch_read_bytes_max=36 + 2 * 104) as (
        worker_harness,
        bookie,
        client,
    ):
        client.send(apache.v2_batch(77, 10, 6))
        worker_harness.say(await bookie.take_request(), "batch", 16, *packed(ENTRIES))
        assert len(apache.v2_batch_entries((await hear_v2(client)).rest)[1]) == 2


# --- lists --------------------------------------------------------------------------------------------------------


def ranges(*pairs: tuple[int, int]) -> tuple[bytes, int]:
    return b"".join(struct.pack("<qq", *pair) for pair in pairs), len(pairs)


async def test_a_list_is_asked_for_page_by_page() -> None:
    async with one_client() as (worker_harness, bookie, client):
        client.send(apache.v3_list(9))
        pages = [(0, 12, ((0, 3), (5, 11))), (12, 40, ((12, 13),)), (40, -1, ((40, 41), (44, 44)))]
        for first, then, page in pages:
            record = await bookie.take_request()
            assert (record.kind, record.entry_id) == (LIST, first)
            worker_harness.say(record, "list", then, *ranges(*page))
        reply = await hear_v3(client)
        assert (reply.operation, reply.txn, reply.status, reply.part) == (apache.LIST, 9, EOK, 108)
        blob = reply.fields[3]
        assert isinstance(blob, bytes)
        assert apache.available(blob) == [0, 1, 2, 3, *range(5, 14), 40, 41, 44]


async def test_a_list_of_nothing_and_of_no_ledger() -> None:
    async with one_client() as (worker_harness, bookie, client):
        client.send(apache.v3_list(9) + apache.v3_list(10))
        worker_harness.say(await bookie.take_request(), "list", -1, b"", 0)
        blob = (await hear_v3(client)).fields[3]
        assert isinstance(blob, bytes)
        assert apache.available(blob) == []
        worker_harness.say(await bookie.take_request(), "status", NO_LEDGER)
        assert await hear_v3(client) == V3Reply(apache.LIST, 10, ENOLEDGER, 108, {2: LEDGER})


async def test_lists_under_way_are_bounded() -> None:
    page = struct.pack("<qq", 0, 0)
    async with one_client() as (worker_harness, bookie, client):
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


@pytest.mark.slow
async def test_a_list_that_is_too_long_is_refused_and_not_cut() -> None:
    """The bookie does not say that what it left out was not here."""
    count = 16384
    async with one_client() as (worker_harness, bookie, client):
        client.send(apache.v3_list(1))
        for n in range(65):
            first = n * count * 3
            page = b"".join(struct.pack("<qq", first + 3 * i, first + 3 * i) for i in range(count))
            worker_harness.say(await bookie.take_request(), "list", first + 3 * count, page, count)
        assert (await hear_v3(client)).status == EIO
        assert worker_harness.next_request() is None


# What a worker makes of bounds at their edges, and of an index whose answers are not what was
# asked for.


STATUS_OK = 0


class Fed:
    """A worker whose connections receive what the test says, when it says so."""

    def __init__(self, worker_harness: WorkerHarness, worker: Worker) -> None:
        self.worker_harness = worker_harness
        self.worker = worker
        self._ends: list[socket.socket] = []

    def connect(self) -> int:
        near, far = socket.socketpair()
        near.setblocking(False)
        self._ends += (near, far)
        slot = self.worker.connect(near.fileno())
        assert slot is not None
        return slot

    def feed(self, slot: int, data: bytes) -> int:
        todo = 0
        while data:
            piece = data[: len(self.worker.receive_buffer)]
            self.worker.receive_buffer[: len(piece)] = piece
            todo |= self.worker.receive(slot, len(piece))
            data = data[len(piece) :]
        return todo

    def close(self) -> None:
        for end in self._ends:
            end.close()
        self.worker.close()


@contextlib.contextmanager
def fed(worker_harness: WorkerHarness, **changes: int) -> Iterator[Fed]:
    one = Fed(worker_harness, Worker(worker_harness.options(**changes)))
    try:
        yield one
    finally:
        one.close()


TRIALS = 256
"""Others that may go over the bound for a little (FBK_TRIALS_MAX)."""


def waits(worker_harness: WorkerHarness) -> int:
    return worker_harness.counter(SLOTS["FBK_C_WORKER_WAITS_REQUEST_RING"])


def test_who_is_ready_and_finds_no_room_waits_for_it_in_its_line() -> None:
    """A frame that came in whole while it waited for memory: its connection has its turn, and receives before that."""
    large = apache.v2_add(1, bytes(17_000))
    with (
        WorkerHarness(request_ring=4096) as worker_harness,
        fed(
            worker_harness,
            frame_size_bytes_max=20_000,
            partial_frames_bytes_max=40_000,
            receive_size_bytes=16_384,
            connections_max=300,
        ) as one,
    ):
        over, late = one.connect(), one.connect()
        # the last one goes over the bound: one may
        for slot in (one.connect(), one.connect(), over):
            one.feed(slot, large[:9000])
        for _ in range(TRIALS):
            one.feed(one.connect(), large[:9000])
        assert one.feed(late, large[:5000]) & PAUSE
        one.feed(late, large[5000:])  # was on its way
        assert one.feed(over, large[9000:]) & COLLECT
        one.feed(late, b"".join(apache.v2_read(i) for i in range(100)))
        taken = []
        for _ in range(100):
            one.worker.collect()
            while (record := worker_harness.next_request()) is not None:
                taken.append(record.entry_id)
        assert taken == list(range(100))


async def test_an_answer_that_comes_twice_is_taken_once_while_the_next_step_waits() -> None:
    with WorkerHarness(request_ring=4096) as worker_harness:
        async with served(worker_harness) as bookie:
            client, other = await bookie.connect(), await bookie.connect()
            client.send(apache.v3_read(3, 4, previous_lac=6, timeout_ms=50))
            poll = await bookie.take_request()
            other.send(b"".join(apache.v2_read(i) for i in range(60)))
            await until(lambda: waits(worker_harness) > 0)
            before = waits(worker_harness)
            for _ in range(2):
                worker_harness.say(poll, "lac", 9, b"", 0, -1, b"", 0)
            await until(lambda: waits(worker_harness) > before)
            taken: list[Record] = []
            while len(taken) < 61:
                taken.append(await bookie.take_request())
                worker_harness.index()
            again = [record for record in taken if record.request_id == poll.request_id]
            assert [record.kind for record in again] == [READ]
            worker_harness.say(again[0], "read", 4, 9, SOME, len(SOME))
            assert (await hear_v3(client)).status == EOK
            await client.close()
            await other.close()


async def test_an_answer_to_something_else_is_an_error() -> None:
    """Not an entry, not nothing: what was read is unknown."""
    async with one_client() as (worker_harness, bookie, client):
        client.send(apache.v2_read(7))
        worker_harness.say(await bookie.take_request(), "status", STATUS_OK)
        assert (await hear_v2(client)).error == apache.V2_STATUSES[EIO]
        client.send(apache.v3_read(2, 7))
        worker_harness.say(await bookie.take_request(), "lac", 9, b"", 0, 7, SOME, len(SOME))
        assert (await hear_v3(client)).status == EIO


@pytest.mark.parametrize("size_bytes_max", [-(1 << 63), -1, 0, 35, 36, (1 << 63) - 1])
async def test_a_batch_of_any_size_has_its_first_entry(size_bytes_max: int) -> None:
    async with one_client() as (_, bookie, client):
        client.send(apache.v2_batch(9, 7, 1, size_bytes_max))
        record = await bookie.take_request()
        assert (record.kind, record.ledger_id, record.entry_id) == (READ_BATCH, LEDGER, 7)
        limit = int.from_bytes(record.payload[12:16], "little")
        assert 1 <= limit <= FRAME_SIZE_BYTES_MAX
        assert size_bytes_max > 37 or limit == 1


@pytest.mark.parametrize(
    "tail",
    [
        b"\xf8\x03\x01",  # field 63: a number, a group, four bytes
        b"\xf3\x03\x08\x01\xf4\x03",
        b"\xfd\x03four",
        b"\x0a\x02\x20\x64",  # more of the header: the priority
    ],
)
async def test_what_python_answers_may_have_fields_that_nobody_knows(tail: bytes) -> None:
    async with one_client() as (_, _, client):
        for question in (apache.v3_info(4, 3), apache.v3_auth(4)):
            client.send(apache.framed(question[4:] + tail))
            reply = await hear_v3(client)
            assert (reply.txn, reply.status) == (4, EOK)
