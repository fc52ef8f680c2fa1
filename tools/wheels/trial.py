"""Runs where a wheel is installed, with nothing of this tree: imports, a first append, a read; prints a line of JSON.

Its argument is the number of bookies.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import platform
import re
import statistics
import sys
import time
from pathlib import Path

STARTED = time.monotonic()
APPENDS = 200
START_TIMEOUT_S = 120


def processor_has_checksums() -> bool:
    """Return whether the processor has the instructions that checksums use: QEMU's aarch64 has, and all servers'."""
    flags = set(re.findall(r"\w+", Path("/proc/cpuinfo").read_text()))
    return {"sse4_2", "pclmulqdq"} <= flags if platform.machine() == "x86_64" else True


async def main() -> dict[str, object]:
    """Return what was seen and how long it took."""
    import fastbk
    from fastbk.native.hashes import crc32c, is_hardware
    from fastbk.testing import LocalCluster

    package = Path(fastbk.__file__).parent
    extensions = sorted(path.name.partition(".")[0] for path in package.glob("native/_*.so"))
    for name in extensions:
        importlib.import_module(f"fastbk.native.{name}")
    assert extensions == ["_bench", "_bookie", "_client"], extensions
    assert crc32c(b"123456789") == 0xE3069283
    assert is_hardware() == processor_has_checksums()
    imported = time.monotonic()

    count = int(sys.argv[1])
    async with LocalCluster(count, start_timeout_s=START_TIMEOUT_S) as cluster:
        ready = time.monotonic()
        async with fastbk.connect(cluster.metadata_uri) as client:
            quorum = min(count, 2)
            new = client.create_ledger(ensemble=count, write_quorum=count, ack_quorum=quorum)
            async with await new as writer:
                await writer.append(b"entry 0")
                first = time.monotonic()
                took = []
                for number in range(1, APPENDS):
                    before = time.monotonic()
                    last = await writer.append(b"entry %d" % number)
                    took.append(time.monotonic() - before)
            reader = await client.open_ledger(writer.ledger_id)
            read = [bytes(entry.data) async for entry in reader.read(0, last)]
        assert read == [b"entry %d" % number for number in range(APPENDS)]
        backends = set(re.findall(r'"journal_backend":"(\w+)"', cluster.log_tails(100)))
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "package": str(package),
        "version": fastbk.__version__,
        "import_s": round(imported - STARTED, 2),
        "cluster_s": round(ready - imported, 2),
        "first_append_s": round(first - STARTED, 2),
        "append_us": round(statistics.median(took) * 1e6),
        "journal": "/".join(sorted(backends)),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main())))
