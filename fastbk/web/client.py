"""The one HTTP client: requests and answers as bytes, and two ways to exchange them, blocking and on an event loop.

It speaks to fastbk's own ports and to what stands before them. So it follows no redirect and keeps no cookie, and an
answer has a bound on its size. What its callers make of an answer is theirs: pages of a bookie
(`fastbk/admin/page_client.py`), pages of hundreds (`fastbk/overview/poller.py`), a gateway's operations
(`fastbk/meta`).
"""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from fastbk.errors import ConfigError
from fastbk.printable_text import printable

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

HEAD_BYTES_MAX = 64 * 1024
READ_BYTES = 256 * 1024
_FIRST_LINE = re.compile(rb"HTTP/1\.\d (\d{3})(?: .*)?")
_CHUNK_LINE_BYTES_MAX = 256
_TARGET = re.compile(r"[!-~]+")
_VALUE = re.compile(r"[ -~]*")


class BadAnswer(OSError):
    """What came is no answer that is taken: it is not HTTP, is too large, or was cut off."""


class Reply(NamedTuple):
    """An answer. `is_last`: the server closes the connection behind it."""

    status: int
    headers: dict[str, str]
    body: bytes
    is_last: bool


def encoded_request(
    method: str,
    host: str,
    port: int,
    target: str,
    headers: Mapping[str, str],
    body: bytes | None = None,
    *,
    is_last: bool = True,
) -> bytes:
    """Return the bytes of a request. Raises ConfigError for what no request can say, OSError for no host."""
    name = ascii_host(host)
    name = f"[{name}]" if ":" in name else name
    lines = [f"{method} {target} HTTP/1.1", f"Host: {name}:{port}"]
    lines += ["Connection: close"] if is_last else []
    lines += [] if body is None else [f"Content-Length: {len(body)}"]
    for header, value in headers.items():
        if not _VALUE.fullmatch(value):
            raise ConfigError(f"the value of the header {header} has characters that none may have")
        lines.append(f"{header}: {value}")
    if not _TARGET.fullmatch(target):
        raise ConfigError(f"{target!r} is no path of a page")
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode("ascii") + (body or b"")


def ascii_host(host: str) -> str:
    """Return a host's name as resolvers and heads take it. Raises OSError: it may be text of others."""
    try:
        name = host.encode("idna").decode("ascii")
    except UnicodeError:
        name = ""
    if not _TARGET.fullmatch(name):
        raise OSError(f"{printable(host, 100)!r} is no name of a host")
    return name


class AnswerReader:
    """Takes the bytes of one answer as they come. Pure."""

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max`: of the body."""
        self._bytes_max = bytes_max
        self._buffer = bytearray()
        self._head: tuple[int, dict[str, str]] | None = None
        self._body = bytearray()
        """The whole chunks of a body in chunks."""

    def feed(self, data: bytes) -> Reply | None:
        """Return the answer once it is whole; `data`: b"" at the connection's end. Raises BadAnswer."""
        self._buffer += data
        while self._head is None:
            if not self._take_head():
                if not data:
                    raise BadAnswer("answered no HTTP: the connection was closed")
                return None
        status, headers = self._head
        if status in (204, 304):
            return self._reply(b"")
        if headers.get("transfer-encoding", "").lower() == "chunked":
            whole = self._take_chunks()
        elif "content-length" in headers:
            whole = self._take_counted(headers["content-length"])
        else:
            self._check_size(len(self._buffer))
            return None if data else self._reply(bytes(self._buffer), is_last=True)
        if whole is None:
            if not data:
                raise BadAnswer("the answer was cut off")
            return None
        # What follows the body belongs to no request: nothing more is read from this connection.
        return self._reply(whole, is_last=len(self._buffer) > len(whole))

    def _take_head(self) -> bool:
        """Read the head, or skip one that only says to go on; return whether it was there."""
        end = self._buffer.find(b"\r\n\r\n")
        if not (0 <= end <= HEAD_BYTES_MAX):
            if len(self._buffer) > HEAD_BYTES_MAX or not b"HTTP/1.".startswith(self._buffer[:7]):
                raise BadAnswer("answered no HTTP")
            return False
        first, *lines = bytes(self._buffer[:end]).split(b"\r\n")
        match = _FIRST_LINE.fullmatch(first)
        if match is None:
            raise BadAnswer("answered no HTTP")
        del self._buffer[: end + 4]
        if (status := int(match[1])) >= 200:
            pairs = (line.decode("latin-1").partition(":") for line in lines)
            self._head = status, {name.lower(): value.strip() for name, _, value in pairs}
        return True

    def _take_counted(self, length: str) -> bytes | None:
        if not (length.isascii() and length.isdigit() and len(length) < 16):
            raise BadAnswer("the answer has no length that can be read")
        self._check_size(int(length))
        return bytes(self._buffer[: int(length)]) if len(self._buffer) >= int(length) else None

    def _take_chunks(self) -> bytes | None:
        while (end := self._buffer.find(b"\r\n")) >= 0:
            text = bytes(self._buffer[:end]).partition(b";")[0].strip()
            if not re.fullmatch(rb"[0-9A-Fa-f]{1,8}", text):
                break
            size = int(text, 16)
            self._check_size(len(self._body) + size)
            if size == 0:
                # Lines may follow, which say nothing that is used; the connection is not used again.
                return bytes(self._body)
            if len(self._buffer) < end + 2 + size + 2:
                return None
            self._body += self._buffer[end + 2 : end + 2 + size]
            del self._buffer[: end + 2 + size + 2]
        if len(self._buffer) > _CHUNK_LINE_BYTES_MAX or end >= 0:
            raise BadAnswer("the answer's chunks cannot be read")
        return None

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self._bytes_max:
            raise BadAnswer(f"more than {self._bytes_max >> 20} MiB")

    def _reply(self, body: bytes, *, is_last: bool = False) -> Reply:
        assert self._head is not None
        status, headers = self._head
        ends = headers.get("connection", "").lower() == "close" or "transfer-encoding" in headers
        return Reply(status, headers, body, is_last or ends)


class HttpConnection:
    """A blocking connection for one request at a time. Errors are OSError, BadAnswer one of them."""

    def __init__(self, host: str, port: int, *, tls: ssl.SSLContext | None, bytes_max: int) -> None:
        """`bytes_max`: of an answer's body."""
        self._host = host
        self._port = port
        self._tls = tls
        self._bytes_max = bytes_max
        self._socket: socket.socket | None = None

    def connect(self, timeout_s: float) -> None:
        """Connect; `timeout_s`: for each wait for the peer, then and later."""
        connected = socket.create_connection((ascii_host(self._host), self._port), timeout_s)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                connected = self._tls.wrap_socket(connected, server_hostname=self._host)
        except BaseException:
            connected.close()
            raise
        self._socket = connected

    def set_timeout(self, timeout_s: float) -> None:
        """Bound each wait for the peer from now on."""
        assert self._socket is not None
        self._socket.settimeout(timeout_s)

    def exchange(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        is_last: bool = True,
    ) -> Reply:
        """Return the answer to a request. After an error the connection is of no use."""
        assert self._socket is not None
        self._socket.sendall(
            encoded_request(method, self._host, self._port, target, headers, body, is_last=is_last)
        )
        answer = AnswerReader(self._bytes_max)
        while (reply := answer.feed(self._socket.recv(READ_BYTES))) is None:
            pass
        return reply

    def cut(self) -> None:
        """End what another thread waits for on this connection."""
        if self._socket is not None:
            with suppress(OSError):
                # Below TLS: the other thread reads from it.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it."""
        if self._socket is not None:
            self._socket.close()


async def exchange(
    host: str, port: int, request: bytes, *, tls: ssl.SSLContext | None, bytes_max: int
) -> Reply:
    """Return the answer to a request on a connection of its own. Raises OSError, BadAnswer; the caller bounds time."""
    import asyncio  # blocking callers do without

    reader, writer = await asyncio.open_connection(ascii_host(host), port, ssl=tls)
    try:
        writer.write(request)
        answer = AnswerReader(bytes_max)
        while (reply := answer.feed(await reader.read(READ_BYTES))) is None:
            pass
        return reply
    finally:
        # Not waited for: a peer that does not close must not hold up who asks many.
        writer.transport.abort()
