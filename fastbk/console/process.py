"""The console's process: one cluster, one port, until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import fastbk
from fastbk.console.app import make_app
from fastbk.console.cluster_view import ClusterView
from fastbk.console.context import Console
from fastbk.console.http_engine import HttpEngine
from fastbk.console.rendering import Renderer, StaticFiles
from fastbk.console.sessions import Access, LoginLimit, Sessions
from fastbk.errors import ConfigError, os_errors_as
from fastbk.observe import logs
from fastbk.observe.systemd import announced
from fastbk.safe_files import make_directory, opener
from fastbk.security.audit_log import AuditLog
from fastbk.security.settings import AuditSettings, HttpPort
from fastbk.web.page_admission import SiteGuard
from fastbk.web.server import HttpListener

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator
    from pathlib import Path

    from fastbk.security.tls import RefreshedContext


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleOptions:
    """How a console is started.

    Attributes:
        uri: of the cluster's metadata. name: of the cluster, on all pages; "": the host and port of the URI.
        host, port: where browsers find it. hosts: names that they may call it by, beside its own.
        tls: None: in the clear, which with tokens is refused beyond loopback.
        audit_file: where its audit log is.
        token_keys_file: public keys of users' tokens; "": nobody signs in, and it listens on loopback only.
        token_audience: what tokens are for; "": the cluster's id. revoked_file: of who is not accepted any more.
        pages: HOST:PORT of the pages of janitors and healers, whose events are shown beside those of bookies.
        on_cluster: gets the cluster's id when it is known.
    """

    uri: str
    host: str
    port: int
    audit_file: Path
    name: str = ""
    hosts: tuple[str, ...] = field(default=())
    tls: RefreshedContext | None = None
    token_keys_file: str = ""
    token_audience: str = ""
    revoked_file: str = ""
    pages: tuple[str, ...] = field(default=())
    on_cluster: Callable[[str], None] = lambda cluster_id: None


async def run(options: ConsoleOptions) -> None:
    """Serve until SIGTERM or SIGINT. Raises ConfigError, StorageError, MetadataUnavailable: it cannot, or no more."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with serving(options) as (console, port):
        scheme = "http" if options.tls is None else "https"
        logs.info(
            "console.started",
            url=f"{scheme}://{options.host}:{port}",
            signs_in=not console.access.is_open,
        )
        async with announced(f"serves port {port}", lambda: console.view.is_reading):
            await console.view.client.records.follow_level(stop)
    logs.info("console.ended")


@contextlib.asynccontextmanager
async def serving(options: ConsoleOptions) -> AsyncGenerator[tuple[Console, int], None]:
    """Serve while the block runs; yield the console and its port. Raises as `run`."""
    check_exposure(options)
    async with contextlib.AsyncExitStack() as stack:
        with os_errors_as(ConfigError, f"--listen {options.host}:{options.port}: cannot listen"):
            listener = await HttpListener.bind(options.host, options.port, options.tls)
        stack.push_async_callback(listener.close)
        client = await stack.enter_async_context(fastbk.connect(options.uri))
        await client.records.check_level()
        cluster_id = await client.call_store(lambda store: store.instance_id())
        options.on_cluster(cluster_id)
        audience = options.token_audience or cluster_id
        access = Access(audience, options.token_keys_file, options.revoked_file)
        with os_errors_as(ConfigError, f"--audit {options.audit_file}: its folder cannot be used"):
            await asyncio.to_thread(make_directory, options.audit_file.absolute().parent)
            stack.enter_context(sole_writer(options.audit_file))
        audit = AuditLog(AuditSettings(file=str(options.audit_file.absolute())))
        await audit.begin(stack)
        name = options.name or shown_uri(options.uri)
        view = await stack.enter_async_context(ClusterView(client, options.uri, options.pages))
        static = StaticFiles()
        if not static.has_uplot:
            logs.info(
                "console.without_uplot",
                charts="SVG images",
                next="docs/console.md says how to add uPlot",
            )
        console = Console(
            options.uri, name, view, access, Sessions(access), LoginLimit(), Renderer(static), audit,
            options.tls is not None,
        )  # fmt: skip
        engine = HttpEngine(make_app(console, SiteGuard((*options.hosts, options.host))))
        stack.push_async_callback(engine.close)
        await engine.serve(listener)
        yield console, listener.port


@contextlib.contextmanager
def sole_writer(audit_file: Path) -> Iterator[None]:
    """Hold the lock of an audit log: lines of two consoles in one file would break its chain. Raises ConfigError."""
    lock = opener(f"{audit_file}.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ConfigError(
            f"--audit {audit_file}: another console writes there: stop that one, or give this one a file of its own"
        ) from None
    try:
        yield
    finally:
        os.close(lock)


def check_exposure(options: ConsoleOptions) -> None:
    """Refuse to serve strangers, and tokens in the clear. Raises ConfigError."""
    port = HttpPort(
        where=f"--listen {options.host}:{options.port}",
        host=options.host,
        is_encrypted=options.tls is not None,
        takes_tokens=bool(options.token_keys_file),
    )
    cure = (
        "give --token-keys FILE" if options.tls is not None else "give --token-keys FILE and --tls"
    )
    if problem := port.problem(f"{cure}, or listen on 127.0.0.1"):
        raise ConfigError(problem)


def shown_uri(uri: str) -> str:
    """Return a metadata URI for people: without what may be secret."""
    scheme, _, rest = uri.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if rest else uri
