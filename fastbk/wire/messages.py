"""The rare messages as typed values: hello, info, errors, openings of producers. Nothing here runs once an entry.

Encoding goes through flatbuffers' own builder; a frame's fields lie in the order of the struct. Decoding trusts the
frame's structure: verify it first (`fastbk.native`: the worker has, the client's response reader has). Frames are
whole, with their length.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import msgspec

from fastbk.printable_text import printable
from fastbk.wire.flatbuffers_plain import flatbuffers
from fastbk.wire.generated import CloseProducer as CloseProducerTable
from fastbk.wire.generated import ErrorReply as ErrorTable
from fastbk.wire.generated import Hello as HelloTable
from fastbk.wire.generated import HelloReply as HelloReplyTable
from fastbk.wire.generated import Info as InfoTable
from fastbk.wire.generated import InfoReply as InfoReplyTable
from fastbk.wire.generated import OpenProducer as OpenProducerTable
from fastbk.wire.generated import OpenProducerReply as OpenProducerReplyTable
from fastbk.wire.generated import Request as RequestTable
from fastbk.wire.generated import Response as ResponseTable
from fastbk.wire.generated.RequestBody import RequestBody
from fastbk.wire.generated.ResponseBody import ResponseBody

MAGIC = b"\xfbfastbk\x01"
"""What a connection begins with."""

VERSION_MIN = 1
VERSION_MAX = 1
"""Versions of the protocol that this build speaks."""

LENGTH_BYTES = 4
Untyped: TypeAlias = Any
"""An object of flatbuffers' own, which has no annotations."""
NAME_BYTES_MAX = 128
TEXT_BYTES_MAX = 4096
TOKEN, SASL = "token", "sasl"
TAG, TAG_WANTED = "ledger-tag", "ledger-tag-wanted"
REPORT = "report"
TAGS_MAX = 4096
"""Ledgers whose tags a connection has shown: one more takes the place of the oldest, on both sides."""
AUTH_BYTES_MAX = 4096
REPORT_BYTES_MAX = 2048
FRAME_SIZE_BYTES_LEAST, FRAME_SIZE_BYTES_MOST = 4096, 32 * 1024 * 1024
"""What a bookie's hello can set the longest frame to. Bookies can be set to 31 MiB at most."""


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """A client's first request. `client_name`: for logs, at most 128 bytes of UTF-8.

    `auth_method`: "", or how the client authenticates itself: TOKEN or SASL, by `auth_payload`. A later hello with a
    token renews that of the connection, one with TAG shows a ledger's tag, and one with TAG_WANTED asks for the tag of
    the ledger whose id is its payload, in digits. One with REPORT says what became of a ledger, in JSON.
    """

    version_min: int = VERSION_MIN
    version_max: int = VERSION_MAX
    client_name: str = ""
    auth_method: str = ""
    auth_payload: bytes = b""


class HelloReply(msgspec.Struct, frozen=True, kw_only=True):
    """What a bookie answers: the version chosen, its limits (bytes, counts) and who it is.

    `auth_payload`: SASL's next message, or its last.
    `frame_size_bytes_max` is bounded when it is received: a client allocates what a frame announces.
    """

    version: int
    frame_size_bytes_max: int
    batch_entry_count_max: int
    incarnation: int
    bookie_id: str
    software: str
    pending_requests_max: int
    auth_payload: bytes = b""


class InfoReply(msgspec.Struct, frozen=True, kw_only=True):
    """A bookie's own figures. `reason`: why it takes no normal adds, empty when it does. `frozen`: which of its
    processes stand still.
    """

    software: str
    bookie_id: str
    incarnation: int
    writable: bool
    reason: str = ""
    disk_total_bytes: int = 0
    disk_free_bytes: int = 0
    uptime_ms: int = 0
    frozen: str = ""


class ErrorReply(msgspec.Struct, frozen=True, kw_only=True):
    """Why a connection or request was refused; the version range is 0, 0 unless it is about versions."""

    message: str
    version_min: int = 0
    version_max: int = 0


class OpenProducer(msgspec.Struct, frozen=True, kw_only=True):
    """A producer of a write service. `incarnation` 0 opens the name, which fences; else it goes on with that opening.

    An empty name only has the service take the stream over.
    """

    stream: str
    name: bytes = b""
    incarnation: int = 0
    timeout_ms: int = 0


class CloseProducer(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a producer on its connection; its name stays in the stream's table."""

    producer: int


class OpenProducerReply(msgspec.Struct, frozen=True, kw_only=True):
    """What a write service answers. `producer`: its number on this connection.

    `entry_bytes_max`: of the records of one frame. `pending_bytes_max`: of records that may be unanswered; more closes
    the connection.
    """

    producer: int
    incarnation: int
    last_number: int
    entry_bytes_max: int
    pending_bytes_max: int


class ColdRequest(msgspec.Struct, frozen=True):
    """A request that Python answers; `hello` is None for info."""

    request_id: int
    hello: Hello | None


Reply: TypeAlias = HelloReply | InfoReply | ErrorReply | OpenProducerReply
ServiceRequest: TypeAlias = Hello | OpenProducer | CloseProducer
T = TypeVar("T", bound="ServiceRequest | Reply")


def encode_hello(request_id: int, hello: Hello) -> bytes:
    """Return the frame of a hello request."""
    builder = flatbuffers.Builder(128)
    return _request(builder, request_id, RequestBody.Hello, _table(builder, HelloTable, hello))


def encode_info(request_id: int) -> bytes:
    """Return the frame of an info request."""
    builder = flatbuffers.Builder(128)
    InfoTable.Start(builder)
    return _request(builder, request_id, RequestBody.Info, InfoTable.End(builder))


def encode_open_producer(request_id: int, request: OpenProducer) -> bytes:
    """Return the frame of a request to open a producer, or to go on with it."""
    builder = flatbuffers.Builder(256)
    table = _table(builder, OpenProducerTable, request)
    return _request(builder, request_id, RequestBody.OpenProducer, table)


def encode_close_producer(request_id: int, request: CloseProducer) -> bytes:
    """Return the frame of a request to end a producer."""
    builder = flatbuffers.Builder(128)
    table = _table(builder, CloseProducerTable, request)
    return _request(builder, request_id, RequestBody.CloseProducer, table)


def encode_reply(request_id: int, status: int, reply: Reply) -> bytes:
    """Return the frame of a response with this body."""
    builder = flatbuffers.Builder(256)
    kind, module = _REPLIES[type(reply)]
    table = _table(builder, module, reply)
    ResponseTable.Start(builder)
    ResponseTable.AddRequestId(builder, request_id)
    ResponseTable.AddStatus(builder, status)
    ResponseTable.AddBodyType(builder, kind)
    ResponseTable.AddBody(builder, table)
    builder.FinishSizePrefixed(ResponseTable.End(builder))
    return bytes(builder.Output())


def decode_cold_request(frame: bytes) -> ColdRequest:
    """Return a verified hello or info request. Raises ValueError for any other."""
    request = RequestTable.Request.GetRootAs(frame, LENGTH_BYTES)
    kind = request.BodyType()
    if kind == RequestBody.Info:
        return ColdRequest(request.RequestId(), None)
    if kind != RequestBody.Hello:
        raise ValueError(f"request body {kind} is not Python's")
    return ColdRequest(request.RequestId(), _value(Hello, request, HelloTable, NAME_BYTES_MAX))


def decode_service_request(frame: bytes) -> ServiceRequest | None:
    """Return a verified request to a write service, None if it is none of this module's."""
    request = RequestTable.Request.GetRootAs(frame, LENGTH_BYTES)
    kind = request.BodyType()
    if kind == RequestBody.Hello:
        return _value(Hello, request, HelloTable, NAME_BYTES_MAX)
    if kind == RequestBody.OpenProducer:
        return _value(OpenProducer, request, OpenProducerTable)
    if kind == RequestBody.CloseProducer:
        return _value(CloseProducer, request, CloseProducerTable)
    return None


def decode_reply(frame: bytes) -> tuple[int, int, Reply | None]:
    """Return (request id, status, body) of a verified response; the body is None if it is none of this module's."""
    response = ResponseTable.Response.GetRootAs(frame, LENGTH_BYTES)
    kind = response.BodyType()
    reply: Reply | None = None
    for made, (its_kind, module) in _REPLIES.items():
        if kind == its_kind and response.Body() is not None:
            reply = _value(made, response, module)
    if isinstance(reply, HelloReply):
        size_bytes = max(reply.frame_size_bytes_max, FRAME_SIZE_BYTES_LEAST)
        reply = msgspec.structs.replace(
            reply, frame_size_bytes_max=min(size_bytes, FRAME_SIZE_BYTES_MOST)
        )
    return response.RequestId(), response.Status(), reply


def decode_hello_reply(frame: bytes) -> HelloReply:
    """Return the HelloReply in a verified response. Raises ValueError if it holds something else."""
    reply = decode_reply(frame)[2]
    if not isinstance(reply, HelloReply):
        raise ValueError("the response holds no HelloReply")
    return reply


def error_text(frame: bytes) -> str:
    """Return the message of a verified response's ErrorReply, "" if it has none."""
    reply = decode_reply(frame)[2]
    return reply.message if isinstance(reply, ErrorReply) else ""


_REPLIES: dict[type[Reply], tuple[int, Untyped]] = {
    HelloReply: (ResponseBody.HelloReply, HelloReplyTable),
    InfoReply: (ResponseBody.InfoReply, InfoReplyTable),
    ErrorReply: (ResponseBody.ErrorReply, ErrorTable),
    OpenProducerReply: (ResponseBody.OpenProducerReply, OpenProducerReplyTable),
}
_LEFT_OUT_IF_EMPTY = ("auth_method", "auth_payload", "frozen", "name")
"""Fields that former versions do not know."""
_BYTES_OFFSETS = {HelloTable: 12, HelloReplyTable: 18, OpenProducerTable: 6}
"""Where a table's vector of bytes stands in its vtable: the generated code returns it byte by byte."""


def _request(builder: Untyped, request_id: int, kind: int, body: int) -> bytes:
    RequestTable.Start(builder)
    RequestTable.AddRequestId(builder, request_id)
    RequestTable.AddBodyType(builder, kind)
    RequestTable.AddBody(builder, body)
    builder.FinishSizePrefixed(RequestTable.End(builder))
    return bytes(builder.Output())


def _generated(field: str) -> str:
    """Return what generated code calls a field: `VersionMin` for `version_min`."""
    return field.title().replace("_", "")


def _table(builder: Untyped, module: Untyped, message: ServiceRequest | Reply) -> int:
    """Write a table, its texts first."""
    values = {}
    for name in message.__struct_fields__:
        value = getattr(message, name)
        if value or name not in _LEFT_OUT_IF_EMPTY:
            values[name] = _stored(builder, value)
    module.Start(builder)
    for name, value in values.items():
        getattr(module, f"Add{_generated(name)}")(builder, value)
    return int(module.End(builder))


def _stored(builder: Untyped, value: str | bytes | int) -> int:
    if isinstance(value, str):
        # it may quote a library, or a client
        return int(builder.CreateString(printable(value, TEXT_BYTES_MAX)))
    return int(builder.CreateByteVector(value)) if isinstance(value, bytes) else value


def _bytes_field(table: Untyped, offset: int) -> bytes:
    """Return at most one byte more than may be there: whoever reads it refuses that."""
    at = table.Offset(offset)
    if not at:
        return b""
    start, size_bytes = table.Vector(at), min(table.VectorLen(at), AUTH_BYTES_MAX + 1)
    return bytes(table.Bytes[start : start + size_bytes])


def _value(
    kind: type[T], message: Untyped, module: Untyped, text_bytes_max: int = TEXT_BYTES_MAX
) -> T:
    """Return the body of a message; a text that is too long is cut, and what is not printable escaped."""
    where = message.Body()
    table = getattr(module, module.__name__.rpartition(".")[2])()
    table.Init(where.Bytes, where.Pos)
    values: dict[str, Any] = {}
    for name, type_name in kind.__annotations__.items():
        if type_name == "bytes":
            values[name] = _bytes_field(table._tab, _BYTES_OFFSETS[module])
            continue
        value = getattr(table, _generated(name))()
        if type_name == "str":
            value = printable(
                (value or b"")[:text_bytes_max].decode(errors="replace"), text_bytes_max
            )
        values[name] = value
    return kind(**values)
