"""`GET /scrub`: how far the scrub is, and what it has found, as it is remembered on the disks: entries that are damaged
(`quarantined`), and those that came with a wrong digest (`bad_digests`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from fastbk.native.disk import Disk
from fastbk.storage.identity import read_identity
from fastbk.storage.scrub_state import read_scrub_state

if TYPE_CHECKING:
    from collections.abc import Sequence


class ScrubPage:
    """Answers from the files of the ledger directories: the index keeps them up to date within a minute."""

    def __init__(self, directories: Sequence[str]) -> None:
        self._directories = directories

    async def answer(self, _: dict[str, Any]) -> dict[str, Any]:
        """Return what is quarantined or has a wrong digest, and each pair's cycle. Raises StorageError, OSError."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> dict[str, Any]:
        pairs: list[dict[str, Any]] = []
        quarantined: list[dict[str, Any]] = []
        bad_digests: list[dict[str, Any]] = []
        is_cut = is_bad_digests_cut = False
        for number, directory in enumerate(self._directories):
            disk = Disk(directory, "plain", only_reads=True)
            try:
                identity = read_identity(disk, directory)
                if identity is None:
                    continue  # not born yet
                state = read_scrub_state(disk, directory, identity.incarnation_number)
            finally:
                disk.destroy()
            fields = msgspec.to_builtins(state)
            quarantined += fields.pop("quarantined")
            is_cut |= fields.pop("is_cut")
            bad_digests += fields.pop("bad_digests")
            is_bad_digests_cut |= fields.pop("is_bad_digests_cut")
            pairs.append({"pair": number, "directory": directory, **fields})
        return {
            "quarantined": quarantined,
            "is_cut": is_cut,
            "bad_digests": bad_digests,
            "is_bad_digests_cut": is_bad_digests_cut,
            "pairs": pairs,
        }
