"""The doctor on disks and machines, real ones and made-up ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastbk.doctor import Finding, Status, ok, run_checks
from fastbk.doctor.machine import (
    Disks,
    Mount,
    System,
    disk_of,
    interrupts_of,
    mount_of,
    parse_mounts,
)
from fastbk.errors import StorageError
from fastbk.server.configuration.bookie_config import BookieConfig
from fastbk.server.configuration.settings import BookieSettings, JournalSettings, LedgerSettings
from fastbk.storage.identity_check import DirectoryPlace


def disks(folder: Path, **journal: int) -> Disks:
    settings = JournalSettings(directory=str(folder / "journal"), **journal)
    ledgers = LedgerSettings(directory=str(folder / "ledgers"))
    return Disks(BookieConfig(journal=settings, ledgers=ledgers))


# --- disks -------------------------------------------------------------------------------------------------------


def test_no_room(tmp_path: Path) -> None:
    for role in ("journal", "ledger"):
        (found, *_) = disks(tmp_path, limit_bytes=1 << 49).room(str(tmp_path), DirectoryPlace(role))
        assert found.status is Status.FAIL


def test_mountinfo_is_read_with_its_escapes() -> None:
    text = (
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,discard\n"
        "23 22 8:2 / /my\\040disk rw - xfs /dev/sdb ro,nobarrier\nrubbish\n"
    )
    assert parse_mounts(text)[1] == Mount(
        "8:2", "/my disk", "xfs", "/dev/sdb", frozenset({"rw", "ro", "nobarrier"})
    )


@pytest.mark.parametrize(
    ("line", "status", "says"),
    [
        ("- ext4 /dev/sda rw", Status.OK, "ext4"),
        ("- ext4 /dev/sda rw,nobarrier", Status.FAIL, "power cut"),
        ("- xfs /dev/sda ro", Status.FAIL, "read-only"),
        ("- tmpfs tmpfs rw", Status.WARN, "in memory"),
        ("- nfs4 host:/ rw", Status.WARN, "network"),
        ("- btrfs /dev/sda rw", Status.WARN, "what is tested"),
    ],
)
def test_file_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, status: Status, says: str
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(f"22 1 8:1 / / rw {line}\n")
    monkeypatch.setattr("fastbk.doctor.machine.mount_of", lambda path: mount_of(path, table))
    found = disks(tmp_path).mount(str(tmp_path), DirectoryPlace("journal"))
    assert found.status is status
    assert says in found.why


def test_the_mount_on_top_counts(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    lines = [
        f"1 1 8:{n} / {point} rw - ext4 /dev/{n} rw"
        for n, point in enumerate(["/", "/a", "/a", "/ab"])
    ]
    table.write_text("\n".join(lines))
    assert mount_of("/a/b", table).device == "8:2"
    assert mount_of("/abc", table).device == "8:0"
    with pytest.raises(StorageError):
        mount_of("/a", Path(os.devnull))


# --- the machine -------------------------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A made-up `/proc` and `/sys` in one folder."""
    files = {
        "sys/kernel/osrelease": "6.1.0-13-amd64",
        "sys/kernel/io_uring_disabled": "0",
        "sys/vm/swappiness": "60",
        "self/status": "Name:\tx\nSeccomp:\t0\n",
        "meminfo": "MemTotal: 8000000 kB\nMemAvailable: 6000000 kB\nSwapTotal: 0 kB\n",
        "kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def findings_of(machine: Path) -> list[Finding]:
    return list(run_checks(System(BookieConfig(), machine, machine).checks()))


def test_a_healthy_machine(machine: Path) -> None:
    bad = {each.name for each in findings_of(machine) if each.status is not Status.OK}
    # of the machine that runs this
    assert bad <= {"clock", "checksums", "processors", "open files"}


@pytest.mark.parametrize(
    ("usable", "spin_us", "processors", "status", "says"),
    [
        (2, 0, (), Status.OK, "2 usable"),
        (2, 300, (1,), Status.WARN, "may keep 2 busy"),
        (3, 300, (1,), Status.OK, "may keep 2 busy"),
        (8, 300, (), Status.WARN, "spin without processors"),
    ],
)
def test_polling_needs_processors_of_its_own(
    usable: int,
    spin_us: int,
    processors: tuple[int, ...],
    status: Status,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(usable)))
    bookie = BookieSettings(workers=1, spin_us=spin_us, processors=processors)
    finding = System(BookieConfig(bookie=bookie)).processors()
    assert (finding.status, says in finding.why) == (status, True), finding


@pytest.mark.parametrize(
    ("file", "text", "name", "status"),
    [
        ("sys/kernel/io_uring_disabled", "2", "io_uring allowed", Status.WARN),
        ("sys/kernel/osrelease", "4.19.0", "kernel", Status.WARN),
        ("meminfo", "MemTotal: 100000 kB\nMemAvailable: 1 kB\n", "memory", Status.FAIL),
        ("meminfo", "MemTotal: 8000000 kB\nMemAvailable: 1 kB\n", "memory", Status.WARN),
        ("meminfo", "MemTotal: 8000000 kB\nMemAvailable: 6000000 kB\nSwapTotal: 9 kB\n", "swap", Status.WARN),
        ("kernel/mm/transparent_hugepage/enabled", "[always] madvise never", "huge pages", Status.WARN),
        ("fs/cgroup/memory.max", "1000000", "memory", Status.FAIL),
    ],
)  # fmt: skip
def test_ill_machines(machine: Path, file: str, text: str, name: str, status: Status) -> None:
    path = machine / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    (found,) = (each for each in findings_of(machine) if each.name == name)
    assert found.status is status
    assert found.fix


def test_a_look_that_cannot_be_taken_does_not_keep_the_others() -> None:
    def broken() -> Finding:
        raise PermissionError(13, "no")

    found = list(run_checks([("a", broken), ("b", lambda: ok("well"))]))
    assert [(each.name, each.status) for each in found] == [("a", Status.WARN), ("b", Status.OK)]


# Which processor a journal's disk interrupts, on machines made up.


TEXT = """\
           CPU0       CPU1       CPU4
 28:          7          0          0 PCI-MSIX-0000:00:01.0   0-edge      virtio1-config
 36:          5         90          0 PCI-MSIX-0000:00:02.0   1-edge      virtio1-req.0
 37:          0          0          5 PCI-MSIX-0000:00:02.0   2-edge      virtio1-req.1
 38:         30         30         40 PCI-MSIX-0000:00:03.0   1-edge      nvme0q1
NMI:          0          0          0   Non-maskable interrupts
ERR:          0
"""


def machine_with_disk(root: Path, disk: str, bus: str, *, partition: str = "") -> tuple[Path, Path]:
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
    _, sys_ = machine_with_disk(tmp_path, disk, bus, partition=partition)
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
    finding = Disks(config).interrupts(
        str(tmp_path / "journal"), *machine_with_disk(tmp_path, disk, bus)
    )
    assert (finding.status, text in finding.why) == (status, True), finding
