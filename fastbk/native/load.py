"""Load generator in C (`src/load`) and the disk probe (`load/probe.c`), for `fastbk bench` and `fastbk disk bench`.

Each call runs for as long as it is told with the interpreter lock released. Latencies come back as `Latencies`,
whose buckets are at most 1.6 % wide.
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from fastbk.native._bench import ffi, lib
from fastbk.native.ffi import fill_struct

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

BLOCK_BYTES = 4096
PROBE_FILE_BYTES = 64 << 20
NS_PER_S = 1_000_000_000

STATUS_NAMES = {
    int(value): name.removeprefix("FBK_S_")
    for name, value in (
        (name, getattr(lib, name)) for name in dir(lib) if name.startswith("FBK_S_")
    )
}


class LoadError(Exception):
    """The load could not go on; `args[0]` says why."""


@dataclass
class Latencies:
    """A histogram of nanoseconds with at most 1.6 % of error."""

    buckets: list[int] = field(default_factory=lambda: [0] * lib.FBK_LOAD_BUCKETS)
    max_ns: int = 0

    @property
    def count(self) -> int:
        """Return how many values were recorded."""
        return sum(self.buckets)

    def percentile_us(self, percent: float) -> float:
        """Return the value in microseconds that `percent` of all values do not exceed; 0.0 when there are none."""
        total = self.count
        if total == 0:
            return 0.0
        wanted = total * percent / 100.0
        seen = 0
        for bucket, times in enumerate(self.buckets):
            seen += times
            if times and seen >= wanted:
                return min(int(lib.fbk_load_bucket_top(bucket)), self.max_ns) / 1000.0
        return self.max_ns / 1000.0

    def summary_us(self) -> dict[str, float]:
        """Return p50, p99, p999 and max in microseconds."""
        return {
            "p50": round(self.percentile_us(50), 1),
            "p99": round(self.percentile_us(99), 1),
            "p999": round(self.percentile_us(99.9), 1),
            "max": round(self.max_ns / 1000.0, 1),
        }


@dataclass(frozen=True)
class LoadResult:
    """Sums over all runs of one `Load` so far."""

    entries: int
    errors: int
    data_bytes: int
    busy_s: float
    late: int
    first_error: str
    latencies: Latencies
    tail_latencies: Latencies


class LoadOptions(msgspec.Struct, frozen=True):
    """What a load does. Window: adds or reads outstanding over all connections together."""

    host: str
    port: int
    master_key: bytes
    window: int = 1
    size_bytes: int = 1024
    connections: int = 1
    rate_per_s: int = 0
    digest_type: int = 3
    entries_a_read: int = 1
    protocol: int = 0
    """0: ours; 2 or 3: Apache's, of which 3 has no batch reads."""
    tail_every: int = 0
    """Appends: each entry whose id is a multiple of it is read as soon as it is acknowledged; 0: none."""
    is_random: bool = False
    """Reads: from a random entry on each time, not from one behind the last."""


def _ipv4(host: str) -> bytes:
    """Return the IPv4 address of a name or address. Raises LoadError."""
    try:
        return socket.inet_aton(socket.gethostbyname(host))
    except OSError as error:
        raise LoadError(f"{host}: no IPv4 address is known: {error.strerror or error}") from error


class Load:
    """One load against one bookie: `append` or `read`, as often as wanted, then `result`."""

    def __init__(self, options: LoadOptions, ledger_ids: Sequence[int], hello_frame: bytes) -> None:
        """Connect and say hello. Raises LoadError when the bookie is not there or refuses."""
        raw = ffi.new("struct fbk_load_options *")
        fill_struct(raw, options, "connections", "host", "port", "master_key")
        raw.connection_count = options.connections
        raw.ledger_count = len(ledger_ids)
        ffi.memmove(raw.master_key, options.master_key, 20)
        raw.ipv4 = int.from_bytes(_ipv4(options.host), "little")
        raw.port = options.port
        error = ffi.new("int32_t *")
        self._load: Any = lib.fbk_load_create(raw, ffi.new("int64_t[]", list(ledger_ids)), error)
        if self._load == ffi.NULL:
            raise LoadError(_reason(int(error[0]), "options"))
        self._ledger_count = len(ledger_ids)
        status = lib.fbk_load_connect(self._load, hello_frame, len(hello_frame), 10_000)
        if status != 0:
            self.close()
            raise LoadError(_reason(status, f"connecting to {options.host}:{options.port}"))

    def close(self) -> None:
        """Close the connections and give the memory back."""
        if self._load is not None:
            lib.fbk_load_destroy(self._load)
            self._load = None

    def append(self, seconds: float, drain_timeout_s: float = 30.0) -> None:
        """Append for `seconds`, then wait until nothing is in flight. Raises LoadError when the bookie went away."""
        status = lib.fbk_load_append(
            self._load, int(seconds * NS_PER_S), int(drain_timeout_s * NS_PER_S)
        )
        if status != 0:
            raise LoadError(_reason(status, "appending"))

    def read(self, seconds: float, entry_counts: Sequence[int]) -> None:
        """Read the ledgers' entries in turn for `seconds`, checking digest and data of each."""
        counts = ffi.new("uint64_t[]", list(entry_counts))
        status = lib.fbk_load_read(self._load, int(seconds * NS_PER_S), counts)
        if status != 0:
            raise LoadError(_reason(status, "reading"))

    def entry_counts(self) -> list[int]:
        """Return how many entries of each ledger were acknowledged, from entry 0 on."""
        return [int(lib.fbk_load_ledger_entries(self._load, i)) for i in range(self._ledger_count)]

    def result(self) -> LoadResult:
        """Return the sums so far."""
        raw = ffi.new("struct fbk_load_result *")
        lib.fbk_load_result_get(self._load, raw)
        status = int(raw.first_error_status)
        return LoadResult(
            entries=int(raw.entries),
            errors=int(raw.errors),
            data_bytes=int(raw.bytes),
            busy_s=int(raw.busy_ns) / NS_PER_S,
            late=int(raw.late),
            first_error=STATUS_NAMES.get(status, str(status)) if status else "",
            latencies=Latencies(
                ffi.unpack(raw.latency_buckets, lib.FBK_LOAD_BUCKETS), int(raw.latency_max_ns)
            ),
            tail_latencies=Latencies(
                ffi.unpack(raw.tail_latency_buckets, lib.FBK_LOAD_BUCKETS),
                int(raw.tail_latency_max_ns),
            ),
        )


def entry_data(size_bytes: int, ledger_id: int, entry_id: int) -> bytes:
    """Return the data that the load wrote into that entry."""
    out = ffi.new("uint8_t[]", max(size_bytes, 1))
    lib.fbk_load_data(out, size_bytes, ledger_id, entry_id)
    return bytes(ffi.buffer(out, size_bytes))


class DiskProbe:
    """The disk's own limit: one durable write of 4 KiB at a time on a pre-written file, as the journal commits."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._result = ffi.new("struct fbk_probe_result *")

    def run(self, seconds: float) -> None:
        """Write for `seconds`. Raises LoadError when a write fails."""
        status = lib.fbk_probe_run(
            self._file, BLOCK_BYTES, PROBE_FILE_BYTES, int(seconds * NS_PER_S), self._result
        )
        if status != 0:
            raise LoadError(_reason(status, "probing the disk"))

    @property
    def direct(self) -> bool:
        """Return whether the file system took O_DIRECT; without it the probe went through the page cache."""
        return bool(self._result.direct)

    @property
    def commits_per_s(self) -> float:
        """Return the rate over all runs so far."""
        return int(self._result.commits) / max(int(self._result.busy_ns) / NS_PER_S, 1e-9)

    @property
    def latencies(self) -> Latencies:
        """Return the histogram of all runs so far."""
        return Latencies(
            ffi.unpack(self._result.latency_buckets, lib.FBK_LOAD_BUCKETS),
            int(self._result.latency_max_ns),
        )


@contextlib.contextmanager
def disk_probe(directory: Path) -> Iterator[DiskProbe]:
    """Pre-write a 64 MiB file in `directory` for a probe; it is removed at the end. Raises LoadError."""
    path = directory / f".fastbk-probe-{os.getpid()}"
    file = lib.fbk_probe_open(str(path).encode(), BLOCK_BYTES, PROBE_FILE_BYTES)
    if file < 0:
        path.unlink(missing_ok=True)
        raise LoadError(_reason(file, f"writing a probe file in {directory}"))
    try:
        yield DiskProbe(file)
    finally:
        os.close(file)
        path.unlink(missing_ok=True)


def _reason(status: int, doing: str) -> str:
    if -4096 < status < 0:
        return f"{doing}: {os.strerror(-status)}"
    return f"{doing}: the bookie broke the protocol or refused (native status {status})"
