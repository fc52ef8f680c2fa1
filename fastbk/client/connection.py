"""One connection to a bookie on an asyncio loop (plain or uvloop): hello, framing, matching answers to requests.

Requests are told apart by their ids, so an abandoned answer is dropped by its id and can never reach another caller.
Ids of adds carry the writer's slot in their upper bits (one encoded frame serves all bookies); all other
requests have ids of slot 0, counted for the whole client.

A bookie that publishes an endpoint of our protocol is spoken to in it. To one that publishes Apache's alone, adds and
plain reads go in the version that the configuration names, everything else in version 3: its answers name their
request, those of version 2 only the entry, so that a plain read's could be taken for a fence's.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, cast

from fastbk.client.config import ClientConfig
from fastbk.client.known_bookies import KnownBookies
from fastbk.errors import Error, NotEnoughBookies, ProtocolError, QuorumTimeout, Unauthorized
from fastbk.meta.api import APACHE_PROTOCOL, Endpoint
from fastbk.model.ids import BookieId, EntryId
from fastbk.native import client_codec as codec
from fastbk.native.client_codec import (
    ANSWER_OVERHEAD_BYTES,
    EVENT_WORDS,
    AnswerBuffer,
    FrameTranslation,
    v2_takes,
)
from fastbk.wire.messages import (
    SASL,
    TOKEN,
    Hello,
    HelloReply,
    decode_hello_reply,
    encode_hello,
    error_text,
)
from fastbk.wire.statuses import Status, status_name

if TYPE_CHECKING:
    from fastbk.security.credentials import Login


# --- request ids of adds --------------------------------------------------------------------------
#
# Request ids of a writer's adds: a slot in the upper bits, the entry id in the lower 40, wrapping.
#
# One encoded frame serves all bookies, so a request id may depend on nothing but writer and entry.
# What is in flight spans far less than 2^39 entries: an answer is about the entry next to the head
# that has its sequence. The highest sequence is left out, so that a run of ids never reaches into
# the next slot.


SLOT_SHIFT = 40
SEQUENCE_MAX = (1 << SLOT_SHIFT) - 1
# The last slot is never given out: translations for Apache's bookies number their own requests in it.
SLOT_MAX = (1 << 64 - SLOT_SHIFT) - 2
_COUNT = SEQUENCE_MAX
_HALF = _COUNT // 2


def first_request_id(slot: int, entry_id: EntryId) -> int:
    """Return the request id of an add of `entry_id` by the writer with that slot."""
    return slot << SLOT_SHIFT | entry_id % _COUNT


def room_before_wrap(entry_id: EntryId) -> int:
    """Return how many consecutive entries from `entry_id` on have consecutive request ids."""
    return _COUNT - entry_id % _COUNT


def entry_of(sequence: int, head: EntryId) -> EntryId:
    """Return the entry id that a sequence stands for; `head`: any id less than 2^39 away from it."""
    return head + (sequence - head + _HALF) % _COUNT - _HALF


def next_slot(last: int, used: Container[int]) -> int:
    """Return the slot after `last` that is not `used`: they come around after 16 million writers of one client."""
    slot = last % SLOT_MAX + 1
    while slot in used:
        slot = slot % SLOT_MAX + 1
    return slot


HELLO_REQUEST_ID = SEQUENCE_MAX
# Bytes that may wait in a transport before its writers pause.
WRITE_BUFFER_BYTES = 1024 * 1024
# What is written in one turn of the loop leaves together up to this; larger pieces are not copied for it.
GATHERED_BYTES_MAX = 64 * 1024
GATHERED_BYTES_EACH = 16 * 1024
# A tail may wait for half a minute without a byte: by probes of the kernel's a host that is gone is found in this time
# and three more intervals, and nothing between forgets the connection.
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 10, 5, 3
_KEEPALIVE = {
    "TCP_KEEPIDLE": KEEPALIVE_IDLE_S,
    "TCP_KEEPINTVL": KEEPALIVE_INTERVAL_S,
    "TCP_KEEPCNT": KEEPALIVE_PROBES,
}
# Received at once, where it is translated.
RECEIVE_BYTES = 256 * 1024


@dataclass(slots=True)
class Answer:
    """One answer to a request other than an add. Bytes are b"" where the answer has none."""

    status: int
    kind: int
    entry_id: int
    lac: int
    fenced: bool
    entries: bytes | memoryview
    extra: bytes
    """ReadBatchReply: sizes, ReadLacReply: LAC body, ListEntriesReply: ranges."""
    frame: bytes
    """Answers that Python reads (hello, info, error, OpenProducerReply) as they came."""
    add_wait_us: int = 0
    """How long normal adds wait there, in recovery adds and ReadBatchReply; 0: none came."""
    segment: int = 0
    """ProduceReply: with `entry_id` and `slot` the place of its first record; 0: all was stored before."""
    slot: int = 0


# Bytes of one unit of an event's word 6.
_EXTRA_UNIT = {codec.READ_BATCH_REPLY: 4, codec.LIST_ENTRIES_REPLY: 16}
_COLD = (codec.HELLO_REPLY, codec.INFO_REPLY, codec.ERROR_REPLY, codec.OPEN_PRODUCER_REPLY)


def answer_of(words: list[int], at: int, answers: AnswerBuffer) -> Answer:
    """Return the answer that the event at `words[at:]` describes."""
    head = words[at]
    kind = head & 0xFFFF
    is_produced = kind == codec.PRODUCE_REPLY
    return Answer(
        status=(head >> 16) & 0xFFFF,
        kind=kind,
        entry_id=codec.signed(words[at + 3]),
        lac=-1 if is_produced else codec.signed(words[at + 4]),
        fenced=bool((head >> 32) & 1),
        entries=answers.taken(words[at + 5]) if words[at + 5] else b"",
        extra=answers.content(words[at + 6], _EXTRA_UNIT.get(kind, 1)) if words[at + 6] else b"",
        frame=answers.content(words[at + 7]) if kind in _COLD else b"",
        add_wait_us=head >> 33,
        segment=words[at + 4] >> 32 if is_produced else 0,
        slot=words[at + 4] & 0xFFFFFFFF if is_produced else 0,
    )


def entries_in(answer: Answer) -> int:
    """Return how many entries came in an answer, good or bad."""
    if not answer.entries:
        return 0
    return len(answer.extra) // 4 if answer.kind == codec.READ_BATCH_REPLY else 1


def _keep_alive(sock: socket.socket | None) -> None:
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):  # not on all systems that clients run on
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def late(timeout_s: float) -> QuorumTimeout:
    """Return the error of a request that was not answered in time."""
    return QuorumTimeout(f"no answer within {timeout_s:.3g} s")


class Traffic:
    """What went between this client and a bookie, or several of them.

    Attributes:
        received_bytes, sent_bytes: all bytes of the connections, without TLS.
        read_entries: in answers, also those that failed their digest or came too late.
        stored_copies: copies that bookies acknowledged.
    """

    FIELDS = ("received_bytes", "sent_bytes", "read_entries", "stored_copies")
    __slots__ = FIELDS

    def __init__(self) -> None:
        self.received_bytes = 0
        self.sent_bytes = 0
        self.read_entries = 0
        self.stored_copies = 0

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """All of `FIELDS`."""
        return self.received_bytes, self.sent_bytes, self.read_entries, self.stored_copies


class AddListener(Protocol):
    """Who is told about answers to adds of one slot."""

    def add_answered(self, bookie_id: str, first_sequence: int, count: int, status: int) -> None:
        """Adds [first, first + count) of this slot were answered with `status` by that bookie."""


class Connection(asyncio.BufferedProtocol):
    """A connection after `open_connection`; `on_lost(reason)` is called once when it ends.

    With `apache` it speaks Apache's protocol outside, and ours to everybody in here.
    """

    def __init__(
        self,
        slots: dict[int, AddListener],
        on_lost: Callable[[str], None],
        on_drained: Callable[[], None],
        apache: ApacheTranslation | None = None,
    ) -> None:
        self.hello: HelloReply | None = None
        self.bookie_id = ""
        self.token = b""
        """What its client was authenticated by last; empty: by no token."""
        self.tags_shown: dict[int, int] = {}
        """Ledgers whose tags the bookie has seen, in that order, and the requests' ids (`ledger_tags.py`)."""
        self.traffic = Traffic()
        """What counts it; all of a bookie's connections share one, which their channels give them."""
        self.reports_pending = 0
        """Reports that are not answered yet (`ensembles.py`)."""
        self.is_paused = False
        self.is_open = False
        self.answers_dropped = 0
        self._slots = slots
        self._on_lost = on_lost
        self._on_drained = on_drained
        self._answers = AnswerBuffer()
        self._apache = apache
        self._received = memoryview(bytearray(RECEIVE_BYTES if apache is not None else 0))
        if apache is not None:
            self._answers.frame_size_bytes_max = apache.answer_size_bytes_max
        self._pending: dict[int, Callable[[Answer | Error], None]] = {}
        self._transport: asyncio.Transport | None = None
        self._reason = "the connection was closed"
        self._loop = asyncio.get_running_loop()
        self._gathered: list[bytes | bytearray | memoryview] = []
        self._gathered_bytes = 0
        self._is_gathering = False
        self.closed: asyncio.Future[None] = self._loop.create_future()

    @property
    def speaks_apache(self) -> bool:
        """Whether the bookie speaks Apache's protocol only."""
        return self._apache is not None

    @property
    def holds_frames(self) -> bool:
        """Whether frames wait for the end of the loop's turn. Any thread may ask."""
        return bool(self._gathered)

    @property
    def is_asking(self) -> bool:
        """Whether requests other than adds wait for their answers."""
        return bool(self._pending)

    # --- called by the loop ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport and say who we are."""
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self.is_open = True
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        _keep_alive(self._transport.get_extra_info("socket"))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to receive into."""
        return self._answers.free() if self._apache is None else self._received

    def buffer_updated(self, nbytes: int) -> None:
        """Take in what was received: one call of C, then a few events."""
        self.traffic.received_bytes += nbytes
        try:
            if self._apache is None:
                self._answers.received(nbytes)
            else:
                translation = self._apache.translation
                translation.receive(self._received[:nbytes])
                self._send_output(translation)
                self._answers.feed(translation.answers())
            self._parse()
        except ProtocolError as error:
            self.abort(str(error))

    def _parse(self) -> None:
        answers, slots = self._answers, self._slots
        while words := answers.parse():
            for offset in range(0, len(words), EVENT_WORDS):
                head, request_id, count = words[offset : offset + 3]
                listener = slots.get(request_id >> SLOT_SHIFT)
                if listener is None:
                    self._take(words, offset)
                else:
                    sequence, status = request_id & SEQUENCE_MAX, (head >> 16) & 0xFFFF
                    if status == Status.OK:
                        self.traffic.stored_copies += count
                    listener.add_answered(self.bookie_id, sequence, count, status)

    def _send_output(self, translation: FrameTranslation) -> None:
        output = translation.output()
        if output and self._transport is not None:
            self._transport.write(output)

    def _write_translated(
        self, translation: FrameTranslation, frames: bytes | bytearray | memoryview
    ) -> None:
        try:
            translation.send(frames)
        except ProtocolError as error:
            self.abort(str(error))
            return
        self._send_output(translation)
        # What could not be asked is answered here; nobody is told before this returns.
        if answers := translation.answers():
            self._loop.call_soon(self._take_own, answers)

    def _take_own(self, answers: bytes) -> None:
        if self.is_open:
            self._answers.feed(answers)
            self._parse()

    def _take(self, words: list[int], at: int) -> None:
        """Take an answer to anything but an add of an open writer."""
        head, request_id, count = words[at : at + 3]
        if request_id >> SLOT_SHIFT:
            return
        if request_id == 0 and head & 0xFFFF in (codec.STATUS_ONLY, codec.ERROR_REPLY):
            self._complaint(answer_of(words, at, self._answers))
            return
        answer: Answer | None = None
        for one in range(request_id, request_id + count):
            tell = self._pending.pop(one, None)
            if tell is None:
                self.answers_dropped += 1
                continue
            if answer is None:
                answer = answer_of(words, at, self._answers)
                self.traffic.read_entries += entries_in(answer)
            tell(answer)

    def _complaint(self, answer: Answer) -> None:
        """The bookie could not make sense of a frame: it will close, and this is why."""
        text = error_text(answer.frame) if answer.kind == codec.ERROR_REPLY else ""
        self.abort(f"the bookie refused a frame: {status_name(answer.status)} {text}".strip())

    def pause_writing(self) -> None:
        """Stop taking adds: the bookie does not read fast enough."""
        self.is_paused = True

    def resume_writing(self) -> None:
        """Go on."""
        self.is_paused = False
        self._on_drained()

    def eof_received(self) -> bool:
        """Let the transport close itself."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what is pending and tell the owner."""
        was_made = self._transport is not None
        self.is_open = False
        self._transport = None
        if exc is not None:
            self._reason = f"the connection was lost: {exc}"
        if self._apache is not None:
            self._apache.lost()
        pending, self._pending = self._pending, {}
        for tell in pending.values():
            tell(NotEnoughBookies(self._reason))
        if not self.closed.done():
            self.closed.set_result(None)
        if was_made:  # a handshake that fails behind START_TLS ends here, too
            self._on_lost(self._reason)

    # --- called by the client ----------------------------------------------------------------------------------

    def write(self, frames: bytes | bytearray | memoryview) -> None:
        """Send whole frames; they must not be changed afterwards. Nothing happens once the connection is lost.

        The first ones of a turn of the loop are sent at once. What follows in the same turn, as where thousands of
        writers share the connection, leaves together at its end: a send costs more than all else of a small add.
        """
        # A transport that failed says so with the loop's next turn, and complains of what is written until then.
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self.traffic.sent_bytes += len(frames)
        if self._apache is not None:
            self._write_translated(self._apache.translation, frames)
        elif not self._is_gathering:
            transport.write(frames)
            self._is_gathering = True
            self._loop.call_soon(self._end_gathering)
        elif len(frames) < GATHERED_BYTES_EACH:
            self._gathered.append(frames)
            self._gathered_bytes += len(frames)
            if self._gathered_bytes >= GATHERED_BYTES_MAX:
                self._send_gathered()
        else:
            self._send_gathered()
            transport.write(frames)

    def _end_gathering(self) -> None:
        self._is_gathering = False
        if self._gathered:
            self._send_gathered()

    def _send_gathered(self) -> None:
        if self._gathered and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(self._gathered))
        self._gathered.clear()
        self._gathered_bytes = 0

    def send_request(
        self, request_id: int, frame: bytes | bytearray, tell: Callable[[Answer | Error], None]
    ) -> None:
        """Send one request; `tell` gets its answer, or NotEnoughBookies when the connection is lost, once.

        Never called before this returns. A request that was forgotten meanwhile is told nothing.
        """
        if self._transport is None:
            self._loop.call_soon(tell, NotEnoughBookies(self._reason))
            return
        self._pending[request_id] = tell
        self.write(frame)

    def forget(self, request_id: int) -> None:
        """Drop the answer to a request when it comes."""
        was_pending = self._pending.pop(request_id, None) is not None
        if was_pending and self._apache is not None:
            self._apache.translation.forget(request_id)

    async def request(self, request_id: int, frame: bytes | bytearray, timeout_s: float) -> Answer:
        """Send one request and return its answer.

        Raises NotEnoughBookies when the connection is lost, QuorumTimeout at the deadline. A cancelled request's
        answer is dropped when it comes.
        """
        future: asyncio.Future[Answer | Error] = self._loop.create_future()

        def on_outcome(outcome: Answer | Error) -> None:
            if not future.done():
                future.set_result(outcome)

        self.send_request(request_id, frame, on_outcome)
        try:
            async with asyncio.timeout(timeout_s):
                outcome = await future
        except TimeoutError:
            raise late(timeout_s) from None
        finally:
            self.forget(request_id)
        if isinstance(outcome, Error):
            raise outcome
        return outcome

    def abort(self, reason: str) -> None:
        """Close at once; `on_lost` follows."""
        self._reason = reason
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close after what was written has left."""
        self._reason = "the client closed the connection"
        self._send_gathered()
        if self._transport is not None:
            self._transport.close()

    async def send_hello(
        self, client_name: str, timeout_s: float, login: Login | None = None
    ) -> HelloReply:
        """Begin the protocol: magic, hello, the bookie's limits, and authentication by `login`."""
        if self._apache is not None:
            frame = codec.put_hello(HELLO_REQUEST_ID, client_name)
            answer = await self.request(HELLO_REQUEST_ID, frame, timeout_s)
            self.hello = self._apache.greeted(answer.status)
            return self.hello
        self.write(codec.MAGIC)
        self.hello = await self._greet(client_name, timeout_s, login)
        self._answers.frame_size_bytes_max = self.hello.frame_size_bytes_max
        return self.hello

    async def renew(self, client_name: str, timeout_s: float, login: Login) -> None:
        """Give the bookie a new token in the place of the one of the hello."""
        if self._apache is None:
            await self._greet(client_name, timeout_s, login)

    async def _greet(self, client_name: str, timeout_s: float, login: Login | None) -> HelloReply:
        if login is None:
            return await self._say(codec.put_hello(HELLO_REQUEST_ID, client_name), timeout_s)
        payload: bytes | None = login.payload
        while payload is not None:
            hello = Hello(client_name=client_name, auth_method=login.method, auth_payload=payload)
            self.tags_shown.clear()  # as the bookie does
            reply = await self._say(encode_hello(HELLO_REQUEST_ID, hello), timeout_s)
            if login.method == SASL and not payload and not reply.auth_payload:
                break  # the bookie does not authenticate its clients
            payload = login.answer(reply.auth_payload)
        if login.method == TOKEN:
            self.token = login.payload
        return reply

    async def _say(self, frame: bytes | bytearray, timeout_s: float) -> HelloReply:
        answer = await self.request(HELLO_REQUEST_ID, frame, timeout_s)
        if answer.kind != codec.HELLO_REPLY or answer.status != Status.OK:
            text = error_text(answer.frame) if answer.kind == codec.ERROR_REPLY else ""
            if answer.status == Status.UNAUTHORIZED:
                raise Unauthorized(f"the bookie does not serve this client: {text}")
            raise ProtocolError(
                f"the bookie refused the hello: {status_name(answer.status)} {text}".strip()
            )
        return decode_hello_reply(answer.frame)


# --- Apache's bookies ------------------------------------------------------------------------------


Use: TypeAlias = Literal["adds", "reads", "others"]
"""What a connection is for; `others`: what is not asked in version 2."""


class ApacheTranslation:
    """The translation of one connection to one of Apache's bookies."""

    def __init__(
        self, config: ClientConfig, known: KnownBookies, bookie_id: BookieId, use: Use
    ) -> None:
        self._known = known
        self._bookie_id = bookie_id
        self._frame_size_bytes_max = config.apache_frame_size_bytes_max
        version = 2 if config.apache_protocol == "v2" and use != "others" else 3
        self.translation = FrameTranslation(
            version,
            config.apache_frame_size_bytes_max,
            takes_batches=bookie_id not in known.without_batches,
        )
        self.answer_size_bytes_max = config.apache_frame_size_bytes_max + ANSWER_OVERHEAD_BYTES

    def greeted(self, status: int) -> HelloReply:
        """Return what stands for a hello's answer: Apache's bookies have none. Raises ProtocolError."""
        if status != Status.OK:
            raise ProtocolError(
                f"the bookie refused the connection: {status_name(status)}; one of Apache's that wants authentication"
                " is not supported"
            )
        return HelloReply(
            version=0,
            frame_size_bytes_max=self._frame_size_bytes_max,
            batch_entry_count_max=1,
            pending_requests_max=0,
            incarnation=0,
            bookie_id=self._bookie_id,
            software="",
        )

    def lost(self) -> None:
        """The connection has ended: a bookie too old for reads of several entries ends it instead of answering one."""
        translation = self.translation
        if translation.has_answered_batches:
            self._known.with_batches.add(self._bookie_id)
        elif translation.has_unanswered_batches and self._bookie_id not in self._known.with_batches:
            self._known.without_batches.add(self._bookie_id)


def translation_of(
    config: ClientConfig, known: KnownBookies, bookie_id: BookieId, endpoint: Endpoint, use: Use
) -> ApacheTranslation | None:
    """Return the translation of a new connection to `endpoint`, None where the bookie speaks our protocol."""
    if endpoint.protocol != APACHE_PROTOCOL:
        return None
    return ApacheTranslation(config, known, bookie_id, use)


def use_of(
    config: ClientConfig,
    known: KnownBookies,
    bookie_id: BookieId,
    frame: bytes | bytearray,
) -> Use:
    """Return which connection a request other than a writer's add goes by."""
    if config.apache_protocol != "v2":
        return "reads"
    endpoint = known.endpoint(bookie_id)
    if endpoint is not None and endpoint.protocol != APACHE_PROTOCOL:
        return "reads"
    return "reads" if v2_takes(frame) else "others"
