"""Apache's replies as a bookie writes them: recorded bytes for version 2, protobuf as the judge of version 3."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastbk.native._client import ffi, lib
from fastbk.native.apache import (
    ApacheReply,
    ApacheStatus,
    Operation,
    echo_of,
    put_reply,
)
from tests.fixtures.apache_messages import response


def put_add_reply(reply: ApacheReply) -> bytes:
    """Return the whole frame of an add's reply, made by the bookie's fast path."""
    echo = ffi.new("struct fbk_apache_echo *", echo_of(reply))
    out = bytearray(lib.FBK_APACHE_ADD_REPLY_BYTES_MAX)
    size_bytes = lib.fbk_apache_put_add_reply(ffi.from_buffer("uint8_t[]", out), echo, reply.status)
    return bytes(out[: int(size_bytes)])


def error_v2(status: int) -> int:
    """Return the number of a status in version 2."""
    return int(lib.fbk_apache_error_v2(status))


# Ledger 5, entry 7, LAC 6, length 123, CRC32C, "hello"; and the body of an explicit LAC.
ENTRY = bytes.fromhex(
    "000000000000000500000000000000070000000000000006000000000000007b8f06b47a68656c6c6f"
)
LAC_BODY = bytes.fromhex("000000000000000500000000000000064e206979")


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_answer_of_version_2_to_an_add(version: int) -> None:
    reply = ApacheReply(2, version, Operation.ADD, ApacheStatus.EFENCED, ledger_id=5, entry_id=7)
    first = {0: "00000001", 1: "01010000", 2: "02010000"}[version]
    expected = bytes.fromhex("00000018" + first + "0000006800000000000000050000000000000007")
    assert put_reply(reply) == put_add_reply(reply) == expected


def test_an_answer_of_version_2_to_a_read() -> None:
    reply = ApacheReply(2, 2, Operation.READ, ledger_id=5, entry_id=-1, entry=ENTRY)
    ids = "0000000000000005ffffffffffffffff"
    assert put_reply(reply) == bytes.fromhex("000000410202000000000000" + ids) + ENTRY
    missing = put_reply(replace(reply, status=ApacheStatus.ENOENTRY))
    assert missing == bytes.fromhex("000000180202000000000002" + ids)


def test_an_answer_to_a_batch_read() -> None:
    reply = ApacheReply(
        2,
        2,
        Operation.READ_BATCH,
        transaction_id=9,
        ledger_id=5,
        entry_id=7,
        entries=(b"abc", b"defgh"),
    )
    ids = "000000000000000500000000000000070000000000000009"
    entries = bytes.fromhex("00000003") + b"abc" + bytes.fromhex("00000005") + b"defgh"
    assert put_reply(reply) == bytes.fromhex("000000300207000000000000" + ids) + entries
    missing = put_reply(replace(reply, status=ApacheStatus.ENOLEDGER))
    assert missing == bytes.fromhex("000000200207000000000001" + ids)


def test_an_answer_of_version_2_to_an_auth() -> None:
    reply = ApacheReply(2, 0, Operation.AUTH, plugin=b"AuthDisabledPlugin", blob=b"")
    message = b"\x0a\x12AuthDisabledPlugin\x12\x00"
    assert (
        put_reply(reply)
        == (4 + len(message)).to_bytes(4, "big") + bytes.fromhex("02030000") + message
    )


def test_version_2_answers_nothing_that_it_cannot_ask() -> None:
    with pytest.raises(ValueError, match="no reply"):
        put_reply(ApacheReply(2, 2, Operation.FORCE))


EDGES = [0, 1, 127, 128, 2**31, 2**63 - 1, -1, -(2**63)]


@pytest.mark.parametrize("edge", EDGES)
def test_the_fast_answer_to_an_add_is_the_answer(edge: int) -> None:
    for status in ApacheStatus:
        reply = ApacheReply(3, 3, Operation.ADD, status, edge & (2**64 - 1), edge, -edge // 2)
        assert put_add_reply(reply) == put_reply(reply)
        assert response(put_reply(reply)[4:]) == {
            "header": {"version": 3, "operation": 2, "txnId": edge & (2**64 - 1)},
            "status": status,
            "addResponse": {"status": status, "ledgerId": edge, "entryId": -edge // 2},
        }


def test_answers_of_version_3_are_what_protobuf_reads() -> None:
    def said(operation: Operation, **fields: object) -> dict[str, object]:
        frame = put_reply(
            ApacheReply(3, 3, operation, transaction_id=77, ledger_id=5, entry_id=7, **fields)
        )  # type: ignore[arg-type]
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        message = response(frame[4:])
        assert message.pop("header") == {"version": 3, "operation": operation, "txnId": 77}
        assert message.pop("status") == fields.get("status", 0)
        return message

    ids = {"status": 0, "ledgerId": 5, "entryId": 7}
    assert said(Operation.READ, entry=ENTRY, lac=6) == {
        "readResponse": {**ids, "body": ENTRY, "maxLAC": 6}
    }
    assert said(Operation.READ, lac=-1, lac_time_ms=99) == {
        "readResponse": {**ids, "maxLAC": -1, "lacUpdateTimestamp": 99}
    }
    failed = said(Operation.READ, status=ApacheStatus.EUNKNOWNLEDGERSTATE, entry=ENTRY)
    assert failed == {"readResponse": {**ids, "status": 507}}
    del ids["entryId"]
    assert said(Operation.READ_LAC, entry=ENTRY, lac_body=LAC_BODY) == {
        "readLacResponse": {**ids, "lacBody": LAC_BODY, "lastEntryBody": ENTRY}
    }
    assert said(Operation.READ_LAC) == {"readLacResponse": ids}
    assert said(Operation.WRITE_LAC) == {"writeLacResponse": ids}
    assert said(Operation.FORCE) == {"forceLedgerResponse": ids}
    assert said(Operation.INFO, total_bytes=2**62, free_bytes=0) == {
        "getBookieInfoResponse": {"status": 0, "totalDiskCapacity": 2**62, "freeDiskSpace": 0}
    }
    assert said(Operation.INFO) == {"getBookieInfoResponse": {"status": 0}}
    assert said(Operation.LIST, blob=bytes(300)) == {
        "getListOfEntriesOfLedgerResponse": {**ids, "availabilityOfEntriesOfLedger": bytes(300)}
    }
    assert said(Operation.LIST, status=402) == {
        "getListOfEntriesOfLedgerResponse": {**ids, "status": 402}
    }
    assert said(Operation.AUTH, plugin=b"AuthDisabledPlugin", blob=b"") == {
        "authResponse": {"authPluginName": "AuthDisabledPlugin", "payload": b""}
    }
    assert said(Operation.AUTH, status=ApacheStatus.EUA) == {}
    assert said(Operation.START_TLS, status=ApacheStatus.EBADREQ) == {}
    assert said(Operation.START_TLS) == {"startTLSResponse": {}}
    assert said(Operation.READ_BATCH, status=ApacheStatus.EBADREQ) == {}


def test_statuses_of_version_2() -> None:
    numbers = {status.name: error_v2(status) for status in ApacheStatus}
    assert numbers == {
        "EOK": 0,
        "ENOLEDGER": 1,
        "ENOENTRY": 2,
        "EBADREQ": 100,
        "EIO": 101,
        "EUA": 102,
        "EBADVERSION": 103,
        "EFENCED": 104,
        "EREADONLY": 105,
        "ETOOMANYREQUESTS": 106,
        "EUNKNOWNLEDGERSTATE": 101,  # its own number makes Java's client of version 2 wait for ever
    }
