"""Rig `visibility`: after how many seconds readers see a record whose writer fails, or keeps its loop, around its ack.

Each case is a process of its own, with a stream of its own: it appends, notes each acknowledgement with the time when
the application learned of it, and then ends or stands still in one of the ways below. A tailing reader notes when it
has each record. Every record that was acknowledged has to be seen within a minute (INV-S17, INV-S18); those whose
writer's process lives, or ended after it could send its LAC, within a second.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import fastbk
import fastbk.sync
from fastbk.errors import Error
from fastbk.native.process import die_with_parent
from fastbk.stream.client import Client
from fastbk.stream.janitor import Janitor, JanitorOptions
from fastbk.testing import LocalCluster
from tests.rigs.report import Plan, Report

NAMESPACE = "visibility"
AT_ONCE = 24
AFTER_S_MAX = 0.004
"""A process is ended so long after the first acknowledgement, at most: mostly within one of the next appends."""
APPENDS_MAX = 200
BLOCKED_S = 3.0
SEEN_S_MAX = 60.0
LIVING_S_MAX = 1.0
PATIENCE_S = 90.0
FIRST_SEGMENT_S = 60.0


class Interrupted(Exception):
    """What a case's application raises."""


@dataclass(frozen=True)
class Case:
    """What one process does."""

    number: int
    manner: str
    after_s: float
    """How long behind the first acknowledgement."""

    @property
    def stream(self) -> str:
        """The name of its stream."""
        return f"s{self.number}"


def note(what: str, case: Case, value: int) -> None:
    """Write a line for the rig; one write, so that lines of several processes do not mix."""
    os.write(1, f"{what} {case.number} {value}\n".encode())


def acknowledged(case: Case) -> None:
    """Note that the application knows of one record more, now."""
    note("ack", case, time.monotonic_ns())


def stand_still() -> None:
    """Do nothing for a while, and let no event loop of this thread run."""
    threading.Event().wait(BLOCKED_S)


# --- what the processes do --------------------------------------------------------------------------------------


async def _append_again(writer: fastbk.StreamWriter, case: Case) -> None:
    """Append until the time has come, a record at a time."""
    end_s = time.monotonic() + case.after_s
    for _ in range(APPENDS_MAX):
        if time.monotonic() >= end_s:
            return
        await writer.append(b"again")
        acknowledged(case)


async def _asyncio_case(uri: str, case: Case) -> None:
    async with fastbk.connect(uri) as client:
        stream = client.namespace(NAMESPACE).stream(case.stream)
        async with stream.writer(first_segment_timeout=FIRST_SEGMENT_S) as writer:
            await writer.append(b"first")
            acknowledged(case)
            if case.manner == "killed":
                # The kernel ends the process at that moment, wherever it is.
                signal.setitimer(signal.ITIMER_REAL, max(case.after_s, 1e-6))
                while True:
                    await writer.append(b"again")
                    acknowledged(case)
            await _append_again(writer, case)
            if case.manner == "exception":
                raise Interrupted
            if case.manner == "cancelled":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.Event().wait()
            if case.manner == "exit":
                os._exit(0)
            if case.manner == "unsent":
                await writer.append(b"unsent")
                acknowledged(case)
                os._exit(0)
            if case.manner == "blocked":
                stand_still()
            else:
                with suppress(TimeoutError):  # an application that does nothing more
                    await asyncio.wait_for(asyncio.Event().wait(), BLOCKED_S)


def _sync_case(uri: str, case: Case) -> None:
    client = fastbk.sync.connect(uri)
    writer = (
        client.namespace(NAMESPACE)
        .stream(case.stream)
        .writer(first_segment_timeout=FIRST_SEGMENT_S)
    )
    writer.open()
    writer.append(b"first")
    acknowledged(case)
    end_s = time.monotonic() + case.after_s
    while time.monotonic() < end_s:
        writer.append(b"again")
        acknowledged(case)
    if case.manner == "sync-exception":
        with suppress(Interrupted), writer:
            raise Interrupted
        return
    if case.manner == "sync-idle":
        stand_still()
        return
    for _ in range(20):  # nobody waits for these
        writer.append_nowait(b"taken")
    note("taken", case, 20)


def _hide_lacs() -> None:
    """Have the process die as if before each LAC was sent: bookies learn what entries carry, and nothing else."""
    from fastbk.client.explicit_lac_sender import ExplicitLacSender

    def nothing(_: ExplicitLacSender) -> None:
        pass

    ExplicitLacSender._send_new = nothing  # type: ignore[assignment, method-assign]


def _live(uri: str, case: Case) -> None:
    if case.manner == "unsent":
        _hide_lacs()
    if case.manner.startswith("sync"):
        _sync_case(uri, case)
        return
    with suppress(Interrupted, asyncio.CancelledError):
        asyncio.run(_asyncio_case(uri, case))
    if case.manner in ("exception", "cancelled"):
        stand_still()  # the process lives


def serve(uri: str) -> None:
    """Fork a process for each line of the standard input: number, manner, seconds. No client was made before."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while line := sys.stdin.readline():
        number, manner, after_s = line.split()
        case = Case(int(number), manner, float(after_s))
        if os.fork() == 0:
            # The interpreter ends as that of a script does.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            die_with_parent()
            try:
                _live(uri, case)
            except Error as error:
                note("failed", case, 0)
                print(case, error, file=sys.stderr)
            return


# --- what is seen of it -----------------------------------------------------------------------------------------

MANNERS = (
    "killed", "killed", "killed", "exit", "exit", "exception", "exception", "cancelled", "blocked",
    "idle", "sync-idle", "sync-exception", "sync-unclosed", "unsent",
)  # fmt: skip


@dataclass
class Seen:
    """What is known of a case."""

    case: Case
    acks_ns: list[int] = field(default_factory=list)
    taken: int = 0
    arrivals_ns: list[int] = field(default_factory=list)
    failed: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def delays_s(self) -> list[float]:
        """Of each acknowledged record that was seen."""
        pairs = zip(self.acks_ns, self.arrivals_ns, strict=False)
        return [max(seen - known, 0) / 1e9 for known, seen in pairs]

    @property
    def expected(self) -> int:
        """Records that readers have to see."""
        return len(self.acks_ns) + self.taken


async def _tail(client: Client, seen: Seen) -> None:
    async with client.namespace(NAMESPACE).stream(seen.case.stream).reader() as reader:
        async for _ in reader:
            seen.arrivals_ns.append(time.monotonic_ns())
            seen.changed.set()


async def _one(client: Client, seen: Seen, begin: Callable[[Case], None]) -> None:
    """Begin a case, and wait until all that it was told is kept has been seen."""
    tailing = asyncio.create_task(_tail(client, seen))
    try:
        begin(seen.case)
        # Long enough for the process to have noted all: what it notes later is waited for, too.
        end_s = time.monotonic() + PATIENCE_S + BLOCKED_S
        quiet_s = BLOCKED_S if seen.case.manner in ("killed", "exit") else BLOCKED_S + 1.0
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            count = seen.expected
            with suppress(TimeoutError):
                async with asyncio.timeout(quiet_s if count else 1.0):
                    while True:
                        seen.changed.clear()
                        await seen.changed.wait()
            if seen.failed or (not count and time.monotonic() > until_s):
                return
            if count and count == seen.expected and len(seen.arrivals_ns) >= count:
                return
    finally:
        tailing.cancel()
        await asyncio.wait([tailing])


async def _notes(stdout: asyncio.StreamReader, cases: dict[int, Seen]) -> None:
    while line := await stdout.readline():
        what, number, value = line.split()
        seen = cases[int(number)]
        if what == b"ack":
            seen.acks_ns.append(int(value))
        elif what == b"taken":
            seen.taken += int(value)
        else:
            seen.failed = True
        seen.changed.set()


def judge(cases: list[Seen], report: Report) -> None:
    """Count what was seen, and name what was lost or came late."""
    for seen in cases:
        report.cases += 1
        report.counts["acknowledged"] += len(seen.acks_ns)
        report.counts["unawaited"] += seen.taken
        missing = seen.expected - len(seen.arrivals_ns)
        report.counts["failed"] += seen.failed
        wrong: list[str] = []
        if missing > 0:
            wrong.append(
                f"{missing} of {seen.expected} records are not seen after {PATIENCE_S:g} s"
            )
        last_s = max(seen.delays_s, default=0.0)
        limit_s = SEEN_S_MAX if seen.case.manner == "unsent" else LIVING_S_MAX
        if last_s > limit_s:
            report.counts[f"late_{seen.case.manner}"] += 1
        if last_s > SEEN_S_MAX:
            wrong.append(f"seen after {last_s:.1f} s")
        report.lose(wrong, str(seen.case))
    for title, is_unsent in (
        ("of writers that could send their LAC", False),
        ("of writers that died before (a janitor shows it)", True),
    ):
        chosen = [seen for seen in cases if (seen.case.manner == "unsent") is is_unsent]
        delays = sorted(one for seen in chosen for one in seen.delays_s[-1:])
        if delays:
            report.notes.append(
                f"seconds from the acknowledgement of the last record until a reader has it, {title}:"
                f" {len(delays)} cases, p50 {share(delays, 0.5):.4f}, p99 {share(delays, 0.99):.4f},"
                f" longest {delays[-1]:.4f}"
            )


def share(ordered: list[float], part: float) -> float:
    """Return the value below which that part of the values lies."""
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)]


async def _run(plan: Plan, report: Report, folder: Path, uri: str, options: JanitorOptions) -> None:
    rng = random.Random(plan.seed)
    async with fastbk.connect(uri) as client:
        namespace = client.namespace(NAMESPACE)
        await namespace.create()
        command = [sys.executable, "-m", "tests.rigs.visibility", uri]
        pipe = asyncio.subprocess.PIPE
        with (folder / "processes.err").open("wb") as err:
            forks = await asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, stderr=err
            )
        assert forks.stdin is not None
        assert forks.stdout is not None
        stdin, cases = forks.stdin, dict[int, Seen]()
        notes = asyncio.create_task(_notes(forks.stdout, cases))
        stop = asyncio.Event()
        janitor = asyncio.create_task(Janitor(client, options, lambda _: None).run(stop))

        def begin(case: Case) -> None:
            stdin.write(f"{case.number} {case.manner} {case.after_s}\n".encode())

        async def work() -> None:
            while plan.begins(len(cases)):
                number = len(cases)
                manner = MANNERS[number] if number < len(MANNERS) else rng.choice(MANNERS)
                seen = cases[number] = Seen(Case(number, manner, rng.uniform(0, AFTER_S_MAX)))
                await namespace.create_stream(seen.case.stream)
                await _one(client, seen, begin)

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        stop.set()
        forks.stdin.close()
        await forks.wait()
        await notes
        await janitor
        judge(list(cases.values()), report)


def run(plan: Plan, uri: str = "", options: JanitorOptions | None = None) -> Report:
    """Live `plan.cases` cases; the folder is kept when something is lost.

    Args:
        uri: of a cluster's metadata; empty: of three bookies that this starts.
        options: of the janitor, None: the defaults, by which nothing is seen later than promised.
    """
    report = Report("visibility")
    with report.folder(plan) as folder, ExitStack() as stack:
        if not uri:
            uri = stack.enter_context(LocalCluster(3, data=folder / "cluster")).metadata_uri
        asyncio.run(_run(plan, report, folder, uri, options or JanitorOptions()))
    return report


if __name__ == "__main__":
    die_with_parent()
    serve(sys.argv[1])
