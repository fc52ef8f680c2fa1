"""Each example in Python of the README and of the pages for applications runs as it stands, on three real bookies."""

from __future__ import annotations

import ast
import asyncio
import re
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import CoroutineType
from typing import Any

import pytest

import fastbk
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.wait import wait_until_async
from tests.style.tree import ROOT

README, STREAMS, TESTING, METRICS, PIPELINES = (
    "README.md",
    "docs/streams.md",
    "docs/testing.md",
    "docs/client-metrics.md",
    "docs/pipelines.md",
)
COUNTS = {README: 2, STREAMS: 5, TESTING: 2, METRICS: 2, PIPELINES: 3}
"""Examples in Python: a new one wants a test here."""


def example(page: str, number: int) -> str:
    found = re.findall(
        r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL
    )
    assert len(found) == COUNTS[page]
    return textwrap.dedent(found[number])


async def run(
    code: str, names: dict[str, Any], until: Callable[[], Awaitable[object]] | None = None
) -> None:
    """Run an example in these names, to its end; or, where it goes on for ever, until that is so."""
    compiled = compile(code, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    made = eval(compiled, names)
    if not isinstance(made, CoroutineType):
        return
    task = asyncio.ensure_future(made)
    if until is not None:

        async def is_so() -> bool:
            if task.done():
                task.result()
            return bool(await until())

        await wait_until_async(is_so, "what the example does")
        task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.wait_for(task, 60)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3) as found:
        yield found


def test_the_readme_from_its_first_ledger_to_a_cursor(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTBK_METADATA", cluster.metadata_uri)
    (tmp_path / "example.py").write_text(example(README, 0))
    done = subprocess.run(
        [sys.executable, str(tmp_path / "example.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("0 b'durable on two bookies when this returns'\n", "")
    cli, lines = Cli(cluster.metadata_uri), b"".join(b"%d\n" % one for one in range(1, 1001))
    cli("namespace", "create", "shop", "--set", "roll_bytes=64MiB", "--set", "compression=lz4")
    for _ in range(2):
        cli(
            "stream", "append", "shop/orders", "--create", "--producer", "import", "--resume",
            stdin=lines,
        )  # fmt: skip
    cli.end()

    async def inside() -> None:
        async with fastbk.connect() as client:
            orders = client.namespace("shop").stream("orders")

            async def is_read() -> bool:
                return [one.mark_seq for one in await orders.cursors()] == [1001]

            await run(example(README, 1), {"client": client}, is_read)

    asyncio.run(inside())


async def test_streams_are_made_appended_to_and_read_by_a_cursor(cluster: LocalCluster) -> None:
    names = {"uri": cluster.metadata_uri, "lines": [b"%d" % one for one in range(100)]}
    await run(example(STREAMS, 0), names)
    async with fastbk.connect(cluster.metadata_uri) as client:
        shop = client.namespace("shop/eu")
        for _ in range(2):  # the second run finds all there
            await run(example(STREAMS, 1), {"shop": shop, "lines": names["lines"]})
        payments = [
            bytes(record.payload) async for record in shop.stream("payments").reader(tail=False)
        ]
        assert payments == names["lines"]
        stream = shop.stream("orders")
        assert len([one async for one in stream.reader(tail=False)]) == 101
        charged: list[str] = []

        async def charge(_: memoryview, idempotency: str) -> None:
            charged.append(idempotency)

        async def is_charged() -> bool:
            return [one.mark_seq for one in await stream.cursors()] == [101]

        await run(example(STREAMS, 2), {"stream": stream, "charge": charge}, is_charged)
        assert len(charged) == len(set(charged)) == 101


async def test_many_streams_are_read_as_one(cluster: LocalCluster) -> None:
    async with fastbk.connect(cluster.metadata_uri) as client:
        shop = client.namespace("shop")
        await shop.create(exist_ok=True)
        for name in ("orders-1", "orders-2"):
            async with shop.stream(name).writer(create=True) as writer:
                await writer.append_many([b"%d" % one for one in range(10)])
        printed: list[str] = []
        charged: list[str] = []

        async def charge(_: memoryview, idempotency: str) -> None:
            charged.append(idempotency)

        async def is_printed() -> bool:
            return {"shop/orders-1", "shop/orders-2"} <= set(printed)

        async def is_charged() -> bool:
            return len(charged) == 20

        names = {
            "client": client,
            "charge": charge,
            "print": lambda stream, *_: printed.append(stream),
        }
        reading, billing = example(STREAMS, 3).split("\n\n")
        await run(reading, names, is_printed)
        await run(billing, names, is_charged)


def test_streams_without_await(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cli = Cli(cluster.metadata_uri)
    cli("namespace", "create", "shop/eu", "--exist-ok")
    cli.end()
    exec(example(STREAMS, 4), {"uri": cluster.metadata_uri})
    assert capsys.readouterr().out.splitlines()[-1] == "b'...'"


async def test_the_examples_of_tests_with_faults(cluster: LocalCluster) -> None:
    names: dict[str, Any] = {"cluster": cluster}
    await run(example(TESTING, 0), names)
    await names["test_orders_are_confirmed_though_a_bookie_stands_still"]()
    await run(example(TESTING, 1), {"cluster": cluster, "fastbk": fastbk})


async def test_figures_of_a_writer(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fastbk.connect(cluster.metadata_uri) as client:
        shop = client.namespace("shop")
        await shop.create(exist_ok=True)
        async with shop.stream("figures").writer(create=True) as writer:
            await writer.append(b"x")
            await run(example(METRICS, 0), {"writer": writer})
    records, in_flight, p99_s = capsys.readouterr().out.split()
    assert (int(records), int(in_flight)) == (1, 0) and float(p99_s) > 0
    monkeypatch.setenv("FASTBK_METADATA", cluster.metadata_uri)
    await run(example(METRICS, 1), {"fastbk": fastbk})


async def test_pipelines(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's first example twice: the second one goes on behind the first."""
    monkeypatch.setenv("FASTBK_METADATA", cluster.metadata_uri)
    for _ in range(2):
        await asyncio.to_thread(exec, example(PIPELINES, 0), {"__name__": "example"})
        assert capsys.readouterr().out == "3 orders, 2 invoices\n"
    async with fastbk.connect() as client:
        shop = client.namespace("billing")
        await shop.create_streams(["returns", "good", "bad", "loud"])
        async with shop.stream("returns").writer() as writer:
            await writer.append(b"torn")
        await run(example(PIPELINES, 1), {"fastbk": fastbk, "shop": shop})
        await asyncio.to_thread(exec, example(PIPELINES, 2), {"fastbk": fastbk})
        counts = {
            name: len([record async for record in shop.stream(name).reader(tail=False)])
            for name in ("orders", "invoices", "good", "bad", "loud")
        }
        (bad,) = [record.value async for record in shop.stream("bad").reader(tail=False)]
    assert counts == {"orders": 6, "invoices": 4, "good": 6, "bad": 1, "loud": 6}
    assert bad == b"torn"
