"""The process of a gateway: one session with the metadata store, one port for clients, one for its pages."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING

from fastbk.client.config import ClientConfig
from fastbk.client.metadata_calls import MetadataCalls
from fastbk.client.record_calls import RecordCalls
from fastbk.config import split_address
from fastbk.errors import ConfigError, os_errors_as
from fastbk.gateway.connections import CONNECTIONS_MAX, Connections
from fastbk.gateway.pages import open_pages
from fastbk.gateway.service import STORE_TIMEOUT_S, Service
from fastbk.gateway.shares import Budgets
from fastbk.meta.zookeeper.security import use_file
from fastbk.observe import logs
from fastbk.observe.systemd import announced
from fastbk.open_files import allow_descriptors
from fastbk.security.admission import Admission
from fastbk.security.audit_log import AuditLog
from fastbk.security.settings import server_tls
from fastbk.web.listener import HANDSHAKES_MAX, HttpListener

if TYPE_CHECKING:
    from fastbk.gateway.configuration import GatewayConfig
    from fastbk.gateway.shares import Scale

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
        connections = Connections(service, admission, scale)
        host, port = split_address(config.gateway.listen, "[gateway] listen")
        tls = server_tls(config.tls) if config.tls.mode == "require" else None
        with os_errors_as(
            ConfigError, f"[gateway] listen = {config.gateway.listen}: cannot listen"
        ):
            listener = await HttpListener.bind(host, port, tls, scale(HANDSHAKES_MAX))
        stack.push_async_callback(connections.close)
        stack.push_async_callback(listener.close)
        pages = await open_pages(stack, config, service, connections, audit, cluster_id)
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
