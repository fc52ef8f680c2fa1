"""Keeps explicit LACs over restarts: written behind a flush and at an orderly stop, taken back behind replay.

What was written since the last flush is lost with a crash: readers see the ledger's end a little later, as they do
without explicit LACs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.storage.small_files import read_explicit_lacs, write_explicit_lacs

if TYPE_CHECKING:
    from fastbk.native.disk import Disk
    from fastbk.native.index import Index
    from fastbk.server.index.background import DirectJobs, FlushThread

JOB = "explicit_lacs"


class ExplicitLacs:
    """Of one index; the main thread's, but for the write, which is a job of the flush thread."""

    def __init__(self, index: Index, disk: Disk, directory: str) -> None:
        """`disk`: the flush thread's."""
        self._index = index
        self._disk = disk
        self._directory = directory
        self._written = 0

    def load(self) -> int:
        """Take back what the last life kept, behind replay. Returns how many. Raises FormatTooNewError, OSError."""
        taken = self._index.put_explicit_lacs(read_explicit_lacs(self._disk, self._directory))
        self._written = self._index.explicit_lacs_kept()
        return taken

    def write(self, jobs: FlushThread | DirectJobs) -> None:
        """Have them written if there are new ones; one that fails is written with the next."""
        kept = self._index.explicit_lacs_kept()
        if kept == self._written:
            return
        bodies = self._index.explicit_lacs()

        def job() -> None:
            write_explicit_lacs(self._disk, self._directory, bodies)
            self._written = kept

        jobs.submit(JOB, job)
