"""A bookie process and clients that speak Apache's protocols to it: what they write, read, fence, wait for and list,
and that our own clients find the same."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator

import pytest

from fastbk.meta import open_store
from fastbk.meta.api import APACHE_PROTOCOL, FASTBK_PROTOCOL
from fastbk.model.entry import master_key
from fastbk.testing import LocalCluster
from fastbk.wire.statuses import Status
from tests.fixtures import apache_wire as apache
from tests.fixtures.apache_wire import (
    EFENCED,
    EIO,
    ENOENTRY,
    ENOLEDGER,
    EOK,
    EUA,
    LEDGER,
    hear_v2,
    hear_v3,
    whole_entry,
)
from tests.fixtures.raw_bookie import raw_bookie
from tests.fixtures.worker_harness import Client, connected

KEY = master_key(b"")
_ledger_ids = itertools.count(100)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(1) as made:
        yield made


@pytest.fixture
def ledger_id(monkeypatch: pytest.MonkeyPatch) -> int:
    """A ledger of this test's own, which its frames name."""
    monkeypatch.setattr(apache, "used_ledger_id", next(_ledger_ids))
    return apache.used_ledger_id


async def add_v2(client: Client, *entries: bytes, flags: int = 0) -> list[int]:
    client.send(b"".join(apache.v2_add(0, body=one, key=KEY, flags=flags) for one in entries))
    return [(await hear_v2(client)).error for _ in entries]


async def test_what_one_client_writes_the_others_read(
    cluster: LocalCluster, ledger_id: int
) -> None:
    client, own = await connected(cluster.bookies[0].port), await raw_bookie(cluster.bookies[0])
    entries = [whole_entry(i, b"%d" % i * 2000) for i in range(6)]
    assert await add_v2(client, *entries[:4]) == [0, 0, 0, 0]
    client.send(apache.v3_add(9, 4, body=entries[4], key=KEY))
    assert (await hear_v3(client)).status == EOK
    assert await own.add(ledger_id, 5, b"5" * 2000, lac=4, length=1000 - 2000) == Status.OK
    for entry_id in range(6):
        assert await own.read(ledger_id, entry_id) == b"%d" % entry_id * 2000
    client.send(
        b"".join(apache.v2_read(i) for i in (0, 4, -1, 6)) + apache.v2_read(0, ledger_id=77)
    )
    read = [await hear_v2(client) for _ in range(5)]
    assert [(one.error, one.entry_id) for one in read] == [(0, 0), (0, 4), (0, -1), (2, 6), (1, 0)]
    assert [one.rest for one in read[:2]] == [entries[0], entries[4]]
    assert read[2].rest[8:16] == struct.pack(">q", 5)
    client.send(apache.v3_read(1, 4) + apache.v3_read(2, 99) + apache.v3_read(3, 0, ledger_id=77))
    v3 = [await hear_v3(client) for _ in range(3)]
    assert v3[0].fields == {2: ledger_id, 3: 4, 4: entries[4], 5: 4}, "with the LAC"
    assert [one.status for one in v3[1:]] == [ENOENTRY, ENOLEDGER]
    client.send(apache.v2_batch(3, 1, 0) + apache.v2_batch(4, 6, 0) + apache.v3_list(5))
    batch, nothing, listed = await hear_v2(client), await hear_v2(client), await hear_v3(client)
    assert apache.v2_batch_entries(batch.rest)[1][:4] == entries[1:5]
    assert nothing.error == 2
    blob = listed.fields[3]
    assert isinstance(blob, bytes)
    assert apache.available(blob) == [0, 1, 2, 3, 4, 5]
    await client.close()
    own.close()


async def test_many_large_entries_that_are_requested_at_once(
    cluster: LocalCluster, ledger_id: int
) -> None:
    """Java's client reads so. Above `reply_backlog_max` its connection was closed, and its read failed with -8."""
    count, data = 48, bytes(900_000)
    client, other = (
        await connected(cluster.bookies[0].port),
        await connected(cluster.bookies[0].port),
    )
    for entry_id in range(count):
        assert await add_v2(client, whole_entry(entry_id, data)) == [0]
    client.reader._transport.pause_reading()  # type: ignore[attr-defined]
    client.send(b"".join(apache.v2_read(i) for i in range(count)))
    for _ in range(20):  # the replies are made meanwhile
        other.send(apache.v2_read(0))
        assert (await hear_v2(other)).error == 0
    client.reader._transport.resume_reading()  # type: ignore[attr-defined]
    replies = [await hear_v2(client) for _ in range(count)]
    assert {one.entry_id: one.error for one in replies} == dict.fromkeys(range(count), 0)
    await client.close()
    await other.close()


async def test_fences_and_repairs(cluster: LocalCluster, ledger_id: int) -> None:
    """A fence of one client ends the adds of all; what a recovery writes again is the same entry with another LAC."""
    client, own = await connected(cluster.bookies[0].port), await raw_bookie(cluster.bookies[0])
    assert await add_v2(client, whole_entry(0), whole_entry(1)) == [0, 0]
    client.send(apache.v3_add(1, 2, body=whole_entry(2), key=b"x" * 20))
    assert (await hear_v3(client)).status == EUA
    client.send(apache.v2_read(-1, flags=apache.V2_FENCE, key=KEY))
    fence = await hear_v2(client)
    assert (fence.error, fence.entry_id, fence.rest) == (0, -1, whole_entry(1))
    assert await own.add(ledger_id, 2, b"late") == Status.FENCED
    client.send(apache.v3_add(2, 2, body=whole_entry(2), key=KEY))
    assert (await hear_v3(client)).status == EFENCED
    again = [whole_entry(1, lac=0), whole_entry(1, b"other"), whole_entry(1, lac=-1)]
    repair = apache.V2_RECOVERY | apache.V2_HIGH_PRIORITY
    assert await add_v2(client, *again, flags=repair) == [0, 101, 0]
    client.send(
        apache.v3_read(3, -1, flag=apache.FENCE, key=KEY)
        + apache.v3_add(4, 1, body=again[1], key=KEY, recovery=True)
    )
    replies = {reply.txn: reply for reply in [await hear_v3(client), await hear_v3(client)]}
    assert replies[3].fields == {2: ledger_id, 3: -1, 4: whole_entry(1)}, (
        "the first copy stays; no LAC"
    )
    assert replies[4].status == EIO
    client.send(apache.v2_batch(7, 0, 9, flags=apache.V2_FENCE, key=KEY))
    assert apache.v2_batch_entries((await hear_v2(client)).rest) == (
        7,
        [whole_entry(0), whole_entry(1)],
    )
    await client.close()
    own.close()


async def test_the_lac_is_read_written_waited_for_and_outlives_restarts() -> None:
    async with LocalCluster(1) as cluster:
        client, writer = (
            await connected(cluster.bookies[0].port),
            await connected(cluster.bookies[0].port),
        )
        client.send(apache.v3_read_lac(1))
        assert (await hear_v3(client)).status == ENOLEDGER
        assert await add_v2(writer, whole_entry(0), whole_entry(1)) == [0, 0]
        client.send(apache.v3_read_lac(2))
        assert (await hear_v3(client)).fields == {2: LEDGER, 4: whole_entry(1)}
        client.send(apache.v3_read(3, -1, flag=apache.PIGGYBACK, previous_lac=0, timeout_ms=30_000))
        client.send(apache.v3_read(4, 0, previous_lac=0, timeout_ms=30_000))
        assert await add_v2(writer, whole_entry(2)) == [0]
        polls = {poll.txn: poll for poll in [await hear_v3(client), await hear_v3(client)]}
        assert polls[3].fields.pop(6), "when it moved"
        assert polls[3].fields == {2: LEDGER, 3: 1, 4: whole_entry(1), 5: 1}
        assert polls[4].fields == {2: LEDGER, 3: 0, 4: whole_entry(0), 5: 1}
        body = bytes.fromhex("000000000000000500000000000000064e206979")
        writer.send(apache.v3_force(5) + apache.v3_write_lac(6, 6, body=body, key=KEY))
        assert [(await hear_v3(writer)).status for _ in range(2)] == [EOK, EOK]
        client.send(apache.v3_read_lac(7))
        assert (await hear_v3(client)).fields == {2: LEDGER, 3: body, 4: whole_entry(2)}
        client.send(apache.v3_read(8, -1, flag=apache.PIGGYBACK, previous_lac=8, timeout_ms=1))
        assert (await hear_v3(client)).fields == {2: LEDGER, 3: -1, 5: 6}, "nothing new in time"
        await client.close()
        await writer.close()
        for _ in range(2):  # the second time nothing new was written
            await cluster.restart_bookie_async(0)
            client = await connected(cluster.bookies[0].port)
            client.send(apache.v3_read_lac(9))
            assert (await hear_v3(client)).fields == {2: LEDGER, 3: body, 4: whole_entry(2)}
            await client.close()


async def test_metadata_tells_where_both_kinds_of_clients_find_a_bookie(
    cluster: LocalCluster,
) -> None:
    store = open_store(cluster.metadata_uri)
    (registered,) = store.list_bookies()
    store.close()
    for protocol in (FASTBK_PROTOCOL, APACHE_PROTOCOL):
        endpoint = registered.service.endpoint(protocol)
        assert endpoint is not None
        assert (endpoint.port, endpoint.name) == (cluster.bookies[0].port, "bookie")
