"""The port of a write service: producers' connections, who may append to what, and the bounds of all of it.

A connection speaks the protocol of bookies: magic, `Hello` with token and TLS (`fastbk/wire/README.md`), then producers
are opened on it and send frames. C parses and verifies what was received in one call (`fastbk/native/serve_codec.py`);
here runs a few lines a frame. Streams and their owners are `streams.py`.

INV-S42: a frame gets to an owner only from a client that has `add` on the stream's namespace at that time.
INV-S43: what is received and not answered is bounded: of a producer by `pending_bytes_max`, beyond which its connection
ends; of all by `memory_bytes_max`, beyond which nothing more is read from those who send.
"""

from __future__ import annotations

import asyncio
import bisect
import enum
import time
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, cast

from fastbk import __version__
from fastbk.client.connection import SLOT_SHIFT
from fastbk.errors import (
    ConfigError,
    Error,
    ProducerExpired,
    ProducerFenced,
    ProtocolError,
    QuotaExceeded,
    StreamNotFound,
    StreamSealed,
    TooManyProducers,
    WrongStreamKind,
)
from fastbk.native import serve_codec
from fastbk.native.client_codec import signed
from fastbk.native.serve_codec import REQUEST_WORDS, RequestBuffer, put_answers
from fastbk.observe.logs import LimitLog
from fastbk.producers.streams import Moved, NotReady, Owned, Streams
from fastbk.producers.table import Frame, NotNext
from fastbk.security.admission import Client, Refused
from fastbk.security.rights import NOBODY, Principal, Right
from fastbk.stream.paths import split_stream_path
from fastbk.stream.positions import DLSN
from fastbk.stream.provenance import NAME_BYTES_MAX
from fastbk.web.server import Places
from fastbk.wire.messages import (
    MAGIC,
    TOKEN,
    VERSION_MAX,
    VERSION_MIN,
    CloseProducer,
    ErrorReply,
    Hello,
    HelloReply,
    InfoReply,
    OpenProducer,
    OpenProducerReply,
    Reply,
    decode_service_request,
    encode_reply,
)
from fastbk.wire.statuses import Status, status_name

if TYPE_CHECKING:
    from fastbk.security.admission import Admission
    from fastbk.security.audit_log import AuditLog

ENTRY_BYTES_MAX: Final = 1024 * 1024
"""Of a frame's records."""
FRAME_SIZE_BYTES_MAX: Final = 4 * ENTRY_BYTES_MAX
"""A frame, with the numbers of its records: 8 bytes for each of 4 at least."""
HELLO_BYTES_MAX: Final = 16 * 1024
RECEIVE_BYTES: Final = 64 * 1024
"""Of each connection's buffer; more only while a larger frame is coming."""
HELLO_TIMEOUT_S: Final = 10.0
FRAME_TIMEOUT_S: Final = 30.0
OPEN_TIMEOUT_S, OPEN_TIMEOUT_S_MAX = 10.0, 60.0
OPENINGS_MAX: Final = 64
"""Requests to open a producer that one connection may have under way."""
SWEEP_INTERVAL_S: Final = 1.0
LINGER_S: Final = 2.0
WRITE_BUFFER_BYTES: Final = 256 * 1024
RESUME_SHARE: Final = 0.875
STARVED_AT_ONCE: Final = 8
FRAMES_MAX: Final = 4096
"""Frames of one connection that are not answered; beyond it nothing more is read from it."""
FRAME_BYTES: Final = 1024
"""What a frame takes beside its records, about."""
OPENINGS_OF_ALL_MAX: Final = 4096
STRANGERS_MAX: Final = 512
"""Connections before their hello; for another one the oldest of the address that has the most is closed."""
SIGN_OF_LIFE: Final = serve_codec.put_status(1 << SLOT_SHIFT, Status.OK)
"""Answers no request: clients drop it, and count it as something that was said."""
APPEND_BUCKETS_S: Final = tuple(0.0005 * 2**step for step in range(15))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Bounds of one service."""

    connections_max: int = 4096
    """Of clients whose hello was accepted."""
    producers_max: int = 1024
    """Of one connection."""
    pending_bytes_max: int = 4 * 1024 * 1024
    memory_bytes_max: int = 256 * 1024 * 1024


class Figures:
    """What one service counts, for `/metrics`."""

    def __init__(self) -> None:
        self.frames = self.records = self.bytes = 0
        self.refusals: Counter[str] = Counter()
        """By status."""
        self.append_buckets = [0] * (len(APPEND_BUCKETS_S) + 1)
        self.append_s = 0.0

    def stored(self, records: int, size_bytes: int, took_s: float) -> None:
        """A frame is stored."""
        self.frames += 1
        self.records += records
        self.bytes += size_bytes
        self.append_s += took_s
        self.append_buckets[bisect.bisect_left(APPEND_BUCKETS_S, took_s)] += 1


class Memory:
    """Bytes that are received and not answered, and connections that wait until there are fewer (INV-S43).

    Records that wait for bookies count in `bytes`, and when these are as many as there may be nobody begins another
    frame. What connections have beyond their `RECEIVE_BYTES` for frames that have begun counts in `grown_bytes`: each
    of them gets to its end, as its time is limited, too.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes = self.grown_bytes = 0
        self.waiting: dict[ProducerConnection, None] = {}
        """Those that begin no frame, for want of room for records. The one that waits longest comes first."""
        self.starved: dict[ProducerConnection, None] = {}
        """Those that have begun one that is larger than their buffer, and get no larger one yet."""
        self._bytes_max = bytes_max
        self._grown_bytes_max = max(bytes_max // 4, FRAME_SIZE_BYTES_MAX)

    @property
    def is_full(self) -> bool:
        """Whether nobody is to begin a frame."""
        return self.bytes >= self._bytes_max

    def take(self, size_bytes: int) -> None:
        """Count records that are there."""
        self.bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Count records that are answered; connections go on when there is room again."""
        self.bytes -= size_bytes
        if self.waiting and self.bytes < RESUME_SHARE * self._bytes_max:
            waiting, self.waiting = self.waiting, {}
            for connection in waiting:
                connection.go_on()

    def grow(self, size_bytes: int) -> bool:
        """Return whether a connection may have so many bytes more, and count them."""
        if self.grown_bytes + size_bytes > self._grown_bytes_max:
            return False
        self.grown_bytes += size_bytes
        return True

    def shrink(self, size_bytes: int) -> None:
        """Count bytes that a connection needs no more."""
        self.grown_bytes -= size_bytes
        # Who finds no room yet waits again, behind the others: as long as there is none, another one shrinks later.
        for connection in list(islice(self.starved, STARVED_AT_ONCE)):
            del self.starved[connection]
            connection.go_on()

    def leave(self, connection: ProducerConnection) -> None:
        """A connection is gone."""
        self.waiting.pop(connection, None)
        self.starved.pop(connection, None)


class Service:
    """One service's connections. Belongs to one event loop.

    Attributes:
        connections: those that are open.
        figures: what was done.
    """

    def __init__(
        self,
        service_id: str,
        streams: Streams,
        admission: Admission,
        audit: AuditLog,
        options: ServiceOptions | None = None,
        clock_s: Callable[[], float] = time.monotonic,
        wall_clock_s: Callable[[], float] = time.time,
    ) -> None:
        self.service_id = service_id
        self.streams = streams
        self.admission = admission
        self.options = options or ServiceOptions()
        self.connections: set[ProducerConnection] = set()
        self.figures = Figures()
        self.memory = Memory(self.options.memory_bytes_max)
        self.limits = LimitLog("serve.limit_reached")
        self.clock_s = clock_s
        self.started_s = clock_s()
        self._audit = audit
        self._wall_clock_s = wall_clock_s
        self._refused = LimitLog("serve.client_refused")
        self.faults = LimitLog("serve.connection_failed", level="error")
        self.openings = 0
        """Requests to open a producer that are under way."""
        self.greeted = 0
        """Connections whose hello was accepted."""
        self._strangers = Places(STRANGERS_MAX)

    def protocol(self) -> ProducerConnection:
        """Return the protocol of a new connection."""
        return ProducerConnection(self)

    def meet(self, transport: asyncio.BaseTransport) -> None:
        """A connection came: it has a place until its hello, if need be that of another one."""
        if self._strangers.enter(cast("asyncio.Transport", transport)):
            self.limits.note("strangers")

    def forget(self, transport: asyncio.Transport | None) -> None:
        """A connection has sent its hello, or is gone."""
        if transport is not None:
            self._strangers.leave(transport)

    def note(self, event: str, client: Client, **values: object) -> None:
        """Write a line of the audit log."""
        self._audit.note(event, address=client.address, principal=client.principal.name, **values)

    def refused(self, client: Client, error: Refused) -> None:
        """A client is not served."""
        self.note("client.refused", client, reason=error.detail)
        self._refused.note("refused", reason=error.detail, address=client.address)

    def sweep(self) -> None:
        """End connections whose time is over, and those of clients who are not accepted any more."""
        now_s, wall_s = self.clock_s(), self._wall_clock_s()
        for connection in list(self.connections):
            try:
                connection.check(now_s, wall_s)
            except Exception as error:  # noqa: BLE001 -- one connection's fault ends it alone
                connection.failed(error)

    @property
    def producers(self) -> int:
        """How many producers are open."""
        return sum(len(connection.producers) for connection in self.connections)

    async def close(self) -> None:
        """End all connections: what was answered is sent."""
        closing = [connection.closed for connection in self.connections]
        for connection in list(self.connections):
            connection.close()
        if closing:
            await asyncio.wait(closing, timeout=LINGER_S)
        for connection in list(self.connections):
            connection.abort()


def may_add(principal: Principal, namespace: str) -> bool:
    """Return whether a client may produce to a namespace's streams (INV-S42)."""
    return bool(principal.rights & Right.ADD) and principal.is_allowed(namespace)


@dataclass(slots=True, eq=False)
class Producer:
    """One opening of a name, on one connection.

    Attributes:
        number: on this connection.
        pending_bytes: of records that are not answered.
        is_allowed: its client has `add` on the namespace now (INV-S42).
    """

    number: int
    name: bytes
    incarnation: int
    namespace: str
    owned: Owned
    pending_bytes: int = 0
    is_allowed: bool = True


class _Hold(enum.Flag):
    """Why nothing is read from a connection."""

    ANSWERS = enum.auto()
    """It does not read its answers."""
    MEMORY = enum.auto()
    FRAMES = enum.auto()


_FOR_ROOM: Final = _Hold.MEMORY | _Hold.FRAMES


class ProducerConnection(asyncio.BufferedProtocol):
    """The connection of one client.

    Attributes:
        client: who it is.
        producers: those that are open, by number.
        closed: done when the connection is gone.
    """

    def __init__(self, service: Service) -> None:
        self.client = Client()
        self.producers: dict[int, Producer] = {}
        self._service = service
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._requests = RequestBuffer(RECEIVE_BYTES, self._may_grow)
        self._requests.frame_size_bytes_max = HELLO_BYTES_MAX
        self._grown_bytes = 0
        self._has_magic = False
        self._began_s = service.clock_s()
        self._frame_began_s: float | None = None
        self._holds = _Hold(0)
        self._frames = 0
        """Those that are not answered."""
        self._is_ending = False
        self._ended_s = 0.0
        self._numbers = 0
        self._openings: set[asyncio.Task[None]] = set()
        self._answers = array("Q")
        self._replies: list[bytes] = []
        self._is_flush_due = False

    # --- called by the loop -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a place, or refuse."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        peer = transport.get_extra_info("peername")
        self.client.address = str(peer[0]) if isinstance(peer, tuple) else ""
        self.client.is_secure = transport.get_extra_info("ssl_object") is not None
        service = self._service
        service.meet(transport)
        service.connections.add(self)
        certificate = transport.get_extra_info("peercert") or b"" if self.client.is_secure else None
        service.admission.meet(self.client, certificate)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to receive into."""
        return self._requests.free()

    def buffer_updated(self, nbytes: int) -> None:
        """Take in what was received."""
        self._requests.received(nbytes)
        if not self._is_ending:
            self._parse()

    def eof_received(self) -> bool:
        """Close."""
        return False

    def pause_writing(self) -> None:
        """Read nothing more from a client that does not read its answers."""
        self._hold(_Hold.ANSWERS)

    def resume_writing(self) -> None:
        """Go on."""
        self._release(_Hold.ANSWERS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give back what it has. What is on its way to bookies goes on."""
        self._service.forget(self._transport)
        self._service.greeted -= self.client.is_greeted
        self._transport = None
        self._is_ending = True
        self._service.connections.discard(self)
        self._service.memory.leave(self)
        grown_bytes, self._grown_bytes = self._grown_bytes, 0
        self._service.memory.shrink(grown_bytes)
        for task in self._openings:
            task.cancel()
        for producer in self.producers.values():
            producer.owned.producers -= 1
        self.producers.clear()
        if not self.closed.done():
            self.closed.set_result(None)

    # --- its bounds ---------------------------------------------------------------------------------------------

    @property
    def is_paused(self) -> bool:
        """Whether nothing is read from it, for want of room, or since it does not read its answers."""
        return bool(self._holds)

    def go_on(self) -> None:
        """Read on: there is memory again."""
        self._release(_Hold.MEMORY)

    def _hold(self, hold: _Hold) -> None:
        if self._transport is not None and not self._holds:
            self._transport.pause_reading()
        self._holds |= hold

    def _release(self, hold: _Hold) -> None:
        if hold not in self._holds:
            return
        self._holds &= ~hold
        if self._holds or self._transport is None or self._is_ending:
            return
        if self._frame_began_s is not None:
            self._frame_began_s = self._service.clock_s()
        self._transport.resume_reading()
        self._loop.call_soon(self._parse)

    def check(self, now_s: float, wall_s: float) -> None:
        """End it if its time is over, or its client is not accepted any more."""
        if self._is_ending:
            if now_s - self._ended_s >= LINGER_S:
                self.abort()  # it does not read what was left for it
            return
        if self._holds & _FOR_ROOM:
            self._reply_bytes(SIGN_OF_LIFE)  # its ping is not read
        if not self.client.is_greeted:
            if now_s - self._began_s >= HELLO_TIMEOUT_S:
                self._service.limits.note("hello_timeout", address=self.client.address)
                self.abort()
            return
        if (
            self._frame_began_s is not None
            and not self.is_paused
            and now_s - self._frame_began_s >= FRAME_TIMEOUT_S
        ):
            self._service.limits.note("frame_timeout", address=self.client.address)
            self.abort()
            return
        if reason := self._service.admission.why_ended(self.client, wall_s):
            self._service.note("client.ended", self.client, reason=reason)
            self.client.principal = NOBODY
            for producer in self.producers.values():
                producer.is_allowed = False
            self._reply(0, Status.UNAUTHORIZED, ErrorReply(message=reason))
            self._end()

    def close(self) -> None:
        """Send what was answered, and close."""
        self._flush()
        self._end()

    def _end(self) -> None:
        self._flush()
        self._is_ending, self._ended_s = True, self._service.clock_s()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._is_ending = True
        if self._transport is not None:
            self._transport.abort()

    def failed(self, error: BaseException) -> None:
        """Close at once: an exception came of it."""
        self._service.faults.note(type(error).__name__, reason=repr(error))
        self.abort()

    # --- requests -----------------------------------------------------------------------------------------------

    def _parse(self) -> None:
        if self._transport is None or self._is_ending or self.is_paused:
            return
        try:
            self._take_all()
        except ProtocolError as error:
            self._reply(0, Status.BAD_REQUEST, ErrorReply(message=str(error)))
            self._service.limits.note("bad_frame", address=self.client.address)
            self._end()
        except Exception as error:  # noqa: BLE001 -- one connection's fault ends it alone
            self.failed(error)

    def _take_all(self) -> None:
        requests, memory = self._requests, self._service.memory
        if not self._has_magic:
            self._has_magic = requests.take_magic(MAGIC)
            if not self._has_magic:
                return
        requests.is_starved = False
        while not self._is_ending and (words := requests.parse()):
            for offset in range(0, len(words), REQUEST_WORDS):
                self._take(words, offset)
        requests.shrink()
        grown_bytes = max(0, requests.size_bytes - RECEIVE_BYTES)
        if grown_bytes < self._grown_bytes:
            before, self._grown_bytes = self._grown_bytes, grown_bytes
            memory.shrink(before - grown_bytes)
        if not requests.has_part:
            self._frame_began_s = None
        elif self._frame_began_s is None:
            self._frame_began_s = self._service.clock_s()
        if requests.is_starved:
            memory.starved[self] = None
            self._hold(_Hold.MEMORY)
        else:
            self._hold_if_full()
        if self._frames >= FRAMES_MAX:
            self._hold(_Hold.FRAMES)

    def _hold_if_full(self) -> None:
        """Read from it no more while memory is full; who has no producer sends no records, and is heard."""
        memory = self._service.memory
        if memory.is_full and self.producers and not self._requests.has_part:
            memory.waiting[self] = None
            self._hold(_Hold.MEMORY)

    def _may_grow(self, size_bytes: int) -> bool:
        """Return whether the buffer may have so many bytes; it does then."""
        more_bytes = size_bytes - RECEIVE_BYTES - self._grown_bytes
        if more_bytes > 0 and not self._service.memory.grow(more_bytes):
            return False
        self._grown_bytes += max(0, more_bytes)
        return True

    def _take(self, words: list[int], offset: int) -> None:
        kind, request_id = words[offset] & 0xFFFF, words[offset + serve_codec.WORD_REQUEST_ID]
        if self._is_ending:
            return
        if kind == serve_codec.PRODUCE and self.client.is_greeted:
            self._produce(request_id, words, offset)
            return
        if kind == serve_codec.HELLO:
            request = decode_service_request(
                self._requests.content(words[offset + serve_codec.WORD_FRAME])
            )
            assert isinstance(request, Hello)
            self._hello(request_id, request)
        elif not self.client.is_greeted:
            raise ProtocolError("the first request is a hello")
        elif kind == serve_codec.PING:
            self._status(request_id, Status.OK)
        elif kind == serve_codec.INFO:
            self._reply(request_id, Status.OK, self._info())
        elif kind in (serve_codec.OPEN_PRODUCER, serve_codec.CLOSE_PRODUCER):
            request = decode_service_request(
                self._requests.content(words[offset + serve_codec.WORD_FRAME])
            )
            if isinstance(request, OpenProducer):
                self._begin_opening(request_id, request)
            elif isinstance(request, CloseProducer):
                self._close_producer(request_id, request.producer)
        else:
            self._refuse(request_id, Status.UNSUPPORTED)

    def _info(self) -> InfoReply:
        uptime_s = self._service.clock_s() - self._service.started_s
        return InfoReply(
            software=f"fastbk {__version__}",
            bookie_id=self._service.service_id,
            incarnation=0,
            writable=True,
            uptime_ms=int(1e3 * uptime_s),
        )

    # --- who it is ----------------------------------------------------------------------------------------------

    def _hello(self, request_id: int, hello: Hello) -> None:
        client = self.client
        if client.is_greeted and hello.auth_method != TOKEN:
            text = "a hello comes only once, unless it has a new token"
            self._refuse(request_id, Status.BAD_REQUEST, text)
            return
        version = min(hello.version_max, VERSION_MAX)
        if version < max(hello.version_min, VERSION_MIN):
            error = ErrorReply(
                message=f"this service speaks versions {VERSION_MIN} to {VERSION_MAX} of the protocol",
                version_min=VERSION_MIN,
                version_max=VERSION_MAX,
            )
            self._reply(request_id, Status.UNSUPPORTED, error)
            self._end()
            return
        try:
            if hello.auth_method == TOKEN and self._service.admission.takes(TOKEN):
                self._service.admission.by_token(client, hello.auth_payload)
                self._service.note("client.authenticated", client, method=TOKEN)
            elif client.refusal:
                raise Refused(client.refusal, is_failure=False)
        except Refused as refused:
            self._service.refused(client, refused)
            self._refuse(request_id, Status.UNAUTHORIZED, str(refused))
            self._end()
            return
        if not client.is_greeted and not self._take_place():
            reason = (
                f"this service has {self._service.greeted} connections already: try again later"
            )
            self._refuse(request_id, Status.TOO_MANY_REQUESTS, reason)
            self._end()
            return
        self._requests.frame_size_bytes_max = FRAME_SIZE_BYTES_MAX
        for producer in self.producers.values():
            self._judge(producer)
        reply = HelloReply(
            version=version,
            frame_size_bytes_max=FRAME_SIZE_BYTES_MAX,
            batch_entry_count_max=1,
            incarnation=0,
            bookie_id=self._service.service_id,
            software=f"fastbk {__version__}",
            pending_requests_max=0,
        )
        self._reply(request_id, Status.OK, reply)

    def _take_place(self) -> bool:
        """Return whether there is room for one more client whom the service knows; it has it then."""
        service = self._service
        if service.greeted >= service.options.connections_max:
            service.limits.note("connections", address=self.client.address)
            return False
        service.greeted += 1
        service.forget(self._transport)
        self.client.is_greeted = True
        return True

    def _judge(self, producer: Producer) -> None:
        """Say whether a producer may go on with the token that its client has now."""
        is_allowed = may_add(self.client.principal, producer.namespace)
        if producer.is_allowed and not is_allowed:
            self._denied(producer.owned.path)
        producer.is_allowed = is_allowed

    def _check_right(self, namespace: str, path: str) -> None:
        if not may_add(self.client.principal, namespace):
            raise _Denied(self._denied(path))

    def _denied(self, path: str) -> str:
        reason = f"{self.client.principal.name} may not append to {path}: that needs the operation add there"
        self._service.note("request.denied", self.client, operation="add", reason=reason[:500])
        return reason

    # --- producers ----------------------------------------------------------------------------------------------

    def _begin_opening(self, request_id: int, request: OpenProducer) -> None:
        most = self._service.options.producers_max
        if request.incarnation:
            self._drop(request.name, request.incarnation, request.stream.strip("/"))
        is_full = self._service.openings >= OPENINGS_OF_ALL_MAX
        if is_full or len(self._openings) >= OPENINGS_MAX or len(self.producers) >= most:
            self._service.limits.note("producers", address=self.client.address)
            text = f"a connection has at most {most} producers, and {OPENINGS_MAX} that are being opened"
            self._refuse(request_id, Status.TOO_MANY_REQUESTS, text)
            return
        task = self._loop.create_task(self._open(request_id, request), name="fastbk open producer")
        self._openings.add(task)
        task.add_done_callback(self._openings.discard)

    def _drop(self, name: bytes, incarnation: int, path: str) -> None:
        """Forget the number of a producer that lost its owner, and goes on."""
        for producer in list(self.producers.values()):
            if (producer.name, producer.incarnation, producer.owned.path) == (
                name,
                incarnation,
                path,
            ):
                del self.producers[producer.number]
                producer.owned.producers -= 1

    async def _open(self, request_id: int, request: OpenProducer) -> None:
        self._service.openings += 1
        try:
            reply = await self._opened(request)
        except Moved as moved:
            self._refuse(request_id, Status.MOVED, moved.address)
        except NotReady as error:
            self._refuse(request_id, Status.NOT_READY, str(error))
        except Error as error:
            self._refuse(request_id, status_of(error), str(error))
        except Exception as error:  # noqa: BLE001 -- one request's fault must not end the service
            self._service.faults.note(type(error).__name__, reason=repr(error))
            self._refuse(request_id, Status.NOT_READY, f"a fault of the service: {error!r}")
        else:
            self._reply(request_id, Status.OK, reply)
        finally:
            self._service.openings -= 1

    async def _opened(self, request: OpenProducer) -> OpenProducerReply:
        namespace, _ = split_stream_path(request.stream)
        if len(request.name) > NAME_BYTES_MAX:
            raise ConfigError(f"a producer's name has at most {NAME_BYTES_MAX} bytes")
        self._check_right(namespace, request.stream)
        timeout_s = min(request.timeout_ms / 1e3 or OPEN_TIMEOUT_S, OPEN_TIMEOUT_S_MAX)
        owned = await self._service.streams.find(request.stream, timeout_s)
        self._check_right(namespace, request.stream)  # its token may have ended meanwhile (INV-S42)
        incarnation, number, last_number = 0, 0, -1
        if request.name:
            if request.incarnation:
                incarnation = request.incarnation
                last_number = owned.owner.last_number(request.name, incarnation)
            else:
                row = await owned.owner.open(request.name)
                incarnation, last_number = row.incarnation, row.last_number
            number = self._add(request.name, incarnation, namespace, owned)
        return OpenProducerReply(
            producer=number,
            incarnation=incarnation,
            last_number=last_number,
            entry_bytes_max=ENTRY_BYTES_MAX,
            pending_bytes_max=self._service.options.pending_bytes_max,
        )

    def _add(self, name: bytes, incarnation: int, namespace: str, owned: Owned) -> int:
        self._numbers += 1
        producer = Producer(self._numbers, name, incarnation, namespace, owned)
        self._judge(producer)
        if self._transport is not None:
            self.producers[producer.number] = producer
            owned.producers += 1
            self._hold_if_full()
        return producer.number

    def _close_producer(self, request_id: int, number: int) -> None:
        producer = self.producers.pop(number, None)
        if producer is None:
            self._refuse(request_id, Status.BAD_REQUEST)
            return
        owned = producer.owned
        owned.producers -= 1
        if owned.end is None and not owned.is_moving and not producer.pending_bytes:
            owned.owner.close(producer.name, producer.incarnation)
        self._status(request_id, Status.OK)

    # --- frames -------------------------------------------------------------------------------------------------

    def _produce(self, request_id: int, words: list[int], offset: int) -> None:
        producer = self.producers.get(words[offset + serve_codec.WORD_PRODUCER])
        size_bytes = words[offset + serve_codec.WORD_RECORDS] & 0xFFFFFFFF
        if words[offset] >> 16 or producer is None:
            self._refuse(request_id, Status.BAD_REQUEST)
        elif size_bytes > ENTRY_BYTES_MAX:
            self._refuse(request_id, Status.TOO_LARGE)
        elif not producer.is_allowed:  # INV-S42
            self._refuse(request_id, Status.FORBIDDEN)
        elif producer.owned.end is not None:
            self._refuse_end(request_id, producer.owned)
        elif producer.owned.is_moving:  # INV-S41
            self._frames += 1
            owned = producer.owned
            owned.on_end.append(lambda: self._refuse_kept(request_id, owned))
        else:
            self._append(producer, request_id, words, offset)

    def _append(self, producer: Producer, request_id: int, words: list[int], offset: int) -> None:
        body = self._requests.taken(words[offset + serve_codec.WORD_RECORDS])
        size_bytes = len(body)
        service = self._service
        if producer.pending_bytes + size_bytes > service.options.pending_bytes_max and (
            producer.pending_bytes
        ):
            service.limits.note("pending_bytes", address=self.client.address)
            raise ProtocolError(
                f"a producer has more than {service.options.pending_bytes_max} bytes of records unanswered"
            )
        follows = signed(words[offset + serve_codec.WORD_FOLLOWS])
        numbers = self._requests.numbers(words, offset)
        began_s = service.clock_s()
        producer.pending_bytes += size_bytes
        service.memory.take(size_bytes + FRAME_BYTES)
        self._frames += 1
        frame = Frame(producer.name, producer.incarnation, follows, numbers)
        count = len(numbers)

        def answered(future: asyncio.Future[DLSN | None]) -> None:
            producer.pending_bytes -= size_bytes
            error = future.exception()
            if error is None:
                service.figures.stored(count, size_bytes, service.clock_s() - began_s)
                self._stored(request_id, future.result())
            else:
                self._refuse(request_id, status_of(error))
            service.memory.give_back(size_bytes + FRAME_BYTES)
            self._answered()

        producer.owned.owner.produce(frame, body).add_done_callback(answered)

    def _refuse_kept(self, request_id: int, owned: Owned) -> None:
        self._refuse_end(request_id, owned)
        self._answered()

    def _answered(self) -> None:
        self._frames -= 1
        if self._frames <= FRAMES_MAX // 2:
            self._release(_Hold.FRAMES)

    # --- answers ------------------------------------------------------------------------------------------------

    def _stored(self, request_id: int, place: DLSN | None) -> None:
        if place is None:
            self._answers.extend((request_id, 0, 0, 0))
        else:
            self._answers.extend((request_id, 0, place.segment << 32 | place.slot, place.entry))
        self._flush_soon()

    def _refuse_end(self, request_id: int, owned: Owned) -> None:
        """Say where a stream is that is not owned any more."""
        if isinstance(owned.end, Moved):
            self._refuse(request_id, Status.MOVED, owned.end.address)
        else:
            self._refuse(request_id, Status.NOT_READY)

    def _refuse(self, request_id: int, status: Status, text: str = "") -> None:
        self._service.figures.refusals[status_name(status).lower()] += 1
        if text:
            self._reply(request_id, status, ErrorReply(message=text))
        else:
            self._status(request_id, status)

    def _status(self, request_id: int, status: Status) -> None:
        if status == Status.OK:
            self._reply_bytes(serve_codec.put_status(request_id, status))
        else:
            self._answers.extend((request_id, status, 0, 0))
            self._flush_soon()

    def _reply(self, request_id: int, status: Status, reply: Reply) -> None:
        self._reply_bytes(encode_reply(request_id, status, reply))

    def _reply_bytes(self, frame: bytes) -> None:
        self._replies.append(frame)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send all answers of this turn of the loop."""
        self._is_flush_due = False
        answers, self._answers = self._answers, array("Q")
        replies, self._replies = self._replies, []
        if self._transport is None or self._transport.is_closing():
            return
        if answers:
            replies.append(put_answers(answers))
        if replies:
            self._transport.write(b"".join(replies))


class _Denied(Error):
    """The client may not append there."""


_STATUSES: tuple[tuple[type[BaseException], Status], ...] = (
    (NotNext, Status.NOT_NEXT),
    (ProducerFenced, Status.PRODUCER_FENCED),
    (ProducerExpired, Status.PRODUCER_EXPIRED),
    (TooManyProducers, Status.TOO_MANY_PRODUCERS),
    (WrongStreamKind, Status.WRONG_KIND),
    (StreamNotFound, Status.NO_STREAM),
    (StreamSealed, Status.SEALED),
    (QuotaExceeded, Status.OVER_QUOTA),
    (_Denied, Status.FORBIDDEN),
    (ConfigError, Status.BAD_REQUEST),
)


def status_of(error: BaseException) -> Status:
    """Return the status of a request that failed: NOT_READY where the same one may succeed later, or nobody knows."""
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), Status.NOT_READY)
