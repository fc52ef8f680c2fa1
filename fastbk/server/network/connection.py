"""One client's connection, as the event loop sees it: bytes go to C, bits come back.

There is no state of the protocol here: C has it. The transport receives the first bytes; then C does, from all
connections in one call. Replies are sent by C straight to the socket as long as the transport
holds nothing; what the socket does not take goes through the transport, and then nothing is read from this client
until that is written (INV-B1).
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING, cast

from fastbk.native.worker import (
    ABORT,
    BUFFER,
    COLD,
    COLLECT,
    CONNECTIONS_REFUSED,
    DIGESTS,
    END,
    FINISH,
    INFOS_DONE,
    INFOS_DONE_US,
    INFOS_FAILED,
    INFOS_FAILED_US,
    PAUSE,
    RESUME,
    WRITE,
)

if TYPE_CHECKING:
    from fastbk.server.network.network import Network

COLD_REQUESTS_A_TURN = 32
"""A client that sends only these lets the others have their turn after so many."""


def merged(first: int, then: int) -> int:
    """Return the bits of two calls in a row: a pause and a resume cancel out, the buffer is as the later one says."""
    both = (first & ~BUFFER) | then
    if both & PAUSE and both & RESUME:
        both &= ~(PAUSE | RESUME)
    return both


def _address(transport: asyncio.BaseTransport) -> str:
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else ""


class Connection(asyncio.BufferedProtocol):
    """Feeds a worker's C with one socket's bytes and does what it asks for."""

    __slots__ = ("_network", "_own_buffer", "_transport", "_worker", "slot")

    def __init__(self, network: Network) -> None:
        self._network = network
        self._worker = network.worker
        self._transport = cast("asyncio.Transport", None)
        self._own_buffer: memoryview | None = None
        self.slot = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a slot, or refuse."""
        self._transport = cast("asyncio.Transport", transport)
        sock: socket.socket = transport.get_extra_info("socket")
        slot = self._worker.connect(sock.fileno())
        if slot is None:
            self._worker.count(CONNECTIONS_REFUSED)
            self._transport.write(self._network.handlers.too_many_connections())
            self._transport.close()
            return
        self.slot = slot
        self._network.came(self, _address(transport))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for option, value in self._network.keep_alive:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
        # Any byte that the transport holds is told by pause_writing, its last one's leaving by resume_writing.
        self._transport.set_write_buffer_limits(high=0)
        self._network.loop.call_soon(self._watch)  # the transport begins to read when this call returns

    def _watch(self) -> None:
        """From now on C receives, from all connections in one call: one for each takes half as long as TCP itself."""
        if self.slot >= 0 and not self._transport.is_closing():
            self._transport.pause_reading()
            self._own_buffer = None
            self.act(self._worker.watch(self.slot))

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the slot back. The loop closes the descriptor only after this: C never sends on a stranger's."""
        if self.slot >= 0:
            self._network.left(self)
            if self._worker.disconnect(self.slot):
                self._network.collect_soon()
            self.slot = -1
        self._own_buffer = None
        self._network.connection_is_gone()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go: the worker's one buffer, or the rest of this client's large frame."""
        return self._own_buffer or self._worker.receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Hand over what was received."""
        if self.slot < 0:
            return
        todo = self._worker.receive(self.slot, nbytes)
        if todo or self._own_buffer is not None:
            self.act(todo)

    def eof_received(self) -> bool:
        """The client is done: close."""
        return False

    def resume_writing(self) -> None:
        """The transport has written everything: C may send again."""
        if self.slot >= 0:
            self.act(self._worker.writable(self.slot))

    def act(self, todo: int) -> None:
        """Do what C asks for."""
        if self.slot < 0 or self._transport.is_closing():
            return
        if todo & COLD:
            todo = self._answer(todo)
        self._own_buffer = self._worker.own_buffer(self.slot) if todo & BUFFER else None
        if todo & COLLECT:
            self._network.collect_soon()
        if todo & DIGESTS:
            self._network.digests.request_soon()
        if todo & ABORT:
            self._transport.abort()
            return
        if todo & END:
            self._transport.close()
            return
        if todo & PAUSE:
            self._transport.pause_reading()
        elif todo & RESUME:
            self._transport.resume_reading()
        if todo & WRITE:
            self._write()
        if todo & FINISH:
            self._transport.write_eof()

    def close(self) -> None:
        """Close once everything answered so far is written."""
        if self.slot >= 0 and not self._transport.is_closing():
            rest = self._worker.take_output(self.slot)
            if rest:
                self._transport.write(rest)
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def _answer(self, todo: int) -> int:
        is_apache = self._worker.is_apache(self.slot)
        handlers = self._network.apache if is_apache else self._network.handlers
        for left in reversed(range(COLD_REQUESTS_A_TURN)):
            began_ns = time.monotonic_ns()
            answer = handlers.answer(self._worker.cold_frame(self.slot))
            if answer.info:
                self._count_info(answer.info == "done", (time.monotonic_ns() - began_ns) // 1000)
            todo = merged(
                todo & ~COLD, self._worker.send(self.slot, answer.frame, is_last=answer.is_last)
            )
            if answer.is_last:
                return todo
            if left == 0:
                self._network.loop.call_soon(self._proceed_later)
                return todo
            todo = merged(todo, self._worker.proceed(self.slot, is_open=answer.is_open))
            if not todo & COLD:
                break
        return todo

    def _count_info(self, is_done: bool, took_us: int) -> None:
        self._worker.count(INFOS_DONE if is_done else INFOS_FAILED)
        self._worker.count(INFOS_DONE_US if is_done else INFOS_FAILED_US, took_us)

    def _proceed_later(self) -> None:
        if self.slot >= 0:
            self.act(self._worker.proceed(self.slot))

    def _write(self) -> None:
        output = self._worker.take_output(self.slot)
        if not output:
            return  # it was cut since, because another one needed the room, and is aborted next
        self._transport.write(output)
        if self._transport.get_write_buffer_size() == 0:
            self.act(self._worker.writable(self.slot))
