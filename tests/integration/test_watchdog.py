"""A process of a bookie that stands still is reported within 5 s: readiness, cluster status, metrics, log; so is its
end. Real processes, stopped by SIGSTOP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import fastbk
from fastbk.admin.cluster import bookie_states
from fastbk.devcluster.bookie import Bookie
from fastbk.testing import LocalCluster
from tests.fixtures.wait import crowd, wait_until_async

FROZEN = ["journal", "index", "worker.0", "gc"]
"""One in each bookie, all at the same time."""
WITHIN_S = 5.0


def answer(bookie: Bookie, path: str) -> tuple[int, str]:
    try:
        url = f"http://127.0.0.1:{bookie.http_port}{path}"
        with urllib.request.urlopen(url, timeout=10) as got:
            return got.status, got.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def conditions(bookie: Bookie) -> dict[str, str]:
    return {
        one["name"]: one["reason"] for one in json.loads(answer(bookie, "/readyz")[1])["conditions"]
    }


def log_of(bookie: Bookie, event: str) -> list[dict[str, Any]]:
    lines = (json.loads(one) for one in bookie.log_path.read_text().splitlines())
    return [line for line in lines if line["event"] == event]


def frozen_metric(bookie: Bookie, name: str) -> str:
    text = answer(bookie, "/metrics?names=fastbk")[1]
    (line,) = [one for one in text.splitlines() if one.startswith(f"fastbk_supervisor_{name} ")]
    return line.rpartition(" ")[2]


async def test_a_frozen_process_is_reported_within_five_seconds(tmp_path: Path) -> None:
    async with LocalCluster(len(FROZEN), data=tmp_path / "data") as cluster:
        victims = dict(zip(FROZEN, cluster.bookies, strict=True))
        for bookie in cluster.bookies:
            assert answer(bookie, "/readyz")[0] == 200 and conditions(bookie) == {}
        began_s = time.monotonic()
        for process, bookie in victims.items():
            os.kill(bookie.pids[process], signal.SIGSTOP)
        try:
            for process, bookie in victims.items():
                await wait_until_async(
                    lambda b=bookie: asyncio.to_thread(conditions, b), f"{process} is missed"
                )
            assert time.monotonic() - began_s < WITHIN_S * crowd()
            for process, bookie in victims.items():
                (name,), (reason,) = zip(*conditions(bookie).items(), strict=True)
                assert name == f"frozen.{process}" and "SIGSTOP" in reason
                assert answer(bookie, "/readyz")[0] == (200 if process == "gc" else 503)
                assert answer(bookie, "/livez")[0] == 200
                assert frozen_metric(bookie, "frozen") == frozen_metric(bookie, "freezes_total") == "1"
                (line,) = log_of(bookie, "process.frozen")
                assert line["process"] == process and line["level"] == "error"
                assert line["child_pid"] == bookie.pids[process]
            async with fastbk.connect(cluster.metadata_uri) as client:
                states = {one.bookie_id: one for one in await bookie_states(client, [])}
            for process, bookie in victims.items():
                one = states[bookie.name]
                if process == "worker.0":
                    assert one.state == "silent", "nobody is left to answer"
                else:
                    assert one.state == "frozen" and f"{process} stands still" in one.reason
        finally:
            for process, bookie in victims.items():
                os.kill(bookie.pids[process], signal.SIGCONT)
        for process, bookie in victims.items():
            await wait_until_async(
                lambda b=bookie: asyncio.to_thread(lambda: not conditions(b)), f"{process} goes on"
            )
            assert answer(bookie, "/readyz")[0] == 200
            assert frozen_metric(bookie, "frozen") == "0"
            (line,) = log_of(bookie, "process.resumed")
            assert line["process"] == process and line["frozen_s"] > 0
        async with fastbk.connect(cluster.metadata_uri) as client:
            assert {one.state for one in await bookie_states(client, [])} == {"up"}
            writer = await client.create_ledger(4, 4, 4)
            assert await writer.append(b"all four store it") == 0
            await writer.close()
