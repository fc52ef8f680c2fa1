"""What the offline check found, and its verification of entries' own digests by what metadata says of their ledgers."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastbk.native.scrub import DigestScan
from fastbk.storage.digest_check import DigestCount, KnownDigest, digest_name

if TYPE_CHECKING:
    from fastbk.native.scrub import Run

FINDINGS_MAX = 10_000
"""More are counted, but not kept."""
TypesOf = Callable[[Collection[int]], Mapping[int, KnownDigest]]
"""Ledgers -> their digest types or keys; NO_TYPE: metadata has none; missing: it can't be told.

Raises Error: none can.
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be. severity: "damage" or "note"."""

    severity: str
    path: str
    text: str


@dataclass
class Checked:
    """What a check found, and how much it looked at. Bytes are those read for it."""

    findings: list[Finding] = field(default_factory=list)
    damage_count: int = 0
    read_bytes: int = 0
    total_bytes: int = 0
    """What there is to read, as far as is known."""
    logs: int = 0
    runs: int = 0
    entries: int = 0
    damaged_entries: int = 0
    locations_files: int = 0
    journal_batches: int = 0
    live_bytes: int = 0
    """Of runs that locations name."""
    dead_bytes: int = 0
    """In listed logs, of no run that a location names."""
    orphan_bytes: int = 0
    """In files that no manifest names: left behind by a crash, gone after the next start's first commit."""
    digests: DigestCount | None = None
    """None: entries' own digests were not looked at."""
    bad_digest_ranges: int = 0
    """Of `damage_count`: entries that came with a wrong digest."""
    began_s: float = field(default_factory=time.monotonic)

    @property
    def is_whole(self) -> bool:
        """Whether no damage was found."""
        return self.damage_count == 0

    def add(self, severity: str, path: str, text: str) -> None:
        """Note a finding."""
        self.damage_count += severity == "damage"
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(severity, path, text))


class DigestCheck:
    """Looks beside the checksums; what it finds is damage: no reader takes such a copy, whoever damaged it."""

    def __init__(self, types_of: TypesOf, checked: Checked) -> None:
        self._types_of = types_of
        self._checked = checked
        if checked.digests is None:
            checked.digests = DigestCount()

    def check_of(self, runs: list[Run]) -> DigestScan:
        """Return what a verification of these runs has to look for. Raises what `types_of` does."""
        return DigestScan(self._types_of({run.ledger_id for run in runs}))

    def note(self, path: str, runs: list[Run], look: DigestScan) -> None:
        """Take what the verification has found."""
        count = self._checked.digests
        assert count is not None
        count.checked += look.entries
        count.bad += look.bad_entries
        count.add_unchecked(runs, look.types)
        for ledger_id, first, last in look.bad:
            ids = f"entry {first}" if first == last else f"entries {first}-{last}"
            name = digest_name(look.types[ledger_id])
            self._checked.bad_digest_ranges += 1
            self._checked.add(
                "damage", path, f"{ids} of ledger {ledger_id} came with a wrong {name} digest"
            )
