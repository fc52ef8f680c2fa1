"""A client's connections to write services: one for each, shared by its producers; and the way to a stream's owner.

A service that is frozen takes connections and answers nothing. So who waits for answers asks it to answer a ping, and
gives the connection up when it says nothing for `SILENT_S`: its producers then ask another service, which judges by the
frozen one's beat, and takes the stream over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakKeyDictionary, WeakSet

from fastbk.client.client import Client
from fastbk.client.connecting import TokenRenewal, open_connection
from fastbk.client.connection import Answer, Connection, late
from fastbk.config import split_address
from fastbk.errors import (
    ClientClosed,
    Error,
    NotEnoughBookies,
    NoWriteService,
    ProducerExpired,
    ProducerFenced,
    ProtocolError,
    QuorumTimeout,
    QuotaExceeded,
    RecordTooLarge,
    StreamNotFound,
    StreamSealed,
    TooManyProducers,
    Unauthorized,
    WrongStreamKind,
)
from fastbk.native import client_codec as codec
from fastbk.stream.services import ServiceRecord, ranked, read_services
from fastbk.wire.messages import (
    CloseProducer,
    OpenProducer,
    OpenProducerReply,
    decode_reply,
    encode_close_producer,
    encode_open_producer,
    error_text,
)
from fastbk.wire.statuses import Status, status_name

PING_S = 1.0
SILENT_S = 3.0
"""A service that says nothing for so long, while it is asked, is given up."""
FAILED_S = 5.0
"""For so long a service that was not reached is asked after all others."""
MOVES_MAX = 4
"""How often one attempt follows a service that names another one."""
LISTED_S = 0.1
"""For so long a look at the services in metadata serves all producers of a client: thousands may search at once."""
OPEN_S_MAX = 30.0
"""How long a service may take to take a stream over, before it is asked again."""
_UNREACHED = (NotEnoughBookies, QuorumTimeout, ProtocolError)


class NotReady(NoWriteService):
    """The service cannot take the stream's records now, and says why: it is to be asked again."""


class Served(Protocol):
    """A producer that is open."""

    def fail(self, error: Error) -> None:
        """End it."""

    def block(self, error: Error) -> None:
        """Have it refuse everything, and touch nothing: it lives in a forked child."""


class ServiceLink:
    """One connection to one service, made again when it was lost and somebody wants it."""

    def __init__(self, links: ServiceLinks, service_id: str, address: str) -> None:
        self.service_id = service_id
        self.address = address
        self.connection: Connection | None = None
        self.failed_s = float("-inf")
        """When it was last not reached, by the loop's clock."""
        self._links = links
        self._task: asyncio.Task[Connection] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._received_bytes = 0
        self._silent_ticks = 0

    async def open(self) -> Connection:
        """Return the connection. Raises NotEnoughBookies, QuorumTimeout, ProtocolError, Unauthorized, ClientClosed."""
        if self.connection is not None and self.connection.is_open:
            return self.connection
        task = self._task
        if task is None:
            task = self._task = asyncio.get_running_loop().create_task(
                self._connect(), name=f"fastbk connect service {self.service_id}"
            )
            task.add_done_callback(self._connected)
        await asyncio.wait(
            [task]
        )  # several wait for one attempt, which goes on when one of them gives up
        if task.cancelled():
            raise ClientClosed("the client was closed")
        error = task.exception()
        if error is not None:
            raise error.copy() if isinstance(error, Error) else error
        return task.result()

    async def _connect(self) -> Connection:
        client = self._links.client
        config = client.config
        host, port = split_address(self.address, f"write service {self.service_id}")
        return await open_connection(
            host,
            port,
            bookie_id=self.service_id,
            client_name=config.client_name,
            timeout_s=min(config.connect_timeout, config.probe_timeout),
            slots={},
            on_lost=self._lost,
            on_drained=lambda: None,
            tls=client.pool.tls,
            credentials=config.credentials,
        )

    def _connected(self, task: asyncio.Task[Connection]) -> None:
        self._task = None
        if task.cancelled():
            return
        if task.exception() is not None:
            self.failed()
            return
        self.connection = task.result()
        self._received_bytes = self._silent_ticks = 0
        self._links.renewal.begin()
        self._timer = asyncio.get_running_loop().call_later(PING_S, self._check_silence)

    def failed(self) -> None:
        """Have other services be asked before it, for a while."""
        self.failed_s = asyncio.get_running_loop().time()

    def _check_silence(self) -> None:
        """See whether the service says anything while it is asked. Ticks count, not time: the loop may stand still."""
        connection = self.connection
        if connection is None or not connection.is_open:
            return
        self._timer = asyncio.get_running_loop().call_later(PING_S, self._check_silence)
        received_bytes = connection.traffic.received_bytes
        if received_bytes != self._received_bytes or not connection.is_asking:
            self._received_bytes, self._silent_ticks = received_bytes, 0
            return
        self._silent_ticks += 1
        if self._silent_ticks * PING_S >= SILENT_S:
            self.failed()
            connection.abort(
                f"write service {self.service_id} has said nothing for {SILENT_S:g} s, and is given up"
            )
        elif self._silent_ticks == 1:
            request_id = self._links.next_request_id()
            connection.send_request(request_id, codec.put_ping(request_id), lambda _: None)

    def _lost(self, _: str) -> None:
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def close(self, timeout_s: float) -> None:
        """Send what was written, and close; cut after `timeout_s`."""
        self._stop_timer()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        connection = self.connection
        if connection is not None and connection.is_open:
            connection.close()
            done, _ = await asyncio.wait([connection.closed], timeout=timeout_s)
            if not done:
                connection.abort("the client closed the connection")
                await connection.closed


class ServiceLinks:
    """All links of one client. `client.attached` has it: it ends with the client, and in a forked child.

    Attributes:
        producers: that are open.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.producers: WeakSet[Served] = WeakSet()
        self.renewal = TokenRenewal(client.config, self._open_connections)
        self.next_request_id: Callable[[], int] = client.pool.next_request_id
        self._links: dict[tuple[str, str], ServiceLink] = {}
        self._closed: Error | None = None
        self._listing: asyncio.Task[list[ServiceRecord]] | None = None
        self._listed_s = float("-inf")

    def _open_connections(self) -> list[Connection]:
        connections = (link.connection for link in self._links.values())
        return [
            connection
            for connection in connections
            if connection is not None and connection.is_open
        ]

    def check(self) -> None:
        """Raise ClientClosed if the client is closed, or of another process."""
        if self._closed is not None:
            raise self._closed.copy()

    def link(self, service: ServiceRecord) -> ServiceLink:
        """Return the link to a service. No I/O."""
        self.check()
        place = service.service_id, service.address
        link = self._links.get(place)
        if link is None:
            link = self._links[place] = ServiceLink(self, *place)
        return link

    async def services(self) -> list[ServiceRecord]:
        """Return the services that metadata has, by one look for all who ask at once. Raises MetadataUnavailable."""
        loop, task = asyncio.get_running_loop(), self._listing
        if task is None or (task.done() and loop.time() - self._listed_s >= LISTED_S):
            task = self._listing = loop.create_task(self._list(), name="fastbk list services")
            # Whoever asked may have given up.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait([task])
        if task.cancelled():
            raise ClientClosed("the client was closed")
        error = task.exception()
        if error is not None:
            raise error.copy() if isinstance(error, Error) else error
        return task.result()

    async def _list(self) -> list[ServiceRecord]:
        try:
            listed = await read_services(self.client.records)
        finally:
            self._listed_s = asyncio.get_running_loop().time()
        services = [versioned.service for versioned in listed]
        self._forget_gone(services)
        return services

    def _forget_gone(self, services: Sequence[ServiceRecord]) -> None:
        """Let go of services that metadata has no more, and that are not connected."""
        there = {(service.service_id, service.address) for service in services}
        for place, link in list(self._links.items()):
            is_open = link.connection is not None and link.connection.is_open
            if place not in there and not is_open and link._task is None:
                del self._links[place]

    def mark_forked(self, error: Error) -> None:
        """Have all that is open refuse: its sockets are the parent's."""
        self._closed = error
        for producer in list(self.producers):
            producer.block(error)

    async def close(self, timeout_s: float) -> None:
        """End the producers that are open, and the connections."""
        self._closed = ClientClosed("this client is closed: make a new one")
        error = ClientClosed(
            "the client was closed while a producer was open: close producers first",
            outcome="unknown",
        )
        for producer in list(self.producers):
            producer.fail(error)
        self.renewal.end()
        if self._listing is not None and self._listing.cancel():
            await asyncio.wait([self._listing])
        await asyncio.gather(*(link.close(timeout_s) for link in self._links.values()))


_links: WeakKeyDictionary[Client, ServiceLinks] = WeakKeyDictionary()


def links_of(client: Client) -> ServiceLinks:
    """Return a client's links to write services."""
    links = _links.get(client)
    if links is None:
        links = _links[client] = ServiceLinks(client)
        client.attached.append(links)
    return links


# --- the way to a stream's owner ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Session:
    """A producer at its stream's owner, over one connection."""

    link: ServiceLink
    connection: Connection
    reply: OpenProducerReply


class OwnerSearch:
    """Finds the service that owns a stream, for one producer (fastbk/producers/README.md, "Who owns a stream")."""

    def __init__(self, links: ServiceLinks, stream: str, name: bytes) -> None:
        """`stream`: its path."""
        self._links = links
        self._stream = stream
        self._name = name
        self.hint = ""
        """The address of the service that is to be asked first: the last owner, or whom that named."""

    async def attempt(self, incarnation: int, timeout_s: float) -> Session:
        """Ask the services, in the stream's order, until one takes the producer.

        Raises what may be over soon: NoWriteService, NotReady, MetadataUnavailable. And what is not: WrongStreamKind,
        StreamNotFound, StreamSealed, QuotaExceeded (TooManyProducers), Unauthorized, ClientClosed.
        """
        self._links.check()
        services = await self._links.services()
        trouble: Error | None = None
        for service in self._in_order(services):
            try:
                return await self._open_at(service, services, incarnation, timeout_s)
            except _UNREACHED as error:
                trouble = error
        if trouble is None:
            raise NoWriteService(
                f"{self._stream}: no write service is there, and producers append through one. Start it: `fastbk serve"
                " --metadata ...` (`fastbk dev` has one)"
            )
        raise NoWriteService(
            f"{self._stream}: none of {len(services)} write services is reached ({trouble}): is `fastbk serve` running?"
        ) from trouble

    def _in_order(self, services: list[ServiceRecord]) -> list[ServiceRecord]:
        """Return services in the order of asking: who failed just now comes last, the owner that is known first."""
        now_s = asyncio.get_running_loop().time()

        def place(service: ServiceRecord) -> tuple[bool, bool]:
            has_failed = now_s - self._links.link(service).failed_s < FAILED_S
            return has_failed, service.address != self.hint

        return sorted(ranked(self._stream, services), key=place)

    async def _open_at(
        self,
        service: ServiceRecord,
        services: Sequence[ServiceRecord],
        incarnation: int,
        timeout_s: float,
    ) -> Session:
        """Ask one service, and whom it names."""
        timeout_s = min(timeout_s, OPEN_S_MAX)
        request = OpenProducer(
            stream=self._stream,
            name=self._name,
            incarnation=incarnation,
            timeout_ms=max(1, int(timeout_s * 1000)),
        )
        for _ in range(MOVES_MAX):
            link = self._links.link(service)
            connection = await link.open()
            answer = await self._answer(connection, request, timeout_s)
            if answer.kind == codec.OPEN_PRODUCER_REPLY and answer.status == Status.OK:
                reply = decode_reply(answer.frame)[2]
                if not isinstance(reply, OpenProducerReply):
                    raise ProtocolError(f"write service {service.service_id} answered nonsense")
                self.hint = service.address
                return Session(link, connection, reply)
            if answer.status != Status.MOVED:
                raise refusal(answer, self._stream, self._name)
            self.hint = text_of(answer)
            named = [other for other in services if other.address == self.hint]
            if not named:
                break  # it began a moment ago: it will be listed
            service = named[0]
        raise NotReady(f"{self._stream}: its owner is {self.hint}, and is not found there")

    async def _answer(
        self, connection: Connection, request: OpenProducer, timeout_s: float
    ) -> Answer:
        """Return a service's answer. A name that it opens when nobody waits any more is closed again.

        One that goes on is not: it may have gone on meanwhile, and would be forgotten.
        """
        future: asyncio.Future[Answer | Error] = asyncio.get_running_loop().create_future()

        def on_outcome(outcome: Answer | Error) -> None:
            if not future.done():
                future.set_result(outcome)
            elif (
                not request.incarnation
                and isinstance(outcome, Answer)
                and outcome.kind == codec.OPEN_PRODUCER_REPLY
            ):
                reply = decode_reply(outcome.frame)[2]
                if isinstance(reply, OpenProducerReply):
                    close_producer(self._links, connection, reply.producer)

        request_id = self._links.next_request_id()
        connection.send_request(request_id, encode_open_producer(request_id, request), on_outcome)
        try:
            async with asyncio.timeout(timeout_s):
                outcome = await future
        except TimeoutError:
            raise late(timeout_s) from None
        if isinstance(outcome, Error):
            raise outcome
        return outcome


def close_producer(links: ServiceLinks, connection: Connection, number: int) -> None:
    """Tell a service that a producer on its connection is done."""
    request_id = links.next_request_id()
    frame = encode_close_producer(request_id, CloseProducer(producer=number))
    connection.send_request(request_id, frame, lambda _: None)


def text_of(answer: Answer) -> str:
    """Return what an answer says beside its status."""
    return error_text(answer.frame) if answer.kind == codec.ERROR_REPLY else ""


def refusal(answer: Answer, stream: str, name: bytes) -> Error:
    """Return what a service's refusal means."""
    status, text = answer.status, text_of(answer)
    producer = f"{stream}: producer {name.decode(errors='replace')}"
    if status in (Status.NOT_READY, Status.TOO_MANY_REQUESTS):
        return NotReady(f"{stream}: the write service is not ready: {text or 'no reason given'}")
    if status == Status.PRODUCER_FENCED:
        return ProducerFenced(
            f"{producer} was opened again, and this one has ended. Open it again only if this process is to append"
            " under that name: that fences the other one"
        )
    if status == Status.PRODUCER_EXPIRED:
        return ProducerExpired(
            f"{producer} was silent for longer than its age, and the stream has forgotten it. Open it again: it begins"
            " without a last number"
        )
    if status == Status.TOO_MANY_PRODUCERS:
        return TooManyProducers(text or f"{stream} has as many producers as it may have")
    if status == Status.WRONG_KIND:
        return WrongStreamKind(text or f"{stream} is for one writer, not for producers")
    if status == Status.OVER_QUOTA:
        return QuotaExceeded(text or f"{stream}: its namespace has as many bytes as it may")
    if status == Status.SEALED:
        return StreamSealed(text or f"{stream} has ended: nothing can be appended to it any more")
    if status == Status.NO_STREAM:
        return StreamNotFound(text or f"there is no stream {stream}")
    if status == Status.TOO_LARGE:
        return RecordTooLarge(text or f"{stream}: the records are too large for one entry")
    if status in (Status.UNAUTHORIZED, Status.FORBIDDEN):
        return Unauthorized(f"{stream}: the write service refuses this client: {text}")
    return ProtocolError(f"{stream}: the write service answered {status_name(status)}: {text}")
