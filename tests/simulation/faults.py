"""Does what a plan says will go wrong, never more than the protocol promises to survive.

The *fault atlas*: at every moment each entry that has copies keeps a good one on a bookie that is not lost; at most
Qa - 1 bookies lose their data in one world, or where ack sets span racks as many as contain none; a liar counts as one
of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fastbk.model.ledger import LedgerState
from tests.simulation.bookie import Bookie
from tests.simulation.client import Client
from tests.simulation.kernel import STALE, Node
from tests.simulation.plan import Item

if TYPE_CHECKING:
    from tests.simulation.world import World

SLOW_SYNC_S = 0.2
BUSY = 0.5


class Faults:
    """All kinds of faults; each method is a kind of an item.

    Attributes:
        struck: kinds that really happened, and how often.
        lost: bookies that lost their data, or that lie.
        is_healed: nothing goes wrong any more.
        wiped: those of them that lost their data.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.kernel = world.kernel
        self.rng = world.kernel.rng("faults")
        self.node = Node(world.kernel, "f")
        self.struck: dict[str, int] = {}
        self.lost: set[str] = set()
        self.wiped: list[str] = []
        self.is_healed = False
        self._blocked: list[tuple[Node, Node]] = []

    def schedule(self, items: list[Item]) -> None:
        for item in items:
            self.kernel.after(item.at_s, self.node, self.strike, item)

    def strike(self, item: Item) -> object:
        if self.is_healed or getattr(self, item.kind)(item) is STALE:
            return STALE
        self.struck[item.kind] = self.struck.get(item.kind, 0) + 1
        if self.kernel.lines is not None:
            self.kernel.note(self.node, str(item))
        return None

    def _bookie(self, item: Item) -> Bookie:
        return self.world.bookies[item.target]

    def _later(self, delay_s: float, handler: object, *arguments: object) -> None:
        self.kernel.after(delay_s, self.node, self.over, handler, arguments)

    def over(self, handler: object, arguments: tuple[object, ...]) -> object:
        assert callable(handler)
        return handler(*arguments)

    # --- links -------------------------------------------------------------------------------------------------

    def delay(self, item: Item) -> None:
        self._link(item).delay_s *= item.value

    def cut(self, item: Item) -> None:
        """Frames cut their connections."""
        self._set_faults(item, cut=item.value)

    def lose(self, item: Item) -> None:
        """Frames get lost and all behind them."""
        self._set_faults(item, lose=item.value)

    def duplicate(self, item: Item) -> None:
        self._set_faults(item, duplicate=item.value)

    def reorder(self, item: Item) -> None:
        self._set_faults(item, reorders=True)

    def _link(self, item: Item):  # type: ignore[no-untyped-def]
        world = self.world
        return world.network.link(world.nodes[item.target], world.nodes[item.other])

    def _set_faults(self, item: Item, **changed: float) -> None:
        link = self._link(item)
        now = {
            "cut": link.cut,
            "lose": link.lose,
            "duplicate": link.duplicate,
            "reorders": link.reorders,
        }
        link.set_faults(**{**now, **changed})

    def _block(self, source: Node, target: Node, loses: bool, span_s: float, shuffle: bool) -> None:
        self.world.network.block(source, target, loses)
        pair = (source, target)
        self._blocked.append(pair)

        def release() -> object:
            if pair not in self._blocked:
                return STALE
            self._blocked.remove(pair)
            self.world.network.unblock(source, target, self.rng if shuffle else None)
            return None

        self._later(span_s, release)

    def clog(self, item: Item) -> None:
        """A link holds everything, then lets it all go in random order of connections."""
        nodes = self.world.nodes
        self._block(nodes[item.target], nodes[item.other], False, item.value, item.more < 0.7)

    def block(self, item: Item) -> None:
        """One direction is dead."""
        nodes = self.world.nodes
        self._block(nodes[item.target], nodes[item.other], bool(item.more), item.value, False)

    def isolate(self, item: Item) -> None:
        """One node is cut off from all."""
        self._separate({item.target}, item)

    def split(self, item: Item) -> None:
        """Two halves do not hear each other."""
        self._separate(set(item.target.split()), item)

    def _separate(self, side: set[str], item: Item) -> None:
        for source, one in self.world.nodes.items():
            for target, other in self.world.nodes.items():
                if (source in side) != (target in side):
                    self._block(one, other, bool(item.more), item.value, False)

    # --- bookies -----------------------------------------------------------------------------------------------

    def kill(self, item: Item) -> object:
        return self._crash(item, is_power_cut=False)

    def power_cut(self, item: Item) -> object:
        """The machine goes dark."""
        return self._crash(item, is_power_cut=True)

    def _crash(self, item: Item, *, is_power_cut: bool) -> object:
        bookie = self._bookie(item)
        if not bookie.is_up:
            return STALE
        # What was not synced: all lost, all kept, or any part of it.
        keep = 0.0 if item.more < 0.4 else 1.0 if item.more > 0.9 else item.more
        bookie.crash(keep, is_power_cut)
        self._later(min(item.value, 3.0), bookie.start)
        return None

    def wipe(self, item: Item) -> object:
        """A bookie loses its data; later it may be forced to come back."""
        bookie = self._bookie(item)
        if not bookie.is_up or not self._may_lose(bookie):
            return STALE
        self.lost.add(bookie.name)
        self.wiped.append(bookie.name)
        self.world.checks.has_losses = True
        bookie.wipe()
        if item.more < 0.8:
            self._later(min(item.value, 2.0), bookie.force_start)
        return None

    def _may_lose(self, bookie: Bookie) -> bool:
        if bookie.name in self.lost or not self._is_survivable({*self.lost, bookie.name}):
            return False
        for ledger_id, entries in bookie.entries.items():
            for entry_id in entries:
                if (ledger_id, entry_id) in bookie.answers.damaged:
                    continue
                copies = self._copies(ledger_id, entry_id, bookie)
                if copies and not any(copies):
                    return False
        return True

    def _is_survivable(self, lost: set[str]) -> bool:
        """Return whether no entry can have been acknowledged by these bookies alone."""
        plan, racks = self.world.plan, self.world.racks
        if len(lost) < plan.ack_quorum:
            return True
        # What nobody knows counts as a rack of its own, for recoveries.
        return bool(racks.ack_racks) and not plan.forgets and not racks.may_span(lost)

    def lose_rack(self, item: Item) -> object:
        """All bookies of a rack lose their data, as far as entries that were not acknowledged allow it."""
        struck = [
            self.wipe(replace(item, target=name))
            for name in self.world.racks.in_rack_of(item.target)
        ]
        return None if any(one is not STALE for one in struck) else STALE

    def _copies(self, ledger_id: int, entry_id: int, but: Bookie) -> list[bool]:
        """Return for each copy on another bookie that readers will ask whether it is good."""
        mask = self.world.checks.facts[ledger_id].write_mask(entry_id)
        return [
            (ledger_id, entry_id) not in other.answers.damaged and not other.is_liar
            for other in self.world.bookies.values()
            if other is not but
            and mask >> other.index & 1
            and entry_id in other.entries.get(ledger_id, ())
        ]

    def pause(self, item: Item) -> object:
        """A process is stopped for a while and goes on as if nothing had been."""
        node = self.world.nodes[item.target]
        # A shorter pause inside a longer one ends nothing: what was put off is put off to the end of the longer.
        node.paused_until_s = max(node.paused_until_s, self.kernel.now_s + item.value)
        return None

    def slow_disk(self, item: Item) -> None:
        bookie = self._bookie(item)
        bookie.sync_s = SLOW_SYNC_S * item.more
        bookie.answers.delay_s = SLOW_SYNC_S * item.more
        self._later(item.value, self._quick_again, bookie)

    def _quick_again(self, bookie: Bookie) -> None:
        bookie.sync_s = 0.0005
        bookie.answers.delay_s = 0.0

    def fail_sync(self, item: Item) -> object:
        bookie = self._bookie(item)
        if not bookie.is_up:
            return STALE
        bookie.fails_sync = True
        return None

    def corrupt(self, item: Item) -> object:
        """Copies rot, as many as leave a good one of each entry elsewhere."""
        bookie = self._bookie(item)
        struck = False
        for ledger_id, entries in bookie.entries.items():
            facts = self.world.checks.facts[ledger_id]
            if facts.metadata.state is LedgerState.IN_RECOVERY:
                # Its recoverer names other bookies only when it closes: which copies will count is not known yet.
                continue
            # The highest entry of a ledger that is not closed answers fences: damaged, it covers nothing.
            highest = -1 if facts.metadata.is_closed else max(entries, default=-1)
            for entry_id in entries:
                if entry_id >= facts.promised or entry_id == highest:
                    continue
                if self.rng.random() < item.more and any(self._copies(ledger_id, entry_id, bookie)):
                    # Damage that the bookie's own checksums pass conflicts with whoever writes the entry again: a
                    # ledger that is still to be recovered, or repaired, could not be.
                    is_final = facts.metadata.is_closed and "wipes" not in self.world.plan.classes
                    notices = self.rng.random() < 0.5 or not is_final
                    bookie.answers.damaged.setdefault((ledger_id, entry_id), notices)
                    struck = True
        return None if struck else STALE

    def expire(self, item: Item) -> None:
        """The store ends a bookie's session although it lives."""
        store, name = self.world.store, item.target
        store.expired.add(name)
        store.session_ended(name)

        def back() -> object:
            store.expired.discard(name)
            bookie = self.world.bookies[name]
            if bookie.is_up:
                store.register(name, bookie.incarnation, bookie.takes_adds)
            return None

        self._later(item.value, back)

    def read_only(self, item: Item) -> None:
        """A bookie takes no normal adds for a while."""
        bookie = self._bookie(item)
        bookie.set_writable(False)
        self._later(item.value, bookie.set_writable, True)

    def make_busy(self, item: Item) -> None:
        """A bookie refuses reads, or fails them, for a while."""
        bookie = self._bookie(item)
        if item.more < 0.5:
            bookie.busy = BUSY
        else:
            bookie.answers.fails = BUSY
        self._later(item.value, self._calm_again, bookie)

    def _calm_again(self, bookie: Bookie) -> None:
        bookie.busy = bookie.answers.fails = 0.0

    def make_liar(self, item: Item) -> object:
        """A bookie says what it likes; the checks know."""
        bookie = self._bookie(item)
        if not self._is_survivable({*self.lost, bookie.name}):
            return STALE
        self.lost.add(bookie.name)
        bookie.is_liar = True
        self.world.checks.liars |= 1 << bookie.index
        if item.other == "drops_after_ack":
            bookie.drops_after_ack = True
        else:
            setattr(bookie.answers, item.other, item.value)
        return None

    # --- clients and metadata ----------------------------------------------------------------------------------

    def crash_client(self, item: Item) -> object:
        client = self.world.nodes[item.target]
        assert isinstance(client, Client)
        if not client.is_alive:
            return STALE
        self.world.checks.crashed(client.name)
        client.crash()
        return None

    def metadata_down(self, item: Item) -> None:
        store = self.world.store
        store.is_down = True
        self._later(item.value, setattr, store, "is_down", False)

    # --- the end -----------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Everything works again, but for data that is lost."""
        self.is_healed = True
        world = self.world
        for link in world.network.links.values():
            link.set_faults(0.0, 0.0, 0.0, False)
            link.delay_s = 0.0002
        for source, target in self._blocked:
            world.network.unblock(source, target, None)
        self._blocked.clear()
        world.racks.reset()
        world.store.is_down = False
        world.store.expired.clear()
        for bookie in world.bookies.values():
            self._quick_again(bookie)
            self._calm_again(bookie)
            bookie.fails_sync = False
            bookie.set_writable(True)
            if bookie.is_wiped:
                bookie.force_start()
            else:
                bookie.start()
        world.store.tell_all()
