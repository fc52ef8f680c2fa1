"""The process of a gateway: one session with the metadata store, one port for clients, one for its pages."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING

from fastbk.client.config import ClientConfig
from fastbk.client.metadata_calls import MetadataCalls, RecordCalls
from fastbk.config import split_address
from fastbk.errors import ConfigError, os_errors_as
from fastbk.gateway.connections import CONNECTIONS_MAX, LIMITS, gateway_server
from fastbk.gateway.service import STORE_TIMEOUT_S, Service
from fastbk.gateway.shares import Budgets
from fastbk.meta.zookeeper.security import use_file
from fastbk.observe import logs
from fastbk.observe.prometheus import OwnUsage, family, single
from fastbk.observe.systemd import announced
from fastbk.open_files import allow_descriptors
from fastbk.security.admission import Admission
from fastbk.security.audit_log import AuditLog
from fastbk.security.settings import http_port, http_tls, server_tls, tls_files
from fastbk.web.certificate_watch import certificate_lines
from fastbk.web.listener import HANDSHAKES_MAX, HttpListener
from fastbk.web.page_admission import PageAdmission, page_credentials
from fastbk.web.page_server import METRICS, TEXT, PageServer, Request, Response, refused_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.gateway.configuration import GatewayConfig
    from fastbk.gateway.service import Peer
    from fastbk.gateway.shares import Scale
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
