"""How many bytes a bookie's processes hand to disks for each byte of data, as `/metrics` counts them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import fastbk
from fastbk.devcluster import Bookie, DevCluster
from fastbk.units import KIB, MIB
from tests.fixtures.pages import metrics
from tests.fixtures.wait import wait_until_async

ENTRY_BYTES = 16 * KIB
DATA_BYTES = 56 * MIB
COUNTERS = {
    "journal": "fastbk_journal_disk_written_bytes_total",
    "index": "fastbk_index_disk_written_bytes_total",
}
FILES_READY = "bookie_journal_JOURNAL_CREATION_LATENCY_count"
# The journal does not leave its first file.
SETTINGS: dict[str, dict[str, object]] = {
    "journal": {"file_size": "24MiB", "first_file_size": "80MiB", "limit": "256MiB"},
    "ledgers": {"write_cache_size": "16MiB", "flush_interval": "500ms"},
}


def counted(bookie: Bookie) -> dict[str, float]:
    found = metrics(bookie)
    return {
        role: sum(value for name, value in found.items() if name.startswith(metric))
        for role, metric in COUNTERS.items()
    }


def by_kernel(bookie: Bookie, role: str) -> float | None:
    """Return what the kernel shows to root; children hide it from their own user."""
    if os.geteuid() != 0:
        return None
    lines = Path(f"/proc/{bookie.pids[role]}/io").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("write_bytes")))


@pytest.mark.parametrize("ledgers", [1, 10])
async def test_each_byte_is_written_to_the_journal_and_to_an_entry_log(
    tmp_path: Path, ledgers: int
) -> None:
    cluster = DevCluster(tmp_path, bookies=1, settings=SETTINGS)
    cluster.start()
    try:
        bookie = cluster.bookies[0]

        def is_next_file_ready() -> bool:
            found = metrics(bookie).items()
            return sum(value for name, value in found if name.startswith(FILES_READY)) >= 2

        await wait_until_async(is_next_file_ready, "zeros in the journal's next file")
        before = counted(bookie)
        async with fastbk.connect(cluster.metadata_uri) as client:
            writers = [
                await client.create_ledger(ensemble=1, write_quorum=1, ack_quorum=1)
                for _ in range(ledgers)
            ]
            for _ in range(DATA_BYTES // ENTRY_BYTES // ledgers):
                for writer in writers:
                    await writer.ready()
                    writer.append_nowait(os.urandom(ENTRY_BYTES))
            for writer in writers:
                await writer.close()

        def grown() -> dict[str, float]:
            return {role: now - before[role] for role, now in counted(bookie).items()}

        await wait_until_async(
            lambda: min(grown().values()) >= DATA_BYTES, "the counters to show all of the data"
        )
        for role, size_bytes in grown().items():
            assert size_bytes <= 1.3 * DATA_BYTES, role
            kernel = by_kernel(bookie, role)
            assert kernel is None or kernel >= before[role] + size_bytes
    finally:
        cluster.stop()
