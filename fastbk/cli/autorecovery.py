"""`fastbk autorecovery`: finds lost copies and makes new ones, until SIGTERM; several may run."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.cli.options import (
    add_events,
    add_http,
    add_lifeline,
    add_metadata,
    begin_service,
    end_with_lifeline,
    http_admission,
    http_tls,
    metadata_uri,
    process_lines,
    recorded_events,
)
from fastbk.errors import ConfigError, os_errors_as
from fastbk.units import parse_duration_us

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncGenerator, Callable

    from fastbk.admin.healing import RequestedRecoveries
    from fastbk.autorecovery.healer import Healer
    from fastbk.observe.event_log import EventLog
    from fastbk.web.page_admission import PageAdmission


PLACEMENT_KEY = "auditorPeriodicPlacementPolicyCheckInterval"
SCRIPT_KEY = "networkTopologyScriptFileName"


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
    parser.add_argument(
        "--placement-interval",
        metavar="TIME",
        help="between two rounds over all closed ledgers that compare where their copies are with their rules, beside"
        " those after changes of bookies and rules (1h); 0: no such rounds",
    )
    parser.add_argument(
        "--apache-config",
        type=Path,
        metavar="FILE",
        help=f"Apache's file, of which {PLACEMENT_KEY} and {SCRIPT_KEY} count here, where --placement-interval and"
        " --topology-script are not given",
    )
    parser.add_argument(
        "--audit",
        type=Path,
        metavar="FILE",
        help="gets a line for each change by --http, as a bookie's audit log; default: only the log",
    )
    parser.add_argument(
        "--topology-script",
        type=Path,
        metavar="FILE",
        help="an executable that gets hosts and prints a location for each: the auditor keeps the cluster's table of"
        " locations by it",
    )
    add_events(parser, "autorecovery")
    add_http(parser, "/metrics, /livez, /events and /api/v1/autorecovery")
    add_lifeline(parser)
    add_metadata(parser)


def run(options: argparse.Namespace) -> int:
    """Work until a signal."""
    begin_service("autorecovery")
    return asyncio.run(_run(options))


async def _run(options: argparse.Namespace) -> int:
    import fastbk
    from fastbk.admin.healing import RequestedRecoveries
    from fastbk.autorecovery.auditor import AuditorOptions
    from fastbk.autorecovery.healer import Healer
    from fastbk.autorecovery.worker import WorkerOptions
    from fastbk.meta.uri import is_gateway
    from fastbk.observe import logs
    from fastbk.observe.systemd import announced
    from fastbk.security.tls import TlsOptions
    from fastbk.web.certificate_watch import watched_certificates

    end_with_lifeline(options)
    if not 1 <= options.ledgers_at_once <= 64:
        raise ConfigError(f"--ledgers-at-once {options.ledgers_at_once}: must be 1 to 64")
    if options.grace < 0:
        raise ConfigError(f"--grace {options.grace:g}: must be 0 or more seconds")
    auditing = AuditorOptions(
        placement_interval_s=_placement_interval_s(options),
        topology_script=_topology_script(options),
    )
    chosen = WorkerOptions(ledgers_at_once=options.ledgers_at_once, grace_s=options.grace)
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    uri = metadata_uri(options)
    if is_gateway(uri):
        raise ConfigError(
            f"{uri}: autorecovery needs the metadata store itself (`zk://...`), not a gateway"
        )
    async with AsyncExitStack() as stack:
        events = stack.enter_context(recorded_events(options, "autorecovery"))
        note, audit_lines = await _audit(options, stack)
        cluster_ids = [""]
        admission = (
            None if options.http is None else http_admission(options, lambda: cluster_ids[-1], note)
        )
        await stack.enter_async_context(watched_certificates(TlsOptions.from_environment()))
        client = await stack.enter_async_context(fastbk.connect(uri))
        await client.records.check_level()
        healer = Healer(client, auditor_options=auditing, worker_options=chosen)
        events.source = f"autorecovery@{healer.name}"
        recoveries = RequestedRecoveries(client, uri, healer.worker.rate)
        cluster_ids.append(await client.call_store(lambda store: store.instance_id()))
        lines = process_lines(events, "autorecovery")
        recovering = loop.create_task(recoveries.run())
        async with _pages(
            healer,
            recoveries,
            uri,
            options,
            events,
            admission,
            lambda: [*lines(), *audit_lines(), *client.pool.traffic.metric_lines()],
        ) as port:
            logs.info("autorecovery.started", name=healer.name, http_port=port, pid=os.getpid())
            try:
                async with announced(f"heals as {healer.name}"):
                    await healer.run(stop)
            finally:
                recovering.cancel()
                await asyncio.wait([recovering])
        logs.info("autorecovery.ended", name=healer.name)
    return 0


def _placement_interval_s(options: argparse.Namespace) -> float:
    """Return how often all closed ledgers' places are checked, 0 for never. Raises ConfigError."""
    from fastbk.apache.configuration import source
    from fastbk.autorecovery.placement_audit import INTERVAL_S

    if options.placement_interval is not None:
        if options.placement_interval == "0":
            return 0.0
        return parse_duration_us(options.placement_interval) / 1e6
    if options.apache_config is None:
        return INTERVAL_S
    configuration = source.read(options.apache_config, os.environ)
    seconds = configuration.integer(PLACEMENT_KEY)
    if seconds is not None and seconds < 0:
        raise configuration.fault(PLACEMENT_KEY, "must be 0 or more seconds")
    return INTERVAL_S if seconds is None else float(seconds)


def _topology_script(options: argparse.Namespace) -> Path | None:
    """Return the script that says where bookies are; None: there is none. Raises ConfigError."""
    from fastbk.apache.configuration import source
    from fastbk.client.known_bookies import TopologyScript

    script: Path | None = options.topology_script
    if script is None and options.apache_config is not None:
        named = source.read(options.apache_config, os.environ).text(SCRIPT_KEY)
        script = Path(named) if named else None
    return None if script is None else TopologyScript(script.absolute()).path


async def _audit(
    options: argparse.Namespace, stack: AsyncExitStack
) -> tuple[Callable[..., object], Callable[[], list[str]]]:
    """Return what keeps a record of changes until `stack` closes, and its lines of `/metrics`. Raises StorageError."""
    from fastbk.observe import logs
    from fastbk.security.audit_log import AuditLog
    from fastbk.security.settings import AuditSettings

    audit = AuditLog(
        AuditSettings(file="" if options.audit is None else str(options.audit.absolute()))
    )
    await audit.begin(stack)

    def note(event: str, **values: object) -> None:
        logs.info(event, **values)
        audit.note(event, **values)

    return note, audit.metric_lines if audit.is_on else list


@asynccontextmanager
async def _pages(
    healer: Healer,
    recoveries: RequestedRecoveries,
    uri: str,
    options: argparse.Namespace,
    events: EventLog,
    admission: PageAdmission | None,
    more_lines: Callable[[], list[str]],
) -> AsyncGenerator[int | None, None]:
    """Answer over HTTP while the block runs; yield the port."""
    if options.http is None:
        yield None
        return
    from fastbk.apache.http.answers import StoreThreads
    from fastbk.apache.http.pages import AutoRecoveryPages, add_auto_recovery_pages
    from fastbk.cli.service_pages import add_pages
    from fastbk.config import split_address
    from fastbk.web.page_server import PageServer, add_event_page

    host, port = split_address(options.http, "--http")
    server = PageServer((*options.http_host, host), admission)
    metadata = StoreThreads(uri)
    add_pages(server, healer, recoveries, more_lines)
    add_event_page(server, events)
    add_auto_recovery_pages(server, AutoRecoveryPages(metadata, recoveries))
    with os_errors_as(ConfigError, f"--http {options.http}: cannot listen"):
        await server.open(host, port, http_tls(options))
    try:
        yield server.port
    finally:
        await server.close()
        await metadata.close()
