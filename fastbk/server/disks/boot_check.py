"""Before another boot: can the directories be used, so that it is worth one?

A boot over a directory whose file system is gone would take an empty journal for a lost one (INV-D2), and one over a
disk that fails would end as the one before. So the supervisor waits for such disks, without counting deaths, or starts
what can be started: with a journal's disk that can't be written, reads.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.server.disks.place import Place

if TYPE_CHECKING:
    from collections.abc import Sequence

PROBE_NAME = "probe"
PROBE_BYTES = 4096
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True)
class UsedDirectory:
    """A directory of the bookie: `role` is `journal` or `ledger`, `lock` the descriptor of its lock."""

    role: str
    pair: int
    path: str
    lock: int


@dataclass(frozen=True, slots=True)
class BootVerdict:
    """What the directories allow. Empty texts: everything.

    Attributes:
        wait: why no boot can succeed now.
        reads_only: why only one without a journal can.
    """

    wait: str = ""
    reads_only: str = ""


def judge_boot(directories: Sequence[UsedDirectory]) -> BootVerdict:
    """Look into all directories, with a small write and sync in each. Blocks; raises nothing."""
    wait: list[str] = []
    reads_only: list[str] = []
    for each in directories:
        gone = Place(each.path, each.lock).why_gone()
        if gone:
            wait.append(f"{each.role} directory {each.path} is gone: {gone}")
            continue
        problem = why_not_writable(each.path)
        if problem:
            said = f"{each.role} directory {each.path} cannot be written: {problem}"
            # Replay has to flush before anything can be read; the journal only has to be read for that.
            (reads_only if each.role == "journal" else wait).append(said)
    return BootVerdict("; ".join(wait), "; ".join(reads_only))


def why_not_writable(directory: str) -> str:
    """Return why a small file can't be written and synced; empty: it can, or there is just no room for it."""
    path = os.path.join(directory, PROBE_NAME)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, b"\0" * PROBE_BYTES)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        return "" if error.errno in NO_ROOM else error.strerror or str(error)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
    return ""


def lacks_room(directories: Sequence[UsedDirectory], reserve_bytes: int) -> bool:
    """Return whether a ledger directory has less free than `reserve_bytes`, which replay may have to flush."""
    for each in directories:
        if each.role == "ledger":
            look = Place(each.path, each.lock).look()
            if not look.gone and look.free_bytes < reserve_bytes:
                return True
    return False
