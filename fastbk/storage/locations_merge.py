"""Which locations files to merge when, and one merge on its way.

Files are kept in the order of their generations; a merge takes neighbours, so that each file still covers
generations that no other covers and "newest wins" stays a comparison of files. It is planned by the main loop and
written in slices by the background thread.

It leaves out what lies in unlisted logs (INV-X5) and what belongs to deleted ledgers. Its commit is
`Checkpoint.commit_merge`, in the flush thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.native.ffi import CorruptDataError
from fastbk.native.process import kill_point
from fastbk.native.store import MergeOptions, Scope
from fastbk.storage.manifest import LocationsEntry
from fastbk.units import KIB

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fastbk.native.store import Merge, MergeResult, Store
    from fastbk.storage.manifest import Manifest
    from fastbk.storage.new_files import Attempt

SLICE_BLOCKS = 256
"""Of 4 KiB: some milliseconds of work between two looks at what else is to be done."""
BLOCK_BYTES = 4 * KIB
TIER_BYTES = 256 * KIB
"""Files up to this size are of tier 0."""
TIER_FACTOR = 8
"""Each tier's files are up to this many times as large as the tier's below."""
MERGE_FILES_MIN = 8
FILES_MAX = 64
"""With so many files the whole set is merged, whatever the sizes."""


class LocationsMerge:
    """The files that are merged, and how far it is."""

    def __init__(
        self,
        chosen: tuple[LocationsEntry, ...],
        manifest: Manifest,
        attempt: Attempt,
        deleted: Collection[int],
        *,
        created_s: int,
        forget_deleted_before_s: int = 0,
        drops: bool = False,
    ) -> None:
        """Plan it; nothing is done yet.

        Args:
            chosen: neighbours, in ascending generations.
            manifest: names them, and the logs that count.
            attempt: the file that is made.
            deleted: ledgers whose deletion is durable; their locations are left out.
            created_s: wall clock.
            forget_deleted_before_s: not 0 only when `chosen` are all files there are.
            drops: among `deleted` are ledgers that live, and may come again.
        """
        self.chosen = chosen
        self.attempt = attempt
        self.drops = drops
        self.merged: LocationsEntry | None = None
        """Once it is written."""
        self.result: MergeResult | None = None
        self.damaged: tuple[int, ...] = ()
        """Ids of inputs that turned out not to be readable, when it failed for that."""
        self.size_bytes = sum(entry.size_bytes for entry in chosen)
        self._options = MergeOptions(attempt.file_id, created_s, forget_deleted_before_s)
        self._scope = Scope(
            (entry.file_id for entry in chosen), (log.log_id for log in manifest.logs), deleted
        )
        self._merge: Merge | None = None

    @property
    def last_generation(self) -> int:
        """The highest generation that it takes in."""
        return self.chosen[-1].last_generation

    def step(self, store: Store) -> int:
        """Do a slice; return the bytes that were read, 0 when it is written and looked into.

        Raises OSError, CorruptDataError: then `abandon`.
        """
        if self.merged is not None:
            return 0
        if self._merge is None:
            self._merge = store.begin_merge(self._options, self._scope)
        try:
            goes_on = self._merge.step(SLICE_BLOCKS)
        except (OSError, CorruptDataError):
            self._look_for_damage(store)
            raise
        if not goes_on:
            self.result = result = self._merge.end()
            self.attempt.prepared.append(self.attempt.file_id)
            kill_point("index.merge_written")
            if store.prepare(self.attempt.file_id):
                raise CorruptDataError("a merged locations file reads back damaged")
            self.merged = LocationsEntry(
                file_id=self.attempt.file_id,
                first_generation=result.first_generation,
                last_generation=result.last_generation,
                size_bytes=result.file_size_bytes,
            )
        return SLICE_BLOCKS * BLOCK_BYTES

    def _look_for_damage(self, store: Store) -> None:
        """A rotten file keeps no others from being merged for ever; if none is whole it is the disk's moment."""
        bad = tuple(entry.file_id for entry in self.chosen if not _is_readable(store, entry))
        if len(bad) < len(self.chosen):
            self.damaged = bad

    def abandon(self) -> None:
        """Let the disk go; what was written is unlinked by `Checkpoint.abandon`. Harmless when it ended already."""
        if self._merge is not None:
            self._merge.abandon()
            self._merge = None


def _is_readable(store: Store, entry: LocationsEntry) -> bool:
    try:
        store.log_bytes(Scope([entry.file_id], None))
        store.count_states([entry.file_id], 0)
    except (OSError, CorruptDataError):
        return False
    return True


def tier_of(size_bytes: int) -> int:
    """Return the tier of a file of this size: 0 for the smallest."""
    tier, bound = 0, TIER_BYTES
    while size_bytes > bound:
        tier, bound = tier + 1, bound * TIER_FACTOR
    return tier


def choose_merge(
    files: Sequence[LocationsEntry], damaged: Collection[int] = (), newer_than: int = -1
) -> tuple[LocationsEntry, ...]:
    """Return the files to be merged now, in ascending generations; empty when there is nothing to do.

    Args:
        files: all that count, in ascending generations.
        damaged: ids of files that must not be merged; only those newer than all of them are.
        newer_than: a generation; only files of higher ones are merged.

    For the smallest tier t of which there are MERGE_FILES_MIN files among the newest files of tiers <= t, all of
    those newest files are merged. So a location is written again about once a tier, and a lookup asks fewer
    than MERGE_FILES_MIN files of each tier.
    """
    last_damaged = max((i for i, file in enumerate(files) if file.file_id in damaged), default=-1)
    files = [file for file in files[last_damaged + 1 :] if file.first_generation > newer_than]
    if len(files) >= FILES_MAX:
        return tuple(files)
    tiers = [tier_of(file.size_bytes) for file in files]
    for tier in sorted(set(tiers)):
        count = 0
        while count < len(files) and tiers[-1 - count] <= tier:
            count += 1
        if tiers[len(files) - count :].count(tier) >= MERGE_FILES_MIN:
            return tuple(files[-count:])
    return ()
