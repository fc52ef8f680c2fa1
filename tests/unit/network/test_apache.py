"""What a worker says to clients that speak Apache's protocols: each operation of both versions, good and refused.

The client's side is written from the description of the bytes (`tests/fixtures/apache_wire.py`)."""

from __future__ import annotations

import pytest

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
    Record,
    WorkerHarness,
    served,
)

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
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
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
            await client.close()


async def test_the_bytes_of_the_test_vectors() -> None:
    """A frame as Apache's own client writes it, and the answer to the byte."""
    add = bytes.fromhex(
        "00000041020100009596625852f7fafc2c9cf0f9f7f3e5995206452b00000000000000050000000000000007"
        "0000000000000006000000000000007b8f06b47a68656c6c6f"
    )
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            client.send(add)
            (record,) = await bookie.take(1)
            assert record.master_key == bytes.fromhex("9596625852f7fafc2c9cf0f9f7f3e5995206452b")
            assert record.payload == add[28:]
            worker_harness.publish()
            answer = "00000018020100000000000000000000000000050000000000000007"
            assert await client.frame("big") == bytes.fromhex(answer)
            await client.close()


async def test_flags_of_adds() -> None:
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            client.send(apache.v2_add(1, flags=apache.V2_RECOVERY | apache.V2_HIGH_PRIORITY))
            client.send(apache.v3_add(2, 2, recovery=True, priority=100))
            client.send(apache.v3_add(3, 3, write_flags=1))
            assert [record.flags for record in await bookie.take(3)] == [1, 1, 2]
            await client.close()


async def test_the_ids_inside_the_entry_count_and_those_asked_for_are_repeated() -> None:
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            client.send(apache.v3_add(1, 99, body=apache.entry(7, ledger_id=6)))
            (record,) = await bookie.take(1)
            assert (record.ledger_id, record.entry_id) == (6, 7)
            worker_harness.publish()
            assert (await hear_v3(client)).fields == {2: LEDGER, 3: 99}
            await client.close()


@pytest.mark.parametrize(("ours", "theirs"), MAPPED)
async def test_every_status_has_its_name_at_apaches(ours: int, theirs: int) -> None:
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            client.send(apache.v2_add(7) + apache.v3_add(1, 8) + apache.v3_add(2, 9))
            records = await bookie.take(3)
            for record in records[:2]:
                worker_harness.verdict(record, ours)
            worker_harness.verdict(records[2], CHECK)  # the index decides
            worker_harness.publish()
            assert await hear_v2(client) == V2Reply(
                apache.V2_ADD, V2_STATUSES[theirs], LEDGER, 7, b""
            )
            assert await hear_v3(client) == V3Reply(apache.ADD, 1, theirs, 101, {2: LEDGER, 3: 8})
            worker_harness.say(records[2], "status", ours)
            assert (await hear_v3(client)).status == theirs
            client.send(apache.v2_read(7) + apache.v3_read(3, 7))
            for _ in range(2):
                worker_harness.say(await bookie.take_request(), "status", ours)
            read = await hear_v2(client)
            assert (read.error, read.rest) == (V2_STATUSES[theirs], b"")
            assert await hear_v3(client) == V3Reply(apache.READ, 3, theirs, 100, {2: LEDGER, 3: 7})
            await client.close()


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
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            client.send(sent + apache.v2_add(3))
            reply = await hear_v3(client)
            assert (reply.txn, reply.status) == (1, status)
            await bookie.take(1)
            worker_harness.publish()
            assert (await hear_v2(client)).entry_id == 3
            await client.close()


async def test_a_bookie_that_takes_no_adds() -> None:
    """Repairs go on while there is room, whatever their priority; explicit LACs don't, as with Apache's bookies."""
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
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
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            client.send(apache.v2_auth() + apache.v3_auth(4) + apache.v2_add(1))
            message = apache.v2_header(apache.V2_AUTH) + disabled.SerializeToString()
            assert await hear(client) == message
            fields = {1: "AuthDisabledPlugin", 2: b""}
            assert await hear_v3(client) == V3Reply(apache.AUTH, 4, EOK, 102, fields)
            assert (await bookie.take(1))[0].entry_id == 1
            await client.close()


@pytest.mark.parametrize("wanted", [0, 1, 2, 3])
async def test_disk_figures_are_said_as_asked_for(wanted: int) -> None:
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
            client.send(apache.v3_info(4, wanted))
            reply = await hear_v3(client)
            assert (reply.operation, reply.txn, reply.status) == (apache.INFO, 4, EOK)
            assert set(reply.fields) == ({2} if wanted & 1 else set()) | (
                {3} if wanted & 2 else set()
            )
            assert all(isinstance(value, int) and value > 0 for value in reply.fields.values())
            await client.close()


async def test_counters_tell_versions_and_operations_apart() -> None:
    with WorkerHarness() as worker_harness:
        async with served(worker_harness) as bookie:
            client = await bookie.connect()
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
            names |= {
                "V2_ADD_BYTES": 41,
                "V3_ADD_BYTES": 82,
                "APACHE_CONNECTIONS": 1,
                "V2_EFENCED": 0,
            }
            for name, value in names.items():
                assert worker_harness.counter(SLOTS[f"FBK_C_WORKER_{name}"]) == value, name
            await client.close()


async def test_a_bookie_without_a_journal_serves_reads_only() -> None:
    with WorkerHarness() as worker_harness:
        async with served(worker_harness, is_reads_only=True) as bookie:
            client = await bookie.connect()
            client.send(apache.v2_add(1, flags=apache.V2_RECOVERY) + apache.v3_write_lac(2, 1))
            client.send(apache.v3_force(3) + apache.v3_read(4, 1, flag=apache.FENCE, key=KEY))
            assert (await hear_v2(client)).error == V2_STATUSES[EREADONLY]
            assert [(await hear_v3(client)).status for _ in range(3)] == [EREADONLY] * 3
            client.send(apache.v2_read(1))
            worker_harness.say(await bookie.take_request(), "read", 1, 0, SOME, len(SOME))
            assert (await hear_v2(client)).rest == SOME
            await client.close()
