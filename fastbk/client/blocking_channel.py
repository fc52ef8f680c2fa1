"""A connection for callers without an event loop: a plain socket, driven by a `Reactor`.

Everything that waits does so in `socket` and `select.poll`, looked up when called, so that gevent's patches take
effect. One reactor serves a client; whoever waits runs it. The protocol's state machines and the codec are the same
as the asyncio client's.
"""

from __future__ import annotations

import errno
import random
import select
import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

from fastbk.client.bookie_pool import ChannelListener
from fastbk.client.connection import (
    HELLO_REQUEST_ID,
    RECEIVE_BYTES,
    SEQUENCE_MAX,
    SLOT_SHIFT,
    WRITE_BUFFER_BYTES,
    AddListener,
    Answer,
    answer_of,
)
from fastbk.client.lanes import BookieLane, Use
from fastbk.errors import Error, NotEnoughBookies, ProtocolError
from fastbk.model.ids import BookieId
from fastbk.native import client_codec as codec
from fastbk.native.apache_lane import ApacheLane
from fastbk.native.client_codec import EVENT_WORDS, AnswerBuffer
from fastbk.wire.messages import HelloReply, decode_hello_reply, error_text
from fastbk.wire.statuses import Status, status_name

_POLL_S_MAX = 1.0


if TYPE_CHECKING:
    from fastbk.client.blocking import Reactor


class BlockingChannel:
    """One connection to one bookie: down, connecting, greeting or up. Driven by a `Reactor`."""

    def __init__(self, reactor: Reactor, bookie_id: BookieId, use: Use) -> None:
        self.bookie_id = bookie_id
        self.use = use
        self.hello: HelloReply | None = None
        self.is_up = False
        self.reason = "not connected yet"
        self.listeners: list[ChannelWatcher] = []
        self.next_try_s = 0.0
        self.answers: dict[int, Answer | Error | None] = {}
        self._reactor = reactor
        self._socket: socket.socket | None = None
        self._connected = False
        self._out: deque[memoryview] = deque()
        self._out_bytes = 0
        self._buffer = AnswerBuffer()
        self._lane: BookieLane | None = None
        self._received = memoryview(bytearray())
        # What the lane answered itself; taken in when the reactor runs.
        self._own_answers: list[bytes] = []
        self._deadline_s = 0.0
        self._tries = 0

    @property
    def is_writable(self) -> bool:
        """Whether adds may be written now."""
        return self.is_up and self._out_bytes < WRITE_BUFFER_BYTES

    @property
    def is_wanted(self) -> bool:
        """Whether the channel is to be made again when it is down."""
        return bool(self.listeners)

    @property
    def file(self) -> int:
        """The socket's descriptor, -1 while there is none."""
        return -1 if self._socket is None else self._socket.fileno()

    @property
    def wants_out(self) -> bool:
        """Whether to wait for the socket to take more."""
        return not self._connected or bool(self._out)

    def start(self, now_s: float) -> None:
        """Begin to connect if it is down and the pause after the last try is over."""
        if self._socket is not None or now_s < self.next_try_s:
            return
        try:
            endpoint = self._reactor.address(self.bookie_id, fresh=self._tries > 0)
            found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
            family, kind, protocol, _, where = found[0]
            self._socket = socket.socket(family, kind, protocol)
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = self._socket.connect_ex(where)
            self._lane = self._reactor.lane(self.bookie_id, endpoint, self.use)
            if self._lane is not None:
                self._buffer.frame_size_bytes_max = self._lane.answer_size_bytes_max
                self._received = memoryview(bytearray(RECEIVE_BYTES))
        except OSError as error:
            self.lose(f"{error.strerror or error}")
            return
        except Error as error:
            self.lose(str(error))
            return
        self._deadline_s = now_s + self._reactor.config.connect_timeout
        if code not in (0, errno.EINPROGRESS):
            self.lose(errno.errorcode.get(code, str(code)))

    def write(self, frames: bytes | bytearray | memoryview) -> None:
        """Send frames as far as the socket takes them; the rest follows when the reactor runs."""
        if self._socket is None:
            return
        if self._lane is not None:
            translation = self._lane.translation
            try:
                translation.ask(frames)
            except ProtocolError as error:
                self.lose(str(error))
                return
            if answers := translation.answers():
                self._own_answers.append(answers)
            frames = translation.output()
        self._send_or_keep(memoryview(frames))

    def _send_or_keep(self, view: memoryview) -> None:
        if not self._out and self._connected:
            view = view[self._send(view) :]
        if len(view):
            self._out.append(view)
            self._out_bytes += len(view)

    def _send(self, view: memoryview) -> int:
        if self._socket is None:
            return len(view)
        try:
            return self._socket.send(view)
        except BlockingIOError:
            return 0
        except OSError as error:
            self.lose(f"the connection was lost: {error.strerror or error}")
            return len(view)

    def flush_out(self) -> None:
        """Send what waits."""
        while self._out:
            taken = self._send(self._out[0])
            if not self._out:
                return
            self._out_bytes -= taken
            if taken < len(self._out[0]):
                self._out[0] = self._out[0][taken:]
                return
            self._out.popleft()
        for listener in list(self.listeners):
            if self.is_up:
                listener.channel_drained(self.bookie_id)

    def handle(self, events: int) -> None:
        """Do what poll said is possible."""
        if self._socket is None:
            return
        if not self._connected:
            code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self.lose(f"{errno.errorcode.get(code, str(code))}")
                return
            if not events & select.POLLOUT:
                return
            self._connected = True
            hello = codec.put_hello(HELLO_REQUEST_ID, self._reactor.config.client_name)
            self.write(hello if self._lane is not None else codec.MAGIC + hello)
            return
        if events & select.POLLOUT:
            self.flush_out()
        if events & (select.POLLIN | select.POLLHUP | select.POLLERR):
            self._receive()

    def _receive(self) -> None:
        try:
            while self._socket is not None:
                room = self._buffer.free() if self._lane is None else self._received
                size = self._socket.recv_into(room)
                if size == 0:
                    self.lose("the bookie closed the connection")
                    return
                if self._lane is None:
                    self._buffer.received(size)
                else:
                    self._hear(self._lane.translation, room[:size])
                self._parse()
                if size < len(room):
                    return
        except BlockingIOError:
            return
        except OSError as error:
            self.lose(f"the connection was lost: {error.strerror or error}")
        except ProtocolError as error:
            self.lose(str(error))

    def _hear(self, translation: ApacheLane, data: memoryview) -> None:
        translation.hear(data)
        answers = translation.answers()
        if output := translation.output():
            self._send_or_keep(memoryview(output))
        self._buffer.feed(answers)

    def take_own_answers(self) -> bool:
        """Take in what was answered without the bookie; return whether there was anything."""
        own, self._own_answers = self._own_answers, []
        for answers in own:
            self._buffer.feed(answers)
            self._parse()
        return bool(own)

    def forget(self, request_id: int) -> None:
        """Drop the answer to a request when it comes."""
        was_pending = request_id in self.answers and self.answers.pop(request_id) is None
        if was_pending and self._lane is not None:
            self._lane.translation.forget(request_id)

    def _parse(self) -> None:
        while words := self._buffer.parse():
            for at in range(0, len(words), EVENT_WORDS):
                self._take(words, at)

    def _take(self, words: list[int], at: int) -> None:
        request_id = words[at + 1]
        slot = request_id >> SLOT_SHIFT
        if slot:
            listener = self._reactor.slots.get(slot)
            if listener is not None:
                status = (words[at] >> 16) & 0xFFFF
                listener.add_answered(
                    self.bookie_id, request_id & SEQUENCE_MAX, words[at + 2], status
                )
            return
        answer = answer_of(words, at, self._buffer)
        if request_id == 0 and answer.kind in (codec.STATUS_ONLY, codec.ERROR_REPLY):
            raise ProtocolError(f"the bookie refused a frame: {status_name(answer.status)}")
        if request_id == HELLO_REQUEST_ID:
            if not self.is_up:
                self._greeted(answer)
            return
        for one in range(request_id, request_id + words[at + 2]):
            if one in self.answers:
                self.answers[one] = answer

    def _greeted(self, answer: Answer) -> None:
        hello = self._hello_in(answer)
        if hello.bookie_id != self.bookie_id:
            raise ProtocolError(f"there is bookie {hello.bookie_id!r}, not {self.bookie_id!r}")
        reactor = self._reactor
        reason = reactor.known.check_incarnation(self.bookie_id, hello.incarnation, reactor.slots)
        if reason is not None:
            raise ProtocolError(reason)
        self.hello = hello
        if self._lane is None:
            self._buffer.frame_size_bytes_max = hello.frame_size_bytes_max
        self.is_up = True
        self._tries = 0
        for listener in list(self.listeners):
            listener.channel_ready(self.bookie_id)

    def _hello_in(self, answer: Answer) -> HelloReply:
        if self._lane is not None:
            return self._lane.greeted(answer.status)
        if answer.kind != codec.HELLO_REPLY or answer.status != Status.OK:
            text = error_text(answer.frame) if answer.kind == codec.ERROR_REPLY else ""
            raise ProtocolError(
                f"the bookie refused the hello: {status_name(answer.status)} {text}"
            )
        return decode_hello_reply(answer.frame)

    def check_deadline(self, now_s: float) -> None:
        """Give up a connection that does not come up in time."""
        if self._socket is not None and not self.is_up and now_s > self._deadline_s:
            self.lose(f"no hello within {self._reactor.config.connect_timeout:g} s")

    def lose(self, reason: str) -> None:
        """The connection is gone: fail what waits and tell the listeners."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        was_up = self.is_up
        self.is_up = self._connected = False
        self.hello = None
        self._out.clear()
        self._out_bytes = 0
        self._buffer = AnswerBuffer()
        if self._lane is not None:
            self._lane.lost()
            self._lane = None
        self._own_answers.clear()
        self.reason = reason
        if not was_up:
            self._reactor.known.failed(self.bookie_id, time.monotonic())
        config = self._reactor.config
        wait_s = min(config.backoff_max, config.backoff_min * 2 ** min(self._tries, 20))
        self._tries += 1
        self.next_try_s = time.monotonic() + wait_s * random.uniform(0.75, 1.25)
        for request_id, answer in self.answers.items():
            if answer is None:
                self.answers[request_id] = NotEnoughBookies(reason)
        for listener in list(self.listeners):
            listener.channel_lost(self.bookie_id, reason)

    def close(self, deadline_s: float) -> None:
        """Send what waits until the deadline, then close."""
        while self._out and self._connected and time.monotonic() < deadline_s:
            poll = select.poll()
            poll.register(self.file, select.POLLOUT)
            if not poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000):
                break
            self.flush_out()
        self.listeners.clear()
        self.lose("the client closed the connection")


class ChannelWatcher(ChannelListener, AddListener, Protocol):
    """A writer, as its channels see it: told about them and about answers."""
