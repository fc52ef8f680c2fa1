"""What metadata says of all ledgers, as an import needs it: few bytes each, for there may be millions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastbk.meta.api import all_ledgers
from fastbk.meta.records import BadRecord
from fastbk.model.entry import (
    DIGEST_BYTES,
    HEADER_BYTES,
    DigestType,
    digest,
    master_key,
    parse_lac_body,
)
from fastbk.model.ledger import LedgerState
from fastbk.native.hashes import crc32c

if TYPE_CHECKING:
    from fastbk.meta.api import MetadataStore
    from fastbk.model.ids import BookieId
    from fastbk.model.ledger import LedgerMetadata


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """What ledgers of one kind have in common; most clusters have few kinds.

    Attributes:
        digest_type, password: as metadata has them; None where it says nothing, as before release 4.3.
        is_closed: nothing can come to it any more.
        is_named: the bookie is in one of its ensembles, or may be with the next change: it is being recovered.
    """

    digest_type: DigestType | None
    password: bytes | None = field(repr=False)
    is_closed: bool
    is_named: bool

    @property
    def master_key(self) -> bytes | None:
        """The key that bookies compare, where metadata has the password."""
        return None if self.password is None else master_key(self.password)

    @property
    def is_provable(self) -> bool:
        """Whether entries have a digest that can be checked."""
        return self.digest_type is not None and self.digest_type is not DigestType.DUMMY

    def is_right(self, raw: bytes) -> bool:
        """Return whether an entry is as long as its header and digest, and has the right one where there is one."""
        kind = self.digest_type
        if kind is None:
            return len(raw) >= HEADER_BYTES
        start = HEADER_BYTES + DIGEST_BYTES[kind]
        if len(raw) < start:
            return False
        view = memoryview(raw)
        stored = view[HEADER_BYTES:start]
        if kind is DigestType.CRC32C:
            right = crc32c(view[start:], crc32c(view[:HEADER_BYTES]))
            return int.from_bytes(stored, "big") == right
        if kind is DigestType.HMAC and self.password is None:
            return True
        return digest(kind, raw[:HEADER_BYTES], view[start:], self.password or b"") == stored

    def lac_in(self, ledger_id: int, body: bytes) -> int:
        """Return the LAC that the body of an explicit LAC proves, -1 when it proves none."""
        if self.digest_type is None:
            return -1
        proven = parse_lac_body(body, ledger_id, self.digest_type, self.password or b"")
        return -1 if proven is None else proven


class LedgerTable:
    """All ledgers of a cluster."""

    def __init__(self, store: MetadataStore, bookie_id: BookieId) -> None:
        """Read the metadata of all ledgers. Raises MetadataUnavailable."""
        self._known: dict[int, LedgerSummary] = {}
        self._store = store
        kinds: dict[LedgerSummary, LedgerSummary] = {}
        for ledger_id, read in all_ledgers(store):
            # One that nobody can read may count on the bookie, and may be open.
            if isinstance(read, BadRecord):
                known = LedgerSummary(None, None, False, True)
            else:
                known = _known(read.metadata, bookie_id)
            self._known[ledger_id] = kinds.setdefault(known, known)

    def get(self, ledger_id: int) -> LedgerSummary | None:
        """Return what is known of a ledger, None for one that metadata does not list."""
        return self._known.get(ledger_id)

    def open_count(self) -> int:
        """Return how many of those that may count on the bookie are not closed."""
        return sum(known.is_named and not known.is_closed for known in self._known.values())

    def named(self) -> list[int]:
        """Return the ledgers that may count on the bookie, ascending."""
        return [ledger_id for ledger_id, known in self._known.items() if known.is_named]

    def is_provable(self, ledger_id: int) -> bool:
        """Return whether entries of this ledger have digests that can be checked."""
        known = self._known.get(ledger_id)
        return known is not None and known.is_provable

    def is_whole(self, ledger_id: int, raw: bytes) -> bool:
        """Return whether bytes are certainly an entry of this ledger."""
        known = self._known.get(ledger_id)
        return known is not None and known.is_provable and known.is_right(raw)


def _known(metadata: LedgerMetadata, bookie_id: BookieId) -> LedgerSummary:
    return LedgerSummary(
        metadata.digest_type,
        metadata.password,
        metadata.is_closed,
        metadata.state is LedgerState.IN_RECOVERY
        or any(bookie_id in fragment.ensemble for fragment in metadata.fragments),
    )
