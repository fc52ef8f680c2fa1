"""mypy --strict finds nothing in our code, and in users' own code nothing but what is wrong there.

One run looks at both: it takes half a minute, most of it for what both import.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib

import pytest

from tests.style.tree import ROOT

SNIPPET = '''
from typing import Unpack, assert_type

import fastbk
import fastbk.sync
from fastbk import Chunk, Gap, Record


async def of_asyncio(client: fastbk.Client) -> None:
    stream = client.namespace("shop").stream("orders")
    async with stream.reader("earliest", tail=False) as reader:
        async for record in reader:
            assert_type(record, Record)
        async for chunk in reader.chunks(max_records=10):
            assert_type(chunk, Chunk)
        assert_type(await reader.read(timeout=1), Chunk | None)
    async with stream.reader(on_gap="yield") as gaps:
        async for item in gaps:
            assert_type(item, Record | Gap)
        assert_type(await gaps.read(), Chunk | Gap | None)
    async with stream.cursor("billing", flush_interval=0.1) as cursor:
        async for record in cursor:
            cursor.ack(record)
        assert_type(await cursor.read(), Chunk | None)
    async with stream.cursor("billing", on_gap="yield") as told:
        async for item in told:
            assert_type(item, Record | Gap)
    stream.reader(prefetch=1)  # wrong
    stream.writer(create=True, linger=0.01, publish="piggyback")
    stream.writer(lingr=0.01)  # wrong
    stream.writer(publish="later")  # wrong
    fastbk.connect("sqlite:/m", read_timeout=1, topology={"a": "/r/1"}, ensemble_changes_max=None)
    fastbk.connect("sqlite:/m", read_timout=1)  # wrong
    fastbk.connect("sqlite:/m", read_timeout="1")  # wrong
    stream.cursor("billing", on_gap="skip")  # wrong


def without_await(client: fastbk.sync.Client) -> None:
    stream = client.namespace("shop").stream("orders")
    for record in stream.reader(tail=False):
        assert_type(record, Record)
    with stream.reader(on_gap="yield") as reader:
        for item in reader:
            assert_type(item, Record | Gap)
        for some in reader.chunks():
            assert_type(some, Chunk | Gap)
        assert_type(reader.read(), Chunk | Gap | None)
    with stream.cursor("billing") as cursor:
        for record in cursor:
            cursor.ack(record).result()
    stream.cursor("billing", flush_acks="often")  # wrong
    stream.writer(batch_bytes=1024, over_quota=True)
    stream.writer(batchbytes=1024)  # wrong
    fastbk.sync.connect(parallel_reads=True)
    fastbk.sync.connect(paralel_reads=True)  # wrong


def passed_on(**options: Unpack[fastbk.ClientOptions]) -> fastbk.Client:
    """A function of an application's that takes the same options."""
    return fastbk.connect(None, **options)


async def results_of_asyncio(client: fastbk.Client) -> None:
    """Everything that a call returns has its name in `fastbk`, for annotations."""
    ledger: fastbk.LedgerWriter = await client.create_ledger()
    opened: fastbk.LedgerReader = await client.open_ledger(ledger.ledger_id)
    entry: fastbk.Entry = await opened.read_last()
    stats: fastbk.WriterStats = ledger.stats()
    async for batch in opened.read_batches(0, entry.entry_id):
        assert_type(batch, fastbk.Batch)
    assert_type(await client.ledger_info(ledger.ledger_id), fastbk.LedgerInfo)
    metadata: fastbk.LedgerMetadata = (await client.ledger_info(0)).metadata
    bookies: list[fastbk.BookieRegistration] = await client.list_bookies()
    settings: fastbk.ClientConfig = client.config
    placement: fastbk.PlacementConfig = settings.placement
    namespace: fastbk.Namespace = client.namespace("shop")
    stream: fastbk.Stream = namespace.stream("orders")
    start: fastbk.Start = fastbk.AtSeq(7)
    async with stream.reader(start) as reader:
        assert_type(reader.lag, fastbk.Lag)
    assert_type(await stream.last_position(), fastbk.Position | None)
    assert_type(await stream.info(), fastbk.StreamInfo)
    assert_type(await stream.cursors(), list[fastbk.CursorInfo])
    assert_type(await stream.segments(), list[fastbk.SegmentInfo])
    assert_type(await stream.effective_policy(), fastbk.StreamPolicy)
    async with stream.cursor("billing") as cursor:
        assert_type(await cursor.backlog(), fastbk.Backlog)
    async for event in namespace.watch():
        assert_type(event, fastbk.NamespaceEvent)


def results_without_await(client: fastbk.sync.Client) -> None:
    ledger: fastbk.sync.LedgerWriter = client.create_ledger()
    pending: fastbk.sync.Pending = ledger.append_nowait(b"x")
    namespace: fastbk.sync.Namespace = client.namespace("shop")
    stream: fastbk.sync.Stream = namespace.stream("orders")
    writer: fastbk.sync.StreamWriter = stream.writer()
    appended: fastbk.sync.PendingRecord = writer.append_nowait(b"x")
    assert_type(writer.append(b"x"), fastbk.DLSN)
    assert_type(writer.append_batch([b"x"]), fastbk.DLSN)
    reader: fastbk.sync.StreamReader = stream.reader()
    cursor: fastbk.sync.Cursor = stream.cursor("billing")
    acknowledged: fastbk.sync.PendingAck = cursor.ack(fastbk.DLSN(1, 0, 0))
    assert_type(stream.info(), fastbk.StreamInfo)
    assert_type(cursor.backlog(), fastbk.Backlog)
    assert_type(client.call_store(lambda store: 7), int)
    assert_type(stream.find(txid=7), fastbk.DLSN | None)
    stream.find(tixd=7)  # wrong
    namespace.delete(recursive="yes")  # wrong


def total(reader: fastbk.StreamReader, cursor: fastbk.Cursor, stream: fastbk.Stream) -> int:
    """Names stand for what most use, without parameters."""
    return reader.position.segment + cursor.mark_seq + len(stream.name)
'''


USERS_MODULE = "users_of_fastbk"


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What mypy says of our packages and of the snippet, a line each."""
    folder = tmp_path_factory.mktemp("users")
    (folder / f"{USERS_MODULE}.py").write_text(SNIPPET)
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = [f"--package={one}" for one in configuration["tool"]["mypy"]["packages"]]
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", *packages, f"--module={USERS_MODULE}"],
        cwd=ROOT, env={**os.environ, "MYPYPATH": str(folder)}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    # 1: it found something, as it has to in the snippet.
    assert (result.returncode, result.stderr) == (1, ""), result.stdout + result.stderr
    return result.stdout.splitlines()


def test_mypy_strict_finds_nothing(faults: list[str]) -> None:
    ours = [line for line in faults if f"{USERS_MODULE}.py" not in line]
    assert not ours, "\n".join(ours)


def test_iteration_is_typed_by_what_is_handed_out(faults: list[str]) -> None:
    """Only the lines that are marked are wrong."""
    found = {
        int(line) for line in re.findall(rf"{USERS_MODULE}\.py:(\d+): error", "\n".join(faults))
    }
    wrong = {at for at, line in enumerate(SNIPPET.split("\n"), 1) if line.endswith("# wrong")}
    assert found == wrong, "\n".join(faults)
