"""The client's codec against the plain Python reference and stock flatbuffers code."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import ProtocolError
from fastbk.model.entry import DigestType, master_key
from fastbk.native import client_codec as codec
from fastbk.native.client_codec import EVENT_WORDS, AnswerBuffer, LedgerCodec
from fastbk.replication.batch import Batch
from fastbk.wire.generated import Add, AddBatch, Request, RequestBody
from tests.fixtures.entries import make_entry
from tests.fixtures.fake_bookie_parts import key_of, vector
from tests.fixtures.frames import response

kinds = st.sampled_from(DigestType)


@given(
    kinds,
    st.lists(st.binary(max_size=100), min_size=1, max_size=20),
    st.integers(0, 2**63 - 100),
    st.integers(0, 2**40),
)
def test_adds_are_valid_flatbuffers_around_apaches_bytes(
    kind: DigestType, datas: list[bytes], first: int, length: int
) -> None:
    ledger = LedgerCodec(9, kind, b"key", flags=codec.FLAG_RECOVERY)
    frames, sizes = ledger.encode_adds(1000, first, first - 1, length, datas)
    assert list(sizes) == [len(data) for data in datas]
    offsets = Batch(first, frames, sizes, length, 0.0).offsets()
    assert offsets[-1] == len(frames)
    for one, data in enumerate(datas):
        frame = bytes(frames[offsets[one] : offsets[one + 1]])
        assert int.from_bytes(frame[:4], "little") == len(frame) - 4
        request = Request.Request.GetRootAs(frame, 4)
        assert request.RequestId() == 1000 + one
        assert request.BodyType() == RequestBody.RequestBody.Add
        body = Add.Add()
        body.Init(request.Body().Bytes, request.Body().Pos)
        assert (body.LedgerId(), body.EntryId(), body.Flags()) == (9, first + one, 1)
        assert body.DigestType() == kind
        assert key_of(body) == master_key(b"key")
        length += len(data)
        assert vector(body, 14) == make_entry(9, first + one, first - 1, length, data, kind, b"key")


@given(
    kinds,
    st.lists(st.binary(max_size=100), min_size=1, max_size=20),
    st.integers(0, 2**63 - 100),
    st.integers(0, 2**32 - 1),
)
def test_a_batch_of_copies_says_what_the_originals_said(
    kind: DigestType, datas: list[bytes], first: int, mark: int
) -> None:
    ledger = LedgerCodec(9, kind, b"key", codec.FLAG_RECOVERY, mark)
    lacs = [first - 1 - one for one in range(len(datas))]
    lengths = [7 * one for one in range(len(datas))]
    frame = bytes(ledger.encode_add_batch(1000, first, lacs, lengths, list(map(memoryview, datas))))
    assert int.from_bytes(frame[:4], "little") == len(frame) - 4
    request = Request.Request.GetRootAs(frame, 4)
    assert (request.RequestId(), request.CreationMark()) == (1000, mark)
    assert request.BodyType() == RequestBody.RequestBody.AddBatch
    body = AddBatch.AddBatch()
    body.Init(request.Body().Bytes, request.Body().Pos)
    assert (body.LedgerId(), body.FirstEntryId(), body.Flags()) == (9, first, 1)
    assert body.DigestType() == kind
    assert key_of(body) == master_key(b"key")
    entries = [
        make_entry(9, first + at, *said, kind, b"key")
        for at, said in enumerate(zip(lacs, lengths, datas, strict=True))
    ]
    assert [body.EntrySizes(at) for at in range(body.EntrySizesLength())] == list(map(len, entries))
    assert vector(body, 16) == b"".join(entries)


@given(kinds, st.lists(st.binary(max_size=50), min_size=1, max_size=10), st.data())
def test_checking_stops_at_the_first_entry_that_is_not_whole(
    kind: DigestType, datas: list[bytes], data: st.DataObject
) -> None:
    entries = [
        make_entry(3, 2 * one, one - 1, 7, text, kind, b"p") for one, text in enumerate(datas)
    ]
    sizes = b"".join(len(entry).to_bytes(4, "little") for entry in entries)
    ledger = LedgerCodec(3, kind, b"p")
    found = ledger.check_entries(b"".join(entries), sizes)
    assert [(one, lac, bytes(text)) for one, lac, text in found] == [
        (2 * one, one - 1, text) for one, text in enumerate(datas)
    ]
    bad = data.draw(st.integers(0, len(entries) - 1))
    # The ledger's id, which every kind of digest has to notice.
    entries[bad] = entries[bad][:7] + b"\x07" + entries[bad][8:]
    assert len(ledger.check_entries(b"".join(entries), sizes)) == bad
    assert ledger.check_entries(b"", b"") == []
    assert ledger.check_entry(b"short") is None


def test_acks_of_consecutive_requests_become_one_event() -> None:
    answers = AnswerBuffer()
    answers.feed(
        b"".join(response(one, 0) for one in range(100, 400)) + response(400, 20) + response(7, 0)
    )
    words = answers.parse()
    found = [
        (words[at + 1], words[at + 2], words[at] >> 16) for at in range(0, len(words), EVENT_WORDS)
    ]
    assert found == [(100, 300, 0), (400, 1, 20), (7, 1, 0)]
    assert answers.parse() == []


@given(st.lists(st.integers(1, 2**63), min_size=1, max_size=200), st.integers(0, 2**32))
def test_answers_survive_any_cutting_of_the_stream(ids: list[int], seed: int) -> None:
    rng = random.Random(seed)
    stream = b"".join(response(one, one % 3) for one in ids)
    answers = AnswerBuffer(size_bytes=64)
    found: list[int] = []
    while stream:
        cut = rng.randrange(1, 300)
        answers.feed(stream[:cut])
        stream = stream[cut:]
        while words := answers.parse():
            for at in range(0, len(words), EVENT_WORDS):
                found += range(words[at + 1], words[at + 1] + words[at + 2])
    assert found == ids


@given(st.binary(max_size=80))
def test_garbage_is_refused_or_waited_for(raw: bytes) -> None:
    answers = AnswerBuffer(size_bytes=64)
    answers.feed(raw)
    try:
        while answers.parse():
            pass
    except ProtocolError:
        return
    assert len(answers.free()) > 0


def test_a_frame_beyond_the_limit_is_refused_before_it_is_read() -> None:
    answers = AnswerBuffer()
    answers.frame_size_bytes_max = 1000
    answers.feed((997).to_bytes(4, "little"))
    with pytest.raises(ProtocolError):
        answers.parse()
