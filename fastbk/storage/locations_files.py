"""When to merge which locations files.

Files are kept in the order of their generations; a merge takes neighbours, so that each file still covers
generations that no other covers and "newest wins" stays a comparison of files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.units import KIB

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fastbk.storage.manifest import LocationsEntry

TIER_BYTES = 256 * KIB
"""Files up to this size are of tier 0."""
TIER_FACTOR = 8
"""Each tier's files are up to this many times as large as the tier's below."""
MERGE_FILES_MIN = 8
FILES_MAX = 64
"""With so many files the whole set is merged, whatever the sizes."""


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
