"""A ZooKeeper server of our own on loopback, for `fastbk dev --zookeeper` and for tests. One server, so: no redundancy.

It is Apache's own, started from its jars with the `java` that is on PATH. The jars are looked for in the folders of
FASTBK_ZOOKEEPER_JARS (":" between), where Debian's package libzookeeper-java puts them, and among PySpark's.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.devcluster.processes import free_port, is_free
from fastbk.errors import ConfigError, StorageError
from fastbk.private_files import make_directory, opener, write_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

JARS_VARIABLE = "FASTBK_ZOOKEEPER_JARS"
_DEBIAN_JARS = Path("/usr/share/java")
# Without snappy every session is dropped; without the rest the server does not start. Debian's zookeeper.jar names
# others by absolute paths, which come right behind it: jute has to be of the same version, so it stands first.
_JARS = ("zookeeper-jute", "zookeeper", "slf4j-api", "metrics-core", "snappy-java")
_JARS_MORE = (
    "netty-handler",
    "netty-transport",
    "netty-common",
    "netty-buffer",
    "netty-codec",
    "netty-resolver",
)
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
PORT_NAME = "port"
LOG_NAME = "zookeeper.log"
HOW_TO_GET_ONE = (
    "install Debian's packages libzookeeper-java and default-jre-headless, or give the URI of a running one:"
    " --zookeeper zk://host:2181/ledgers"
)


class ZooKeeperServer:
    """A server with its data in `data` (made if missing); the same folder gives the same data, and port."""

    MAIN_CLASS = "org.apache.zookeeper.server.ZooKeeperServerMain"

    def __init__(
        self,
        data: Path,
        *,
        tick_ms: int = 500,
        session_timeout_max_s: float = 20.0,
        is_durable: bool = True,
        settings: Mapping[str, object] | None = None,
        java_options: Sequence[str] = (),
    ) -> None:
        """Nothing runs yet.

        Args:
            data: its folder, made by `start`.
            tick_ms: how exactly sessions expire.
            session_timeout_max_s: the longest session that a client gets.
            is_durable: sync each change to disk before it is confirmed; tests that never cut power do without.
            settings: more lines of its configuration.
            java_options: more of its Java.
        """
        self.data = data.absolute()
        self.port = 0
        self._tick_ms = tick_ms
        self._session_timeout_max_s = session_timeout_max_s
        self._is_durable = is_durable
        self._settings = settings or {}
        self._more_java_options = java_options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id; 0 when it does not run."""
        return self._process.pid if self._process is not None else 0

    @property
    def address(self) -> str:
        """Where it listens, as host:port."""
        return f"127.0.0.1:{self.port}"

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start it, and wait until it serves; it ends with the thread that calls this, at the latest.

        Raises ConfigError when there is none to start, StorageError.
        """
        self.spawn()
        self.wait_serving(timeout_s)

    def spawn(self) -> None:
        """Start it without waiting for it: one of several servers serves only with others. Raises as `start`."""
        if self.is_running:
            return
        command = [*_bound_to_us(), _java(), *self._java_options(), self.MAIN_CLASS]
        make_directory(self.data)
        self.port = self._choose_port()
        configuration = self.data / "zoo.cfg"
        write_text(configuration, self._configuration())
        with open(self.data / LOG_NAME, "ab", opener=opener) as log:
            self._process = subprocess.Popen(
                [*command, str(configuration)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.data,
                # What is loaded into us for a sanitizer's sake has no place in a JVM.
                env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
                process_group=0,
            )

    def wait_serving(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until it serves; one that does not is killed. Raises StorageError."""
        try:
            self._wait_serving(timeout_s)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End it. Its data stays."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def kill(self) -> None:
        """SIGKILL it and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _choose_port(self) -> int:
        remembered = self.data / PORT_NAME
        with contextlib.suppress(OSError, ValueError):
            port = int(remembered.read_text())
            if is_free(port):
                return port
        port = free_port()
        write_text(remembered, f"{port}\n")
        return port

    def _configuration(self) -> str:
        settings = {
            "dataDir": self.data / "data",
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "tickTime": self._tick_ms,
            "minSessionTimeout": 2 * self._tick_ms,
            "maxSessionTimeout": int(self._session_timeout_max_s * 1000),
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr",
            "autopurge.purgeInterval": 1,
            **self._settings,
        }
        return "".join(f"{key}={value}\n" for key, value in settings.items())

    def _java_options(self) -> list[str]:
        return [
            "-Xmx128m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:-UsePerfData",
            f"-Dzookeeper.forceSync={'yes' if self._is_durable else 'no'}",
            "-Dzookeeper.preAllocSize=1024",
            *self._more_java_options,
            "-cp",
            ":".join(map(str, find_jars())),
        ]

    def _wait_serving(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not is_serving("127.0.0.1", self.port):
            if not self.is_running:
                raise StorageError(f"ZooKeeper did not start: {self._log_tail()}")
            if time.monotonic() > deadline_s:
                raise StorageError(
                    f"ZooKeeper does not serve within {timeout_s:g} s; see {self.data / LOG_NAME}"
                )
            time.sleep(0.02)

    def _log_tail(self) -> str:
        lines = (self.data / LOG_NAME).read_text("utf-8", "replace").splitlines()
        return " | ".join(lines[-3:]) or "it said nothing"


def is_serving(host: str, port: int) -> bool:
    """Return whether a ZooKeeper there answers clients: a port that is open alone does not say so."""
    try:
        with socket.create_connection((host, port), timeout=1.0) as connection:
            connection.sendall(b"srvr")
            answer = connection.recv(64)
    except OSError:
        return False
    return answer.startswith(b"Zookeeper version")


def find_jars() -> list[Path]:
    """Return what the class path needs. Raises ConfigError that says how to get it."""
    for folder in _jar_folders():
        needed = [_jar(folder, name) for name in _JARS]
        found = [jar for jar in needed if jar is not None]
        if len(found) == len(needed):
            more = (_jar(folder, name) for name in _JARS_MORE)
            return [*found, *(jar for jar in more if jar is not None)]
    raise ConfigError(f"no ZooKeeper was found on this machine: {HOW_TO_GET_ONE}")


def _jar_folders() -> list[Path]:
    given = os.environ.get(JARS_VARIABLE, "")
    if given:
        return [Path(folder) for folder in given.split(":")]
    folders = [_DEBIAN_JARS]
    spec = importlib.util.find_spec("pyspark")
    if spec is not None and spec.origin is not None:
        folders.append(Path(spec.origin).parent / "jars")
    return folders


def _jar(folder: Path, name: str) -> Path | None:
    """Return a jar by its name without version; Debian has that as a link, others only with the version."""
    plain = folder / f"{name}.jar"
    if plain.is_file():
        return plain
    return next(iter(sorted(folder.glob(f"{name}-[0-9]*.jar"))), None)


def _java() -> str:
    home = os.environ.get("JAVA_HOME", "")
    found = shutil.which(f"{home}/bin/java") if home else None
    found = found or shutil.which("java")
    if found is None:
        raise ConfigError(f"there is no java on PATH to run ZooKeeper with: {HOW_TO_GET_ONE}")
    return found


def _bound_to_us() -> list[str]:
    """Return what makes the kernel end the server when we die, however that happens; nothing where that is missing."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
