"""Checks a running bookie twice a second: frozen processes, slow commits and answers, the number of ledgers.

`Watchdog` finds processes and threads that stand still, by their heartbeats. Each child beats in its own segment
(`fbk_heartbeat` in `native/src/base/layout.h`): journal and index ten times a second, workers and gc once. The
supervisor compares the words twice a second. A child that is stopped, hangs in a call or gets no processor stops to
beat. The watchdog reports that as a condition of readiness, in the log and in `/metrics`, and reports when it ends. It
kills nobody. The monitor sends the workers the reason why the bookie is frozen, and they report it in Info, which
`fastbk cluster status` reads.

Nobody watches the supervisor. While it stands still, data flows, its HTTP pages are silent, and metadata lists the
bookie until the lease or session ends.

`JournalStalls` finds journals whose commits are slow, within seconds, and when they are quick again: two events.
`journal.slow` means what the alert FastbkCommitsSlow means, 1 of 100 commits over 25 ms, but in windows of 1.5 s. It
refuses nothing. A disk that is far slower for longer is `disk.slow` (`[disk] slow_commit`).

`slow_reports.py` reads the flight recorders.
"""

from __future__ import annotations

import asyncio
import os
import time
import traceback
from typing import TYPE_CHECKING

import msgspec

from fastbk.native.flight import FlightReader
from fastbk.native.segment import BEAT_BACKGROUND, BEAT_FLUSH, BEAT_LOOP, Segment, Stats
from fastbk.observe import logs
from fastbk.observe.names import SLOTS
from fastbk.observe.prometheus import single
from fastbk.server.supervision.slow_reports import SlowReports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fastbk.native.segment import Histogram
    from fastbk.server.configuration.settings import LimitSettings
    from fastbk.server.process_table import Process, Role
    from fastbk.server.supervision.lifecycle import Concern, Lifecycle
    from fastbk.server.supervision.spawn import Boot


class Monitor:
    """Monitors one bookie, over all its boots."""

    def __init__(self, life: Lifecycle, limits: LimitSettings) -> None:
        """`life` receives a condition for what is frozen, for a slow journal, and for a bookie full of ledgers."""
        self.watchdog = Watchdog(life.note)
        self._ledger_limit = LedgerLimit(life, limits)
        self.slow = SlowReports()
        self._stalls = JournalStalls()
        self._life = life

    async def run(self, boot: Boot) -> None:
        """Watch a boot whose children all serve, until cancelled."""
        mapped = {
            process: Stats(Segment(descriptor, process.role))
            for process, descriptor in boot.statistics_segments().items()
        }
        recorders = {
            process.name: FlightReader(stats.segment)
            for process, stats in mapped.items()
            if process.role != "gc"
        }
        self._stalls.attach()
        journals = [stats for process, stats in mapped.items() if process.role == "journal"]
        try:
            self.watchdog.attach(
                (
                    (process.name, process.role, boot.children[process].pid, stats)
                    for process, stats in mapped.items()
                ),
                time.monotonic(),
            )
            while True:
                self._ledger_limit.poll([stats.counters() for stats in journals])
                await asyncio.sleep(POLL_S)
                if self.watchdog.poll(time.monotonic()):
                    self._send_to_workers(boot)
                for name, recorder in recorders.items():
                    records, lost = recorder.fresh()
                    self.slow.take(name, records, lost, time.monotonic())
                self._poll_stalls(mapped)
                self._life.note(JOURNAL_SLOW, self._stalls.slow or None, "notice")
        except Exception as error:
            logs.error("watchdog.failed", reason=repr(error), trace=traceback.format_exc(limit=-8))
            raise
        finally:
            self.watchdog.detach()
            self._life.note(JOURNAL_SLOW, None)
            for stats in mapped.values():
                stats.segment.close()

    def metric_lines(self) -> list[str]:
        """Return the metrics of both in Prometheus' text format."""
        return self.watchdog.metric_lines() + self.slow.metric_lines()

    def _poll_stalls(self, mapped: Mapping[Process, Stats]) -> None:
        for process, stats in mapped.items():
            if process.role == "journal":
                commits = stats.histogram(SLOTS["FBK_H_JOURNAL_COMMIT_NS"])
                self._stalls.poll(
                    process.name, commits, self.slow.last_reason(process.name), time.monotonic()
                )

    def _send_to_workers(self, boot: Boot) -> None:
        message = {"type": "frozen", "reason": "; ".join(self.watchdog.frozen)}
        for process, child in boot.children.items():
            if process.role == "worker":
                child.send(message)


CONDITION = "ledgers.full"
JOURNAL_SLOW = "journal.slow"


def reason_of(ledgers: int, unconfirmed: int, limits: LimitSettings) -> str:
    """Return why a journal takes no new ledgers, and what to do."""
    if ledgers >= limits.ledgers_max:
        return (
            f"it takes no new ledgers: it has {ledgers}, as many as [limits] ledgers_max allows."
            " Delete ledgers or raise the limit"
        )
    return (
        f"it takes no new ledgers but those that metadata lists: metadata was never seen to list"
        f" {unconfirmed} ledgers here. They expire after [gc] unconfirmed_age. Find the client that writes"
        " to ledgers that do not exist"
    )


class LedgerLimit:
    """Reports a bookie that takes no new ledgers (INV-G6): in its conditions and its log.

    That is no reason to move anybody who writes here: the ledgers that are here go on, and new ones that metadata lists
    are let in some seconds later, as long as `ledgers_max` is not reached.
    """

    def __init__(self, life: Lifecycle, limits: LimitSettings) -> None:
        """`life` gets the condition."""
        self._life = life
        self._limits = limits
        self._is_full = False

    def poll(self, journals: list[list[int]]) -> None:
        """Set or remove the condition by the counters of all journals."""
        full = [one for one in journals if one[SLOTS["FBK_C_JOURNAL_TAKES_NO_NEW_LEDGERS"]]]
        reason = None
        if full:
            ledgers, unconfirmed = (
                full[0][SLOTS[f"FBK_C_JOURNAL_{name}"]]
                for name in ("LEDGERS", "LEDGERS_UNCONFIRMED")
            )
            reason = reason_of(ledgers, unconfirmed, self._limits)
        self._life.note(CONDITION, reason, "notice")
        if self._is_full != bool(full):
            self._is_full = bool(full)
            if reason is None:
                logs.info("ledgers.room")
            else:
                logs.warning("ledgers.full", reason=reason)


if TYPE_CHECKING:
    Note = Callable[[str, str | None, Concern], None]

POLL_S = 0.5
STOPPED_S = 1.5
"""A child that is stopped by a signal is reported after so long without a heartbeat."""
SILENT_S: dict[Role, float] = {"worker": 3.5, "journal": 3.5, "index": 3.5, "gc": 120.0}
"""Any child is reported after so long. gc waits for metadata and indexes, at most a minute."""
JOB_S = 60.0
"""A thread of the index is reported after so long in one job: a large flush takes seconds."""
THREADS = {BEAT_FLUSH: "flush thread", BEAT_BACKGROUND: "background thread"}
STATES = {
    "T": "it is stopped by a signal (SIGSTOP); `kill -CONT` resumes it",
    "t": "it is stopped by a debugger",
    "D": "it waits in the kernel, as a rule for a disk",
    "R": "it is runnable: it gets no processor, or is in an endless loop",
    "S": "it sleeps in a call that does not return",
}
UNKNOWN = "its state is unknown"
STOPPED = ("T", "t")


class Watched(msgspec.Struct):
    """One child, and what was last seen of it."""

    name: str
    role: Role
    pid: int
    stats: Stats
    beats: list[int]
    silent_s: list[float]
    """For each word how long it has stood still."""


def process_state(pid: int, proc: str = "/proc") -> str:
    """Return the letter of a process's state as /proc has it; empty when it cannot be found out.

    A child's end or stop is told to its parent by the kernel. /proc may hide even children (systemd's
    `ProtectProc=invisible`), since they are not dumpable.
    """
    try:
        if os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None:
            return "T"
    except ChildProcessError:
        pass  # another's, or gone
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""


class Watchdog:
    """Watches the children of one boot at a time."""

    def __init__(self, note: Note, state_of: Callable[[int], str] = process_state) -> None:
        """`note`: sets a condition of readiness, or removes it."""
        self._note = note
        self._state_of = state_of
        self._watched: list[Watched] = []
        self._last_s = 0.0
        self._frozen: dict[str, tuple[str, float]] = {}
        """By condition: a sentence without times, and for how long by now."""
        self._data_frozen: set[str] = set()
        self.freezes = 0

    def attach(self, children: Iterable[tuple[str, Role, int, Stats]], now_s: float) -> None:
        """Watch these children (name, role, pid, statistics) from now on; all of them serve."""
        self.detach()
        self._last_s = now_s
        for name, role, pid, stats in children:
            beats = stats.heartbeats()
            self._watched.append(Watched(name, role, pid, stats, beats, [0.0] * len(beats)))

    def detach(self) -> None:
        """The boot is over; nobody stands still any more."""
        self._watched.clear()
        for condition in list(self._frozen):
            self._frozen.pop(condition)
            self._note(condition, None, "data")
        self._data_frozen.clear()

    @property
    def frozen(self) -> list[str]:
        """What stands still now, a sentence each."""
        return [sentence for sentence, _ in self._frozen.values()]

    @property
    def is_data_frozen(self) -> bool:
        """Whether a process stands still that data passes through."""
        return bool(self._data_frozen)

    def poll(self, now_s: float) -> bool:
        """Compare all heartbeats with the last ones; return whether anything froze or goes on again.

        Call it every POLL_S. A longer pause counts as two of them: it was the supervisor who stood
        still, or the whole machine.
        """
        passed_s = min(max(0.0, now_s - self._last_s), 2 * POLL_S)
        self._last_s = now_s
        before = set(self._frozen)
        for one in self._watched:
            for word, beats in enumerate(one.stats.heartbeats()):
                moved = beats != one.beats[word]
                one.beats[word] = beats
                one.silent_s[word] = 0.0 if moved else one.silent_s[word] + passed_s
            self._judge_loop(one, passed_s)
            for word in THREADS if one.role == "index" else ():
                self._judge_thread(one, word, passed_s)
        return set(self._frozen) != before

    def _judge_loop(self, one: Watched, passed_s: float) -> None:
        silent_s = one.silent_s[BEAT_LOOP]
        condition = f"frozen.{one.name}"
        if silent_s < STOPPED_S:
            self._resumed(condition, one.name)
            return
        state = self._state_of(one.pid)
        if silent_s < SILENT_S[one.role] and state not in STOPPED and condition not in self._frozen:
            return
        reason = STATES.get(state, UNKNOWN)
        concerns: Concern = "notice" if one.role == "gc" else "data"
        self._froze(condition, one, one.name, silent_s, reason, concerns, passed_s)

    def _judge_thread(self, one: Watched, word: int, passed_s: float) -> None:
        thread = f"{one.name}'s {THREADS[word]}"
        condition = f"frozen.{one.name}.{THREADS[word].partition(' ')[0]}"
        is_working = one.beats[word] % 2 == 1
        is_frozen_whole = f"frozen.{one.name}" in self._frozen
        if not is_working or one.silent_s[word] < JOB_S:
            self._resumed(condition, thread)
        elif not is_frozen_whole:
            reason = "it has been in one job all that time: see the state of the disk"
            self._froze(condition, one, thread, one.silent_s[word], reason, "notice", passed_s)

    def _froze(
        self,
        condition: str,
        one: Watched,
        who: str,
        silent_s: float,
        reason: str,
        concerns: Concern,
        passed_s: float,
    ) -> None:
        if concerns == "data":
            self._data_frozen.add(condition)
        if condition not in self._frozen:
            self.freezes += 1
            logs.error(
                "process.frozen",
                process=who,
                child_pid=one.pid,
                silent_s=round(silent_s, 1),
                reason=reason,
            )
        lasted_s = self._frozen[condition][1] + passed_s if condition in self._frozen else silent_s
        self._frozen[condition] = (f"{who} stands still: {reason}", lasted_s)
        self._note(condition, f"{who} stands still for {lasted_s:.0f} s: {reason}", concerns)

    def _resumed(self, condition: str, who: str) -> None:
        if condition in self._frozen:
            _, lasted_s = self._frozen.pop(condition)
            self._data_frozen.discard(condition)
            logs.warning("process.resumed", process=who, frozen_s=round(lasted_s, 1))
            self._note(condition, None, "data")

    def metric_lines(self) -> list[str]:
        """Return the watchdog's metrics in Prometheus' text format."""
        now = "Processes and threads of the bookie that stand still now."
        text = "Times that a process or thread of the bookie stood still."
        return [
            *single("fastbk_supervisor_frozen", "gauge", now, len(self._frozen)),
            *single("fastbk_supervisor_freezes_total", "counter", text, self.freezes),
        ]


SLOW_NS = 25_000_000
VERY_SLOW_NS = 250_000_000
WINDOW_S = 1.5
WINDOWS_SLOW = 2
"""A journal is slow after so many slow windows in a row: one late commit is none. A very slow one is."""
QUICK_S = 10.0
"""A journal is quick again after so long without a slow window."""
LOGGED_S = 300.0
"""Minimum pause between two lines that a journal is slow: of a disk at its limit they would hide all other events."""


class _Journal(msgspec.Struct):
    before: Histogram
    window_s: float
    slow_windows: int = 0
    slow_since_s: float | None = None
    last_slow_s: float = 0.0
    worst_ns: int = 0
    logged_s: float | None = None
    """When a line last said that it is slow."""
    times: int = 0
    """It has become slow so often since that line."""
    is_logged: bool = False
    """Whether a line said that it is slow now."""
    reason: str = ""
    """Why it is slow now; "": it is not."""


class JournalStalls:
    """The journals of one bookie, over all its boots."""

    def __init__(self) -> None:
        self._journals: dict[str, _Journal] = {}

    def attach(self) -> None:
        """A boot begins: its journals count from zero, and are not slow yet."""
        self._journals.clear()

    def poll(self, process: str, commits: Histogram, cause: str, now_s: float) -> None:
        """Take in all commits of a journal since it started, in nanoseconds, once or twice a second.

        `cause`: of its last slow commit, a sentence; "": none is known.
        """
        one = self._journals.get(process)
        if one is None:
            self._journals[process] = _Journal(commits, now_s)
            return
        if now_s - one.window_s < WINDOW_S:
            return
        new = commits.minus(one.before)
        one.before, one.window_s = commits, now_s
        p99_ns = new.percentile(99)
        if p99_ns > SLOW_NS:
            one.slow_windows += 1
            one.last_slow_s, one.worst_ns = now_s, max(one.worst_ns, p99_ns)
            if one.slow_since_s is None and (
                one.slow_windows >= WINDOWS_SLOW or p99_ns > VERY_SLOW_NS
            ):
                one.slow_since_s, one.reason = now_s, _reason(p99_ns, cause)
                one.times += 1
                one.is_logged = one.logged_s is None or now_s - one.logged_s >= LOGGED_S
                if one.is_logged:
                    often = {"times": one.times} if one.times > 1 else {}
                    one.logged_s, one.times = now_s, 0
                    logs.warning(
                        "journal.slow",
                        process=process,
                        reason=one.reason,
                        commits=new.count,
                        **often,
                    )
        elif new.count:
            one.slow_windows = 0
        if one.slow_since_s is not None and now_s - one.last_slow_s >= QUICK_S:
            slow_s, worst_ms = one.last_slow_s - one.slow_since_s, round(one.worst_ns / 1e6, 1)
            one.slow_since_s, one.slow_windows, one.worst_ns, one.reason = None, 0, 0, ""
            if one.is_logged:
                slow_s = round(slow_s + WINDOW_S, 1)
                logs.info("journal.quick_again", process=process, slow_s=slow_s, worst_ms=worst_ms)

    @property
    def slow(self) -> str:
        """Which journals are slow now, and why; "": none."""
        return "; ".join(
            f"{name}: {one.reason}" for name, one in self._journals.items() if one.reason
        )


def _reason(p99_ns: int, cause: str) -> str:
    return f"1 of 100 commits takes {p99_ns / 1e6:.0f} ms or more" + (f": {cause}" if cause else "")
