"""Turns the control sockets and ends of a boot's children into one queue of events for the
supervisor.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
