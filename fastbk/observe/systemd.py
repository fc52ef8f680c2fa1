"""What systemd is told by a service (sd_notify): that it is ready, what it does, that it is alive, that it stops.

systemd names a datagram socket in NOTIFY_SOCKET. Without it nothing is sent. Nothing here waits or raises: a service
does not depend on being listened to.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

SOCKET, WATCHDOG_US, WATCHDOG_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
STATUS_CHARACTERS_MAX = 500


class Systemd:
    """The manager of this service, if it is systemd.

    Attributes:
        is_there: whether anybody is told.
        watchdog_s: how often `alive` has to be called at least; None: nobody waits for it.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ, pid: int | None = None) -> None:
        self._address = environment.get(SOCKET, "")
        self.is_there = self._address[:1] in ("/", "@")
        self.watchdog_s = self._half_of_watchdog(environment, os.getpid() if pid is None else pid)
        self._socket: socket.socket | None = None

    def ready(self) -> None:
        """The service serves."""
        self.notify("READY=1")

    def stopping(self) -> None:
        """The service ends; it may take a while."""
        self.notify("STOPPING=1")

    def alive(self) -> None:
        """Not to be killed by the watchdog yet."""
        self.notify("WATCHDOG=1")

    def status(self, text: str) -> None:
        """What `systemctl status` shows."""
        self.notify("STATUS=" + " ".join(text.split())[:STATUS_CHARACTERS_MAX])

    def extend(self, seconds: float) -> None:
        """Starting or stopping takes so much longer, from now on."""
        self.notify(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def notify(self, *lines: str) -> None:
        """Send one datagram."""
        if not self.is_there:
            return
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError):
            self._socket.sendto("\n".join(lines).encode(), address)

    def close(self) -> None:
        """Give the socket back."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @staticmethod
    def _half_of_watchdog(environment: Mapping[str, str], pid: int) -> float | None:
        time_us, for_pid = environment.get(WATCHDOG_US, ""), environment.get(WATCHDOG_PID, "")
        if not time_us.isdigit() or int(time_us) == 0 or for_pid not in ("", str(pid)):
            return None
        return int(time_us) / 2e6


@contextlib.asynccontextmanager
async def announced(
    what: str, is_well: Callable[[], bool] = lambda: True
) -> AsyncGenerator[None, None]:
    """Tell systemd that the block serves: `what` it does, and as long as `is_well` that it is alive.

    For services without states of their own; the bookie's are told by `server/supervisor.py`.
    """
    systemd = Systemd()
    task = asyncio.get_running_loop().create_task(
        keep_alive(systemd, is_well), name="fastbk systemd"
    )
    systemd.notify("READY=1", f"STATUS={what}")
    try:
        yield
    finally:
        systemd.stopping()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        systemd.close()


async def keep_alive(systemd: Systemd, is_well: Callable[[], bool]) -> None:
    """Feed the watchdog from the running loop, which so has to turn, while `is_well`."""
    while systemd.watchdog_s is not None:
        if is_well():
            systemd.alive()
        await asyncio.sleep(systemd.watchdog_s / 2)
