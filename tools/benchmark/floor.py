"""The floor: the disk by itself, and a chain of three bare C processes (tools/native/bench_chain.c)."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from fastbk.units import MIB
from tests.native.compile import URING, build_program
from tools.benchmark.cases import Append, DiskWrite, Load
from tools.benchmark.disk_limit import disk_limit
from tools.benchmark.run import Figures
from tools.benchmark.system import Measure, System, answer_of, native_figures, program
from tools.part import BUILD, scratch

WINDOW_MAX = 1000
ENTRY_BYTES_MAX = 16 * 1024
CHAIN_BOOKIE = ("worker", "journal")
DISK_BYTES_PER_S = 512 * MIB
"""What a bookie writes to a fast disk in a sustained load, roughly."""
PIECE_BYTES, FILE_BYTES_MIN = MIB, 64 * MIB
FREE_BYTES_MIN = 4096 * MIB


class Disk(System):
    """Durable overwrites of a file, by fio."""

    name = "disk"

    def measures(self) -> Mapping[type, Measure]:
        return {DiskWrite: self._write}

    def _write(self, load: DiskWrite, seconds: float) -> Figures:
        command = [
            "fio", "--name=commit", "--filename=disk.file", "--size=256M", f"--bs={load.block}", "--rw=write",
            "--direct=1", "--sync=dsync", "--overwrite=1", "--ioengine=psync", "--time_based",
            f"--runtime={max(1, int(seconds))}", "--output-format=json",
        ]  # fmt: skip
        job = answer_of(command, "fio")["jobs"][0]
        written = job["write"]
        # The sync is part of the write with O_DSYNC, so completion latency is the commit's.
        percentiles = written["clat_ns"]["percentile"]
        found = {name: percentiles[key] / 1000 for name, key in
                 (("p50_us", "50.000000"), ("p99_us", "99.000000"), ("p999_us", "99.900000"))}  # fmt: skip
        busy_us = (job["usr_cpu"] + job["sys_cpu"]) / 100 * written["runtime"] * 1000
        return {
            "per_s": written["iops"],
            **found,
            "mb_per_s": written["bw_bytes"] / 1e6,
            "client_us": busy_us / max(written["total_ios"], 1),
        }


class Chain(System):
    """Client, worker and journal as a bookie has them, without anything else."""

    def __init__(self, name: str, *options: str) -> None:
        """`twice` among the options: beside a process that writes as many bytes again, as a bookie's flush does."""
        self.name = name
        self._options = options

    @cached_property
    def _program(self) -> Path:
        return build_program(["bench_chain.c"], [], "release", URING)

    def measures(self) -> Mapping[type, Measure]:
        return {Append: self._append}

    def can(self, load: Load) -> bool:
        """Whether it is one connection's entries, with a window and a size that its ring holds.

        It knows no ledgers: a sustained load of many has the same floor.
        """
        return (
            isinstance(load, Append)
            and load.connections == 1
            and (load.ledgers == 1 or load.seconds_min > 0)
            and load.window <= WINDOW_MAX
            and load.size_bytes <= ENTRY_BYTES_MAX
        )

    def _append(self, load: Append, seconds: float) -> Figures:
        options = [load.window, seconds, f"entry={load.size_bytes}", *self._options]
        if not load.seconds_min:
            return native_figures(program(self._program, "chain.file", *options), CHAIN_BOOKIE)
        with (
            chain_files(load, seconds, is_twice="twice" in self._options) as (path, size_bytes),
            disk_limit(BUILD, load.disk_bytes_per_s),
        ):
            result = program(self._program, path, *options, f"file={size_bytes}")
        disk_bytes = result["disk_bytes_per_entry"] / load.size_bytes
        return {**native_figures(result, CHAIN_BOOKIE), "disk_bytes": disk_bytes}


@contextlib.contextmanager
def chain_files(load: Append, seconds: float, *, is_twice: bool) -> Iterator[tuple[Path, int]]:
    """Give the chain's file, or both, and the size of each: together what the load may write.

    A bookie's files grow in a sustained load. A chain with small files could be faster only because a cache below the
    disk holds them. Their blocks are written before, and without the limit.
    """
    rate = load.disk_bytes_per_s or DISK_BYTES_PER_S
    count = 2 if is_twice else 1
    size_bytes = max(int(rate * seconds) // count, FILE_BYTES_MIN) // PIECE_BYTES * PIECE_BYTES
    with scratch() as folder:
        free_bytes = shutil.disk_usage(folder).free
        if free_bytes < count * size_bytes + FREE_BYTES_MIN:
            wanted_gb = (count * size_bytes + FREE_BYTES_MIN) / 1e9
            raise SystemExit(
                f"bench: a sustained case needs {wanted_gb:.0f} GB of free disk, {folder} has"
                f" {free_bytes / 1e9:.0f}: free some, or make it shorter by SUSTAINED_SECONDS"
            )
        path = folder / "chain.file"
        for file in (path, folder / f"{path.name}.flush")[:count]:
            fill(file, size_bytes)
        yield path, size_bytes


def fill(path: Path, size_bytes: int) -> None:
    """Write a file's blocks, past the page cache."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
    try:
        with mmap.mmap(-1, PIECE_BYTES) as zeros:
            for offset in range(0, size_bytes, PIECE_BYTES):
                os.pwrite(file, zeros, offset)
        os.fsync(file)
    finally:
        os.close(file)
