"""`fastbk janitor` on real bookies: what is cut off goes, a dead writer's segment ends, a deleted stream is gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastbk
from fastbk.stream.namespace.namespace import unname
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.positions import DLSN
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.exposition import scraped_at
from tests.fixtures.logs import json_lines
from tests.fixtures.wait import wait_until

FAR = DLSN(1 << 40, 0, 0)
ONE = PolicyPatch(ensemble=1, write_quorum=1, ack_quorum=1)
"""One bookie is enough for what a janitor does."""


@pytest.fixture
def single() -> Iterator[LocalCluster]:
    with LocalCluster(1) as made:
        yield made


async def new_stream(
    space: fastbk.Namespace, name: str, segments: int, policy: PolicyPatch | None = None
) -> fastbk.Stream:
    """Make a stream of segments with a record of 1000 bytes each."""
    stream = await space.create_stream(name, policy)
    async with stream.writer() as writer:
        for _ in range(segments):
            await writer.append(bytes(1000))
            await writer.roll()
    return stream


def test_a_pass_does_all_that_is_due(single: LocalCluster, tmp_path: Path) -> None:
    """S7, S9, S17, S18 of the design, on real bookies."""
    uri, audit = single.metadata_uri, tmp_path / "janitor" / "audit.log"

    async def prepare() -> None:
        async with fastbk.connect(uri) as client:
            space = client.namespace("shop")
            await space.create(ONE)
            cut = await new_stream(space, "cut", 5)
            assert await cut.truncate(DLSN(3, 0, 0)) == DLSN(3, 0, 0)
            await new_stream(space, "sized", 4, PolicyPatch(retention_bytes=1))
            await new_stream(space, "gone", 3)
            # Somebody began to delete it and died: its name is free, its data is there.
            await unname(space._catalog, space._path, ["gone"])
            idle = await space.create_stream("idle")
            writer = idle.writer()
            await writer.open()
            for _ in range(3):
                await writer.append(b"and then it died")
            assert await idle.truncate(FAR) == DLSN(1, 3, 0)
            writer.abort()
            await idle.set_policy(PolicyPatch(roll_age_s=0.01))

    async def look() -> None:
        async with fastbk.connect(uri) as client:
            space = client.namespace("shop")
            segments = {
                one.name: await space.stream(one.name).segments() async for one in space.streams()
            }
            numbers = {name: [one.number for one in found] for name, found in segments.items()}
            assert numbers == {"cut": [3, 4, 5], "sized": [4], "idle": [1]}
            (ended,) = segments["idle"]
            assert (ended.is_open, ended.records) == (False, 3)
            named = [one.ledger_id for found in segments.values() for one in found]
            listed = [one.ledger_id async for one in client.list_ledgers()]
            assert sorted(listed) == sorted(named), "S18"

    asyncio.run(prepare())
    cli = Cli(uri)
    done = cli.json("janitor", "--once", "--roll-grace", "0", "--audit", str(audit))
    assert 8 * 1000 < done.pop("reclaimed_bytes") < 8 * 2000, (
        "a record of 1000 bytes and an index each"
    )
    assert done == {
        "passes": 1, "streams": 4, "rolled": 1, "left_closed": 0, "segments_deleted": 5, "ledgers_deleted": 8,
        "orphans_deleted": 0, "cursors_expired": 0, "uploads_ended": 0, "streams_deleted": 1, "errors": 0,
    }  # fmt: skip
    asyncio.run(look())
    lines = json_lines(audit)
    assert len(lines) == 8 and all(line["reason"] and line["stream"] for line in lines)
    again = cli.json("janitor", "--once", "--roll-grace", "0")
    assert {name for name, count in again.items() if count} == {"passes", "streams"}


def test_it_runs_until_sigterm(single: LocalCluster, tmp_path: Path) -> None:
    uri, log = single.metadata_uri, tmp_path / "log"

    async def cut() -> None:
        async with fastbk.connect(uri) as client:
            space = client.namespace("shop")
            await space.create(ONE)
            stream = await new_stream(space, "orders", 4)
            await stream.truncate(FAR)

    async def ledgers() -> int:
        async with fastbk.connect(uri) as client:
            return len([one async for one in client.list_ledgers()])

    words = ("janitor", "--metadata", uri, "--interval", "0.1", "--http", "127.0.0.1:0")
    with open(log, "wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "fastbk.cli", *words], stderr=out, stdout=out
        )
    try:
        wait_until(lambda: b"janitor.started" in log.read_bytes(), "its start", 30.0)
        port = json.loads(log.read_text().splitlines()[0])["http_port"]
        asyncio.run(cut())
        wait_until(lambda: asyncio.run(ledgers()) == 1, "the janitor", 30.0)
        wait_until(
            lambda: scraped_at(port).value("fastbk_janitor_segments_deleted_total") == 3, "it", 30.0
        )
        found = scraped_at(port)
        # A ledger that the writer had ready and did not need may be among them.
        not_needed = found.value("fastbk_janitor_orphans_deleted_total")
        assert found.value("fastbk_janitor_ledgers_deleted_total") == 3 + not_needed
        assert found.value("fastbk_janitor_reclaimed_bytes_total") > 3000
        assert 0 <= found.value("fastbk_janitor_last_pass_age_seconds") < 30
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=10) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
    events = [line["event"] for line in json_lines(log)]
    assert events[0] == "janitor.started" and events[-1] == "janitor.ended"
    assert events.count("janitor.deletes") == 3 + not_needed
