"""What systemd hears from a bookie, a janitor and AutoRecovery: real processes, a notify socket of the test's own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastbk.exit_codes import UNREACHABLE
from fastbk.observe.systemd import SOCKET, WATCHDOG_US
from tests.fixtures.logs import events
from tests.fixtures.metadata import new_cluster
from tests.fixtures.pages import page_at
from tests.fixtures.wait import wait_until
from tests.packaging.units import SERVICES, UNITS, unit


class Heard:
    """A notify socket, and all words that came so far."""

    def __init__(self, path: Path) -> None:
        self.environment = {**os.environ, SOCKET: str(path), WATCHDOG_US: "1000000"}
        self.words: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)

    def more(self) -> list[str]:
        """Return what came since the last call."""
        came: list[str] = []
        while True:
            try:
                came += self._socket.recv(4096).decode().split("\n")
            except BlockingIOError:
                self.words += came
                return came

    def until(self, word: str) -> None:
        """Wait for a word that begins so."""
        wait_until(lambda: any(one.startswith(word) for one in self.more()), word)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[Heard]:
    one = Heard(tmp_path / "notify")
    yield one
    one.close()


def started(heard: Heard, log: Path, *words: str) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen([sys.executable, "-m", "fastbk.cli", *words], env=heard.environment, stderr=file)


def ended(process: subprocess.Popen[bytes]) -> int:
    process.terminate()
    return process.wait(timeout=30)


def test_a_bookie_is_ready_when_it_serves_and_alive_while_data_moves(heard: Heard, tmp_path: Path) -> None:
    (tmp_path / "bookie.toml").write_text(f"""
[bookie]
id = "b1"
listen = "127.0.0.1:0"
[metadata]
uri = "sqlite:{tmp_path}/metadata.sqlite"
[journal]
directory = "{tmp_path}/journal"
[ledgers]
directories = ["{tmp_path}/ledgers"]
[http]
listen = "127.0.0.1:0"
""")
    log = tmp_path / "log"
    process = started(heard, log, "bookie", "--config", str(tmp_path / "bookie.toml"))
    try:
        heard.until("READY=1")
        assert heard.words[0].startswith("STATUS=starting")
        assert any(one.startswith("EXTEND_TIMEOUT_USEC=") for one in heard.words), "a replay may take longer"
        assert "STATUS=replaying: replaying the journal" in heard.words
        heard.until("WATCHDOG=1")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children}
        (journal,) = (int(pid) for pid, line in lines.items() if b"journal.process" in line)
        for pid in children:
            assert b"NOTIFY_SOCKET" not in Path(f"/proc/{pid}/environ").read_bytes()
        port = events(log, "bookie.started")[0]["http_port"]
        os.kill(journal, signal.SIGSTOP)
        wait_until(lambda: "frozen.journal" in page_at(port, "/readyz")[1], "the journal is missed")
        heard.more()
        frozen_for = [f"stands still for {seconds} s" for seconds in range(4, 60)]
        wait_until(lambda: any(one in page_at(port, "/readyz")[1] for one in frozen_for), "some seconds pass")
        assert "WATCHDOG=1" not in heard.more(), "systemd kills a bookie whose journal stands still"
        os.kill(journal, signal.SIGCONT)
        heard.until("WATCHDOG=1")
    finally:
        code = ended(process)
    assert code == 0
    heard.more()
    assert "STOPPING=1" in heard.words
    assert heard.words.count("READY=1") == 1


CONSOLE = ("console", "--listen", "127.0.0.1:0")


@pytest.mark.parametrize("words", [("janitor",), ("autorecovery",), CONSOLE], ids=lambda words: words[0])
def test_the_others_are_ready_alive_and_stop(
    words: tuple[str, ...], heard: Heard, tmp_path: Path
) -> None:
    """None of them needs a bookie for that."""
    uri = new_cluster(tmp_path / "metadata.sqlite")
    process = started(heard, tmp_path / "log", *words, "--metadata", uri)
    try:
        heard.until("READY=1")
        heard.until("WATCHDOG=1")
        assert any(one.startswith("STATUS=") for one in heard.words)
    finally:
        code = ended(process)
    assert code == 0
    heard.until("STOPPING=1")


def test_a_wrong_configuration_is_not_tried_again(heard: Heard, tmp_path: Path) -> None:
    """The units' RestartPreventExitStatus is what the command ends with."""
    (tmp_path / "bookie.toml").write_text("[nonsense]\n")
    process = started(heard, tmp_path / "log", "bookie", "--config", str(tmp_path / "bookie.toml"))
    process.wait(timeout=30)
    assert "READY=1" not in heard.more()
    for name in SERVICES:
        codes = unit(UNITS / name)["Service"]["RestartPreventExitStatus"]
        assert str(process.returncode) in codes[0].split()


def test_without_metadata_every_service_ends_so_that_its_unit_starts_it_again(heard: Heard, tmp_path: Path) -> None:
    """And the units have no limit of starts: they wait for ZooKeeper as long as it takes."""
    uri = "zk://127.0.0.1:1/ledgers"
    (tmp_path / "bookie.toml").write_text(f"""
[bookie]
id = "b1"
listen = "127.0.0.1:0"
[metadata]
uri = "{uri}"
[journal]
directory = "{tmp_path}/journal"
[ledgers]
directories = ["{tmp_path}/ledgers"]
""")
    (tmp_path / "gateway.toml").write_text(f'[gateway]\nlisten = "127.0.0.1:0"\n[metadata]\nuri = "{uri}"\n')
    commands = {
        "fastbk-bookie@.service": ("bookie", "--config", str(tmp_path / "bookie.toml")),
        "fastbk-gateway.service": ("gateway", "--config", str(tmp_path / "gateway.toml")),
        "fastbk-janitor.service": ("janitor", "--metadata", uri),
        "fastbk-autorecovery.service": ("autorecovery", "--metadata", uri),
        "fastbk-console.service": (*CONSOLE, "--metadata", uri),
    }
    assert set(commands) == set(SERVICES)
    processes = {name: started(heard, tmp_path / name, *words) for name, words in commands.items()}
    codes = {name: process.wait(timeout=100) for name, process in processes.items()}
    assert set(codes.values()) == {UNREACHABLE}, codes
    for name in SERVICES:
        file = unit(UNITS / name)
        assert str(UNREACHABLE) not in file["Service"]["RestartPreventExitStatus"][0].split()
        assert file["Unit"]["StartLimitIntervalSec"] == ["0"]
    assert "READY=1" not in heard.more()
