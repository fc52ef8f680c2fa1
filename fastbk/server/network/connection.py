"""One client's connection, as the event loop sees it: bytes go to C, bits come back.

There is no state of the protocol here: C has it. The transport receives the first bytes; then C does, from all
connections in one call. Replies are sent by C straight to the socket as long as the transport
holds nothing; what the socket does not take goes through the transport, and then nothing is read from this client
until that is written (INV-B1). With TLS all bytes go through the transport, in both directions.
"""

from __future__ import annotations

import asyncio
import functools
import socket
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, cast

from fastbk.native.worker import (
    ABORT,
    BUFFER,
    COLD,
    COLLECT,
    CONNECTIONS_REFUSED,
    DIGESTS,
    END,
    FINISH,
    OPEN,
    PAUSE,
    RESUME,
    WRITE,
)
from fastbk.security.admission import Client
from fastbk.server.network.handlers import begins_sasl, begins_with_start_tls

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.native.worker import Worker
    from fastbk.security.admission import Admission
    from fastbk.server.network.audit_trail import AuditTrail
    from fastbk.server.network.handlers import ApacheHandlers, DigestRequests, Handlers

START_TLS_WAIT_S = 1.0  # a client that begins SASL in the clear, where that is refused, may still upgrade for so long
COLD_REQUESTS_A_TURN = 2
"""A client that sends only these lets the others have their turn after so many."""
SECURE_WRITE_BYTES = 64 * 1024
"""Encrypted at once: what lies below TLS on its way to the socket is not counted as unread (INV-B1)."""


def merged(first: int, then: int) -> int:
    """Return the bits of two calls in a row: a pause and a resume cancel out, the buffer is as the later one says."""
    both = (first & ~BUFFER) | then
    if both & PAUSE and both & RESUME:
        both &= ~(PAUSE | RESUME)
    return both


_Rest = ParamSpec("_Rest")


def contained(
    method: Callable[Concatenate[Connection, _Rest], None],
) -> Callable[Concatenate[Connection, _Rest], None]:
    """Have an exception of a method that the loop calls end the connection alone (INV-N5)."""

    @functools.wraps(method)
    def call(connection: Connection, /, *arguments: _Rest.args, **named: _Rest.kwargs) -> None:
        try:
            method(connection, *arguments, **named)
        except Exception as error:  # noqa: BLE001 - whatever the client's bytes led to
            connection.failed(error)

    return call


class Owner(Protocol):
    """What a connection needs of its network."""

    worker: Worker
    loop: asyncio.AbstractEventLoop
    handlers: Handlers
    apache: ApacheHandlers
    digests: DigestRequests
    admission: Admission
    audit: AuditTrail
    keep_alive: tuple[tuple[int, int], ...]

    @property
    def serves_tls(self) -> bool:
        """Whether clients may upgrade."""

    def came(self, connection: Connection) -> None:
        """It has a slot."""

    def admitted(self, connection: Connection) -> None:
        """Its client is served from now on, or still not."""

    def left(self, connection: Connection) -> None:
        """It gives its slot back."""

    def connection_is_gone(self) -> None:
        """A connection was closed."""

    def contains(self, connection: Connection, error: Exception) -> bool:
        """Count and log an exception that came of a connection; False: of none, and the worker ends."""

    def collect_soon(self) -> None:
        """Have `Worker.collect` called in the next turn of the loop."""

    def open(self, connection: Connection) -> None:
        """Go on with a connection whose first bytes are there."""


class Connection(asyncio.BufferedProtocol):
    """Feeds a worker's C with one socket's bytes and does what it asks for."""

    __slots__ = (
        "_has_transport",
        "_held",
        "_network",
        "_own_buffer",
        "_rest",
        "_transport",
        "_was_lost",
        "_worker",
        "address",
        "awaited_bytes",
        "client",
        "opening",
        "slot",
        "upgrading",
        "waiting_socket",
    )

    def __init__(self, network: Owner) -> None:
        """Remember whose it is, no more: what a listener's factory raises closes the listener."""
        self._network = network
        self._worker = network.worker
        self._transport = cast("asyncio.Transport", None)
        self._own_buffer: memoryview | None = None
        self._has_transport = self._was_lost = False
        self.client = Client()
        self._rest = memoryview(b"")
        self._held = 0
        self.slot = -1
        self.address = ""
        self.waiting_socket: socket.socket | None = None
        """Until there is a transport, where TLS is on."""
        self.upgrading: asyncio.Transport | None = None
        """One in the clear that is to become a secure one."""
        self.opening: asyncio.Task[None] | None = None
        """What makes a transport, or makes it a secure one."""
        self.awaited_bytes = 0
        """What has to lie in the socket before it goes on."""

    @contained
    def await_first_byte(self, sock: socket.socket, address: object) -> None:
        """Take a slot for a socket that has no transport until its first byte is there, or close it."""
        self.waiting_socket = sock
        if not self._take_slot(sock, address):
            self.waiting_socket = None
            sock.close()
            return
        self.await_bytes(1)

    def await_bytes(self, size_bytes: int) -> None:
        """Go on when the socket, which has been told the size, is readable."""
        self.awaited_bytes = size_bytes
        self.act(self._worker.await_bytes(self.slot))

    @property
    def descriptor(self) -> int:
        """The descriptor of its socket, while it waits for that."""
        if self.upgrading is not None:
            return int(self.upgrading.get_extra_info("socket").fileno())
        assert self.waiting_socket is not None
        return self.waiting_socket.fileno()

    def secure(self, behind_bytes: int = 0) -> bool:
        """Say that the transport encrypts from now on; False: it may not, and the connection is closed."""
        self.client.is_secure = True
        refusal = self._worker.secure(self.slot, behind_bytes)
        self.act(refusal)
        return not refusal

    def _admit(self) -> None:
        """Have C serve what the client may do."""
        self._worker.admit(self.slot, *self.client.principal.granted)
        self._network.admitted(self)

    def _meet_secure(self) -> None:
        certificate = self._transport.get_extra_info("peercert") or b""
        self._network.admission.meet(self.client, certificate)
        self._admit()

    @contained
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a slot, or refuse."""
        self._transport = cast("asyncio.Transport", transport)
        self._has_transport, self.waiting_socket, self.opening = True, None, None
        if self._was_lost:
            self._transport.abort()
            return
        if self.slot < 0:
            sock: socket.socket = transport.get_extra_info("socket")
            if not self._take_slot(sock, transport.get_extra_info("peername")):
                self._transport.write(self._network.handlers.too_many_connections())
                self._transport.close()
                return
        if self.client.is_secure:
            self._limit_secure_writes()
            self._meet_secure()
            return
        # Any byte that the transport holds is told by pause_writing, its last one's leaving by resume_writing.
        self._transport.set_write_buffer_limits(high=0)
        # the transport begins to read when this call returns
        self._network.loop.call_soon(self._watch)

    @contained
    def upgraded(self, transport: asyncio.Transport) -> None:
        """Go on with TLS, where the client asked for it in the clear."""
        if self.slot < 0:  # it was lost when the handshake had just ended
            transport.abort()
            return
        self._transport = transport
        self._limit_secure_writes()
        self._meet_secure()
        self.opening = self.upgrading = None
        held, self._held = self._held, 0
        self._answer_postponed()
        self.act(merged(held, self._worker.proceed(self.slot)))

    def _limit_secure_writes(self) -> None:
        self._transport.set_write_buffer_limits(high=1, low=0)  # with 0 it would pause at nothing

    def _take_slot(self, sock: socket.socket, peer: object) -> bool:
        slot = self._worker.connect(sock.fileno())
        if slot is None:
            self._worker.count(CONNECTIONS_REFUSED)
            return False
        self.slot = self.client.slot = slot
        self.address = self.client.address = str(peer[0]) if isinstance(peer, tuple) else ""
        self._network.admission.meet(self.client, None)
        self._network.came(self)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for option, value in self._network.keep_alive:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
        return True

    @contained
    def _watch(self) -> None:
        """Let C receive from all connections in one call: one for each takes half as long as TCP itself."""
        if self.slot >= 0 and not self.client.is_secure and not self._transport.is_closing():
            self._transport.pause_reading()
            self._own_buffer = None
            self.act(self._worker.watch(self.slot))

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the slot back. The loop closes the descriptor only after this: C never sends on a stranger's."""
        self._was_lost = True
        if self.slot >= 0:
            try:
                self._network.left(self)
            except Exception as error:  # noqa: BLE001 - INV-N5: its slot goes back in any case
                self.failed(error)
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
        try:
            todo = self._worker.receive(self.slot, nbytes)
            if todo or self._own_buffer is not None:
                self.act(todo)
        except Exception as error:  # noqa: BLE001 - INV-N5
            self.failed(error)

    def eof_received(self) -> bool:
        """The client is done: close."""
        return False

    @contained
    def resume_writing(self) -> None:
        """The transport has written everything: C may send again."""
        if self.slot >= 0:
            self._write_rest()

    def act(self, todo: int) -> None:
        """Do what C asks for."""
        if not self._has_transport:
            self._act_without_transport(todo)
            return
        if self.slot < 0 or self._transport.is_closing():
            return
        if todo & OPEN and self.upgrading is not None:
            todo &= ~OPEN
            self._network.open(self)
        if (self.opening or self.upgrading) is not None and not todo & (ABORT | END):
            self._held = merged(self._held, todo)  # it is for the transport that is being made
            return
        if todo == WRITE and self._own_buffer is None:  # each turn's of a connection with TLS
            self._write()
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
            if self.client.is_secure:
                self.close()  # TLS has no half-closed connection; it says the end to both sides
            else:
                self._transport.write_eof()

    @contained
    def close(self) -> None:
        """Close once everything answered so far is written."""
        if not self._has_transport:
            self.abort()
            return
        if self.slot >= 0 and not self._transport.is_closing():
            rest = self._worker.take_output(self.slot)
            if self._rest or rest:
                self._transport.write(b"".join((self._rest, rest)))
                self._rest = memoryview(b"")
        self._transport.close()

    def failed(self, error: Exception) -> None:
        """Close at once: an exception came of this connection, and ends no other (INV-N5)."""
        if self._network.contains(self, error):
            self.abort()

    def abort(self) -> None:
        """Close at once. Also where that fails the exception goes no further: timers close connections of many."""
        try:
            self._abort()
        except Exception as error:  # noqa: BLE001 - INV-N5
            self._network.contains(self, error)

    def _abort(self) -> None:
        if self._was_lost:
            return
        opening, self.opening = self.opening, None
        if opening is not None and opening is not asyncio.current_task():
            opening.cancel()
        if self._has_transport:
            self._transport.abort()
            if opening is not None:
                # the loop does not tell of it in the middle of a handshake
                self.connection_lost(None)
            return
        sock, self.waiting_socket = self.waiting_socket, None
        self.connection_lost(None)
        if sock is not None:
            sock.close()

    def _act_without_transport(self, todo: int) -> None:
        if todo & COLLECT:
            self._network.collect_soon()
        if todo & (ABORT | END):
            self.abort()
        elif todo & OPEN and self.waiting_socket is not None:
            self._network.open(self)

    def _answer(self, todo: int) -> int:
        is_apache = self._worker.is_apache(self.slot)
        handlers = self._network.apache if is_apache else self._network.handlers
        for left in reversed(range(COLD_REQUESTS_A_TURN)):
            principal = self.client.principal
            frame = self._worker.cold_frame(self.slot)
            if is_apache and self._postpones(frame):
                todo = merged(todo & ~COLD, self._worker.proceed(self.slot))
                return self._answer(todo) if todo & COLD else todo
            answer = handlers.answer(frame, self.client)
            if self.client.principal is not principal:
                self._admit()
            if answer.is_upgrade:
                return self._upgrade(answer.frame)
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

    def _postpones(self, frame: bytes) -> bool:
        """Return whether a frame begins SASL in the clear and START_TLS follows, or may: Java sends both at once."""
        network, client = self._network, self.client
        if client.is_secure or client.postponed or not network.serves_tls or not begins_sasl(frame):
            return False
        if not begins_with_start_tls(self._worker.behind(self.slot)):
            if not network.admission.takes_sasl_only_encrypted:
                return False
            network.loop.call_later(START_TLS_WAIT_S, self._answer_postponed)
        client.postponed = frame
        return True

    @contained
    def _answer_postponed(self) -> None:
        if self.upgrading is not None:
            return  # the handshake's end comes here, too
        frame, self.client.postponed = self.client.postponed, b""
        if frame and self.slot >= 0:
            answer = self._network.apache.answer(frame, self.client)
            self.act(self._worker.send(self.slot, answer.frame, is_last=answer.is_last))

    @contained
    def _proceed_later(self) -> None:
        if self.slot >= 0:
            self.act(self._worker.proceed(self.slot))

    def _write(self) -> None:
        if self.client.is_secure and (passed := self._worker.pass_output(self.slot)):
            self._transport.write(passed)
            if self._transport.get_write_buffer_size():
                self._worker.handed(self.slot, len(passed))
            return
        output = self._worker.take_output(self.slot)
        if not output:
            return  # it was cut since, because another one needed the room, and is aborted next
        if self.client.is_secure:
            # a last frame goes behind what is left
            self._rest = memoryview(b"".join((self._rest, output)))
        else:
            self._transport.write(output)
        self._write_rest()

    def _write_rest(self) -> None:
        """Write on as long as the transport holds nothing; then C may send again."""
        while self._transport.get_write_buffer_size() == 0:
            if not self._rest:
                self.act(self._worker.writable(self.slot))
                return
            piece, self._rest = self._rest[:SECURE_WRITE_BYTES], self._rest[SECURE_WRITE_BYTES:]
            self._transport.write(piece)

    def _upgrade(self, answer: bytes) -> int:
        """Answer START_TLS in the clear, and go on with TLS. Returns bits.

        Java begins SASL without waiting. That is answered encrypted; anything else behind it is the end (INV-N1).
        """
        behind = self._worker.behind(self.slot)
        if self.secure(len(behind) if begins_sasl(behind) else 0):
            self._transport.write(answer)
            self._transport.pause_reading()  # a transport that has just been made still reads by itself
            self.upgrading = self._transport
            self.await_bytes(1)
        return 0
