"""Opens connections to bookies, logs in to Apache's, and gives all of them a client's new token.

Connections are in the clear, with TLS from the first byte, or upgraded as Apache's bookies want it.

With TLS configured nothing but the request to upgrade is ever sent in the clear, and nobody who has not shown a
certificate for the host is spoken to: what somebody between the two answers or takes away can only end the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastbk.client.connection import AddListener, Connection
from fastbk.errors import ConfigError, Error, NotEnoughBookies, ProtocolError, QuorumTimeout
from fastbk.model import protobuf
from fastbk.observe.library_log import LibraryLog
from fastbk.security.credentials import TOKEN, Login
from fastbk.security.tls import Stamp, stamp_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fastbk.client.config import ClientConfig
    from fastbk.client.connection import ApacheTranslation
    from fastbk.security.credentials import Credentials
    from fastbk.security.tls import RefreshedContext

_log = LibraryLog("fastbk.client")

SHUTDOWN_TIMEOUT_S = 2.0
"""How long a bookie may take to say that it has read all before TLS ends."""
APACHE_SHUTDOWN_TIMEOUT_S = 0.1
"""The same of Apache's bookies: with TLS 1.3 Java does not say it."""
START_TLS_REQUEST = bytes.fromhex("0000000b 0a06 080310091800 d20600")
"""Version 3's request of that name, in its transaction 0: header and an empty body. Version 2 has none of its own."""
START_TLS_DONE = bytes.fromhex("0a06 080310091800 1000")
"""A reply begins with that, behind its length, when TLS is what follows it."""
START_TLS_REPLY_BYTES_MAX = 1024


class EndedUnauthenticated(NotEnoughBookies):
    """The bookie ended the connection before it knew who the client is: it may have been short of room (INV-N6)."""


async def open_connection(
    host: str,
    port: int,
    *,
    bookie_id: str,
    client_name: str,
    timeout_s: float,
    slots: dict[int, AddListener],
    on_lost: Callable[[str], None],
    on_drained: Callable[[], None],
    tls: RefreshedContext | None = None,
    credentials: Credentials | None = None,
    apache: ApacheTranslation | None = None,
) -> Connection:
    """Connect, encrypted if there is `tls`, say hello, and authenticate if there are `credentials`.

    Raises NotEnoughBookies (EndedUnauthenticated is one), QuorumTimeout or ProtocolError, all with the reason.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    connection = Connection(slots, on_lost, on_drained, apache)
    connection.bookie_id = bookie_id
    login: Login | None = None
    if credentials is not None and (apache is None or credentials.user):
        login = credentials.login() if apache is None else credentials.sasl_login()
    is_unknown = tls is not None or login is not None  # whose it is, for a while
    try:
        async with asyncio.timeout(timeout_s):
            if apache is not None:
                await _connect_to_apache(connection, host, port, tls, login, timeout_s)
            elif tls is None:
                await loop.create_connection(lambda: connection, host, port)
            else:
                await _connect_secure(connection, host, port, tls.current(), timeout_s)
    except TimeoutError:
        raise QuorumTimeout(f"{host}:{port} did not answer within {timeout_s:g} s") from None
    except ssl.SSLError as error:
        raise NotEnoughBookies(f"{host}:{port}: TLS: {_tls_reason(error)}") from error
    except OSError as error:
        was_there = isinstance(error, ConnectionError) and not isinstance(
            error, ConnectionRefusedError
        )
        kind = EndedUnauthenticated if is_unknown and was_there else NotEnoughBookies
        raise kind(f"{host}:{port}: {error.strerror or error}") from error
    try:
        own_login = login if apache is None else None  # Apache's bookies have it already
        left_s = max(0.001, timeout_s - (loop.time() - started))
        hello = await connection.send_hello(client_name, left_s, own_login)
        if hello.bookie_id != bookie_id:
            raise ProtocolError(f"{host}:{port} is bookie {hello.bookie_id!r}, not {bookie_id!r}")
    except BaseException as error:
        reason = str(error) if isinstance(error, Error) else "the hello was given up"
        connection.abort(reason)
        with contextlib.suppress(asyncio.CancelledError):
            await connection.closed
        if tls is not None and isinstance(error, NotEnoughBookies):
            # With TLS 1.3 a client hears only behind its handshake what the server thinks of its certificate.
            raise EndedUnauthenticated(
                f"{host}:{port} ended the connection behind the TLS handshake ({reason}): does it accept this client's"
                " certificate (FASTBK_TLS_CERTIFICATE_FILE)? Its log tells (connection.tls_failed)"
            ) from error
        if own_login is not None and isinstance(error, NotEnoughBookies):
            raise EndedUnauthenticated(
                f"{host}:{port}: {reason}, before it had authenticated this client"
            ) from error
        raise
    return connection


def _tls_arguments(host: str, timeout_s: float, shutdown_timeout_s: float) -> dict[str, Any]:
    return {
        "server_hostname": host,
        "ssl_handshake_timeout": timeout_s,
        "ssl_shutdown_timeout": shutdown_timeout_s,
    }


async def _connect_secure(
    connection: Connection, host: str, port: int, context: ssl.SSLContext, timeout_s: float
) -> None:
    loop = asyncio.get_running_loop()
    arguments = _tls_arguments(host, timeout_s, SHUTDOWN_TIMEOUT_S)
    try:
        await loop.create_connection(lambda: connection, host, port, ssl=context, **arguments)
    except ConnectionRefusedError:
        raise
    except ConnectionError as error:
        raise _ended_handshake() from error


async def _connect_to_apache(
    connection: Connection,
    host: str,
    port: int,
    tls: RefreshedContext | None,
    login: Login | None,
    timeout_s: float,
) -> None:
    """Begin in the clear, as Apache's bookies want it, upgrade to TLS, and authenticate by SASL."""
    loop = asyncio.get_running_loop()
    if tls is None and login is None:
        await loop.create_connection(lambda: connection, host, port)
        return
    transport, starting = await loop.create_connection(_StartTls, host, port)
    try:
        protocol = connection if login is None else ApacheLogin(login)
        if tls is not None:
            transport = await _upgrade(
                transport, starting, protocol, host, tls.current(), timeout_s
            )
        if isinstance(protocol, ApacheLogin):
            transport.set_protocol(protocol)
            protocol.begin(transport)
            await _logged_in(protocol, host, port)
            transport.set_protocol(connection)
            if transport.is_closing():
                raise ConnectionError(0, "it ended the connection behind the authentication")
        if transport.is_closing():
            raise _ended_handshake()
    except BaseException:
        transport.abort()
        raise
    connection.connection_made(transport)


async def _logged_in(protocol: ApacheLogin, host: str, port: int) -> None:
    try:
        await protocol.done
    except ProtocolError as error:
        raise ProtocolError(f"{host}:{port}: {error}") from error


async def _upgrade(
    transport: asyncio.Transport,
    starting: _StartTls,
    protocol: Connection | ApacheLogin,
    host: str,
    context: ssl.SSLContext,
    timeout_s: float,
) -> asyncio.Transport:
    """Ask for TLS. Apache's bookies say nothing more until the handshake has begun."""
    arguments = _tls_arguments(host, timeout_s, APACHE_SHUTDOWN_TIMEOUT_S)
    transport.write(START_TLS_REQUEST)
    await starting.answered
    loop = asyncio.get_running_loop()
    try:
        secure = await loop.start_tls(transport, protocol, context, **arguments)
    except ConnectionError as error:
        raise _ended_handshake() from error
    if secure is None or secure.is_closing():
        raise _ended_handshake()
    return secure


class _StartTls(asyncio.Protocol):
    """Waits for the answer to START_TLS."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        size_bytes = int.from_bytes(self._received[:4], "big")
        body = self._received[4:]
        if len(self._received) < 4 or len(body) < size_bytes <= START_TLS_REPLY_BYTES_MAX:
            return
        if len(body) == size_bytes and body.startswith(START_TLS_DONE):
            self._end(None)
        else:  # a refusal, another protocol, or bytes that somebody wants to be taken for encrypted ones
            self._end(ConnectionError(0, "it does not upgrade to TLS: has it a certificate?"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or ConnectionError(0, "it ended the connection when asked for TLS"))

    def _end(self, error: Exception | None) -> None:
        if self.answered.done():
            return
        if error is None:
            self.answered.set_result(None)
        else:
            self.answered.set_exception(error)


def _ended_handshake() -> ConnectionError:
    return ConnectionError(0, "it ended the TLS handshake: does it serve TLS ([tls] mode)?")


def _tls_reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not good: {error.verify_message}"
    return error.reason or str(error)


# --- logging in to Apache's bookies ---------------------------------------------------------------
#
# SASL with Apache's bookies: AUTH messages of version 3, which a channel of version 2 may begin
# with, too.
#
# A bookie without authentication answers the first one with a plugin of that meaning, and serves.


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
    return {field.number: field for field in protobuf.fields(message)}


# --- a new token ----------------------------------------------------------------------------------
#
# Gives bookies a client's new token: a file that changes replaces the token of every open
# connection.


INTERVAL_S = 5.0
"""Between two looks at the file."""


class TokenRenewal:
    """The renewals of one client; begins with its first connection."""

    def __init__(
        self, config: ClientConfig, connections: Callable[[], Iterable[Connection]]
    ) -> None:
        self._config = config
        self.on_token: Callable[[], None] = lambda: None
        """Called when the file has a new one, and again while some connections have not got it."""
        self._connections = connections
        self._path = config.credentials.token_file if config.credentials is not None else ""
        self._stamp: Stamp = ()
        self.token = b""
        """What the file had when it changed last; empty: it has not changed."""
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: dict[Connection, asyncio.Task[None]] = {}

    def begin(self) -> None:
        """Look at the file from now on."""
        if self._path and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._look)

    def end(self) -> None:
        """Look no more."""
        self._path = ""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self._tasks.values():
            task.cancel()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(INTERVAL_S, self._look)
        before = self.token
        self._read()
        # One that was being opened has the old token, one that did not answer kept it.
        have_old = [
            one for one in self._connections() if self.token and one.token not in (b"", self.token)
        ]
        for connection in have_old:
            if connection not in self._tasks:
                task = loop.create_task(self._renew(connection), name="fastbk renew token")
                self._tasks[connection] = task
        # All connections may have been opened since the file changed.
        if have_old or (before and self.token != before):
            self.on_token()

    def _read(self) -> None:
        assert self._config.credentials is not None
        stamp = stamp_of([self._path])
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self.token = self._config.credentials.token()
        except ConfigError as error:
            _log.warning("token.not_read", reason=str(error))

    async def _renew(self, connection: Connection) -> None:
        config = self._config
        try:
            await connection.renew(
                config.client_name, config.connect_timeout, Login(TOKEN, self.token, None)
            )
        except Error as error:
            _log.warning("token.not_renewed", bookie=connection.bookie_id, reason=str(error))
        finally:
            del self._tasks[connection]
