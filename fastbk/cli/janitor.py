"""`fastbk janitor`: keeps the streams of a cluster in order, until SIGTERM; any number may run."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.cli.options import (
    add_events,
    add_http,
    add_json,
    add_lifeline,
    add_metadata,
    begin_service,
    end_with_lifeline,
    http_admission,
    http_tls,
    metadata_uri,
    print_answer,
    process_lines,
    recorded_events,
)
from fastbk.errors import ConfigError, StorageError, os_errors_as
from fastbk.safe_files import make_directory
from fastbk.units import format_count, format_size

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncGenerator

    from fastbk.client import Client
    from fastbk.observe.event_log import EventLog
    from fastbk.stream.deletion import Sink
    from fastbk.stream.janitor import Counts, Janitor
    from fastbk.web.page_admission import PageAdmission


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--once", action="store_true", help="one pass over everything, and say what was done"
    )
    parser.add_argument(
        "--interval", type=float, default=60.0, metavar="SECONDS", help="between passes (60)"
    )
    parser.add_argument(
        "--roll-grace",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="a segment that nobody writes to is ended so long after its age (60);"
        " more than the clocks of machines differ",
    )
    parser.add_argument(
        "--ledgers-per-second", type=float, default=500.0, metavar="N", help="deleted at most (500)"
    )
    parser.add_argument(
        "--audit",
        type=Path,
        metavar="FILE",
        help="gets a line of JSON before each deletion; default: the log",
    )
    add_events(parser, "janitor")
    add_http(parser, "/metrics, /livez and /events")
    parser.add_argument(
        "--cursor-series",
        type=int,
        default=1000,
        metavar="N",
        help="cursors of which /metrics tells how far they are behind, at most (1000); 0: none",
    )
    add_lifeline(parser)
    add_metadata(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Pass once, or until a signal."""
    begin_service("janitor")
    return asyncio.run(_run(options))


async def _run(options: argparse.Namespace) -> int:
    import fastbk
    from fastbk.client.ensembles import client_name
    from fastbk.observe import logs
    from fastbk.security.tls import TlsOptions
    from fastbk.stream.janitor import Janitor, JanitorOptions
    from fastbk.web.certificate_watch import watched_certificates

    end_with_lifeline(options)
    chosen = JanitorOptions(
        interval_s=options.interval,
        roll_grace_s=options.roll_grace,
        ledgers_per_s=options.ledgers_per_second,
        # Only the page shows them, and finding them out is reads.
        cursor_gauges_max=0 if options.http is None else options.cursor_series,
    )
    cluster_ids = [""]
    admission = None if options.http is None else http_admission(options, lambda: cluster_ids[-1])
    async with AsyncExitStack() as stack:
        events = stack.enter_context(recorded_events(options, "janitor"))
        events.source = f"janitor@{client_name()}"
        await stack.enter_async_context(watched_certificates(TlsOptions.from_environment()))
        client = await stack.enter_async_context(fastbk.connect(metadata_uri(options)))
        await client.records.check_level()
        janitor = Janitor(client, chosen, _sink(options.audit))
        if options.once:
            counts = await janitor.pass_once(thorough=True)
            print_answer(options, counts.as_dict(), *_lines(counts))
            return 1 if counts.errors else 0
        cluster_ids.append(await client.call_store(lambda store: store.instance_id()))
        async with _pages(janitor, options, events, admission, client) as port:
            await _run_until_stopped(options.interval, client, janitor, port)
        logs.info("janitor.ended", **janitor.counts.as_dict())
    return 0


@asynccontextmanager
async def _pages(
    janitor: Janitor,
    options: argparse.Namespace,
    events: EventLog,
    admission: PageAdmission | None,
    client: Client,
) -> AsyncGenerator[int | None, None]:
    """Serve its page while the block runs; yield the port."""
    if options.http is None:
        yield None
        return
    from fastbk.cli.service_pages import serve_janitor
    from fastbk.config import split_address
    from fastbk.web.page_server import add_event_page

    host, port = split_address(options.http, "--http")
    with os_errors_as(ConfigError, f"--http {options.http}: cannot listen"):
        lines = process_lines(events, "janitor")
        server = await serve_janitor(
            janitor,
            host,
            port,
            (*options.http_host, host),
            http_tls(options),
            lambda: [*lines(), *client.pool.traffic.metric_lines()],
            admission,
        )
    add_event_page(server, events)
    try:
        yield server.port
    finally:
        await server.close()


def _sink(path: Path | None) -> Sink:
    from fastbk.stream.deletion import AuditFile, log_lines

    if path is None:
        return log_lines
    with os_errors_as(StorageError, f"{path.parent}: cannot be used"):
        make_directory(path.parent.absolute())
    return AuditFile(path)


async def _run_until_stopped(
    interval_s: float, client: Client, janitor: Janitor, port: int | None
) -> None:
    """Pass until SIGTERM or SIGINT; a pass under way is left where it is. Raises LevelLacking."""
    from fastbk.observe import logs
    from fastbk.observe.systemd import announced

    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    logs.info("janitor.started", interval_s=interval_s, http_port=port)
    async with announced(f"a pass every {interval_s:g} s"):
        running = loop.create_task(janitor.run(stop))
        stopping = loop.create_task(client.records.follow_level(stop))
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    # Every step may be repeated: nothing has to be waited for.
    for task in (running, stopping):
        task.cancel()
    for end in await asyncio.gather(running, stopping, return_exceptions=True):
        if isinstance(end, BaseException) and not isinstance(end, asyncio.CancelledError):
            raise end


def _lines(counts: Counts) -> list[str]:
    deleted = (
        format_count(counts.segments_deleted, "segment"),
        format_count(counts.ledgers_deleted, "ledger"),
        format_count(counts.streams_deleted, "stream"),
        format_count(counts.cursors_expired, "cursor"),
    )
    return [
        f"{format_count(counts.streams, 'stream')} looked at",
        f"  ended: {format_count(counts.rolled, 'idle segment')}",
        f"  deleted: {', '.join(deleted)}",
        f"  reclaimed: {format_size(counts.reclaimed_bytes)}, when the bookies' gc looks",
        f"  failed: {format_count(counts.errors, 'stream')}",
    ]
