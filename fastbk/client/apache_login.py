"""SASL with Apache's bookies: AUTH messages of version 3, which a channel of version 2 may begin with, too.

A bookie without authentication answers the first one with a plugin of that meaning, and serves.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.errors import ProtocolError
from fastbk.model import protobuf

if TYPE_CHECKING:
    from fastbk.security.credentials import Login

PLUGIN, NO_PLUGIN = b"sasl", b"AuthDisabledPlugin"
REPLY_BYTES_MAX = 8192
EOK, EUA = 0, 502
AUTH = 5
_HEADER = bytes.fromhex("0a06 080310051800")
"""Of version 3, operation AUTH, transaction 0."""
# Numbers of fields: of a reply, of its header, of its authentication.
_HEADER_FIELD, _STATUS_FIELD, _AUTH_FIELD = 1, 2, 102
_OPERATION_FIELD = 2
_PLUGIN_FIELD, _PAYLOAD_FIELD = 1, 2


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
        self._end(ConnectionError(0, reason))

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
            raise ProtocolError(
                f"it authenticates by {reply.plugin[:40]!r}: only sasl is known here"
            )
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
    message, body = bytearray(), bytearray(_HEADER)
    protobuf.put_bytes(message, _PLUGIN_FIELD, PLUGIN)
    protobuf.put_bytes(message, _PAYLOAD_FIELD, payload)
    protobuf.put_bytes(body, _AUTH_FIELD, bytes(message))
    return len(body).to_bytes(4, "big") + body


@dataclass(frozen=True, slots=True)
class _Reply:
    operation: int
    status: int
    plugin: bytes
    payload: bytes


def _reply_of(body: bytes) -> _Reply:
    """Return a reply's parts. Raises ProtocolError."""
    try:
        reply = _fields(body)
        header = _fields(reply[_HEADER_FIELD].content()) if _HEADER_FIELD in reply else {}
        message = _fields(reply[_AUTH_FIELD].content()) if _AUTH_FIELD in reply else {}
        return _Reply(
            operation=header[_OPERATION_FIELD].integer() if _OPERATION_FIELD in header else 0,
            status=reply[_STATUS_FIELD].integer() if _STATUS_FIELD in reply else -1,
            plugin=message[_PLUGIN_FIELD].content() if _PLUGIN_FIELD in message else b"",
            payload=message[_PAYLOAD_FIELD].content() if _PAYLOAD_FIELD in message else b"",
        )
    except ValueError as error:
        raise ProtocolError(
            f"its answer to the authentication is none of Apache's protocol: {error}"
        ) from None


def _fields(message: bytes) -> dict[int, protobuf.Field]:
    return {one.number: one for one in protobuf.fields(message)}
