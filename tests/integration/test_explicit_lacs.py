"""What a writer said of its last entry is there after a bookie was restarted, as with Apache's bookies."""

from __future__ import annotations

import asyncio
import struct

from fastbk.model.entry import master_key
from fastbk.native.hashes import DIGEST_CRC32C, with_digest
from fastbk.testing import LocalCluster
from tests.fixtures import apache_wire as apache
from tests.fixtures.apache_wire import EOK, LEDGER, hear_v3
from tests.fixtures.worker_harness import Client

KEY = master_key(b"")
BODY = struct.pack(">qq", LEDGER, 0) + b"\x4e\x20\x69\x79"


async def connect(cluster: LocalCluster) -> Client:
    address = ("127.0.0.1", cluster.bookies[0].port)
    return Client(*await asyncio.open_connection(*address, limit=8 << 20))


async def test_explicit_lacs_outlive_an_orderly_restart() -> None:
    async with LocalCluster(1) as cluster:
        client = await connect(cluster)
        entry = with_digest(DIGEST_CRC32C, struct.pack(">qqqq", LEDGER, 0, -1, 5), b"hello")
        for request in (
            apache.v3_add(1, 0, body=entry, key=KEY),
            apache.v3_write_lac(2, 0, body=BODY, key=KEY),
        ):
            client.send(request)
            assert (await hear_v3(client)).status == EOK
        await client.close()
        for _ in range(2):  # the second time nothing new was written
            await cluster.restart_bookie_async(0)
            client = await connect(cluster)
            client.send(apache.v3_read_lac(3))
            assert (await hear_v3(client)).fields == {2: LEDGER, 3: BODY, 4: entry}
            await client.close()
