"""N bookies in one folder, the services beside them, their metadata and their TLS. The same folder gives the same
ledgers back.

The services are the janitor, AutoRecovery and the write service. Each is a process that ends when we are gone, however
we went. `DevTls` is a trial authority in the folder: `ca/` has the authority, `bookie/` the
certificate of all bookies and services, `client/` the one of clients. `client.env` has the
variables for them: `. fastbk-data/tls/client.env`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.devcluster.faults import PROXY_HOST
from fastbk.devcluster.processes import STOP_TIMEOUT_S, Bookie, free_port, is_free, toml_text
from fastbk.errors import ConfigError, MetadataConflict, StorageError
from fastbk.observe.event_log import NAME
from fastbk.safe_files import make_directory, opener, write_text
from fastbk.security.tls import TlsOptions
from fastbk.server.supervision.spawn import command, environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fastbk.security.authority import Issued

START_TIMEOUT_S = 60.0

_DEFAULTS: dict[str, dict[str, object]] = {
    "journal": {"first_file_size": "24MiB"},
    "gc": {"interval": "20s"},
    "disk": {"warn_ratio": 1.0, "full_ratio": 1.0, "low_water_ratio": 1.0},
}
"""A small first journal file: it is written with zeros before the bookie is ready, and all bookies share a disk. With
whatever else is there, too: the share of it that is used says nothing about them."""


class DevCluster:
    """N bookies and their metadata in `data`."""

    def __init__(
        self,
        data: Path,
        bookies: int = 3,
        *,
        port_base: int = 0,
        http_port_base: int = 0,
        settings: Mapping[str, Mapping[str, object]] | None = None,
        metadata_uri: str | None = None,
        tls: DevTls | None = None,
    ) -> None:
        """Make the folder and each bookie's configuration; nothing runs yet.

        Args:
            data: made if missing; ledgers in it stay.
            bookies: how many; a folder keeps at least as many as it was ever started with.
            port_base, http_port_base: bookie n listens there + n; 0: any free port.
            settings: section → key → value of the configuration file, for all bookies.
            metadata_uri: of a store that is there already; None: sqlite in the folder.
            tls: what encrypts; None: nothing does.
        """
        if bookies < 1:
            raise ConfigError("a cluster needs at least one bookie")
        self.data = data.absolute()
        self.metadata_uri = metadata_uri or f"sqlite:{self.data / SQLITE_NAME}"
        self._settings = settings or {}
        self._tls_sections = tls.sections() if tls is not None else {}
        try:
            make_directory(self.data)
        except OSError as error:
            raise StorageError(f"{data}: cannot be used: {error.strerror}") from error
        known = len(list(self.data.glob("bookie-*")))
        self.bookies = [
            self._bookie(n, port_base, http_port_base) for n in range(max(bookies, known))
        ]

    def start(
        self,
        timeout_s: float = START_TIMEOUT_S,
        should_stop: Callable[[], bool] = lambda: False,
        *,
        reads_only_too: bool = False,
    ) -> None:
        """Start all bookies at once; return when each takes writes. Stops all of them on failure.

        `should_stop` is asked a few times a second; when it says so, the wait ends early without an
        error. `reads_only_too`: a bookie that a crash loop left with reads only is good enough.
        Raises StorageError with what the bookie said.
        """
        try:
            for bookie in self.bookies:
                bookie.spawn()
            self.wait_ready(
                timeout_s=timeout_s, should_stop=should_stop, reads_only_too=reads_only_too
            )
        except BaseException:
            self.stop(5.0)
            raise

    def wait_ready(
        self,
        bookies: Iterable[Bookie] | None = None,
        timeout_s: float = START_TIMEOUT_S,
        boots_min: int = 1,
        should_stop: Callable[[], bool] = lambda: False,
        *,
        reads_only_too: bool = False,
    ) -> None:
        """Wait until these bookies (all) are ready, each for at least the `boots_min`-th time.

        Raises StorageError.
        """
        deadline_s = time.monotonic() + timeout_s
        waiting = list(self.bookies if bookies is None else bookies)
        while True:
            for bookie in list(waiting):
                bookie.refresh()
                is_ready = bookie.is_ready and bookie.boots >= boots_min
                if is_ready or (bookie.reads_only and reads_only_too):
                    waiting.remove(bookie)
                elif bookie.reads_only or not bookie.is_running:
                    raise StorageError(self._why_down(bookie))
            if not waiting or should_stop():
                return
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                names = ", ".join(bookie.name for bookie in waiting)
                raise StorageError(f"not ready within {timeout_s:g} s: {names}; see {self.data}")
            sockets = [s for s in (bookie.watched() for bookie in waiting) if s is not None]
            # An ended process is seen by its socket's end; the bound is for one that never had any.
            select.select(sockets, [], [], min(left_s, 0.2) if sockets else 0.02)

    def refresh(self) -> None:
        """Take in what the supervisors have said."""
        for bookie in self.bookies:
            bookie.refresh()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """Drain all bookies at once and wait; return whether all ended cleanly."""
        running = [bookie for bookie in self.bookies if bookie.is_running]
        for bookie in running:
            bookie.request_stop()
        codes = [bookie.wait_gone(timeout_s) for bookie in running]
        for bookie in self.bookies:
            bookie.forget()
        # SIGTERM itself ends a supervisor only before its handler is there: it has nothing to drain.
        return all(code in (0, None, -signal.SIGTERM) for code in codes)

    def _bookie(self, number: int, port_base: int, http_port_base: int) -> Bookie:
        name = f"bookie-{number + 1}"
        directory = self.data / name
        make_directory(directory)
        port = port_base + number if port_base else 0
        http_port = http_port_base + number if http_port_base else 0
        sections: dict[str, dict[str, object]] = {
            "bookie": {"id": name, "listen": f"127.0.0.1:{port}"},
            "http": {"listen": f"127.0.0.1:{http_port}"},
            "metadata": {"uri": self.metadata_uri},
            "journal": {"directory": str(directory / "journal")},
            "ledgers": {"directory": str(directory / "ledgers")},
        }
        for extra in (_DEFAULTS, self._tls_sections, self._settings):
            for section, keys in extra.items():
                sections.setdefault(section, {}).update(keys)
        bookie = Bookie(name, directory, sections)
        bookie.recall_port()
        return bookie

    def _why_down(self, bookie: Bookie) -> str:
        if bookie.reads_only:
            return f"{bookie.name} serves reads only: {bookie.reads_only}"
        reason = bookie.reason or bookie.log_tail(1) or "it said nothing"
        return f"{bookie.name} did not start: {reason}"


AUDIT_NAME = "audit.log"
SERVE_CONFIG_NAME = "serve.toml"
SERVICE_STOP_TIMEOUT_S = 10.0


class DevService:
    """One process, `fastbk <name>`, with its log in `<data>/<name>/<name>.log`, and its events beside."""

    def __init__(
        self, name: str, data: Path, metadata_uri: str, *words: str, tls: DevTls | None = None
    ) -> None:
        """`words`: further arguments. `tls`: of the bookies, and of its page. Nothing runs yet."""
        self.name = name
        self.directory = data.absolute() / name
        self._metadata_uri = metadata_uri
        self._words = words if tls is None else (*words, "--http-tls")
        self._tls = tls
        self._environment = {} if tls is None else tls.service_environment()
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: socket.socket | None = None
        self.http_port = 0
        """Where its page is, while it runs."""

    @property
    def is_running(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id; 0 when it does not run."""
        return self._process.pid if self._process is not None else 0

    def start(self) -> None:
        """Start it and return at once; it waits for metadata by itself."""
        if self.is_running:
            return
        self._forget()
        make_directory(self.directory)
        self.http_port = free_port()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs, open(self.directory / f"{self.name}.log", "ab", opener=opener) as log:
            self._process = subprocess.Popen(
                command("fastbk.cli", *self._command_words(), "--lifeline", str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment() | self._environment,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        self._lifeline = ours

    def _command_words(self) -> Sequence[str]:
        return (
            self.name,
            "--metadata",
            self._metadata_uri,
            "--events",
            str(self.directory / NAME),
            *self._words,
            "--http",
            f"127.0.0.1:{self.http_port}",
        )

    def kill(self) -> None:
        """End it by SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._forget()

    def stop(self) -> None:
        """End it and wait until it is gone."""
        if self._process is not None:
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)  # a test may have frozen it
            try:
                self._process.wait(SERVICE_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._forget()

    def _forget(self) -> None:
        if self._lifeline is not None:
            self._lifeline.close()
        self._process = self._lifeline = None


class DevWriteService(DevService):
    """`fastbk serve`: producers of streams append through it. It keeps its name, and has another port at each start."""

    def __init__(self, name: str, data: Path, metadata_uri: str, tls: DevTls | None = None) -> None:
        """Nothing runs yet."""
        super().__init__(name, data, metadata_uri, tls=tls)

    def _command_words(self) -> Sequence[str]:
        sections: dict[str, dict[str, object]] = {} if self._tls is None else self._tls.sections()
        sections["serve"] = {"listen": "127.0.0.1:0", "id": self.name}
        sections.setdefault("http", {})["listen"] = f"127.0.0.1:{self.http_port}"
        sections["metadata"] = {"uri": self._metadata_uri}
        path = self.directory / SERVE_CONFIG_NAME
        write_text(path, toml_text(sections))
        return ("serve", "--config", str(path))


def dev_services(
    data: Path, metadata_uri: str, tls: DevTls | None = None
) -> tuple[DevService, ...]:
    """Return those of `fastbk dev`."""
    audit = str(data.absolute() / "janitor" / AUDIT_NAME)
    return (
        DevService("janitor", data, metadata_uri, "--audit", audit, tls=tls),
        DevService("autorecovery", data, metadata_uri, tls=tls),
        DevWriteService("serve", data, metadata_uri, tls),
    )


_CERTIFICATE_NAMES = ("localhost", "127.0.0.1", "::1", PROXY_HOST)
ENVIRONMENT_NAME = "client.env"


class DevTls:
    """The authority of one folder, and two certificates that are new at each start.

    Attributes:
        options: TLS as a client has it, for `fastbk.connect(..., tls=...)`.
        environment_file: gives the same to a shell.
    """

    def __init__(self, directory: Path) -> None:
        """Make it, or take the authority that is there. Raises StorageError."""
        # 50 ms that a cluster without TLS does not pay.
        from fastbk.security.authority import Authority

        directory = directory.absolute()
        self.environment_file = directory / ENVIRONMENT_NAME
        try:
            make_directory(directory)
            authority = Authority.load(directory / "ca") or Authority.make(directory / "ca")
            self._ca_file = authority.ca_file
            self._bookie = authority.issue(
                directory / "bookie", _CERTIFICATE_NAMES, common_name="bookie"
            )
            client = authority.issue(directory / "client", common_name="client")
            self.options = self._options(client)
            self._environment = self._options(self._bookie).environment()
            lines = (
                f"export {name}={shlex.quote(value)}\n"
                for name, value in self.options.environment().items()
            )
            write_text(self.environment_file, "".join(lines))
        except OSError as error:
            raise StorageError(f"{directory}: cannot be used: {error.strerror}") from error

    def sections(self) -> dict[str, dict[str, object]]:
        """Return what a bookie's configuration says of it. Bookies refuse clients without a certificate."""
        files: dict[str, object] = {
            "certificate_file": str(self._bookie.certificate_file),
            "key_file": str(self._bookie.key_file),
            "ca_file": str(self._ca_file),
        }
        return {
            "tls": {"mode": "require", "client_certificates": "require", **files},
            "http": {"tls": True},
        }

    def service_environment(self) -> dict[str, str]:
        """Return the variables for the processes beside the bookies."""
        return self._environment

    def _options(self, issued: Issued) -> TlsOptions:
        return TlsOptions(
            ca_file=str(self._ca_file),
            certificate_file=str(issued.certificate_file),
            key_file=str(issued.key_file),
        )


# --- metadata -------------------------------------------------------------------------------------

SQLITE_NAME = "metadata.sqlite"
_CHOICE_NAME = "metadata.uri"
_FOLDER_NAME = "zookeeper"
LOCAL = "local"
"""Stands in place of a URI: a ZooKeeper server of our own, in the folder."""


class DevMetadata:
    """The metadata of the cluster in one folder: sqlite there, a ZooKeeper there, or a store elsewhere.

    A folder keeps what it began with: its ledgers are known only there.
    """

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
ZOOKEEPER_START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
PORT_NAME = "port"
LOG_NAME = "zookeeper.log"
HOW_TO_GET_ONE = (
    "install Debian's packages libzookeeper-java and default-jre-headless, or give the URI of a running one:"
    " --zookeeper zk://host:2181/ledgers"
)


class ZooKeeperServer:
    """One of Apache's servers on loopback, for `fastbk dev --zookeeper` and for tests: one server, so no redundancy.

    Its data is in `data` (made if missing); the same folder gives the same data, and port. It is started from its jars
    with the `java` on PATH. The jars come from the folders of FASTBK_ZOOKEEPER_JARS (":" between), from where Debian's
    package libzookeeper-java puts them, and from PySpark's.
    """

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

    def start(self, timeout_s: float = ZOOKEEPER_START_TIMEOUT_S) -> None:
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

    def wait_serving(self, timeout_s: float = ZOOKEEPER_START_TIMEOUT_S) -> None:
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
    java = shutil.which(f"{home}/bin/java") if home else None
    java = java or shutil.which("java")
    if java is None:
        raise ConfigError(f"there is no java on PATH to run ZooKeeper with: {HOW_TO_GET_ONE}")
    return java


def _bound_to_us() -> list[str]:
    """Return what makes the kernel end the server when we die, however that happens; nothing where that is missing."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
