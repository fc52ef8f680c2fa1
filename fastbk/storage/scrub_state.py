"""`scrub.json`: how far the scrub of a ledger directory is, and which entries were found damaged there.

What is quarantined answers "cannot tell" by its checksums already; the list is for people and for `fastbk bookie
repair`. It is bounded: `is_cut` says that more was found than it holds. A damaged list is begun anew, and so is the
cycle: what is damaged is found again. Entries that came with a wrong digest are listed apart: they are stored as they
came and served so, and no reader takes them.

    {"format": 1, "incarnation" (hex), "cycles", "began_s", "ended_s", "log_id", "offset_bytes", "quarantined":
    [{"ledger_id", "first", "last", "reason", "found_s"}], "is_cut", "bad_digests": [{"ledger_id", "first", "last",
    "found_s", "seen_s"}], "is_bad_digests_cut", "digests_unanswered", "crc"} (`small_files.py`)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fastbk.native.ffi import CorruptDataError
from fastbk.storage.small_files import SealedFile

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from fastbk.native.disk import Disk

NAME = "scrub.json"
FORMAT = 1
RANGES_MAX = 10_000
BAD_DIGESTS_MAX = 1_000


class Quarantined(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of one ledger, first to last, that no copy here is whole of. `found_s`: wall clock."""

    ledger_id: int
    first: int
    last: int
    reason: str
    found_s: int


class BadDigests(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of one ledger that came with a wrong digest. `found_s`, `seen_s`: wall clock, first and last met."""

    ledger_id: int
    first: int
    last: int
    found_s: int
    seen_s: int

    @property
    def key(self) -> tuple[int, int, int]:
        """Ledger, first and last id."""
        return self.ledger_id, self.first, self.last


class ScrubState(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered over restarts. Times are wall clock, 0 = never.

    `cycles`: that came to their end. `log_id`, `offset_bytes`: where the cycle under way goes on; `began_s` 0: none is.
    `digests_unanswered`: entries that the cycle under way, or the last one, could not check since nobody said by which
    digest.
    """

    incarnation: str
    cycles: int = 0
    began_s: int = 0
    ended_s: int = 0
    log_id: int = 0
    offset_bytes: int = 0
    quarantined: tuple[Quarantined, ...] = ()
    is_cut: bool = False
    bad_digests: tuple[BadDigests, ...] = ()
    is_bad_digests_cut: bool = False
    digests_unanswered: int = 0
    format: int = FORMAT

    def with_found(self, found: Iterable[Quarantined]) -> ScrubState:
        """Return the state with more in quarantine; what is there already keeps its reason."""
        ranges = {(one.ledger_id, one.first, one.last): one for one in found}
        ranges.update({(one.ledger_id, one.first, one.last): one for one in self.quarantined})
        kept = [ranges[key] for key in sorted(ranges)]
        is_cut = self.is_cut or len(kept) > RANGES_MAX
        return msgspec.structs.replace(self, quarantined=tuple(kept[:RANGES_MAX]), is_cut=is_cut)

    def without(self, healed: Iterable[Quarantined]) -> ScrubState:
        """Return the state with less in quarantine."""
        gone = set(healed)
        kept = tuple(one for one in self.quarantined if one not in gone)
        return msgspec.structs.replace(self, quarantined=kept, is_cut=self.is_cut and bool(kept))

    def with_bad_digests(self, found: Iterable[tuple[int, int, int]], now_s: int) -> ScrubState:
        """Return the state with these (ledger, first, last) in the list, as seen now."""
        ranges = {bad_digest.key: bad_digest for bad_digest in self.bad_digests}
        for key in found:
            first_s = ranges[key].found_s if key in ranges else now_s
            ranges[key] = BadDigests(
                ledger_id=key[0], first=key[1], last=key[2], found_s=first_s, seen_s=now_s
            )
        kept = [ranges[key] for key in sorted(ranges)]
        is_cut = self.is_bad_digests_cut or len(kept) > BAD_DIGESTS_MAX
        return msgspec.structs.replace(
            self, bad_digests=tuple(kept[:BAD_DIGESTS_MAX]), is_bad_digests_cut=is_cut
        )

    def without_unseen(self, deleted: Container[int]) -> ScrubState:
        """Return the state at a cycle's end: without what it has not met again, deleted, replaced or moved.

        After a cycle that could not look at everything, only without ledgers that are `deleted`.
        """
        kept = tuple(
            bad_digest
            for bad_digest in self.bad_digests
            if bad_digest.ledger_id not in deleted
            and (bad_digest.seen_s >= self.began_s or self.digests_unanswered)
        )
        is_cut = self.is_bad_digests_cut and len(kept) == BAD_DIGESTS_MAX
        return msgspec.structs.replace(self, bad_digests=kept, is_bad_digests_cut=is_cut)


_FILE = SealedFile(NAME, ScrubState, FORMAT)
decode, write_scrub_state = _FILE.decode, _FILE.write


def read_scrub_state(disk: Disk, directory: str, incarnation: int) -> ScrubState:
    """Return what is remembered of this incarnation's directory. Raises FormatTooNewError, OSError."""
    fresh = ScrubState(incarnation=f"{incarnation:016x}")
    try:
        record = _FILE.read(disk, directory)
    except CorruptDataError:
        return fresh
    return record if record is not None and record.incarnation == fresh.incarnation else fresh
