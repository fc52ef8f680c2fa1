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
NEXT_FILE_BYTES = 24 * MIB
"""The journal does not leave its first file; the zeros of the next one may be counted with the data."""
COUNTERS = {
    "journal": "fastbk_journal_disk_written_bytes_total",
    "index": "fastbk_index_disk_written_bytes_total",
}
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
        before = counted(bookie)
        async with fastbk.connect(cluster.metadata_uri) as client:
            writers = [
                await client.create_ledger(ensemble=1, write_quorum=1, ack_quorum=1)
                for _ in range(ledgers)
            ]
            for entry_id in range(DATA_BYTES // ENTRY_BYTES):
                await writers[entry_id % ledgers].append(os.urandom(ENTRY_BYTES))
            for writer in writers:
                await writer.close()

        def grown() -> dict[str, float]:
            return {role: now - before[role] for role, now in counted(bookie).items()}

        await wait_until_async(
            lambda: min(grown().values()) >= DATA_BYTES, "the counters to show all of the data"
        )
        for role, size_bytes in grown().items():
            assert size_bytes <= 1.1 * DATA_BYTES + NEXT_FILE_BYTES, role
            if (kernel := by_kernel(bookie, role)) is not None:
                assert kernel == pytest.approx(counted(bookie)[role], rel=0.1)
    finally:
        cluster.stop()
