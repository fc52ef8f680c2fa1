"""The process of a gateway: one session with the metadata store, one port for clients, one for its pages.

Clients send operations by POST, on connections that stay open. The server is that of all HTTP ports
(`fastbk/web/server.py`), with a gateway's bounds: a connection that waits for its next request, or sends a large body
slowly, costs only others of its kind (INV-B1).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING

from fastbk.client.config import ClientConfig
from fastbk.client.metadata_calls import MetadataCalls, RecordCalls
from fastbk.config import split_address
from fastbk.errors import ConfigError, StorageError, os_errors_as
from fastbk.gateway.service import (
    REQUESTS_MAX,
    STORE_TIMEOUT_S,
    WAITS_MAX,
    Budgets,
    Peer,
    Service,
    as_it_is,
)
from fastbk.limits import allow_descriptors
from fastbk.meta.gateway.messages import (
    CONTENT_TYPE,
    PATH,
    REQUEST_BYTES_MAX,
    encode,
    failure_of,
)
from fastbk.meta.zookeeper.security import use_file
from fastbk.observe import logs
from fastbk.observe.logs import LimitLog
from fastbk.observe.prometheus import OwnUsage, family, single
from fastbk.observe.systemd import announced
from fastbk.security.admission import Admission, Client
from fastbk.security.audit_log import AuditLog
from fastbk.security.settings import http_port, http_tls, server_tls, tls_files
from fastbk.web.certificate_watch import certificate_lines
from fastbk.web.page_admission import PageAdmission, page_credentials
from fastbk.web.page_server import METRICS, TEXT, PageServer, Request, Response, refused_lines
from fastbk.web.server import (
    HANDSHAKES_MAX,
    Answer,
    Bounds,
    Head,
    HttpListener,
    HttpServer,
    body_size,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from fastbk.gateway.configuration import GatewayConfig
    from fastbk.gateway.service import Peer, Scale, Service
    from fastbk.security.admission import Admission
    from fastbk.web.server import HttpServer


CLOSE_TIMEOUT_S = 5.0


async def serve(config: GatewayConfig) -> None:
    """Serve until SIGTERM or SIGINT. Raises ConfigError, StorageError, MetadataUnavailable: it cannot, or no more."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    use_file(config.metadata.zookeeper_file)
    async with contextlib.AsyncExitStack() as stack:
        client = ClientConfig(metadata_timeout=STORE_TIMEOUT_S, tls=None, credentials=None)
        calls = MetadataCalls(config.metadata.uri, client)
        stack.push_async_callback(calls.close, CLOSE_TIMEOUT_S)
        records = RecordCalls(calls)
        await records.check_level()
        cluster_id = await calls.call(lambda store: store.instance_id())
        admission = Admission(
            config.tls, config.authentication, config.authorization, cluster_id, "gateway"
        )
        audit = AuditLog(config.audit)
        await audit.begin(stack)
        scale = _scale()
        budgets = Budgets(config.gateway.writes_rate, config.gateway.data_rate_bytes)
        service = Service(calls, admission, audit, scale, budgets)
        stack.callback(service.waits.close)
        connections = gateway_server(service, admission, scale)
        host, port = split_address(config.gateway.listen, "[gateway] listen")
        tls = server_tls(config.tls) if config.tls.mode == "require" else None
        with os_errors_as(
            ConfigError, f"[gateway] listen = {config.gateway.listen}: cannot listen"
        ):
            listener = await HttpListener.bind(host, port, tls, scale(HANDSHAKES_MAX))
        stack.push_async_callback(listener.close)
        stack.push_async_callback(connections.close)
        pages = await _open_pages(stack, config, service, connections, audit, cluster_id)
        await connections.serve(listener)
        refreshing = loop.create_task(_refresh(admission, config.authentication.refresh_interval_s))
        stack.callback(refreshing.cancel)
        logs.info(
            "gateway.started",
            port=listener.port,
            http_port=pages,
            cluster=cluster_id,
            pid=os.getpid(),
        )
        async with announced(f"serves metadata on port {listener.port}"):
            await records.follow_level(stop)
    logs.info("gateway.ended")


def _scale() -> Scale:
    """Return what makes bounds of connections fit what this process may open."""
    fits = allow_descriptors(CONNECTIONS_MAX)
    if fits < CONNECTIONS_MAX:
        logs.warning("gateway.connections_limited", connections_max=fits, by="RLIMIT_NOFILE")
    return lambda bound: max(1, bound * fits // CONNECTIONS_MAX)


async def _refresh(admission: Admission, interval_s: float) -> None:
    """Read changed files of keys and of who is revoked; each request is compared with what they say."""
    while True:
        await asyncio.sleep(interval_s)
        admission.files.has_changed()


# --- its pages for machines -------------------------------------------------------------------------------------------


async def _open_pages(
    stack: contextlib.AsyncExitStack,
    config: GatewayConfig,
    service: Service,
    connections: HttpServer[Peer],
    audit: AuditLog,
    cluster_id: str,
) -> int | None:
    """Serve `/metrics` and `/livez` until `stack` closes; return their port, None where [http] names none.

    Raises ConfigError.
    """
    if not config.http.listen:
        return None
    host, port = split_address(config.http.listen, "[http] listen")
    admission = PageAdmission(
        http_port(config.http, host, config.authentication, is_permitted=False),
        authorized_roles=config.tls.authorized_roles,
        authorization=config.authorization,
        credentials=page_credentials(config.authentication, lambda: cluster_id),
        note=audit.note,
    )
    server = PageServer((*config.http.allowed_hosts, host), admission)
    certificates = certificate_lines(tls_files(config.tls)) if config.tls.certificate_file else list
    sources: list[Callable[[], list[str]]] = [
        audit.metric_lines,
        certificates,
        OwnUsage("gateway").metric_lines,
    ]

    async def metrics(request: Request) -> Response:
        if request.method != "GET":
            return 405, TEXT, b"not for this path\n"
        lines = _lines(service, connections) + refused_lines(
            "fastbk_gateway_http_refused", server.refused()
        )
        lines += [line for source in sources for line in source()]
        return 200, METRICS, "".join(f"{line}\n" for line in lines).encode()

    async def alive(request: Request) -> Response:
        del request
        return 200, TEXT, b"ok\n"

    server.add_page("/metrics", metrics, is_quick=True)
    server.add_page("/livez", alive, is_quick=True)
    with os_errors_as(ConfigError, f"[http] listen = {config.http.listen}: cannot listen"):
        await server.open(host, port, http_tls(config.http, config.tls))
    stack.push_async_callback(server.close)
    return server.port


def _lines(service: Service, connections: HttpServer[Peer]) -> list[str]:
    requests = [
        (f'operation="{name}",status="{status}"', count)
        for (name, status), count in sorted(service.requests.items())
    ]
    seconds = [
        (f'operation="{name}"', f"{spent_s:.6f}")
        for name, spent_s in sorted(service.seconds.items())
    ]
    # a rate needs a value before the first event
    counts = dict.fromkeys(LIMITS, 0) | service.limits.counts
    limits = [(f'limit="{name}"', count) for name, count in sorted(counts.items())]
    return [
        *family(
            "fastbk_gateway_requests_total",
            "counter",
            "Requests answered, by operation and status.",
            requests,
        ),
        *family(
            "fastbk_gateway_seconds_total",
            "counter",
            "Time of answers without their waits for changes.",
            seconds,
        ),
        *single("fastbk_gateway_connections", "gauge", "Connections of clients.", len(connections)),
        *single(
            "fastbk_gateway_waits", "gauge", "Requests that wait for a change.", service.waits.count
        ),
        *family(
            "fastbk_gateway_limits_total",
            "counter",
            "Connections, waits and writes ended by a limit.",
            limits,
        ),
    ]


# --- the port of clients --------------------------------------------------------------------------


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
"""Maximum connections where all bounds are reached; each takes a descriptor."""
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
