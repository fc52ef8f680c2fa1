"""One run at a time in a place, whatever file system it is on: a file for each run that is under way, with its owner.

    <place>/claims/run=<n>     who has run <n>: made exclusively when it begins, deleted when it ends
    <place>/claims/past=<n>    numbers up to <n> are used up, though nothing of them is there: somebody may still write

A run's number is the claim's. That of a run which did not end by itself is never used again, so two runs have no folder
in common, also where one of them was given up by mistake. A claim whose processes are dead is passed by where this can
be known: on the machine it ran on. On a store that does not create exclusively a later claim replaces one of the same
moment; whoever had that one finds another's text in it and stops (`Claim.check`).

Decision 102.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fastbk.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRIES_MAX = 10
_RUN, _PAST = "run=", "past="


class Files(Protocol):
    """A folder of small files."""

    def names(self) -> list[str]:
        """Return the names, sorted; none if the folder is not there."""

    def create(self, name: str, text: str) -> bool:
        """Make a file with the folder; False: it is there already."""

    def read(self, name: str) -> str | None:
        """Return what a file says; None: it is not there."""

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""


class LocalFiles:
    """Files on this machine's disk, where Hadoop's own exclusive creation is a look and a creation after it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        """See Files."""
        with suppress(FileNotFoundError):
            return sorted(one.name for one in self._folder.iterdir())
        return []

    def create(self, name: str, text: str) -> bool:
        """See Files; the file has its text when it appears."""
        self._folder.mkdir(parents=True, exist_ok=True)
        beside = self._folder.with_name(f".{self._folder.name}-{secrets.token_hex(6)}")
        beside.write_text(text)
        try:
            os.link(beside, self._folder / name)
        except FileExistsError:
            return False
        finally:
            beside.unlink()
        return True

    def read(self, name: str) -> str | None:
        """See Files."""
        with suppress(FileNotFoundError):
            return (self._folder / name).read_text()
        return None

    def delete(self, name: str) -> None:
        """See Files."""
        (self._folder / name).unlink(missing_ok=True)


class HadoopFiles:
    """Files on whatever file system Hadoop has."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        context: Any = spark.sparkContext
        self._jvm = context._jvm
        self._path = self._jvm.org.apache.hadoop.fs.Path(folder)
        self._system = self._path.getFileSystem(context._jsc.hadoopConfiguration())

    @property
    def local(self) -> Path | None:
        """The folder, if it is on this machine's disk."""
        is_local = self._system.getUri().getScheme() == "file"
        return Path(self._path.toUri().getPath()) if is_local else None

    def names(self) -> list[str]:
        """See Files."""
        found = self._if_there(lambda: self._system.listStatus(self._path))
        return sorted(one.getPath().getName() for one in found or ())

    def create(self, name: str, text: str) -> bool:
        """See Files, as far as the file system creates exclusively."""
        from py4j.protocol import Py4JJavaError

        try:
            stream = self._system.create(self._at(name), False)
        except Py4JJavaError as error:
            # Whoever made it may have deleted it since; and another client's, not closed yet, has errors of its own.
            if _is(error, "FileAlreadyExistsException") or self._system.exists(self._at(name)):
                return False
            raise StorageError(f"{self._at(name).toString()} cannot be made: {error}") from error
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        return True

    def read(self, name: str) -> str | None:
        """See Files."""
        stream = self._if_there(lambda: self._system.open(self._at(name)))
        if stream is None:
            return None
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def delete(self, name: str) -> None:
        """See Files."""
        self._system.delete(self._at(name), False)

    @staticmethod
    def _if_there(ask: Callable[[], Any]) -> Any:  # noqa: ANN401 -- Java's
        """Return what Java does, None where it says that there is no such file: asked before, it may be gone since."""
        from py4j.protocol import Py4JJavaError

        try:
            return ask()
        except Py4JJavaError as error:
            if not _is(error, "FileNotFoundException"):
                raise
            return None

    def _at(self, name: str) -> Any:  # noqa: ANN401 -- Java's
        return self._jvm.org.apache.hadoop.fs.Path(self._path, name)


def _is(error: Any, name: str) -> bool:  # noqa: ANN401 -- py4j has no types
    return bool(error.java_exception.getClass().getSimpleName() == name)


def files_of(spark: SparkSession, folder: str) -> Files:
    """Return a folder's files, wherever it is."""
    found = HadoopFiles(spark, folder)
    return found if found.local is None else LocalFiles(found.local)


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that has a claim.

    Attributes:
        who: for people. pid, started: of the process, where processes have numbers as on `machine`.
        java, java_started: of the one that runs Spark for it, which ends, and stops writing, a moment later; 0: none.
        token: of this claim alone.
    """

    who: str
    machine: str
    pid: int
    started: str
    began_at: str
    java: int = 0
    java_started: str = ""
    token: str = ""

    @classmethod
    def this(cls) -> Owner:
        """Return this process."""
        pid = os.getpid()
        now = datetime.now(UTC).isoformat(timespec="seconds")
        who = f"process {pid} on {socket.gethostname()}"
        java, token = _java(), secrets.token_hex(8)
        java_started = _started(java) if java else None
        return cls(who, _machine(), pid, _started(pid) or "", now, java, java_started or "", token)

    @classmethod
    def of(cls, text: str) -> Owner:
        """Return who wrote this; somebody unknown where it was not written whole."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError, RecursionError):
            return cls("somebody", "", 0, "", "a time that is not known")

    def text(self) -> str:
        """Return what `of` takes."""
        return json.dumps(asdict(self))

    @property
    def is_dead(self) -> bool:
        """Whether its processes are known to be gone."""
        if self.machine != _machine() or _started(self.pid) == self.started:
            return False
        return not self.java or _started(self.java) != self.java_started


def _machine() -> str:
    """Return what processes have in common that see each other by the same numbers, until the machine ends."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"


def _java() -> int:
    """Return the process that runs Spark for this one; 0: none does."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    return 0 if gateway is None else int(gateway.jvm.java.lang.ProcessHandle.current().pid())


def _started(pid: int) -> str | None:
    """Return when a process began, in ticks since the machine did; None: there is none, or only its exit code."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in ("Z", "X") else fields[19]


@dataclass(frozen=True, slots=True)
class Claim:
    """A run that is this process's own. `passed`: the highest number of a run that did not end by itself; 0: none."""

    number: int
    passed: int
    _files: Files
    _text: str

    @property
    def is_there(self) -> bool:
        """Whether the claim is still this process's."""
        return self._files.read(_name(self.number)) == self._text

    def check(self) -> None:
        """Raise StorageError if somebody took the place over."""
        if not self.is_there or max(_numbers(self._files)) > self.number:
            raise StorageError(
                f"run {self.number} does not count: another run has taken the place over"
            )


@contextmanager
def claimed(
    files: Files, last_number: Callable[[], int], *, take_over: bool = False
) -> Iterator[Claim]:
    """Have the place alone for as long as the block takes. `last_number`: of all runs that have left anything there.

    take_over: whoever else has it is dead, or its run may fail. Raises ConfigError if another run has the place.
    """
    claim = _made(files, last_number, take_over=take_over)
    try:
        yield claim
    finally:
        if claim.is_there:
            if claim.passed and claim.passed > last_number():
                files.create(_name(claim.passed, _PAST), "")
            files.delete(_name(claim.number))


def _made(files: Files, last_number: Callable[[], int], *, take_over: bool) -> Claim:
    for _ in range(TRIES_MAX):
        others, past = _numbers(files), _numbers(files, _PAST)
        for number in others:
            text = files.read(_name(number))
            if text is None or take_over or Owner.of(text).is_dead:
                continue
            owner = Owner.of(text)
            raise ConfigError(
                f"run {number} of {owner.who} has this place since {owner.began_at}: wait for it, or, if it is dead,"
                " take its place: --take-over"
            )
        passed = max([*others, *past], default=0)
        claim = Claim(1 + max(last_number(), passed), passed, files, Owner.this().text())
        if not files.create(_name(claim.number), claim._text) or not claim.is_there:
            continue  # somebody was faster, or later, and is seen the next time
        if last_number() >= claim.number:  # ran from its beginning to its end since we looked
            files.delete(_name(claim.number))
            continue
        for other in others:
            files.delete(_name(other))
        for other in past:
            files.delete(_name(other, _PAST))
        return claim
    raise ConfigError("other runs begin here all the time: run this one again")


def _numbers(files: Files, kind: str = _RUN) -> list[int]:
    names = [name.removeprefix(kind) for name in files.names() if name.startswith(kind)]
    return sorted(int(name) for name in names if name.isdigit())


def _name(number: int, kind: str = _RUN) -> str:
    return f"{kind}{number:06}"
