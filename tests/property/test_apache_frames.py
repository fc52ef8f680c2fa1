"""Our reader of Apache's messages against protobuf's own, on made and on broken bytes: one verdict, the same values."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from fastbk.native.apache import CLOSE, GOOD, ApacheRequest, Operation, RequestFlag, read_request
from tests.fixtures.apache_messages import MESSAGES, OPERATION, parsed, request

ENUM_NUMBERS = st.sampled_from([0, 1, 2, 3, 4, 12, 13, 100, 404, 507, 508, 2**31 - 1, -1])
EDGES = st.sampled_from([0, 1, -1, 5, 127, 128, 2**31 - 1, 2**31, 2**32, 2**63 - 1, -(2**63)])
INT64 = st.one_of(EDGES, st.integers(-(2**63), 2**63 - 1))
# Often the size of a master key, or enough for an entry.
BYTES = st.one_of(
    st.binary(max_size=60), st.binary(min_size=20, max_size=20), st.binary(min_size=32, max_size=60)
)


def varint(value: int, padding: int = 0) -> bytes:
    """Return a varint of a number of 64 bits, longer by as many bytes as it can be padded with."""
    value &= 2**64 - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    for _ in range(padding):
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


def field(number: int, wire: int, content: bytes) -> bytes:
    return varint(number << 3 | wire) + content


def sized(number: int, content: bytes, padding: int = 0) -> bytes:
    return field(number, 2, varint(len(content), padding) + content)


@st.composite
def unknown_fields(draw: st.DrawFn, depth: int = 0) -> bytes:
    """Any field, of any wire type: known ones of a wrong type, unknown ones, groups within groups."""
    number = draw(
        st.one_of(st.integers(1, 6), st.sampled_from([99, 100, 101, 108, 109, 200, 2**29 - 1]))
    )
    wire = draw(st.sampled_from([0, 1, 2, 3, 5] if depth < 3 else [0, 1, 2, 5]))
    if wire == 0:
        return field(number, 0, varint(draw(INT64), draw(st.integers(0, 2))))
    if wire == 1:
        return field(number, 1, draw(st.binary(min_size=8, max_size=8)))
    if wire == 2:
        return sized(number, draw(st.binary(max_size=12)), draw(st.integers(0, 2)))
    if wire == 5:
        return field(number, 5, draw(st.binary(min_size=4, max_size=4)))
    inner = b"".join(draw(st.lists(unknown_fields(depth + 1), max_size=2)))
    return field(number, 3, inner + field(number, 4, b""))


@st.composite
def message(draw: st.DrawFn, name: str) -> bytes:
    """The bytes of a message: most have their required fields, some twice, in any order, unknown ones between."""
    parts: list[bytes] = []
    for each in filter(None, MESSAGES[name].split(",")):
        number, _, label, kind = each.split()
        times = draw(st.sampled_from([1] * 12 + [0, 2] if label == "r" else [0, 0, 0, 0, 1, 2]))
        for _ in range(times):
            parts.append(draw(one_field(int(number), kind)))
    if draw(st.integers(0, 3)) == 0:
        parts += draw(st.lists(unknown_fields(), max_size=3))
    if draw(st.integers(0, 3)) == 0:
        parts = draw(st.permutations(parts))
    return b"".join(parts)


@st.composite
def one_field(draw: st.DrawFn, number: int, kind: str) -> bytes:
    if kind in MESSAGES:
        return sized(number, draw(message(kind)))
    if kind in ("bytes", "string"):
        return sized(number, draw(BYTES))
    if kind.startswith(("int", "uint")):
        return field(number, 0, varint(draw(INT64)))
    good = {"ProtocolVersion": 3, "OperationType": draw(st.integers(1, 12)), "StatusCode": 404}.get(
        kind, 1
    )
    return field(number, 0, varint(draw(st.one_of(st.just(good), st.just(good), ENUM_NUMBERS))))


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A Request, the message of its operation in most of them."""
    operation = draw(st.sampled_from(sorted(OPERATION.values())))
    header = (
        field(1, 0, b"\x03") + field(2, 0, varint(operation)) + field(3, 0, varint(draw(INT64)))
    )
    numbers = {
        int(each.split()[0]): each.split()[3]
        for each in MESSAGES["Request"].split(",")
        if each.split()[3] in MESSAGES
    }
    if draw(st.integers(0, 4)) == 0:
        header += draw(unknown_fields())
    parts = [sized(1, header)]
    own = {1: 100, 2: 101, 5: 102, 6: 103, 7: 104, 8: 105, 9: 106, 10: 107, 11: 108}.get(operation)
    if own is not None and draw(st.integers(0, 9)) > 0:
        parts.append(sized(own, draw(message(numbers[own]))))
    if draw(st.integers(0, 3)) == 0:
        other = draw(st.sampled_from(sorted(numbers)))
        parts.append(sized(other, draw(message(numbers[other]))))
    if draw(st.integers(0, 5)) == 0:
        parts += draw(st.lists(unknown_fields(), max_size=2))
    return b"".join(parts)


@st.composite
def plain_adds(draw: st.DrawFn) -> bytes:
    """An add as clients write it, which has a way of its own through the reader; nearly so, some of them."""
    padding = st.sampled_from([0] * 8 + [1, 5])
    header = (
        field(1, 0, b"\x03")
        + field(2, 0, b"\x02")
        + field(3, 0, varint(draw(INT64), draw(padding)))
    )
    body = (
        field(1, 0, varint(draw(INT64), draw(padding)))
        + field(2, 0, varint(draw(INT64)))
        + sized(3, draw(st.sampled_from([bytes(range(20))] * 8 + [b"", bytes(21)])))
        + sized(4, draw(st.binary(min_size=32, max_size=200)), draw(padding))
    )
    return sized(1, header) + sized(101, body, draw(padding))


@st.composite
def broken(draw: st.DrawFn, of: st.SearchStrategy[bytes]) -> bytes:
    """Bytes with a few changes: one byte another, cut short, a piece twice, something put in."""
    data = bytearray(draw(of))
    for _ in range(draw(st.sampled_from([1, 1, 1, 2]))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        match draw(st.integers(0, 4)):
            case 0 if data:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case 1:
                del data[at:]
            case 2:
                upto = draw(st.integers(at, min(at + 30, len(data))))
                data[at:at] = data[at:upto]
            case 3:
                data[at:at] = draw(unknown_fields())
            case _:
                data[at:at] = draw(
                    st.sampled_from(
                        [b"\xff" * 9 + b"\x01", b"\x80", b"\x0b", b"\x0c", b"\x00", b"\x7f"]
                    )
                )
    return bytes(data)


def number_of(fields: dict[str, object], name: str) -> int:
    value = fields.get(name, 0)
    assert isinstance(value, int)
    return value


def bytes_of(fields: dict[str, object], name: str) -> bytes | None:
    value = fields.get(name)
    assert value is None or isinstance(value, bytes | str)
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def agree_on_read(read: ApacheRequest, body: dict[str, object]) -> None:
    assert read.echo_ledger_id == read.ledger_id == body["ledgerId"]
    assert read.echo_entry_id == read.entry_id == body["entryId"]
    key = bytes_of(body, "masterKey")
    assert read.master_key == (key if key is not None and len(key) == 20 else None)
    fences = body.get("flag") == 1
    assert (RequestFlag.FENCE in read.flags) == fences
    assert (RequestFlag.HAS_PREVIOUS_LAC in read.flags) == ("previousLAC" in body and not fences)
    if RequestFlag.HAS_PREVIOUS_LAC in read.flags:
        assert read.previous_lac == body["previousLAC"]
        assert (RequestFlag.HAS_TIMEOUT in read.flags) == ("timeOut" in body)
        assert read.timeout_ms == number_of(body, "timeOut")
        assert (RequestFlag.PIGGYBACK in read.flags) == (body.get("flag") == 2)


def agree_on_add(verdict: int, read: ApacheRequest, body: dict[str, object]) -> None:
    assert (read.echo_ledger_id, read.echo_entry_id) == (body["ledgerId"], body["entryId"])
    entry = bytes_of(body, "body")
    assert entry is not None
    if len(entry) >= 32:
        assert read.body == entry
        assert read.ledger_id == int.from_bytes(entry[:8], "big", signed=True)
    can_be_stored = len(entry) >= 32 and len(bytes_of(body, "masterKey") or b"") == 20
    assert (verdict == GOOD) == (can_be_stored and read.version == 3)
    assert (RequestFlag.RECOVERY in read.flags) == ("flag" in body)
    assert (RequestFlag.DEFERRED_SYNC in read.flags) == (
        "flag" not in body and number_of(body, "writeFlags") & 1 == 1
    )


BODIES = {
    Operation.READ: "readRequest",
    Operation.ADD: "addRequest",
    Operation.AUTH: "authRequest",
    Operation.WRITE_LAC: "writeLacRequest",
    Operation.READ_LAC: "readLacRequest",
    Operation.INFO: "getBookieInfoRequest",
    Operation.FORCE: "forceLedgerRequest",
    Operation.LIST: "getListOfEntriesOfLedgerRequest",
}


def agree_on_body(verdict: int, read: ApacheRequest, body: dict[str, object]) -> None:
    match read.operation:
        case Operation.READ:
            agree_on_read(read, body)
        case Operation.ADD:
            agree_on_add(verdict, read, body)
        case Operation.AUTH:
            assert read.plugin == bytes_of(body, "authPluginName")
            assert read.body == bytes_of(body, "payload")
        case Operation.WRITE_LAC:
            assert read.echo_ledger_id == body["ledgerId"]
            assert read.body == bytes_of(body, "body")
        case Operation.INFO:
            assert read.info_wanted == number_of(body, "requested")
        case _:
            assert read.ledger_id == read.echo_ledger_id == body["ledgerId"]


def agree(data: bytes) -> None:
    """Both readers think the same of these bytes."""
    data = b"\x0a" + data[1:]  # what else begins a frame of version 3
    verdict, _, read = read_request(data)
    fields = parsed("Request", data)
    assert (verdict == CLOSE) == (fields is None), (verdict, fields)
    if fields is None:
        return
    header = fields["header"]
    assert isinstance(header, dict)
    assert (read.protocol, read.version, read.operation) == (
        3,
        header["version"],
        header["operation"],
    )
    assert read.transaction_id == header["txnId"]
    assert (RequestFlag.HIGH_PRIORITY in read.flags) == (0 < header.get("priority", 0) < 2**31)
    body = fields.get(BODIES.get(Operation(read.operation), "") if read.operation in BODIES else "")
    if body is not None:
        assert isinstance(body, dict)
        agree_on_body(verdict, read, body)


GROUPS = field(9, 3, b"") * 100 + field(9, 4, b"") * 100


@example(request(header={"version": 3, "operation": 1, "txnId": 1}) + GROUPS)
@example(
    request(header={"version": 3, "operation": 1, "txnId": 1})
    + field(9, 3, GROUPS + field(9, 4, b""))
)
@example(sized(1, b"\x08\x03\x10\x01\x18\x01" + GROUPS))
@example(sized(1, b"\x08\x03\x10\x01\x18\x01" + GROUPS[1:-1]))
@given(requests())
def test_made_messages(data: bytes) -> None:
    agree(data)


@given(broken(requests()))
def test_broken_messages(data: bytes) -> None:
    agree(data)


@given(plain_adds())
def test_adds_as_clients_write_them(data: bytes) -> None:
    agree(data)


@given(broken(plain_adds()))
def test_broken_adds(data: bytes) -> None:
    agree(data)


def test_every_other_byte_before_the_entry_of_an_add() -> None:
    """Each byte that the short way looks at, with each value that it can have, left out and put in twice."""
    inner = (
        field(1, 0, varint(5))
        + field(2, 0, varint(300))
        + sized(3, bytes(range(20)))
        + sized(4, bytes(130))
    )
    data = sized(1, b"\x08\x03\x10\x02\x18\xc8\x01") + sized(101, inner)
    agree(data)
    for at in range(1, len(data) - 130):
        for value in range(256):
            agree(data[:at] + bytes([value]) + data[at + 1 :])
        agree(data[:at] + data[at + 1 :])
        agree(data[:at] + data[at : at + 1] + data[at:])


@given(message("Request"))
def test_messages_of_any_shape(data: bytes) -> None:
    agree(data)
