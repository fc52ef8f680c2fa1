"""What the supervisor listens to: its children's control sockets and ends as one queue of events, and the lifeline."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from fastbk.server.faults import FAULTS, FaultInjection

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from fastbk.server.process_table import Process
    from fastbk.server.supervision.spawn import Boot, ChildProcess


@dataclass(frozen=True)
class Message:
    """A child said something."""

    process: Process
    body: dict[str, Any]


@dataclass(frozen=True)
class Exited:
    """A child ended; `code` is negative for a signal."""

    process: Process
    code: int


@dataclass(frozen=True)
class Stop:
    """Somebody asks the whole bookie to stop."""

    reason: str


Event = Message | Exited | Stop


class ChildEvents:
    """Events of one boot, in the order in which they were seen; messages of a child come before its
    end.
    """

    def __init__(self, boot: Boot) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._watched: dict[Process, ChildProcess] = {}
        for process, child in boot.children.items():
            self._watched[process] = child
            self._loop.add_reader(child.control, self._read, child)
            self._loop.add_reader(child.pidfd, self._ended, child)

    async def next(self, timeout_s: float | None = None) -> Event:
        """Return the next event. Raises TimeoutError after `timeout_s`."""
        if not self._events.empty():
            return self._events.get_nowait()
        async with asyncio.timeout(timeout_s):
            return await self._events.get()

    def stop(self, reason: str) -> None:
        """Queue a Stop; it comes after what children have said before."""
        self._events.put_nowait(Stop(reason))

    def close(self) -> None:
        """Stop watching; before the boot's descriptors are closed."""
        for child in list(self._watched.values()):
            self._forget(child)

    def _read(self, child: ChildProcess) -> None:
        try:
            while (body := child.receive()) is not None:
                self._events.put_nowait(Message(child.process, body))
        except EOFError:
            # Its end follows; an unread end of the socket would call us again and again.
            self._loop.remove_reader(child.control)

    def _ended(self, child: ChildProcess) -> None:
        if child.control.fileno() >= 0:
            self._read(child)
        self._forget(child)
        self._events.put_nowait(Exited(child.process, child.wait()))

    def _forget(self, child: ChildProcess) -> None:
        self._loop.remove_reader(child.control)
        self._loop.remove_reader(child.pidfd)
        self._watched.pop(child.process, None)


class Lifeline:
    """The tie to whoever started a bookie, a test or `fastbk dev`: told of each change, and its end stops the bookie.

    Our end of a SOCK_SEQPACKET socket, one JSON object a message; None: nobody is there, and nothing happens.
    """

    def __init__(self, end: socket.socket | None) -> None:
        self._end = end
        self.faults = FaultInjection(self.send)
        self._remove_at_end: list[str] = []
        self.is_cut = False
        """The other end is gone."""

    def watch(self, on_end: Callable[[], None]) -> None:
        """Read what comes on the running loop; call `on_end` once when the other end is gone."""
        if self._end is not None:
            self._end.setblocking(False)
            asyncio.get_running_loop().add_reader(self._end, self._read, self._end, on_end)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; what does not fit, or nobody reads, is lost."""
        if self._end is not None:
            with contextlib.suppress(OSError):
                self._end.send(msgspec.json.encode(message))

    def _read(self, end: socket.socket, on_end: Callable[[], None]) -> None:
        try:
            data = end.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            message = msgspec.json.decode(data, type=dict)
            if message.get("type") == "remove_at_end":
                self._remove_at_end.append(str(message["path"]))
            elif message.get("type") == FAULTS:
                self.faults.take(message)
            return
        asyncio.get_running_loop().remove_reader(end)
        self.is_cut = True
        for path in self._remove_at_end:
            with contextlib.suppress(OSError):
                os.unlink(path)
        on_end()
