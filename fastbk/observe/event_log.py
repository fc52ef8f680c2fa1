"""Records the events of one process: what it logs that is a change of state (`fastbk.observe.events`).

    log = EventLog("janitor@host", "janitor")
    log.begin()                      # from here on lines of the log are recorded, in memory
    log.open(Path("events.jsonl"))   # and from here on in files, with those before
    page = log.read(Query(...))

Whoever logs never waits: a thread of its own writes. It syncs about once a second, and not each event. A `kill -9`
loses nothing that was written, synced or not; only a power cut would. Events of a disk that hangs must not wait for
that disk: so the newest are answered from memory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from fastbk.limits import RateLimit
from fastbk.observe import logs
from fastbk.observe.events import KIND_OF, Event, EventPage, Query, bounded, event_of
from fastbk.observe.logs import LimitLog
from fastbk.observe.prometheus import family
from fastbk.safe_files import FILE_MODE
from fastbk.units import MIB

MEMORY_EVENTS_MAX = 2000
"""The newest, which are answered without reading a file."""
UNWRITTEN_MAX = 1000
"""Events that wait for the thread; beyond it the oldest stays in memory only."""
RATE_PER_S = 1.0
BURST_S = 30.0
"""An event may come 30 times at once, and then once a second. More are counted and dropped."""
SYNC_INTERVAL_S = 1.0
CLOSE_TIMEOUT_S = 2.0


def events_path(directory: str) -> Path:
    """Return where a bookie's events are: in its first ledger directory."""
    return Path(directory) / NAME


class Named(Protocol):
    """A process of the bookie."""

    @property
    def name(self) -> str:
        """The name as in the log, `worker.0`."""


class EventLog:
    """The events of one process, in memory and in files. Any thread."""

    def __init__(
        self, source: str, process: str, clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`source`: whose events these are; may be set later. `process`: of lines that this process logs itself."""
        self.source = source
        self._process = process
        self._clock = clock
        self._monotonic = monotonic
        self._changed = threading.Condition()
        self._memory: deque[Event] = deque(maxlen=MEMORY_EVENTS_MAX)
        self._waiting: deque[Event] = deque()
        self._limits: dict[str, RateLimit] = {}
        self._lost_of: dict[str, int] = {}
        self._last = 0
        self._dropped = self._unwritten = 0
        self._path: Path | None = None
        self._failures = LimitLog("events.not_written", monotonic)
        self._thread: threading.Thread | None = None
        self._is_closing = False

    def begin(self) -> None:
        """Record what this process logs from now on."""
        logs.add_taker(self.take)

    def open(self, path: Path | None = None, *, may_make: bool = True) -> None:
        """Write to the files of `path` (None: of the last call), with all events so far; again: does nothing.

        Without `may_make` only if there are files. If they cannot be opened, that is logged, and events stay in memory.
        """
        self._path = self._path or path
        if self._thread is not None or self._path is None:
            return
        file = EventFile(self._path)
        earlier: deque[Event] = deque(maxlen=MEMORY_EVENTS_MAX)
        try:
            if not file.open(may_make=may_make):
                file.close()
                return
            earlier.extend(read_events(self._path))
        except OSError as error:
            self._failures.note(
                "open", file=str(self._path), reason=error.strerror, kept="in memory"
            )
        with self._changed:
            self._put_behind(earlier)
            self._thread = threading.Thread(
                target=self._write, args=(file,), name="fastbk events", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Write what waits, for a bounded time, and record nothing more."""
        logs.remove_taker(self.take)
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT_S)

    def take(self, level: str, event: str, values: Mapping[str, object], process: str = "") -> None:
        """Record a line of the log if it is an event. `process`: which of the bookie's has logged it; "": this one."""
        kind = KIND_OF.get(event)
        if kind is None or level not in logs.LEVELS:
            return
        with self._changed:
            if self._is_closing or not self._is_admitted(event):
                return
            now_s = self._clock()
            self._last = max(int(now_s * 1e6), self._last + 1)
            found = Event(
                number=self._last,
                time=logs.utc(now_s),
                kind=kind,
                event=event,
                level=level,
                source=self.source,
                process=process or self._process,
                values=bounded(values),
                dropped=self._lost_of.pop(event, 0),
            )
            self._memory.append(found)
            self._waiting.append(found)
            if len(self._waiting) > UNWRITTEN_MAX:
                self._waiting.popleft()
                self._unwritten += int(self._thread is not None)
            self._changed.notify_all()

    def take_message(self, process: Named, message: Mapping[str, Any]) -> None:
        """Record an event that a child has sent: `{"level": ..., "event": ..., "values": {...}}`.

        A child that was taken over can record events, but only known ones, at a bounded rate, and under its own name.
        """
        values = message.get("values")
        self.take(
            str(message.get("level")),
            str(message.get("event")),
            values if isinstance(values, dict) else {},
            process.name,
        )

    def read(self, query: Query) -> EventPage:
        """Answer a query; waits for the disk where events are wanted that are not in memory. Raises OSError."""
        with self._changed:
            memory, last = list(self._memory), self._last
        found: Iterable[Event] = memory
        if self._thread is not None and self._path is not None and not _is_enough(memory, query):
            first = memory[0].number if memory else last + 1
            older = itertools.takewhile(lambda one: one.number < first, read_events(self._path))
            found = itertools.chain(older, memory)
        wanted = (event for event in found if query.admits(event))
        if query.is_newest:
            events = list(deque(wanted, maxlen=query.limit))
            is_complete = True
        else:
            events = list(itertools.islice(wanted, query.limit + 1))
            is_complete = len(events) <= query.limit
            del events[query.limit :]
        return EventPage(
            source=self.source,
            events=events,
            next=max(last, query.after if query.after <= last else 0)
            if is_complete
            else events[-1].number,
            is_complete=is_complete,
            dropped=self._dropped,
            unwritten=self._unwritten,
        )

    def metric_lines(self) -> list[str]:
        """Return lines for /metrics: a counter appears with its first event, as limits do."""
        dropped = "Events that were not recorded since the process started: too many at once."
        unwritten = "Events that are only in memory: their file could not be written."
        counters = (("dropped", dropped, self._dropped), ("unwritten", unwritten, self._unwritten))
        return [
            line
            for name, text, count in counters
            if count
            for line in family(f"fastbk_events_{name}_total", "counter", text, [("", count)])
        ]

    def _is_admitted(self, event: str) -> bool:
        limit = self._limits.get(event)
        if limit is None:
            limit = RateLimit(RATE_PER_S, clock_s=self._monotonic, burst_s=BURST_S, is_rested=True)
            self._limits[event] = limit
        if limit.wait_s() > 0:
            self._dropped += 1
            self._lost_of[event] = self._lost_of.get(event, 0) + 1
            return False
        limit.take(1)
        return True

    def _put_behind(self, earlier: deque[Event]) -> None:
        """Have what is in memory follow the events of earlier processes, also if the clock was put back since."""
        last = earlier[-1].number if earlier else 0
        if self._memory and self._memory[0].number <= last:
            moved = [
                msgspec.structs.replace(one, number=last + index)
                for index, one in enumerate(self._memory, 1)
            ]
            self._memory = deque(moved, MEMORY_EVENTS_MAX)
            self._waiting = deque(moved[-len(self._waiting) :] if self._waiting else [])
            last = moved[-1].number
        self._last = max(self._last, last)
        self._memory.extendleft(
            itertools.islice(reversed(earlier), MEMORY_EVENTS_MAX - len(self._memory))
        )

    def _write(self, file: EventFile) -> None:
        """Write events until `close`; the thread's life."""
        is_dirty, synced_s = False, self._monotonic()
        while True:
            with self._changed:
                if not self._waiting and not self._is_closing:
                    self._changed.wait(SYNC_INTERVAL_S if is_dirty else None)
                events, is_last = list(self._waiting), self._is_closing
                self._waiting.clear()
            try:
                for event in events:
                    file.append(event.line())
                    is_dirty = True
                if is_dirty and (is_last or self._monotonic() - synced_s >= SYNC_INTERVAL_S):
                    file.sync()
                    is_dirty, synced_s = False, self._monotonic()
            except OSError as error:
                is_dirty = False
                self._unwritten += len(events)
                self._failures.note(
                    "write", file=str(file.path), reason=error.strerror, kept="in memory"
                )
            if is_last:
                with contextlib.suppress(OSError):
                    file.close()
                return


def _is_enough(memory: list[Event], query: Query) -> bool:
    """Return whether no older event than those in memory is wanted, or all are in memory."""
    if (
        len(memory) < MEMORY_EVENTS_MAX
        or query.after >= memory[0].number
        or query.since > memory[0].time
    ):
        return True
    return query.is_newest and sum(query.admits(event) for event in memory) >= query.limit


# --- files -------------------------------------------------------------------------------------------------------
#
# The files of a process's events: `events.jsonl` with the newest, `events.1.jsonl` with those before it, and so on.
#
# One JSON object a line, appended in one write, so a `kill -9` cuts no line and loses none that was
# written. A power cut may: the next writer closes a line that was cut short, and readers leave it
# out. A file that is full is renamed, and the oldest is removed, so all together are bounded.
#
# The directory is held open: where its disk is gone, nothing is written to what lies below (INV-D2).


FILE_BYTES_MAX = 4 * MIB
FILES_MAX = 4
NAME = "events.jsonl"


class EventFile:
    """Appends to the files of one directory. One thread of one process. All of it raises OSError."""

    def __init__(
        self, path: Path, size_bytes_max: int = FILE_BYTES_MAX, files_max: int = FILES_MAX
    ) -> None:
        """`path`: of the newest file, with the ending `.jsonl`. `size_bytes_max`: of each of `files_max` files."""
        self.path = path
        self._size_bytes_max = size_bytes_max
        self._files_max = files_max
        self._folder = self._file = -1
        self._size_bytes = 0

    def open(self, *, may_make: bool) -> bool:
        """Open the newest file for appending; without `may_make` only one that is there. Return whether it is open."""
        if self._folder < 0:
            self._folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._file = os.open(
                self.path.name,
                flags | (os.O_CREAT if may_make else 0),
                FILE_MODE,
                dir_fd=self._folder,
            )
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            self._file = -1
            raise OSError(
                errno.EBUSY, "another process writes it: give this one another file"
            ) from None
        self._size_bytes = os.fstat(self._file).st_size
        if self._size_bytes and os.pread(self._file, 1, self._size_bytes - 1) != b"\n":
            self._write(b"\n")
        return True

    def append(self, line: bytes) -> None:
        """Write one line, whole or not at all."""
        if self._file < 0:
            self.open(may_make=True)
        if self._size_bytes and self._size_bytes + len(line) > self._size_bytes_max:
            self._rotate()
        self._write(line)

    def sync(self) -> None:
        """Make what was appended durable."""
        if self._file >= 0:
            os.fdatasync(self._file)

    def close(self) -> None:
        """Close what is open."""
        for descriptor in (self._file, self._folder):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._folder = -1

    def _write(self, line: bytes) -> None:
        written = os.write(self._file, line)
        if written != len(line):
            os.ftruncate(self._file, self._size_bytes)
            raise OSError(errno.ENOSPC, "the disk is full")
        self._size_bytes += written

    def _rotate(self) -> None:
        names = [self._name(number) for number in range(self._files_max)]
        with contextlib.suppress(FileNotFoundError):
            os.unlink(names[-1], dir_fd=self._folder)
        for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
            with contextlib.suppress(FileNotFoundError):
                os.rename(newer, older, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        os.close(self._file)
        self._file = -1
        self.open(may_make=True)

    def _name(self, number: int) -> str:
        return numbered(self.path, number).name


def numbered(path: Path, number: int) -> Path:
    """Return the path of the `number`-th file behind the newest, which is 0."""
    return path.with_name(f"{path.stem}.{number}{path.suffix}") if number else path


def read_events(path: Path, files_max: int = FILES_MAX) -> Iterator[Event]:
    """Yield all events of the files of `path`, oldest first; lines that are none are left out.

    Works on the files of a process that runs or that is gone. A file that is renamed while this reads is read once: an
    event with a number that is not higher than the one before is left out. Raises OSError.
    """
    with contextlib.ExitStack() as stack:
        files = []
        # the newest first: a file that is renamed meanwhile is met again, not missed
        for number in range(files_max):
            with contextlib.suppress(FileNotFoundError):
                files.append(stack.enter_context(open(numbered(path, number), "rb")))
        last = 0
        for file in reversed(files):
            for line in file:
                if (
                    line.endswith(b"\n")
                    and (event := event_of(line)) is not None
                    and event.number > last
                ):
                    last = event.number
                    yield event
