"""The gateway's pages for machines: `/metrics` and `/livez`, on the port of [http]."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from fastbk.config import split_address
from fastbk.errors import ConfigError, os_errors_as
from fastbk.observe.process_usage import OwnUsage
from fastbk.observe.prometheus import family, single
from fastbk.security.settings import http_port, http_tls, tls_files
from fastbk.web.certificate_watch import certificate_lines
from fastbk.web.page_admission import PageAdmission, page_credentials
from fastbk.web.page_server import METRICS, TEXT, PageServer, Request, Response, refused_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.gateway.configuration import GatewayConfig
    from fastbk.gateway.connections import Connections
    from fastbk.gateway.service import Service
    from fastbk.security.audit_log import AuditLog

LIMITS = ("idle", "bodies", "large_bodies", "answers", "large_answers", "waits", "watched",
          "writes", "data")  # fmt: skip


async def open_pages(
    stack: AsyncExitStack,
    config: GatewayConfig,
    service: Service,
    connections: Connections,
    audit: AuditLog,
    cluster_id: str,
) -> int | None:
    """Serve the pages until `stack` closes; return their port, None where [http] names none. Raises ConfigError."""
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


def _lines(service: Service, connections: Connections) -> list[str]:
    requests = [
        (f'operation="{name}",status="{status}"', count)
        for (name, status), count in sorted(service.requests.items())
    ]
    seconds = [
        (f'operation="{name}"', f"{spent_s:.6f}")
        for name, spent_s in sorted(service.seconds.items())
    ]
    counts = (
        dict.fromkeys(LIMITS, 0) | service.limits.counts
    )  # a rate needs a value before the first event
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
