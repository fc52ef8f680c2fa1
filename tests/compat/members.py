"""A bookie of either kind, as the rig kills, pauses and starts it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fastbk.devcluster import Bookie, DevCluster
from fastbk.devcluster.processes import cpu_seconds, is_alive, is_free, wait_for
from tests.compat.jars import Programs

PORTS = (10_000, 32_000)
"""Below those that Linux gives to connections: a bookie finds its own free, also minutes after it was chosen."""
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 20.0
HTTP_S_MAX = 30.0
FASTBK = (sys.executable, "-m", "fastbk.cli")
BOOKIE_MAIN = "org.apache.bookkeeper.server.Main"
STORAGES = {
    "db": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "sorted": "org.apache.bookkeeper.bookie.SortedLedgerStorage",
    "interleaved": "org.apache.bookkeeper.bookie.InterleavedLedgerStorage",
}


class FastbkMember:
    kind = "ours"

    def __init__(self, cluster: DevCluster, bookie: Bookie) -> None:
        self._cluster = cluster
        self._bookie = bookie
        self._boots = 0

    @property
    def bookie_id(self) -> str:
        return str(self._bookie.sections["bookie"]["id"])

    @property
    def folder(self) -> Path:
        return self._bookie.directory

    @property
    def is_running(self) -> bool:
        return self._bookie.is_running

    @property
    def port(self) -> int:
        return self._bookie.port

    @property
    def http_port(self) -> int:
        assert self._bookie.http_port is not None
        return self._bookie.http_port

    def spawn(self) -> None:
        self._boots = self._bookie.boots
        self._bookie.spawn()

    def wait_ready(self) -> None:
        self._cluster.wait_ready([self._bookie], START_TIMEOUT_S, self._boots + 1)

    def kill(self) -> None:
        if self._bookie.is_running:
            self._bookie.kill()

    def stop(self) -> None:
        self._bookie.request_stop()
        self._bookie.wait_gone(STOP_TIMEOUT_S)

    def signal(self, number: signal.Signals) -> None:
        self._bookie.refresh()
        send_signal(self._bookie.pids.values(), number)

    def cpu_s(self) -> float:
        return sum(cpu_seconds(self.processes()).values())

    def processes(self) -> dict[str, int]:
        """Return its processes by name."""
        self._bookie.refresh()
        return dict(self._bookie.pids)


class FileMember(ABC):
    """A bookie with a configuration file of Apache's and its data in `folder`."""

    kind = ""
    """ours, or Apache's with its storage: db or sorted."""

    def __init__(self, folder: Path, conf: ConfFile, registered_by: Callable[[str], int]) -> None:
        """Nothing runs yet; the folder is there."""
        self.folder = folder
        self.conf = conf.path
        self.port = conf.port
        self._http_port = conf.http_port
        self._registered_by = registered_by
        self._session_before = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bookie_id(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def http_port(self) -> int:
        return self._http_port

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @abstractmethod
    def command(self) -> list[str]:
        """Return what starts it in the foreground."""

    def environment(self) -> dict[str, str]:
        """Return the environment that it is started with."""
        return dict(os.environ)

    def spawn(self) -> None:
        """Start it and return at once."""
        if self.is_running:
            return
        self._session_before = self._registered_by(self.bookie_id)
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self.environment(),
                process_group=0,
            )

    def wait_ready(self) -> None:
        """Wait until it takes writes. Raises TimeoutError with what it said."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not self._is_ready():
            if not self.is_running or time.monotonic() > deadline_s:
                tail = (self.folder / "log").read_text(errors="replace").splitlines()[-5:]
                raise TimeoutError(f"{self.bookie_id} did not start: {' | '.join(tail)}")
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        # The registration of its last life may still be there. Apache's listen for HTTP last.
        session = self._registered_by(self.bookie_id)
        is_new = session not in (0, self._session_before)
        return is_new and listens(self.port) and listens(self.http_port)

    def kill(self) -> None:
        """SIGKILL it, and wait until all of it is gone."""
        if self._process is not None:
            pids = self._pids()
            self._process.kill()
            self._process.wait()
            self._wait_gone(pids)

    def stop(self) -> None:
        if self._process is not None:
            pids = self._pids()
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
            self._wait_gone(pids)

    def signal(self, number: signal.Signals) -> None:
        send_signal(self._pids(), number)

    def cpu_s(self) -> float:
        """Return the processor time that it has used since its start."""
        return sum(cpu_seconds(self.processes()).values())

    def processes(self) -> dict[str, int]:
        """Return its process and that one's children."""
        return {str(pid): pid for pid in self._pids()}

    def _pids(self) -> list[int]:
        """Return its process and that one's children, which are not in its process group."""
        if self._process is None or self._process.poll() is not None:
            return []
        return [self._process.pid, *children_of(self._process.pid)]

    def _wait_gone(self, pids: list[int]) -> None:
        wait_for(
            lambda: not any(map(is_alive, pids)), STOP_TIMEOUT_S, f"the end of {self.bookie_id}"
        )


Member = FastbkMember | FileMember
"""A bookie of either kind, as the rig treats both alike."""


class ApacheMember(FileMember):
    def __init__(
        self,
        folder: Path,
        programs: Programs,
        metadata_uri: str,
        registered_by: Callable[[str], int],
        *,
        kind: str = "db",
        settings: Mapping[str, object] | None = None,
        java_options: tuple[str, ...] = (),
    ) -> None:
        self.kind = kind
        self._programs = programs
        self._java_options = java_options
        keys = {"ledgerStorageClass": STORAGES[kind], **(settings or {})}
        super().__init__(folder, make_conf(folder, metadata_uri, keys), registered_by)

    def command(self) -> list[str]:
        options = self._java_options or ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        return self._programs.command(BOOKIE_MAIN, "--conf", str(self.conf), options=options)


class ConfMember(FileMember):
    """One of ours, started as an operator does: by a file, and BK_ variables where it is Apache's."""

    kind = "ours"

    def __init__(
        self,
        folder: Path,
        conf: ConfFile,
        registered_by: Callable[[str], int],
        *,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(folder, conf, registered_by)
        self._variables = dict(variables or {})

    def command(self) -> list[str]:
        return [*FASTBK, "bookie", "--config", str(self.conf)]

    def environment(self) -> dict[str, str]:
        return {**os.environ, **self._variables}


@dataclass(frozen=True, slots=True)
class ConfFile:
    """A configuration file, and where its bookie listens."""

    path: Path
    port: int
    http_port: int


def make_conf(folder: Path, metadata_uri: str, settings: Mapping[str, object]) -> ConfFile:
    """Make a bookie's folder with a file of Apache's in it; `settings` go before `bookie_settings`."""
    folder.mkdir(parents=True)
    made = ConfFile(folder / "bookie.conf", free_port(), free_port())
    keys = bookie_settings(folder, made.port, metadata_uri)
    keys |= {"httpServerPort": made.http_port, **settings}
    write_conf(made.path, keys)
    return made


def write_conf(path: Path, settings: Mapping[str, object]) -> None:
    """Write a configuration file of Apache's."""
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))


def loopback_settings(metadata_uri: str) -> dict[str, object]:
    """Return what each of Apache's programs needs on loopback."""
    return {
        "metadataServiceUri": metadata_uri,
        "advertisedAddress": "127.0.0.1",
        "allowLoopback": "true",
        "zkTimeout": 4000,
    }


def bookie_settings(folder: Path, port: int, metadata_uri: str) -> dict[str, object]:
    """Return a configuration of an Apache bookie on loopback: small, quick to start, durable as by default."""
    return {
        "bookiePort": port,
        "httpServerEnabled": "true",
        "httpServerClass": "org.apache.bookkeeper.http.vertx.VertxHttpServer",
        "httpServerHost": "127.0.0.1",
        **loopback_settings(metadata_uri),
        "journalDirectories": folder / "journal",
        "ledgerDirectories": folder / "ledgers",
        "indexDirectories": folder / "ledgers",
        "dbStorage_writeCacheMaxSizeMb": 32,
        "dbStorage_readAheadCacheMaxSizeMb": 16,
        "journalMaxGroupWaitMSec": 1,
        "journalPreAllocSizeMB": 4,
        "diskUsageThreshold": 0.99,
        "diskUsageWarnThreshold": 0.98,
        "numAddWorkerThreads": 1,
        "numReadWorkerThreads": 2,
    }


def send_signal(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes; after SIGSTOP, wait until every thread of theirs stands still.

    A busy machine lets some of them run on for a while: a bookie that answers part of a read and then falls silent is
    one that Java's client does not ask another one beside.
    """
    reached = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            reached.append(pid)
    if number is signal.SIGSTOP:
        wait_for(lambda: all(map(stands_still, reached)), STOP_TIMEOUT_S, "processes to stop")


def stands_still(pid: int) -> bool:
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            if stat.read_text().rpartition(")")[2].split()[0] not in ("T", "t", "Z", "X"):
                return False
    return True


def children_of(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


def free_port() -> int:
    """Return a port of loopback that nobody has now, nor gets for a connection before a bookie listens there."""
    while True:
        port = random.randrange(*PORTS)
        if is_free(port):
            return port


def http_text(port: int, path: str, body: str | None = None) -> str:
    """GET a path of a bookie's HTTP endpoints, or PUT JSON there. Raises HTTPError."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data=None if body is None else body.encode(),
        method="GET" if body is None else "PUT",
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=HTTP_S_MAX) as answer:
        text: str = answer.read().decode()
        return text


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
