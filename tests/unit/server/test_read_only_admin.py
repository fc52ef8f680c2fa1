"""What an operator asks of a bookie's adds: what is written down and what is done stay the same."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

import msgspec
import pytest

from fastbk.native.disk import Disk
from fastbk.server.admin.metrics import Metrics
from fastbk.server.configuration.bookie_config import BookieConfig
from fastbk.server.supervision.lifecycle import Lifecycle, RestartBudget
from fastbk.server.supervision.operator_requests import ASKED, ReadOnlyAdmin
from fastbk.storage import small_files


def desk_of(folder: Path) -> ReadOnlyAdmin:
    config = msgspec.convert(
        {"ledgers": {"directory": str(folder)}, "bookie": {"read_only_persists": True}},
        BookieConfig,
    )
    return ReadOnlyAdmin(config, lambda: None)


def written(folder: Path) -> bool:
    disk = Disk(str(folder), "plain", only_reads=True)
    try:
        return small_files.is_read_only_requested(disk, str(folder))
    finally:
        disk.destroy()


class SlowDisk:
    """The first write waits until it is let go; all are done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self._write = small_files.write_read_only_request
        monkeypatch.setattr(small_files, "write_read_only_request", self._slowly)

    def _slowly(self, disk: Disk, directory: str, *, is_read_only: bool) -> None:
        if not self.begun.is_set():
            self.begun.set()
            assert self.go_on.wait(10)
        self._write(disk, directory, is_read_only=is_read_only)


@pytest.mark.parametrize("is_given_up", [False, True])
async def test_the_last_one_to_ask_is_heard_on_disk_and_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_given_up: bool
) -> None:
    """Also where the first one's time was over before the disk was done."""
    life = Lifecycle(0.0)
    metrics = Metrics(life, RestartBudget(5, 60.0))
    admin, disk = desk_of(tmp_path), SlowDisk(monkeypatch)
    first = asyncio.create_task(admin.request(metrics, read_only=True))
    assert await asyncio.to_thread(disk.begun.wait, 10)
    if is_given_up:
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first
    second = asyncio.create_task(admin.request(metrics, read_only=False))
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(second), 0.1)  # it has every chance to be too early
    disk.go_on.set()
    await second
    if not is_given_up:
        await first
    assert (written(tmp_path), admin.reason) == (False, "")
    await admin.request(metrics, read_only=True)
    assert (written(tmp_path), admin.reason) == (True, ASKED)
