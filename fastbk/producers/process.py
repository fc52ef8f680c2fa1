"""The process of a write service: one client of the cluster, one port for producers, one for its pages.

It ends as planned on SIGTERM: its record goes first, then its streams go to other services one by one, and then its
producers are told. A second signal ends it at once, and other services recover what was under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

from fastbk import __version__
from fastbk.client.connecting import open_connection
from fastbk.client.connection import Connection
from fastbk.client.ensembles import client_name
from fastbk.config import split_address
from fastbk.errors import ConfigError, Error, ProtocolError, Unauthorized, os_errors_as
from fastbk.limits import allow_descriptors
from fastbk.meta.zookeeper.security import use_file
from fastbk.native import client_codec
from fastbk.observe import logs
from fastbk.observe.prometheus import OwnUsage, family, heading, number, single
from fastbk.observe.systemd import announced
from fastbk.producers.configuration import advertised_address, id_of
from fastbk.producers.directory import Directory
from fastbk.producers.owner import StreamOwner
from fastbk.producers.service import (
    APPEND_BUCKETS_S,
    STRANGERS_MAX,
    SWEEP_INTERVAL_S,
    Service,
    ServiceOptions,
)
from fastbk.producers.streams import Streams, StreamsOptions
from fastbk.security.admission import Admission
from fastbk.security.audit_log import AuditLog
from fastbk.security.settings import http_port, http_tls, server_tls, tls_files
from fastbk.stream.client import Client, connect
from fastbk.stream.services import OwnerService, ServiceRecord
from fastbk.web.certificate_watch import certificate_lines
from fastbk.web.page_admission import PageAdmission, page_credentials
from fastbk.web.page_server import METRICS, TEXT, PageServer, Request, Response, refused_lines
from fastbk.web.server import HttpListener
from fastbk.wire.messages import OpenProducer, encode_open_producer, error_text
from fastbk.wire.statuses import Status, status_name

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from fastbk.producers.configuration import ServeConfig

DESCRIPTORS_BESIDE = 512 + STRANGERS_MAX
"""Descriptors that it needs for bookies, metadata, pages, and who has not said hello."""
HANDSHAKES_MAX = 256
STOP_TIMEOUT_S = 45.0
"""How long a planned stop takes at most; systemd's unit allows more."""


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the event loop; None: Python's own, on systems that have no other."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def serve(config: ServeConfig) -> None:
    """Serve until SIGTERM or SIGINT. Raises ConfigError, StorageError, MetadataUnavailable: it cannot, or no more."""
    stop = _stopped_by_signals()
    use_file(config.metadata.zookeeper_file)
    async with contextlib.AsyncExitStack() as stack:
        tls, credentials = config.client.tls(), config.client.credentials()
        client = await stack.enter_async_context(
            connect(
                config.metadata.uri, client_name="fastbk serve", tls=tls, credentials=credentials
            )
        )
        await client.records.check_level()
        cluster_id = await client.call_store(lambda store: store.instance_id())
        admission = Admission(
            config.tls, config.authentication, config.authorization, cluster_id, "write service"
        )
        audit = AuditLog(config.audit)
        await audit.begin(stack)
        listener = await _listener(config)
        stack.push_async_callback(listener.close)
        directory = Directory(client.records, _record(config, listener.port))
        me = directory.me
        streams = Streams(
            client,
            directory,
            ServicePeers(client, me.service_id),
            StreamOwner.take_over,
            StreamsOptions(streams_max=config.serve.streams_max, idle_s=config.serve.idle_s),
        )
        stack.callback(streams.abandon)
        service = Service(me.service_id, streams, admission, audit, _options(config))
        stack.push_async_callback(service.close)
        ready = asyncio.Event()
        pages = await _open_pages(stack, config, service, audit, cluster_id, ready)
        await listener.start_protocols(service.protocol)
        if pages is not None:
            http_host, _ = split_address(config.http.listen, "[http] listen")
            directory.describe(http=f"{http_host}:{pages}")
        stack.push_async_callback(directory.end)
        await directory.begin()
        logs.info(
            "serve.started",
            service=me.service_id,
            address=me.address,
            port=listener.port,
            http_port=pages,
            cluster=cluster_id,
            pid=os.getpid(),
        )
        async with _working(stop, directory, service, admission, config):
            ready.set()
            async with announced(f"serves producers at {me.address}"):
                await client.records.follow_level(stop)
                ready.clear()
                await _hand_over(directory, streams)
    logs.info("serve.ended")


def _stopped_by_signals() -> asyncio.Event:
    """Return what the first signal sets; the second one ends the process at once."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(1)
        stop.set()

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, on_signal)
    return stop


async def _listener(config: ServeConfig) -> HttpListener:
    host, port = split_address(config.serve.listen, "[serve] listen")
    tls = server_tls(config.tls) if config.tls.mode == "require" else None
    with os_errors_as(ConfigError, f"[serve] listen = {config.serve.listen}: cannot listen"):
        return await HttpListener.bind(host, port, tls, HANDSHAKES_MAX)


def _record(config: ServeConfig, port: int) -> ServiceRecord:
    address = advertised_address(config, port)
    return ServiceRecord(
        service_id=id_of(config, address),
        address=address,
        beat=0,
        started_ms=time.time_ns() // 1_000_000,
        software=f"fastbk {__version__}",
    )


def _options(config: ServeConfig) -> ServiceOptions:
    wanted = config.serve.connections_max
    fits = max(1, allow_descriptors(wanted + DESCRIPTORS_BESIDE) - DESCRIPTORS_BESIDE)
    if fits < wanted:
        logs.warning("serve.connections_limited", connections_max=fits, by="RLIMIT_NOFILE")
    return ServiceOptions(
        connections_max=min(wanted, fits),
        producers_max=config.serve.producers_max,
        pending_bytes_max=config.serve.pending_bytes_max,
        memory_bytes_max=config.serve.memory_bytes_max,
    )


@contextlib.asynccontextmanager
async def _working(
    stop: asyncio.Event,
    directory: Directory,
    service: Service,
    admission: Admission,
    config: ServeConfig,
) -> AsyncGenerator[None, None]:
    """Have what goes on beside the connections done while the block runs. Raises what ended it."""

    async def sweep() -> None:
        interval_s = config.authentication.refresh_interval_s
        refreshed_s = time.monotonic()
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            if time.monotonic() - refreshed_s >= interval_s:
                refreshed_s = time.monotonic()
                admission.files.has_changed()
            service.sweep()

    async def release_idle() -> None:
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            await service.streams.sweep()

    work = [asyncio.create_task(job()) for job in (directory.run, sweep, release_idle)]
    for task in work:
        task.add_done_callback(lambda _: stop.set())  # it never ends by itself
    try:
        yield
    finally:
        for task in work:
            task.cancel()
        ends = await asyncio.gather(*work, return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception):
            raise end


async def _hand_over(directory: Directory, streams: Streams) -> None:
    """Stop as planned: producers go elsewhere, stream by stream."""
    logs.info("serve.stopping", streams=len(streams.owned))
    await directory.end()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await streams.hand_over()
    except TimeoutError:
        logs.warning("serve.stop_took_too_long", streams=len(streams.owned))


# --- other services -----------------------------------------------------------------------------------------------


class ServicePeers:
    """Connections to other services, each for one question."""

    def __init__(self, client: Client, own_id: str) -> None:
        self._config = client.config
        self._tls = None if client.config.tls is None else client.config.tls.context()
        self._name = f"{own_id} {client_name()}"[:128]
        self._silent = logs.LimitLog("serve.peer_not_reached")

    async def is_there(self, service: OwnerService, timeout_s: float) -> bool | None:
        """Return whether a service answers at its address; None: nobody knows, as nothing answered in time."""
        try:
            connection = await self._connect(service.address, service.service_id, timeout_s)
        except ProtocolError:
            return False  # it is another one
        except Unauthorized:
            return True  # whom it serves is another question
        except Error as error:
            if isinstance(error.__cause__, ConnectionRefusedError):
                return False
            self._silent.note(service.service_id, address=service.address, reason=str(error))
            return None
        connection.close()
        return True

    async def have_taken(
        self, address: str, service_id: str, stream: str, timeout_s: float
    ) -> None:
        """Have a service take a stream over. Raises Error."""
        connection = await self._connect(address, service_id, timeout_s)
        try:
            request = OpenProducer(stream=stream, timeout_ms=int(1e3 * timeout_s))
            answer = await connection.request(1, encode_open_producer(1, request), timeout_s)
        finally:
            connection.close()
        if answer.status != Status.OK:
            text = error_text(answer.frame) if answer.kind == client_codec.ERROR_REPLY else ""
            raise Error(f"service {service_id}: {status_name(answer.status)} {text}".strip())

    async def _connect(self, address: str, service_id: str, timeout_s: float) -> Connection:
        host, port = split_address(address, f"service {service_id}")
        return await open_connection(
            host,
            port,
            bookie_id=service_id,
            client_name=self._name,
            timeout_s=timeout_s,
            slots={},
            on_lost=lambda _: None,
            on_drained=lambda: None,
            tls=self._tls,
            credentials=self._config.credentials,
        )


# --- its pages ----------------------------------------------------------------------------------------------------


async def _open_pages(
    stack: contextlib.AsyncExitStack,
    config: ServeConfig,
    service: Service,
    audit: AuditLog,
    cluster_id: str,
    ready: asyncio.Event,
) -> int | None:
    """Serve `/metrics`, `/livez` and `/readyz` until `stack` closes; return their port, None: [http] names none.

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
        lambda: metric_lines(service),
        lambda: refused_lines("fastbk_serve_http_refused", server.refused()),
        audit.metric_lines,
        certificates,
        OwnUsage("serve").metric_lines,
    ]

    async def metrics(request: Request) -> Response:
        if request.method != "GET":
            return 405, TEXT, b"not for this path\n"
        lines = [line for source in sources for line in source()]
        return 200, METRICS, "".join(f"{line}\n" for line in lines).encode()

    async def alive(request: Request) -> Response:
        del request
        return 200, TEXT, b"ok\n"

    async def is_ready(request: Request) -> Response:
        del request
        return (200, TEXT, b"ok\n") if ready.is_set() else (503, TEXT, b"it starts, or stops\n")

    server.add_page("/metrics", metrics, is_quick=True)
    server.add_page("/livez", alive, is_quick=True)
    server.add_page("/readyz", is_ready, is_quick=True)
    with os_errors_as(ConfigError, f"[http] listen = {config.http.listen}: cannot listen"):
        await server.open(host, port, http_tls(config.http, config.tls))
    stack.push_async_callback(server.close)
    return server.port


def metric_lines(service: Service) -> list[str]:
    """Return the figures of a service in Prometheus' text format."""
    figures, streams = service.figures, service.streams
    # a rate needs a value before the first event
    refusals = dict.fromkeys(("moved", "not_ready", "forbidden", "producer_fenced"), 0)
    refusals |= figures.refusals
    limits = dict.fromkeys(LIMITS, 0) | service.limits.counts
    gauges = (
        ("streams", "Streams that it owns.", len(streams.owned)),
        ("producers", "Producers that are open.", service.producers),
        ("connections", "Connections of producers.", len(service.connections)),
        ("pending_bytes", "Records that are received and not answered.", service.memory.bytes),
        ("waiting_connections", "Connections not read for want of memory.",
         len(service.memory.waiting) + len(service.memory.starved)),
    )  # fmt: skip
    counters = (
        ("frames", "Frames that were stored.", figures.frames),
        ("records", "Records of these frames.", figures.records),
        ("bytes", "Bytes of these records.", figures.bytes),
        ("takeovers", "Streams that it took over.", streams.takeovers),
        ("handovers", "Streams that it gave to others when it stopped.", streams.handovers),
        ("streams_lost", "Streams whose owner here failed or was fenced.", streams.lost),
    )
    lines = []
    for name, text, value in gauges:
        lines += single(f"fastbk_serve_{name}", "gauge", text, value)
    for name, text, value in counters:
        lines += single(f"fastbk_serve_{name}_total", "counter", text, value)
    lines += family(
        "fastbk_serve_refusals_total",
        "counter",
        "Requests that were refused, by status.",
        [(f'reason="{name}"', count) for name, count in sorted(refusals.items())],
    )
    lines += family(
        "fastbk_serve_limits_total",
        "counter",
        "Connections and requests ended by a limit.",
        [(f'limit="{name}"', count) for name, count in sorted(limits.items())],
    )
    return lines + _append_lines(service)


LIMITS = (
    "connections",
    "strangers",
    "producers",
    "pending_bytes",
    "hello_timeout",
    "frame_timeout",
    "bad_frame",
)


def _append_lines(service: Service) -> list[str]:
    metric, figures = "fastbk_serve_append_seconds", service.figures
    lines, below = heading(metric, "histogram", "Time from a frame's arrival to its answer."), 0
    for bound_s, count in zip(APPEND_BUCKETS_S, figures.append_buckets, strict=False):
        below += count
        lines.append(f'{metric}_bucket{{le="{number(bound_s)}"}} {below}')
    lines.append(f'{metric}_bucket{{le="+Inf"}} {figures.frames}')
    return [*lines, f"{metric}_sum {number(figures.append_s)}", f"{metric}_count {figures.frames}"]
