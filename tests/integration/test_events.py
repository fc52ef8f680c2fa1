"""What happened in a real cluster: kills, slow journals, ensemble changes and fences, found again afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import fastbk
from fastbk.cli import options
from fastbk.cli.__main__ import main
from fastbk.devcluster import Bookie
from fastbk.devcluster.cluster import DevService
from fastbk.exit_codes import FAILED, UNREACHABLE
from fastbk.observe.event_log import read_events
from fastbk.testing import LocalCluster
from tests.fixtures.pages import json_page, page
from tests.fixtures.wait import beats, wait_until, wait_until_async

STALL_S = 0.03


@pytest.fixture(scope="module")
def one() -> Iterator[LocalCluster]:
    """A bookie that anything may happen to."""
    with LocalCluster(1) as made:
        yield made


def found(bookie: Bookie, **wanted: object) -> list[dict[str, Any]]:
    """Return a bookie's events with these values."""
    events = json_page(bookie, "/events?limit=1000")["events"]
    return [one for one in events if wanted.items() <= {**one["values"], **one}.items()]


async def test_a_killed_journal_and_a_killed_bookie_are_in_the_events(tmp_path: Path) -> None:
    async with LocalCluster(1, data=tmp_path) as cluster:
        bookie = cluster.bookies[0]
        await cluster.kill_async(0, "journal")
        await cluster.wait_ready_async(0, 2)
        (death,) = found(bookie, event="bookie.broke_down")
        assert (death["kind"], death["values"]["reason"]) == (
            "child",
            "journal: killed by signal 9",
        )
        before = json_page(bookie, "/events")
        await cluster.kill_async(0)
        # What was there is on disk, though nothing was closed.
        written = list(read_events(tmp_path / "bookie-1" / "ledgers" / "events.jsonl"))
        assert [one.number for one in written] == [one["number"] for one in before["events"]]
        await cluster.start_bookie_async(0)
        after = json_page(bookie, f"/events?after={before['next']}")["events"]
        assert [one["event"] for one in after] == [
            "bookie.unclean_stop",
            "journal.replayed",
            "bookie.started",
        ]
        assert {one["source"] for one in after} == {"bookie-1"}
        assert [one["process"] for one in after] == ["supervisor", "index", "supervisor"]
        assert await cluster.stop_bookie_async(0) == 0
        names = [
            one.event for one in read_events(tmp_path / "bookie-1" / "ledgers" / "events.jsonl")
        ]
        assert names[-3:] == ["bookie.asked_to_stop", "bookie.draining", "bookie.stopped"]


def test_a_start_that_is_refused_is_in_the_events_and_leaves_no_file_where_there_was_none(
    tmp_path: Path,
) -> None:
    with LocalCluster(1, data=tmp_path):
        pass
    ledgers = tmp_path / "bookie-1" / "ledgers"
    start = [
        sys.executable,
        "-m",
        "fastbk.server",
        "--config",
        str(tmp_path / "bookie-1" / "bookie.toml"),
    ]
    identity = ledgers / "identity.json"
    identity.write_bytes(identity.read_bytes()[:-10])
    assert subprocess.run(start, timeout=60, capture_output=True).returncode == FAILED
    last = list(read_events(ledgers / "events.jsonl"))[-1]
    assert (last.event, last.kind) == ("bookie.failed", "stop")
    assert "identity.json" in last.values["reason"]
    for one in ledgers.glob("events*"):
        one.unlink()
    assert subprocess.run(start, timeout=60, capture_output=True).returncode == FAILED
    assert list(ledgers.glob("events*")) == []


@contextlib.asynccontextmanager
async def stalled(pid: int) -> AsyncIterator[None]:
    """Stop a process for 30 ms, again and again."""

    async def stall() -> None:
        while True:
            os.kill(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(STALL_S)
            finally:
                os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(STALL_S / 3)

    task = asyncio.create_task(stall())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.waits
async def test_a_journal_that_is_30_ms_slow_is_in_the_events_and_so_is_its_end() -> None:
    """Within 5 s, which unit/server/test_monitor.py measures by the supervisor's clock."""
    async with LocalCluster(1) as cluster, fastbk.connect(cluster.metadata_uri) as client:
        bookie = cluster.bookies[0]
        writer = await client.create_ledger(1, 1, 1)

        async def append() -> None:
            async for _ in beats(0.002):
                await writer.append(b"x" * 200)

        task = asyncio.create_task(append())
        try:
            async with stalled(bookie.pids["journal"]):
                began_wall_s = time.time()
                await wait_until_async(
                    lambda: asyncio.to_thread(found, bookie, event="journal.slow"),
                    "the journal is slow",
                )
            task.cancel()  # a commit of a busy machine may be slow, too
            slow = found(bookie, event="journal.slow")[-1]
            assert slow["kind"] == "stall"
            assert "1 of 100 commits takes" in slow["values"]["reason"]
            assert slow["time"] > time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(began_wall_s - 1))
            await wait_until_async(
                lambda: asyncio.to_thread(found, bookie, event="journal.quick_again"),
                "it is quick again",
                60,
            )
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_an_ensemble_change_names_the_bookie_and_the_reason_and_a_fence_the_ledger() -> None:
    async with LocalCluster(3) as cluster, fastbk.connect(cluster.metadata_uri) as client:
        writer = await client.create_ledger(2, 2, 2)
        await writer.append(b"before")
        lost = writer.metadata.fragments[-1].ensemble[0]
        names = [one.name for one in cluster.bookies]
        (spare,) = set(names) - set(writer.metadata.fragments[-1].ensemble)
        await cluster.kill_async(names.index(lost))

        async def is_replaced() -> bool:
            await writer.append(b"after")
            return lost not in writer.metadata.fragments[-1].ensemble

        await wait_until_async(is_replaced, "the writer replaces the bookie")
        bookie = cluster.bookies[names.index(spare)]
        wanted = {"event": "ledger.bookie_replaced", "ledger_id": writer.ledger_id}
        await wait_until_async(
            lambda: asyncio.to_thread(found, bookie, **wanted), "the bookie that came has it"
        )
        (change,) = found(bookie, **wanted)
        values = change["values"]
        assert (change["kind"], values["bookie"], values["replacement"]) == (
            "ensemble",
            lost,
            spare,
        )
        assert values["cause"] == "writer"
        assert values["client"].endswith(f":{os.getpid()}")
        assert values["reason"]
        async with fastbk.connect(cluster.metadata_uri) as other:
            await other.open_ledger(writer.ledger_id)
        wanted = {"event": "ledger.fenced", "ledger_id": writer.ledger_id}
        alive = [cluster.bookies[names.index(one)] for one in names if one != lost]
        await wait_until_async(
            lambda: asyncio.to_thread(lambda: any(found(one, **wanted) for one in alive)),
            "a bookie has the fence",
        )


async def test_the_command_shows_a_time_of_all_bookies_and_names_those_that_are_silent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with LocalCluster(2) as cluster:
        words = ["cluster", "events", "--metadata", cluster.metadata_uri]
        assert await asyncio.to_thread(main, [*words, "--since", "-10m"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line[:23] for line in lines] == sorted(line[:23] for line in lines)
        for name in ("bookie-1", "bookie-2"):
            assert any(name in line and "bookie.started" in line for line in lines)
        moments = {
            one["source"]: one["time"]
            for b in cluster.bookies
            for one in found(b, event="bookie.started")
        }
        first, *_, last = sorted(moments.values())
        words += ["--since", first, "--until", last, "--kind", "start", "--json"]
        assert await asyncio.to_thread(main, words) == 0
        shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        started = [one for one in shown if one["event"] == "bookie.started"]
        assert [one["time"] for one in started] == [
            one for one in sorted(moments.values()) if one < last
        ]
        await cluster.stop_bookie_async(1)
        assert await asyncio.to_thread(main, [*words[:4], "--since", "-10m", "--kind", "disk"]) == 1
        errors = capsys.readouterr().err
        assert (
            "bookie-2 did not answer, its events are missing: it is not registered: it is down"
            in errors
        )
        assert "bookie-1 did not" not in errors


def test_a_refused_query_says_what_is_wrong(cluster: LocalCluster) -> None:
    bookie = cluster.bookies[0]
    for query, reason in (
        ("since=3x", "3x: no moment"),
        ("kind=disks", "kind disks"),
        ("sinze=1", "sinze"),
    ):
        status, text = page(bookie, f"/events?{query}")
        assert (status, reason in text) == (400, True), text


def test_a_janitor_and_a_healer_have_pages_and_files_of_events(
    one: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = one.metadata_uri
    services = [DevService(name, tmp_path, uri) for name in ("janitor", "autorecovery")]
    words = ["cluster", "events", "--metadata", uri, "--json", "--bookie", "bookie-1"]
    for one in services:
        one.start()
        words += ["--page", f"127.0.0.1:{one.http_port}"]
    try:
        sources: set[str] = set()

        def are_there() -> bool:
            capsys.readouterr()
            main(words)
            shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
            sources.update(one["source"] for one in shown if one["event"].endswith(".started"))
            return len(sources) == 3

        wait_until(are_there, "all three have started")
        assert {one.partition("@")[0] for one in sources} == {"bookie-1", "janitor", "autorecovery"}
    finally:
        for one in services:
            one.stop()
    for name in ("janitor", "autorecovery"):
        kinds = [one.kind for one in read_events(tmp_path / name / "events.jsonl")]
        assert (kinds[0], kinds[-1]) == ("start", "stop")


def test_without_metadata_the_events_of_named_pages_are_shown(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When metadata is away, one wants to know since when."""
    monkeypatch.setattr(options, "METADATA_TIMEOUT_S", 1.0)
    words = [
        "cluster",
        "events",
        "--metadata",
        "zk+hierarchical://127.0.0.1:1/ledgers",
        "--since",
        "-1d",
    ]
    assert main(words) == UNREACHABLE
    assert "without metadata, --page HOST:PORT reads the events" in capsys.readouterr().err
    assert main([*words, "--page", f"127.0.0.1:{cluster.bookies[0].http_port}"]) == FAILED
    shown = capsys.readouterr()
    assert "bookie.started" in shown.out
    assert (
        "metadata cannot be read, events are of the pages of --page only: ZooKeeper 127.0.0.1:1"
        in shown.err
    )


def test_following_shows_what_happens_next_until_ctrl_c(one: LocalCluster) -> None:
    words = [
        "cluster",
        "events",
        "--metadata",
        one.metadata_uri,
        "--since",
        "-10m",
        "--follow",
        "--json",
    ]
    following = subprocess.Popen(
        [sys.executable, "-m", "fastbk.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert following.stdout is not None
    try:
        event = json.loads(following.stdout.readline())  # the test's timeout bounds it
        one.kill(0, "journal")
        while event["event"] != "bookie.broke_down":
            event = json.loads(following.stdout.readline())
        assert event["source"] == "bookie-1"
        following.send_signal(signal.SIGINT)
        assert following.wait(30) == 0
    finally:
        following.kill()
        following.communicate()
