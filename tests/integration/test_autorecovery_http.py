"""AutoRecovery over HTTP: a bookie is decommissioned by Apache's verb, and the page of metrics says so."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fastbk
from fastbk.testing import LocalCluster
from tests.fixtures.exposition import scraped_at
from tests.fixtures.pages import page_at
from tests.fixtures.wait import wait_until

pytestmark = pytest.mark.waits

WAIT_S = 60.0
PREFIX = "/api/v1/autorecovery/"


def put(port: int, name: str, body: object) -> tuple[int, str]:
    return page_at(port, f"{PREFIX}{name}", "PUT", "" if body is None else json.dumps(body))


async def write(uri: str) -> set[int]:
    """Write ledgers of two copies; some are on every bookie."""
    ids = set()
    async with fastbk.connect(uri) as client:
        for _ in range(8):
            async with await client.create_ledger(2, 2, 2) as writer:
                await asyncio.gather(*(writer.append(b"%d" % n) for n in range(20)))
            ids.add(writer.ledger_id)
    return ids


async def named(uri: str) -> set[str]:
    async with fastbk.connect(uri) as client:
        return {
            bookie
            async for one in client.list_ledgers()
            for fragment in one.metadata.fragments
            for bookie in fragment.ensemble
        }


def test_a_bookie_is_decommissioned_by_apaches_verb(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with LocalCluster(3) as cluster:
        uri = cluster.metadata_uri
        asyncio.run(write(uri))
        assert "bookie-1" in asyncio.run(named(uri))
        words = ("autorecovery", "--metadata", uri, "--http", "127.0.0.1:0")
        with open(log, "wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "fastbk.cli", *words], stdout=out, stderr=out
            )
        try:
            wait_until(lambda: b"autorecovery.started" in log.read_bytes(), "its start", WAIT_S)
            port = json.loads(log.read_text().splitlines()[0])["http_port"]
            assert put(port, "bookie", {"bookie_src": []})[0] == 404
            assert put(port, "bookie", {"bookie_src": "bookie-1"})[0] == 404
            assert put(port, "decommission", {"bookie_src": "not an id"})[0] == 404
            assert put(port, "decommission", None)[0] == 404
            # One that runs is not decommissioned, and says so.
            assert put(port, "decommission", {"bookie_src": "bookie-1"})[0] == 200
            failed = "fastbk_autorecovery_recoveries_failed_total"
            wait_until(lambda: scraped_at(port).value(failed) == 1, "the refusal", WAIT_S)
            assert b"bookie bookie-1 is alive" in log.read_bytes()

            cluster.stop_bookie(0)
            status, text = put(port, "decommission", {"bookie_src": "bookie-1"})
            assert (status, text) == (200, "Success send decommission Bookie command bookie-1")
            done = "fastbk_autorecovery_recoveries_done_total"
            wait_until(lambda: scraped_at(port).value(done) == 1, "the decommission", WAIT_S)
            assert "bookie-1" not in asyncio.run(named(uri))
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
