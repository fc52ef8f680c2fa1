"""What a gateway's port takes and gives: operations of clients, by POST, on connections that stay open.

The server is that of all HTTP ports (`fastbk/web/server.py`), with a gateway's bounds: a connection that waits for its
next request, or sends a large body slowly, costs only others of its kind (INV-B1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.errors import ConfigError, StorageError
from fastbk.gateway.service import REQUESTS_MAX, Peer
from fastbk.gateway.shares import WAITS_MAX, as_it_is
from fastbk.meta.gateway.messages import (
    CONTENT_TYPE,
    PATH,
    REQUEST_BYTES_MAX,
    encode,
    failure_of,
)
from fastbk.observe.logs import LimitLog
from fastbk.security.admission import Client
from fastbk.web.listener import HANDSHAKES_MAX
from fastbk.web.server import Answer, Bounds, Head, HttpServer, body_size

if TYPE_CHECKING:
    import asyncio

    from fastbk.gateway.service import Service
    from fastbk.gateway.shares import Scale
    from fastbk.security.admission import Admission

IDLE_MAX = 2000
"""Connections that wait for a request; beyond it the oldest of the address with the most is closed."""
IDLE_TIMEOUT_S = 60.0
"""Clients close theirs after half of it (`fastbk.meta.gateway.store`)."""
LARGE_MAX, SMALL_MAX = 32, 512
"""Bodies above `LARGE_BYTES`, and others, that are on their way; beyond it one of the address with the most is cut."""
LARGE_ANSWERS_MAX = 16
"""The same of answers, and who reads them slowly: one has 16 MiB at most."""
CONNECTIONS_MAX = (
    IDLE_MAX
    + 2 * SMALL_MAX
    + LARGE_MAX
    + LARGE_ANSWERS_MAX
    + REQUESTS_MAX
    + WAITS_MAX
    + HANDSHAKES_MAX
)
"""As many descriptors are used where all bounds are reached."""
BODY_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 30.0
LIMITS = ("idle", "bodies", "large_bodies", "answers", "large_answers", "waits", "watched",
          "writes", "data")  # fmt: skip
"""What is counted: neither connections that are idle for too long, nor what is no request."""
_BEARER = "bearer "


def gateway_server(
    service: Service, admission: Admission, scale: Scale = as_it_is
) -> HttpServer[Peer]:
    """Return the server of a gateway's port."""
    bounds = Bounds(
        head_limit="idle",
        heads_max=scale(IDLE_MAX),
        head_timeout_s=IDLE_TIMEOUT_S,
        bodies_max=(scale(SMALL_MAX), scale(LARGE_MAX)),
        body_timeout_s=BODY_TIMEOUT_S,
        answers_max=(scale(SMALL_MAX), scale(LARGE_ANSWERS_MAX)),
        answer_timeout_s=ANSWER_TIMEOUT_S,
        is_kept_open=True,
    )

    def note_limit(limit: str) -> None:
        if limit in LIMITS:
            service.limits.note(limit)

    faults = LimitLog("gateway.connection_failed", level="error")
    return HttpServer(_Operations(service, admission), bounds, note_limit, faults)


class _Operations:
    """The site of one gateway."""

    def __init__(self, service: Service, admission: Admission) -> None:
        self._service = service
        self._admission = admission

    def meet(self, writer: asyncio.StreamWriter) -> Peer:
        """Return who is at the other end, as far as the connection shows it."""
        name = writer.get_extra_info("peername")
        is_secure = writer.get_extra_info("ssl_object") is not None
        client = Client(
            is_secure=is_secure, address=str(name[0]) if isinstance(name, tuple) else ""
        )
        certificate = writer.get_extra_info("peercert") or b"" if is_secure else None
        self._admission.meet(client, certificate)
        return Peer(client, certificate)

    def check(self, head: Head) -> Answer | int:
        """Return the size of a request's body, or the refusal of one whose body is not read.

        A web page of another site cannot send this type of body without being allowed first, and nothing allows it.
        """
        if head.method != "POST" or not head.target.startswith(PATH):
            where = "is this the port of the gateway's pages?"
            return self.failure(400, f"a gateway answers POST {PATH}OPERATION: {where}")
        if head.content_type != CONTENT_TYPE:
            return self.failure(415, f"a request needs Content-Type: {CONTENT_TYPE}")
        size = body_size(head, REQUEST_BYTES_MAX)
        return size if isinstance(size, int) else self.failure(size[0], f"a request {size[1]}")

    async def respond(self, peer: Peer, head: Head, body: bytes, refusal: Answer | None) -> Answer:
        """Return the result of an operation, as its client may have it."""
        if refusal is not None:
            return refusal
        shown = head.header("authorization")
        token = shown[len(_BEARER) :].encode() if shown.lower().startswith(_BEARER) else b""
        name = head.target.removeprefix(PATH)
        status, result = await self._service.answer(peer, name, token, body)
        # a stranger does not stay
        return Answer(status, CONTENT_TYPE, result, is_last=status == 401)

    def failure(self, status: int, text: str) -> Answer:
        """Return the answer to what is no request, or ended in a fault."""
        fault = StorageError("a fault of the gateway's: see its log", outcome="unknown")
        error = fault if status == 500 else ConfigError(text)
        return Answer(status, CONTENT_TYPE, encode(failure_of(error)))
