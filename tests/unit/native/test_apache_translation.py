"""The translation of a client's connection to one of Apache's bookies, byte by byte.

Requests are judged by protobuf's own reader and by recorded frames; answers are made by protobuf or by hand.
"""

from __future__ import annotations

import random
import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbk.client.connection import SLOT_MAX, SLOT_SHIFT
from fastbk.errors import ProtocolError
from fastbk.model.entry import DigestType
from fastbk.native import client_codec as codec
from fastbk.native.client_codec import FrameTranslation, LedgerCodec, v2_takes
from fastbk.wire.statuses import Status
from tests.fixtures.apache_translation import (
    ADD,
    ENTRY,
    KEY,
    LEDGER,
    READ,
    RECOVERY,
    add_frame,
    number_of,
    sent_v3,
    statuses,
    told,
    translation,
    v2_reply,
    v3_reply,
)

# --- requests --------------------------------------------------------------------------------------------------------


def test_version_2_frames_are_those_of_apaches_own_client() -> None:
    one = translation(2)
    one.send(add_frame(9))
    assert one.output().hex() == "0000004102010000" + KEY.hex() + ENTRY.hex()
    one.send(codec.put_read(10, 5, 7))
    assert one.output().hex() == "000000140202000000000000000000050000000000000007"
    one.send(codec.put_read_batch(11, 5, 7, 30, 16, 4096))
    size, head, ledger_id, entry_id, _, count, limit = struct.unpack(">iIqqqiq", one.output())
    assert (size, head, ledger_id, entry_id) == (40, 0x02070000, 5, 7)
    assert (count, limit) == (16, 4096)


def test_version_3_frames_have_what_apaches_bookies_look_at() -> None:
    one = translation(3)
    request_id = (SLOT_MAX << SLOT_SHIFT) + 7
    one.send(add_frame(request_id) + add_frame(8, RECOVERY))
    plain_add, recovery = sent_v3(one)
    body = {"ledgerId": 5, "entryId": 7, "masterKey": KEY, "body": ENTRY}
    assert plain_add == {
        "header": {"version": 3, "operation": ADD, "txnId": request_id},
        "addRequest": body,
    }
    assert recovery == {
        "header": {"version": 3, "operation": ADD, "txnId": 8, "priority": 100},
        "addRequest": body | {"flag": 1},
    }
    one.send(codec.put_read(3, 5, -1, codec.FLAG_FENCE, KEY))
    one.send(codec.put_force(4, 5) + codec.put_read_lac(6, 5, -1))
    one.send(codec.put_write_lac(7, 5, 6, KEY, b"b" * 20))
    fence, force, lac, write_lac = sent_v3(one)
    assert fence["header"] == {"version": 3, "operation": READ, "txnId": 3, "priority": 100}
    assert fence["readRequest"] == {"ledgerId": 5, "entryId": -1, "masterKey": KEY, "flag": 1}
    assert force["forceLedgerRequest"] == lac["readLacRequest"] == {"ledgerId": 5}
    assert write_lac["writeLacRequest"] == {
        "ledgerId": 5,
        "lac": 6,
        "masterKey": KEY,
        "body": b"b" * 20,
    }
    one.send(codec.put_read_lac(12, 5, 41, 900, codec.FLAG_PIGGYBACK))
    (poll,) = sent_v3(one)
    assert poll["readRequest"] == {
        "ledgerId": 5,
        "entryId": -1,
        "previousLAC": 41,
        "timeOut": 900,
        "flag": 2,
    }


def test_version_2_is_asked_only_what_its_answers_can_be_told_apart_for() -> None:
    deferred = LedgerCodec(5, DigestType.CRC32C, b"passwd", codec.FLAG_DEFERRED_SYNC)
    asked = {
        add_frame(1): True,
        add_frame(2, RECOVERY): False,
        add_frame(3, deferred): True,
        codec.put_read(4, 5, -1): True,
        codec.put_read(5, 5, -1, codec.FLAG_FENCE, KEY): False,
        codec.put_read_batch(6, 5, 0, 9, 9, 99): True,
        codec.put_read_lac(7, 5, 0): False,
        codec.put_force(8, 5): False,
        codec.put_list_entries(9, 5, 0, 9): False,
        codec.put_info(10): False,
        b"junk": False,
    }
    assert {frame: v2_takes(frame) for frame in asked} == asked
    one = translation(2)
    for frame in (codec.put_read(5, 5, -1, codec.FLAG_FENCE, KEY), codec.put_force(8, 5)):
        one.send(frame)
    assert one.output() == b""
    assert statuses(one) == [(5, Status.UNSUPPORTED), (8, Status.UNSUPPORTED)]


def test_what_is_no_frame_of_ours_ends_the_connection() -> None:
    for junk in (b"x", b"\x04\0\0\0junk", add_frame(1)[:-1]):
        with pytest.raises(ProtocolError):
            translation(3).send(junk)


def test_more_than_apaches_frame_holds_is_refused_here() -> None:
    one = FrameTranslation(3, 4096)
    one.send(bytes(LEDGER.encode_adds(1, 7, 6, 0, [bytes(4096)])[0]))
    assert (one.output(), statuses(one)) == (b"", [(1, Status.TOO_LARGE)])


# --- answers ---------------------------------------------------------------------------------------------------------


def test_statuses_of_both_versions_become_ours() -> None:
    expected = {
        0: Status.OK,
        402: Status.NO_LEDGER,
        403: Status.NO_ENTRY,
        404: Status.BAD_REQUEST,
        501: Status.IO_ERROR,
        502: Status.UNAUTHORIZED,
        503: Status.UNSUPPORTED,
        504: Status.FENCED,
        505: Status.READ_ONLY,
        506: Status.TOO_MANY_REQUESTS,
        507: Status.CANNOT_TELL,
    }
    for status, ours in expected.items():
        one = translation(3)
        one.receive(v3_reply(ADD, 77, status))
        assert statuses(one) == [(77, ours)]
    for error, ours in zip(
        (0, 1, 2, 100, 101, 102, 103, 104, 105, 106, 107, 3, -1),
        (*expected.values(), Status.IO_ERROR, Status.IO_ERROR),
        strict=True,
    ):
        one = translation(2)
        one.send(add_frame(77))
        one.receive(v2_reply(1, error, 5, 7))
        assert statuses(one) == [(77, ours)]


def test_a_good_status_outside_does_not_hide_the_one_inside() -> None:
    bodies: dict[int, dict[str, object]] = {
        ADD: {"addResponse": {"status": 504, "ledgerId": 5, "entryId": 7}},
        READ: {"readResponse": {"status": 504, "ledgerId": 5, "entryId": 7}},
        10: {"forceLedgerResponse": {"status": 504, "ledgerId": 5}},
    }
    for operation, body in bodies.items():
        one = translation(3)
        one.receive(v3_reply(operation, 77, **body))
        assert statuses(one) == [(77, Status.FENCED)]


def test_answers_of_version_2_go_to_who_asked_first() -> None:
    one = translation(2)
    for request_id in range(1, 201):
        one.send(codec.put_read(request_id, 5, request_id % 3 - 1))
    for _ in range(66):
        one.receive(v2_reply(2, 0, 5, 0, ENTRY) + v2_reply(2, 0, 5, -1, ENTRY))
    order = [request_id for request_id, _, _ in told(one)]
    assert order[0::2] == [one for one in range(1, 200) if one % 3 == 1][:66]
    assert order[1::2] == [one for one in range(1, 200) if one % 3 == 0][:66]
    one.receive(v2_reply(1, 0, 5, 1) + v2_reply(2, 0, 6, 1, ENTRY) + v2_reply(2, 0, 5, 2, ENTRY))
    assert (told(one), one.dropped) == ([], 3)


def test_an_entry_is_named_by_its_own_bytes() -> None:
    one = translation(3)
    body = {"status": 0, "ledgerId": 5, "entryId": -1, "body": ENTRY, "maxLAC": 6}
    one.receive(v3_reply(READ, 9, readResponse=body))
    ((request_id, _, answer),) = told(one)
    assert (request_id, answer.entry_id, answer.lac, answer.entries) == (9, 7, 6, ENTRY)
    for short in (b"", b"x" * 31):
        one.receive(v3_reply(READ, 9, readResponse=body | {"body": short}))
        assert told(one)[0][2].entry_id == -1


def test_a_poll_whose_number_says_more_than_its_entry_is_proven() -> None:
    one = translation(3)
    one.send(codec.put_read_lac(12, 5, 6, 900))
    (poll,) = sent_v3(one)
    body = {"status": 0, "ledgerId": 5, "entryId": -1, "body": ENTRY, "maxLAC": 7}
    one.receive(v3_reply(READ, number_of(poll), readResponse=body))
    (question,) = sent_v3(one)
    assert question["readLacRequest"] == {"ledgerId": 5}
    assert told(one) == []
    reply = {"status": 0, "ledgerId": 5, "lacBody": b"l" * 20, "lastEntryBody": ENTRY}
    one.receive(v3_reply(7, number_of(question), readLacResponse=reply))
    ((request_id, _, answer),) = told(one)
    assert (request_id, answer.extra, answer.entries) == (12, b"l" * 20, ENTRY)
    one.send(codec.put_read_lac(13, 5, 5, 900))
    one.receive(v3_reply(READ, number_of(sent_v3(one)[0]), readResponse=body))
    assert [one[0] for one in told(one)] == [13], "LAC 6 is in the entry's own bytes"


# How the translation reads several of Apache's answers: batches of single reads, lists; and of
# any bytes at all.


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
