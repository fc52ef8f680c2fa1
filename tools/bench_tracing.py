"""`./dev bench tracing`: what tracing costs an append in the client's process, switched off, idle and on.

One bookie, and a client each without tracing, with metrics alone, with spans at ratio 0 (each append is looked at), at
0.01 (as by default) and at 1. They take turns in 30 rounds (ROUNDS=30 of APPENDS=20000), with 100 appends in flight.
The figures are nanoseconds of processor time for each append, of the spans' making, too; spans are thrown away. What
stands in the table are medians, and medians of the differences within a round.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

import fastbk
from fastbk.testing import LocalCluster
from tools.part import print_table, scratch, setting, write

NAMES = ("off", "metrics", "ratio 0", "ratio 0.01", "ratio 1")
IN_FLIGHT = 100
DATA = b"x" * 100

Append = Callable[[int], Awaitable[object]]


class Discard(SpanExporter):
    """Keeps no span."""

    def export(self, _: object) -> SpanExportResult:
        """Throw spans away."""
        return SpanExportResult.SUCCESS


async def appends_of(
    stack: AsyncExitStack, uri: str, name: str, tracing: fastbk.Tracing | None
) -> dict[str, Append]:
    """Return what appends so often, to a ledger and to a stream."""
    client = await stack.enter_async_context(fastbk.connect(uri, tracing=tracing))
    ledger = await stack.enter_async_context(await client.create_ledger(1, 1, 1))
    namespace = client.namespace("bench")
    await namespace.create(
        fastbk.PolicyPatch(ensemble=1, write_quorum=1, ack_quorum=1), exist_ok=True
    )
    stream = namespace.stream(name.replace(" ", "-"))
    records = await stack.enter_async_context(stream.writer(create=True))

    async def to_ledger(count: int) -> None:
        for _ in range(count // IN_FLIGHT):
            *_, last = [ledger.append_nowait(DATA) for _ in range(IN_FLIGHT)]
            await last

    async def to_stream(count: int) -> None:
        for _ in range(count // IN_FLIGHT):
            *_, last = [records.append_nowait(DATA) for _ in range(IN_FLIGHT)]
            await last

    return {"ledger": to_ledger, "stream": to_stream}


def tracing_of(name: str, provider: TracerProvider, meters: MeterProvider) -> fastbk.Tracing | None:
    """Return what a client of this name is made with."""
    if name == "off":
        return None
    if name == "metrics":
        return fastbk.Tracing(spans=False, meter_provider=meters)
    ratio = float(name.removeprefix("ratio "))
    return fastbk.Tracing(ratio=ratio, tracer_provider=provider, meter_provider=NoOpMeterProvider())


async def measure(folder: Path, rounds: int, count: int) -> dict[str, dict[str, float]]:
    """Return the figures by name."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(Discard()))
    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    took_ns: dict[tuple[str, str], list[float]] = {}
    async with LocalCluster(1, data=folder) as cluster, AsyncExitStack() as stack:
        appends = {
            name: await appends_of(
                stack,
                cluster.metadata_uri,
                name,
                tracing_of(name, provider, meters),
            )
            for name in NAMES
        }
        for number in range(rounds):
            names = NAMES[:: 1 if number % 2 == 0 else -1]
            for what in ("ledger", "stream"):
                for name in names:
                    began_s = time.process_time()
                    await appends[name][what](count)
                    spent_s = time.process_time() - began_s
                    took_ns.setdefault((what, name), []).append(spent_s * 1e9 / count)
    figures = {}
    for (what, name), values in took_ns.items():
        added = [one - off for one, off in zip(values, took_ns[what, "off"], strict=True)]
        figures[f"{what}, {name}"] = {
            "ns": round(statistics.median(values)),
            "added_ns": round(statistics.median(added)),
        }
    print_table(dict(sorted(figures.items())))
    return figures


def main() -> int:
    """Measure and write the figures."""
    with scratch() as folder:
        figures = uvloop.run(measure(folder, setting("ROUNDS", 30), setting("APPENDS", 20_000)))
    write("bench-tracing", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
