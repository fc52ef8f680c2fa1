"""The orderly stop of a bookie, whatever goes on: what is said of it, what it leaves, and that nothing keeps it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from fastbk.devcluster import Bookie, DevCluster
from fastbk.devcluster.cluster import SQLITE_NAME
from fastbk.native.client_codec import put_read_batch
from fastbk.testing import LocalCluster
from fastbk.units import KIB, MIB
from fastbk.wire.statuses import Status
from tests.fixtures.logs import json_lines
from tests.fixtures.pages import metrics, page
from tests.fixtures.raw_bookie import raw_bookie
from tests.fixtures.wait import wait_until
from tests.integration.test_limits import dial, hello

SMALL = {"limits": {"frame_size_max": "2MiB"}, "network": {"reply_backlog_max": "4MiB"}}


def assert_drained(bookie: Bookie) -> None:
    """Nothing had to be cut short."""
    names = [event["event"] for event in json_lines(bookie.log_path)]
    assert "bookie.draining" in names
    assert "drain.timed_out" not in names, bookie.log_tail(20)
    assert "drain.failed" not in names, bookie.log_tail(20)


def has_children(bookie: Bookie) -> bool:
    """Whether it has said so."""
    bookie.refresh()
    return bool(bookie.pids)


async def test_reads_that_nobody_waits_for_do_not_keep_a_bookie() -> None:
    """A client that is gone, or reads nothing: what it asked for is still on its way when the worker leaves."""
    async with LocalCluster(2, settings=SMALL) as cluster:
        for number, bookie in enumerate(cluster.bookies):
            raw = await raw_bookie(bookie)
            for entry_id in range(64):
                assert await raw.add(7, entry_id, bytes(64 * KIB)) == Status.OK
            deaf = dial(bookie, receive_bytes=4096)
            hello(deaf)
            deaf.sendall(b"".join(put_read_batch(n, 7, 0, 63, 64, MIB) for n in range(10, 410)))
            if number == 0:
                deaf.close()
            assert await raw.read(7, 0) == bytes(64 * KIB), "what was asked before is under way"
            assert await cluster.stop_bookie_async(number) == 0
            assert_drained(bookie)
            deaf.close()
            raw.close()


def test_a_start_that_is_stopped_while_it_waits_for_metadata_is_no_failure(tmp_path: Path) -> None:
    """Whatever metadata says in the end."""
    cluster = DevCluster(tmp_path, 1)
    (bookie,) = cluster.bookies
    with closing(sqlite3.connect(tmp_path / SQLITE_NAME, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        bookie.spawn()
        wait_until(lambda: has_children(bookie), "the children")
        bookie.request_stop()
        wait_until(lambda: "bookie.asked_to_stop" in bookie.log_tail(), "that it has heard that")
        other.execute("PRAGMA user_version=99")
        other.execute("COMMIT")
        assert bookie.wait_gone() == 0, bookie.log_tail()
    (cut_off,) = [event for event in json_lines(bookie.log_path) if event["level"] == "warning"]
    assert "has format 99" in str(cut_off["reason"])


def test_a_start_after_a_crash_is_told_from_one_after_a_planned_stop(tmp_path: Path) -> None:
    """What the alert for crash loops counts, and a rolling restart does not show."""
    name = "fastbk_supervisor_unclean_start_time_seconds"
    cluster = DevCluster(tmp_path / "data", 1)
    try:
        cluster.start()
        bookie = cluster.bookies[0]
        assert name not in metrics(bookie)
        text = page(bookie, "/metrics")[1]
        for process in ("supervisor", "worker.0", "journal", "index", "gc"):
            for metric in ("resident_memory_bytes", "cpu_seconds_total"):
                assert f'fastbk_process_{metric}{{process="{process}",' in text
        bookie.kill()
        cluster.start()
        assert metrics(bookie)[name] > 0
        bookie.request_stop()
        assert bookie.wait_gone() == 0
        cluster.start()
        assert name not in metrics(bookie)
    finally:
        assert cluster.stop()
