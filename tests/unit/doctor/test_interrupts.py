"""Which processor a journal's disk interrupts, on machines made up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastbk.doctor import Status
from fastbk.doctor.machine import Disks, disk_of, interrupts_of
from fastbk.server.configuration.bookie_config import BookieConfig
from fastbk.server.configuration.settings import BookieSettings, JournalSettings, LedgerSettings

TEXT = """\
           CPU0       CPU1       CPU4
 28:          7          0          0 PCI-MSIX-0000:00:01.0   0-edge      virtio1-config
 36:          5         90          0 PCI-MSIX-0000:00:02.0   1-edge      virtio1-req.0
 37:          0          0          5 PCI-MSIX-0000:00:02.0   2-edge      virtio1-req.1
 38:         30         30         40 PCI-MSIX-0000:00:03.0   1-edge      nvme0q1
NMI:          0          0          0   Non-maskable interrupts
ERR:          0
"""


def machine(root: Path, disk: str, bus: str, *, partition: str = "") -> tuple[Path, Path]:
    """Return /proc and /sys of a machine on whose disk everything here lies."""
    proc, sys_ = root / "proc", root / "sys"
    block = sys_ / "devices" / bus / "block" / disk
    (block / partition).mkdir(parents=True)
    proc.mkdir()
    (proc / "interrupts").write_text(TEXT)
    (block / "device").symlink_to(sys_ / "devices" / bus)
    if partition:
        (block / partition / "partition").write_text("1\n")
    (sys_ / "dev/block").mkdir(parents=True)
    device = os.stat(root).st_dev
    (sys_ / "dev/block" / f"{os.major(device)}:{os.minor(device)}").symlink_to(block / partition)
    return proc, sys_


def test_interrupts_are_counted_by_processor() -> None:
    assert interrupts_of(TEXT, "virtio1-req") == {0: 5, 1: 90, 4: 5}
    assert interrupts_of(TEXT, "nvme0q") == {0: 30, 1: 30, 4: 40}
    assert interrupts_of(TEXT, "virtio2-req") == {}


@pytest.mark.parametrize(
    ("disk", "bus", "partition", "found"),
    [
        ("vda", "virtio1", "", ("vda", "virtio1-req")),
        ("vda", "virtio1", "vda2", ("vda", "virtio1-req")),
        ("nvme0n1", "nvme0", "nvme0n1p3", ("nvme0n1", "nvme0q")),
        ("sda", "target0", "", None),
    ],
)
def test_the_disk_of_a_directory(
    disk: str, bus: str, partition: str, found: tuple[str, str] | None, tmp_path: Path
) -> None:
    _, sys_ = machine(tmp_path, disk, bus, partition=partition)
    assert disk_of(str(tmp_path), sys_) == found


@pytest.mark.parametrize(
    ("disk", "bus", "processors", "status", "text"),
    [
        ("vda", "virtio1", (), Status.OK, "vda: processor 1 has 90% of them"),
        ("vda", "virtio1", (1,), Status.OK, "vda: processor 1 has 90% of them"),
        ("vda", "virtio1", (0, 4), Status.WARN, "[0, 4] are others"),
        ("nvme0n1", "nvme0", (0,), Status.OK, "spread over 3 processors"),
        ("sda", "target0", (0,), Status.OK, "not known"),
        ("vdb", "virtio7", (0,), Status.OK, "not known"),
    ],
)
def test_who_keeps_to_other_processors_is_told(
    disk: str, bus: str, processors: tuple[int, ...], status: Status, text: str, tmp_path: Path
) -> None:
    config = BookieConfig(
        bookie=BookieSettings(processors=processors),
        journal=JournalSettings(directory=str(tmp_path / "journal")),
        ledgers=LedgerSettings(directory=str(tmp_path / "ledgers")),
    )
    finding = Disks(config).interrupts(str(tmp_path / "journal"), *machine(tmp_path, disk, bus))
    assert (finding.status, text in finding.why) == (status, True), finding
