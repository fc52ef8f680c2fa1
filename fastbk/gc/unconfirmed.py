"""Ledgers that a client's record made here and that metadata was never seen to list (INV-G4 to INV-G7).

A ledger is in metadata before its first add. So the next look confirms a real one, and what metadata does not list is a
ghost: a ledger that was deleted again, or that never was. Dropping a real one loses data; so every doubt keeps:

- only ledgers that were never confirmed go this way, all others by `fastbk.gc.dead_ledgers`;
- metadata has not listed them, with this key and creation, in any look for `age_s`. A look that fails, metadata on hold
  after a rollback, a restart: each begins that time anew;
- or metadata is proven not to have gone back (INV-G7), and has not listed them for `proven_age_s`. The proof is a mark
  that this process has written while metadata said that their ids had been drawn, and that is still read: a copy from
  before they were made does not have it. They go with a second such mark, which was written when nothing was taken to
  them any more. Bookies see to it that metadata knows of an id within seconds, and remember that (INV-M2). Ids that
  somebody chose above all drawn ones go by their age;
- or metadata has listed another ledger under this id, with another key or creation, for
  FOREIGN_AGE_S: somebody used the id before. The ledger that is listed is refused until then;
- then the bookie takes nothing to them any more, metadata is read once more, and only what is not in it by name goes,
  or what is another ledger than the one it lists.
  What was acknowledged before is of a ledger that was in metadata before that reading.

While many ghosts leave no room, the newest ledgers that metadata lists for this bookie are let in by name.

Decisions 95 and 143.
"""

from __future__ import annotations

import time
from array import array
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import Error
from fastbk.gc.ledger_listing import (
    in_both,
    listed_ledgers,
    missing_from,
    read_ledgers,
    sorted_ids,
)
from fastbk.meta.api import VersionedLedger
from fastbk.model.entry import master_key
from fastbk.model.ids import creation_mark
from fastbk.native.ledger_state import Listed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastbk.gc.dead_ledgers import Cluster
    from fastbk.gc.index_client import AllPairs
    from fastbk.limits import RateLimit
    from fastbk.meta.api import MetadataStore
    from fastbk.meta.rollback import OwnMark
    from fastbk.model.ids import BookieId

NAMES_MAX = 500
"""So many are read by name; with more of them metadata is listed first."""
NAMES_A_LOOK = 2000
"""Read by name in one look: those that are listed, and those that are to go."""
ADMITTED_A_LOOK = 1000
FOREIGN_AGE_S = 10.0
"""Such a ledger was in metadata only if that was rolled back, which bookies notice within 2 s and which ends a look."""


class UnconfirmedCheck(msgspec.Struct, frozen=True):
    """What one look did. `stopped`: why it ended early; empty when it did not.

    Attributes:
        unconfirmed: ledgers that were unconfirmed when it began. listed: those of them that metadata lists.
        foreign: those that metadata lists with another key or creation.
        expiring: those to which nothing is taken from this look on. expired: those that were forgotten.
        admitted: ledgers of metadata for which room was made.
    """

    unconfirmed: int = 0
    listed: int = 0
    foreign: int = 0
    expiring: int = 0
    expired: int = 0
    admitted: int = 0
    stopped: str = ""


def listed_as(ledger_id: int, found: VersionedLedger) -> Listed:
    """Return what the index compares with its own state."""
    metadata = found.metadata
    key = None if metadata.password is None else master_key(metadata.password)
    return Listed(ledger_id, creation_mark(metadata.creation_token), key)


def missing_since(before_s: dict[int, float], now_here: set[int], now_s: float) -> dict[int, float]:
    """Return since when each of these is here without a break."""
    return {one: before_s.get(one, now_s) for one in sorted(now_here)}


class UnconfirmedWatch(msgspec.Struct):
    """Looks at unconfirmed ledgers. `pace`: in ledgers a second; `listing_pace`: in ids a second.

    Attributes:
        age_s: metadata has not listed a ledger for so long before it expires; FOREIGN_AGE_S at most where it lists
            another one.
        room: how many may be unconfirmed; from half of it on ledgers of metadata are let in by name.
    """

    local: AllPairs
    store: MetadataStore
    cluster: Cluster
    bookie_id: BookieId
    pace: RateLimit
    listing_pace: RateLimit
    age_s: float
    room: int
    clock_s: Callable[[], float] = time.monotonic
    on_seen: Callable[[int, VersionedLedger], None] = lambda ledger_id, found: None
    mark: OwnMark | None = None
    """None: nothing is proven, and all expire by `age_s`."""
    proven_age_s: float = 0.0
    _marked: dict[int, bool] = msgspec.field(default_factory=dict)
    """What was missing when `mark` was written last, and whether nothing was taken to it any more by then."""
    _missing_since_s: dict[int, float] = msgspec.field(default_factory=dict)
    _foreign_since_s: dict[int, float] = msgspec.field(default_factory=dict)

    def check(self, *, may_expire: bool = True) -> UnconfirmedCheck:
        """Confirm what metadata lists; begin and end the expiry of what it has not listed for too long.

        Args:
            may_expire: False while metadata is on hold, or deletions are suspended: then nothing grows older.
        """
        try:
            may_expire &= not self.cluster.hold()
            every, expiring = self.local.unconfirmed()  # before metadata is read (INV-G1)
            was_there = self._has_mark()
            is_tight = 2 * len(every) >= self.room
            everywhere = self._listing() if is_tight or len(every) > NAMES_MAX else None
            wanted = every if everywhere is None else array("q", in_both(every, everywhere))
            listed, missing = self._by_name(wanted[:NAMES_A_LOOK])
            foreign = self.local.confirm(listed) if listed else []
            admitted = self._admit(every, everywhere) if everywhere and is_tight else 0
            if everywhere is not None:
                missing += missing_from(every, [everywhere] if everywhere else [])
            look = UnconfirmedCheck(len(every), len(listed), len(foreign), admitted=admitted)
            if not may_expire:
                self._begin_anew()
                return look
            proven = self._proven(set(missing), set(expiring), was_there=was_there)
            return self._expire(look, {*missing, *foreign}, set(foreign), expiring, proven)
        except (Error, OSError) as error:
            self._begin_anew()
            return UnconfirmedCheck(stopped=f"{type(error).__name__}: {error}")

    def _begin_anew(self) -> None:
        self._missing_since_s.clear()
        self._foreign_since_s.clear()
        self._marked.clear()

    def _has_mark(self) -> bool:
        return self.mark is not None and bool(self._marked) and self.mark.is_there()

    def _proven(self, missing: set[int], expiring: set[int], *, was_there: bool) -> dict[int, bool]:
        """Return what metadata is proven not to list any more; True: it may go, False: its expiry may begin (INV-G7).

        `was_there`: the mark was read before the ledgers were. It is read once more, and written for what has come.
        """
        if self.mark is None:
            return {}
        is_there = was_there and self.mark.is_there()
        known = self._marked if is_there else {}
        proven = {one: known[one] for one in missing if one in known}
        # A mark that was written after metadata had gone back would prove nothing: of later ids it may be so.
        now = {one: one in expiring for one in missing if one <= self.cluster.mark.highest_id}
        if all(one in known and known[one] >= state for one, state in now.items()):
            self._marked = {one: known[one] for one in now}
            return proven
        self._marked = {}
        try:
            goes_on = self.mark.write()
        except Error:
            return {}  # metadata is away, which the next look says; or this bookie may not write there
        self.cluster.check()  # it knew of these ids before, and does so still
        self._marked = now
        return proven if goes_on else {}

    def _listing(self) -> array[int]:
        return sorted_ids(self.cluster.listed(listed_ledgers(self.store, self.listing_pace)))

    def _by_name(self, ledger_ids: Sequence[int]) -> tuple[list[Listed], list[int]]:
        """Return what metadata says of ledgers, and those that are not in it."""
        listed: list[Listed] = []
        missing: list[int] = []
        for ledger_id, found in read_ledgers(self.store, ledger_ids, self.pace):
            if found is None:
                missing.append(ledger_id)
            elif isinstance(found, VersionedLedger):
                self.on_seen(ledger_id, found)
                listed.append(listed_as(ledger_id, found))
                self.cluster.highest_id = max(self.cluster.highest_id, ledger_id)
        return listed, missing

    def _admit(self, every: array[int], everywhere: array[int]) -> int:
        """Let the newest ledgers in that metadata lists for this bookie, and that are not here."""
        here = sorted_ids([self.local.ids(), every])
        newest = list(missing_from(everywhere, [here] if here else []))[-ADMITTED_A_LOOK:]
        ours = [
            ledger_id
            for ledger_id, found in read_ledgers(self.store, newest, self.pace)
            if isinstance(found, VersionedLedger)
            and not found.metadata.is_closed
            and self.bookie_id in found.metadata.fragments[-1].ensemble
        ]
        return self.local.admit(ours) if ours else 0

    def _expire(
        self,
        look: UnconfirmedCheck,
        missing: set[int],
        foreign: set[int],
        expiring: array[int],
        proven: dict[int, bool],
    ) -> UnconfirmedCheck:
        now_s, begun = self.clock_s(), set(expiring)
        self._missing_since_s = missing_since(self._missing_since_s, missing, now_s)
        self._foreign_since_s = missing_since(self._foreign_since_s, foreign, now_s)
        foreign_age_s = min(self.age_s, FOREIGN_AGE_S)
        old = {one for one, at_s in self._missing_since_s.items() if now_s - at_s >= self.age_s}
        old |= {one for one, at_s in self._foreign_since_s.items() if now_s - at_s >= foreign_age_s}
        sure = {one for one in proven if now_s - self._missing_since_s[one] >= self.proven_age_s}
        over = [one for one in expiring if one in old or (one in sure and proven[one])]
        over = over[:NAMES_A_LOOK]
        absent = self._by_name([one for one in over if one not in foreign])[1]
        gone = sorted({*absent, *(one for one in over if one in foreign)})
        self.cluster.check()  # the store may have become another one meanwhile
        if not self._has_mark():
            gone = [one for one in gone if one in old]
        reason = f"not listed in metadata {self.cluster.instance_id}"
        ended = [one for one in gone if one in sure and proven[one] and one not in foreign]
        expired = self.local.expire(ended, reason, is_proven=True) if ended else 0
        forgotten = sorted(set(gone).difference(ended))
        expired += self.local.expire(forgotten, reason) if forgotten else 0
        for one in gone:
            self._marked.pop(one, None)
        due = sorted((old | sure | foreign) - begun)
        count = self.local.begin_expiry(due) if due else 0
        return UnconfirmedCheck(
            look.unconfirmed, look.listed, look.foreign, count, expired, look.admitted
        )
