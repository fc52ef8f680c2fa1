"""Apache's requests as a bookie reads them: recorded bytes, and every verdict at its edge."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from fastbk.native._client import lib
from fastbk.native.apache import (
    CLOSE,
    GOOD,
    NO_FLAGS,
    REFUSE,
    ApacheRequest,
    ApacheStatus,
    Operation,
    RequestFlag,
    read_request,
)
from tests.fixtures.apache_messages import (
    ADD_FLAG,
    OPERATION,
    READ_FLAG,
    VERSION,
    request,
)


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
        assert (read.operation, read.ledger_id, read.echo_ledger_id) == (
            OPERATION[operation],
            8,
            8,
        )
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
