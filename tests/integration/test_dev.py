"""`fastbk dev`: ready in seconds, the same folder gives the same ledgers back, nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import fastbk
from fastbk.devcluster import is_alive
from fastbk.testing import LocalCluster
from tests.fixtures.wait import crowd, wait_until

SERVICES = 3
"""Janitor, AutoRecovery and the write service."""


class Dev:
    """A running `fastbk dev`."""

    def __init__(
        self,
        data: Path,
        *words: str,
        program: Sequence[str] = (sys.executable, "-m", "fastbk.cli"),
        umask: int = -1,
    ) -> None:
        self.ready_file = data.parent / f"{data.name}.ready"
        # Under nohup the tests would hand "ignore" on, and `fastbk dev` respects that.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        self.process = subprocess.Popen(
            [*program, "dev", "--data", str(data),
             "--ready-file", str(self.ready_file), *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, umask=umask,
        )  # fmt: skip

    def wait_ready(self) -> str:
        wait_until(
            lambda: self.ready_file.exists() or self.process.poll() is not None, "readiness", 60.0
        )
        assert self.process.poll() is None, self.process.communicate()
        return self.ready_file.read_text()

    def pids(self) -> list[int]:
        """Return the pids of all descendants, of those that end meanwhile as it happens."""
        found, waiting = [], [self.process.pid]
        while waiting:
            parent = waiting.pop()
            try:
                children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
            except (FileNotFoundError, ProcessLookupError):
                continue  # ended since its parent named it
            waiting += map(int, children)
            found += map(int, children)
        return found

    def stop(self, number: int = signal.SIGTERM) -> tuple[str, str]:
        self.process.send_signal(number)
        return self.process.communicate(timeout=60)

    def stop_cleanly(self, number: int) -> str:
        """Stop it by that signal: it leaves nothing, and has no complaint. Return what it has printed."""
        pids = self.pids()
        out, err = self.stop(number)
        assert (self.process.returncode, err) == (0, "")
        assert not any(map(is_alive, pids))
        assert not self.ready_file.exists()
        return out


@contextmanager
def started(data: Path, *words: str) -> Iterator[Dev]:
    dev = Dev(data, "--json", *words)
    try:
        yield dev
    finally:
        if dev.process.poll() is None:
            dev.process.kill()
        dev.process.communicate()


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Dev]:
    with started(tmp_path / "data") as dev:
        yield dev


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Dev]:
    """Of one bookie: where the number does not matter, each one more costs a second of processor time."""
    with started(tmp_path / "data", "--bookies", "1") as dev:
        yield dev


async def write(uri: str, count: int, copies: int = 1) -> int:
    async with fastbk.connect(uri) as client:
        writer = await client.create_ledger(copies, copies, copies)
        async with writer:
            await writer.append_many([b"entry %d" % n for n in range(count)])
        return writer.ledger_id


async def read(uri: str, ledger_id: int) -> list[bytes]:
    async with fastbk.connect(uri) as client:
        reader = await client.open_ledger(ledger_id, recovery=False)
        async with reader:
            return [bytes(entry.data) async for entry in reader.read()]


def test_the_ready_file_holds_the_metadata_uri_alone_once_writes_are_taken(three: Dev) -> None:
    dev = three
    uri = dev.wait_ready()
    assert uri == f"sqlite:{dev.ready_file.parent}/data/metadata.sqlite"
    ledger_id = asyncio.run(write(uri, 10, copies=3))
    assert len(asyncio.run(read(uri, ledger_id))) == 10
    assert len(dev.pids()) == 3 * 5 + SERVICES
    assert dev.process.stdout is not None
    answer = json.loads(dev.process.stdout.readline())
    assert answer["metadata"] == uri
    assert len(answer["bookies"]) == 3

    def page_has(service: str, text: str) -> bool:
        try:
            with urllib.request.urlopen(answer[f"{service}_http"] + "/metrics", timeout=5) as page:
                return text in page.read().decode()
        except OSError:
            return False  # it is started when the bookies are ready, and listens a little later

    wait_until(
        lambda: page_has("janitor", "fastbk_janitor_passes_total"), "the janitor's page", 30.0
    )
    wait_until(lambda: page_has("serve", "fastbk_serve_frames_total"), "the service's page", 30.0)
    wait_until(
        lambda: page_has("autorecovery", "fastbk_autorecovery_elections_total 1"),
        "an auditor",
        30.0,
    )
    dev.stop_cleanly(signal.SIGTERM)


def test_a_signal_while_it_starts_stops_it(dev: Dev) -> None:
    wait_until(lambda: (dev.ready_file.parent / "data" / "bookie-1").exists(), "the start")
    dev.stop()
    assert dev.process.returncode in (0, -signal.SIGTERM)


def test_a_killed_bookie_is_started_again_and_kill_9_of_all_leaves_no_orphan_and_the_same_folder(
    dev: Dev,
) -> None:
    uri = dev.wait_ready()
    ledger_id = asyncio.run(write(uri, 1000))
    victim = int(
        Path(f"/proc/{dev.process.pid}/task/{dev.process.pid}/children").read_text().split()[0]
    )
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: not is_alive(victim), "its end")

    async def writable() -> int:
        async with fastbk.connect(uri) as client:
            return sum(bookie.writable for bookie in await client.list_bookies())

    wait_until(lambda: len(dev.pids()) == 5 + SERVICES, "all processes again", 30.0)
    wait_until(lambda: asyncio.run(writable()) == 1, "a writable bookie", 30.0)
    assert len(asyncio.run(read(uri, ledger_id))) == 1000
    pids = dev.pids()
    dev.process.kill()
    _, err = dev.process.communicate()
    assert "starting it again" in err
    wait_until(lambda: not any(map(is_alive, pids)), "the end of all processes")
    assert not dev.ready_file.exists()
    with started(dev.ready_file.parent / "data") as again:
        assert again.wait_ready() == uri
        assert asyncio.run(read(uri, ledger_id)) == [b"entry %d" % n for n in range(1000)]
        assert asyncio.run(write(uri, 5)) > ledger_id
        again.stop()
        assert again.process.returncode == 0


def test_a_cluster_of_one_bookie_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    """Metadata has passwords, entry logs and journals have everything else."""
    one = Dev(tmp_path / "data", "--bookies", "1", umask=0)
    out = ""
    try:
        one.wait_ready()
        assert len(one.pids()) == 5 + SERVICES
        open_to_others = [
            f"{path}: {path.stat().st_mode:o}"
            for path in (tmp_path / "data", *(tmp_path / "data").rglob("*"), one.ready_file)
            if path.stat().st_mode & 0o077
        ]
        assert not open_to_others
        out = one.stop_cleanly(signal.SIGINT)
    finally:
        one.process.kill()
    assert "1 bookie ready" in out
    assert "export FASTBK_METADATA=sqlite:" in out


def test_the_commands_that_it_shows_work_as_they_are(tmp_path: Path) -> None:
    """Though `fastbk` is not on PATH, and a URI may hold what a shell takes for itself."""
    program = Path(sys.executable).with_name("fastbk")
    one = Dev(tmp_path / "its data; and more", "--bookies", "1", program=(str(program),))
    try:
        one.wait_ready()
        assert one.process.stdout is not None
        shown = []
        for line in one.process.stdout:
            if line.startswith("  "):
                shown.append(line)
            if line.startswith("Ctrl-C"):
                break
        answer = subprocess.run(
            ["/bin/sh", "-ec", "".join(shown[-2:])],
            env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (answer.returncode, answer.stdout.strip()) == (0, "0")
        assert "1,000 entries" in answer.stderr
        one.stop_cleanly(signal.SIGHUP)
    finally:
        one.process.kill()


@pytest.mark.alone
def test_a_cluster_for_tests_is_ready_in_under_two_seconds() -> None:
    """One of three tries is, and on a machine with more to do than processors, in proportion."""
    spent: list[float] = []
    while len(spent) < 3 and (not spent or spent[-1] >= 2.0 * crowd()):
        began_s = time.monotonic()
        with LocalCluster() as cluster:
            spent.append(time.monotonic() - began_s)
            folder = cluster.data
            assert folder.exists()
        assert not folder.exists()
    assert spent[-1] < 2.0 * crowd(), spent


@pytest.mark.long
def test_zookeeper_is_started_with_the_bookies_and_ends_with_them(tmp_path: Path) -> None:
    data = tmp_path / "data"
    ledger_id = -1
    # The second time without the option: the folder keeps what it began with. However it ends, nothing is left.
    for words, number in ((["--zookeeper"], signal.SIGTERM), ([], signal.SIGKILL)):
        dev = Dev(data, "--bookies", "1", *words)
        try:
            uri = dev.wait_ready()
            assert uri.startswith("zk+hierarchical://127.0.0.1:")
            if ledger_id < 0:
                ledger_id = asyncio.run(write(uri, 10))
            assert asyncio.run(read(uri, ledger_id)) == [b"entry %d" % n for n in range(10)]
            pids = dev.pids()
        finally:
            dev.stop(number)
        assert dev.process.returncode == (0 if number == signal.SIGTERM else -signal.SIGKILL)
        wait_until(lambda pids=pids: not any(map(is_alive, pids)), "the end of all processes")  # type: ignore[misc]
