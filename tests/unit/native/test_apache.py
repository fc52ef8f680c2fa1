"""Apache's requests as a bookie reads them: recorded bytes, and every verdict at its edge."""

from __future__ import annotations

import struct
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fastbk.errors import ProtocolError
from fastbk.native._client import ffi, lib
from fastbk.native.apache import (
    CLOSE,
    GOOD,
    NO_FLAGS,
    REFUSE,
    ApacheReply,
    ApacheRequest,
    ApacheStatus,
    Operation,
    RequestFlag,
    echo_of,
    put_reply,
    read_request,
)
from tests.fixtures.apache_messages import (
    ADD_FLAG,
    OPERATION,
    READ_FLAG,
    VERSION,
    request,
    response,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def frame_version(body: bytes) -> int:
    """Return 2 or 3, the protocol that a frame's body is in; 0 if it is empty."""
    return int(lib.fbk_apache_frame_version(body, len(body)))


GOLDEN = Path(__file__).parents[2] / "golden" / "apache"
KEY = bytes.fromhex("9596625852f7fafc2c9cf0f9f7f3e5995206452b")
# Ledger 5, entry 7, LAC 6, length 123, CRC32C, "hello".
ENTRY = bytes.fromhex(
    "000000000000000500000000000000070000000000000006000000000000007b8f06b47a68656c6c6f"
)
LAC_BODY = bytes.fromhex("000000000000000500000000000000064e206979")
# What Apache's own client sends, without the length in front.
ADD_V2 = bytes.fromhex("02010000") + KEY + ENTRY
READ_V2 = bytes.fromhex("0202000000000000000000050000000000000007")
FENCE_V2 = bytes.fromhex("020200050000000000000005ffffffffffffffff") + KEY
BATCH_V2 = bytes.fromhex("02070000") + struct.pack(">qqqiq", 5, 7, 99, 10, 4096)


def header(operation: str, version: str = "VERSION_THREE", **more: int) -> dict[str, int]:
    return {"version": VERSION[version], "operation": OPERATION[operation], "txnId": 77, **more}


def v3(operation: str, version: str = "VERSION_THREE", **bodies: object) -> bytes:
    return request(header=header(operation, version), **bodies)


def good(body: bytes) -> ApacheRequest:
    verdict, status, read = read_request(body)
    assert (verdict, status) == (GOOD, ApacheStatus.EOK)
    return read


def refused(body: bytes) -> tuple[int, ApacheRequest]:
    verdict, status, read = read_request(body)
    assert verdict == REFUSE
    return status, read


def is_closed(body: bytes) -> bool:
    return read_request(body)[0] == CLOSE


# ---- version 2


def test_an_add_is_read() -> None:
    assert good(ADD_V2) == ApacheRequest(
        protocol=2,
        version=2,
        operation=Operation.ADD,
        ledger_id=5,
        entry_id=7,
        echo_ledger_id=5,
        echo_entry_id=7,
        master_key=KEY,
        body=ENTRY,
    )


def test_a_read_is_read() -> None:
    assert good(READ_V2) == ApacheRequest(
        protocol=2,
        version=2,
        operation=Operation.READ,
        ledger_id=5,
        entry_id=7,
        echo_ledger_id=5,
        echo_entry_id=7,
    )


def test_a_fencing_read_of_the_last_entry_is_read() -> None:
    read = good(FENCE_V2)
    assert read.flags == RequestFlag.FENCE | RequestFlag.HIGH_PRIORITY
    assert (read.entry_id, read.echo_entry_id, read.master_key) == (-1, -1, KEY)


def test_a_batch_read_is_read() -> None:
    read = good(BATCH_V2)
    assert (read.operation, read.transaction_id, read.entry_id) == (Operation.READ_BATCH, 99, 7)
    assert (read.count_max, read.size_bytes_max, read.master_key) == (10, 4096, None)
    fencing = good(bytes.fromhex("02070001") + struct.pack(">qqqiq", 5, -1, 1, -1, -1) + KEY)
    assert (fencing.flags, fencing.master_key) == (RequestFlag.FENCE, KEY)
    assert (fencing.entry_id, fencing.count_max, fencing.size_bytes_max) == (-1, -1, -1)


def test_an_auth_is_read() -> None:
    read = good(bytes.fromhex("020300000a04736173741203010203"))
    assert (read.operation, read.plugin, read.body) == (Operation.AUTH, b"sast", b"\x01\x02\x03")
    assert is_closed(bytes.fromhex("020300000a0473617374"))  # no payload
    assert good(bytes.fromhex("0203ffff0a04736173741200")).flags == NO_FLAGS


def test_flags_mean_what_they_mean_for_their_operation() -> None:
    assert (
        good(bytes.fromhex("02010006") + ADD_V2[4:]).flags
        == RequestFlag.RECOVERY | RequestFlag.HIGH_PRIORITY
    )
    # fencing is for reads
    assert good(bytes.fromhex("0201fff9") + ADD_V2[4:]).flags == RequestFlag(0)
    # recovery is for adds
    assert good(bytes.fromhex("0202fffa") + READ_V2[4:]).flags == RequestFlag(0)


def test_versions_0_and_1_are_read() -> None:
    old = good(bytes.fromhex("01010002") + ADD_V2[4:])
    assert (old.version, old.flags) == (1, RequestFlag.RECOVERY)
    # Version 0: the opcode is the whole number (its last byte), and there are no flags.
    oldest = good(bytes.fromhex("00070002") + READ_V2[4:])
    assert (oldest.version, oldest.operation, oldest.flags) == (0, Operation.READ, NO_FLAGS)


@pytest.mark.parametrize("version", [3, 9, 11, 127, 128, 255])
def test_a_later_version_is_refused_when_it_looks_like_this_one(version: int) -> None:
    for body in (ADD_V2, READ_V2, BATCH_V2):
        status, read = refused(bytes([version]) + body[1:])
        assert status == ApacheStatus.EBADVERSION
        assert (read.protocol, read.version, read.echo_ledger_id) == (2, version, 5)


def test_a_fence_needs_a_key() -> None:
    status, read = refused(bytes.fromhex("01020001") + READ_V2[4:])  # version 1 has none
    assert (status, read.echo_entry_id) == (ApacheStatus.EUA, 7)
    assert is_closed(bytes.fromhex("02020001") + READ_V2[4:] + KEY[:19])


@pytest.mark.parametrize(
    "body", [ADD_V2[:40], READ_V2, FENCE_V2, BATCH_V2], ids=["add", "read", "fence", "batch"]
)
def test_a_packet_that_ends_early_closes(body: bytes) -> None:
    assert not is_closed(body)
    assert all(is_closed(body[:size]) for size in range(len(body)))


@pytest.mark.parametrize("opcode", [0, 4, 5, 6, 8, 255])
def test_an_unknown_opcode_closes(opcode: int) -> None:
    assert is_closed(bytes([2, opcode, 0, 0]) + bytes(100))


def test_an_entry_without_its_header_is_refused() -> None:
    for size in range(16, 32):
        status, read = refused(bytes.fromhex("02010000") + KEY + ENTRY[:size])
        assert (status, read.echo_ledger_id, read.echo_entry_id) == (ApacheStatus.EBADREQ, 5, 7)
    assert good(bytes.fromhex("02010000") + KEY + ENTRY[:32]).body == ENTRY[:32]


# ---- version 3


def add_v3(**more: object) -> bytes:
    fields = {"ledgerId": 5, "entryId": 7, "masterKey": KEY, "body": ENTRY, **more}
    return v3("ADD_ENTRY", addRequest=fields)


def read_v3(**more: object) -> bytes:
    return v3("READ_ENTRY", readRequest={"ledgerId": 5, "entryId": 7, **more})


def test_an_add_of_version_3_is_read() -> None:
    assert good(add_v3()) == ApacheRequest(
        protocol=3,
        version=3,
        operation=Operation.ADD,
        transaction_id=77,
        ledger_id=5,
        entry_id=7,
        echo_ledger_id=5,
        echo_entry_id=7,
        master_key=KEY,
        body=ENTRY,
    )


def test_an_add_is_stored_under_its_own_ids_and_answered_with_those_asked_for() -> None:
    read = good(add_v3(ledgerId=-3, entryId=1 << 62))
    assert (read.ledger_id, read.entry_id) == (5, 7)
    assert (read.echo_ledger_id, read.echo_entry_id) == (-3, 1 << 62)


def test_flags_of_adds() -> None:
    assert good(add_v3(writeFlags=1)).flags == RequestFlag.DEFERRED_SYNC
    assert good(add_v3(writeFlags=-2)).flags == NO_FLAGS
    assert good(add_v3(flag=ADD_FLAG["RECOVERY_ADD"])).flags == RequestFlag.RECOVERY
    # A recovery add is synced, whatever else it says.
    assert good(add_v3(flag=ADD_FLAG["RECOVERY_ADD"], writeFlags=1)).flags == RequestFlag.RECOVERY


@pytest.mark.parametrize(
    ("priority", "is_high"), [(0, False), (1, True), (100, True), (2**31, False)]
)
def test_priority(priority: int, is_high: bool) -> None:
    body = request(
        header=header("READ_ENTRY", priority=priority), readRequest={"ledgerId": 1, "entryId": 2}
    )
    assert (RequestFlag.HIGH_PRIORITY in good(body).flags) == is_high


def test_adds_that_cannot_be_stored_are_refused() -> None:
    assert refused(add_v3(body=ENTRY[:31]))[0] == ApacheStatus.EBADREQ
    assert refused(add_v3(body=b""))[0] == ApacheStatus.EBADREQ
    status, read = refused(add_v3(masterKey=KEY[:19]))
    assert (status, read.echo_entry_id, read.transaction_id) == (ApacheStatus.EUA, 7, 77)


def test_reads_of_version_3() -> None:
    assert good(read_v3()).flags == NO_FLAGS
    fencing = good(read_v3(flag=READ_FLAG["FENCE_LEDGER"], masterKey=KEY, previousLAC=3, timeOut=9))
    assert (fencing.flags, fencing.master_key) == (RequestFlag.FENCE, KEY)
    assert refused(read_v3(flag=READ_FLAG["FENCE_LEDGER"]))[0] == ApacheStatus.EUA
    assert refused(read_v3(flag=READ_FLAG["FENCE_LEDGER"], masterKey=b""))[0] == ApacheStatus.EUA


def test_long_polls() -> None:
    waiting = good(read_v3(entryId=-1, previousLAC=-1, timeOut=1000))
    assert waiting.flags == RequestFlag.HAS_PREVIOUS_LAC | RequestFlag.HAS_TIMEOUT
    assert (waiting.previous_lac, waiting.timeout_ms) == (-1, 1000)
    assert good(read_v3(previousLAC=4)).flags == RequestFlag.HAS_PREVIOUS_LAC
    assert good(read_v3(timeOut=4)).flags == NO_FLAGS


def test_piggyback_is_of_long_polls_for_the_last_entry() -> None:
    wanted = {"flag": READ_FLAG["ENTRY_PIGGYBACK"]}
    read = good(read_v3(entryId=-1, previousLAC=4, **wanted))
    assert read.flags == RequestFlag.HAS_PREVIOUS_LAC | RequestFlag.PIGGYBACK
    status, read = refused(read_v3(entryId=5, previousLAC=4, **wanted))
    assert (status, read.echo_entry_id) == (ApacheStatus.EBADREQ, 5)
    # nothing to wait for: a plain read
    assert good(read_v3(entryId=-1, **wanted)).flags == RequestFlag(0)


def test_write_lac_is_for_what_its_body_says() -> None:
    fields = {"ledgerId": 9, "lac": 9, "masterKey": KEY, "body": LAC_BODY}
    read = good(v3("WRITE_LAC", writeLacRequest=fields))
    assert (read.ledger_id, read.entry_id, read.echo_ledger_id) == (5, 6, 9)
    assert (read.body, read.master_key) == (LAC_BODY, KEY)
    assert (
        refused(v3("WRITE_LAC", writeLacRequest={**fields, "body": LAC_BODY[:15]}))[0]
        == ApacheStatus.EBADREQ
    )
    assert (
        refused(v3("WRITE_LAC", writeLacRequest={**fields, "masterKey": b""}))[0]
        == ApacheStatus.EUA
    )


def test_small_requests() -> None:
    for operation, name in (
        ("READ_LAC", "readLacRequest"),
        ("FORCE_LEDGER", "forceLedgerRequest"),
        ("GET_LIST_OF_ENTRIES_OF_LEDGER", "getListOfEntriesOfLedgerRequest"),
    ):
        read = good(v3(operation, **{name: {"ledgerId": 8}}))
        assert (read.operation, read.ledger_id, read.echo_ledger_id) == (OPERATION[operation], 8, 8)
    assert good(v3("GET_BOOKIE_INFO", getBookieInfoRequest={"requested": 3})).info_wanted == 3
    assert good(v3("GET_BOOKIE_INFO", getBookieInfoRequest={})).info_wanted == 0
    assert good(v3("START_TLS", startTLSRequest={})).operation == Operation.START_TLS


def test_auth_and_start_tls_come_before_everything() -> None:
    auth = {"authPluginName": "sasl", "payload": b"xy"}
    read = good(v3("AUTH", version="VERSION_ONE", authRequest=auth))
    assert (read.plugin, read.body) == (b"sasl", b"xy")
    assert good(v3("AUTH")).plugin is None
    assert good(v3("START_TLS", version="VERSION_TWO")).operation == Operation.START_TLS


@pytest.mark.parametrize("operation", ["RANGE_READ_ENTRY", "RANGE_ADD_ENTRY", "BATCH_READ_ENTRY"])
def test_operations_that_only_have_a_number_are_refused(operation: str) -> None:
    status, read = refused(v3(operation, version="VERSION_TWO"))
    assert (status, read.operation, read.transaction_id) == (
        ApacheStatus.EBADREQ,
        OPERATION[operation],
        77,
    )


@pytest.mark.parametrize("version", ["VERSION_ONE", "VERSION_TWO"])
def test_a_message_of_another_version_is_refused(version: str) -> None:
    status, read = refused(v3("READ_ENTRY", version, readRequest={"ledgerId": 5, "entryId": 7}))
    assert (status, read.echo_ledger_id, read.echo_entry_id) == (ApacheStatus.EBADVERSION, 5, 7)
    assert refused(v3("ADD_ENTRY", version))[0] == ApacheStatus.EBADVERSION


def test_an_operation_without_its_message_is_refused() -> None:
    for name in (
        "READ_ENTRY",
        "ADD_ENTRY",
        "WRITE_LAC",
        "READ_LAC",
        "FORCE_LEDGER",
        "GET_BOOKIE_INFO",
    ):
        assert refused(v3(name))[0] == ApacheStatus.EBADREQ


def test_what_is_no_message_closes() -> None:
    body = add_v3()
    header_bytes = 2 + body[1]  # with these alone it is a message, of an operation without its own
    assert all(is_closed(body[:size]) for size in range(len(body)) if size != header_bytes)
    assert is_closed(body + b"\x0c")
    # no operation has number 13
    assert is_closed(v3("READ_ENTRY").replace(b"\x10\x01", b"\x10\x0d", 1))


RECORDED = {
    "plain_add": (Operation.ADD, NO_FLAGS),
    "add": (Operation.ADD, RequestFlag.DEFERRED_SYNC),
    "recovery_add": (Operation.ADD, RequestFlag.RECOVERY | RequestFlag.HIGH_PRIORITY),
    "read": (Operation.READ, NO_FLAGS),
    "fence": (Operation.READ, RequestFlag.FENCE | RequestFlag.HIGH_PRIORITY),
    "long_poll": (
        Operation.READ,
        RequestFlag.HAS_PREVIOUS_LAC | RequestFlag.HAS_TIMEOUT | RequestFlag.PIGGYBACK,
    ),
    "write_lac": (Operation.WRITE_LAC, NO_FLAGS),
    "read_lac": (Operation.READ_LAC, NO_FLAGS),
    "force": (Operation.FORCE, NO_FLAGS),
    "list": (Operation.LIST, NO_FLAGS),
    "info": (Operation.INFO, NO_FLAGS),
    "start_tls": (Operation.START_TLS, NO_FLAGS),
    "auth": (Operation.AUTH, NO_FLAGS),
}


@pytest.mark.parametrize("name", RECORDED)
def test_what_apaches_own_classes_wrote_is_read(name: str) -> None:
    """Recorded of 4.17.2's message classes: ledger 5, entry 7 (or -1), transaction 77."""
    read = good((GOLDEN / f"v3_{name}.bin").read_bytes())
    assert (read.operation, read.flags, read.transaction_id) == (*RECORDED[name], 77)
    assert read.echo_ledger_id == (5 if read.operation not in {8, 9, 5} else 0)
    if read.operation == Operation.ADD:
        assert (read.master_key, read.body) == (KEY, ENTRY)


def test_frame_version() -> None:
    assert frame_version(add_v3()) == 3
    assert frame_version(ADD_V2) == frame_version(b"\xff") == 2
    assert frame_version(b"") == 0


# Apache's replies as a bookie writes them: recorded bytes for version 2, protobuf as the judge of
# version 3.


def put_add_reply(reply: ApacheReply) -> bytes:
    """Return the whole frame of an add's reply, made by the bookie's fast path."""
    echo = ffi.new("struct fbk_apache_echo *", echo_of(reply))
    out = bytearray(lib.FBK_APACHE_ADD_REPLY_BYTES_MAX)
    size_bytes = lib.fbk_apache_put_add_reply(ffi.from_buffer("uint8_t[]", out), echo, reply.status)
    return bytes(out[: int(size_bytes)])


def error_v2(status: int) -> int:
    """Return the number of a status in version 2."""
    return int(lib.fbk_apache_error_v2(status))


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


# The list of a ledger's entries as Apache's bookies and clients know it.


def put_list(ranges: Sequence[tuple[int, int]]) -> bytes:
    """Return the list of a ledger's entries of ranges (first id, last id), which ascend and do not touch."""
    flat = ffi.new("int64_t[]", [number for each in ranges for number in each])
    size_bytes = int(lib.fbk_apache_put_list(ffi.NULL, 0, flat, len(ranges)))
    out = bytearray(size_bytes)
    lib.fbk_apache_put_list(ffi.from_buffer("uint8_t[]", out), size_bytes, flat, len(ranges))
    return bytes(out)


def read_list(blob: bytes, range_count_max: int) -> tuple[int, list[tuple[int, int]]]:
    """Return how many ranges a list of entries has and the first of them, at most `range_count_max`.

    Raises ProtocolError for what is no such list.
    """
    ranges = ffi.new("int64_t[]", 2 * range_count_max)
    count = int(lib.fbk_apache_read_list(blob, len(blob), ranges, range_count_max))
    if count < 0:
        raise ProtocolError("not a list of a ledger's entries")
    found = [
        (int(ranges[2 * i]), int(ranges[2 * i + 1])) for i in range(min(count, range_count_max))
    ]
    return count, found


Group = tuple[int, int, int, int]
INT32_MAX = 2**31 - 1


def list_of(*groups: Group) -> bytes:
    """Return the list of groups: first sequence's start, last sequence's, size, period."""
    packed = b"".join(struct.pack(">qqii", *group) for group in groups)
    return struct.pack(">ii56x", 0, len(groups)) + packed


def groups_of(blob: bytes) -> list[Group]:
    version, count = struct.unpack_from(">ii56x", blob)
    assert (version, len(blob)) == (0, 64 + 24 * count)
    return list(struct.iter_unpack(">qqii", blob[64:]))


@pytest.mark.parametrize(
    ("ranges", "groups"),
    [
        ([], []),
        ([(7, 7)], [(7, 7, 1, 0)]),
        ([(0, 9), (20, 29)], [(0, 0, 10, 0), (20, 20, 10, 0)]),
        (
            [(0, 1), (5, 6), (10, 11), (15, 16)],
            [(0, 0, 2, 0), (5, 5, 2, 0), (10, 10, 2, 0), (15, 15, 2, 0)],
        ),
    ],
)
def test_lists_of_apaches_own_bookies_are_read(
    ranges: list[tuple[int, int]], groups: list[Group]
) -> None:
    """Recorded: its class of 4.17.2 has the means to group sequences, but makes each a group of its own."""
    assert read_list(list_of(*groups), 10) == (len(ranges), ranges)


def test_sequences_of_one_size_and_spacing_are_one_group() -> None:
    ranges = [(5 * i, 5 * i + 1) for i in range(1000)]
    assert groups_of(put_list(ranges)) == [(0, 4995, 2, 5)]
    assert read_list(put_list(ranges), 1000) == (1000, ranges)


def test_a_gap_of_more_than_one_id_between_groups_is_an_empty_group() -> None:
    """Apache's reader takes the list for finished at the second id of a gap, and all that follows for missing."""
    assert groups_of(put_list([(0, 9), (11, 12), (20, 29)])) == [
        (0, 0, 10, 0),
        (11, 11, 2, 0),
        (13, 19, 0, 1),
        (20, 20, 10, 0),
    ]


def test_sizes_and_spacings_of_more_than_31_bits() -> None:
    long = [(3, 3 + 2 * INT32_MAX)]
    assert [group[2] for group in groups_of(put_list(long))] == [INT32_MAX, INT32_MAX, 1]
    far = [(0, 0), (2**31, 2**31), (2**32, 2**32), (2**62, 2**62)]
    for ranges in (long, far):
        assert read_list(put_list(ranges), 10) == (len(ranges), ranges)


def test_only_as_many_ranges_as_there_is_room_for() -> None:
    blob = list_of(
        (0, 10 * (2**60 // 10), 1, 10), (2**61, 2**61, 4, 0), (2**61 + 4, 2**61 + 4, 4, 0)
    )
    count = 2**60 // 10 + 2
    assert read_list(blob, 0) == (count, [])
    assert read_list(blob, 3) == (count, [(0, 0), (10, 10), (20, 20)])


def test_sequences_that_touch_are_one_range() -> None:
    assert read_list(list_of((0, 8, 4, 4), (12, 12, 3, 0)), 5) == (1, [(0, 14)])
    assert read_list(list_of((0, 4, 1, 4), (5, 5, 3, 0)), 2) == (2, [(0, 0), (4, 7)])


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        bytes(63),
        struct.pack(">ii56x", 1, 0),
        struct.pack(">ii56x", -1, 0),
        struct.pack(">ii56x", 0, -1),
        list_of((0, 0, 1, 0))[:-1],
        list_of((-1, 5, 1, 1)),
        list_of((0, -1, 1, 1)),
        list_of((5, -(2**63), 1, 1)),
        list_of((0, 0, -1, 0)),
        list_of((0, 10, 2, 0)),
        list_of((0, 10, 2, -5)),
        list_of((0, 10, 2, 1)),
        list_of((0, 10, 2, 3)),
        list_of((0, 10, 4, 4)),
        list_of((2**63 - 1, 2**63 - 1, 1, 0)),
        list_of((10, 10, 1, 0), (10, 10, 1, 0)),
        list_of((10, 10, 5, 0), (14, 14, 1, 0)),
        list_of((10, 10, 5, 0), (1, 1, 1, 0)),
    ],
)
def test_what_is_no_list_is_refused(blob: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_list(blob, 10)


@st.composite
def ranges_of(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Ranges that ascend and do not touch, many of them of one size and evenly spaced."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 2, 2, 3]), max_size=20))
    gaps = draw(
        st.lists(st.sampled_from([1, 3, 3, 3, 4]), min_size=len(sizes), max_size=len(sizes))
    )
    ends = accumulate(size + gap for size, gap in zip(sizes, gaps, strict=True))
    return [(end - size, end - 1) for size, end in zip(sizes, ends, strict=True)]


def missing_to_apache(groups: list[Group], first: int, last: int) -> list[int]:
    """What its client misses of all ids first..last: it goes along, and stops where it believes the list to end."""
    starts = [group[0] for group in groups]
    missing, current, is_finished = [], None, False
    for entry_id in range(first, last + 1):
        if not is_finished and (current is None or entry_id > current[1] + current[2]):
            at = bisect_right(starts, entry_id) - 1
            current = groups[at] if at >= 0 else None
            is_finished = (
                entry_id > current[1] + current[2]
                if current
                else entry_id > max(starts, default=-1)
            )
        if is_finished or current is None:
            missing.append(entry_id)
            continue
        start, _, size, period = current
        if not ((entry_id - start) % period if period else entry_id - start) < size:
            missing.append(entry_id)
    return missing


@given(ranges_of(), st.integers(0, 30))
def test_apaches_client_misses_what_is_not_there_and_nothing_else(
    ranges: list[tuple[int, int]], first: int
) -> None:
    blob = put_list(ranges)
    assert read_list(blob, 100) == (len(ranges), ranges)
    there = {entry_id for start, end in ranges for entry_id in range(start, end + 1)}
    last = max(there, default=0) + 5
    expected = [entry_id for entry_id in range(first, last + 1) if entry_id not in there]
    assert missing_to_apache(groups_of(blob), first, last) == expected


def test_the_model_of_apaches_client_has_its_fault() -> None:
    """Recorded of 4.17.2's class: its own list of 0..9 and 20..29, asked for 0..31."""
    own = [(0, 0, 10, 0), (20, 20, 10, 0)]
    assert missing_to_apache(own, 0, 31) == list(range(10, 32))
