"""The flight recorder names the cause of slow commits and answers: real processes, stopped, starved or without room.

A slow disk: tests/unit/native/test_flight.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import fastbk
from fastbk.cli.__main__ import main
from fastbk.devcluster.processes import Bookie
from fastbk.testing import LocalCluster
from tests.fixtures.logs import json_lines
from tests.fixtures.pages import json_page, metrics
from tests.fixtures.wait import wait_until_async

STOP_S = 0.05
SPIN = "while True: pass"


@contextlib.asynccontextmanager
async def appending(uri: str) -> AsyncIterator[None]:
    """One append after the other, as long as the block lasts."""
    async with fastbk.connect(uri) as client:
        writer = await client.create_ledger(1, 1, 1)

        async def append() -> None:
            while True:
                await writer.append(b"x" * 200)

        task = asyncio.create_task(append())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@contextlib.contextmanager
def spinning(processor: int) -> Iterator[None]:
    """A process that takes all it gets of a processor."""
    child = subprocess.Popen([sys.executable, "-S", "-c", SPIN])
    os.sched_setaffinity(child.pid, {processor})
    try:
        yield
    finally:
        child.kill()
        child.wait()


async def stop_for(pid: int, seconds: float) -> None:
    """SIGSTOP a process for so long."""
    os.kill(pid, signal.SIGSTOP)
    end_s = time.monotonic() + seconds
    try:
        await wait_until_async(lambda: time.monotonic() >= end_s, "the pause")
    finally:
        os.kill(pid, signal.SIGCONT)


class Told:
    """What a bookie tells of slow commits and answers from some moment on."""

    def __init__(self, bookie: Bookie) -> None:
        self._bookie = bookie
        self._began_ns = time.monotonic_ns()

    def find(self, **wanted: object) -> list[dict[str, Any]]:
        return [
            one
            for one in json_page(self._bookie, "/slow")["records"]
            if one["ended_ns"] > self._began_ns
            and all(one[key] == value for key, value in wanted.items())
        ]

    async def until(
        self, again: Callable[[], Any] | None = None, **wanted: object
    ) -> dict[str, Any]:
        """Return a record with these values; `again` is done until there is one."""

        async def is_there() -> bool:
            if self.find(**wanted):
                return True
            if again is not None:
                await again()
            return bool(await asyncio.to_thread(self.find, **wanted))

        await wait_until_async(is_there, f"a record with {wanted}: {self.find()}")
        return max(self.find(**wanted), key=lambda one: float(one["took_ms"]))


async def test_what_slowed_appends_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"ledgers": {"write_cache_size": "16MiB"}}
    async with LocalCluster(1, settings=settings) as cluster:
        bookie, uri = cluster.bookies[0], cluster.metadata_uri
        async with appending(uri):
            for process in ("journal", "worker.0"):
                told = Told(bookie)
                pid = bookie.pids[process]
                record = await told.until(
                    lambda pid=pid: stop_for(pid, STOP_S), process=process, verdict="stopped"
                )
                assert record["took_ms"] >= STOP_S * 1e3 * 0.9
            told = Told(bookie)
            (processor, *_) = os.sched_getaffinity(0)
            journal = bookie.pids["journal"]
            os.sched_setaffinity(journal, {processor})
            os.sched_setscheduler(journal, os.SCHED_IDLE, os.sched_param(0))
            with spinning(processor):
                record = await told.until(process="journal", verdict="processor")
            assert record["delayed_ms"] >= record["took_ms"] / 2
            os.sched_setscheduler(journal, os.SCHED_OTHER, os.sched_param(0))
        told = Told(bookie)
        os.kill(bookie.pids["index"], signal.SIGSTOP)
        try:
            async with fastbk.connect(uri) as client:
                writer = await client.create_ledger(1, 1, 1)
                waiting = [writer.append_nowait(b"x" * 100_000) for _ in range(300)]
                names = [f"fastbk_worker_waits_{what}_total" for what in ("credit", "ring")]
                await wait_until_async(
                    lambda: any(metrics(bookie)[name] for name in names), "no room is left"
                )
                await stop_for(bookie.pids["index"], STOP_S)
                await asyncio.gather(*waiting)
        finally:
            os.kill(bookie.pids["index"], signal.SIGCONT)
        record = await told.until(process="worker.0", event="worker.slow_room")
        assert record["verdict"] == "ring"
        check_what_people_see(bookie)
        words = ["bookie", "info", "--http", f"127.0.0.1:{bookie.http_port}"]
        assert await asyncio.to_thread(main, words) == 0
        printed = capsys.readouterr().out
        assert re.search(r"over 10 ms because of: .*stopped \d+ \(longest \d+ ms\)", printed)
        assert re.search(r"last: (journal|worker)\.\w+, \d+ ms: ", printed)


def check_what_people_see(bookie: Bookie) -> None:
    """Log and metrics."""
    lines = json_lines(bookie.log_path)
    said = {(one["event"], one["verdict"]) for one in lines if "verdict" in one}
    assert {
        ("journal.slow_commit", "stopped"),
        ("journal.slow_commit", "processor"),
        ("worker.slow_room", "ring"),
    } <= said
    counts = json_page(bookie, "/info")["slow"]["counts"]
    assert counts["stopped"] >= 2 and counts["processor"] and counts["ring"]
    others = sum(count for cause, count in counts.items() if cause != "disk")
    assert metrics(bookie)['fastbk_supervisor_slow_total{cause="other"}'] >= others
