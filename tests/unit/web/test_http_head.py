"""A head of HTTP has one meaning for everybody, or is refused: else a request hides in another behind a proxy."""

from __future__ import annotations

import pytest

from fastbk.web.http_head import parsed_head

FIRST = b"POST /v1/draw-id HTTP/1.1"


def test_a_head_is_read() -> None:
    head = FIRST + b"\r\nHost: a:1\r\nX-Two: 1\r\nx-two:\t2 \r\n\r\n"
    assert parsed_head(head) == ("POST", "/v1/draw-id", {"host": "a:1", "x-two": "1, 2"})
    assert parsed_head(FIRST + b"\r\n\r\n") == ("POST", "/v1/draw-id", {})


@pytest.mark.parametrize(
    "line",
    [
        b"Content-Length : 5",
        b" Content-Length: 5",
        b"X: y\r\n Content-Length: 5",
        b"X: y\r\n\tContent-Length: 5",
        b"X: y\nContent-Length: 5",
        b"X: y\rContent-Length: 5",
        b"X\x00: y",
        b"X: y\x00",
        b": 5",
        b"Content-Length",
    ],
)
def test_what_others_may_read_in_another_way_is_refused(line: bytes) -> None:
    assert parsed_head(FIRST + b"\r\n" + line + b"\r\n\r\n")[2] is None


@pytest.mark.parametrize(
    "first", [b"", b"POST /x", b"POST  /x HTTP/1.1", b"POST /x HTTP/2", b"PO\nST /x HTTP/1.1"]
)
def test_another_first_line_is_no_request(first: bytes) -> None:
    assert parsed_head(first + b"\r\nHost: a\r\n\r\n")[2] is None
