"""Hello, info and errors: there and back, and as the verifier sees them."""

from __future__ import annotations

import pytest

from fastbk.wire import messages
from fastbk.wire.messages import (
    MAGIC,
    CloseProducer,
    ErrorReply,
    Hello,
    HelloReply,
    InfoReply,
    OpenProducer,
    OpenProducerReply,
    Reply,
    decode_cold_request,
    decode_reply,
    decode_service_request,
    encode_close_producer,
    encode_hello,
    encode_info,
    encode_open_producer,
    encode_reply,
    error_text,
)
from tests.fixtures.frames import ping
from tests.fixtures.hashes import is_request, is_response


def test_magic_is_neither_apache_nor_tls() -> None:
    assert len(MAGIC) == 8
    assert MAGIC[0] not in (0x00, 0x16)


@pytest.mark.parametrize(
    "hello",
    [Hello(), Hello(version_min=0, version_max=65_535, client_name="näme", auth_method="scram")],
)
def test_hello_there_and_back(hello: Hello) -> None:
    frame = encode_hello(2**64 - 1, hello)
    assert is_request(frame)
    request = decode_cold_request(frame)
    assert request.request_id == 2**64 - 1
    assert request.hello == hello


def test_info_there_and_back() -> None:
    frame = encode_info(7)
    assert is_request(frame)
    assert decode_cold_request(frame).hello is None


@pytest.mark.parametrize(
    "reply",
    [
        HelloReply(
            version=1,
            frame_size_bytes_max=5 << 20,
            batch_entry_count_max=4096,
            pending_requests_max=16384,
            incarnation=2**64 - 1,
            bookie_id="host:3181",
            software="fastbk 0.1.0",
        ),
        InfoReply(
            software="s", bookie_id="b", incarnation=1, writable=False, reason="full", uptime_ms=9
        ),
        InfoReply(
            software="s", bookie_id="b", incarnation=1, writable=True, disk_total_bytes=2**60
        ),
        InfoReply(software="s", bookie_id="b", incarnation=1, writable=True, frozen="journal"),
        ErrorReply(message="why", version_min=1, version_max=2),
        OpenProducerReply(
            producer=2**32 - 1,
            incarnation=2**64 - 1,
            last_number=-1,
            entry_bytes_max=1 << 20,
            pending_bytes_max=4 << 20,
        ),
    ],
)
def test_replies_there_and_back(reply: Reply) -> None:
    frame = encode_reply(3, 2, reply)
    assert is_response(frame)
    assert decode_reply(frame) == (3, 2, reply)


@pytest.mark.parametrize(
    "request_",
    [
        OpenProducer(stream="shop/orders", name=b"till-1"),
        OpenProducer(stream="s", name=bytes(64), incarnation=2**64 - 1, timeout_ms=2**32 - 1),
        OpenProducer(stream=""),
    ],
)
def test_openings_of_producers_there_and_back(request_: OpenProducer) -> None:
    frame = encode_open_producer(2**64 - 1, request_)
    assert is_request(frame)
    assert decode_service_request(frame) == request_


def test_ends_of_producers_there_and_back() -> None:
    frame = encode_close_producer(7, CloseProducer(producer=2**32 - 1))
    assert is_request(frame)
    assert decode_service_request(frame) == CloseProducer(producer=2**32 - 1)


def test_a_write_service_is_asked_for_nothing_else() -> None:
    assert decode_service_request(encode_hello(1, Hello(client_name="n"))) == Hello(client_name="n")
    assert decode_service_request(encode_info(1)) is None
    assert decode_service_request(ping(1)) is None


def test_a_name_of_any_length_is_cut() -> None:
    request = decode_cold_request(encode_hello(1, Hello(client_name="é" * 500)))
    assert request.hello is not None
    assert len(request.hello.client_name) <= 128


def test_other_requests_are_not_python_s() -> None:
    with pytest.raises(ValueError, match="not Python's"):
        decode_cold_request(ping(1))


def test_an_unverified_frame_is_told_apart() -> None:
    frame = encode_hello(1, Hello())
    assert not is_request(frame[:-1])
    assert not is_request(b"")
    assert not is_response(b"\0" * 12)


@pytest.mark.parametrize(
    ("declared", "taken"), [(0, 4096), (31 << 20, 31 << 20), (2**32 - 1, 32 << 20)]
)
def test_the_frame_size_of_a_hello_is_bounded(declared: int, taken: int) -> None:
    """A client allocates what a frame announces, up to this."""
    reply = HelloReply(
        version=1,
        frame_size_bytes_max=declared,
        batch_entry_count_max=4096,
        pending_requests_max=16384,
        incarnation=1,
        bookie_id="host:3181",
        software="fastbk 0.1.0",
    )
    _, _, found = decode_reply(encode_reply(7, 0, reply))
    assert isinstance(found, HelloReply) and found.frame_size_bytes_max == taken


def test_a_reason_that_no_encoding_takes_is_sent_escaped() -> None:
    frame = encode_reply(7, 2, ErrorReply(message="the header has \ud800 and \x1b[2J"))
    assert is_response(frame)
    assert decode_reply(frame)[2] == ErrorReply(message=r"the header has \ud800 and \x1b[2J")


def test_what_a_bookie_says_cannot_steer_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as hostile:
        hostile.setattr(messages, "printable", lambda text, _max: text)
        frame = encode_reply(7, 2, ErrorReply(message="no\x1b]0;title\x07\n\u202e"))
    assert error_text(frame) == r"no\x1b]0;title\x07\x0a\u202e"
