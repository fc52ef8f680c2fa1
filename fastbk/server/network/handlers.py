"""Answers to the requests that Python answers, once a connection or rarer: hello and info; of Apache's clients, in both
versions of their protocol, authentication and disk figures. C answers all others.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from fastbk import __version__
from fastbk.native import apache
from fastbk.native.apache import ApacheReply, ApacheRequest, ApacheStatus, Operation
from fastbk.native.worker import BAD_VERSION, TLS_REFUSED
from fastbk.server.directories import disk_bytes
from fastbk.wire.messages import (
    VERSION_MAX,
    VERSION_MIN,
    ColdRequest,
    ErrorReply,
    Hello,
    HelloReply,
    InfoReply,
    decode_cold_request,
    encode_reply,
)
from fastbk.wire.statuses import Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastbk.native.worker import Worker
    from fastbk.server.configuration.bookie_config import WorkerConfig


@dataclass(frozen=True, slots=True)
class Answer:
    """A frame to send. `is_last`: the connection is refused with it; `is_open`: its hello is accepted; `info`: it says
    what room there is, or fails to; `is_upgrade`: what follows it is TLS.
    """

    frame: bytes
    is_last: bool = False
    is_open: bool = True
    info: Literal["", "done", "failed"] = ""
    is_upgrade: bool = False


@dataclass(slots=True)
class Client:
    """Who asks. `refusal`: why it is not served; "": it is. `is_secure`: by TLS."""

    refusal: str = ""
    is_secure: bool = False


class Handlers:
    """Knows what a hello and an info reply say."""

    def __init__(self, config: WorkerConfig, worker: Worker) -> None:
        self._config = config
        self._worker = worker
        self._started_ns = time.monotonic_ns()
        self.frozen = ""
        """Which processes of this bookie stand still, by the supervisor's watchdog."""

    def answer(self, frame: bytes, client: Client) -> Answer:
        """Return the answer to a verified cold request."""
        request = decode_cold_request(frame)
        if request.hello is None:
            return Answer(encode_reply(request.request_id, Status.OK, self._info()), info="done")
        if client.refusal:
            self._worker.count(TLS_REFUSED)
            reply = ErrorReply(message=client.refusal)
            refusal = encode_reply(request.request_id, Status.UNAUTHORIZED, reply)
            return Answer(refusal, is_last=True, is_open=False)
        return self._hello(request, request.hello)

    def too_many_connections(self) -> bytes:
        """Return what a client hears for whom there is no slot."""
        reason = f"this bookie has {self._config.settings.connections_max} connections already: try again later"
        return encode_reply(0, Status.TOO_MANY_REQUESTS, ErrorReply(message=reason))

    def _hello(self, request: ColdRequest, hello: Hello) -> Answer:
        version = min(hello.version_max, VERSION_MAX)
        reason = ""
        if version < max(hello.version_min, VERSION_MIN):
            reason = (
                f"this bookie speaks versions {VERSION_MIN} to {VERSION_MAX} of the protocol, the client"
                f" {hello.version_min} to {hello.version_max}"
            )
        elif hello.auth_method:
            reason = (
                f'this bookie has no authentication: method "{hello.auth_method}" is not to be had'
            )
        if reason:
            self._worker.count(BAD_VERSION)
            error = ErrorReply(message=reason, version_min=VERSION_MIN, version_max=VERSION_MAX)
            frame = encode_reply(request.request_id, Status.UNSUPPORTED, error)
            return Answer(frame, is_last=True, is_open=False)
        reply = HelloReply(
            version=version,
            frame_size_bytes_max=self._config.limits.frame_size_bytes_max,
            batch_entry_count_max=self._config.limits.batch_entries_max,
            pending_requests_max=self._config.settings.pending_requests_max,
            incarnation=self._config.incarnation,
            bookie_id=self._config.bookie_id,
            software=f"fastbk {__version__}",
        )
        return Answer(encode_reply(request.request_id, Status.OK, reply))

    def _info(self) -> InfoReply:
        is_read_only = self._worker.is_read_only
        try:
            free_bytes, total_bytes = disk_bytes(self._config.ledger_directories)
        except OSError:
            total_bytes = free_bytes = 0
        return InfoReply(
            software=f"fastbk {__version__}",
            bookie_id=self._config.bookie_id,
            incarnation=self._config.incarnation,
            writable=not is_read_only,
            reason=self._why_read_only() if is_read_only else "",
            disk_total_bytes=total_bytes,
            disk_free_bytes=free_bytes,
            uptime_ms=(time.monotonic_ns() - self._started_ns) // 1_000_000,
            frozen=self.frozen,
        )

    def _why_read_only(self) -> str:
        if self._config.reads_only_reason:
            return f"reads only: {self._config.reads_only_reason}"
        return "the index takes no normal adds: disk or limits"


WANTS_TOTAL, WANTS_FREE = 1, 2

NO_AUTH = b"AuthDisabledPlugin"
"""What a bookie without authentication calls itself; clients go on when they hear it."""


class ApacheHandlers:
    """Knows what those answers say."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config

    def answer(self, frame: bytes, client: Client) -> Answer:
        """Return the answer to a request that C found good; to one that is not after all, the end."""
        verdict, _, request = apache.read_request(frame[4:])
        if verdict != apache.GOOD:
            return Answer(b"", is_last=True)
        if request.operation == Operation.INFO:
            reply = self._info(request)
            is_done = reply.status == ApacheStatus.EOK
            return Answer(apache.put_reply(reply), info="done" if is_done else "failed")
        if request.operation == Operation.AUTH:
            reply = _reply(request, ApacheStatus.EOK, plugin=NO_AUTH, blob=b"")
        elif self._config.tls.mode == "off" or client.is_secure:
            reply = _reply(request, ApacheStatus.EBADREQ)  # there is no TLS, or it is spoken already
        else:
            return Answer(apache.put_reply(_reply(request, ApacheStatus.EOK)), is_upgrade=True)
        return Answer(apache.put_reply(reply))

    def _info(self, request: ApacheRequest) -> ApacheReply:
        try:
            free_bytes, total_bytes = disk_bytes(self._config.ledger_directories)
        except OSError:
            return _reply(request, ApacheStatus.EIO)
        wanted = request.info_wanted
        return _reply(
            request,
            ApacheStatus.EOK,
            total_bytes=total_bytes if wanted & WANTS_TOTAL else None,
            free_bytes=free_bytes if wanted & WANTS_FREE else None,
        )


def _reply(
    request: ApacheRequest,
    status: ApacheStatus,
    *,
    plugin: bytes | None = None,
    blob: bytes | None = None,
    total_bytes: int | None = None,
    free_bytes: int | None = None,
) -> ApacheReply:
    return ApacheReply(
        protocol=request.protocol,
        version=request.version,
        operation=request.operation,
        status=status,
        transaction_id=request.transaction_id,
        plugin=plugin,
        blob=blob,
        total_bytes=total_bytes,
        free_bytes=free_bytes,
    )
