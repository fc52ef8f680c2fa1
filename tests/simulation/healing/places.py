"""Where a healing world lives: bookies with what they hold and where they are, and a metadata store that all share.

Whether an ensemble keeps a rule is counted here without the product's code: entry by entry, who holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastbk.meta.api import (
    BookieIdentity,
    BookieRegistration,
    BookieService,
    Endpoint,
    IdentityVersion,
    Watch,
)
from fastbk.meta.sqlite.coordination import RecordCoordination
from fastbk.meta.sqlite.store import MemoryStore
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.quorum import write_set
from fastbk.placement.config import DEFAULT_LOCATION, PlacementConfig
from fastbk.placement.rules import rule_of
from tests.fixtures.fake_quorum import Bookie, entry_of

LEASE_S = 10.0


@dataclass
class SimulatedBookie:
    """One bookie. `is_up`: it answers; `is_registered`: metadata lists it, some seconds longer.

    `location`: "" where nobody says it. `label`: its group, "" for none.
    """

    name: BookieId
    location: str = ""
    label: str = ""
    is_up: bool = True
    is_registered: bool = True
    is_gone_for_good: bool = False
    unregistered_s: float = 0.0
    seen_s: int = 0
    """For how many seconds since its return an auditor could see it."""
    due_until_s: float = -1.0
    """Until when its ledgers may be copied to others though it has returned: a copy that was begun goes on."""
    ledgers: dict[LedgerId, Bookie] = field(default_factory=dict)

    def of(self, ledger_id: LedgerId) -> Bookie:
        """Return what it has of a ledger."""
        return self.ledgers.setdefault(ledger_id, Bookie())

    def holds(self, ledger_id: LedgerId, entry_id: EntryId) -> bool:
        """Return whether it has an entry."""
        return entry_id in self.of(ledger_id).entries

    def service(self) -> BookieService:
        """Return its registration."""
        return BookieService(self.name, 1, (Endpoint("host", 1),), {"labels": self.label})


class NoWatch:
    """Nothing is reported: passes are periodic anyway."""

    def close(self) -> None:
        """Do nothing."""


class _Unwatched(RecordCoordination):
    def watch_switches(self, callback: Callable[[], None]) -> Watch:
        return NoWatch()


class SimulatedStore(MemoryStore):
    """One process's way to the metadata that all share. Its session is renewed by `SimulatedProcess`."""

    def __init__(
        self, name: str, clock: Callable[[], float], bookies: dict[BookieId, SimulatedBookie]
    ) -> None:
        super().__init__(name, LEASE_S, clock)
        self.bookies = bookies
        self.on_update: Callable[[LedgerId, LedgerMetadata, LedgerMetadata], None] | None = None
        self.coordination = _Unwatched(self.records, LEASE_S, clock)

    def list_bookies(self) -> list[BookieRegistration]:
        """Return those that the world says are registered."""
        return [
            BookieRegistration(one.service(), writable=True)
            for _, one in sorted(self.bookies.items())
            if one.is_registered
        ]

    def watch_bookies(self, callback: Callable[[], None]) -> Any:
        """Report nothing."""
        return NoWatch()

    def update_ledger(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        version: int,
        if_identity: IdentityVersion | None = None,
    ) -> int:
        """Have the world judge a change that takes effect."""
        before = self.read_ledger(ledger_id).metadata
        done = super().update_ledger(ledger_id, metadata, version, if_identity)
        if self.on_update is not None:
            self.on_update(ledger_id, before, metadata)
        return done


class Cluster:
    """Bookies, ledgers, and what was acknowledged of each."""

    def __init__(self, store: SimulatedStore, bookies: dict[BookieId, SimulatedBookie]) -> None:
        self.store = store
        self.bookies = bookies
        self.acknowledged: dict[LedgerId, EntryId] = {}
        """The last acknowledged entry of each ledger."""
        self.rule = PlacementConfig()
        """The cluster's."""
        self.rules: dict[LedgerId, PlacementConfig] = {}
        """What each ledger has to keep to, as it was when it was made."""
        self._metadata: dict[LedgerId, LedgerMetadata] = {}
        for name in bookies:
            store.write_identity(BookieIdentity(name, 1, ()), None)

    def write(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, last: EntryId, kept: Callable[[], bool]
    ) -> None:
        """Make a ledger; of an open one some copies beyond the ack quorum are missing, as `kept` draws."""
        self.rules[ledger_id] = rule_of(metadata.custom, self.rule)
        self.store.create_ledger(ledger_id, metadata)
        self._metadata[ledger_id] = metadata
        self.acknowledged[ledger_id] = last
        for entry_id in range(last + 1):
            for at, name in enumerate(holders(metadata, entry_id)):
                if metadata.is_closed or at < metadata.ack_quorum or kept():
                    self.bookies[name].of(ledger_id).entries[entry_id] = entry_of(entry_id)

    def metadata(self, ledger_id: LedgerId) -> LedgerMetadata:
        """Return a ledger's metadata as it is; the judge asks for it at each entry, so it is kept decoded."""
        return self._metadata[ledger_id]

    def updated(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        """Keep what a change has made of a ledger's metadata."""
        self._metadata[ledger_id] = metadata

    def breach(
        self,
        rule: PlacementConfig,
        ensemble: Sequence[BookieId],
        write_quorum: int,
        chosen: Collection[int],
    ) -> str:
        """Return what an ensemble breaks of what a rule enforces, "" for nothing.

        `chosen`: indexes whose bookies were chosen by that rule. Write sets without one of them do not count.
        """
        if rule.group_is_hard:
            outside = [
                ensemble[index]
                for index in chosen
                if self.bookies[ensemble[index]].label != rule.group
            ]
            if outside:
                return f"{outside} are not of the group {rule.group}"
        if not rule.enforce or rule.policy != "rack":
            return ""
        size = len(ensemble)
        for entry_id in range(size):
            indexes = write_set(entry_id, size, write_quorum)
            if not set(indexes) & set(chosen):
                continue
            racks = {
                self.bookies[ensemble[index]].location or DEFAULT_LOCATION for index in indexes
            }
            if len(racks) < min(rule.min_racks_per_write_quorum, write_quorum):
                named = [ensemble[index] for index in indexes]
                return f"the write set {named} is in {sorted(racks)}"
        return ""

    def can_replace(self, ledger_id: LedgerId, gone: BookieId, but: BookieId = "") -> bool:
        """Whether each fragment that names a bookie could name another one, and keep to its ledger's rule.

        Of such a fragment only one member may be gone at a time. `but`: a bookie that is to be lost, too.
        """
        rule, metadata = self.rules[ledger_id], self.metadata(ledger_id)
        if not (rule.enforce or rule.group_is_hard):
            return True
        free = [one.name for one in self.bookies.values() if not one.is_gone_for_good]
        for fragment in metadata.fragments:
            ensemble = fragment.ensemble
            if gone not in ensemble:
                continue
            others = [one for one in ensemble if one != gone]
            if any(one == but or self.bookies[one].is_gone_for_good for one in others):
                return False
            index = ensemble.index(gone)
            ways = [
                (*ensemble[:index], one, *ensemble[index + 1 :])
                for one in free
                if one not in ensemble and one != but
            ]
            if not any(not self.breach(rule, way, metadata.write_quorum, [index]) for way in ways):
                return False
        return True

    def survivors(self, ledger_id: LedgerId, entry_id: EntryId, but: str = "") -> list[BookieId]:
        """Return the bookies that are not gone for good and have an entry that metadata says they have."""
        return [
            name
            for name in holders(self.metadata(ledger_id), entry_id)
            if name != but
            and not self.bookies[name].is_gone_for_good
            and self.bookies[name].holds(ledger_id, entry_id)
        ]


def holders(metadata: LedgerMetadata, entry_id: EntryId) -> list[BookieId]:
    """Return the bookies that metadata names for an entry."""
    ensemble = metadata.fragment_of(entry_id).ensemble
    return [ensemble[one] for one in write_set(entry_id, len(ensemble), metadata.write_quorum)]
