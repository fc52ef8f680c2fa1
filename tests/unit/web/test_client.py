"""The HTTP client: what a request says, and which bytes are an answer, however they come."""

from __future__ import annotations

import pytest

from fastbk.errors import ConfigError
from fastbk.web.client import (
    HEAD_BYTES_MAX,
    AnswerReader,
    BadAnswer,
    HttpConnection,
    Reply,
    encoded_request,
    exchange,
)

COUNTED = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhell\r\n1;name=x\r\no\r\n0\r\n\r\n"
)


def read(data: bytes, bytes_max: int = 100, step: int = 1000) -> Reply:
    """Return the answer of bytes that come in pieces, behind which the connection ends."""
    reader = AnswerReader(bytes_max)
    for offset in range(0, len(data), step):
        if (reply := reader.feed(data[offset : offset + step])) is not None:
            return reply
    reply = reader.feed(b"")
    assert reply is not None
    return reply


def test_the_bytes_of_a_request() -> None:
    assert encoded_request("GET", "10.0.0.1", 80, "/a?b=c", {"X": "y"}) == (
        b"GET /a?b=c HTTP/1.1\r\nHost: 10.0.0.1:80\r\nConnection: close\r\nX: y\r\n\r\n"
    )
    assert encoded_request("POST", "::1", 8, "/a", {}, b"{}", is_last=False) == (
        b"POST /a HTTP/1.1\r\nHost: [::1]:8\r\nContent-Length: 2\r\n\r\n{}"
    )
    assert b"Content-Length: 0\r\n" in encoded_request("POST", "a", 8, "/a", {}, b"")


@pytest.mark.parametrize(
    ("target", "value"),
    [("/a b", "x"), ("/a\r\nX: y", "x"), ("", "x"), ("/a", "x\r\ny"), ("/a", "ü")],
)
def test_no_request_says_more_than_its_caller_means(target: str, value: str) -> None:
    with pytest.raises(ConfigError):
        encoded_request("GET", "a", 80, target, {"X": value})


@pytest.mark.parametrize("host", ["", "a b", "a\r\nX: y", "x" * 70 + ".de", "bü\udc80", "a\x00"])
async def test_what_is_no_host_is_an_error_of_the_network(host: str) -> None:
    """A host is text of others: of a bookie's registration. One that is bad must not end who reads many."""
    with pytest.raises(OSError, match="is no name of a host"):
        encoded_request("GET", host, 80, "/a", {})
    with pytest.raises(OSError, match="is no name of a host"):
        HttpConnection(host, 80, tls=None, bytes_max=1).connect(1.0)
    with pytest.raises(OSError, match="is no name of a host"):
        await exchange(host, 80, b"", tls=None, bytes_max=1)


def test_a_host_is_named_as_resolvers_have_it() -> None:
    assert b"\r\nHost: xn--bcher-kva.de:80\r\n" in encoded_request("GET", "bücher.de", 80, "/a", {})


def test_a_connection_that_says_more_than_was_asked_is_not_used_again() -> None:
    assert not read(COUNTED).is_last
    assert read(COUNTED + b"HTTP/1.1 200 OK\r\n").is_last


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("data", "is_last"),
    [
        (COUNTED, False),
        (COUNTED.replace(b"Content-Type: text/plain", b"Connection: Close"), True),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + COUNTED, False),
        (CHUNKED, True),
        (b"HTTP/1.0 200 OK\r\n\r\nhello", True),
    ],
    ids=["counted", "last", "behind another", "chunked", "until the end"],
)
def test_an_answer_is_read_however_its_bytes_come(data: bytes, is_last: bool, step: int) -> None:
    reply = read(data, step=step)
    assert (reply.status, reply.body, reply.is_last) == (200, b"hello", is_last)


def test_an_answer_without_a_body_needs_no_length() -> None:
    reader = AnswerReader(100)
    assert reader.feed(b"HTTP/1.1 204 No Content\r\nX-Y:  z \r\n\r\n") == (
        204,
        {"x-y": "z"},
        b"",
        False,
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * HEAD_BYTES_MAX,
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * HEAD_BYTES_MAX + b"\r\n\r\n",
        COUNTED[:-1],
        COUNTED.replace(b"5\r\n\r\n", b"-5\r\n\r\n"),
        COUNTED.replace(b"5\r\n\r\n", b"5, 5\r\n\r\n"),
        COUNTED.replace(b"5\r\n\r\n", b"101\r\n\r\n"),
        CHUNKED[:-8],
        CHUNKED.replace(b"4\r\n", b"x\r\n"),
        CHUNKED.replace(b"4\r\nhell", b"FFFFFFFF\r\nhell"),
        CHUNKED.replace(b"4\r\n", b"4" * 300),
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 101,
    ],
)
@pytest.mark.parametrize("step", [1, 100_000])
def test_what_is_no_whole_answer_within_the_bound_is_an_error(data: bytes, step: int) -> None:
    with pytest.raises(BadAnswer):
        read(data, step=step if len(data) < 1000 else 100_000)
