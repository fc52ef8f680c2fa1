"""What `fastbk dev` runs beside its bookies: the janitor and AutoRecovery.

Each is a process that ends when we are gone, however we went.
"""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.devcluster.processes import free_port
from fastbk.observe.event_file import NAME
from fastbk.private_files import make_directory, opener
from fastbk.server.supervision.spawn import command, environment

if TYPE_CHECKING:
    from fastbk.devcluster.tls import DevTls

AUDIT_NAME = "audit.log"
STOP_TIMEOUT_S = 10.0


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
                self._process.wait(STOP_TIMEOUT_S)
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
