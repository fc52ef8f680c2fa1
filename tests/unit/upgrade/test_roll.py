"""The restart command of a roll: what it is given, how long it may take, and what is said of its end."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from fastbk.autorecovery.state import WORKER_SILENT_S, WorkerReport
from fastbk.client import Client
from fastbk.errors import ConfigError
from fastbk.formats import LEVEL_PROPERTY
from fastbk.meta.api import BookieRegistration, BookieService
from fastbk.meta.placement_record import change_rules
from fastbk.meta.sqlite.store import MemoryStore
from fastbk.placement.rules import ClusterRules
from fastbk.upgrade.roll import (
    OUTPUT_BYTES_MAX,
    RollOptions,
    _Runner,
    level_of,
    read_bookies,
    reasons_against,
)
from fastbk.upgrade.roll_plan import Roll
from tests.fixtures.placed import know
from tests.fixtures.wait import wait_until_async

RESTART_S = 30.0


async def restart(command: str, *bookies: str, command_s: float = RESTART_S) -> str:
    """Return why the command failed, "" if it did not."""
    options = RollOptions(command=command, command_s=command_s)
    async with Client(MemoryStore("roll command")) as client:
        return await _Runner(client, Roll(()), options, lambda _: None)._restart(bookies)


async def test_it_gets_the_id_quoted_for_the_shell(tmp_path: Path) -> None:
    name = "b 1; touch x"
    assert await restart(f"cd {tmp_path} && printf %s {{bookie}} > got", name) == ""
    assert (tmp_path / "got").read_text() == name
    assert not (tmp_path / "x").exists()


async def test_its_code_and_last_output_are_told() -> None:
    said = await restart("echo to stderr of {bookie} >&2; exit 7", "b1", "b2")
    assert "the restart command of b1 ended with 7: to stderr of b1" in said
    assert "b2 ended with 7" in said
    said = await restart("yes {bookie} | head -c 100000; exit 1", "b1")
    assert len(said) < OUTPUT_BYTES_MAX + 200
    assert "it printed nothing" in await restart("exit 1 # {bookie}", "b1")


async def test_one_that_does_not_end_is_killed_with_what_it_started(tmp_path: Path) -> None:
    command = f"sleep 100 & echo $! > {tmp_path}/pid; wait # {{bookie}}"
    said = await restart(command, "b1", command_s=1.0)
    assert said.startswith("the restart command of b1 did not end within 1 s")
    pid = int((tmp_path / "pid").read_text())
    await wait_until_async(lambda: not _is_running(pid), "its child is gone")


async def test_an_interrupted_roll_waits_for_the_command_that_runs(tmp_path: Path) -> None:
    """Half of a restart would leave the bookie stopped."""
    command = f"touch {tmp_path}/stopped; read line < {tmp_path}/go; touch {tmp_path}/started # {{bookie}}"
    os.mkfifo(tmp_path / "go")
    task = asyncio.create_task(restart(command, "b1"))
    await wait_until_async((tmp_path / "stopped").exists, "the command runs")
    task.cancel()
    done, _ = await asyncio.wait((task,), timeout=0.1)
    assert not done
    await asyncio.to_thread((tmp_path / "go").write_text, "go\n")
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (tmp_path / "started").exists()


async def test_the_second_interruption_kills_the_command(tmp_path: Path) -> None:
    task = asyncio.create_task(restart(f"echo $$ > {tmp_path}/pid; sleep 100 # {{bookie}}", "b1"))
    await wait_until_async(
        lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "its pid"
    )
    for _ in range(2):
        task.cancel()
        await asyncio.wait((task,), timeout=0.1)
    async with asyncio.timeout(RESTART_S / 3):
        with pytest.raises(asyncio.CancelledError):
            await task
    pid = int((tmp_path / "pid").read_text())
    await wait_until_async(lambda: not _is_running(pid), "the command is gone")


async def test_what_it_leaves_running_keeps_nobody_waiting(tmp_path: Path) -> None:
    """A bookie that was started by hand has the pipe."""
    async with asyncio.timeout(20):
        assert await restart(f"sleep 60 & echo $! > {tmp_path}/pid # {{bookie}}", "b1") == ""
    pid = int((tmp_path / "pid").read_text())
    assert _is_running(pid)
    await restart(f"kill {pid} # {{bookie}}", "b1")


def test_a_command_names_the_bookie() -> None:
    with pytest.raises(ConfigError, match=r"write \{bookie\} where"):
        RollOptions(command="systemctl restart fastbk-bookie")


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


# Who stands in the way of a new format level.


NOW_MS = 1_000_000


def bookie(name: str, **properties: str) -> BookieRegistration:
    return BookieRegistration(BookieService(name, 1, (), properties), writable=True)


def new(name: str, level: int = 2) -> BookieRegistration:
    return bookie(name, version="0.2.9", **{LEVEL_PROPERTY: str(level)})


def test_all_have_the_level() -> None:
    workers = {"w": WorkerReport(report_ms=NOW_MS, format_level=2)}
    assert reasons_against(2, [new("a"), new("b", 3)], ["a", "b"], workers, NOW_MS) == ()


def test_a_bookie_that_says_nothing_is_of_the_first_level() -> None:
    """INV-U2."""
    assert level_of(bookie("a").service) == 1
    assert level_of(bookie("a", **{LEVEL_PROPERTY: "two"}).service) == 1
    (reason,) = reasons_against(2, [new("a"), bookie("b")], ["a", "b"], {}, NOW_MS)
    assert reason.startswith("bookie b has levels up to 1")


def test_a_bookie_that_is_down_may_be_an_old_one() -> None:
    """INV-U2."""
    (reason,) = reasons_against(2, [new("a")], ["a", "b"], {}, NOW_MS)
    assert reason.startswith("bookie b is down")


def test_a_worker_counts_while_it_reports() -> None:
    """INV-U2."""
    silent_ms = NOW_MS - int(WORKER_SILENT_S * 1000)
    workers = {"old": WorkerReport(report_ms=NOW_MS - 1), "gone": WorkerReport(report_ms=silent_ms)}
    (reason,) = reasons_against(2, [new("a")], ["a"], workers, NOW_MS)
    assert reason.startswith("autorecovery old has levels up to 1")


def test_a_cluster_without_bookies_has_nothing_to_finalize() -> None:
    assert reasons_against(2, [], [], {}, NOW_MS) == ("no bookie is registered",)


async def test_bookies_are_where_the_clusters_table_and_pulsars_node_say_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else bookies of several racks would be restarted as if they were in one."""
    store = MemoryStore("roll locations")
    know(store, "b1", "10.1.2.3:3181", "b3", "b4")
    change_rules(store, lambda _: ClusterRules(locations={"b1": "/eu/r1", "10.1.*": "/eu/r2"}))
    monkeypatch.setattr(MemoryStore, "pulsar_racks", lambda _: b'{"g":{"b3":{"rack":"/eu/r3"}}}')
    async with Client(store) as client:
        found = await read_bookies(client)
    assert {name: bookie.location for name, bookie in found.items()} == {
        "10.1.2.3:3181": "/eu/r2",
        "b1": "/eu/r1",
        "b3": "/eu/r3",
        "b4": "/default-region/default-rack",
    }
