"""The main job (`./dev run`): real data through three bookies, one of them killed in the middle, every byte compared.

1. Start three bookies, E=3, Qw=3, Qa=2. 2. Append every record of the package index that apt has on this machine,
again and again until 1 GB and 10 seconds (FILE=path: that file, once; no index: the files under /usr/share). 3. When
half of the first gigabyte is acknowledged, SIGKILL one bookie, then bring it back. 4. Read all of it through a
new client and compare SHA-256. 5. Spark reads it, counts and sums it (SPARK=0: not). The data stays. Exit 0 only when
every byte agreed, and Spark's sums do.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import signal
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import fastbk
from demo import spark_stage
from demo.dataset import find_source
from fastbk.devcluster import DevCluster
from fastbk.errors import Error, NoSuchLedger, StorageError
from fastbk.units import GIB, format_duration_us, format_entries, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.dataset import Dataset
    from fastbk.client import Client, LedgerWriter
    from fastbk.devcluster import Bookie

DATA = Path("fastbk-data")
BOOKIES = 3
WRITE_BYTES_MIN = 10**9
WRITE_SECONDS_MIN = 10.0
CHUNK_ENTRIES = 128
CHUNK_BYTES_MAX = 1 << 20
CHUNKS_IN_FLIGHT = 16
DOWN_SECONDS = 1.0
"""How long the killed bookie stays away: long enough to miss entries, short enough to come back under load."""

FREE_BYTES_PER_BYTE = 8
"""Three copies, each in a journal and an entry log, and some room."""

MARK = {"made-by": b"fastbk.demo"}
"""In the ledger's metadata: what an earlier run of this left is deleted by the next one, and nothing else."""


class Screen:
    """Progress: one line that is overwritten on a terminal, a line every two seconds elsewhere."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._every_s = 0.1 if self._is_terminal else 2.0
        self._next_s = 0.0

    def say(self, text: str) -> None:
        """Print a line that stays."""
        print(("\r\x1b[K" if self._is_terminal else "") + text, flush=True)

    def progress(self, text: str) -> None:
        """Show where we are; cheap until it is time for a new line."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + self._every_s
        print(f"\r\x1b[K  {text}" if self._is_terminal else f"  {text}",
              end="" if self._is_terminal else "\n", flush=True)  # fmt: skip


@dataclass
class AppendTotals:
    """What was appended and acknowledged."""

    ledger_id: int
    entries: int = 0
    size_bytes: int = 0
    acked_bytes: int = 0
    seconds: float = 0.0
    sha256: str = ""
    latencies_us: list[float] = field(default_factory=list)
    under_replicated: dict[str, int] = field(default_factory=dict)
    sum: spark_stage.Sum = field(default_factory=spark_stage.Sum)


@contextmanager
def running_bookies(screen: Screen) -> Iterator[DevCluster]:
    """Start the bookies; stop them at the end, whatever happens. The data stays."""
    cluster = DevCluster(DATA, BOOKIES)
    try:
        cluster.start()
        yield cluster
    finally:
        screen.say("stopping the bookies")
        cluster.stop()


class Job:
    """One run."""

    def __init__(self, cluster: DevCluster, source: Dataset, screen: Screen) -> None:
        self._cluster = cluster
        self._source = source
        self._screen = screen
        total = source.pass_bytes
        # Of the first gigabyte: what follows it only fills the ten seconds.
        self._kill_at_bytes = (min(total, 10**9) if not source.is_repeated else 10**9) // 2
        self._kill_now = asyncio.Event()
        self._killed = False
        self.written: AppendTotals | None = None

    async def run(self) -> tuple[bool, str]:
        """Write, kill, bring back, read, compare; return whether every byte agreed, and the verdict."""
        async with fastbk.connect(self._cluster.metadata_uri) as client:
            await delete_earlier(client)
            written = await self._write(client)
        self._report_write(written)
        # A new client: nothing of what the writer knew helps to read.
        async with fastbk.connect(self._cluster.metadata_uri) as client:
            entries, sha256, seconds = await self._read(client, written)
        rate = format_size(int(written.size_bytes / max(seconds, 1e-9)))
        self._screen.say(f"read back in {seconds:.1f} s: {entries:,} entries, {rate}/s")
        agreed = sha256 == written.sha256 and entries == written.entries
        self.written = written
        return agreed, self._verdict(agreed, written, entries, sha256)

    async def _write(self, client: Client) -> AppendTotals:
        writer = await client.create_ledger(ensemble=3, write_quorum=3, ack_quorum=2, metadata=MARK)
        written = AppendTotals(writer.ledger_id)
        digest = hashlib.sha256()
        began_s = time.monotonic()
        async with asyncio.TaskGroup() as group, writer:
            keeper = group.create_task(self._kill_and_bring_back(written))
            in_flight: set[asyncio.Task[None]] = set()
            for chunk in self._chunks(written, began_s):
                for entry in chunk:
                    digest.update(entry)
                    written.sum.add(entry)
                size_bytes = sum(map(len, chunk))
                written.entries += len(chunk)
                written.size_bytes += size_bytes
                in_flight.add(group.create_task(self._append(writer, chunk, size_bytes, written)))
                if len(in_flight) >= CHUNKS_IN_FLIGHT:
                    _, in_flight = await asyncio.wait(
                        in_flight, return_when=asyncio.FIRST_COMPLETED
                    )
                self._show(written, began_s)
            if in_flight:
                await asyncio.wait(in_flight)
            written.seconds = time.monotonic() - began_s
            self._kill_now.set()
            await keeper
            written.under_replicated = dict(writer.stats().under_replicated)
        written.sha256 = digest.hexdigest()
        return written

    def _chunks(self, written: AppendTotals, began_s: float) -> Iterator[list[bytes]]:
        """Yield what is appended at once, until it is enough."""
        while True:
            chunk: list[bytes] = []
            chunk_bytes = 0
            for entry in self._source.entries():
                chunk.append(entry)
                chunk_bytes += len(entry)
                if len(chunk) == CHUNK_ENTRIES or chunk_bytes >= CHUNK_BYTES_MAX:
                    yield chunk
                    chunk, chunk_bytes = [], 0
                    if self._source.is_repeated and self._is_enough(written, began_s):
                        return
            if chunk:
                yield chunk
            if not self._source.is_repeated or self._is_enough(written, began_s):
                return

    def _is_enough(self, written: AppendTotals, began_s: float) -> bool:
        long_enough = time.monotonic() - began_s >= WRITE_SECONDS_MIN
        return written.acked_bytes >= WRITE_BYTES_MIN and long_enough

    async def _append(
        self, writer: LedgerWriter, chunk: list[bytes], size_bytes: int, written: AppendTotals
    ) -> None:
        began_s = time.perf_counter()
        await writer.append_many(chunk)
        written.latencies_us.append((time.perf_counter() - began_s) * 1e6)
        written.acked_bytes += size_bytes
        if written.acked_bytes >= self._kill_at_bytes:
            self._kill_now.set()

    async def _kill_and_bring_back(self, written: AppendTotals) -> None:
        await self._kill_now.wait()
        bookie = self._cluster.bookies[-1]
        await asyncio.to_thread(bookie.kill)
        self._killed = True
        at = format_size(written.acked_bytes)
        self._screen.say(f"killed {bookie.name} (SIGKILL, all its processes) after {at}")
        await asyncio.sleep(DOWN_SECONDS)
        began_s = time.monotonic()
        await asyncio.to_thread(self._bring_back, bookie)
        self._screen.say(f"{bookie.name} is back after {time.monotonic() - began_s:.1f} s")

    def _bring_back(self, bookie: Bookie) -> None:
        boots = bookie.boots
        bookie.spawn()
        self._cluster.wait_ready([bookie], boots_min=boots + 1)

    async def _read(self, client: Client, written: AppendTotals) -> tuple[int, str, float]:
        digest = hashlib.sha256()
        entries = size_bytes = 0
        began_s = time.monotonic()
        reader = await client.open_ledger(written.ledger_id, recovery=False)
        async with reader:
            last = await reader.last_add_confirmed()
            if last >= 0:
                async for batch in reader.read_batches(0, last):
                    for data in batch.datas:
                        digest.update(data)
                        size_bytes += len(data)
                    entries += len(batch)
                    share = size_bytes / max(1, written.size_bytes)
                    self._screen.progress(f"read {format_size(size_bytes)}, {share:.0%}")
        return entries, digest.hexdigest(), time.monotonic() - began_s

    def _show(self, written: AppendTotals, began_s: float) -> None:
        seconds = time.monotonic() - began_s
        rate = format_size(int(written.acked_bytes / max(seconds, 1e-9)))
        down = (
            ", one bookie is down"
            if self._killed and not self._cluster.bookies[-1].is_ready
            else ""
        )
        self._screen.progress(
            f"acknowledged {format_size(written.acked_bytes)} in {seconds:.0f} s, {rate}/s{down}"
        )

    def _report_write(self, written: AppendTotals) -> None:
        seconds = max(written.seconds, 1e-9)
        self._screen.say(
            f"wrote {written.entries:,} entries, {format_size(written.size_bytes)} in {seconds:.1f} s:"
            f" {written.entries / seconds:,.0f} entries/s, {format_size(int(written.size_bytes / seconds))}/s"
        )
        found = sorted(written.latencies_us)
        if found:
            shares = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0))
            text = ", ".join(
                f"{name} {format_duration_us(_at(found, share))}" for name, share in shares
            )
            self._screen.say(
                f"latency of appending up to {CHUNK_ENTRIES} entries, {CHUNKS_IN_FLIGHT} such calls"
                f" in flight: {text}"
            )
        missing = {bookie: count for bookie, count in written.under_replicated.items() if count}
        for bookie, count in missing.items():
            self._screen.say(
                f"{bookie} lacks {format_entries(count)} that it missed, with no fourth bookie to take its"
                " place"
            )

    def _verdict(self, agreed: bool, written: AppendTotals, entries: int, sha256: str) -> str:
        go_on = f"go on with: {_command()} dev --data {_shown(self._cluster.data)}"
        if agreed:
            return (
                f"OK: every byte agreed: ledger {written.ledger_id}, {written.entries:,} entries,"
                f" {written.size_bytes:,} bytes, SHA-256 {sha256}; {go_on}"
            )
        return (
            f"FAILED: ledger {written.ledger_id}: wrote {written.entries:,} entries with SHA-256"
            f" {written.sha256}, read {entries:,} with {sha256}; {go_on}"
        )


async def delete_earlier(client: Client) -> None:
    """Delete the ledgers that earlier runs left, so that the disk does not fill; others stay."""
    async for info in client.list_ledgers():
        if info.metadata.custom == MARK:
            with suppress(NoSuchLedger):
                await client.delete_ledger(info.ledger_id)


def _at(ascending: list[float], share: float) -> float:
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))]


def _command() -> str:
    script = Path(sys.executable).with_name("fastbk")
    return _shown(script) if script.exists() else "fastbk"


def _shown(path: Path) -> str:
    with suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def _check_space(source: Dataset) -> None:
    wanted = source.pass_bytes if not source.is_repeated else int(1.2 * GIB)
    free = shutil.disk_usage(DATA.parent.absolute()).free
    if free < wanted * FREE_BYTES_PER_BYTE:
        raise StorageError(
            f"{format_size(free)} are free here, {format_size(wanted * FREE_BYTES_PER_BYTE)} are"
            " needed: make room, or give a smaller FILE=path"
        )


def first_of(error: BaseException) -> BaseException:
    """Return the first error of a group that is none itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _look_with_spark(cluster: DevCluster, written: AppendTotals, screen: Screen) -> None:
    """Let Spark read all of it, too. Raises StorageError if it read something else, or cannot."""
    seen = spark_stage.run(
        cluster.metadata_uri,
        written.ledger_id,
        cluster.data,
        lambda waited_s: screen.progress(f"Spark is reading ({waited_s:.0f} s)"),
    )
    wrong = spark_stage.differences(written.sum, seen.sum)
    if wrong:
        raise StorageError(f"ledger {written.ledger_id}: {'; '.join(wrong)}")
    for line in spark_stage.lines_of(seen):
        screen.say(line)


SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _run(job: Job) -> tuple[bool, str]:
    """Run the job on a loop of its own; a signal ends it by KeyboardInterrupt.

    Signals wait while the loop is made: one that came in between would leave half of it behind.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        return asyncio.run(_with_signals(job))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


async def _with_signals(job: Job) -> tuple[bool, str]:
    task = asyncio.current_task()
    assert task is not None
    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        return await job.run()
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def main() -> int:
    """Run the job once; return the exit code."""
    screen = Screen()
    # A terminal's Ctrl-C and a plain kill end it the same way: stop what was started, keep the data.
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler)
    agreed, verdict = False, ""
    try:
        source = find_source()
        _check_space(source)
        screen.say(f"source: {source.title}, {format_size(source.pass_bytes)}")
        began_s = time.monotonic()
        with running_bookies(screen) as cluster:
            screen.say(
                f"{len(cluster.bookies)} bookies ready in {time.monotonic() - began_s:.1f} s, data in"
                f" {_shown(cluster.data)}; writing with E=3 Qw=3 Qa=2"
            )
            job = Job(cluster, source, screen)
            agreed, verdict = _run(job)
            if agreed and job.written is not None and os.environ.get("SPARK") != "0":
                agreed = False  # until Spark has said so, too
                _look_with_spark(cluster, job.written, screen)
                agreed = True
    except* Error as errors:
        verdict = f"FAILED: {first_of(errors)}"
    except* KeyboardInterrupt:
        verdict = "FAILED: interrupted"
    if verdict:
        screen.say(verdict)
    return 0 if agreed else 1


if __name__ == "__main__":
    sys.exit(main())
