"""What every process of a bookie but the supervisor does first, and how it talks to the supervisor.

A child is started as `python -c <child_start.py> -m <module> <control descriptor>`: spawned, never
forked from a running interpreter. The control socket is a SOCK_SEQPACKET pair, one JSON object a message
("Control messages" in docs/lifecycle.md). A child's life: `hello` (imported, waiting), `configure`
(only its own configuration and descriptors), its work, its end. Two ropes tie it to the supervisor,
so that a SIGKILL of that one leaves no orphan: a parent-death signal, and the end of the control
socket, at which `receive` raises SupervisorGone.

SIGINT and SIGTERM are ignored here: a terminal sends them to the whole group, but only the
supervisor decides."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import msgspec

from fastbk.native.process import arm_from_environment, confine, die_with_parent, watch_signals
from fastbk.observe import logs
from fastbk.observe.events import KIND_OF, bounded
from fastbk.printable_text import printable_json
from fastbk.server.confinement import Confinement

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

MESSAGE_BYTES_MAX = 1 << 17
"""Longest control message: fits a socket's buffer under the default limits of any user."""

Offer: TypeAlias = "Callable[[dict[str, Any]], bool]"
"""Hands a message to the supervisor, and never waits. False: it did not take it (`Child.offer`)."""

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_SUPERVISOR_GONE = 3

CONFIGURE_TIMEOUT_S = 300.0
"""Longest wait for `configure`: a worker waits for replay before it. Then the child gives up."""


class SupervisorGone(Exception):
    """The control socket has ended: nobody is left to work for. The child exits at once with code
    3.
    """


class Child:
    """A child's view of itself after `configure`.

    Attributes:
        role: `worker`, `journal`, `index` or `gc`.
        index: which of that role, from 0.
        epoch: of all segments of this start, never used twice.
        config: this role's own part, to be converted to its struct in `fastbk.server.configuration.bookie_config`.
        fds: descriptors by name (`fastbk.server.process_table`); this process owns them.
        confinement: what this process gives up (`fastbk.server.confinement`).
        control: the socket, non-blocking; may be watched for reading by the child's own loop.
    """

    def __init__(self, control: socket.socket, role: str) -> None:
        self.control = control
        self.role = role
        self.index = 0
        self.epoch = 0
        self.config: dict[str, Any] = {}
        self.fds: dict[str, int] = {}
        self.confinement = Confinement()

    def ready(self, **values: object) -> None:
        """Say that this process is set up, once: from now on it makes no other system calls than its role's.

        INV-N3. Raises SupervisorGone, ConfigError.
        """
        self.confinement.finish(self.role)
        self.send({"type": "ready", **values})

    def send(self, message: dict[str, Any]) -> None:
        """Send one message; waits while the socket is full. Raises SupervisorGone when the other
        end is closed.
        """
        data = printable_json(message)
        while True:
            try:
                self.control.send(data)
                return
            except BlockingIOError:
                select.select([], [self.control], [])
            except (BrokenPipeError, ConnectionError) as error:
                raise SupervisorGone from error

    def offer(self, message: dict[str, Any]) -> bool:
        """Send one message unless the socket is full; return whether it went. For what can be asked again, from a loop
        that must not wait. Raises SupervisorGone.
        """
        try:
            self.control.send(printable_json(message))
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionError) as error:
            raise SupervisorGone from error
        return True

    def receive(self, timeout_s: float | None = 0) -> dict[str, Any] | None:
        """Return the next message, or None when there is none within `timeout_s` (None: wait for ever).

        A new log level is no message to the caller. Raises SupervisorGone at the end of the socket.
        """
        while (message := self._receive(timeout_s)) is not None:
            logs.debug("control.received", kind=message.get("type"))
            if message.get("type") != "log_level":
                return message
            logs.set_level(message["level"])
        return None

    def _receive(self, timeout_s: float | None) -> dict[str, Any] | None:
        if timeout_s is None or timeout_s > 0:
            poll = select.poll()
            poll.register(self.control, select.POLLIN)
            if not poll.poll(None if timeout_s is None else timeout_s * 1e3):
                return None
        try:
            data = self.control.recv(MESSAGE_BYTES_MAX)
        except BlockingIOError:
            return None
        except ConnectionError as error:
            raise SupervisorGone from error
        if not data:
            raise SupervisorGone
        message: dict[str, Any] = msgspec.json.decode(data, type=dict)
        return message


def enlarge(control: socket.socket) -> None:
    """Make room for several messages in the sending buffer, as far as the system's limit allows."""
    control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MESSAGE_BYTES_MAX)


def send_events(child: Child) -> None:
    """Have the supervisor record this process's events; one that finds the socket full is in the log only."""

    def send(level: str, event: str, values: Mapping[str, object]) -> None:
        if event in KIND_OF:
            with contextlib.suppress(SupervisorGone):
                child.offer(
                    {"type": "event", "level": level, "event": event, "values": bounded(values)}
                )

    logs.add_taker(send)


def start(role: str) -> Child:
    """Tie this process to its supervisor, report `hello`, and return once it is configured.

    Called once, after all imports: what exists by then is frozen out of the garbage collector's
    sight. Raises SupervisorGone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    confine()
    die_with_parent()
    watch_signals()
    arm_from_environment()
    logs.configure()
    logs.bind(role=role, pid=os.getpid())
    control = socket.socket(fileno=int(sys.argv[1]))
    control.setblocking(False)
    enlarge(control)
    child = Child(control, role)
    send_events(child)
    gc.freeze()
    gc.enable()
    child.send({"type": "hello", "role": role, "pid": os.getpid()})
    message = child.receive(CONFIGURE_TIMEOUT_S)
    if message is None or message.get("type") != "configure":
        raise SupervisorGone
    child.index = int(message["index"])
    child.epoch = int(message["epoch"])
    child.config = message["config"]
    child.fds = message["descriptors"]
    child.confinement = msgspec.convert(message.get("confinement", {}), Confinement)
    for descriptor in child.fds.values():
        os.set_inheritable(descriptor, False)
    logs.bind(index=child.index, **message.get("log", {}))
    child.confinement.begin(role)
    return child


def keep_to(processors: Collection[int]) -> None:
    """Have this process, and threads that it starts from now on, run on these processors only; on any for none."""
    if processors:
        os.sched_setaffinity(0, processors)


def _trace() -> str:
    """Return where the exception that is handled came from."""
    try:
        import traceback  # only here: a start does not need it
    except Exception:  # noqa: BLE001 - a process that fails may be out of descriptors or memory
        return ""
    return traceback.format_exc(limit=-12)


def run(role: str, main: Callable[[Child], None]) -> NoReturn:
    """Run a child's whole life; does not return. `main` returns when it is drained.

    An exception is reported as `failed` with its reason, so that the supervisor can say why, and
    ends the process with code 1. Shared memory and sockets go with the process: no clean-up is
    needed, nor attempted."""
    child: Child | None = None
    try:
        child = start(role)
        main(child)
        code = EXIT_DONE
    except SupervisorGone:
        code = EXIT_SUPERVISOR_GONE
    except BaseException as error:  # noqa: BLE001 - the end of this process is the handling
        code = EXIT_FAILED
        reason = f"{type(error).__name__}: {error}"
        logs.error("process.failed", reason=reason, trace=_trace())
        try:
            if child is not None:
                child.send({"type": "failed", "reason": reason[:4096]})
        except SupervisorGone:
            code = EXIT_SUPERVISOR_GONE
    sys.stderr.flush()
    os._exit(code)
