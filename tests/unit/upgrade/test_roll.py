"""The restart command of a roll: what it is given, how long it may take, and what is said of its end."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from fastbk.client import Client
from fastbk.errors import ConfigError
from fastbk.meta.sqlite.store import MemoryStore
from fastbk.upgrade.roll import OUTPUT_BYTES_MAX, RollOptions, _Runner
from fastbk.upgrade.roll_plan import Roll
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
