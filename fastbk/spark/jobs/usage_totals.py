"""What ledgers' metadata says of how much there is, added up in a task: no bookie is asked, no data is read.

Bytes are of entries' data. Of a closed ledger they are exact; each bookie's part of them is an estimate by its share of
the entries. Of an open one only the entries of finished fragments are known, and no bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fastbk.client import LedgerInfo
from fastbk.model.ids import BookieId
from fastbk.model.ledger import LedgerMetadata

STREAM_KEY = "fastbk.stream"
"""Of a ledger's custom metadata: the id of the stream whose segment, or reader's mark, it is."""
ROWS = (
    "stream_id string, bookie string, made_s long, ledgers long, open long, entries long, bytes long,"
    " day_bytes long, week_bytes long"
)
"""A row without a bookie is of one copy, by when ledgers were made; one with a bookie what it holds."""
DAY_S, WEEK_S = 86_400, 7 * 86_400
BUCKETS_S = (1, 60, 600, 3600, DAY_S)
BUCKETS_WANTED = 24


@dataclass(frozen=True, slots=True)
class Clock:
    """When the run began, in seconds since 1970, and how finely times of creation are told apart."""

    now_s: int
    bucket_s: int

    @classmethod
    def over(cls, now_s: int, first_s: int) -> Clock:
        """Return one for ledgers of which the first was made at `first_s`: two dozen times and more, or seconds."""
        fine = [one for one in BUCKETS_S if one * BUCKETS_WANTED <= now_s - first_s]
        return cls(now_s, max(fine, default=BUCKETS_S[0]))


@dataclass(slots=True)
class Counted:
    """Sums of some ledgers; see ROWS."""

    ledgers: int = 0
    open: int = 0
    entries: int = 0
    bytes: int = 0
    day_bytes: int = 0
    week_bytes: int = 0


def rows_of(infos: Iterable[LedgerInfo], clock: Clock) -> Iterator[tuple[str | int | None, ...]]:
    """Yield the rows of these ledgers, as ROWS has them: as many as there are streams, bookies and times among them."""
    sums: defaultdict[tuple[str, BookieId | None, int | None], Counted] = defaultdict(Counted)
    for info in infos:
        metadata = info.metadata
        stream_id = metadata.custom.get(STREAM_KEY, b"").decode(errors="replace")
        made_s = None if metadata.created_ms is None else metadata.created_ms // 1000
        bucket = None if made_s is None else made_s - made_s % clock.bucket_s
        age_s = float("inf") if made_s is None else clock.now_s - made_s
        entries = entries_of(metadata)
        size_bytes = metadata.length if metadata.is_closed else 0
        _add(sums[stream_id, None, bucket], metadata, entries, size_bytes, age_s)
        for bookie_id, held in held_entries(metadata).items():
            held_bytes = round(size_bytes * held / entries) if entries else 0
            _add(sums[stream_id, bookie_id, None], metadata, held, held_bytes, age_s)
    for key, one in sums.items():
        counts = (one.ledgers, one.open, one.entries, one.bytes, one.day_bytes, one.week_bytes)
        yield (*key, *counts)


def entries_of(metadata: LedgerMetadata) -> int:
    """Return the entries that are known: of an open ledger, those before its last fragment."""
    if metadata.is_closed:
        return metadata.last_entry_id + 1
    return metadata.fragments[-1].first_entry_id


def held_entries(metadata: LedgerMetadata) -> dict[BookieId, int]:
    """Return how many entries, of those that are known, each bookie that the ledger names is to hold."""
    size, quorum = metadata.ensemble_size, metadata.write_quorum
    held: dict[BookieId, int] = {}
    for at, fragment in enumerate(metadata.fragments):
        first, end = fragment.first_entry_id, entries_of(metadata)
        if at + 1 < len(metadata.fragments):
            end = min(end, metadata.fragments[at + 1].first_entry_id)
        # Entry n goes to the bookies n, n + 1, ... of the ensemble, counted round it.
        begun = [
            _multiples(end - index, size) - _multiples(first - index, size) for index in range(size)
        ]
        for index, bookie_id in enumerate(fragment.ensemble):
            count = (
                sum(begun[(index - copy) % size] for copy in range(quorum)) if end > first else 0
            )
            held[bookie_id] = held.get(bookie_id, 0) + count
    return held


def _multiples(end: int, step: int) -> int:
    """Return how many of 0, step, 2 * step ... are below `end`, which may be negative."""
    return -(-end // step)


def _add(
    to: Counted, metadata: LedgerMetadata, entries: int, size_bytes: int, age_s: float
) -> None:
    to.ledgers += 1
    to.open += not metadata.is_closed
    to.entries += entries
    to.bytes += size_bytes
    to.day_bytes += size_bytes if age_s <= DAY_S else 0
    to.week_bytes += size_bytes if age_s <= WEEK_S else 0
