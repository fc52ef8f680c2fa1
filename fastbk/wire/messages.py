"""The rare messages as typed values: hello, info, errors. Nothing here runs once an entry.

Encoding goes through flatbuffers' own builder. Decoding trusts the frame's structure: verify it first
(`fastbk.native`: the worker has, the client's response reader has). Frames are whole, with their length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from fastbk.wire.flatbuffers_plain import flatbuffers
from fastbk.wire.generated import ErrorReply as ErrorTable
from fastbk.wire.generated import Hello as HelloTable
from fastbk.wire.generated import HelloReply as HelloReplyTable
from fastbk.wire.generated import Info as InfoTable
from fastbk.wire.generated import InfoReply as InfoReplyTable
from fastbk.wire.generated import Request as RequestTable
from fastbk.wire.generated import Response as ResponseTable
from fastbk.wire.generated.RequestBody import RequestBody
from fastbk.wire.generated.ResponseBody import ResponseBody

if TYPE_CHECKING:
    from collections.abc import Callable

MAGIC = b"\xfbfastbk\x01"
"""What a connection begins with."""

VERSION_MIN = 1
VERSION_MAX = 1
"""Versions of the protocol that this build speaks."""

LENGTH_BYTES = 4
Untyped: TypeAlias = Any
"""An object of flatbuffers' own, which has no annotations."""
NAME_BYTES_MAX = 128
FRAME_SIZE_BYTES_LEAST, FRAME_SIZE_BYTES_MOST = 4096, 32 * 1024 * 1024
"""What a bookie's hello can set the longest frame to. Bookies can be set to 31 MiB at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A client's first request. `client_name`: for logs, at most 128 bytes of UTF-8."""

    version_min: int = VERSION_MIN
    version_max: int = VERSION_MAX
    client_name: str = ""
    auth_method: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HelloReply:
    """What a bookie answers: the version chosen, its limits (bytes, counts) and who it is.

    `frame_size_bytes_max` is bounded when it is received: a client allocates what a frame announces.
    """

    version: int
    frame_size_bytes_max: int
    batch_entry_count_max: int
    pending_requests_max: int
    incarnation: int
    bookie_id: str
    software: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InfoReply:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReply:
    """Why a connection or request was refused; the version range is 0, 0 unless it is about versions."""

    message: str
    version_min: int = 0
    version_max: int = 0


@dataclass(frozen=True, slots=True)
class ColdRequest:
    """A request that Python answers; `hello` is None for info."""

    request_id: int
    hello: Hello | None


Reply = HelloReply | InfoReply | ErrorReply


def encode_hello(request_id: int, hello: Hello) -> bytes:
    """Return the frame of a hello request."""

    def body(builder: Untyped) -> int:
        name = builder.CreateString(hello.client_name)
        method = builder.CreateString(hello.auth_method) if hello.auth_method else 0
        HelloTable.Start(builder)
        HelloTable.AddVersionMin(builder, hello.version_min)
        HelloTable.AddVersionMax(builder, hello.version_max)
        HelloTable.AddClientName(builder, name)
        if method:
            HelloTable.AddAuthMethod(builder, method)
        return int(HelloTable.End(builder))

    return _request(request_id, RequestBody.Hello, body)


def encode_info(request_id: int) -> bytes:
    """Return the frame of an info request."""

    def body(builder: Untyped) -> int:
        InfoTable.Start(builder)
        return int(InfoTable.End(builder))

    return _request(request_id, RequestBody.Info, body)


def encode_reply(request_id: int, status: int, reply: Reply) -> bytes:
    """Return the frame of a response with this body."""
    builder = flatbuffers.Builder(256)
    if isinstance(reply, HelloReply):
        kind, table = ResponseBody.HelloReply, _hello_reply(builder, reply)
    elif isinstance(reply, InfoReply):
        kind, table = ResponseBody.InfoReply, _info_reply(builder, reply)
    else:
        kind, table = ResponseBody.ErrorReply, _error_reply(builder, reply)
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
    table = _body(request, HelloTable.Hello)
    return ColdRequest(
        request.RequestId(),
        Hello(
            version_min=table.VersionMin(),
            version_max=table.VersionMax(),
            client_name=_text(table.ClientName(), NAME_BYTES_MAX),
            auth_method=_text(table.AuthMethod(), NAME_BYTES_MAX),
        ),
    )


def decode_reply(frame: bytes) -> tuple[int, int, Reply | None]:
    """Return (request id, status, body) of a verified response; the body is None if it is none of this module's."""
    response = ResponseTable.Response.GetRootAs(frame, LENGTH_BYTES)
    kind = response.BodyType()
    reply: Reply | None = None
    if response.Body() is None:
        pass
    elif kind == ResponseBody.HelloReply:
        hello = _body(response, HelloReplyTable.HelloReply)
        reply = HelloReply(
            version=hello.Version(),
            frame_size_bytes_max=min(
                max(hello.FrameSizeBytesMax(), FRAME_SIZE_BYTES_LEAST), FRAME_SIZE_BYTES_MOST
            ),
            batch_entry_count_max=hello.BatchEntryCountMax(),
            pending_requests_max=hello.PendingRequestsMax(),
            incarnation=hello.Incarnation(),
            bookie_id=_text(hello.BookieId()),
            software=_text(hello.Software()),
        )
    elif kind == ResponseBody.InfoReply:
        info = _body(response, InfoReplyTable.InfoReply)
        reply = InfoReply(
            software=_text(info.Software()),
            bookie_id=_text(info.BookieId()),
            incarnation=info.Incarnation(),
            writable=bool(info.Writable()),
            reason=_text(info.Reason()),
            disk_total_bytes=info.DiskTotalBytes(),
            disk_free_bytes=info.DiskFreeBytes(),
            uptime_ms=info.UptimeMs(),
            frozen=_text(info.Frozen()),
        )
    elif kind == ResponseBody.ErrorReply:
        error = _body(response, ErrorTable.ErrorReply)
        reply = ErrorReply(
            message=_text(error.Message()),
            version_min=error.VersionMin(),
            version_max=error.VersionMax(),
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


def _request(request_id: int, kind: int, make_body: Callable[[Untyped], int]) -> bytes:
    builder = flatbuffers.Builder(128)
    body = make_body(builder)
    RequestTable.Start(builder)
    RequestTable.AddRequestId(builder, request_id)
    RequestTable.AddBodyType(builder, kind)
    RequestTable.AddBody(builder, body)
    builder.FinishSizePrefixed(RequestTable.End(builder))
    return bytes(builder.Output())


def _hello_reply(builder: Untyped, reply: HelloReply) -> int:
    bookie_id = builder.CreateString(reply.bookie_id)
    software = builder.CreateString(reply.software)
    HelloReplyTable.Start(builder)
    HelloReplyTable.AddVersion(builder, reply.version)
    HelloReplyTable.AddFrameSizeBytesMax(builder, reply.frame_size_bytes_max)
    HelloReplyTable.AddBatchEntryCountMax(builder, reply.batch_entry_count_max)
    HelloReplyTable.AddIncarnation(builder, reply.incarnation)
    HelloReplyTable.AddBookieId(builder, bookie_id)
    HelloReplyTable.AddSoftware(builder, software)
    HelloReplyTable.AddPendingRequestsMax(builder, reply.pending_requests_max)
    return int(HelloReplyTable.End(builder))


def _info_reply(builder: Untyped, reply: InfoReply) -> int:
    software = builder.CreateString(reply.software)
    bookie_id = builder.CreateString(reply.bookie_id)
    reason = builder.CreateString(reply.reason)
    frozen = builder.CreateString(reply.frozen) if reply.frozen else 0
    InfoReplyTable.Start(builder)
    InfoReplyTable.AddSoftware(builder, software)
    InfoReplyTable.AddBookieId(builder, bookie_id)
    InfoReplyTable.AddIncarnation(builder, reply.incarnation)
    InfoReplyTable.AddWritable(builder, reply.writable)
    InfoReplyTable.AddReason(builder, reason)
    InfoReplyTable.AddDiskTotalBytes(builder, reply.disk_total_bytes)
    InfoReplyTable.AddDiskFreeBytes(builder, reply.disk_free_bytes)
    InfoReplyTable.AddUptimeMs(builder, reply.uptime_ms)
    if frozen:
        InfoReplyTable.AddFrozen(builder, frozen)
    return int(InfoReplyTable.End(builder))


def _error_reply(builder: Untyped, reply: ErrorReply) -> int:
    message = builder.CreateString(reply.message)
    ErrorTable.Start(builder)
    ErrorTable.AddMessage(builder, message)
    ErrorTable.AddVersionMin(builder, reply.version_min)
    ErrorTable.AddVersionMax(builder, reply.version_max)
    return int(ErrorTable.End(builder))


def _body(message: Untyped, kind: type[Untyped]) -> Untyped:
    table = message.Body()
    body = kind()
    body.Init(table.Bytes, table.Pos)
    return body


def _text(raw: bytes | None, size_bytes_max: int = 4096) -> str:
    return "" if raw is None else raw[:size_bytes_max].decode(errors="replace")
