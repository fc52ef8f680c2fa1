"""The metadata of a cluster on this machine: sqlite, a ZooKeeper server of its own, or a store
elsewhere.

A folder keeps what it began with: its ledgers are known only there. The ZooKeeper server is one of
Apache's on loopback, for `fastbk dev --zookeeper` and for tests: one server, so no redundancy. It
is started from its jars with the `java` on PATH. The jars come from the folders of
FASTBK_ZOOKEEPER_JARS (":" between), from where Debian's package libzookeeper-java puts them, and
from PySpark's.
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
from fastbk.errors import ConfigError, MetadataConflict, StorageError
from fastbk.safe_files import make_directory, opener, write_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SQLITE_NAME = "metadata.sqlite"
_CHOICE_NAME = "metadata.uri"
_FOLDER_NAME = "zookeeper"
LOCAL = "local"
"""Stands in place of a URI: a ZooKeeper server of our own, in the folder."""


class DevMetadata:
    """The metadata of the cluster in one folder: sqlite there, a ZooKeeper there, or one elsewhere."""

    def __init__(self, data: Path, zookeeper: str | None = None) -> None:
        """Nothing runs yet.

        Args:
            data: the cluster's folder, made if missing.
            zookeeper: a URI, or `LOCAL`; None: what the folder began with, sqlite for a new one.

        Raises ConfigError when the folder began with another.
        """
        self._data = data.absolute()
        try:
            make_directory(self._data)
        except OSError as error:
            raise StorageError(f"{data}: cannot be used: {error.strerror}") from error
        self._choice = self._settle(zookeeper)
        self.server: ZooKeeperServer | None = None
        if self._choice == LOCAL:
            self.server = ZooKeeperServer(self._data / _FOLDER_NAME)

    def start(self) -> str:
        """Return the URI, with ZooKeeper running and a cluster made there if there was none.

        Raises ConfigError when there is no ZooKeeper on this machine, MetadataUnavailable, StorageError.
        """
        if not self._choice:
            return f"sqlite:{self._data / SQLITE_NAME}"
        uri = self._choice
        if self.server is not None:
            self.server.start()
            uri = f"zk+hierarchical://{self.server.address}/ledgers"
        # Only now: kazoo is not loaded where sqlite does.
        from fastbk.meta.uri import parse_zookeeper
        from fastbk.meta.zookeeper import admin as zookeeper_admin

        location = parse_zookeeper(uri)
        if not zookeeper_admin.exists(location):
            with contextlib.suppress(MetadataConflict):  # another one was faster
                zookeeper_admin.init(location)
        write_text(self._data / _CHOICE_NAME, self._choice)
        return uri

    def stop(self) -> None:
        """End our own server, if there is one."""
        if self.server is not None:
            self.server.stop()

    def _settle(self, zookeeper: str | None) -> str:
        """Return the folder's choice: a URI, `LOCAL`, or nothing for sqlite."""
        began = None
        with contextlib.suppress(OSError):
            began = (self._data / _CHOICE_NAME).read_text("utf-8").strip()
        if began is None and (self._data / SQLITE_NAME).exists():
            began = ""
        if began is None or zookeeper is None or zookeeper == began:
            return (began if began is not None else zookeeper) or ""
        kept = {"": "in sqlite", LOCAL: "in a ZooKeeper of its own"}.get(began, f"at {began}")
        raise ConfigError(
            f"{self._data}: the metadata of this folder's ledgers is {kept}; choose another --data, or"
            " leave --zookeeper out"
        )


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
