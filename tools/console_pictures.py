"""Pictures of the console for docs/console.md: real bookies under load, one with a slow journal, in a real Chromium."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from pathlib import Path

import fastbk
from fastbk.console.process import ConsoleOptions, serving
from fastbk.stream.client import Client
from fastbk.testing import LocalCluster
from tests.fixtures.browser import Browser, browser

BOOKIES, SLOW = 5, 3
JOURNAL_DELAY_MS = 40
HISTORY_S = 100.0
"""How long figures are gathered, for charts that show something."""
STREAMS = {"shop/orders": 40, "shop/payments": 8, "telemetry/eu/temperature": 3, "web/clicks": 100}
"""Stream -> records appended together."""
CURSORS = (
    ("shop/orders", "billing", 0.0),
    ("shop/orders", "analytics", 0.02),
    ("web/clicks", "sessions", 0.001),
)
"""Stream, cursor, and the seconds that a record takes it."""
WIDE, SMALL = (1280, 900), (400, 860)


def console(folder: Path) -> None:
    """`console-cluster.png`, `console-stream.png` and `console-small.png`: a busy cluster with a slow journal."""
    with LocalCluster(BOOKIES) as cluster:
        asyncio.run(_console(cluster, folder))


async def _console(cluster: LocalCluster, folder: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(fastbk.connect(cluster.metadata_uri))
        for path in STREAMS:
            namespace, _, name = path.rpartition("/")
            await client.namespace(namespace).create(
                fastbk.PolicyPatch(roll_bytes=1 << 20), exist_ok=True
            )
            await client.namespace(namespace).create_stream(name)
        work = [_append(client, path, together) for path, together in STREAMS.items()]
        tasks = [
            asyncio.create_task(one) for one in (*work, *(_read(client, *one) for one in CURSORS))
        ]
        stack.push_async_callback(_end, tasks)
        await cluster.delay_async(SLOW, journal_ms=JOURNAL_DELAY_MS)
        audit_folder = stack.enter_context(tempfile.TemporaryDirectory())
        audit_file = Path(audit_folder) / "audit.log"
        options = ConsoleOptions(
            uri=cluster.metadata_uri,
            host="127.0.0.1",
            port=0,
            name="production",
            audit_file=audit_file,
        )
        found, port = await stack.enter_async_context(serving(options))
        begin_s = time.monotonic()
        while time.monotonic() - begin_s < HISTORY_S or found.view.overview is None:
            for task in tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(1.0)
        await asyncio.to_thread(_pictures, f"http://127.0.0.1:{port}", folder)


def _pictures(base: str, folder: Path) -> None:
    with browser(base) as window:
        _picture(window, "/", folder / "console-cluster.png", WIDE, dark=False)
        _picture(window, "/stream/shop/orders", folder / "console-stream.png", WIDE, dark=True)
        _picture(window, "/bookies", folder / "console-small.png", SMALL, dark=True)


def _picture(window: Browser, path: str, file: Path, size: tuple[int, int], *, dark: bool) -> None:
    window.size(*size, dark=dark)
    window.open(path)
    window.until(
        "return typeof uPlot !== 'function' || [...document.querySelectorAll('figure[data-chart]')]"
        ".every((one) => one.querySelector('canvas'))",
        "charts are drawn",
    )
    window.picture(file, whole=False)
    print(f"{file}: {file.stat().st_size:,} bytes")


async def _append(client: Client, path: str, together: int) -> None:
    namespace, _, name = path.rpartition("/")
    number = 0
    async with client.namespace(namespace).stream(name).writer() as writer:
        while True:
            values = [
                json.dumps({"number": number + at, "total": 19.9}).encode()
                for at in range(together)
            ]
            await asyncio.gather(*(writer.append(one) for one in values))
            number += together
            await asyncio.sleep(0.05)


async def _read(client: Client, path: str, cursor_name: str, each_s: float) -> None:
    namespace, _, name = path.rpartition("/")
    async with client.namespace(namespace).stream(name).cursor(cursor_name) as cursor:
        async for record in cursor:
            cursor.ack(record)
            if each_s:
                await asyncio.sleep(each_s)


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
