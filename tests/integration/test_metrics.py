"""What a running bookie tells machines: exact counters, liveness, readiness with reasons."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import fastbk
from fastbk.errors import NotEnoughBookies
from fastbk.testing import LocalCluster
from tests.fixtures.wait import wait_until, wait_until_async


def page(port: int | None, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def values(port: int | None) -> dict[str, float]:
    _, text = page(port, "/metrics")
    return {
        match[1]: float(match[2])
        for match in re.finditer(r"^([^# ]\S*) (\S+)$", text, re.MULTILINE)
    }


async def append(uri: str, count: int, size_bytes: int) -> int:
    async with fastbk.connect(uri) as client:
        writer = await client.create_ledger(ensemble=1, write_quorum=1, ack_quorum=1)
        async with writer:
            for _ in range(count):
                await writer.append(b"x" * size_bytes)
        reader = await client.open_ledger(writer.ledger_id, recovery=False)
        async with reader:
            assert len([entry async for entry in reader.read(0, count - 1)]) == count
        return writer.ledger_id


async def test_counters_are_exact(tmp_path: Path) -> None:
    async with LocalCluster(1, data=tmp_path / "data") as cluster:
        port = cluster.bookies[0].http_port
        before = values(port)
        assert before["bookie_SERVER_STATUS"] == 1
        await append(cluster.metadata_uri, 321, 700)
        after = values(port)

        def grown(name: str) -> float:
            return after[name] - before.get(name, 0.0)

        assert grown("fastbk_journal_entries_total") == 321
        assert grown("fastbk_worker_acks_total") >= 321
        assert grown("fastbk_worker_add_seconds_count") == 321
        assert grown("fastbk_worker_add_seconds_sum") > 0
        assert grown("fastbk_index_read_entries_total") == 321
        assert grown("fastbk_journal_bytes_total") >= 321 * 700
        assert after["fastbk_journal_commit_seconds_count"] == after["fastbk_journal_batches_total"]
        wait_until(
            lambda: values(port)["fastbk_index_entries_total"] == 321, "the index to take all in"
        )


def test_readiness_says_why_not(tmp_path: Path) -> None:
    with LocalCluster(1, data=tmp_path / "data") as cluster:
        bookie = cluster.bookies[0]
        status, text = page(bookie.http_port, "/readyz")
        said = json.loads(text)
        disks = said.pop("disks")
        well = {"ready": True, "state": "writable", "reasons": [], "conditions": []}
        assert (status, said) == (200, well)
        assert [(one["role"], one["state"]) for one in disks] == [
            ("journal", "ok"),
            ("ledger", "ok"),
        ]
        assert page(bookie.http_port, "/livez")[0] == 200
        cluster.kill(0, "journal")
        seen: list[str] = []

        def not_ready() -> bool:
            code, body = page(bookie.http_port, "/readyz")
            if code == 503:
                seen.extend(json.loads(body)["reasons"])
            return code == 503 or cluster.bookies[0].boots > 1

        wait_until(not_ready, "the bookie to be not ready")
        cluster.wait_ready(0, 2)
        assert page(bookie.http_port, "/readyz")[0] == 200
        assert all(reason.split()[0] in ("starting", "replaying") for reason in seen)
        assert values(bookie.http_port)["fastbk_supervisor_restarts_total"] == 1


async def test_a_disk_without_room_makes_the_bookie_read_only_and_says_so(tmp_path: Path) -> None:
    settings = {"disk": {"free_min": "1000TiB"}}
    async with LocalCluster(1, data=tmp_path / "data", settings=settings) as cluster:
        port = cluster.bookies[0].http_port
        wait_until(lambda: page(port, "/readyz")[0] == 503, "the bookie to be read-only")
        (reason,) = json.loads(page(port, "/readyz")[1])["reasons"]
        assert "too little space" in reason
        wait_until(lambda: values(port)["bookie_SERVER_STATUS"] == 0, "the metric to follow")
        assert page(port, "/livez")[0] == 200
        async with fastbk.connect(cluster.metadata_uri) as client:
            await wait_until_async(
                lambda: not_writable(client), "metadata to say that it takes no writes"
            )
            with pytest.raises(NotEnoughBookies, match=r"read-only: .*too little space"):
                await client.create_ledger(ensemble=1, write_quorum=1, ack_quorum=1)


async def not_writable(client: fastbk.client.Client) -> bool:
    return [bookie.writable for bookie in await client.list_bookies()] == [False]
