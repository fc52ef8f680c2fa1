"""Pictures of the dashboards for docs/dashboards.md: real bookies with real faults, which a real Prometheus scrapes.

`dashboards` is a function of `./dev pictures`. Grafana is no Debian package, so `dashboard_picture` draws what the
panels' own queries find.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import fastbk
from fastbk.devcluster import DevService
from fastbk.errors import Error
from fastbk.stream.client import Client
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.monitoring import DASHBOARDS, RULES, scrape_config
from tests.fixtures.prometheus import Prometheus, faster, program
from tools.dashboard_picture import draw

BOOKIES = 5
SLOW, CRASHED, LOST, FULL = 1, 2, 3, 4
"""The bookies with a fault; the first one has none."""
LOST_BOOKIE_DELAY_S = 5
HEAL_RATE = "4MiB"
"""Slow enough to be seen."""
STEP_S = 2.0
SPAN = "10s"
"""Window of rates: a few scrapes."""
STREAMS = {"shop/orders": 40, "shop/payments": 8, "web/clicks": 100}
"""Stream -> records appended together."""
CURSORS = (
    ("shop/orders", "billing", 0.0005),
    ("shop/orders", "analytics", 0.02),
    ("web/clicks", "sessions", 0.004),
)
"""Stream, cursor, and the seconds that a record takes it."""
PAYLOAD = b"x" * 400
PAUSE_S = 0.05
"""Pause between appends: rates that differ by stream are to be seen, not the highest one."""
SETTINGS: dict[str, dict[str, object]] = {
    "ledgers": {"write_cache_size": "16MiB", "flush_interval": "2s", "entry_log_size": "16MiB"},
    "scrub": {"cycle": "60s"},
}
HEALTHY_S, FAULT_S, HEALED_S = 45.0, 25.0, 90.0
EDGE_S = 5.0


def dashboards(folder: Path) -> None:
    """`dashboard-*.png`: five bookies through five minutes of faults; one picture for each dashboard."""
    program("prometheus")
    with LocalCluster(BOOKIES, settings=SETTINGS) as cluster, ExitStack() as stack:
        data = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        services = {
            name: DevService(name, data, cluster.metadata_uri, *words)
            for name, words in (("autorecovery", ()), ("janitor", ("--interval", "2")))
        }
        for service in services.values():
            stack.callback(service.stop)
            service.start()
        names = {one.http_port: f"{one.name}:8000" for one in cluster.bookies}
        names |= {
            services["autorecovery"].http_port: "healer-1:8085",
            services["janitor"].http_port: "janitor-1:8086",
        }
        addresses = [f"127.0.0.1:{port}" for port in names]
        config = scrape_config(
            addresses[:BOOKIES], addresses[BOOKIES:-1], addresses[-1:], more=_renamed(names)
        )
        prometheus = stack.enter_context(
            Prometheus(data / "prometheus", config, faster(RULES.read_text()))
        )
        began_s = time.time() + EDGE_S
        Cli(cluster.metadata_uri)("cluster", "heal", "rate", HEAL_RATE)
        ended_s = asyncio.run(_live(cluster))
        for path in DASHBOARDS:
            _draw(path, prometheus, (began_s, ended_s), folder / f"dashboard-{path.stem}.png")


def _renamed(names: dict[int | None, str]) -> str:
    """Return the lines of a job that give targets the names of an operator's cluster, in place of our ports."""
    rules = (
        f'      - {{source_labels: [__address__], regex: "127.0.0.1:{port}",'
        f' target_label: instance, replacement: "{name}"}}\n'
        for port, name in names.items()
    )
    return "    relabel_configs:\n" + "".join(rules)


def _draw(path: Path, prometheus: Prometheus, span_s: tuple[float, float], target: Path) -> None:
    def fetch(expression: str) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        query = re.sub(r"\$(cluster|instance|stream)", ".*", expression).replace(
            "$__rate_interval", SPAN
        )
        return prometheus.series(query, *span_s, STEP_S)

    draw(
        path,
        fetch,
        target,
        "drawn by ./dev pictures from the dashboard's JSON; Grafana looks different",
    )
    print(f"{target}: {target.stat().st_size:,} bytes")


async def _live(cluster: LocalCluster) -> float:
    """Append, read and break things for some minutes; return the time at the end, in seconds since 1970."""
    async with fastbk.connect(cluster.metadata_uri, append_timeout=20.0) as client:
        await client.call_store(
            lambda store: store.coordination.set_lost_bookie_delay(LOST_BOOKIE_DELAY_S)
        )
        policy = fastbk.PolicyPatch(roll_bytes=4 << 20, retention_bytes=12 << 20)
        for path in STREAMS:
            namespace, _, name = path.partition("/")
            await client.namespace(namespace).create(policy, exist_ok=True)
            await client.namespace(namespace).create_stream(name)
        work: list[Callable[[], Awaitable[None]]] = [
            *(partial(_append, client, *one) for one in STREAMS.items()),
            *(partial(_read, client, *one) for one in CURSORS),
            partial(_write_ledgers, client),
        ]
        tasks = [asyncio.create_task(_again(one)) for one in work]
        try:
            await _break(cluster)
            return time.time()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _break(cluster: LocalCluster) -> None:
    """Have one fault after the other, with a rest between them."""
    await asyncio.sleep(HEALTHY_S)
    async with cluster.delayed(SLOW, journal_ms=30):
        await asyncio.sleep(FAULT_S)
    await asyncio.sleep(FAULT_S)
    await cluster.kill_async(CRASHED, "journal")
    await asyncio.sleep(FAULT_S)
    async with cluster.filled(FULL):
        await asyncio.sleep(FAULT_S)
    await asyncio.sleep(FAULT_S)
    await cluster.kill_async(LOST)
    await asyncio.sleep(HEALED_S)


async def _again(work: Callable[[], Awaitable[None]]) -> None:
    """Begin anew what a fault has ended."""
    while True:
        with contextlib.suppress(Error, TimeoutError):
            await work()
        await asyncio.sleep(1.0)


async def _append(client: Client, path: str, together: int) -> None:
    namespace, _, name = path.partition("/")
    async with client.namespace(namespace).stream(name).writer() as writer:
        while True:
            await asyncio.gather(*(writer.append(PAYLOAD) for _ in range(together)))
            await asyncio.sleep(PAUSE_S)


async def _read(client: Client, path: str, cursor: str, record_s: float) -> None:
    namespace, _, name = path.partition("/")
    async with client.namespace(namespace).stream(name).cursor(cursor, start="earliest") as found:
        async for record in found:
            found.ack(record)
            await asyncio.sleep(record_s)


async def _write_ledgers(client: Client) -> None:
    """Write ledgers, read each, and delete every other: for reads, compaction and garbage collection."""
    number = 0
    while True:
        async with await client.create_ledger(3, 3, 2) as writer:
            for _ in range(20):
                await writer.append_many([PAYLOAD] * 50)
        reader = await client.open_ledger(writer.ledger_id)
        async for _ in reader.read(0, reader.last_known):
            pass
        number += 1
        if number % 2:
            await client.delete_ledger(writer.ledger_id)
        await asyncio.sleep(PAUSE_S * 10)
