"""Rig `attacks`: clients that try to take a bookie's memory, connections or time, at full size, one kind at a time.

Each attack runs in a process of its own against a real bookie, while one honest client adds 16 KiB at a
time and another one opens connections. The report has the worker's own memory before, at its peak and
after the attack, and the longest wait of each honest client. A wait above `WAIT_S_MAX`, memory above
`MEMORY_BYTES_MAX` or memory that stays counts as a loss.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import re
import resource
import socket
import struct
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.errors import Error
from fastbk.native import client_codec as codec
from fastbk.testing import LocalCluster
from fastbk.units import KIB, MIB
from fastbk.wire.messages import MAGIC, Hello, encode_hello
from fastbk.wire.statuses import Status
from tests.fixtures.raw_bookie import RawBookie, raw_bookie
from tests.fixtures.wait import wait_until_async
from tests.rigs.report import Plan, Report

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.synchronize import Event

LEDGER = 7
ATTACK_S = 12.0
SETTLE_S = 6.0
WAIT_S_MAX = 5.0
MEMORY_BYTES_MAX = 256 * MIB
STAYS_BYTES_MAX = 48 * MIB
FRAME_BYTES = 5 * MIB


# ------------------------------------------------------------------ attackers


def greeted(port: int, receive_bytes: int = 0) -> socket.socket:
    """Return a connection whose hello was accepted."""
    sock = socket.socket()
    if receive_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.settimeout(30)
    sock.connect(("127.0.0.1", port))
    sock.sendall(MAGIC + encode_hello(1, Hello()))
    sock.recv(4096)
    return sock


def unread(port: int, _: int, stop: Event) -> None:
    """300 clients request 110 entries of 64 KiB each and never read."""
    socks = []
    with suppress(OSError):
        for _ in range(300):
            sock = greeted(port, 4096)
            socks.append(sock)
            sock.sendall(b"".join(codec.put_read(n, LEDGER, n % 64) for n in range(10, 120)))
    stop.wait()


def slow_frames(port: int, _: int, stop: Event) -> None:
    """200 connections announce 5 MiB and send a byte a second."""
    socks = []
    with suppress(OSError):
        for _ in range(200):
            sock = greeted(port)
            sock.sendall(struct.pack("<I", FRAME_BYTES) + bytes(1000))
            socks.append(sock)
    while not stop.wait(1.0):
        for sock in socks:
            with suppress(OSError):
                sock.send(b"x")


def held_frames(port: int, _: int, stop: Event) -> None:
    """1,000 connections send 64 KiB of 5 MiB at once, and then a byte a second."""
    socks = []
    for _ in range(1000):
        with suppress(OSError):
            sock = greeted(port)
            sock.setblocking(False)
            sock.send(struct.pack("<I", FRAME_BYTES) + bytes(64 * KIB))
            socks.append(sock)
    while not stop.wait(1.0):
        for sock in socks:
            with suppress(OSError):
                sock.send(b"x")


def refused_frames(port: int, _: int, stop: Event) -> None:
    """One connection sends requests that are refused, as fast as it can, and reads the answers."""
    sock = greeted(port)
    sock.setblocking(False)
    data = b"".join(codec.put_read(n, -5, 0) for n in range(10, 20_000))
    view = memoryview(data)
    at = 0
    while not stop.is_set():
        with suppress(BlockingIOError):
            at = (at + sock.send(view[at : at + MIB])) % len(data)
        with suppress(BlockingIOError):
            sock.recv(4 * MIB)


def refused_apache(port: int, _: int, stop: Event) -> None:
    """The same over Apache's version 2: reads of a ledger that cannot be."""
    read = struct.pack(">IIqq", 20, 2 << 24 | 2 << 16, -5, 0)
    sock = socket.create_connection(("127.0.0.1", port), 20)
    sock.setblocking(False)
    data = memoryview(read * 20_000)
    at = 0
    while not stop.is_set():
        with suppress(BlockingIOError):
            at = (at + sock.send(data[at : at + MIB])) % len(data)
        with suppress(BlockingIOError):
            sock.recv(4 * MIB)


def silent(port: int, _: int, stop: Event) -> None:
    """5,000 connections say nothing."""
    socks = []
    for _ in range(5000):
        with suppress(OSError):
            socks.append(socket.create_connection(("127.0.0.1", port), 20))
    stop.wait()


def slow_http(_: int, http_port: int, stop: Event) -> None:
    """64 connections at a time send half a request over HTTP."""
    socks: list[socket.socket] = []
    while not stop.wait(0.05):
        for _ in range(64):
            with suppress(OSError):
                sock = socket.create_connection(("127.0.0.1", http_port), 20)
                sock.send(b"GET /livez HTTP/1.1\r\n")
                socks.append(sock)
        for sock in socks[:-128]:
            sock.close()
        del socks[:-128]


ATTACKS: dict[str, Callable[[int, int, Event], None]] = {
    "unread": unread,
    "slow_frames": slow_frames,
    "held_frames": held_frames,
    "refused_frames": refused_frames,
    "refused_apache": refused_apache,
    "silent": silent,
    "slow_http": slow_http,
}


# ------------------------------------------------------------------ what others notice


@dataclass
class Waits:
    """Longest waits of honest clients in seconds, and calls that failed."""

    longest_s: dict[str, float] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)

    def note(self, what: str, began_s: float, *, is_good: bool) -> None:
        """Count one call."""
        took_s = time.monotonic() - began_s
        self.longest_s[what] = max(self.longest_s.get(what, 0.0), took_s)
        if not is_good:
            self.failed[what] = self.failed.get(what, 0) + 1

    def line(self) -> str:
        """One line for people."""
        return " ".join(
            f"{what}={longest:.3f}s"
            + (f" ({self.failed[what]} failed)" if what in self.failed else "")
            for what, longest in self.longest_s.items()
        )


async def add(bookie: RawBookie, waits: Waits, ledger_id: int, until_s: float) -> None:
    """Add 16 KiB at a time."""
    entry_id = 0
    while time.monotonic() < until_s:
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(until_s + 1 - began_s):
                status = await bookie.add(ledger_id, entry_id, bytes(16 * KIB))
            waits.note("add", began_s, is_good=status == Status.OK)
        except (TimeoutError, Error):
            waits.note("add", began_s, is_good=False)
            return
        entry_id += 1
        await asyncio.sleep(0.02)


async def connect(cluster: LocalCluster, waits: Waits, until_s: float) -> None:
    """Open a connection and close it, again and again."""
    while time.monotonic() < until_s:
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(until_s + 1 - began_s):
                (await raw_bookie(cluster.bookies[0])).close()
            waits.note("connect", began_s, is_good=True)
        except (TimeoutError, Error):
            waits.note("connect", began_s, is_good=False)
        await asyncio.sleep(0.1)


async def livez(cluster: LocalCluster, waits: Waits, until_s: float) -> None:
    """Request /livez."""
    url = f"http://127.0.0.1:{cluster.bookies[0].http_port}/livez"

    def get() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    while time.monotonic() < until_s:
        began_s = time.monotonic()
        waits.note("livez", began_s, is_good=await asyncio.to_thread(get))
        await asyncio.sleep(0.1)


def own_bytes(pid: int) -> int:
    """What a process has for itself: not the rings, which it shares."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * KIB
    return 0


async def watch(pid: int, peak: list[int], until_s: float) -> None:
    """Note the most memory."""
    while time.monotonic() < until_s:
        peak[0] = max(peak[0], own_bytes(pid))
        await asyncio.sleep(0.05)


async def attack(cluster: LocalCluster, name: str, ledger_id: int) -> tuple[list[int], Waits]:
    """Return the worker's memory before, at most and after, and others' waits."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    bookie = cluster.bookies[0]
    pid = bookie.pids["worker.0"]
    honest = await raw_bookie(bookie)
    waits = Waits()
    before = own_bytes(pid)
    process = context.Process(target=ATTACKS[name], args=(bookie.port, bookie.http_port, stop))
    process.start()
    peak, until_s = [before], time.monotonic() + ATTACK_S
    await asyncio.gather(
        add(honest, waits, ledger_id, until_s),
        connect(cluster, waits, until_s),
        livez(cluster, waits, until_s),
        watch(pid, peak, until_s),
    )
    stop.set()
    await asyncio.to_thread(process.join, 10)
    process.kill()
    honest.close()
    with suppress(AssertionError):
        await wait_until_async(lambda: own_bytes(pid) < before + 4 * MIB, "memory", SETTLE_S)
    return [before, peak[0], own_bytes(pid)], waits


def judge(name: str, memory: list[int], waits: Waits) -> list[str]:
    """Return what others or the worker's memory suffered more than they may."""
    before, peak, after = memory
    wrong = []
    if peak > MEMORY_BYTES_MAX:
        wrong.append(f"{peak // MIB} MiB at most")
    if after > before + STAYS_BYTES_MAX:
        wrong.append(f"{after // MIB} MiB stay, {before // MIB} before")
    wrong += [f"{what} took {s:.1f} s" for what, s in waits.longest_s.items() if s > WAIT_S_MAX]
    if waits.failed.get("add") or waits.failed.get("livez"):
        wrong.append(f"failed: {waits.failed}")
    return wrong


async def attacked(report: Report, name: str, number: int) -> None:
    """Run one attack on a bookie of its own."""
    async with LocalCluster(1, settings={"bookie": {"workers": 1}}) as cluster:
        bookie = await raw_bookie(cluster.bookies[0])
        for entry_id in range(64):
            assert await bookie.add(LEDGER, entry_id, bytes(64 * KIB)) == Status.OK
        bookie.close()
        memory, waits = await attack(cluster, name, 100 + number)
    report.cases += 1
    report.lose(judge(name, memory, waits), name)
    mib = " ".join(f"{size / MIB:.0f}" for size in memory)
    report.notes.append(
        f"{name:<15} worker MiB before, at most, after: {mib}; longest waits: {waits.line()}"
    )


def run(plan: Plan) -> Report:
    """Run each attack once; `ONLY=` chooses."""
    began_s = time.monotonic()
    report = Report("attacks")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for number, name in enumerate(ATTACKS):
        if re.search(plan.only, name):
            asyncio.run(attacked(report, name, number))
    report.seconds = time.monotonic() - began_s
    return report
