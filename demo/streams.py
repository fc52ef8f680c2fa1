"""The streams' demo (`./dev stream-demo`): real data through two namespaces, and all that may go wrong on the way.

This machine's package records go to one stream, which rolls by size; the checksums of all their files to another, in a
namespace with another policy, which rolls by age. Three readers tail them, a durable cursor folds the checksums into a
digest. Half-way the writer of checksums is killed by SIGKILL and another one takes over; so is the cursor's holder.
The packages are truncated at the end. Exit 0 only when the digest of every reader is the source's.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time

import fastbk
from demo.__main__ import BOOKIES, DATA, Screen, first_of, running_bookies
from demo.packages import ChainedDigest, Item, checksums, digest_of, packages
from fastbk.devcluster import DevCluster
from fastbk.errors import Error, PositionTruncated, StorageError
from fastbk.stream.client import Client
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.stream import Stream, truncate
from fastbk.units import format_count, format_duration_us, format_size

ROOT = "stream-demo"
WRITE_SECONDS = 6.0
BY_SIZE = PolicyPatch(roll_bytes=100_000, roll_age_s=3600.0)
BY_AGE = PolicyPatch(roll_bytes=256 << 20, roll_age_s=1.0, compression="lz4")
TIMEOUT_S = 120.0


class Child:
    """A process of `stream_processes.py`: what it told last of each kind."""

    def __init__(self, *words: str) -> None:
        self._words = words
        self.told: dict[str, object] = {}
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """Start it, and listen."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "demo.stream_processes", *self._words,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            if line.endswith(b"\n"):
                self.told.update(json.loads(line))
                self._changed.set()
        self.told["ended"] = await self._process.wait()
        self._changed.set()

    async def until(self, name: str, least: int = 0) -> None:
        """Wait until it has told this, and at least so much. Raises StorageError if it ends before."""
        while name not in self.told or int(str(self.told[name])) < least:
            if "ended" in self.told:
                raise StorageError(f"the {self._words[0]} ended before it told {name}")
            self._changed.clear()
            await self._changed.wait()

    async def end(self) -> None:
        """Wait for its end. Raises StorageError unless it is a good one."""
        await self.until("ended")
        if self.told["ended"] != 0:
            raise StorageError(f"the {self._words[0]} ended with {self.told['ended']}")

    async def kill(self) -> None:
        """SIGKILL it, if it still runs."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
        await self._listening


class Demo:
    """One run."""

    def __init__(self, cluster: DevCluster, screen: Screen) -> None:
        self._uri = cluster.metadata_uri
        self._screen = screen
        self._packages = packages()
        self._checksums = digest_of(checksums())
        self._children: list[Child] = []

    async def run(self) -> bool:
        """Write, read, kill, compare; return whether every digest agreed."""
        say = self._screen.say
        texts = sum(len(item.payload) for item in self._packages)
        say(
            f"source: {format_count(len(self._packages), 'package record')}, {format_size(texts)};"
            f" {format_count(self._checksums.records, 'file checksum')}"
        )
        try:
            async with asyncio.timeout(TIMEOUT_S), fastbk.connect(self._uri) as client:
                root = client.namespace(ROOT)
                if await root.exists():
                    await root.delete(recursive=True)
                by_size, by_age = root.namespace("packages"), root.namespace("files")
                await by_size.create(BY_SIZE)
                await by_age.create(BY_AGE)
                status = await by_size.create_stream("status")
                sums = await by_age.create_stream("md5sums")
                say("packages roll by size (100 KB), files by age (1 s) and are compressed (lz4)")
                return await self._both(client, status, sums)
        finally:
            for child in self._children:
                await child.kill()

    async def _both(self, client: Client, status: Stream, sums: Stream) -> bool:
        began_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            readers = {
                "packages, by records": group.create_task(self._by_records(status)),
                "files, by records": group.create_task(self._by_records(sums)),
                "files, by chunks": group.create_task(self._by_chunks(sums)),
            }
            group.create_task(self._write_packages(status))
            cursor = group.create_task(self._killed_cursor())
            await self._killed_writer()
        seconds = time.monotonic() - began_s
        all_records = len(self._packages) + self._checksums.records
        self._screen.say(
            f"{format_count(all_records, 'record')} written and read in {seconds:.1f} s"
        )
        wanted = {"packages": digest_of(self._packages), "files": self._checksums}
        agreed = True
        found = {name: task.result() for name, task in readers.items()}
        found["files, by the cursor"] = cursor.result()
        for name, digest in found.items():
            source = wanted[name.partition(",")[0]]
            is_same = (str(digest), digest.records) == (str(source), source.records)
            agreed = agreed and is_same
            verdict = "as the source" if is_same else f"NOT the source's {str(source)[:16]}…"
            self._screen.say(
                f"  {name + ':':<22} {digest.records:>8,} records, digest {str(digest)[:16]}… {verdict}"
            )
        agreed = await self._truncate(status) and agreed
        for stream, how in ((status, "size"), (sums, "age")):
            info = await stream.info()
            self._screen.say(
                f"{info.path}: {format_count(info.segments, 'segment')}, rolled by {how};"
                f" {format_size(info.size_bytes)} in entries, {format_count(info.epoch, 'writer')}"
            )
        return agreed

    # --- writers ------------------------------------------------------------------------------------------------

    async def _write_packages(self, stream: Stream) -> None:
        pause_s = WRITE_SECONDS / 2 / len(self._packages)
        async with stream.writer() as writer:
            for item in self._packages:
                await writer.append(item.payload, key=item.key)
                await asyncio.sleep(pause_s)
            await writer.seal()

    def _child(self, what: str) -> Child:
        child = Child(what, self._uri, f"{ROOT}/files", "md5sums", str(WRITE_SECONDS))
        self._children.append(child)
        return child

    async def _killed_writer(self) -> None:
        first = self._child("writer")
        await first.start()
        await first.until("acknowledged", self._checksums.records // 2)
        await first.kill()
        killed_s = time.monotonic()
        acknowledged = int(str(first.told["acknowledged"]))
        second = self._child("writer")
        await second.start()
        await second.until("opened")
        took_us = (time.monotonic() - killed_s) * 1e6
        went_on = int(str(second.told["last_txid"]))
        if went_on < acknowledged:
            raise StorageError(f"record {acknowledged} was acknowledged, and {went_on} is the last")
        self._screen.say(
            f"killed the writer of checksums (SIGKILL) after record {acknowledged:,} was acknowledged; another one"
            f" took over {format_duration_us(took_us)} later and went on behind {went_on:,}"
        )
        await second.end()

    # --- readers ------------------------------------------------------------------------------------------------

    async def _by_records(self, stream: Stream) -> ChainedDigest:
        digest = ChainedDigest()
        async with stream.reader("earliest") as reader:
            async for record in reader:
                digest.add(record.key, record.payload)
                self._screen.progress(f"{stream.path}: {format_count(digest.records, 'record')}")
        return digest

    async def _by_chunks(self, stream: Stream) -> ChainedDigest:
        digest = ChainedDigest()
        async with stream.reader("earliest") as reader:
            async for chunk in reader.chunks():
                for record in chunk:
                    digest.add(record.key, record.payload)
        return digest

    async def _killed_cursor(self) -> ChainedDigest:
        first = self._child("cursor")
        await first.start()
        await first.until("records", self._checksums.records // 3)
        await first.kill()
        second = self._child("cursor")
        await second.start()
        await second.end()
        told = second.told
        digest = ChainedDigest(str(told["digest"]))
        digest.records = int(str(told["records"]))
        again = int(str(first.told["delivered"])) + int(str(told["delivered"])) - digest.records
        self._screen.say(
            f"killed the cursor's holder (SIGKILL) after {int(str(first.told['delivered'])):,} records; the next one"
            f" went on at its mark, and {format_count(max(again, 0), 'record')} came twice and counted once"
        )
        return digest

    # --- truncation ---------------------------------------------------------------------------------------------

    async def _truncate(self, stream: Stream) -> bool:
        """Cut off the older half, to the record; what is left has to be the younger half of the source."""
        half = len(self._packages) // 2
        cut = await stream.find(seq=half)
        first = await stream.first()
        assert cut is not None and first is not None
        await truncate(await stream.context(), cut)
        try:
            await stream.get(first.dlsn)
        except PositionTruncated as error:
            is_gone = error.first_available == str(cut)
        else:
            is_gone = False
        rest: list[Item] = []
        async with stream.reader("earliest", tail=False) as reader:
            async for record in reader:
                rest.append(Item(record.key or b"", bytes(record.payload)))
        is_same = is_gone and rest == self._packages[half:]
        self._screen.say(
            f"truncated the packages at {cut}: {format_count(len(rest), 'record')} are left, "
            + (
                "the younger half of the source"
                if is_same
                else "NOT the younger half of the source"
            )
        )
        return is_same


def main() -> int:
    """Run the demo once; return the exit code."""
    screen = Screen()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    agreed = False
    verdict = "FAILED: a digest is not the source's"
    try:
        with running_bookies(screen) as cluster:
            screen.say(f"{BOOKIES} bookies ready, data in {DATA}; E=3 Qw=3 Qa=2")
            agreed = asyncio.run(Demo(cluster, screen).run())
    except* (Error, TimeoutError) as errors:
        verdict = f"FAILED: {first_of(errors) or 'not done in time'}"
    except* KeyboardInterrupt:
        verdict = "FAILED: interrupted"
    screen.say("OK: every digest is the source's" if agreed else verdict)
    return 0 if agreed else 1


if __name__ == "__main__":
    sys.exit(main())
