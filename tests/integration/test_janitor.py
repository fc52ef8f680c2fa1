"""`fastbk janitor` on real bookies: what is cut off goes, a dead writer's segment ends, a deleted stream is gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import fastbk
from fastbk.client.client import Client
from fastbk.meta.records import Change
from fastbk.stream.chain.chain import Chain, put_chain
from fastbk.stream.chain.store import ChainStore
from fastbk.stream.context import StreamContext
from fastbk.stream.janitor.truncation import truncate
from fastbk.stream.namespace.tree_records import ROOT_ID, StreamRecord, put
from fastbk.stream.paths import STREAMS, chain_path, stream_path
from fastbk.stream.policy import PolicyPatch, StreamPolicy
from fastbk.stream.positions import DLSN
from fastbk.stream.writer.options import WriterOptions
from fastbk.stream.writer.stream_writer import StreamWriter
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.exposition import Exposition, parsed
from tests.fixtures.wait import wait_until

FAR = DLSN(1 << 40, 0, 0)


def page(port: int) -> Exposition:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return parsed(answer.read().decode())


def context_of(client: Client, stream_id: str) -> StreamContext:
    async def current() -> StreamPolicy:
        return StreamPolicy()

    return StreamContext(client, ChainStore(client.records, stream_id, 10.0), stream_id, current)


async def new_stream(client: Client, stream_id: str, patch: PolicyPatch) -> StreamContext:
    record = StreamRecord(ROOT_ID, stream_id, patch)
    await client.records.change(
        Change(stream_path(stream_id), put(record)),
        Change(chain_path(stream_id), put_chain(Chain(stream_id))),
    )
    return context_of(client, stream_id)


async def write_segments(context: StreamContext, count: int) -> None:
    async with StreamWriter(context, WriterOptions()) as writer:
        for _ in range(count):
            await writer.append(bytes(1000))
            await writer.roll()


async def ledger_ids(client: Client) -> list[int]:
    return [info.ledger_id async for info in client.list_ledgers()]


def test_a_pass_does_all_that_is_due(fastbk_cluster: LocalCluster, tmp_path: Path) -> None:
    """S7, S9, S17, S18 of the design, on real bookies."""
    uri, audit = fastbk_cluster.metadata_uri, tmp_path / "janitor" / "audit.log"

    async def prepare() -> None:
        async with fastbk.connect(uri) as client:
            cut = await new_stream(client, "0c", PolicyPatch())
            await write_segments(cut, 5)
            assert await truncate(cut, DLSN(3, 0, 0)) == DLSN(3, 0, 0)
            sized = await new_stream(client, "0d", PolicyPatch(retention_bytes=1))
            await write_segments(sized, 4)
            gone = await new_stream(client, "0e", PolicyPatch())
            await write_segments(gone, 3)
            held = await client.records.read(stream_path("0e"))
            assert held is not None
            record = put(StreamRecord(ROOT_ID, "0e", deleting=True))
            await client.records.change(Change(stream_path("0e"), record, held.version))
            idle = await new_stream(client, "0f", PolicyPatch(roll_age_s=0.01))
            writer = StreamWriter(idle, WriterOptions())
            await writer.open()
            for _ in range(3):
                await writer.append(b"and then it died")
            assert await truncate(idle, FAR) == DLSN(1, 3, 0)
            writer.abort()

    async def look() -> None:
        async with fastbk.connect(uri) as client:
            chains = [
                (await context_of(client, one).store.read()).chain for one in ("0c", "0d", "0f")
            ]
            assert [[row.number for row in chain.rows] for chain in chains] == [[3, 4, 5], [4], [1]]
            assert (chains[2].open_rows, chains[2].end_seq) == ((), 3)
            named = [row.ledger_id for chain in chains for row in chain.rows]
            assert await ledger_ids(client) == sorted(named), "S18"
            assert await client.records.children(STREAMS) == ["0c", "0d", "0f"]

    asyncio.run(prepare())
    cli = Cli(uri)
    done = cli.json("janitor", "--once", "--roll-grace", "0", "--audit", str(audit))
    assert 8 * 1000 < done.pop("reclaimed_bytes") < 8 * 2000, "a record of 1000 bytes and an index each"
    assert done == {
        "passes": 1, "streams": 4, "rolled": 1, "segments_deleted": 5, "ledgers_deleted": 8,
        "orphans_deleted": 0, "cursors_expired": 0, "streams_deleted": 1, "errors": 0,
    }  # fmt: skip
    asyncio.run(look())
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert len(lines) == 8 and all(line["reason"] and line["stream"] for line in lines)
    again = cli.json("janitor", "--once", "--roll-grace", "0")
    assert {name for name, count in again.items() if count} == {"passes", "streams"}


def test_it_runs_until_sigterm(fastbk_cluster: LocalCluster, tmp_path: Path) -> None:
    uri, log = fastbk_cluster.metadata_uri, tmp_path / "log"

    async def cut() -> None:
        async with fastbk.connect(uri) as client:
            context = await new_stream(client, "0a", PolicyPatch())
            await write_segments(context, 4)
            await truncate(context, FAR)

    async def ledgers() -> int:
        async with fastbk.connect(uri) as client:
            return len(await ledger_ids(client))

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
        wait_until(lambda: page(port).value("fastbk_janitor_segments_deleted_total") == 3, "it", 30.0)
        found = page(port)
        assert found.value("fastbk_janitor_ledgers_deleted_total") == 3
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
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert events[0] == "janitor.started" and events[-1] == "janitor.ended"
    assert events.count("janitor.deletes") == 3
