"""Large answers are handed out where they were received, and what is received later does not touch them."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from fastbk.client.connection import Answer, answer_of
from fastbk.native.client_codec import EVENT_WORDS, AnswerBuffer
from tests.fixtures.frames import read_reply, response

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
