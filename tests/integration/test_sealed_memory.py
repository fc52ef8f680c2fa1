"""What a compromised worker can do with its descriptors: no other process's memory can be written (INV-R1)."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastbk.testing import LocalCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(1) as running:
        yield running


def segments_of(pid: int) -> dict[str, Path]:
    """Return the shared memory that a process has descriptors of, by name, as its /proc/self/fd shows it."""
    found: dict[str, Path] = {}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            name = os.readlink(link)
        except FileNotFoundError:
            continue
        if "fastbk-segment" in name:
            found[f"{name} of {link.name}"] = link
    return found


def test_no_descriptor_of_any_process_can_be_mapped_for_writing_again(
    cluster: LocalCluster,
) -> None:
    (bookie,) = cluster.bookies
    looked_at = 0
    for name, pid in bookie.pids.items():
        for segment, link in segments_of(pid).items():
            attacker = os.open(link, os.O_RDWR)
            try:
                with pytest.raises(PermissionError):
                    mmap.mmap(attacker, 4096)
                with pytest.raises(PermissionError):
                    os.pwrite(attacker, b"x", 4096)
            finally:
                os.close(attacker)
            looked_at += 1
            assert segment, name
    assert looked_at >= 8, "the supervisor's, a worker's, the journal's, the index's, gc's"


def test_sealed_memory_is_not_warned_of(cluster: LocalCluster) -> None:
    (bookie,) = cluster.bookies
    assert "bookie.memory_not_sealed" not in bookie.log_path.read_text()
