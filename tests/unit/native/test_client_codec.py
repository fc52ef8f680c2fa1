"""The client's codec against the plain Python reference and stock flatbuffers code."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.client.connection import Answer, answer_of
from fastbk.errors import ProtocolError
from fastbk.model.entry import DigestType, master_key
from fastbk.native import client_codec as codec
from fastbk.native._client import ffi
from fastbk.native.client_codec import (
    EVENT_WORDS,
    IDLE_BYTES_MAX,
    SIZE_BYTES_MAX,
    SIZE_BYTES_MIN,
    AnswerBuffer,
    LedgerCodec,
    idle_bytes,
    memory_of,
)
from fastbk.replication.add_machine import Batch
from fastbk.wire.generated import Add, AddBatch, Request, RequestBody
from tests.fixtures.entries import make_entry
from tests.fixtures.fake_bookie import key_of, vector
from tests.fixtures.frames import read_reply, response

if TYPE_CHECKING:
    from fastbk.native.ffi import CData

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


# Large answers are handed out where they were received, and what is received later does not touch
# them.


SIZES = st.lists(st.sampled_from([0, 1, 1000, 70_000, 140_000, 300_000]), min_size=1, max_size=12)


def received(answers: AnswerBuffer, piece: bytes) -> None:
    """Put bytes in as a socket does."""
    while piece:
        room = answers.free()
        assert len(room) > 0
        some = min(len(room), len(piece))
        room[:some] = piece[:some]
        answers.received(some)
        piece = piece[some:]


@given(SIZES, st.integers(0, 2**32))
def test_what_was_handed_out_stays_as_it_was(sizes: list[int], seed: int) -> None:
    rng = random.Random(seed)
    datas = [rng.randbytes(size) for size in sizes]
    stream = b"".join(
        read_reply(at, at, data) + response(1000 + at, 3) for at, data in enumerate(datas, 1)
    )
    answers, found = AnswerBuffer(size_bytes=rng.choice([64, 1 << 17, 1 << 18])), list[Answer]()
    while stream:
        cut = rng.choice([10, 5_000, 200_000, len(stream)])
        room = len(answers.free())
        received(answers, stream[: min(cut, room)])
        stream = stream[min(cut, room) :]
        while words := answers.parse():
            found += [answer_of(words, at, answers) for at in range(0, len(words), EVENT_WORDS)]
    replies = [one for one in found if one.status == 0]
    assert [one.entry_id for one in replies] == list(range(1, len(datas) + 1))
    assert [bytes(one.entries) for one in replies] == datas
    assert len(found) == 2 * len(datas)


def test_a_large_answer_is_not_copied_and_a_small_one_is() -> None:
    answers = AnswerBuffer()
    for size, is_view in ((200_000, True), (100, False), (200_000, True)):
        received(answers, read_reply(1, 1, b"x" * size))
        entries = answer_of(answers.parse(), 0, answers).entries
        assert isinstance(entries, memoryview) is is_view
        assert not isinstance(entries, memoryview) or entries.readonly
        assert answers.parse() == []
    assert len(answers.free()) >= 1 << 18


def test_a_buffer_that_grew_is_small_again_when_no_large_answers_come() -> None:
    answers = AnswerBuffer()
    stream = read_reply(1, 1, b"x" * 1_000_000)
    while stream:
        room = len(answers.free())
        received(answers, stream[:room])
        stream = stream[room:]
        if words := answers.parse():
            assert isinstance(answer_of(words, 0, answers).entries, memoryview)
    assert answers.parse() == []
    received(answers, response(2, 3))
    assert answers.parse()
    assert answers.parse() == []
    assert len(answers.free()) == 1 << 18


# Memory for large answers is used again once nobody looks at it, never before, and only so much
# is kept.


MIB = 1 << 20


def place_of(memory: CData) -> int:
    """Return where it lies."""
    return int(ffi.cast("intptr_t", memory))


def test_what_somebody_looks_at_is_not_given_to_anybody_else() -> None:
    memory, view = memory_of(MIB)
    place, part = place_of(memory), view[5:10].toreadonly()
    view[5:10] = b"bytes"
    del memory, view
    other, other_view = memory_of(MIB)
    assert place_of(other) != place
    other_view[:] = bytes(MIB)
    assert bytes(part) == b"bytes"
    del part
    again, view_again = memory_of(MIB - 1000)
    assert place_of(again) == place
    assert len(view_again) == MIB - 1000
    assert bytes(view_again[5:10]) == b"bytes", "nobody clears it"


@pytest.mark.parametrize("size", [0, 1, SIZE_BYTES_MIN - 1, SIZE_BYTES_MAX + 1])
def test_small_and_huge_ones_are_not_kept(size: int) -> None:
    before = idle_bytes()
    memory, view = memory_of(size)
    assert len(memory) == len(view) == size
    view[:] = b"x" * size
    del memory, view
    assert idle_bytes() == before


def test_no_more_is_kept_than_the_bound() -> None:
    held = [memory_of(SIZE_BYTES_MAX) for _ in range(IDLE_BYTES_MAX // SIZE_BYTES_MAX + 3)]
    held += [memory_of(SIZE_BYTES_MIN) for _ in range(3)]
    held.clear()
    assert IDLE_BYTES_MAX - SIZE_BYTES_MAX < idle_bytes() <= IDLE_BYTES_MAX


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2 * SIZE_BYTES_MIN)), max_size=40))
def test_each_holder_has_bytes_of_its_own(steps: list[tuple[int, int]]) -> None:
    held: dict[int, tuple[memoryview, bytes]] = {}
    for number, (slot, size) in enumerate(steps):
        if slot in held:
            view, mark = held.pop(slot)
            assert view[:1] == view[-1:] == mark
            del view
        if size > 0:
            view, mark = memory_of(size)[1], bytes([number])
            view[:1] = view[-1:] = mark
            held[slot] = view, mark
    assert all(view[:1] == view[-1:] == mark for view, mark in held.values())


def test_threads_take_and_give_back_side_by_side() -> None:
    wrong: list[int] = []

    def take_turns(mark: int) -> None:
        for turn in range(300):
            views = [memory_of(SIZE_BYTES_MIN + turn)[1] for _ in range(3)]
            for view in views:
                view[:16] = bytes([mark]) * 16
            wrong.extend(mark for view in views if view[:16] != bytes([mark]) * 16)

    threads = [threading.Thread(target=take_turns, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
