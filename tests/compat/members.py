"""A bookie of either kind, as the rig kills, pauses and starts it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from fastbk.devcluster import Bookie, DevCluster
from fastbk.devcluster.processes import cpu_seconds, is_alive, is_free
from tests.compat.jars import Programs

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 20.0
BOOKIE_MAIN = "org.apache.bookkeeper.server.Main"
STORAGES = {
    "db": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "sorted": "org.apache.bookkeeper.bookie.SortedLedgerStorage",
}


class Member(Protocol):
    """One bookie."""

    kind: str
    """ours, or Apache's with its storage: db or sorted."""

    @property
    def bookie_id(self) -> str:
        """Its id in metadata."""

    @property
    def is_running(self) -> bool:
        """Whether its main process is there."""

    def spawn(self) -> None:
        """Start it and return at once."""

    def wait_ready(self) -> None:
        """Wait until it takes writes. Raises TimeoutError or StorageError with what it said."""

    def kill(self) -> None:
        """SIGKILL it, and wait until all of it is gone."""

    def stop(self) -> None:
        """End it in order."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all its processes."""

    def cpu_s(self) -> float:
        """Processor time that it has used since its start."""


class FastbkMember:
    """A bookie of ours."""

    kind = "ours"

    def __init__(self, cluster: DevCluster, bookie: Bookie) -> None:
        self._cluster = cluster
        self._bookie = bookie
        self._boots = 0

    @property
    def bookie_id(self) -> str:
        return str(self._bookie.sections["bookie"]["id"])

    @property
    def is_running(self) -> bool:
        return self._bookie.is_running

    @property
    def port(self) -> int:
        return self._bookie.port

    def spawn(self) -> None:
        self._boots = self._bookie.boots
        self._bookie.spawn()

    def wait_ready(self) -> None:
        self._cluster.wait_ready([self._bookie], START_TIMEOUT_S, self._boots + 1)

    def kill(self) -> None:
        if self._bookie.is_running:
            self._bookie.kill()

    def stop(self) -> None:
        self._bookie.ask_to_stop()
        self._bookie.wait_gone(STOP_TIMEOUT_S)

    def signal(self, number: signal.Signals) -> None:
        self._bookie.refresh()
        for pid in self._bookie.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def cpu_s(self) -> float:
        self._bookie.refresh()
        return sum(cpu_seconds(self._bookie.pids).values())


class ApacheMember:
    """One of Apache's, with its data in `folder`."""

    def __init__(
        self,
        folder: Path,
        programs: Programs,
        metadata_uri: str,
        registered_by: Callable[[str], int],
        *,
        kind: str = "db",
        settings: dict[str, object] | None = None,
        java_options: tuple[str, ...] = (),
    ) -> None:
        self.kind = kind
        self._folder = folder
        self._programs = programs
        self._registered_by = registered_by
        self._session_before = 0
        self._java_options = java_options
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True)
        self.port = free_port()
        self.conf = folder / "bookie.conf"
        keys = bookie_settings(folder, self.port, metadata_uri)
        keys |= {"ledgerStorageClass": STORAGES[kind], **(settings or {})}
        self.conf.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))

    @property
    def bookie_id(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def spawn(self) -> None:
        if self.is_running:
            return
        self._session_before = self._registered_by(self.bookie_id)
        options = self._java_options or ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        command = self._programs.command(BOOKIE_MAIN, "--conf", str(self.conf), options=options)
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                process_group=0,
            )

    def wait_ready(self) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        # The registration of its last life may still be there.
        while not listens(self.port) or self._registered_by(self.bookie_id) in (
            0,
            self._session_before,
        ):
            if not self.is_running or time.monotonic() > deadline_s:
                tail = (self._folder / "log").read_text(errors="replace").splitlines()[-5:]
                raise TimeoutError(
                    f"Apache's bookie {self.bookie_id} did not start: {' | '.join(tail)}"
                )
            time.sleep(0.1)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and is_alive(self._process.pid):
            os.kill(self._process.pid, number)

    def cpu_s(self) -> float:
        return (
            sum(cpu_seconds({"java": self._process.pid}).values())
            if self._process is not None
            else 0.0
        )


def bookie_settings(folder: Path, port: int, metadata_uri: str) -> dict[str, object]:
    """Return a configuration of an Apache bookie on loopback: small, quick to start, durable as by default."""
    return {
        "bookiePort": port,
        "metadataServiceUri": metadata_uri,
        "advertisedAddress": "127.0.0.1",
        "allowLoopback": "true",
        "journalDirectories": folder / "journal",
        "ledgerDirectories": folder / "ledgers",
        "indexDirectories": folder / "ledgers",
        "dbStorage_writeCacheMaxSizeMb": 32,
        "dbStorage_readAheadCacheMaxSizeMb": 16,
        "journalMaxGroupWaitMSec": 1,
        "journalPreAllocSizeMB": 4,
        "diskUsageThreshold": 0.99,
        "diskUsageWarnThreshold": 0.98,
        "zkTimeout": 4000,
        "numAddWorkerThreads": 1,
        "numReadWorkerThreads": 2,
    }


def free_port() -> int:
    """Return a port of loopback that nobody has now."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if is_free(port):
            return port


def listens(port: int) -> bool:
    """Return whether somebody takes connections there."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
