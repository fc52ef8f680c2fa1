"""The floor: the disk by itself, and a chain of three bare C processes (tests/native/bench_chain.c)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from tests.native.compile import URING, build_program
from tools.benchmark.cases import Append, DiskWrite, Load
from tools.benchmark.run import Figures
from tools.benchmark.system import Measure, System, answer_of, native_figures, program

WINDOW_MAX = 1000
ENTRY_BYTES_MAX = 16 * 1024


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
        size = f"entry={load.size_bytes}"
        result = program(self._program, "chain.file", load.window, seconds, size, *self._options)
        figures = native_figures(result, ("worker", "journal"))
        if load.seconds_min:
            figures["disk_bytes"] = result["disk_bytes_per_entry"] / load.size_bytes
        return figures
