"""The processes of a cluster on this machine: one bookie (`Bookie`), and what can be asked of any process and port.

A bookie is a supervisor process, tied to us by a socket. When we are gone, it stops, however we went. Blocking calls,
no threads: the caller decides when to look.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fastbk.safe_files import opener, write_text
from fastbk.server.faults import Faults
from fastbk.server.supervision.spawn import command, environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

CONFIG_NAME = "bookie.toml"
LOG_NAME = "bookie.log"
PORT_NAME = "port"
STOP_TIMEOUT_S = 30.0


@dataclass
class Bookie:
    """One bookie of the cluster: its folder, and its supervisor while that runs.

    Attributes:
        name: its id in metadata.
        port, http_port: where it listens since it was last ready.
        pids: process ids by name (`supervisor`, `worker.0`, `journal`, `index`, `gc`) since then.
        boots: how often it became ready, restarts by itself included.
        start_s: how long the last start took by its own account.
        reason: why it is down, as far as it said.
        reads_only: not empty: it serves reads only, for that reason, until it is started anew.
        sections: of its configuration file.
        tree: the folder that holds the package fastbk of its next start; None: this process's.
        faults: that it has by its own account (`fastbk.server.faults`).
    """

    name: str
    directory: Path
    sections: dict[str, dict[str, object]]
    port: int = 0
    http_port: int | None = None
    pids: dict[str, int] = field(default_factory=dict)
    boots: int = 0
    start_s: float = 0.0
    reason: str = ""
    reads_only: str = ""
    is_ready: bool = False
    tree: Path | None = None
    faults: Faults = field(default_factory=Faults)
    _process: subprocess.Popen[bytes] | None = None
    _lifeline: socket.socket | None = None

    @property
    def is_running(self) -> bool:
        """Whether its supervisor is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def log_path(self) -> Path:
        """Where its processes' log lines go."""
        return self.directory / LOG_NAME

    def spawn(self, *arguments: str) -> None:
        """Start the supervisor and return at once; see `refresh` and `DevCluster.wait_ready`.

        `arguments`: more of those that `python -m fastbk.server --help` names.
        """
        if self.is_running:
            return
        self.forget()
        config = self._write_config()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs, open(self.log_path, "ab", opener=opener) as log:
            self._process = subprocess.Popen(
                command(
                    "fastbk.server",
                    "--config",
                    str(config),
                    "--lifeline",
                    str(theirs.fileno()),
                    *arguments,
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment()
                if self.tree is None
                else environment() | {"PYTHONPATH": str(self.tree)},
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        self._lifeline = ours

    def refresh(self) -> None:
        """Take in what the supervisor has said since the last call. Raises nothing."""
        lifeline = self._lifeline
        # Another thread may `forget` this run meanwhile: what it said then counts no more.
        while lifeline is not None and lifeline is self._lifeline:
            try:
                data = lifeline.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if lifeline is not self._lifeline:
                return
            if not data:
                lifeline.close()
                self._lifeline = None
                self.is_ready, self.reads_only = False, ""
                return
            self._receive(msgspec.json.decode(data, type=dict))

    def kill(self, name: str = "supervisor") -> int:
        """SIGKILL one of its processes and return its pid; the supervisor's death takes all the
        others along.
        """
        self.refresh()
        pid = self.pids[name]
        os.kill(pid, signal.SIGKILL)
        if name == "supervisor":
            self.wait_gone()
        return pid

    def request_stop(self) -> None:
        """SIGTERM the supervisor: it drains and ends."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait_gone(self, timeout_s: float = STOP_TIMEOUT_S) -> int | None:
        """Wait until the supervisor and all its children are gone; return its exit code.

        Kills it when it takes longer. None: it did not run.
        """
        if self._process is None:
            return None
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self.refresh()
        pids = list(self.pids.values())
        wait_for(lambda: not any(map(is_alive, pids)), STOP_TIMEOUT_S, f"the end of {self.name}")
        self.forget()
        return code

    def forget(self) -> None:
        """Drop what belonged to the last run."""
        if self._lifeline is not None:
            self._lifeline.close()
        self._process = self._lifeline = None
        self.is_ready, self.reads_only = False, ""
        self.pids, self.faults = {}, Faults()

    def watched(self) -> socket.socket | None:
        """Return the socket that is readable when `refresh` has something to take in."""
        return self._lifeline

    def log_tail(self, lines: int = 5) -> str:
        """Return the last lines of its log, for messages."""
        try:
            text = self.log_path.read_text("utf-8", "replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def remove_at_end(self, path: Path) -> None:
        """Have the supervisor remove `path` when it finds us gone: nobody else can after a SIGKILL."""
        self._send({"type": "remove_at_end", "path": str(path.absolute())})

    def inject(self, faults: Faults) -> None:
        """Have it behave so, in place of the faults before; `self.faults` is the same once it does."""
        self._send(msgspec.to_builtins(faults))

    def _send(self, message: dict[str, Any]) -> None:
        if self._lifeline is not None:
            with contextlib.suppress(OSError):
                self._lifeline.send(msgspec.json.encode(message))

    def recall_port(self) -> None:
        """Take the port of an earlier run, so that clients find the bookie where it was."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            self.port = int((self.directory / PORT_NAME).read_text())

    def _write_config(self) -> Path:
        """Write the configuration and return where; a bookie that may have any port keeps the one it had."""
        sections = {name: dict(keys) for name, keys in self.sections.items()}
        if str(sections["bookie"]["listen"]).endswith(":0") and is_free(self.port):
            sections["bookie"]["listen"] = f"127.0.0.1:{self.port}"
        path = self.directory / CONFIG_NAME
        write_text(path, toml_text(sections))
        return path

    def _receive(self, message: dict[str, Any]) -> None:
        match message.get("type"):
            case "ready":
                if message["port"] != self.port:
                    write_text(self.directory / PORT_NAME, f"{message['port']}\n")
                self.port, self.http_port = message["port"], message["http_port"]
                self.pids = message["pids"]
                self.start_s = message["seconds"]
                self.reads_only = message["reads_only"]
                self.is_ready = not self.reads_only
                self.boots += self.is_ready
                self.reason = ""
            case "starting":
                self.pids = message["pids"]
            case "faults":
                self.faults = msgspec.convert(message, Faults)
            case "down" | "failed":
                self.is_ready, self.reason, self.reads_only = False, message["reason"], ""
            case _:
                pass


def toml_text(sections: Mapping[str, Mapping[str, object]]) -> str:
    """Return a configuration file with these sections; values are strings, numbers or booleans."""
    lines = []
    for section, keys in sections.items():
        lines.append(f"[{section}]")
        for key, value in keys.items():
            # TOML's basic strings, numbers and booleans are JSON's.
            lines.append(f"{key} = {msgspec.json.encode(value).decode()}")
        lines.append("")
    return "\n".join(lines)


def is_free(port: int) -> bool:
    """Return whether a bookie could have `port` on loopback now. Port 0 is nobody's."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return port != 0


PORT_MIN = 10_000
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """Return a port of the loopback that nobody listens on; where one takes it first, the next start has another.

    It lies below those that the kernel gives to whoever connects: one of these may be taken before a slow server, such
    as one in Java, has come to bind it.
    """
    try:
        below = int(_PORT_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        below = 0
    for _ in range(100 if below > 2 * PORT_MIN else 0):
        port = secrets.choice(range(PORT_MIN, below))
        if is_free(port):
            return port
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def is_alive(pid: int) -> bool:
    """Return whether process `pid` exists and is not merely waiting to be collected."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def wait_for(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Wait until `condition()` holds, looking every few milliseconds. Raises TimeoutError naming
    `what`.
    """
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}")
        time.sleep(0.005)


def memory_pss_bytes(pids: Iterable[int]) -> int:
    """Return the proportional set size of these processes together; those that are gone count
    nothing.
    """
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total * 1024


def cpu_seconds(pids: Mapping[str, int]) -> dict[str, float]:
    """Return processor time spent so far (user and system) by process name."""
    spent: dict[str, float] = {}
    for name, pid in pids.items():
        # The clock of a process, as clock_getcpuclockid(3) makes it: to the nanosecond, where /proc has hundredths.
        with contextlib.suppress(OSError):
            spent[name] = time.clock_gettime(~pid << 3 | 2)
    return spent
