"""Which digests ledgers have, for commands that look at a stopped bookie: read from metadata as it goes, and kept."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from fastbk.server.supervision.metadata_services import read_digests
from fastbk.storage.digest_check import NO_TYPE, KnownDigest, KnownTypes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from fastbk.server.supervision.metadata_services import ReadLedgers
    from fastbk.storage.check import TypesOf

LEDGERS_MAX = 65_536
"""Whose types are kept: some 10 MiB, 4 more where all have HMACs."""
READ_AT_ONCE_MAX = 256
METADATA_TIMEOUT_S = 30.0


class MetadataTypes:
    """`TypesOf` by a metadata store."""

    def __init__(self, read: ReadLedgers, ledgers_max: int = LEDGERS_MAX) -> None:
        """`read`: gives several ledgers' metadata."""
        self._read = read
        self._types = KnownTypes(ledgers_max)

    def __call__(self, ledger_ids: Collection[int]) -> dict[int, KnownDigest]:
        """Return the types of these ledgers, without those whose metadata is damaged. Raises Error."""
        known = {one: self._types.get(one) for one in ledger_ids}
        found = {ledger_id: kind for ledger_id, kind in known.items() if kind is not None}
        missing = sorted(ledger_id for ledger_id, kind in known.items() if kind is None)
        for at in range(0, len(missing), READ_AT_ONCE_MAX):
            some = missing[at : at + READ_AT_ONCE_MAX]
            for ledger_id, kind in read_digests(self._read, some).items():
                found[ledger_id] = NO_TYPE if kind is None else kind
                self._types.put(ledger_id, found[ledger_id])
        return found


@contextmanager
def types_by(uri: str | None) -> Iterator[TypesOf | None]:
    """Open the metadata at `uri`; None without one. Raises ConfigError, Error."""
    if uri is None:
        yield None
        return
    from fastbk.meta import open_store

    with closing(open_store(uri, METADATA_TIMEOUT_S, may_make=False)) as store:
        yield MetadataTypes(store.read_ledgers)
