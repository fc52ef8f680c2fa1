"""`python -m tools.golden_release`: writes tests/golden/VERSION/ by the released version itself.

A cluster of one bookie in a compressed archive, as `kill -9` has left it: a part of its entries is in entry logs, the
rest in the journal alone. `tests/crash/test_released_files.py` opens it. Run it once for each release, when the pinned
commit of `tests/fixtures/released.py` has changed.
"""

from __future__ import annotations

import io
import json
import lzma
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from fastbk.devcluster import DevCluster
from tests.fixtures import released
from tools import ROOT

ARCHIVE, EXPECTED = "cluster.tar.xz", "expected.json"
LEFT_OUT = {"bookie.log", "bookie.toml", "dev.lock", "metadata.sqlite-shm", "port"}
"""What is no file of the bookie's or of metadata."""

SETTINGS = {
    "gc": {"interval": "1h"},
    "journal": {"first_file_size": "24MiB", "file_size": "24MiB"},
}

# Runs with the released version, in two lives of the bookie. Prints what a reader must find.
WRITER = """
import asyncio, json, sys
import fastbk
from fastbk.stream.policy import PolicyPatch

async def first(client):
    async with await client.create_ledger(1, 1, 1, metadata={"made": b"by the released version"}) as closed:
        await closed.append_many([b"closed %d" % one for one in range(300)])
    async with await client.create_ledger(1, 1, 1, digest="hmac", password=b"secret") as hmac:
        await hmac.append_many([b"hmac %d" % one for one in range(20)])
    space = client.namespace("shop")
    await space.create()
    policy = PolicyPatch(ensemble=1, write_quorum=1, ack_quorum=1, roll_bytes=2000, compression="lz4")
    stream = await space.create_stream("orders", policy)
    async with stream.writer() as writer:
        for one in range(200):
            await writer.append(b"order %d" % one, key=b"k%d" % (one % 3))
    async with stream.cursor("billing") as cursor:
        for one in range(50):
            cursor.ack(await anext(cursor))
    doomed = await client.create_ledger(1, 1, 1)
    await doomed.append(b"doomed")
    await doomed.close()
    await client.delete_ledger(doomed.ledger_id)
    return {"closed": closed.ledger_id, "hmac": hmac.ledger_id, "deleted": doomed.ledger_id}

async def second(client):
    open_one = await client.create_ledger(1, 1, 1)
    await open_one.append_many([b"open %d" % one for one in range(100)])
    stream = client.namespace("shop").stream("orders")
    async with stream.writer() as writer:
        for one in range(200, 260):
            await writer.append(b"order %d" % one, key=b"k%d" % (one % 3))
    print(json.dumps({"open": open_one.ledger_id}), flush=True)
    sys.stdin.readline()  # the ledger stays open: the bookie is killed before this client

async def main():
    async with fastbk.connect(sys.argv[2]) as client:
        made = await globals()[sys.argv[1]](client)
        if made:
            print(json.dumps(made), flush=True)

asyncio.run(main())
"""


def main() -> int:
    """Write the folder."""
    if reason := released.why_not():
        print(f"golden_release: {reason}", file=sys.stderr)
        return 1
    tree = released.build()
    target = ROOT / "tests" / "golden" / released.VERSION
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fastbk-golden-") as folder:
        expected = fill(Path(folder), tree)
        (target / ARCHIVE).write_bytes(packed(Path(folder)))
    (target / EXPECTED).write_text(json.dumps(expected, indent=1) + "\n")
    print(f"{target}: {(target / ARCHIVE).stat().st_size} bytes")
    return 0


def fill(folder: Path, tree: Path) -> dict[str, int]:
    """Run a cluster of one bookie in `folder`, fill it and kill it; return the ledgers by what they are."""
    cluster = DevCluster(folder, 1, settings=SETTINGS)
    (bookie,) = cluster.bookies
    bookie.tree = tree
    cluster.start()
    expected = json.loads(_start(tree, "first", cluster.metadata_uri).communicate(timeout=60)[0])
    cluster.stop()
    cluster.start()
    client = _start(tree, "second", cluster.metadata_uri)
    assert client.stdout is not None
    expected |= json.loads(client.stdout.readline())
    bookie.kill()
    client.kill()
    client.communicate()
    return dict(expected)


def _start(tree: Path, life: str, uri: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", WRITER, life, uri],
        env=released.environment(tree),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def packed(folder: Path) -> bytes:
    """Return the files of a folder as an archive; without owners and times, so that it has the same bytes again."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name not in LEFT_OUT:
                info = tarfile.TarInfo(path.relative_to(folder).as_posix())
                info.size, info.mode = path.stat().st_size, 0o600
                with path.open("rb") as file:
                    archive.addfile(info, file)
    return lzma.compress(out.getvalue(), preset=9 | lzma.PRESET_EXTREME)


if __name__ == "__main__":
    raise SystemExit(main())
