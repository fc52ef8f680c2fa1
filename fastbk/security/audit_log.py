"""The bookie's audit log: who was let in, who was refused what, who fenced, recovered or changed the bookie.

Workers send what they see, the supervisor's pages call `note`. The file is the supervisor's alone, as no child can open
it (INV-N3).

Each line is JSON with a hash over itself and all lines before it (`Chain`). A line that is changed, taken out or put in
breaks the chain at that place. Lines cut off at the end do not: so the bookie logs the last hash from time to time
(`audit.head`), and who keeps its log elsewhere can compare.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fastbk.errors import StorageError
from fastbk.observe import logs
from fastbk.observe.logs import LimitLog
from fastbk.observe.prometheus import family
from fastbk.printable_text import printable_json
from fastbk.safe_files import is_open_to_others, opener

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fastbk.security.settings import AuditSettings

SYNC_INTERVAL_S = 1.0
HEAD_INTERVAL_S = 3600.0
WORKERS_EVENTS = ("tls.", "client.", "request.")
WORKERS_VALUES = (
    "at",
    "address",
    "principal",
    "method",
    "operation",
    "ledger",
    "verdict",
    "reason",
)
"""What a worker's records may have. A worker that was taken over writes no others, and no line's number or time."""


class AuditLog:
    """One bookie's, over all its boots; with no file configured it does nothing."""

    def __init__(self, settings: AuditSettings) -> None:
        self._settings = settings
        self._path = Path(settings.file)
        self._chain = Chain()
        self._descriptor = -1
        self._size_bytes = 0
        self._written = self._dropped = 0
        self._is_dirty = self._is_begun = False
        self._headed_s = 0.0
        self._failures = LimitLog("audit.not_written")
        self._task: asyncio.Task[None] | None = None

    @property
    def is_on(self) -> bool:
        """Whether there is a file."""
        return bool(self._settings.file)

    def open(self) -> None:
        """Go on behind the last line. Raises StorageError."""
        try:
            last = self._last_line()
            self._chain = last or self._rotated()
            self._open_file()
        except FileNotFoundError as error:
            reason = f"make the folder {self._path.parent}, and give it to this user"
            raise StorageError(f"[audit] file {self._path}: {reason}") from error
        except OSError as error:
            raise StorageError(f"[audit] file {self._path}: {error.strerror or error}") from error
        self._is_begun = True
        self.note("audit.begun")
        self._headed_s = time.monotonic()
        logs.info("audit.head", sequence=self._chain.sequence, chain=self._chain.head)

    async def begin(self, stack: contextlib.AsyncExitStack) -> None:
        """Open the file until `stack` closes, and sync it from time to time. Raises StorageError."""
        if self.is_on:
            await asyncio.to_thread(self.open)
            stack.push_async_callback(self.close)
            self._task = asyncio.get_running_loop().create_task(self._keep(), name="fastbk audit")

    async def close(self) -> None:
        """Write the last line, and close."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._is_begun:
            self.note("audit.ended")
            self._is_begun = False
            logs.info("audit.head", sequence=self._chain.sequence, chain=self._chain.head)
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.fdatasync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def take(self, message: Mapping[str, Any]) -> None:
        """Write a worker's records."""
        dropped = message.get("dropped", 0)
        if isinstance(dropped, int) and dropped > 0:
            self._dropped += dropped
            self.note("audit.dropped", count=dropped, worker=message.get("worker"))
        records = message.get("records")
        for record in records if isinstance(records, list) else ():
            if isinstance(record, dict):
                event = str(record.get("event"))
                values = {name: record[name] for name in WORKERS_VALUES if name in record}
                is_known = event.startswith(WORKERS_EVENTS)
                self.note(event if is_known else "unknown", worker=message.get("worker"), **values)

    def note(self, event: str, **values: object) -> bool:
        """Write a line; return whether it is in the file. One that cannot be written is counted."""
        if not self._is_begun:
            return False
        before = Chain(self._chain.sequence, self._chain.head)
        line = self._chain.line({"time": _utc(time.time()), "event": event, **values})
        try:
            if self._descriptor < 0:
                self._open_file()  # a rotation could not
            if (
                self._size_bytes + len(line) > self._settings.file_size_bytes_max
                and self._size_bytes
            ):
                self._rotate()
            written = os.write(self._descriptor, line)
            if written != len(line):
                os.ftruncate(self._descriptor, self._size_bytes)
                raise OSError(None, "the disk is full")
        except OSError as error:
            self._chain = before
            self._dropped += 1
            self._failures.note("write", reason=error.strerror, lost=event)
            return False
        self._size_bytes += len(line)
        self._written += 1
        self._is_dirty = True
        return True

    def metric_lines(self) -> list[str]:
        """Return lines for /metrics; none without a file."""
        if not self.is_on:
            return []
        written = "Records in the audit log."
        dropped = "Records that the audit log lacks: too many, or not to be written."
        return [
            *family("fastbk_audit_records_total", "counter", written, [("", self._written)]),
            *family("fastbk_audit_dropped_total", "counter", dropped, [("", self._dropped)]),
        ]

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(SYNC_INTERVAL_S)
            if self._is_dirty and self._descriptor >= 0:
                self._is_dirty = False
                descriptor = os.dup(self._descriptor)
                try:
                    await asyncio.to_thread(os.fdatasync, descriptor)
                except OSError as error:
                    self._failures.note("sync", reason=error.strerror)
                finally:
                    os.close(descriptor)
            if time.monotonic() - self._headed_s >= HEAD_INTERVAL_S:
                self._headed_s = time.monotonic()
                logs.info("audit.head", sequence=self._chain.sequence, chain=self._chain.head)

    def _open_file(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._descriptor = opener(str(self._path), flags)
        if is_open_to_others(self._path):
            os.fchmod(self._descriptor, 0o600)
        self._size_bytes = os.fstat(self._descriptor).st_size

    def _last_line(self) -> Chain | None:
        """Return the end of the file that is there; None: there is none, or it is not whole."""
        lines = _tail(self._path)
        if not lines:
            return Chain()
        return last_of(lines[-1])

    def _rotated(self) -> Chain:
        """Put a file with a broken end aside, and begin behind what is whole of it."""
        whole = [found for line in _tail(self._path) if (found := last_of(line)) is not None]
        self._shift()
        next_step = "the file was put aside; `fastbk audit verify` shows where it ends"
        logs.warning("audit.broken_end", file=str(self._path), next=next_step)
        return whole[-1] if whole else Chain()

    def _rotate(self) -> None:
        os.fdatasync(self._descriptor)
        self._shift()
        os.close(self._descriptor)
        self._descriptor = -1
        self._open_file()

    def _shift(self) -> None:
        """Number the files anew: FILE.1 is the one before, and the oldest goes."""
        kept = self._settings.files_max - 1
        for number in range(kept, 0, -1):
            older = self._numbered(number)
            with contextlib.suppress(FileNotFoundError):
                if number == kept:
                    older.unlink()
                else:
                    older.replace(self._numbered(number + 1))
        if kept:
            self._path.replace(self._numbered(1))
        else:
            self._path.unlink()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


def _tail(path: Path) -> list[bytes]:
    """Return the last lines of a file, the last one perhaps cut; none where there is no file."""
    size_bytes = 2 * LINE_BYTES_MAX + 1024
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - size_bytes))
            return file.read(size_bytes).splitlines(keepends=True)
    except FileNotFoundError:
        return []


def _utc(now_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_s)) + f".{int(now_s % 1 * 1e3):03d}Z"


# --- the chain of the lines -----------------------------------------------------------------------

BEGINNING = "0" * 64
LINE_BYTES_MAX = 8192
_MARK = b',"chain":"'
_END = b'"}'


class Chain:
    """The end of an audit log.

    Attributes:
        sequence: the number of its last line.
        head: the hash of its last line.
    """

    def __init__(self, sequence: int = 0, head: str = BEGINNING) -> None:
        self.sequence = sequence
        self.head = head

    def line(self, record: Mapping[str, Any]) -> bytes:
        """Return the next line, with its line break."""
        self.sequence += 1
        body = printable_json({"sequence": self.sequence, **record})[:-1]
        if len(body) > LINE_BYTES_MAX:
            cut = body[: LINE_BYTES_MAX // 4].decode("utf-8", "replace")
            body = printable_json(
                {"sequence": self.sequence, "cut_bytes": len(body), "start": cut}
            )[:-1]
        self.head = _hash(self.head, body)
        return body + _MARK + self.head.encode() + _END + b"\n"


def last_of(line: bytes) -> Chain | None:
    """Return the chain that ends with a line; None: it is broken."""
    parts = _parts(line)
    if parts is None:
        return None
    _, head, sequence = parts
    return Chain(sequence, head)


def faults(lines: Iterable[bytes], chain: Chain | None = None) -> Iterator[str]:
    """Yield what is wrong with an audit log's lines, in their order. `chain`: what comes before; None: not known."""
    for number, line in enumerate(lines, 1):
        parts = _parts(line)
        if parts is None:
            yield f"line {number} is no line of an audit log, or is cut"
            chain = None
            continue
        body, head, sequence = parts
        if chain is not None and sequence != chain.sequence + 1:
            yield f"line {number} has number {sequence} behind {chain.sequence}: lines are missing"
        elif chain is not None and _hash(chain.head, body) != head:
            yield f"line {number} (number {sequence}) does not belong behind the one before it: one of them was changed"
        chain = Chain(sequence, head)


def _parts(line: bytes) -> tuple[bytes, str, int] | None:
    body, mark, rest = line.rstrip(b"\n").rpartition(_MARK)
    if (
        not mark
        or not line.endswith(b"\n")
        or len(rest) != 64 + len(_END)
        or not rest.endswith(_END)
    ):
        return None
    try:
        sequence = msgspec.json.decode(body + b"}", type=dict[str, Any])["sequence"]
        head = rest[:64].decode("ascii")
    except (ValueError, KeyError, RecursionError):
        return None
    return (body, head, sequence) if isinstance(sequence, int) else None


def _hash(before: str, body: bytes) -> str:
    return hashlib.sha256(before.encode() + b"\n" + body).hexdigest()
