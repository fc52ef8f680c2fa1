"""What a bookie says of its state: not ready, and why; a process that stands still is reported within 5 s.

Readiness, cluster status, metrics and log say so, and its end. Real processes, stopped by SIGSTOP.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path

import pytest

import fastbk
from fastbk.admin.cluster import bookie_states
from fastbk.devcluster.processes import Bookie
from fastbk.errors import NotEnoughBookies
from fastbk.testing import LocalCluster
from tests.fixtures.logs import events
from tests.fixtures.pages import json_page, metrics, page
from tests.fixtures.wait import crowd, wait_until, wait_until_async

FROZEN = ["journal", "index", "worker.0", "gc"]
"""One in each bookie, all at the same time."""
WITHIN_S = 5.0


def conditions(bookie: Bookie) -> dict[str, str]:
    return {one["name"]: one["reason"] for one in json_page(bookie, "/readyz")["conditions"]}


async def test_a_frozen_process_is_reported_within_five_seconds(tmp_path: Path) -> None:
    async with LocalCluster(len(FROZEN), data=tmp_path / "data") as cluster:
        victims = dict(zip(FROZEN, cluster.bookies, strict=True))
        for bookie in cluster.bookies:
            assert page(bookie, "/readyz")[0] == 200 and conditions(bookie) == {}
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
                assert page(bookie, "/readyz")[0] == (200 if process == "gc" else 503)
                assert page(bookie, "/livez")[0] == 200
                counted = metrics(bookie)
                assert counted["fastbk_supervisor_frozen"] == 1
                assert counted["fastbk_supervisor_freezes_total"] == 1
                (line,) = events(bookie.log_path, "process.frozen")
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
            assert page(bookie, "/readyz")[0] == 200
            assert metrics(bookie)["fastbk_supervisor_frozen"] == 0
            (line,) = events(bookie.log_path, "process.resumed")
            assert line["process"] == process and line["frozen_s"] > 0
        async with fastbk.connect(cluster.metadata_uri) as client:
            assert {one.state for one in await bookie_states(client, [])} == {"up"}
            writer = await client.create_ledger(4, 4, 4)
            assert await writer.append(b"all four store it") == 0
            await writer.close()


def test_readiness_says_why_not() -> None:
    with LocalCluster(1) as cluster:
        bookie = cluster.bookies[0]
        status, text = page(bookie, "/readyz")
        said = json.loads(text)
        disks = said.pop("disks")
        well = {"ready": True, "state": "writable", "reasons": [], "conditions": []}
        well |= {"verdict": "well", "verdict_reasons": []}
        assert (status, said) == (200, well)
        assert {one["role"]: one["state"] for one in disks} == {"journal": "ok", "ledger": "ok"}
        assert page(bookie, "/livez")[0] == 200
        cluster.kill(0, "journal")
        seen: list[str] = []

        def not_ready() -> bool:
            code, body = page(bookie, "/readyz")
            if code == 503:
                seen.extend(json.loads(body)["reasons"])
            return code == 503 or cluster.bookies[0].boots > 1

        wait_until(not_ready, "the bookie to be not ready")
        cluster.wait_ready(0, 2)
        assert page(bookie, "/readyz")[0] == 200
        assert all(reason.split()[0] in ("starting", "replaying") for reason in seen)
        assert metrics(bookie)["fastbk_supervisor_restarts_total"] == 1


async def test_a_disk_without_room_makes_the_bookie_read_only_and_says_so() -> None:
    async with LocalCluster(1, settings={"disk": {"free_min": "1000TiB"}}) as cluster:
        bookie = cluster.bookies[0]
        wait_until(lambda: page(bookie, "/readyz")[0] == 503, "the bookie to be read-only")
        (reason,) = json.loads(page(bookie, "/readyz")[1])["reasons"]
        assert "too little space" in reason
        wait_until(lambda: metrics(bookie)["bookie_SERVER_STATUS"] == 0, "the metric to follow")
        assert page(bookie, "/livez")[0] == 200
        async with fastbk.connect(cluster.metadata_uri) as client:
            await wait_until_async(
                lambda: not_writable(client), "metadata to say that it takes no writes"
            )
            with pytest.raises(NotEnoughBookies, match=r"read-only: .*too little space"):
                await client.create_ledger(1, 1, 1)


async def not_writable(client: fastbk.client.Client) -> bool:
    return [bookie.writable for bookie in await client.list_bookies()] == [False]
