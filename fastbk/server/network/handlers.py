"""Answers to the requests that Python answers, once a connection or rarer: hello and info; of Apache's clients, in both
versions of their protocol, authentication and disk figures. C answers all others.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from fastbk import __version__
from fastbk.native import apache
from fastbk.native.apache import ApacheReply, ApacheRequest, ApacheStatus, Operation
from fastbk.native.worker import (
    AUTH_FAILED,
    AUTHENTICATED,
    BAD_VERSION,
    INFOS_DONE,
    INFOS_DONE_US,
    INFOS_FAILED,
    INFOS_FAILED_US,
    TLS_REFUSED,
)
from fastbk.observe.logs import LimitLog
from fastbk.security.admission import Refused
from fastbk.security.rights import NOBODY
from fastbk.server.directories import disk_bytes
from fastbk.server.network.audit_trail import ClientReports
from fastbk.server.network.ledger_tags import LedgerTags
from fastbk.wire.messages import (
    REPORT,
    SASL,
    TAG,
    TAG_WANTED,
    TOKEN,
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

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from fastbk.native.worker import Worker
    from fastbk.security.admission import Admission, Client
    from fastbk.server.child import Offer
    from fastbk.server.configuration.bookie_config import WorkerConfig
    from fastbk.server.network.audit_trail import AuditTrail


class Answer(msgspec.Struct, frozen=True):
    """A frame to send; b"": none now.

    `is_last`: the connection is refused with it. `is_open`: its hello is accepted. `is_upgrade`: TLS follows.
    """

    frame: bytes
    is_last: bool = False
    is_open: bool = True
    is_upgrade: bool = False


def count_info(worker: Worker, began_ns: int, *, is_done: bool) -> None:
    """Count an answer that says what room there is, or fails to."""
    worker.count(INFOS_DONE if is_done else INFOS_FAILED)
    took_us = (time.monotonic_ns() - began_ns) // 1000
    worker.count(INFOS_DONE_US if is_done else INFOS_FAILED_US, took_us)


class Handlers:
    """Knows what a hello and an info reply say."""

    def __init__(
        self,
        config: WorkerConfig,
        worker: Worker,
        admission: Admission,
        audit: AuditTrail,
        send: Offer,
        reply: Callable[[Client, Callable[[], bytes]], None],
    ) -> None:
        """`send`, `reply`: see `LedgerTags`."""
        self._config = config
        self._worker = worker
        self._admission = admission
        self._outcomes = AuthOutcomes(worker, audit)
        self.tags = LedgerTags(worker, admission, audit, send, reply, self._accepted)
        self._reports = ClientReports(self._accepted)
        self._started_ns = time.monotonic_ns()
        self.frozen = ""
        """Which processes of this bookie stand still, by the supervisor's watchdog."""

    def answer(self, frame: bytes, client: Client) -> Answer:
        """Return the answer to a verified cold request."""
        request = decode_cold_request(frame)
        if request.hello is None:
            began_ns = time.monotonic_ns()
            frame = encode_reply(request.request_id, Status.OK, self._info())
            count_info(self._worker, began_ns, is_done=True)
            return Answer(frame)
        method = request.hello.auth_method
        if client.is_greeted and method in (TAG, TAG_WANTED):
            return Answer(self.tags.answer(request.request_id, request.hello, client))
        if client.is_greeted and method == REPORT:
            return Answer(
                self._reports.answer(request.request_id, request.hello.auth_payload, client)
            )
        if client.is_greeted and method != TOKEN:
            only_once = ErrorReply(message="a hello comes only once, unless it has a new token")
            return Answer(encode_reply(request.request_id, Status.BAD_REQUEST, only_once))
        try:
            return self._hello(request, request.hello, client)
        except Refused as error:
            self._outcomes.refused(error, client)
            reply = ErrorReply(message=str(error))
            refusal = encode_reply(request.request_id, Status.UNAUTHORIZED, reply)
            return Answer(refusal, is_last=True, is_open=False)

    def too_many_connections(self) -> bytes:
        """Return what a client hears for whom there is no slot."""
        reason = f"this bookie has {self._config.settings.connections_max} connections already: try again later"
        return encode_reply(0, Status.TOO_MANY_REQUESTS, ErrorReply(message=reason))

    def _hello(self, request: ColdRequest, hello: Hello, client: Client) -> Answer:
        version = min(hello.version_max, VERSION_MAX)
        reason = ""
        if version < max(hello.version_min, VERSION_MIN):
            reason = (
                f"this bookie speaks versions {VERSION_MIN} to {VERSION_MAX} of the protocol, the client"
                f" {hello.version_min} to {hello.version_max}"
            )
        if reason:
            self._worker.count(BAD_VERSION)
            error = ErrorReply(message=reason, version_min=VERSION_MIN, version_max=VERSION_MAX)
            frame = encode_reply(request.request_id, Status.UNSUPPORTED, error)
            return Answer(frame, is_last=True, is_open=False)
        payload, is_open = self._authenticate(hello, client)
        client.is_greeted = is_open
        return Answer(self._accepted(request.request_id, payload, version), is_open=is_open)

    def _accepted(self, request_id: int, payload: bytes, version: int = VERSION_MAX) -> bytes:
        reply = HelloReply(
            version=version,
            frame_size_bytes_max=self._config.limits.frame_size_bytes_max,
            batch_entry_count_max=self._config.limits.batch_entries_max,
            pending_requests_max=self._config.settings.pending_requests_max,
            incarnation=self._config.incarnation,
            bookie_id=self._config.bookie_id,
            software=f"fastbk {__version__}",
            auth_payload=payload,
        )
        return encode_reply(request_id, Status.OK, reply)

    def _authenticate(self, hello: Hello, client: Client) -> tuple[bytes, bool]:
        """Return what SASL answers, and whether the client is served from now on. Raises Refused.

        A method that this bookie does not take is ignored, so that clients can have a token before bookies ask for it.
        """
        payload = b""
        if hello.auth_method == TOKEN and self._admission.takes(TOKEN):
            self._admission.by_token(client, hello.auth_payload)
        elif hello.auth_method == SASL and self._admission.takes(SASL):
            if client.exchange is None:
                return self._admission.begin_sasl(client), False
            payload = self._admission.end_sasl(client, hello.auth_payload)
        elif client.refusal:
            raise Refused(client.refusal, is_failure=False)
        else:
            return b"", True
        self._outcomes.authenticated(client, hello.auth_method)
        return payload, True

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
SASL_PLUGIN = b"sasl"
"""The name of Apache's SASL providers."""


def begins_sasl(frame: bytes) -> bool:
    """Return whether bytes are one request that begins SASL, and so says nothing: its payload is empty."""
    if len(frame) < 4 or len(frame) != 4 + int.from_bytes(frame[:4], "big"):
        return False
    verdict, _, request = apache.read_request(frame[4:])
    is_auth = verdict == apache.GOOD and request.operation == Operation.AUTH
    return is_auth and request.plugin == SASL_PLUGIN and not request.body


def begins_with_start_tls(received: bytes) -> bool:
    """Return whether what was received begins with START_TLS."""
    size_bytes = int.from_bytes(received[:4], "big")
    if len(received) < 4 + size_bytes or not size_bytes:
        return False
    verdict, _, request = apache.read_request(received[4 : 4 + size_bytes])
    return verdict == apache.GOOD and request.operation == Operation.START_TLS


class AuthOutcomes:
    """Counts, logs and audits who is served and who is not."""

    def __init__(self, worker: Worker, audit: AuditTrail) -> None:
        self._worker = worker
        self._audit = audit
        self._log = LimitLog("connection.unauthorized")

    def authenticated(self, client: Client, method: str) -> None:
        """One has shown who it is."""
        self._worker.count(AUTHENTICATED)
        self._audit.note(
            "client.authenticated", client.address, client.principal.name, method=method
        )

    def refused(self, error: Refused, client: Client) -> None:
        """One is not served."""
        self._audit.note(
            "client.refused", client.address, client.principal.name, reason=error.detail
        )
        self._worker.count(AUTH_FAILED if error.is_failure else TLS_REFUSED)
        limit = "authentication_failed" if error.is_failure else "not_authenticated"
        self._log.note(limit, reason=error.detail, address=client.address)


class ApacheHandlers:
    """Knows what those answers say."""

    def __init__(
        self, config: WorkerConfig, worker: Worker, admission: Admission, audit: AuditTrail
    ) -> None:
        self._config = config
        self._worker = worker
        self._admission = admission
        self._outcomes = AuthOutcomes(worker, audit)

    def answer(self, frame: bytes, client: Client) -> Answer:
        """Return the answer to a request that C found good; to one that is not after all, the end."""
        verdict, _, request = apache.read_request(frame[4:])
        if verdict != apache.GOOD:
            return Answer(b"", is_last=True)
        if request.operation == Operation.INFO:
            began_ns = time.monotonic_ns()
            reply = self._info(request)
            count_info(self._worker, began_ns, is_done=reply.status == ApacheStatus.EOK)
            return Answer(apache.put_reply(reply))
        if request.operation == Operation.AUTH:
            return self._auth(request, client)
        if self._config.tls.mode == "off" or client.is_secure:
            # there is no TLS, or it is spoken already
            reply = _reply(request, ApacheStatus.EBADREQ)
        else:
            return Answer(apache.put_reply(_reply(request, ApacheStatus.EOK)), is_upgrade=True)
        return Answer(apache.put_reply(reply))

    def _auth(self, request: ApacheRequest, client: Client) -> Answer:
        """Go on with SASL; who is served already, or by another method, hears that there is no authentication."""
        is_sasl = request.plugin == SASL_PLUGIN and self._admission.takes("sasl")
        plugin, blob = NO_AUTH, b""
        try:
            if is_sasl and client.principal is NOBODY:
                plugin, message = SASL_PLUGIN, request.body or b""
                if client.exchange is None:
                    blob = self._admission.begin_sasl(client)
                else:
                    blob = self._admission.end_sasl(client, message)
                    self._outcomes.authenticated(client, SASL)
            elif client.refusal:
                raise Refused(client.refusal, is_failure=False)
        except Refused as error:
            self._outcomes.refused(error, client)
            if request.protocol == 2:  # as Apache's bookies: its reply has no status
                return Answer(b"", is_last=True)
            return Answer(apache.put_reply(_reply(request, ApacheStatus.EUA)), is_last=True)
        reply = _reply(request, ApacheStatus.EOK, plugin=plugin, blob=blob)
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


DIGESTS_INTERVAL_S = 0.05
"""Pause between two requests; the first after a pause goes out at once."""


class DigestRequests:
    """Requests the digests of ledgers of Apache's clients from the supervisor (`supervision/metadata_services.py`).

    No add waits for this: an entry whose digest is not known yet is stored unverified, and counted.
    """

    def __init__(self, worker: Worker, loop: asyncio.AbstractEventLoop, send: Offer) -> None:
        """`send`: what does not get to the supervisor C wants again in some seconds."""
        self._worker = worker
        self._loop = loop
        self._send = send
        self._due: asyncio.TimerHandle | None = None
        self._next_s = 0.0

    def request_soon(self) -> None:
        """Ask for what C wants to know, unless a question is about to go out anyway."""
        if self._due is None:
            self._due = self._loop.call_at(self._next_s, self._request)

    def known(self, message: dict[str, Any]) -> None:
        """Hand over what the supervisor said."""
        self._worker.digests_known(
            [(int(ledger_id), digest_type) for ledger_id, digest_type in message["digests"]]
        )

    def stop(self) -> None:
        """Ask nothing more."""
        if self._due is not None:
            self._due.cancel()

    def _request(self) -> None:
        self._due = None
        ledgers = self._worker.digests_wanted()
        if not ledgers:
            return
        self._next_s = self._loop.time() + DIGESTS_INTERVAL_S
        self._send({"type": "digests_wanted", "ledgers": ledgers})
