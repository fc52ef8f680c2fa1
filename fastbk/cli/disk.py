"""`fastbk disk bench DIR`: what a durable write costs there, bare and through the bookie's backends."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.cli.options import add_json, note, print_answer
from fastbk.errors import ConfigError, StorageError
from fastbk.units import MIB, format_size

if TYPE_CHECKING:
    import argparse

    from fastbk.native.disk import Disk

SMALL_BYTES = 4096
LARGE_BYTES = MIB
FILE_BYTES = 64 * MIB
BACKENDS = ("io_uring", "plain")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    bench = verbs.add_parser("bench", help="measure durable writes in a directory")
    bench.add_argument("directory", type=Path, metavar="DIR", help="on the disk in question")
    bench.add_argument("--seconds", type=float, default=2.0, help="for each measurement (2)")
    add_json(bench)


def run(options: argparse.Namespace) -> int:
    """Measure and print."""
    from fastbk.native.load import LoadError, disk_probe

    directory = options.directory
    if not directory.is_dir():
        raise ConfigError(f"{directory}: no such directory")
    if not 0 < options.seconds <= 600:
        raise ConfigError("--seconds must be above 0 and at most 600")
    note(f"measuring {directory} for about {(1 + 2 * len(BACKENDS)) * options.seconds:.0f} s")
    try:
        with disk_probe(directory) as probe:
            probe.run(options.seconds)
            answer: dict[str, object] = {
                "directory": str(directory),
                "direct": probe.direct,
                "commits_per_s": round(probe.commits_per_s, 1),
                "disk_commit_us": probe.latencies.summary_us(),
            }
    except LoadError as error:
        raise StorageError(str(error)) from error
    answer["backends"] = {name: _backend(directory, name, options.seconds) for name in BACKENDS}
    return print_answer(options, answer, *_lines(answer))


def _backend(directory: Path, name: str, seconds: float) -> dict[str, object]:
    """Return the figures of one backend, or why it does not work here."""
    from fastbk.native.disk import Disk

    try:
        disk = Disk(directory, name)
    except OSError as error:
        return {"unavailable": error.strerror or str(error)}
    with disk:
        path = directory / f".fastbk-bench-{time.monotonic_ns()}"
        try:
            file = disk.open(path, create=True, direct=True)
            disk.preallocate(file, 0, FILE_BYTES)
            small = _durations_us(disk, file, SMALL_BYTES, seconds)
            large = _durations_us(disk, file, LARGE_BYTES, seconds)
            disk.close(file)
        finally:
            path.unlink(missing_ok=True)
        return {
            "sync_mode": disk.sync_mode,
            "commit_us": {
                "p50": round(small[len(small) // 2], 1),
                "p99": round(small[int(len(small) * 0.99)], 1),
                "max": round(small[-1], 1),
            },
            "bytes_per_s": round(len(large) * LARGE_BYTES / (sum(large) / 1e6)),
        }


def _durations_us(disk: Disk, file: int, size_bytes: int, seconds: float) -> list[float]:
    """Return how long each durable write of `size_bytes` took, ascending: one at a time, round the file."""
    data = b"\x5a" * size_bytes
    found: list[float] = []
    offset_bytes = 0
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s or not found:
        began = time.perf_counter_ns()
        disk.write_all(file, data, offset_bytes, durable=True)
        found.append((time.perf_counter_ns() - began) / 1e3)
        offset_bytes = (offset_bytes + size_bytes) % FILE_BYTES
    return sorted(found)


def _lines(answer: dict[str, object]) -> list[str]:
    commit, backends = answer["disk_commit_us"], answer["backends"]
    assert isinstance(commit, dict)
    assert isinstance(backends, dict)
    how = "O_DIRECT + RWF_DSYNC" if answer["direct"] else "RWF_DSYNC through the page cache"
    lines = [f"4 KiB, {how}: {answer['commits_per_s']:,} commits/s", f"  {_shares(commit)}"]
    for name, figures in backends.items():
        if "unavailable" in figures:
            lines.append(f"{name}: not available here: {figures['unavailable']}")
            continue
        small, large = _shares(figures["commit_us"]), format_size(figures["bytes_per_s"])
        lines.append(f"{name} ({figures['sync_mode']}): 4 KiB {small}; 1 MiB {large}/s")
    return lines


def _shares(durations_us: dict[str, float]) -> str:
    return "  ".join(f"{name} {value} us" for name, value in durations_us.items())
