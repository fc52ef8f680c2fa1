"""The tie to whoever started a bookie, a test or `fastbk dev`: told of each change, and its end stops the bookie."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable


class Lifeline:
    """Our end of a SOCK_SEQPACKET socket, one JSON object a message; None: nobody is there, and nothing happens."""

    def __init__(self, end: socket.socket | None) -> None:
        self._end = end
        self._remove_at_end: list[str] = []
        self.is_cut = False
        """The other end is gone."""

    def watch(self, on_end: Callable[[], None]) -> None:
        """Read what comes on the running loop; call `on_end` once when the other end is gone."""
        if self._end is not None:
            self._end.setblocking(False)
            asyncio.get_running_loop().add_reader(self._end, self._read, self._end, on_end)

    def tell(self, message: dict[str, Any]) -> None:
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
            return
        asyncio.get_running_loop().remove_reader(end)
        self.is_cut = True
        for path in self._remove_at_end:
            with contextlib.suppress(OSError):
                os.unlink(path)
        on_end()
