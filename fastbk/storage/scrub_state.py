"""`scrub.json`: how far the scrub of a ledger directory is, and which entries were found damaged there.

What is quarantined answers "cannot tell" by its checksums already; the list is for people and for `fastbk bookie
repair`. It is bounded: `is_cut` says that more was found than it holds. A damaged list is begun anew, and so is the
cycle: what is damaged is found again.

    {"format": 1, "incarnation" (hex), "cycles", "began_s", "ended_s", "log_id", "offset_bytes", "quarantined":
    [{"ledger_id", "first", "last", "reason", "found_s"}], "is_cut", "crc"} (`sealed_json.py`)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fastbk.native.ffi import CorruptDataError
from fastbk.storage import sealed_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastbk.native.disk import Disk

NAME = "scrub.json"
FORMAT = 1
RANGES_MAX = 10_000


class Quarantined(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of one ledger, first to last, that no copy here is whole of. `found_s`: wall clock."""

    ledger_id: int
    first: int
    last: int
    reason: str
    found_s: int


class ScrubState(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered over restarts. Times are wall clock, 0 = never.

    `cycles`: that came to their end. `log_id`, `offset_bytes`: where the cycle under way goes on; `began_s` 0: none is.
    """

    incarnation: str
    cycles: int = 0
    began_s: int = 0
    ended_s: int = 0
    log_id: int = 0
    offset_bytes: int = 0
    quarantined: tuple[Quarantined, ...] = ()
    is_cut: bool = False
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


def read_scrub_state(disk: Disk, directory: str, incarnation: int) -> ScrubState:
    """Return what is remembered of this incarnation's directory. Raises FormatTooNewError, OSError."""
    fresh = ScrubState(incarnation=f"{incarnation:016x}")
    path = f"{directory}/{NAME}"
    try:
        found = sealed_json.decode(disk.read_file(path), ScrubState, FORMAT, path)
    except (FileNotFoundError, CorruptDataError):
        return fresh
    return found if found.incarnation == fresh.incarnation else fresh


def write_scrub_state(disk: Disk, directory: str, state: ScrubState) -> None:
    """Remember it, whole and durable. Raises OSError."""
    disk.replace_file(f"{directory}/{NAME}", sealed_json.encode(state))
