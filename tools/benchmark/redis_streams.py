"""Redis Streams with a sync of its append-only file for every commit, for `./dev bench`.

Debian's redis-server, on loopback, fresh for each measurement. `appendfsync always`: Redis runs all
commands that it has read, syncs its file once, then replies; so commands in flight share a sync, as
entries share a bookie's. It reads 16 KiB of a connection at a time, which bounds that. It never
rewrites its file here, which is to its advantage. The load is in C (tools/native/bench_redis.c):
raw commands, pipelined. redis-benchmark would cost more and
cannot keep a window full: it waits for a whole pipeline before it sends the next.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from fastbk.devcluster.processes import cpu_seconds, free_port, memory_pss_bytes, wait_for
from tests.native.compile import build_program
from tools.benchmark.cases import Append, Load
from tools.benchmark.run import Figures
from tools.benchmark.system import Measure, System, program
from tools.part import scratch

NAME = "Redis Streams"
OPTIONS = {
    "bind": "127.0.0.1",
    "appendonly": "yes",
    "appendfsync": "always",
    "save": "",
    "auto-aof-rewrite-percentage": "0",
    "io-threads": "1",
    "daemonize": "no",
}
START_S_MAX = 10.0


class RedisStreams(System):
    """A Redis server; a stream of it takes the place of a ledger."""

    name = NAME

    @cached_property
    def _program(self) -> Path:
        return build_program(["bench_redis.c"], [], "release")

    def measures(self) -> Mapping[type, Measure]:
        return {Append: self._append}

    def can(self, load: Load) -> bool:
        """Whether the disk has no limit: it writes past one."""
        return super().can(load) and not (isinstance(load, Append) and load.disk_bytes_per_s)

    def _append(self, load: Append, seconds: float) -> Figures:
        with scratch() as folder, redis_server(folder) as (port, process):
            pids = {"redis": process.pid}
            before_s = cpu_seconds(pids)["redis"]
            found = program(
                self._program,
                port,
                load.window,
                seconds,
                load.size_bytes,
                load.ledgers,
                load.connections,
            )
            used_s = cpu_seconds(pids)["redis"] - before_s
            entries = xlen(port, load.ledgers)
            if entries < found["adds"]:
                raise SystemExit(
                    f"bench: Redis acknowledged {found['adds']} entries and has {entries}"
                )
            memory_mb = memory_pss_bytes([process.pid]) / 1e6
        latency = found["latency_us"]
        return {
            "per_s": found["adds_per_s"],
            "p50_us": latency["p50"],
            "p99_us": latency["p99"],
            "p999_us": latency["p99.9"],
            # Of all that it has, the warm-up's entries included: so does its processor time.
            "bookie_us": used_s * 1e6 / entries,
            "client_us": found["client_us"],
            "memory_mb": memory_mb,
        }


@contextlib.contextmanager
def redis_server(folder: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Give the port and the process of a server with its files in `folder`. Raises SystemExit where there is none."""
    if shutil.which("redis-server") is None:
        raise SystemExit("bench: there is no redis-server on PATH: apt-get install redis-server")
    port = free_port()
    options = [part for name, value in OPTIONS.items() for part in (f"--{name}", value)]
    command = ["redis-server", "--port", str(port), "--dir", str(folder), *options]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_for(lambda: answers(port) or process.poll() is not None, START_S_MAX, "Redis")
        if process.poll() is not None:
            raise SystemExit(f"bench: Redis ended: {(folder / 'log').read_text()[-500:]}")
        yield port, process
    finally:
        process.kill()
        process.wait()


def answers(port: int) -> bool:
    """Whether a server replies to PING."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), timeout=1) as connection,
    ):
        connection.sendall(b"PING\r\n")
        return connection.recv(16).startswith(b"+PONG")
    return False


def xlen(port: int, streams: int) -> int:
    """Return how many entries the load's streams have."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as connection,
        connection.makefile("rb") as replies,
    ):
        connection.sendall(b"".join(f"XLEN s{number}\r\n".encode() for number in range(streams)))
        return sum(int(replies.readline().decode().removeprefix(":")) for _ in range(streams))
