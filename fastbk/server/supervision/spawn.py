"""One start of a bookie's children: fresh segments, bells, sockets and processes, and their end.

A `Boot` is made under a new epoch and never repaired: when any of its processes dies, all of it
goes and another one is made. Children are spawned with a minimal environment and exactly the
descriptors that `fastbk.server.process_table` names for them.

Decisions 10 and 166.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec

import fastbk
from fastbk.native.segment import (
    create_segment,
    is_sealed,
    reopen_read_only,
    ring_bell,
    seal_segment,
)
from fastbk.observe import logs
from fastbk.observe.prometheus import ProcessUsage
from fastbk.server import process_table
from fastbk.server.child import MESSAGE_BYTES_MAX, enlarge
from fastbk.server.configuration import bookie_config

if TYPE_CHECKING:
    from fastbk.server.configuration.bookie_config import BookieConfig

_ENVIRONMENT_NAMES = (
    "PATH",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    logs.JOURNAL_STREAM,
)
_ENVIRONMENT_PREFIXES = ("FASTBK_", "ASAN_", "UBSAN_", "LSAN_", "TSAN_")


def environment() -> dict[str, str]:
    """Return what a child sees of our environment; the package is found where this process found
    it.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _ENVIRONMENT_NAMES or name.startswith(_ENVIRONMENT_PREFIXES)
    }
    kept["PYTHONPATH"] = os.path.dirname(os.path.dirname(os.path.realpath(fastbk.__file__)))
    return kept


_CHILD_PROGRAM = "from fastbk.server.child_start import start; start()"


def child_command(module: str, control: int) -> list[str]:
    """Return the command line of a child whose role is in `module`; `control`: its descriptor.

    It runs without `site`, whose work the supervisor has done: `child_environment` has the result. And without
    the interpreter's own `-m`, which imports more than the module; it stands behind the program for who reads the line.
    """
    interpreter = [sys.executable, "-P", "-s", "-S", "-c", _CHILD_PROGRAM]
    return [*interpreter, "-m", module, str(control)]


def child_environment() -> dict[str, str]:
    """Return `environment` for a child: it finds every package where this process would find it."""
    kept = environment()
    places = [kept["PYTHONPATH"], *(os.path.abspath(place) for place in sys.path if place)]
    return kept | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(places))}


def command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs `module` in this interpreter, whatever the current folder
    is.
    """
    return [sys.executable, "-P", "-s", "-m", module, *arguments]


class ChildProcess:
    """The supervisor's end of one child."""

    def __init__(self, process: process_table.Process, descriptors: dict[str, int]) -> None:
        self.process = process
        self.descriptors = descriptors
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            enlarge(self.control)
            self.control.setblocking(False)
            self.popen = subprocess.Popen(
                child_command(process_table.MODULES[process.role], theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=2,  # a stray print is seen, and mixes with no answer
                env=child_environment(),
                pass_fds=[theirs.fileno(), *set(descriptors.values())],
                # A terminal's Ctrl-C goes to the foreground group: only the supervisor is in it.
                process_group=0,
            )
        self.pid = self.popen.pid
        self.pidfd = os.pidfd_open(self.pid)
        self.usage = ProcessUsage(self.pid)

    def send(self, message: dict[str, Any]) -> bool:
        """Send a control message; False when the child is gone or does not read (it is about to be
        found dead).
        """
        try:
            self.control.send(msgspec.json.encode(message))
        except OSError:
            return False
        return True

    def receive(self) -> dict[str, Any] | None:
        """Return the next message, None when there is none. Raises EOFError at the socket's end.

        A child that sends anything but a JSON object is killed: it is damaged, or no longer ours.
        """
        try:
            data = self.control.recv(MESSAGE_BYTES_MAX)
        except BlockingIOError:
            return None
        except ConnectionError as error:
            raise EOFError from error
        if not data:
            raise EOFError
        try:
            message: dict[str, Any] = msgspec.json.decode(data, type=dict)
        except (ValueError, RecursionError) as error:
            logs.error("supervisor.bad_message", process=str(self.process), reason=str(error))
            self.kill()
            raise EOFError from error
        return message

    def kill(self) -> None:
        """Send SIGKILL, if it still runs."""
        try:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def wait(self) -> int:
        """Wait for the end and return the exit code, negative for a signal. Only after `kill` or
        its exit.
        """
        return self.popen.wait()

    def close(self) -> None:
        """Close our descriptors of it."""
        self.control.close()
        self.usage.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


class PortGuard:
    """Keeps the bookie's port ours between boots, and finds out that a stranger has it.

    It is bound without SO_REUSEPORT, which fails when anybody else has the port, and gets that
    option afterwards, so that the workers' listeners can join. It never listens: between boots a
    client is refused at once instead of waiting in the queue of a bookie that replays.
    """

    def __init__(self, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            # Connections of a killed predecessor may still be in TIME_WAIT: they are no stranger.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((host, port))
            # Off again: another bookie's guard must not be allowed beside this one.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        except OSError:
            self._socket.close()
            raise
        self.host = host
        self.port: int = self._socket.getsockname()[1]

    def listener(self) -> socket.socket:
        """Return a new bound socket on the same port, not listening yet."""
        bound = socket.socket(self._socket.family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            bound.bind((self.host, self.port))
        except OSError:
            bound.close()
            raise
        return bound

    def close(self) -> None:
        """Give the port back."""
        self._socket.close()


class Boot:
    """All processes and shared memory of one epoch."""

    def __init__(
        self,
        config: BookieConfig,
        guard: PortGuard,
        locks: dict[process_table.Lock, int],
        epoch: int,
        *,
        is_reads_only: bool = False,
        only_indexes: bool = False,
    ) -> None:
        """`locks`: descriptors of the directories' locks. `only_indexes`: `spawn_others` follows.

        `is_reads_only`: without journal and gc. Their segments and bells exist all the same, so that the
        others need not know: nothing is ever published there, and nobody answers the bells.
        """
        self.config = config
        self._locks = locks
        self.epoch = epoch
        self.began_s = time.monotonic()
        self.worker_count = process_table.worker_count(config)
        self.pair_count = bookie_config.pair_count(config)
        self.children: dict[process_table.Process, ChildProcess] = {}
        self._segments: dict[tuple[process_table.Process, int], int] = {}
        self._bells: dict[process_table.Process, int] = {}
        self._owned: list[int] = []
        self._sockets: list[socket.socket] = []
        try:
            self._open(guard)
            started = process_table.children(
                self.worker_count, self.pair_count, is_reads_only=is_reads_only
            )
            for (process, _), segment in self._segments.items():
                if process not in started:
                    seal_segment(segment)  # nobody will ever write there
            self._started = started
            self._spawn("index")
            if not only_indexes:
                self.spawn_others()
        except BaseException:
            self.close()
            raise

    def spawn_others(self) -> None:
        """Spawn what the constructor left. Indexes come first: a start waits for their replay, which the others need
        not, and on few processors each import delays all others.
        """
        self._spawn("journal", "worker", "gc")
        # Drains and messages are in the table's order.
        self.children = {process: self.children[process] for process in self._started}
        # The children have their own: an address in use or a socket's end is theirs to decide now.
        for sock in self._sockets:
            # But for the end of a gc that is not there: the index would see it end, and never sleep again.
            is_gc_end = any(sock is pair[0] for pair in self._gc_pairs)
            if not is_gc_end or process_table.GC in self.children:
                sock.close()

    def _spawn(self, *roles: process_table.Role) -> None:
        for process in self._started:
            if process.role in roles:
                self.children[process] = ChildProcess(process, self._descriptors(process))

    def ring(self, process: process_table.Process) -> None:
        """Wake `process` so that it looks at its control socket."""
        bell = self._bells.get(process)
        if bell is not None:
            ring_bell(bell)

    def statistics_segments(self) -> dict[process_table.Process, int]:
        """Return where each child counts; the descriptors stay this boot's."""
        return {
            process: descriptor
            for (process, pair), descriptor in self._segments.items()
            if process in self.children and (process.role != "worker" or pair == 0)
        }

    def unsealed(self) -> list[process_table.Process]:
        """Return the journals and indexes whose segments a worker could still map for writing.

        None, once they are ready, but with a kernel that knows no such seal.
        """
        return [
            process
            for (process, _), segment in self._segments.items()
            if process.role in ("journal", "index") and not is_sealed(segment)
        ]

    def close(self) -> list[tuple[process_table.Process, int]]:
        """Kill what still runs, wait for all of it, close everything; return each exit code."""
        for child in self.children.values():
            child.kill()
        codes = []
        for process, child in self.children.items():
            codes.append((process, child.wait()))
            child.close()
        for sock in self._sockets:
            sock.close()
        for descriptor in self._owned:
            os.close(descriptor)
        self._owned.clear()
        self.children.clear()
        self._segments.clear()
        self._bells.clear()
        return codes

    def _open(self, guard: PortGuard) -> None:
        for segment in process_table.segments(self.worker_count, self.pair_count):
            process = segment.owner
            sizes = process_table.ring_sizes(process, self.config)
            repeat = self.worker_count if process.role == "index" else 1
            descriptor = create_segment(
                process.role, process.index, self.epoch, sizes, repeat, pair=segment.pair
            )
            self._segments[process, segment.pair] = self._own(descriptor)
        for process in process_table.children(self.worker_count, self.pair_count):
            if process.role != "gc":
                flags = os.EFD_CLOEXEC
                flags |= 0 if process_table.Bell(process).blocking else os.EFD_NONBLOCK
                self._bells[process] = self._own(os.eventfd(0, flags))
        self._states = [
            self._own(os.memfd_create("fastbk-states", os.MFD_CLOEXEC))
            for _ in range(self.pair_count)
        ]
        self._listeners = [guard.listener() for _ in range(self.worker_count)]
        self._sockets += self._listeners
        self._gc_pairs: list[tuple[socket.socket, socket.socket]] = []
        for _ in range(self.pair_count):
            ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._gc_pairs.append(ends)
            self._sockets += ends
            for end in ends:
                enlarge(end)

    def _own(self, descriptor: int) -> int:
        self._owned.append(descriptor)
        return descriptor

    def _descriptors(self, process: process_table.Process) -> dict[str, int]:
        wanted = process_table.descriptors(process, self.worker_count, self.pair_count)
        return {name: self._descriptor(source) for name, source in wanted.items()}

    def _descriptor(self, source: process_table.DescriptorSource) -> int:
        match source:
            case process_table.Segment(owner, writable, pair):
                descriptor = self._segments[owner, pair]
                return descriptor if writable else self._read_only(descriptor)
            case process_table.Bell(sleeper):
                return self._bells[sleeper]
            case process_table.Listener(worker):
                return self._listeners[worker].fileno()
            case process_table.States(writable, pair):
                return self._states[pair] if writable else self._read_only(self._states[pair])
            case process_table.Lock():
                return self._locks[source]
            case process_table.GcPair(end, pair):
                return self._gc_pairs[pair][end].fileno()

    def _read_only(self, descriptor: int) -> int:
        """Return the same memory file, opened so that the kernel refuses to map it writable."""
        return self._own(reopen_read_only(descriptor))
