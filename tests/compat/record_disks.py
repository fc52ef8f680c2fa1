"""`python -m tests.compat.record_disks` records tests/golden/apache_bookie: what Apache's bookies leave on their disks.

A bookie for each of Apache's three storages: three ledgers and a clean stop, one of them deleted, four more and
SIGKILL. Journals are kept without their preallocated ends; RocksDB's own logs and options and the cookies are not.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from pathlib import Path

import fastbk
from fastbk.client.client import Client
from tests.compat.jars import programs
from tests.compat.members import STORAGES
from tests.compat.rig import Cluster, Rig
from tests.fixtures.apache_disk import DELETED, GOLDEN, payload

SETTINGS: dict[str, dict[str, object]] = {
    "db": {},
    "sorted": {},
    "interleaved": {"fileInfoFormatVersionToWrite": 0, "journalFormatVersionToWrite": 5},
}
BLOCK_BYTES = 4096
LEFT_OUT = ("LOG*", "OPTIONS*", "*.dbtmp", "LOCK", "VERSION", "IDENTITY", "lastId", "DIRTY")


async def _write(
    client: Client, count: int, digest: str = "crc32c", password: bytes = b"", end: str = "close"
) -> int:
    """Write a ledger; `end`: close, recover (by another reader), told (its LAC is told first), or leave."""
    writer = await client.create_ledger(1, 1, 1, digest=digest, password=password)
    for entry_id in range(count):
        await writer.append(payload(writer.ledger_id, entry_id))
    if end == "told":
        await writer.write_last_add_confirmed()
    if end == "recover":
        async with await client.open_ledger(writer.ledger_id, password=password):
            pass
    if end in ("close", "told"):
        await writer.close()
    return int(writer.ledger_id)


async def _before_the_stop(uri: str) -> dict[int, int]:
    async with fastbk.connect(uri, explicit_lac_interval=0) as client:
        return {
            await _write(client, 12, end="recover"): 12,
            await _write(client, 8, "crc32", b"secret", end="told"): 8,
            await _write(client, 5): 5,
        }


async def _behind_the_stop(uri: str) -> dict[int, int]:
    async with fastbk.connect(uri, explicit_lac_interval=0) as client:
        await client.delete_ledger(DELETED)
        return {
            await _write(client, 6, "hmac", b"hm"): 6,
            await _write(client, 4, "none"): 4,
            await _write(client, 9, password=b"open", end="leave"): 9,
            await _write(client, 3, end="recover"): 3,
        }


def _record(cluster: Cluster, storage: str) -> None:
    bookie = cluster.members[0]
    entries = asyncio.run(_before_the_stop(cluster.metadata_uri))
    bookie.stop()
    bookie.spawn()
    bookie.wait_ready()
    entries |= asyncio.run(_behind_the_stop(cluster.metadata_uri))
    bookie.kill()
    del entries[DELETED]
    target = GOLDEN / storage
    shutil.rmtree(target, ignore_errors=True)
    for name in ("journal", "ledgers"):
        source = cluster.folder / "apache-1" / name
        shutil.copytree(source, target / name, ignore=shutil.ignore_patterns(*LEFT_OUT))
    for path in target.rglob("*.txn"):
        content = path.read_bytes()
        blocks = len(content.rstrip(b"\0")) // BLOCK_BYTES + 2
        path.write_bytes(content[: blocks * BLOCK_BYTES])
    root = cluster.location.root
    found = {
        "bookie_id": bookie.bookie_id,
        "instance_id": cluster.kazoo.get(f"{root}/INSTANCEID")[0].decode(),
        "ledgers": {
            str(one): cluster.kazoo.get(f"{root}/00/0000/L{one:04}")[0].hex() for one in entries
        },
        "entries": {str(one): count for one, count in entries.items()},
    }
    (target / "recorded.json").write_text(json.dumps(found, indent=1) + "\n")


def main() -> int:
    with Rig(Path(tempfile.mkdtemp(prefix="fastbk-record-")), programs()) as rig:
        for storage, name in STORAGES.items():
            settings: dict[str, object] = {"ledgerStorageClass": name, **SETTINGS[storage]}
            with rig.cluster(apache=1, apache_settings=settings) as cluster:
                _record(cluster, storage)
        shutil.rmtree(rig.folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
