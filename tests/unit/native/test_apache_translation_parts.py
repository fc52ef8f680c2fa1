"""How the translation reads several of Apache's answers: batches of single reads, lists; and of any bytes at all."""

from __future__ import annotations

import random
import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbk.errors import ProtocolError
from fastbk.native import client_codec as codec
from fastbk.native.client_codec import FrameTranslation
from fastbk.wire.statuses import Status
from tests.fixtures.apache_translation import (
    ENTRY,
    LEDGER,
    READ,
    add_frame,
    number_of,
    sent_v3,
    statuses,
    told,
    translation,
    v2_reply,
    v3_reply,
)


def entry_of(entry_id: int, size: int = 20) -> bytes:
    return bytes(LEDGER.encode_adds(1, entry_id, -1, 0, [bytes(size)])[0])[116:]


def answer_reads(
    one: FrameTranslation, statuses_by_id: dict[int, int], rng: random.Random, size: int = 20
) -> None:
    """Answer the single reads that are under way in any order, until no more come."""
    waiting = sent_v3(one)
    while waiting:
        request = waiting.pop(rng.randrange(len(waiting)))
        read = request["readRequest"]
        assert isinstance(read, dict)
        status = statuses_by_id.get(read["entryId"], 0)
        body: dict[str, object] = {"status": status, "ledgerId": 5, "entryId": read["entryId"]}
        if status == 0:
            body["body"] = entry_of(read["entryId"], size)
        one.receive(v3_reply(READ, number_of(request), status, readResponse=body))
        waiting += sent_v3(one)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 2**32),
    st.dictionaries(st.integers(100, 160), st.sampled_from([402, 403, 501, 507]), max_size=4),
)
def test_single_reads_add_up_to_an_answer_that_claims_nothing_false(
    seed: int, bad: dict[int, int]
) -> None:
    rng = random.Random(seed)
    one, size = translation(3), rng.choice([20, 500])
    wanted_bytes = rng.choice([100, 3000, 1 << 20])
    last = rng.randrange(100, 160)
    one.send(codec.put_read_batch(9, 5, 100, last, rng.randrange(1, 80), wanted_bytes))
    answer_reads(one, bad, rng, size)
    ((request_id, count, answer),) = told(one)
    assert (request_id, count) == (9, 1)
    if answer.status != Status.OK:
        assert bad[100] != 403
        return
    found = LEDGER.check_entries(answer.entries, answer.extra)
    ids = [entry_id for entry_id, _, _ in found]
    assert len(ids) == len(answer.extra) // 4
    # Everything below next_entry_id is there, or was said not to be.
    assert 100 < answer.entry_id <= last + 1
    assert ids == [one for one in range(100, answer.entry_id) if one not in bad]
    assert all(bad[one] == 403 for one in range(100, answer.entry_id) if one in bad)
    assert len(ids) <= 1 or len(answer.entries) <= wanted_bytes


def test_the_ends_of_the_ids_do_not_overflow() -> None:
    one = translation(3)
    top = 2**63 - 1
    one.send(codec.put_read_batch(9, 5, top - 1, top, 50, 1000))
    assert len(sent_v3(one)) == 2
    one.send(codec.put_read_batch(10, 5, -1, 5, 50, 1000) + codec.put_read_batch(11, 5, 6, 5, 1, 1))
    assert statuses(one) == [(10, Status.BAD_REQUEST), (11, Status.BAD_REQUEST)]


def test_what_was_forgotten_is_never_told_and_its_number_waits_for_the_last_answer() -> None:
    one = translation(3)
    one.send(codec.put_read_batch(9, 5, 0, 7, 8, 1 << 20))
    first = sent_v3(one)
    one.forget(9)
    one.send(codec.put_read_batch(10, 5, 0, 7, 8, 1 << 20))
    second = sent_v3(one)
    assert not {number_of(each) for each in first} & {number_of(each) for each in second}
    for each in first:
        body = {"status": 403, "ledgerId": 5, "entryId": 0}
        one.receive(v3_reply(READ, number_of(each), 403, readResponse=body))
    assert told(one) == []
    one.send(codec.put_read_batch(11, 5, 0, 7, 8, 1 << 20))
    third = sent_v3(one)
    assert {number_of(each) for each in third} == {number_of(each) for each in first}


def test_there_is_a_bound_to_what_may_be_under_way() -> None:
    one = translation(3)
    for request_id in range(1, 5001):
        one.send(codec.put_read_lac(request_id, 5, 0, 100))
    refused = statuses(one)
    assert len(refused) == 5000 - 4096
    assert {status for _, status in refused} == {Status.TOO_MANY_REQUESTS}


def list_blob(*groups: tuple[int, int, int, int]) -> bytes:
    return struct.pack(">ii56x", 0, len(groups)) + b"".join(
        struct.pack(">qqii", *one) for one in groups
    )


def listed(blob: bytes, first: int = 0, count_max: int = 100) -> tuple[int, list[int], int]:
    one = translation(3)
    one.send(codec.put_list_entries(9, 5, first, count_max))
    (request,) = sent_v3(one)
    reply = {"status": 0, "ledgerId": 5, "availabilityOfEntriesOfLedger": blob}
    one.receive(v3_reply(11, number_of(request), getListOfEntriesOfLedgerResponse=reply))
    ((_, _, answer),) = told(one)
    words = list(struct.unpack(f"<{len(answer.extra) // 8}q", answer.extra))
    return answer.status, words, answer.entry_id


def test_a_list_of_entries_is_given_in_pages() -> None:
    blob = list_blob((0, 8, 2, 4), (20, 20, 5, 0))
    ranges = [0, 1, 4, 5, 8, 9, 20, 24]
    assert listed(blob) == (Status.OK, ranges, -1)
    assert listed(blob, 5) == (Status.OK, [5, 5, 8, 9, 20, 24], -1)
    assert listed(blob, 2, 2) == (Status.OK, [4, 5, 8, 9], 20)
    assert listed(blob, 25) == (Status.OK, [], -1)
    assert listed(list_blob((0, 2 * 10**9, 1, 2))) == (Status.TOO_LARGE, [], 0)


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        bytes(63),
        b"\0\0\0\1" + bytes(60),
        list_blob((0, 0, 1, 0))[:-1],
        list_blob((5, 4, 1, 1)),
        list_blob((0, 10, 3, 2)),
        list_blob((0, 9, 1, 2)),
        list_blob((-1, -1, 1, 0)),
        list_blob((4, 4, 4, 0), (7, 7, 1, 0)),
        list_blob((2**63 - 1, 2**63 - 1, 2, 0)),
    ],
)
def test_a_list_that_makes_no_sense_ends_the_connection(blob: bytes) -> None:
    with pytest.raises(ProtocolError):
        listed(blob)


# --- anything at all -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3])
@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 2**32))
def test_whatever_a_bookie_sends_the_translation_stands(version: int, seed: int) -> None:
    rng = random.Random(seed)
    one = translation(version, takes_batches=rng.random() < 0.5)
    frames = [
        add_frame(1),
        codec.put_hello(2, "x"),
        codec.put_read(3, 5, -1),
        codec.put_read_batch(4, 5, 0, 40, 30, 1000),
        codec.put_read_lac(5, 5, 0, 100, 1),
        codec.put_list_entries(6, 5, 0, 10),
        codec.put_info(7),
        codec.put_ping(8),
    ]
    for _ in range(rng.randrange(1, 8)):
        one.send(rng.choice(frames))
    output = one.output()
    # Requests sent back as if they were answers, answers to anybody, and noise, damaged and cut anywhere.
    raw = bytearray(
        output
        + b"".join(
            rng.choice(
                [
                    v3_reply(rng.randrange(1, 13), (0xFFFFFF << 40) + rng.randrange(9)),
                    v2_reply(7, 0, 5, 0, bytes(8) + struct.pack(">i", 9) + bytes(9)),
                    v2_reply(rng.choice([1, 2, 3, 7]), rng.choice([0, 2, 101]), 5, -1, ENTRY),
                    rng.randbytes(9),
                ]
            )
            for _ in range(rng.randrange(9))
        )
    )
    for _ in range(rng.randrange(4) if raw else 0):
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    with suppress(ProtocolError):
        while raw:
            size = rng.randrange(1, len(raw) + 1)
            one.receive(raw[:size])
            told(one)
            del raw[:size]
