"""A known number of requests of each kind over three protocols, found exactly in Apache's names (INV-O1)."""

from __future__ import annotations

import asyncio
import struct

from fastbk.model.entry import master_key
from fastbk.native import client_codec as codec
from fastbk.native.hashes import DIGEST_CRC32C, with_digest
from fastbk.testing import LocalCluster
from fastbk.wire.statuses import Status
from tests.fixtures import apache_wire as apache
from tests.fixtures.apache_wire import LEDGER, hear_v2, hear_v3
from tests.fixtures.exposition import Exposition, scraped
from tests.fixtures.raw_bookie import raw_bookie
from tests.fixtures.worker_harness import Client

KEY = master_key(b"")
SERVER = "bookkeeper_server_"
POLL_MS = 50

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


def entry(entry_id: int, ledger_id: int = LEDGER) -> bytes:
    header = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 1000)
    return with_digest(DIGEST_CRC32C, header, b"hello")


async def connected(cluster: LocalCluster) -> Client:
    address = ("127.0.0.1", cluster.bookies[0].port)
    return Client(*await asyncio.open_connection(*address, limit=8 << 20))


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


async def test_version_2() -> None:
    async with LocalCluster(1) as cluster:
        client = await connected(cluster)
        adds = [apache.v2_add(0, body=entry(i), key=KEY) for i in range(7)]
        stranger = apache.v2_add(0, body=entry(7), key=b"x" * 20)
        assert await ask_v2(client, *adds, stranger) == [0] * 7 + [102]
        reads = [apache.v2_read(i) for i in (0, 6, -1, 7)]
        assert await ask_v2(client, *reads) == [0, 0, 0, 2]
        assert await ask_v2(client, apache.v2_batch(1, 2, 3), apache.v2_batch(2, 9, 1)) == [0, 2]
        fence = apache.v2_read(-1, flags=apache.V2_FENCE, key=KEY)
        assert await ask_v2(client, fence) == [0]
        assert await ask_v2(client, apache.v2_batch(3, 0, 9, flags=apache.V2_FENCE, key=KEY)) == [0]
        late = apache.v2_add(0, body=entry(7), key=KEY)
        assert await ask_v2(client, late, late) == [104, 104]
        shown = await scraped(cluster)
        await client.close()
    nothing = dict.fromkeys(NAMES, (0, 0))
    assert counts(shown) == nothing | {"adds": (7, 3), "reads": (4, 2), "fences": (2, 0)}
    check_sums(shown)


async def test_version_3() -> None:
    async with LocalCluster(1) as cluster:
        client, other = await connected(cluster), await connected(cluster)
        assert await ask_v3(client, apache.v3_read_lac(1), apache.v3_list(2)) == [402, 402]
        adds = [apache.v3_add(i, i, body=entry(i), key=KEY) for i in range(4)]
        assert await ask_v3(client, *adds) == [0] * 4
        assert await ask_v3(client, apache.v3_read(1, 0), apache.v3_read(2, 8)) == [0, 403]
        assert await ask_v3(client, apache.v3_read_lac(3), apache.v3_list(4)) == [0, 0]
        # One poll is answered by the entry that comes, one by its time, one has its answer already.
        client.send(apache.v3_read(5, -1, flag=apache.PIGGYBACK, previous_lac=2, timeout_ms=30_000))
        assert await ask_v3(other, apache.v3_add(6, 4, body=entry(4), key=KEY)) == [0]
        assert (await hear_v3(client)).status == 0
        late = apache.v3_read(7, -1, flag=apache.PIGGYBACK, previous_lac=9, timeout_ms=POLL_MS)
        assert await ask_v3(client, late) == [0]
        assert await ask_v3(client, apache.v3_read(8, 0, previous_lac=0, timeout_ms=30_000)) == [0]
        write = apache.v3_write_lac(9, 3, body=lac_body(3), key=KEY)
        assert await ask_v3(client, write, apache.v3_force(10)) == [0, 0]
        assert await ask_v3(client, apache.v3_info(11, 3)) == [0]
        fence = apache.v3_read(12, -1, flag=apache.FENCE, key=KEY)
        assert await ask_v3(client, fence) == [0]
        assert await ask_v3(client, apache.v3_add(13, 5, body=entry(5), key=KEY)) == [504]
        shown = await scraped(cluster)
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


async def test_our_protocol() -> None:
    async with LocalCluster(1) as cluster:
        own = await raw_bookie(cluster.bookies[0])
        assert await own.status(codec.put_read, LEDGER, 0) == Status.NO_LEDGER
        for entry_id in range(6):
            assert await own.add(LEDGER, entry_id, b"hello", lac=entry_id - 1) == Status.OK
        assert await own.add(LEDGER, 6, b"hello", password=b"other") == Status.UNAUTHORIZED
        assert await own.read(LEDGER, 5) == b"hello"
        assert await own.status(codec.put_read, LEDGER, 17) == Status.NO_ENTRY
        assert await own.status(codec.put_read, LEDGER, -2) == Status.BAD_REQUEST
        assert await own.status(codec.put_read_batch, LEDGER, 0, 5, 6, 1 << 20) == Status.OK
        assert await own.status(codec.put_read_lac, LEDGER, -1) == Status.OK
        assert await own.status(codec.put_read_lac, LEDGER, 9, POLL_MS) == Status.OK
        assert await own.status(codec.put_read_lac, LEDGER, 0, 30_000) == Status.OK
        assert await own.status(codec.put_read_lac, 77, 0, 0) == Status.NO_LEDGER
        assert await own.status(codec.put_write_lac, LEDGER, 4, KEY, lac_body(4)) == Status.OK
        assert await own.status(codec.put_force, LEDGER) == Status.OK
        assert await own.status(codec.put_list_entries, LEDGER, 0, 100) == Status.OK
        await own.info()
        assert await own.status(codec.put_ping) == Status.OK
        assert await own.fence(LEDGER) == Status.OK
        assert await own.add(LEDGER, 6, b"late") == Status.FENCED
        shown = await scraped(cluster)
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
    return struct.pack(">qq", LEDGER, lac) + b"dgst"


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
