"""`fastbk autorecovery`: finds lost copies and makes new ones, until SIGTERM; several may run."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

from fastbk.cli.options import add_http, add_metadata, metadata_uri
from fastbk.errors import ConfigError, os_errors_as

if TYPE_CHECKING:
    import argparse

    from fastbk.autorecovery.healer import Healer
    from fastbk.server.admin.http import PageServer, Request, Response


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--ledgers-at-once", type=int, default=4, metavar="N", help="repaired at the same time (4)"
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long the writer of an open ledger has to replace a lost bookie (30)",
    )
    add_http(parser, "/livez")
    add_metadata(parser)


def run(options: argparse.Namespace) -> int:
    """Work until a signal."""
    return asyncio.run(_run(options))


async def _run(options: argparse.Namespace) -> int:
    import fastbk
    from fastbk.autorecovery.healer import Healer
    from fastbk.autorecovery.worker import WorkerOptions
    from fastbk.observe import logs

    logs.configure()
    logs.bind(role="autorecovery")
    if not 1 <= options.ledgers_at_once <= 64:
        raise ConfigError(f"--ledgers-at-once {options.ledgers_at_once}: must be 1 to 64")
    if options.grace < 0:
        raise ConfigError(f"--grace {options.grace:g}: must be 0 or more seconds")
    chosen = WorkerOptions(ledgers_at_once=options.ledgers_at_once, grace_s=options.grace)
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with fastbk.connect(metadata_uri(options)) as client:
        healer = Healer(client, worker_options=chosen)
        server = await _serve(healer, options.http, options.http_host)
        port = None if server is None else server.port
        logs.info("autorecovery.started", name=healer.name, http_port=port, pid=os.getpid())
        try:
            await healer.run(stop)
        finally:
            if server is not None:
                await server.close()
        logs.info("autorecovery.ended", name=healer.name)
    return 0


async def _serve(
    healer: Healer, address: str | None, allowed_hosts: list[str]
) -> PageServer | None:
    """Answer `/livez`: 503 once a pass did not end for too long."""
    if address is None:
        return None
    from fastbk.config import split_address
    from fastbk.server.admin.http import TEXT, PageServer

    host, port = split_address(address, "--http")
    server = PageServer((*allowed_hosts, host))

    async def alive(request: Request) -> Response:
        del request
        late = healer.late_passes()
        if late:
            said = ", ".join(f"{name} for {age_s:.0f} s" for name, age_s in sorted(late.items()))
            return 503, TEXT, f"no pass has ended: {said}\n".encode()
        return 200, TEXT, b"ok\n"

    server.add_page("/livez", alive, is_quick=True)
    with os_errors_as(ConfigError, f"--http {address}: cannot listen"):
        await server.open(host, port)
    return server
