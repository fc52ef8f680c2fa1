"""SASL with Apache's bookies: AUTH messages of version 3, which a channel of version 2 may begin with, too.

A bookie without authentication answers the first one with a plugin of that meaning, and serves.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.errors import NotEnoughBookies, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastbk.auth.credentials import Login

PLUGIN, NO_PLUGIN = b"sasl", b"AuthDisabledPlugin"
REPLY_BYTES_MAX = 8192
EOK, EUA = 0, 502
AUTH = 5
_HEADER = bytes.fromhex("0a06 080310051800")
"""Of version 3, operation AUTH, transaction 0."""
_HEADER_TAG, _AUTH_TAG = 1 << 3 | 2, 102 << 3 | 2
_STATUS_TAG = _OPERATION_TAG = 2 << 3
_PLUGIN_TAG, _PAYLOAD_TAG = 1 << 3 | 2, 2 << 3 | 2


class ApacheLogin(asyncio.Protocol):
    """Has a connection until it is authenticated: await `done`, then give the transport its own protocol."""

    def __init__(self, login: Login) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._login = login
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def begin(self, transport: asyncio.Transport) -> None:
        """Send the first message."""
        self._transport = transport
        transport.write(_request(self._login.payload))

    def data_received(self, data: bytes) -> None:
        """Take a reply, in pieces or whole."""
        self._received += data
        try:
            while (body := self._next_reply()) is not None:
                reply = _reply_of(body)
                # Apache's bookies also say that nobody has authenticated yet when TLS begins: START_TLS, EIO.
                if reply.operation == AUTH:
                    self._take(reply)
        except ProtocolError as error:
            self._end(error)

    def _next_reply(self) -> bytes | None:
        size_bytes = int.from_bytes(self._received[:4], "big")
        if size_bytes > REPLY_BYTES_MAX:
            raise ProtocolError("its answer to the authentication is too long")
        if len(self._received) < 4 + size_bytes or len(self._received) < 4:
            return None
        body, self._received = self._received[4 : 4 + size_bytes], self._received[4 + size_bytes :]
        return body

    def connection_lost(self, exc: Exception | None) -> None:
        """The bookie has ended it."""
        reason = f"it ended the connection instead of authenticating: {exc or 'does it take SASL, and this user?'}"
        self._end(NotEnoughBookies(reason))

    def _take(self, reply: _Reply) -> None:
        if self.done.done():
            raise ProtocolError("it sent more than its answer to the authentication")
        if reply.status != EOK:
            raise ProtocolError(
                "it does not accept the user or the password" if reply.status == EUA
                else f"it answered the authentication with {reply.status}"
            )  # fmt: skip
        if reply.plugin == NO_PLUGIN:
            self._end(None)
            return
        if reply.plugin != PLUGIN:
            raise ProtocolError(f"it authenticates by {reply.plugin[:40]!r}: only sasl is known here")
        answer = self._login.answer(reply.payload)
        if answer is None:
            self._end(None)
        elif self._transport is not None:
            self._transport.write(_request(answer))

    def _end(self, error: Exception | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


def _request(payload: bytes) -> bytes:
    message = _field(_PLUGIN_TAG, PLUGIN) + _field(_PAYLOAD_TAG, payload)
    body = _HEADER + _field(_AUTH_TAG, message)
    return len(body).to_bytes(4, "big") + body


@dataclass(frozen=True, slots=True)
class _Reply:
    operation: int
    status: int
    plugin: bytes
    payload: bytes


def _reply_of(body: bytes) -> _Reply:
    """Return a reply's parts. Raises ProtocolError."""
    numbers, parts = _parts(body)
    header, _ = _parts(parts.get(_HEADER_TAG, b""))
    _, message = _parts(parts.get(_AUTH_TAG, b""))
    return _Reply(
        operation=header.get(_OPERATION_TAG, 0),
        status=numbers.get(_STATUS_TAG, -1),
        plugin=message.get(_PLUGIN_TAG, b""),
        payload=message.get(_PAYLOAD_TAG, b""),
    )


def _parts(message: bytes) -> tuple[dict[int, int], dict[int, bytes]]:
    """Return the numbers and the bytes of a message, by their tags."""
    numbers: dict[int, int] = {}
    texts: dict[int, bytes] = {}
    for tag, value in _fields(message):
        if isinstance(value, int):
            numbers[tag] = value
        else:
            texts[tag] = value
    return numbers, texts


def _field(tag: int, value: bytes) -> bytes:
    return _varint(tag) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        value, at = _read_varint(message, at)
        if tag & 7 == 0:
            yield tag, value
        elif tag & 7 == 2 and value <= len(message) - at:
            yield tag, message[at : at + value]
            at += value
        else:
            raise ProtocolError("its answer to the authentication is none of Apache's protocol")


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if at == len(message):
            break
        value |= (message[at] & 127) << shift
        at += 1
        if message[at - 1] < 128:
            return value, at
    raise ProtocolError("its answer to the authentication is none of Apache's protocol")
