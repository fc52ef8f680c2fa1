"""Rig `outage`: ZooKeeper goes away under bookies, writers and readers that live, for longer than every session.

First its connections are cut, so that all registrations run out, and come back; then the server is killed, and started
again on its data. Two writers roll by size and by age; not one append may fail. Tailing readers go on meanwhile. After
it the chains catch up, and a reader that begins anew finds every record once: the digests agree. S13, INV-S1, INV-S3.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import fastbk
from fastbk.devcluster.cluster import ZooKeeperServer, find_jars
from fastbk.devcluster.faults import TcpProxy
from fastbk.errors import ConfigError, Error, MetadataUnavailable
from fastbk.meta import MetadataStore, open_store
from fastbk.meta.uri import ZooKeeperLocation
from fastbk.meta.zookeeper import admin as zookeeper_admin
from fastbk.stream.client import Client
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.records import Chunk, Record
from fastbk.stream.stream import Stream
from fastbk.stream.writer.stream_writer import StreamWriter
from fastbk.testing import LocalCluster
from tests.rigs.report import Plan, Report

NAMESPACE = "outage"
POLICIES = {
    "by-size": PolicyPatch(roll_bytes=50_000, roll_age_s=0.0),
    "by-age": PolicyPatch(roll_bytes=0, roll_age_s=1.0),
}
SESSION_TIMEOUT_S = 2.0
METADATA_TIMEOUT_S = 2.0
OUTAGE_SHARE = 0.3
"""Of the time that is planned, for each of two outages: N=10 makes them half a minute, N=20 a minute."""
OUTAGE_S_MIN = SESSION_TIMEOUT_S + 1.0
CATCH_UP_S = 30.0
LAG_S_MAX = 10.0
"""So much later than its acknowledgement a tailing reader may have a record while metadata is away."""
SLOWEST_S = 0.5
"""An append on a machine with much else to do; of a writer that stands still there are none."""
PAUSE_S = 0.01


@dataclass
class Flow:
    """One stream: what was acknowledged of it, and what a tailing reader got.

    Attributes:
        sent: digest of all payloads in order, whose appends succeeded.
        got: digest of what the reader got.
    """

    name: str
    stream: Stream
    acknowledged: int = 0
    received: int = 0
    waits: int = 0
    worst_s: float = 0.0
    sent: hashlib._Hash = field(default_factory=hashlib.sha256)
    got: hashlib._Hash = field(default_factory=hashlib.sha256)
    failed: list[str] = field(default_factory=list)

    async def write(self, stop: asyncio.Event, rng: random.Random) -> None:
        """Append one record behind the other until `stop`; note how long the slowest took."""
        writer: StreamWriter = self.stream.writer()
        try:
            async with writer:
                while not stop.is_set():
                    payload = b"%d:" % self.acknowledged + rng.randbytes(rng.randrange(400))
                    began_s = time.monotonic()
                    await writer.append(payload)
                    self.worst_s = max(self.worst_s, time.monotonic() - began_s)
                    self.sent.update(payload)
                    self.acknowledged += 1
                    await asyncio.sleep(PAUSE_S)
        except Error as error:
            self.failed.append(f"writer of {self.name}: {type(error).__name__}: {error}")

    async def tail(self) -> None:
        """Read on and on, until cancelled."""
        try:
            async with self.stream.reader("earliest") as reader:
                while True:
                    try:
                        async for record in reader:
                            assert isinstance(record, Record), "nothing is lost, so there is no gap"
                            self.got.update(bytes(record.payload))
                            self.received += 1
                    except MetadataUnavailable:
                        self.waits += (
                            1  # it is to open a segment; the next call goes on where it was
                        )
        except Error as error:
            self.failed.append(f"reader of {self.name}: {type(error).__name__}: {error}")

    def has_received(self, count: int) -> bool:
        """Return whether the tailing reader has so many records."""
        return self.received >= count

    async def read_anew(self, client: Client) -> str:
        """Return the digest of all that a new reader finds."""
        digest, count = hashlib.sha256(), 0
        async with client.namespace(NAMESPACE).stream(self.name).reader("earliest") as reader:
            while count < self.acknowledged:
                chunk = await asyncio.wait_for(reader.read(), CATCH_UP_S)
                assert isinstance(chunk, Chunk), "nothing is lost, so there is no gap"
                for record in chunk:
                    digest.update(bytes(record.payload))
                    count += 1
        return digest.hexdigest()

    async def segments(self) -> tuple[int, int]:
        """Return how many segments were made, and how many are open."""
        chain = (await (await self.stream.context()).store.read()).chain
        return chain.next_number - 1, len(chain.open_rows)


class Outages:
    """A cluster whose ZooKeeper goes away twice, and what goes on in it."""

    def __init__(self, plan: Plan, report: Report, folder: Path) -> None:
        self._plan = plan
        self._report = report
        self._folder = folder
        self._outage_s = max(OUTAGE_S_MIN, OUTAGE_SHARE * plan.seconds)

    async def run(self) -> None:
        """Do all of it; what is wrong stands in the report."""
        server = ZooKeeperServer(
            self._folder / "zookeeper", tick_ms=100, session_timeout_max_s=SESSION_TIMEOUT_S
        )
        await asyncio.to_thread(server.start)
        try:
            with TcpProxy(server.address) as proxy:
                location = ZooKeeperLocation((server.address,), "/outage/ledgers", None)
                zookeeper_admin.init(location)
                uri = ZooKeeperLocation((proxy.address,), "/outage/ledgers", None).uri
                with closing(open_store(location.uri)) as near:
                    async with (
                        LocalCluster(3, data=self._folder / "cluster", metadata_uri=uri),
                        fastbk.connect(uri, metadata_timeout=METADATA_TIMEOUT_S) as client,
                    ):
                        await self._under_load(server, proxy, near, client)
        finally:
            await asyncio.to_thread(server.stop)

    async def _under_load(
        self, server: ZooKeeperServer, proxy: TcpProxy, near: MetadataStore, client: Client
    ) -> None:
        namespace = client.namespace(NAMESPACE)
        await namespace.create()
        flows = [
            Flow(name, await namespace.create_stream(name, policy))
            for name, policy in POLICIES.items()
        ]
        stop = asyncio.Event()
        rng = random.Random(self._plan.seed)
        readers = [asyncio.create_task(flow.tail()) for flow in flows]
        writers = [asyncio.create_task(flow.write(stop, rng)) for flow in flows]
        try:
            for flow in flows:
                await self._rolls_again(flow, 0)
            await asyncio.sleep(rng.uniform(0.0, 1.0))
            await self._outage(flows, lambda: _cut(proxy), lambda: _mend(proxy), "cut", near)
            await asyncio.sleep(rng.uniform(0.0, 1.0))
            kill, start = server.kill, server.start
            await self._outage(
                flows,
                lambda: asyncio.to_thread(kill),
                lambda: asyncio.to_thread(start),
                "killed",
                None,
            )
        finally:
            stop.set()
            async with asyncio.timeout(2 * CATCH_UP_S):
                await asyncio.gather(*writers)
            await self._judge(flows, client)
            for task in readers:
                task.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    async def _outage(
        self,
        flows: list[Flow],
        begin: Callable[[], Awaitable[None]],
        end: Callable[[], Awaitable[None]],
        how: str,
        near: MetadataStore | None,
    ) -> None:
        """Have metadata away, and see that all goes on; `near`: shows that registrations ran out, and come back."""
        report, began_s, waiting = self._report, time.monotonic(), 0
        everybody = 0 if near is None else len(await asyncio.to_thread(near.list_bookies))
        before = [flow.acknowledged for flow in flows]
        await begin()
        try:
            end_s = time.monotonic() + self._outage_s
            while time.monotonic() < end_s and not any(flow.failed for flow in flows):
                await asyncio.sleep(0.1)
            if near is not None and await asyncio.to_thread(near.list_bookies) != []:
                report.lose(["the registrations did not run out: this was no outage"], how)
            for flow, count in zip(flows, before, strict=True):
                written = flow.acknowledged
                report.counts[f"{how}_appends"] += written - count
                if written - count < self._outage_s / SLOWEST_S:
                    report.lose([f"{written - count} appends in {self._outage_s:g} s"], how)
                if not await _until(partial(flow.has_received, written), LAG_S_MAX):
                    waiting += 1
            # The outage may begin between the creation of a segment and its opening by the reader, which then waits.
            # That takes some ms of each roll, so one reader in a hundred waits; of all in both outages, never most.
            report.counts["waiting_readers"] += waiting
            if report.counts["waiting_readers"] > len(flows):
                report.lose([f"{flow.name}: {flow.received} are read" for flow in flows], how)
        finally:
            await end()
        segments = [(await self._segments(flow))[0] for flow in flows]
        if near is not None:
            end_s = time.monotonic() + CATCH_UP_S
            while len(await asyncio.to_thread(near.list_bookies)) < everybody:
                if time.monotonic() > end_s:
                    report.lose(["the bookies did not come back"], how)
                    break
                await asyncio.sleep(0.1)
        for flow, count in zip(flows, segments, strict=True):
            if not await self._rolls_again(flow, count):
                report.lose([f"{flow.name} stands at {await self._segments(flow)} segments"], how)
        report.cases += 1
        report.counts[f"{how}_seconds"] = round(time.monotonic() - began_s)

    async def _segments(self, flow: Flow) -> tuple[int, int]:
        end_s = time.monotonic() + CATCH_UP_S
        while True:
            try:
                return await flow.segments()
            except MetadataUnavailable:
                if time.monotonic() > end_s:
                    raise

    async def _rolls_again(self, flow: Flow, before: int) -> bool:
        """Return whether segments are made again: two more than there were."""
        end_s = time.monotonic() + CATCH_UP_S
        while time.monotonic() < end_s:
            if (await self._segments(flow))[0] >= before + 2:
                return True
            await asyncio.sleep(0.1)
        return False

    async def _judge(self, flows: list[Flow], client: Client) -> None:
        report, case = self._report, f"seed {self._plan.seed}, kept in {self._folder}"
        for flow in flows:
            await _until(partial(flow.has_received, flow.acknowledged), CATCH_UP_S)
            report.lose(flow.failed, case)
            sent, (made, still_open) = flow.sent.hexdigest(), await self._segments(flow)
            if flow.got.hexdigest() != sent:
                report.lose(
                    [f"the reader of {flow.name} got {flow.received} of {flow.acknowledged}"], case
                )
            if await flow.read_anew(client) != sent:
                report.lose([f"{flow.name}: a new reader finds something else than was sent"], case)
            if still_open:
                report.lose([f"{flow.name}: {still_open} segments open behind a writer"], case)
            report.counts["records"] += flow.acknowledged
            report.counts["segments"] += made
            worst = report.counts["worst_append_ms"]
            report.counts["worst_append_ms"] = max(worst, round(1000 * flow.worst_s))
            report.notes.append(f"{flow.name}: {flow.acknowledged} records, SHA-256 {sent}")


async def _until(is_so: Callable[[], bool], limit_s: float) -> bool:
    end_s = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > end_s:
            return False
        await asyncio.sleep(0.05)
    return True


async def _cut(proxy: TcpProxy) -> None:
    proxy.cut()


async def _mend(proxy: TcpProxy) -> None:
    proxy.mend()


def run(plan: Plan) -> Report:
    """Take metadata away twice; the folder is kept when something is lost."""
    report = Report("outage")
    try:
        find_jars()
    except ConfigError as error:
        report.skipped = str(error)
        return report
    with report.folder(plan) as folder:
        asyncio.run(Outages(plan, report, folder).run())
    return report
