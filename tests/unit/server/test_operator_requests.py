"""What operators may ask of gc over HTTP, and what is left of it when gc's process ends."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from fastbk.errors import ConfigError
from fastbk.native.disk import Disk
from fastbk.server.admin.metrics import Metrics
from fastbk.server.configuration.bookie_config import BookieConfig
from fastbk.server.process_table import GC, INDEX
from fastbk.server.supervision.lifecycle import Lifecycle, RestartBudget
from fastbk.server.supervision.operator_requests import ASKED, GcAdmin, GcGone, ReadOnlyAdmin
from fastbk.storage import small_files

if TYPE_CHECKING:
    from pathlib import Path


def boot(sent: list[dict[str, Any]], *, is_alive: bool = True) -> Any:
    def send(message: dict[str, Any]) -> bool:
        sent.append(message)
        return is_alive

    return cast("Any", SimpleNamespace(children={GC: SimpleNamespace(send=send)}))


@dataclass
class Boots:
    """The boot under way, if there is one."""

    now: Any = None

    def begin(self, admin: GcAdmin, boot: Any) -> None:
        self.now = boot
        admin.boot_is_ready()


def admin_of() -> tuple[GcAdmin, Boots]:
    boots = Boots()
    return GcAdmin(lambda: boots.now), boots


def answer(what: Any) -> dict[str, Any]:
    found: dict[str, Any] = asyncio.run(what)
    return found


def test_orders_reach_the_process_and_its_word_is_shown() -> None:
    admin, boots = admin_of()
    sent: list[dict[str, Any]] = []
    boots.begin(admin, boot(sent))
    assert answer(admin.run({}))["number"] == 1
    assert answer(admin.run({"what": ["minor"], "force": True}))["number"] == 2
    assert sent == [
        {"type": "gc_run", "what": ["ledgers"], "force": False, "number": 1},
        {"type": "gc_run", "what": ["minor"], "force": True, "number": 2},
    ]
    admin.take_status({"type": "gc_status", "status": {"run_done": 1, "doing": "x"}})
    status = answer(admin.status({}))
    assert (status["running"], status["runs_asked"], status["run_done"], status["runs_lost"]) == (
        True,
        2,
        1,
        0,
    )


def test_a_suspension_outlives_the_process() -> None:
    admin, boots = admin_of()
    sent: list[dict[str, Any]] = []
    boots.begin(admin, boot(sent))
    assert answer(admin.suspend({}))["suspended"] == ["ledgers", "major", "minor"]
    assert answer(admin.resume({"what": ["minor"]}))["suspended"] == ["ledgers", "major"]
    answer(admin.run({}))
    boots.now = None
    again: list[dict[str, Any]] = []
    boots.begin(admin, boot(again))
    assert again == [{"type": "gc_suspend", "what": ["ledgers", "major"]}]
    assert answer(admin.status({}))["runs_lost"] == 1, "nobody will do that run"


def test_without_a_process_orders_are_refused() -> None:
    admin, boots = admin_of()
    with pytest.raises(GcGone):
        answer(admin.run({}))
    boots.begin(admin, cast("Any", SimpleNamespace(children={INDEX: None})))
    assert answer(admin.status({}))["running"] is False
    boots.begin(admin, boot([], is_alive=False))
    with pytest.raises(GcGone):
        answer(admin.suspend({}))
    assert answer(admin.status({}))["suspended"] != [], "and the next process hears of it"


@pytest.mark.parametrize(
    "asked", [{"what": ["all"]}, {"what": "minor"}, {"what": [1]}, {"force": "yes"}]
)
def test_what_there_is_not_is_refused(asked: dict[str, Any]) -> None:
    admin, boots = admin_of()
    boots.begin(admin, boot([]))
    with pytest.raises(ConfigError):
        answer(admin.run(asked))


# What an operator asks of a bookie's adds: what is written down and what is done stay the same.


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
