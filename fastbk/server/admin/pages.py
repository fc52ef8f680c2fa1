"""The bookie's HTTP server with all its pages, and what the registration tells of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.apache.http.bookie_facts import StoreThreads
from fastbk.apache.http.routes import add_pages
from fastbk.config import split_address
from fastbk.errors import StorageError
from fastbk.meta.api import APACHE_PROTOCOL, FASTBK_PROTOCOL, HTTP_NAME, HTTP_PROTOCOL, Endpoint
from fastbk.server.admin.http import AdminServer
from fastbk.server.admin.scrub import ScrubPage

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from fastbk.apache.http.bookie_facts import BookieFacts
    from fastbk.server.admin.http import Handler
    from fastbk.server.configuration.bookie_config import BookieConfig


async def open_admin(
    stack: AsyncExitStack, facts: BookieFacts, info: Handler, slow: Handler
) -> AdminServer | None:
    """Listen as configured until `stack` closes; None where there is to be no HTTP. Raises StorageError.

    `info`: answers `/info`. `slow`: answers `/slow`.
    """
    if not (listen := facts.config.http.listen):
        return None
    host, port = split_address(listen, "[http] listen")
    hosts = (*facts.config.http.allowed_hosts, facts.config.bookie.advertised, host)
    admin = AdminServer(facts.life, facts.metrics, facts.disks.shown, hosts)
    admin.add_route("GET", "/disks", facts.disks.answer)
    admin.add_route("GET", "/info", info)
    admin.add_route("GET", "/slow", slow)
    admin.add_route("GET", "/scrub", ScrubPage(facts.config.ledgers.all_directories).answer)
    facts.gc.add_routes(admin)
    metadata = StoreThreads(facts.config.metadata.uri)
    stack.push_async_callback(metadata.close)
    add_pages(admin, facts, metadata)
    try:
        await admin.open(host, port)
    except OSError as error:
        raise StorageError(
            f"cannot listen on {host}:{port} for HTTP: {error.strerror}: choose another by [http] listen"
        ) from error
    stack.push_async_callback(admin.close)
    return admin


def endpoints(
    config: BookieConfig, host: str, port: int, admin: AdminServer | None
) -> tuple[Endpoint, ...]:
    """Return what the registration tells: where clients reach the bookie, and where tools do.

    `host`, `port`: where it listens.
    """
    host = config.bookie.advertised or host
    found = tuple(Endpoint(host, port, one) for one in (FASTBK_PROTOCOL, APACHE_PROTOCOL))
    if admin is None:
        return found
    http_host, _ = split_address(config.http.listen, "[http] listen")
    if http_host in ("0.0.0.0", "::"):
        http_host = host
    return (*found, Endpoint(http_host, admin.port, HTTP_PROTOCOL, HTTP_NAME))
