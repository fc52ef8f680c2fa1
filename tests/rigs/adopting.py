"""Bookies whose journal files stay as entry logs from the first byte on, for rigs that run real ones."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from fastbk.native.disk import Disk
from fastbk.server.journal.process import ADOPT_VARIABLE
from fastbk.storage.manifest import SLOTS, VERSION, ManifestSlots
from fastbk.units import KIB

RUN_BYTES_MIN = 2 * KIB


@contextlib.contextmanager
def adopting(does: bool = True, *, run_bytes_min: int = RUN_BYTES_MIN) -> Iterator[None]:
    """Have bookies that are started in the block adopt, with small runs; nothing changes where it does not."""
    try:
        switch(does, run_bytes_min=run_bytes_min)
        yield
    finally:
        switch(False)


def switch(does: bool, *, run_bytes_min: int = RUN_BYTES_MIN) -> None:
    """Have bookies that are started from now on adopt, or go by what they take."""
    if does:
        os.environ[ADOPT_VARIABLE] = str(run_bytes_min)
    else:
        os.environ.pop(ADOPT_VARIABLE, None)


def adopted_files(folder: Path) -> int:
    """Return how many journal files the manifests below a folder list; their bookies are stopped."""
    count = 0
    for directory in sorted({str(path.parent) for path in folder.rglob(SLOTS[0])}):
        with Disk(directory, "plain", only_reads=True) as disk:
            logs = ManifestSlots(disk, directory).load().logs
        count += sum(log.is_journal_file for log in logs)
    return count


def new_files(folder: Path) -> list[str]:
    """Return the files below a folder that a version before 0.4 does not read; their bookies are stopped."""
    paths = [
        path
        for pattern in ("*.journal", "*.loc", SLOTS[0], SLOTS[1])
        for path in sorted(folder.rglob(pattern))
    ]
    return [str(path) for path in paths if _version_of(path) >= VERSION]


def _version_of(path: Path) -> int:
    """Journal files, locations files and manifests have their version behind eight bytes of magic."""
    with path.open("rb") as file:
        return int.from_bytes(file.read(12)[8:], "little")
