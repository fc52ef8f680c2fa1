"""The translation of a client's connection to one of Apache's bookies, byte by byte.

Requests are judged by protobuf's own reader and by recorded frames; answers are made by protobuf or by hand.
"""

from __future__ import annotations

import struct

import pytest

from fastbk.client.request_ids import SLOT_MAX, SLOT_SHIFT
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
