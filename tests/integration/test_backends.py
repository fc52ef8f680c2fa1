"""A bookie where io_uring is not wanted, or not to be had: the same promises by plain system calls."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fastbk
from fastbk.testing import LocalCluster


async def cycle(cluster: LocalCluster, *killed: str) -> None:
    """Append, kill each of these processes in turn, append, read everything."""
    async with fastbk.connect(cluster.metadata_uri, append_timeout=60.0) as client:
        async with await client.create_ledger(1, 1, 1) as writer:
            for process in killed:
                await asyncio.gather(*(writer.append(b"%d" % n) for n in range(200)))
                boots = cluster.bookies[0].boots
                await cluster.kill_async(0, process)
                if process == "supervisor":
                    await cluster.start_bookie_async(0)
                else:
                    await cluster.wait_ready_async(0, boots + 1)
            await asyncio.gather(*(writer.append(b"%d" % n) for n in range(200)))
        reader = await client.open_ledger(writer.ledger_id)
        rounds = len(killed) + 1
        found = [bytes(entry.data) async for entry in reader.read(0, 200 * rounds - 1)]
        assert found == [b"%d" % n for n in range(200)] * rounds


def log_lines(cluster: LocalCluster, event: str) -> list[str]:
    return [line for line in cluster.bookies[0].log_tail(100_000).splitlines() if event in line]


async def test_without_io_uring_the_same_is_kept() -> None:
    async with LocalCluster(1, settings={"journal": {"backend": "plain"}}) as cluster:
        await cycle(cluster, "journal", "worker.0", "index", "supervisor")
        ready = log_lines(cluster, "journal.ready")
        assert ready and all('"backend":"plain"' in line.replace(" ", "") for line in ready)
        assert not log_lines(cluster, "io_uring_refused"), "nothing was refused: it was chosen"


FORBIDDEN = """
import asyncio, ctypes, struct, sys
# A filter that answers EPERM to io_uring_setup, as a container's default profile does.
filters = [(0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in filters))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(filters), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, program, 0, 0) != 0:
    sys.exit(77)
from fastbk.testing import LocalCluster
from tests.integration.test_backends import cycle, log_lines
async def main():
    async with LocalCluster(1) as cluster:
        boots = cluster.bookies[0].boots
        refused = log_lines(cluster, "journal.io_uring_refused")
        assert boots == 1 and len(refused) == 1, refused
        assert "Operation not permitted" in refused[0], refused
        # By the same system calls as where they were chosen; each journal of these boots says so.
        await cycle(cluster, "journal")
        ready = log_lines(cluster, "journal.ready")
        assert ready and all('"backend":"plain"' in line.replace(" ", "") for line in ready), ready
        assert len(log_lines(cluster, "journal.io_uring_refused")) == len(ready)
asyncio.run(main())
print("kept")
"""


def test_where_io_uring_is_forbidden_the_bookie_says_so_once_and_serves() -> None:
    result = subprocess.run(
        [sys.executable, "-c", FORBIDDEN],
        cwd=Path(__file__).parents[2],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if result.returncode == 77:
        pytest.skip("needs io_uring to be forbidden by seccomp: refused here")
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("kept\n")
