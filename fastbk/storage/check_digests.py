"""The offline check's look at entries' own digests, by what metadata says of their ledgers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from fastbk.native.scrub import DigestLook
from fastbk.storage.digest_check import DigestCount, Known, digest_name

if TYPE_CHECKING:
    from fastbk.native.scrub import Run
    from fastbk.storage.check import Checked

TypesOf = Callable[[Collection[int]], Mapping[int, Known]]
"""Ledgers -> their digest types or keys; NO_TYPE: metadata has none; missing: it can't be told.

Raises Error: none can.
"""


class DigestCheck:
    """Looks beside the checksums; what it finds is damage: no reader takes such a copy, whoever damaged it."""

    def __init__(self, types_of: TypesOf, checked: Checked) -> None:
        self._types_of = types_of
        self._checked = checked
        if checked.digests is None:
            checked.digests = DigestCount()

    def look(self, runs: list[Run]) -> DigestLook:
        """Return what a verification of these runs has to look for. Raises what `types_of` does."""
        return DigestLook(self._types_of({run.ledger_id for run in runs}))

    def note(self, path: str, runs: list[Run], look: DigestLook) -> None:
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
