"""What must hold of a cluster that heals itself, at every step and at the end.

INV-H1  one auditor at a time is elected
INV-H2  who changes a ledger's metadata holds its lock, unless its session has ended; no lock stays behind
INV-H3  nothing is copied to a new bookie before the delay of a lost one is over, and a time of loss never moves
INV-H5  the rates that workers may use add up to the limit at most
INV-P4  no change loses a ledger's rule; who is chosen keeps to what it enforces, and in the end all do
INV-P6  a move leaves no entry with fewer copies; in the end nothing lies in one rack that can lie in two
P7      metadata names no bookie for entries that it does not hold; as it is closed, at most Qw - Qa of them
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastbk.autorecovery.lost_bookies import LostBookies
from fastbk.autorecovery.rate_leases import ANNOUNCE_INTERVAL_S, LEASE_S
from fastbk.meta.health_records import read_placement_faults
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.placement.rules import GROUP_KEY, PLACEMENT_KEY
from tests.simulation.healing.places import holders
from tests.simulation.streams.facts import demand

if TYPE_CHECKING:
    from fastbk.meta.replica_marks import LedgerMark
    from tests.simulation.healing.process import SimulatedProcess
    from tests.simulation.healing.world import World

SESSION_DOUBT_S = 30.0
"""So long after a cut a process may not know yet that its session has ended."""
COPY_GOES_ON_S = 120.0
"""A copy that was begun while a bookie was due ends, though it has returned."""


class Judge:
    """Sees every effect of every process."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._limits: list[tuple[float, float]] = []
        self._losses: dict[BookieId, int] = {}
        self._overtaken_s: dict[LedgerId, float] = {}
        self.double_copies = 0
        """Copies and changes by processes whose sessions had ended."""

    def limit_was_set(self) -> None:
        """Note the limit on the copy rate: an auditor may read one that holds for a moment only."""
        self._limits.append((self._world.now_s, self._world.limit))

    # --- effects -----------------------------------------------------------------------------------------------

    def copied(
        self, process: SimulatedProcess, ledger_id: LedgerId, target: BookieId, entry_id: EntryId
    ) -> None:
        """An entry arrives at a bookie."""
        world, cluster = self._world, self._world.cluster
        world.copies += 1
        metadata = cluster.metadata(ledger_id)
        if metadata.is_closed and entry_id > metadata.last_entry_id:
            return  # of a recovery that another one overtook
        named = metadata.fragment_of(entry_id).ensemble
        if target in named:
            return
        was_overtaken = world.now_s - self._overtaken_s.get(ledger_id, -math.inf) < COPY_GOES_ON_S
        if was_overtaken or world.now_s - process.lost_session_s < SESSION_DOUBT_S:
            self.double_copies += 1  # of two processes one went on in a session that had ended
            return
        demand(
            any(self._is_due(cluster.bookies[one].name) for one in named)
            or world.is_misplaced(metadata, named),
            f"H3: {process.name} copies entry {entry_id} of ledger {ledger_id} to {target}, and no bookie of"
            f" {named} is due",
        )

    def _is_due(self, name: BookieId) -> bool:
        world = self._world
        bookie = world.cluster.bookies[name]
        if not bookie.is_registered and world.now_s - bookie.unregistered_s >= world.delay_s - 0.01:
            return True
        return world.now_s < bookie.due_until_s

    def updated(
        self,
        process: SimulatedProcess,
        ledger_id: LedgerId,
        before: LedgerMetadata,
        after: LedgerMetadata,
    ) -> None:
        """A ledger's metadata changed."""
        world, cluster = self._world, self._world.cluster
        holder = world.store.coordination.worker_of(ledger_id)
        if holder != process.name:
            demand(
                world.now_s - process.lost_session_s < SESSION_DOUBT_S,
                f"H2: {process.name} changes ledger {ledger_id}, whose lock {holder} holds",
            )
            self.double_copies += 1
            self._overtaken_s[ledger_id] = world.now_s
        self._judge_places(process, ledger_id, before, after)
        last = cluster.acknowledged[ledger_id]
        demand(
            not after.is_closed or after.last_entry_id >= last,
            f"ledger {ledger_id} was closed at {after.last_entry_id}, and {last} was acknowledged",
        )
        for entry_id in range(last + 1):
            old = holders(before, entry_id)
            named = holders(after, entry_id)
            lacking = [
                one
                for one in named
                if one not in old and not cluster.bookies[one].holds(ledger_id, entry_id)
            ]
            if before.is_closed:
                kept = sum(cluster.bookies[one].holds(ledger_id, entry_id) for one in old)
                left = sum(cluster.bookies[one].holds(ledger_id, entry_id) for one in named)
                demand(
                    left >= kept,
                    f"INV-P6: entry {entry_id} of ledger {ledger_id} had {kept} copies and has {left}",
                )
            # A recovery closes a ledger when Qa have an entry, as a writer goes on then; what others lack is marked.
            allowed = 0 if before.is_closed else len(named) - after.ack_quorum
            demand(
                len(lacking) <= allowed,
                f"P7: metadata names {lacking} for entry {entry_id} of ledger {ledger_id}, which they do not hold",
            )

    def _judge_places(
        self,
        process: SimulatedProcess,
        ledger_id: LedgerId,
        before: LedgerMetadata,
        after: LedgerMetadata,
    ) -> None:
        for key in (PLACEMENT_KEY, GROUP_KEY):
            demand(
                after.custom.get(key) == before.custom.get(key),
                f"P4: {process.name} changes the rule of ledger {ledger_id}: {before.custom} -> {after.custom}",
            )
        if self._world.racks:
            return  # copies are moved there, one after the other, until all are well
        for fragment in after.fragments:
            old = before.fragment_of(fragment.first_entry_id).ensemble
            chosen = [index for index, one in enumerate(fragment.ensemble) if one != old[index]]
            breach = self._world.cluster.breach(
                self._world.cluster.rules[ledger_id],
                fragment.ensemble,
                after.write_quorum,
                chosen,
            )
            demand(
                not breach,
                f"P4: {process.name} changes ledger {ledger_id} from entry {fragment.first_entry_id}"
                f" from {old} to {fragment.ensemble}, and {breach}",
            )

    # --- every second ------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Judge what holds at any moment."""
        self._look_at_rates()
        self._look_at_losses()
        if any(one.healer.auditor is not None and not one.is_cut for one in self._world.alive):
            for bookie in self._world.cluster.bookies.values():
                bookie.seen_s += bookie.is_registered
        elected = [
            one
            for one in self._world.alive
            if (vote := one.healer._vote) is not None
            and self._world.now_s - one.lost_session_s > SESSION_DOUBT_S
            and vote.is_elected()
        ]
        demand(len(elected) <= 1, f"H1: {[one.name for one in elected]} are elected")

    def _look_at_rates(self) -> None:
        world = self._world
        now_s = world.now_s
        self.limit_was_set()
        since_s = now_s - LEASE_S - 3 * ANNOUNCE_INTERVAL_S - 2
        self._limits = [one for one in self._limits if one[0] >= since_s]
        limits = [one for _, one in self._limits]
        used = sum(
            one.healer.worker.rate.bytes_per_s
            for one in world.alive
            if now_s < one.healer.worker.rate.end_s
        )
        if 0 not in limits:
            demand(
                not math.isinf(used) and used <= max(limits) * 1.0001,
                f"H5: workers may use {used:.0f} bytes a second of {max(limits):.0f}",
            )

    def is_counted_lost(self, name: BookieId) -> bool:
        """Return whether metadata holds a time of loss of a bookie."""
        return name in self._stored_losses().lost

    def _stored_losses(self) -> LostBookies:
        (found,) = self._world.store.records.read(["autorecovery/lost_bookies"])
        return LostBookies() if found is None else self._world.parse_losses(found.value)

    def _look_at_losses(self) -> None:
        stored = self._stored_losses()
        for name, lost_ms in self._losses.items():
            bookie = self._world.cluster.bookies[name]
            now = stored.lost.get(name)
            if (
                not bookie.is_registered
                and bookie.unregistered_s * 1000 <= lost_ms - self._world.epoch_ms
            ):
                demand(
                    now is not None and now.lost_ms == lost_ms,
                    f"H3: the loss of {name} was at {lost_ms}, and is {now} now",
                )
        self._losses = {name: one.lost_ms for name, one in stored.lost.items()}
        for name, one in self._world.cluster.bookies.items():
            if self._is_due(name) and not one.is_registered:
                one.due_until_s = self._world.now_s + COPY_GOES_ON_S

    # --- the end -----------------------------------------------------------------------------------------------

    def why_not_whole(self) -> str:
        """Return what is not healed yet, empty if all is."""
        world, cluster = self._world, self._world.cluster
        for ledger_id, last in cluster.acknowledged.items():
            metadata = cluster.metadata(ledger_id)
            for at, fragment in enumerate(metadata.fragments):
                gone = [one for one in fragment.ensemble if cluster.bookies[one].is_gone_for_good]
                if gone and world.is_enforced and not self._has_place(metadata, fragment.ensemble):
                    return ""  # parked: its rule wants two racks, and there are no bookies for that
                if gone:
                    return f"ledger {ledger_id} still names {gone}"
                is_written = at == len(metadata.fragments) - 1 and not metadata.is_closed
                if is_written:
                    continue
                end = (
                    last
                    if at == len(metadata.fragments) - 1
                    else metadata.fragments[at + 1].first_entry_id - 1
                )
                for entry_id in range(fragment.first_entry_id, end + 1):
                    lacking = [
                        one
                        for one in holders(metadata, entry_id)
                        if not cluster.bookies[one].holds(ledger_id, entry_id)
                    ]
                    if lacking:
                        return f"entry {entry_id} of ledger {ledger_id} is not on {lacking}"
                if end >= fragment.first_entry_id and self._could_lie_better(
                    metadata, fragment.ensemble
                ):
                    return f"ledger {ledger_id} lies in one rack: {fragment.ensemble}"
        marks = world.store.marks.list_folders(world.store.marks.folders())
        marked = [one for one in marks if not self._is_of_open_part(one)]
        return f"marks {marked} are left" if marked else ""

    def _has_place(self, metadata: LedgerMetadata, ensemble: Sequence[BookieId]) -> bool:
        """Return whether bookies can take the places of those that are gone without a write set in one rack."""
        bookies = self._world.cluster.bookies
        gone = [index for index, one in enumerate(ensemble) if bookies[one].is_gone_for_good]
        free = [name for name, one in bookies.items() if one.is_up and name not in ensemble]
        for chosen in itertools.permutations(free, len(gone)):
            changed = list(ensemble)
            for index, name in zip(gone, chosen, strict=True):
                changed[index] = name
            if not self._world.is_misplaced(metadata, changed):
                return True
        return False

    def _could_lie_better(self, metadata: LedgerMetadata, ensemble: Sequence[BookieId]) -> bool:
        """Return whether a copy of a misplaced fragment of one write set has somewhere to go."""
        world = self._world
        if (
            not world.racks
            or not metadata.is_closed
            or len(ensemble) > metadata.write_quorum
            or not world.is_misplaced(metadata, ensemble)
        ):
            return False
        return any(
            bookie.is_up and world.racks[name] != world.racks[ensemble[0]]
            for name, bookie in world.cluster.bookies.items()
        )

    def _is_of_open_part(self, mark: LedgerMark) -> bool:
        """Whether a mark is about a fragment that a writer may still write: it stays until the ledger is closed."""
        metadata = self._world.cluster.metadata(mark.ledger_id)
        first = metadata.fragments[-1].first_entry_id
        return not metadata.is_closed and all(one.first_entry_id >= first for one in mark.missing)

    def why_not_checked(self, since_ms: int) -> str:
        """Return what has to end yet, empty if nothing does: a round over all ledgers since then, and moves."""
        found = read_placement_faults(self._world.store)
        began_ms = -1 if found is None else found.ended_ms
        if began_ms <= since_ms:
            return f"no round over all ledgers ended since {since_ms}"
        locks = list(self._world.store.coordination.locks())
        return f"H2: locks {locks} are held" if locks else ""

    def _judge_audit(self) -> None:
        """No ledger is against an enforced rule, by the judge here and by the auditor's last round.

        Where ledgers were made before their rule there may be no bookies to mend all of them with.
        """
        if self._world.racks:
            return
        cluster = self._world.cluster
        for ledger_id, rule in cluster.rules.items():
            metadata = cluster.metadata(ledger_id)
            for fragment in metadata.fragments:
                everyone = range(len(fragment.ensemble))
                breach = cluster.breach(rule, fragment.ensemble, metadata.write_quorum, everyone)
                demand(not breach, f"P4: ledger {ledger_id} at the end: {breach}")
        found = read_placement_faults(self._world.store)
        assert found is not None
        demand(
            not found.enforced,
            f"the auditor found {found.first[: found.enforced]} against an enforced rule: {found.reason}",
        )

    def at_the_end(self) -> None:
        """Judge a cluster that had time to heal."""
        world, cluster = self._world, self._world.cluster
        self._judge_audit()
        for ledger_id, last in cluster.acknowledged.items():
            for entry_id in range(last + 1):
                demand(
                    bool(cluster.survivors(ledger_id, entry_id)),
                    f"entry {entry_id} of ledger {ledger_id} was acknowledged, and is nowhere",
                )
        # with a mark that has to wait
        busy = {one.name for one in world.alive if one.healer.worker.active}
        locks = [one for one in world.store.coordination.locks() if one[1] not in busy]
        demand(not locks, f"H2: locks {locks} were left behind")
