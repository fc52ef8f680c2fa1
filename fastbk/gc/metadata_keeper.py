"""What gc sees of ledgers' metadata goes into `metadata.last` of the pair that each lives in, for a rebuild.

Metadata of a ledger is read within some seconds of its first entry here, and afterwards once in each round over all
ledgers (`over_replicated_age`). Those last seen open are read again at every look for dead ledgers, some at a time, so
that ensemble changes and closes are seen early. A deletion is on disk before the index deletes anything (INV-M7).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from fastbk.errors import Error
from fastbk.gc.ledger_listing import read_ledgers
from fastbk.meta.api import VersionedLedger
from fastbk.native.ffi import FormatTooNewError
from fastbk.observe import logs
from fastbk.storage.identity import pair_of
from fastbk.storage.last_metadata import LastMetadata

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Sequence

    from fastbk.meta.api import MetadataStore
    from fastbk.rate_limit import RateLimit

OPEN_MAX = 100_000
"""Ledgers last seen open that are known of; more are read in the rounds only."""
OPEN_A_LOOK = 2000


class LocalIds:
    """Sorted ids, searched: a set would take ten times the memory."""

    def __init__(self, ids: array[int]) -> None:
        self._ids = ids

    def __contains__(self, one: object) -> bool:
        from bisect import bisect_left

        if not isinstance(one, int):
            return False
        at = bisect_left(self._ids, one)
        return at < len(self._ids) and self._ids[at] == one


class MetadataKeeper:
    """One bookie's files. A disk that takes no writes stops only this, and deletions: it is logged once, until one
    succeeds.
    """

    def __init__(
        self,
        directories: Sequence[str],
        shards: Sequence[int],
        store: MetadataStore,
        pace: RateLimit,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        """`directories`: the ledger directory of each pair. `pause`: called in long work."""
        self._shards, self._store, self._pace, self._pause = shards, store, pace, pause
        self._open: OrderedDict[int, None] = OrderedDict()
        self._files: list[LastMetadata | None] = [None] * len(directories)
        self._directories = directories
        self._has_complained = False

    def see(self, ledger_id: int, found: VersionedLedger) -> None:
        """Note what was read; on disk after the next `flush`."""
        try:
            self._file_of(ledger_id).see(ledger_id, found.version, found.metadata.to_bytes())
        except (OSError, FormatTooNewError) as error:
            self._complain(error)
        if found.metadata.is_closed:
            self._open.pop(ledger_id, None)
        elif ledger_id in self._open or len(self._open) < OPEN_MAX:
            self._open[ledger_id] = None

    def see_deleted(self, ledger_ids: Sequence[int]) -> None:
        """Note, durably, that metadata does not have these any more. Raises OSError, StorageError: it is not noted."""
        by_pair: dict[int, list[int]] = {}
        for one in ledger_ids:
            self._open.pop(one, None)
            by_pair.setdefault(pair_of(one, self._shards), []).append(one)
        for ids in by_pair.values():
            self._file_of(ids[0]).see_deleted(ids)

    def flush(self) -> None:
        """Make what was seen durable."""
        try:
            for file in self._files:
                if file is not None:
                    file.flush()
            self._has_complained = False
        except OSError as error:
            self._complain(error)

    def read_open(self, local: array[int]) -> None:
        """Read some of those last seen open again, and rewrite files that are half outdated. `local`: ids here."""
        here = LocalIds(local)
        some = [one for one in list(self._open)[:OPEN_A_LOOK]]
        try:
            for ledger_id, found in read_ledgers(self._store, some, self._pace):
                self._open.pop(ledger_id, None)
                if isinstance(found, VersionedLedger) and ledger_id in here:
                    self.see(ledger_id, found)  # behind the others
        except Error:
            pass  # metadata is away, which the looks for ledgers say
        self.flush()
        try:
            for file in self._files:
                if file is not None:
                    file.rewrite_if_due(here, pause=self._pause)
        except OSError as error:
            self._complain(error)

    def _file_of(self, ledger_id: int) -> LastMetadata:
        pair = pair_of(ledger_id, self._shards)
        file = self._files[pair]
        if file is None:
            file = self._files[pair] = LastMetadata(self._directories[pair])
        return file

    def _complain(self, error: Exception) -> None:
        if not self._has_complained:
            self._has_complained = True
            logs.warning("gc.last_metadata_not_written", reason=str(error))
