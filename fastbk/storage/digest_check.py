"""Entries' own digests, as far as a bookie can check them: which a ledger has is in its metadata, and asked for.

Apache's frames do not name the digest, so a bookie may have stored what was damaged before it came. Its checksums are
of what came and are good; every reader refuses the entry all the same. The scrub and the offline check look.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

import msgspec

from fastbk.model.entry import DigestType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fastbk.native.scrub import Run

NO_TYPE = 0
"""Metadata has no such ledger, or names no digest of it: there is nothing to check by."""
KnownDigest = int | bytes
"""What is known of a ledger's digest: its type's number, or the key of its HMAC (20 bytes), where metadata has the
password."""


class DigestSource(Protocol):
    """Knows digest types, or asks for them. For one thread."""

    def begin_cycle(self) -> None:
        """Everything stored is looked at anew."""

    def want(self, ledger_ids: Iterable[int]) -> bool:
        """Ask for the types that are not known; return whether waiting for some of them is worth it."""

    def wait(self) -> None:
        """Wait for answers, some ten milliseconds at most."""

    def known(self, ledger_ids: Iterable[int]) -> dict[int, KnownDigest]:
        """Return the types of those ledgers that are known; NO_TYPE is one."""


class NoDigests:
    """Where nobody can say which digest a ledger has: nothing is looked at, nothing is missed."""

    def begin_cycle(self) -> None:
        """Do nothing."""

    def want(self, ledger_ids: Iterable[int]) -> bool:
        """Return False."""
        del ledger_ids
        return False

    def wait(self) -> None:
        """Do nothing."""

    def known(self, ledger_ids: Iterable[int]) -> dict[int, KnownDigest]:
        """Return NO_TYPE for each."""
        return dict.fromkeys(ledger_ids, NO_TYPE)


class KnownTypes:
    """The digest types of the ledgers that were asked for last, bounded. A ledger's never changes; its id may become
    another ledger's after its end.
    """

    def __init__(self, ledgers_max: int) -> None:
        """`ledgers_max`: so many are kept, some 150 bytes each, with a key 60 more."""
        self._types: OrderedDict[int, KnownDigest] = OrderedDict()
        self._ledgers_max = ledgers_max

    def __len__(self) -> int:
        return len(self._types)

    def get(self, ledger_id: int) -> KnownDigest | None:
        """Return a type; None: not known."""
        found = self._types.get(ledger_id)
        if found is not None:
            self._types.move_to_end(ledger_id)
        return found

    def put(self, ledger_id: int, digest_type: KnownDigest) -> None:
        """Remember one; the one that was not asked for longest is forgotten for it."""
        self._types[ledger_id] = digest_type
        self._types.move_to_end(ledger_id)
        if len(self._types) > self._ledgers_max:
            self._types.popitem(last=False)

    def clear(self) -> None:
        """Forget all."""
        self._types.clear()


class DigestCount(msgspec.Struct):
    """How many entries' digests were looked at, and how many were not.

    Attributes:
        checked: computed. bad: of these, not what stands in the entry.
        keyed: HMACs of ledgers whose password metadata does not have.
        unknown: of ledgers whose type nobody could tell, or that metadata does not have.
        unanswered: of these, those for want of an answer.
    """

    checked: int = 0
    bad: int = 0
    keyed: int = 0
    unknown: int = 0
    unanswered: int = 0

    def add_unchecked(self, runs: Sequence[Run], types: Mapping[int, KnownDigest]) -> None:
        """Count the entries of `runs` that can't be checked by these types."""
        for run in runs:
            kind = types.get(run.ledger_id)
            if kind == DigestType.HMAC:
                self.keyed += run.entry_count
            elif kind is None or kind == NO_TYPE:
                self.unknown += run.entry_count
                self.unanswered += run.entry_count if kind is None else 0

    def minus(self, earlier: DigestCount) -> DigestCount:
        """Return what came since."""
        return DigestCount(
            self.checked - earlier.checked,
            self.bad - earlier.bad,
            self.keyed - earlier.keyed,
            self.unknown - earlier.unknown,
            self.unanswered - earlier.unanswered,
        )


def digest_name(known: KnownDigest) -> str:
    """Return what people call it."""
    return DigestType(DigestType.HMAC if isinstance(known, bytes) else known).name
