"""`./dev bench files`: what a new journal file costs: durable writes into blocks that were written before, and into
blocks that were only allocated.

Each size takes turns on the two kinds of file, on the disk of this tree and, for root, on ext4 with a journal and on
xfs (loop devices on files that were written before). ROUNDS=3, WRITES=300 a round and size.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from fastbk.native.disk import Disk
from fastbk.native.journal import ALLOCATES, HURRIES, Prewrite
from fastbk.units import KIB, MIB
from tests.rigs import mounts
from tools.part import percentile, print_table, scratch, setting

SIZES = {"4 KiB": 4 * KIB, "128 KiB": 128 * KIB, "1 MiB": MIB}
FILE_BYTES = 64 * MIB
IMAGE_BYTES = 1024 * MIB
# Nothing is discarded: the loop device's own file is to have all of its blocks written.
FILE_SYSTEMS = {
    "ext4 with a journal": (
        "ext4",
        ("mkfs.ext4", "-q", "-F", "-O", "has_journal", "-E", "nodiscard"),
    ),
    "xfs": ("xfs", ("mkfs.xfs", "-q", "-f", "-K")),
}
POLL_S = 0.001


@contextlib.contextmanager
def loop_disk(folder: Path, kind: str, make: tuple[str, ...]) -> Iterator[Path]:
    """Mount a new file system on a file whose blocks were all written before. Raises OSError, CalledProcessError."""
    image = folder / f"{kind}.image"
    with image.open("wb") as file:
        for _ in range(IMAGE_BYTES // MIB):
            file.write(bytes(MIB))
        os.fsync(file.fileno())
    search = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    environment = {**os.environ, "PATH": search}
    subprocess.run([*make, str(image)], check=True, capture_output=True, env=environment)
    device = mounts.attach(image)
    path = folder / kind
    path.mkdir()
    try:
        mounts.mount(device, path, kind)
        try:
            yield path
        finally:
            mounts.unmount(path)
    finally:
        mounts.detach(device)
        image.unlink()


def made(disk: Disk, folder: Path, name: str, *, allocates: bool) -> tuple[Path, bool]:
    """Have a journal's thread make a file; return it, and whether all of its blocks were written."""
    path = folder / name
    prewrite = Prewrite(
        disk, str(folder), str(path), FILE_BYTES, haste=ALLOCATES if allocates else HURRIES
    )
    while not prewrite.is_done():
        time.sleep(POLL_S)
    return path, prewrite.written_bytes == FILE_BYTES


def write_us(disk: Disk, path: Path, size_bytes: int, writes: int) -> list[float]:
    """Write one behind the other into a file, from its beginning; return how long each took."""
    file = disk.open(str(path), direct=True)
    data = os.urandom(size_bytes)
    took = []
    for at in range(min(writes, FILE_BYTES // size_bytes)):
        began_ns = time.perf_counter_ns()
        disk.write_all(file, data, at * size_bytes, durable=True)
        took.append((time.perf_counter_ns() - began_ns) / 1e3)
    disk.close(file)
    return took


def measure(folder: Path, rounds: int, writes: int) -> dict[str, dict[str, float]]:
    """Return the middle of all rounds' writes by size of a write."""
    took: dict[tuple[str, bool], list[float]] = {}
    with Disk(folder, "plain") as disk:
        for turn in range(rounds):
            for size in SIZES:
                for allocates in (True, False) if turn % 2 else (False, True):
                    path, is_written = made(disk, folder, "file", allocates=allocates)
                    if is_written == allocates:
                        raise OSError(f"{folder}: blocks cannot be allocated without being written")
                    took.setdefault((size, allocates), []).extend(
                        write_us(disk, path, SIZES[size], writes)
                    )
                    path.unlink()
    figures = {}
    for size in SIZES:
        written, allocated = (percentile(took[size, kind], 0.5) for kind in (False, True))
        figures[size] = {
            "written_p50_us": round(written, 1),
            "allocated_p50_us": round(allocated, 1),
            "allocated_by_written": round(allocated / written, 2),
        }
    return figures


def main() -> dict[str, dict[str, float]]:
    rounds, writes = setting("ROUNDS", 3), setting("WRITES", 300)
    figures = {}
    with scratch() as folder:
        for size, each in measure(folder, rounds, writes).items():
            figures[f"this disk, {size}"] = each
        for name, (kind, make) in FILE_SYSTEMS.items():
            try:
                with loop_disk(folder, kind, make) as path:
                    for size, each in measure(path, rounds, writes).items():
                        figures[f"{name}, {size}"] = each
            except (OSError, subprocess.CalledProcessError) as error:
                print(f"{name}: not measured: {error}", flush=True)
    print_table(figures)
    return figures
