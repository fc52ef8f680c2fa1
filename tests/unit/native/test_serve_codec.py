"""Frames of producers, as a write service takes them and as it answers, whole, cut, damaged and at random."""

from __future__ import annotations

import itertools
import random
import struct
from array import array
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.client.connection import Answer, answer_of
from fastbk.errors import ProtocolError
from fastbk.native import client_codec, serve_codec, stream_codec
from fastbk.native._client import ffi, lib
from fastbk.native.client_codec import EVENT_WORDS, AnswerBuffer, put_ping, put_produce, signed
from fastbk.native.serve_codec import PING, PRODUCE, REQUEST_WORDS, RequestBuffer, put_answers
from fastbk.wire.generated.ResponseBody import ResponseBody
from fastbk.wire.messages import (
    OpenProducer,
    OpenProducerReply,
    decode_reply,
    decode_service_request,
    encode_open_producer,
    encode_reply,
)
from fastbk.wire.statuses import Status
from tests.fixtures.hashes import is_request, is_response

NUMBER_MAX = 2**63 - 2


def body_of(payloads: list[bytes]) -> bytes:
    """Return records as an entry's body has them."""
    entry = stream_codec.encode(0, 0, 0, payloads, array("q", range(len(payloads))))
    return bytes(entry[stream_codec.HEAD_BYTES :])


@dataclass
class Event:
    """One request, as it was found."""

    kind: int
    status: int
    request_id: int
    producer: int = 0
    follows: int = 0
    numbers: tuple[int, ...] = ()
    records: bytes = b""
    frame: bytes = b""


def events_of(buffer: RequestBuffer, data: bytes, cuts: random.Random | None = None) -> list[Event]:
    """Return the requests in bytes that come in pieces."""
    events: list[Event] = []
    offset = 0
    while offset < len(data):
        free = buffer.free()
        count = min(len(free), len(data) - offset)
        if cuts is not None:
            count = min(count, cuts.randrange(1, 200))
        free[:count] = data[offset : offset + count]
        offset += count
        buffer.received(count)
        while words := buffer.parse():
            events.extend(event_of(buffer, words, at) for at in range(0, len(words), REQUEST_WORDS))
    return events


def event_of(buffer: RequestBuffer, words: list[int], at: int) -> Event:
    event = Event(words[at] & 0xFFFF, words[at] >> 16, words[at + 1])
    event.frame = buffer.content(words[at + serve_codec.WORD_FRAME])
    if event.kind == PRODUCE and not event.status:
        event.producer = words[at + serve_codec.WORD_PRODUCER]
        event.follows = signed(words[at + serve_codec.WORD_FOLLOWS])
        event.numbers = tuple(buffer.numbers(words, at))
        event.records = bytes(buffer.taken(words[at + serve_codec.WORD_RECORDS]))
    return event


@given(
    st.lists(st.binary(max_size=300), min_size=1, max_size=20),
    st.integers(-1, 2**40),
    st.integers(1, 2**20),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_frames_of_producers_are_found_however_they_are_cut(
    payloads: list[bytes], follows: int, gap: int, with_numbers: bool, seed: int
) -> None:
    records = body_of(payloads)
    rng = random.Random(seed)
    numbers = array("q", (follows + gap * (1 + i) for i in range(len(payloads))))
    frame = put_produce(
        2**64 - 1, 7, follows, numbers[0], len(payloads), records, numbers if with_numbers else None
    )
    assert is_request(bytes(frame))
    opening = encode_open_producer(5, OpenProducer(stream="shop/orders", name=b"till-1"))
    found = events_of(RequestBuffer(rng.choice([64, 1024])), opening + put_ping(6) + frame, rng)
    assert [event.kind for event in found] == [serve_codec.OPEN_PRODUCER, PING, PRODUCE]
    asked = decode_service_request(found[0].frame)
    assert asked == OpenProducer(stream="shop/orders", name=b"till-1")
    event = found[2]
    assert (event.status, event.request_id, event.producer) == (0, 2**64 - 1, 7)
    expected = (
        tuple(numbers) if with_numbers else tuple(numbers[0] + i for i in range(len(numbers)))
    )
    assert (event.follows, event.numbers, event.records) == (follows, expected, records)


TWO = body_of([b"a", b"bc"])
BAD = {
    "no records": (-1, 0, 0, b"", None),
    "fewer records than said": (-1, 0, 3, TWO, None),
    "more records than said": (-1, 0, 1, TWO, None),
    "records that end too early": (-1, 0, 2, TWO[:-1], None),
    "a delta of two": (-1, 0, 2, b"\0\1\0\0a\2\1\0\0b", None),
    "a first delta of one": (-1, 0, 1, b"\1\1\0\0a", None),
    "a first number that does not follow": (5, 5, 2, TWO, None),
    "numbers that stay": (-1, 0, 2, TWO, [3, 3]),
    "numbers that fall": (-1, 0, 2, TWO, [3, 2]),
    "numbers that do not follow": (3, 0, 2, TWO, [3, 4]),
    "follows a number that there is not": (-2, 0, 2, TWO, None),
    "the highest number": (-1, NUMBER_MAX, 2, TWO, None),
    "the highest number of several": (-1, 0, 2, TWO, [1, 2**63 - 1]),
}


@pytest.mark.parametrize("case", BAD)
def test_a_frame_with_wrong_fields_is_told_apart(case: str) -> None:
    follows, first, count, records, numbers = BAD[case]
    frame = put_produce(
        3, 7, follows, first, count, records, None if numbers is None else array("q", numbers)
    )
    (bad, good) = events_of(RequestBuffer(), bytes(frame) + bytes(put_produce(4, 7, -1, 0, 2, TWO)))
    assert (bad.request_id, bad.status) == (3, Status.BAD_REQUEST)
    assert (good.request_id, good.status, good.numbers) == (4, 0, (0, 1))


def test_other_counts_of_numbers_are_told_apart() -> None:
    frame = put_produce(3, 7, -1, 0, 2, TWO, array("q", [1, 2]))
    at = bytes(frame).index(struct.pack("<IIqq", 0, 2, 1, 2)) + 4
    frame[at : at + 4] = struct.pack("<I", 1)
    (bad,) = events_of(RequestBuffer(), bytes(frame))
    assert bad.status == Status.BAD_REQUEST
    with pytest.raises(ValueError, match="2 records have 1 numbers"):
        put_produce(3, 7, -1, 0, 2, TWO, array("q", [1]))


def test_what_came_before_a_damaged_frame_is_served_first() -> None:
    buffer = RequestBuffer()
    data = bytes(put_produce(1, 7, -1, 0, 2, TWO)) + struct.pack("<I", 40) + bytes(40)
    buffer.free()[: len(data)] = data
    buffer.received(len(data))
    words = buffer.parse()
    assert (len(words), words[1]) == (REQUEST_WORDS, 1)
    with pytest.raises(ProtocolError, match="no valid request"):
        buffer.parse()


def test_a_frame_that_is_too_long_is_refused_by_its_length_alone() -> None:
    buffer = RequestBuffer()
    buffer.frame_size_bytes_max = 1000
    with pytest.raises(ProtocolError):
        events_of(buffer, struct.pack("<I", 997))
    assert events_of(RequestBuffer(), struct.pack("<I", 997)) == []


@given(st.integers(0, 2**32))
def test_damaged_frames_lead_nowhere_else(seed: int) -> None:
    """Whatever is taken of a damaged frame lies within it, and is a whole count of records."""
    rng = random.Random(seed)
    frame = put_produce(1, 7, -1, 0, 2, TWO, array("q", [4, 9]) if rng.random() < 0.5 else None)
    for _ in range(rng.randrange(1, 6)):
        frame[rng.randrange(4, len(frame))] = rng.choice([0, 1, 7, 0x7F, 0xFF, rng.randrange(256)])
    try:
        found = events_of(RequestBuffer(), bytes(frame))
    except ProtocolError:
        assert not is_request(bytes(frame))
        return
    assert is_request(bytes(frame))
    for event in found:
        if event.kind == PRODUCE and event.status == 0:
            numbers = (event.follows, *event.numbers)
            assert all(low < high for low, high in itertools.pairwise(numbers))
            at = ffi.new("uint64_t *")
            count = len(event.numbers)
            assert not lib.fbk_stream_check_body(event.records, len(event.records), count, 0, at)


@given(st.binary(max_size=300), st.integers(0, 2**32))
def test_random_bytes_are_no_requests(data: bytes, seed: int) -> None:
    rng = random.Random(seed)
    if len(data) > 4 and rng.random() < 0.7:
        data = struct.pack("<I", len(data) - 4) + data[4:]
    try:
        events = events_of(RequestBuffer(64), data, rng)
    except ProtocolError:
        return
    for event in events:
        assert is_request(event.frame)


# --- answers ----------------------------------------------------------------------------------------


def answers_in(data: bytes) -> list[Answer]:
    buffer = AnswerBuffer()
    buffer.feed(data)
    answers = []
    while words := buffer.parse():
        for at in range(0, len(words), EVENT_WORDS):
            answers += [answer_of(words, at, buffer)] * words[at + 2]
    return answers


def test_answers_there_and_back() -> None:
    answers = array("Q")
    answers.extend([5, 0, 2**32 - 1 << 32 | 9, 2**40])
    answers.extend([6, Status.NOT_NEXT, 0, 0])
    answers.extend([7, Status.NOT_NEXT, 0, 0])
    answers.extend([2**40 - 1, 0, 0, 0])
    data = put_answers(answers)
    assert len(data) == 80 + 36 + 36 + 80
    assert is_response(data[:80]) and is_response(data[80:116])
    found = answers_in(data)
    assert [answer.status for answer in found] == [0, Status.NOT_NEXT, Status.NOT_NEXT, 0]
    first, last = found[0], found[3]
    assert (first.kind, first.segment, first.entry_id, first.slot) == (
        ResponseBody.ProduceReply,
        2**32 - 1,
        2**40,
        9,
    )
    assert (first.entries, first.extra, first.lac) == (b"", b"", -1)
    assert (last.segment, last.entry_id, last.slot) == (0, 0, 0)
    assert put_answers(array("Q")) == b""


def test_an_opening_is_answered_with_its_frame() -> None:
    reply = OpenProducerReply(
        producer=3,
        incarnation=7 << 32 | 1,
        last_number=-1,
        entry_bytes_max=10,
        pending_bytes_max=20,
    )
    (answer,) = answers_in(encode_reply(5, 0, reply))
    assert answer.kind == client_codec.OPEN_PRODUCER_REPLY
    assert decode_reply(answer.frame) == (5, 0, reply)
