"""Before a boot: which disks are waited for, which leave reads, which deaths they explain; and what is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastbk.server.directories import LOCK_NAME, DirectoryLock, lock_all
from fastbk.server.disks import disk_reports
from fastbk.server.disks.disk_reports import (
    DiskReports,
    DiskWait,
    UsedDirectory,
    boot_problems,
    why_not_writable,
)
from fastbk.server.disks.disk_watch import DiskReport
from fastbk.server.supervision.lifecycle import Lifecycle, State
from fastbk.storage.disk_health import DiskState
from tests.fixtures.wait import wait_until_async

RESERVE_BYTES = 1 << 20


class Harness:
    """Two real directories, locked as a supervisor does, and a gate before them."""

    def __init__(self, tmp_path: Path) -> None:
        self.life = Lifecycle(0.0)
        self.board = DiskReports(self.life)
        paths = [tmp_path / "journal", tmp_path / "ledgers"]
        self.locks: list[DirectoryLock] = lock_all([str(path) for path in paths])
        self.paths = dict(zip(("journal", "ledger"), paths, strict=True))
        self.directories = [
            UsedDirectory(role, 0, str(path), lock.descriptor)
            for (role, path), lock in zip(self.paths.items(), self.locks, strict=True)
        ]
        self.gate = DiskWait(
            self.directories,
            poll_s=0.01,
            reserve_bytes=RESERVE_BYTES,
            note=self.life.note,
            tell=self.board.put,
        )
        self.stop = asyncio.Event()

    def vanish(self, role: str) -> None:
        path = self.paths[role]
        path.rename(path.with_name("away"))
        path.mkdir()

    def come_back(self, role: str) -> None:
        path = self.paths[role]
        path.rmdir()
        path.with_name("away").rename(path)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path)
    yield harness
    for lock in harness.locks:
        lock.close()


def refuse_writes(monkeypatch: pytest.MonkeyPatch, *folders: str) -> None:
    """Have writes into these folders fail, as on a disk that does."""

    def why(directory: str) -> str:
        return (
            "Input/output error" if Path(directory).name in folders else why_not_writable(directory)
        )

    monkeypatch.setattr(disk_reports, "why_not_writable", why)


async def test_well_disks_let_everything_pass_and_keep_nothing(harness: Harness) -> None:
    await harness.gate.wait(harness.stop)
    assert harness.gate.no_journal_reason == ""
    assert not await harness.gate.explains("journal", was_serving=True)
    assert {name.name for path in harness.paths.values() for name in path.iterdir()} == {LOCK_NAME}


@pytest.mark.parametrize("role", ["journal", "ledger"])
async def test_a_directory_that_is_gone_is_waited_for(harness: Harness, role: str) -> None:
    """INV-D2: over another disk there is no boot; an empty journal there would be taken for a lost one."""
    harness.vanish(role)
    assert await harness.gate.explains("index", was_serving=True)
    waiting = asyncio.create_task(harness.gate.wait(harness.stop))
    await wait_until_async(lambda: bool(harness.board.reports()), "it is shown")
    (report,) = harness.board.reports()
    assert (report.role, report.state, report.takes) == (role, "gone", "nothing")
    reasons = harness.life.not_ready(0.0)
    assert any("was its disk unmounted?" in reason for reason in reasons)
    assert not waiting.done()
    assert list(harness.paths[role].iterdir()) == []
    harness.come_back(role)
    await asyncio.wait_for(waiting, 10)
    assert not any("before its disks" in reason for reason in harness.life.not_ready(0.0))


async def test_a_stop_ends_the_wait(harness: Harness) -> None:
    harness.vanish("ledger")
    waiting = asyncio.create_task(harness.gate.wait(harness.stop))
    await wait_until_async(lambda: bool(harness.board.reports()), "it is shown")
    harness.stop.set()
    await asyncio.wait_for(waiting, 10)
    assert harness.gate.no_journal_reason == ""
    harness.come_back("ledger")


async def test_a_journal_that_fails_leaves_reads_and_is_looked_after(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_writes(monkeypatch, "journal")
    assert await harness.gate.explains("journal", was_serving=True)
    assert not await harness.gate.explains("worker", was_serving=True), "that has other reasons"
    await harness.gate.wait(harness.stop)
    assert "cannot be written: Input/output error" in harness.gate.no_journal_reason
    back = asyncio.create_task(harness.gate.until_journal_is_back())
    await asyncio.sleep(0)
    assert not back.done()
    monkeypatch.undo()
    await asyncio.wait_for(back, 10)
    await harness.gate.wait(harness.stop)
    assert harness.gate.no_journal_reason == ""


async def test_a_ledger_directory_that_fails_is_waited_for(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_writes(monkeypatch, "ledgers")
    (problem,) = boot_problems(harness.directories)
    assert problem.state is DiskState.FAILED
    assert problem.is_fatal
    waiting = asyncio.create_task(harness.gate.wait(harness.stop))
    await wait_until_async(lambda: bool(harness.board.reports()), "it is shown")
    monkeypatch.undo()
    await asyncio.wait_for(waiting, 10)


async def test_a_start_that_lacks_room_for_its_flush_is_the_disks_fault(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A13: replay has to flush; until somebody frees room no start can succeed, and none counts."""
    rooms = [True]
    monkeypatch.setattr(disk_reports, "lacks_room", lambda *_: rooms[0])
    assert await harness.gate.explains("index", was_serving=False)
    assert not await harness.gate.explains("index", was_serving=True)
    assert not await harness.gate.explains("journal", was_serving=False)
    rooms[0] = False
    assert not await harness.gate.explains("index", was_serving=False)


# ---- the board


def report(role: str, state: str, takes: str, **more: object) -> DiskReport:
    facts: dict[str, object] = {
        "pair": 0, "directory": f"/{role}", "reason": "", "slow": "", "errors": 0,
        "free_bytes": 5, "used_bytes": 15, "used_ratio": 0.75, "state_since_s": 0.0, "looked_s": 0.0,
    }  # fmt: skip
    return DiskReport(role=role, state=state, takes=takes, **(facts | more))  # type: ignore[arg-type]


def test_only_disks_that_refuse_speak_against_readiness() -> None:
    life = Lifecycle(0.0)
    board = DiskReports(life)
    life.go(State.REPLAYING, "", 0.0)
    life.go(State.WRITABLE, "", 0.0)
    board.put(report("journal", "warn", "all", reason="filling up", slow="half of the commits"))
    assert life.not_ready(0.0) == []
    board.put(report("ledger", "full", "repairs", reason="too little space"))
    assert life.not_ready(0.0) == ["ledger directory /ledger: too little space"]
    assert board.refusing() == "ledger directory /ledger: too little space"
    board.put(report("ledger", "ok", "all"))
    assert life.not_ready(0.0) == []
    assert [each["role"] for each in board.shown()] == ["journal", "ledger"]


def test_every_state_has_its_number_in_the_metrics() -> None:
    board = DiskReports(Lifecycle(0.0))
    assert board.metric_lines() == []
    for number, state in enumerate(DiskState):
        board.take_message(
            {**vars_of(report("ledger", state.value, "nothing", errors=3)), "type": "disk"}
        )
        lines = board.metric_lines()
        assert f'fastbk_disk_state{{role="ledger",pair="0"}} {number}' in lines
        assert 'fastbk_disk_refuses{role="ledger",pair="0"} 2' in lines
        assert 'fastbk_disk_errors_total{role="ledger",pair="0"} 3' in lines
        assert 'fastbk_disk_used_ratio{role="ledger",pair="0"} 0.75' in lines


def vars_of(found: DiskReport) -> dict[str, object]:
    return {name: getattr(found, name) for name in found.__struct_fields__}
