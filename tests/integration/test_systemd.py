"""What systemd hears from a bookie, a janitor and AutoRecovery: real processes, a notify socket of the test's own."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import fastbk
from fastbk.errors import Error
from fastbk.exit_codes import UNREACHABLE
from fastbk.observe.systemd import SOCKET, WATCHDOG_US
from tests.fixtures.exposition import scraped_at
from tests.fixtures.logs import events
from tests.fixtures.metadata import new_cluster
from tests.fixtures.pages import page_at
from tests.fixtures.wait import crowd, wait_until
from tests.fixtures.zookeeper import QuorumServer, ZooKeeperPlace, free_ports
from tests.packaging.units import SERVICES, UNITS, Supervised, unit, watch_until

pytestmark = pytest.mark.waits


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
        return subprocess.Popen(
            [sys.executable, "-m", "fastbk.cli", *words], env=heard.environment, stderr=file
        )


def ended(process: subprocess.Popen[bytes]) -> int:
    process.terminate()
    return process.wait(timeout=30)


def test_a_bookie_is_ready_when_it_serves_and_alive_while_data_moves(
    heard: Heard, tmp_path: Path
) -> None:
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
        assert any(one.startswith("EXTEND_TIMEOUT_USEC=") for one in heard.words), (
            "a replay may take longer"
        )
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
        wait_until(
            lambda: any(one in page_at(port, "/readyz")[1] for one in frozen_for),
            "some seconds pass",
        )
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


@pytest.mark.parametrize(
    "words", [("janitor",), ("autorecovery",), CONSOLE], ids=lambda words: words[0]
)
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


def test_without_metadata_every_service_ends_so_that_its_unit_starts_it_again(
    heard: Heard, tmp_path: Path
) -> None:
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
    (tmp_path / "gateway.toml").write_text(
        f'[gateway]\nlisten = "127.0.0.1:0"\n[metadata]\nuri = "{uri}"\n'
    )
    (tmp_path / "serve.toml").write_text(
        f'[serve]\nlisten = "127.0.0.1:0"\n[metadata]\nuri = "{uri}"\n'
    )
    commands = {
        "fastbk-serve.service": ("serve", "--config", str(tmp_path / "serve.toml")),
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


UNIT_FILES = {
    "bookie.toml": """
[bookie]
id = "b1"
listen = "127.0.0.1:{bookie}"
[metadata]
uri = "{uri}"
[journal]
directory = "{folder}/journal"
[ledgers]
directories = ["{folder}/ledgers"]
[http]
listen = "127.0.0.1:{bookie_page}"
""",
    "gateway.toml": '[gateway]\nlisten = "127.0.0.1:{gateway}"\n[metadata]\nuri = "{uri}"\n',
    "janitor.conf": "FASTBK_METADATA={uri}\nFASTBK_OPTIONS=--interval 1 --http 127.0.0.1:{janitor}\n",
    "autorecovery.conf": "FASTBK_METADATA={uri}\nFASTBK_OPTIONS=--http 127.0.0.1:{autorecovery}\n",
    "console.conf": "FASTBK_METADATA={uri}\nFASTBK_OPTIONS=--audit {folder}/audit.log --listen 127.0.0.1:{console}\n",
}
SESSION_S = 3.0
WATCHDOG_S = 15.0
"""A start of any process takes longer on a busy machine than the units' own times allow to test in seconds."""


class Machine:
    """All shipped units, with a ZooKeeper that comes and goes."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.server = QuorumServer(folder / "zookeeper", session_timeout_max_s=SESSION_S)
        self.server.start()
        stack.callback(self.server.stop)
        names = ("bookie", "bookie_page", "gateway", "janitor", "autorecovery", "console")
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        (folder / "etc").mkdir()
        uri = ZooKeeperPlace(self.server).uri()
        for name, text in UNIT_FILES.items():
            (folder / "etc" / name).write_text(text.format(folder=folder, uri=uri, **self.ports))
        self.services = {
            name: Supervised(name, folder, restart_s=1.0, watchdog_s=WATCHDOG_S)
            for name in SERVICES
        }
        for one in self.services.values():
            stack.callback(one.close)

    def until(self, condition: Callable[[], object], what: str) -> None:
        watch_until(self.services.values(), condition, what, 60.0 * crowd())

    def until_all_serve(self) -> None:
        """Wait until each does its work with what it reads from metadata now."""
        since_s = time.monotonic()
        self.until(lambda: all(one.is_ready for one in self.services.values()), "each is ready")
        self.until(lambda: self._page("bookie_page", "/readyz")[0] == 200, "the bookie is ready")
        self.until(self._is_written_through_the_gateway, "a ledger by the gateway and the bookie")
        self.until(lambda: self._shows("janitor", "fastbk_janitor_last_pass_age_seconds")
                   < time.monotonic() - since_s, "a pass of the janitor")  # fmt: skip
        self.until(
            lambda: self._shows("autorecovery", "fastbk_autorecovery_is_auditor") == 1, "an auditor"
        )
        self.until(
            lambda: "/bookie/b1" in self._page("console", "/bookies")[1],
            "the console shows the bookie",
        )

    def _is_written_through_the_gateway(self) -> bool:
        async def written() -> bytes:
            async with fastbk.connect(f"gateway://127.0.0.1:{self.ports['gateway']}") as client:
                async with await client.create_ledger(
                    ensemble=1, write_quorum=1, ack_quorum=1
                ) as writer:
                    await writer.append(b"served")
                reader = await client.open_ledger(writer.ledger_id)
                return b"".join([bytes(entry.data) async for entry in reader.read(0, 0)])

        with suppress(Error):
            return asyncio.run(written()) == b"served"
        return False

    def _page(self, service: str, path: str) -> tuple[int, str]:
        """Return the status and the text of a page; 0 while nobody listens."""
        try:
            return page_at(self.ports[service], path)
        except OSError:
            return 0, ""

    def _shows(self, service: str, metric: str) -> float:
        """Return a metric of a page; NaN without one, which is not less and not equal."""
        with suppress(OSError):
            return scraped_at(self.ports[service]).value(metric)
        return math.nan


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_all_units_wait_for_zookeeper_as_long_as_it_takes(tmp_path: Path) -> None:
    """It is away when they start, and again later, for longer than a session: they serve whenever it is back."""
    with ExitStack() as stack:
        machine = Machine(tmp_path, stack)
        services = machine.services
        machine.server.stop()
        machine.until(
            lambda: all(one.ends and one.is_running for one in services.values()), "second starts"
        )
        assert {code for one in services.values() for code in one.ends} == {UNREACHABLE}
        assert not any(one.is_ready for one in services.values())
        machine.server.start()
        machine.until_all_serve()

        ends = {name: len(one.ends) for name, one in services.items()}
        machine.server.stop()
        began_s = time.monotonic()
        machine.until(
            lambda: time.monotonic() - began_s > WATCHDOG_S + SESSION_S, "sessions are over"
        )
        assert [one.watchdog_kills for one in services.values()] == [0] * len(services)
        machine.server.start()
        machine.until_all_serve()
        bookie = services["fastbk-bookie@.service"]
        assert len(bookie.ends) == ends[bookie.name], "it serves its clients while metadata is away"
        for one in services.values():
            assert set(one.ends) <= {UNREACHABLE}
            assert one.stop() == 0
