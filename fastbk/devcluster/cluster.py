"""N bookies in one folder, the services beside them, and their TLS. The same folder gives the same
ledgers back.

The services are the janitor and AutoRecovery. Each is a process that ends when we are gone, however
we went. `DevTls` is a trial authority in the folder: `ca/` has the authority, `bookie/` the
certificate of all bookies and services, `client/` the one of clients. `client.env` has the
variables for them: `. fastbk-data/tls/client.env`.
"""

from __future__ import annotations

import select
import shlex
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.devcluster.faults import PROXY_HOST
from fastbk.devcluster.metadata import SQLITE_NAME
from fastbk.devcluster.processes import STOP_TIMEOUT_S, Bookie, free_port
from fastbk.errors import ConfigError, StorageError
from fastbk.observe.event_log import NAME
from fastbk.safe_files import make_directory, opener, write_text
from fastbk.security.tls import TlsOptions
from fastbk.server.supervision.spawn import command, environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

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
                command(
                    "fastbk.cli",
                    self.name,
                    "--metadata",
                    self._metadata_uri,
                    "--events",
                    str(self.directory / NAME),
                    *self._words,
                    "--http",
                    f"127.0.0.1:{self.http_port}",
                    "--lifeline",
                    str(theirs.fileno()),
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment() | self._environment,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        self._lifeline = ours

    def stop(self) -> None:
        """End it and wait until it is gone."""
        if self._process is not None:
            self._process.terminate()
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


def dev_services(
    data: Path, metadata_uri: str, tls: DevTls | None = None
) -> tuple[DevService, ...]:
    """Return those of `fastbk dev`."""
    audit = str(data.absolute() / "janitor" / AUDIT_NAME)
    return (
        DevService("janitor", data, metadata_uri, "--audit", audit, tls=tls),
        DevService("autorecovery", data, metadata_uri, tls=tls),
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
