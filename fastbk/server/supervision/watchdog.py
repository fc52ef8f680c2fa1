"""Finds processes and threads of a bookie that stand still, by their heartbeats.

Each child beats in its own segment (`fbk_heartbeat` in `native/src/base/layout.h`): journal and index
ten times a second, workers and gc once. The supervisor compares the words twice a second. A child
that is stopped, hangs in a call or gets no processor stops to beat. The watchdog reports that as a
condition of readiness, in the log and in `/metrics`, and reports when it ends. It kills nobody.

Nobody watches the supervisor. While it stands still, data flows, its HTTP pages are silent, and
metadata lists the bookie until the lease or session ends.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.native.segment import BEAT_BACKGROUND, BEAT_FLUSH, BEAT_LOOP
from fastbk.observe import logs
from fastbk.observe.prometheus import single

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fastbk.native.segment import Stats
    from fastbk.server.process_table import Role
    from fastbk.server.supervision.lifecycle import Concern

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


@dataclass
class Watched:
    """One child, and what was last seen of it."""

    name: str
    role: Role
    pid: int
    stats: Stats
    beats: list[int]
    silent_s: list[float]
    """For each word, how long it has stood still."""


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
