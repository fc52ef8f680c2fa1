"""A cluster whose bookies are lost and come back, whose processes crash, are cut off and lose their sessions.

A seed decides all of it. The processes are the product's own `Healer`s: auditors, workers, elections, locks, leases,
scans and repairs, over a real metadata store in memory. Faults strike for a while; then they end, and everything has to
be whole again within a bound.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import msgspec

from fastbk.autorecovery.lost_bookies import HOLD_DELAYS, LostBookies
from fastbk.autorecovery.state import Settings
from fastbk.meta.placement_record import change_rules
from fastbk.meta.records import Change
from fastbk.meta.sqlite import coordination as record_sessions
from fastbk.model.ledger import Fragment, LedgerMetadata, LedgerState
from fastbk.placement.config import PlacementConfig
from fastbk.placement.rules import DEFAULT_RULE, ClusterRules, custom_rule, narrowed, rule_of
from tests.fixtures.fake_quorum import length_at
from tests.simulation.healing.judge import Judge
from tests.simulation.healing.places import Cluster, SimulatedBookie, SimulatedStore
from tests.simulation.healing.process import SimulatedProcess
from tests.simulation.streams.facts import demand
from tests.simulation.streams.loop import EPOCH_US, Clock, Draws, run_simulated

GROUP = "ssd"
ENFORCED = PlacementConfig(policy="rack", enforce=True)
TRIES = 30
"""To find an ensemble by chance."""
REGISTRATION_S = 10.0
NOTICED_S = 20
RACK_SEEDS = (0, 6)
"""Last digits of the seeds whose bookies are in racks."""
_numbers = itertools.count()


class World:
    """One cluster's life."""

    epoch_ms = EPOCH_US // 1000

    def __init__(self, seed: int, clock: Clock) -> None:
        rng = self.rng = random.Random(seed)
        self._clock = clock
        self._name = f"healing {next(_numbers)}"
        names = [f"b{one}" for one in range(rng.randint(4, 8))]
        count = rng.choice([0, 2, 3, 4])
        bookies = {
            name: SimulatedBookie(
                name,
                f"/rack{number % count}" if count else "",
                GROUP if count and rng.random() < 0.7 else "",
            )
            for number, name in enumerate(names)
        }
        self.store = SimulatedStore(self._name, clock.monotonic, bookies)
        self.cluster = Cluster(self.store, bookies)
        self.judge = Judge(self)
        self.delay_s = rng.choice([15, 40, 120])
        self.grace_s = rng.choice([2.0, 10.0])
        self.limit = rng.choice([0.0, 200.0, 2000.0, 20_000.0])
        self.latency_s = rng.choice([0.001, 0.02])
        self.lost_answers = rng.choice([0.0, 0.001, 0.01])
        self.events = self.copies = 0
        self.is_enforced = False
        self.mends = True
        """Whether copies are moved that lie otherwise than wanted."""
        self.racks = self._draw_racks(seed, names)
        self._is_over = False
        self.processes: list[SimulatedProcess] = []
        self.stores: list[SimulatedStore] = [self.store]
        self._broken: BaseException | None = None

    def _draw_racks(self, seed: int, names: list[str]) -> dict[str, str]:
        """Return the racks of bookies, in two worlds of ten; ledgers were made before anybody said where they are."""
        rng = random.Random(f"racks {seed}")
        if seed % 10 not in RACK_SEEDS:
            return {}
        racks = {name: f"/r{rng.randrange(3)}" for name in names}
        self.is_enforced = rng.random() < 0.7
        for name, location in racks.items():
            self.cluster.bookies[name].location = location
        return racks

    def is_misplaced(self, metadata: LedgerMetadata, ensemble: Sequence[str]) -> bool:
        """Return whether a fragment lies otherwise than its ledger's rule wants it, enforced or not."""
        cluster = self.cluster
        if not any(bookie.location for bookie in cluster.bookies.values()):
            return False
        rule = rule_of(metadata.custom, cluster.rule)
        strict = replace(rule, enforce=True, group_is_hard=rule.group is not None)
        everyone = range(len(ensemble))
        return bool(cluster.breach(strict, ensemble, metadata.write_quorum, everyone))

    @property
    def now_s(self) -> float:
        """Simulated seconds since the world began."""
        return self._clock.monotonic()

    @property
    def alive(self) -> list[SimulatedProcess]:
        """The processes that have not crashed."""
        return [one for one in self.processes if not one.is_dead]

    @staticmethod
    def parse_losses(raw: bytes) -> LostBookies:
        """Return what the record of lost bookies holds."""
        return msgspec.json.decode(raw, type=LostBookies)

    async def run(self) -> None:
        """Live, then heal, then judge."""
        try:
            self._set_rules()
            self._write_ledgers()
            self.store.coordination.set_lost_bookie_delay(self.delay_s)
            self._set_limit()
            for _ in range(self.rng.randint(1, 3)):
                self._start()
            looking = asyncio.get_running_loop().create_task(self._look())
            rng = self.rng
            for _ in range(rng.randint(3, 25)):
                await asyncio.sleep(rng.choice([0.1, 3, 20, 60]))
                self._strike()
            await self._heal()
            looking.cancel()
        finally:
            for one in self.alive:
                one.crash()
            for store in self.stores:
                store.close()

    async def _look(self) -> None:
        while True:
            try:
                self.judge.look()
            except AssertionError as error:
                self.found(error)
            await asyncio.sleep(1.0)

    def found(self, error: BaseException) -> None:
        """Keep the first thing that does not hold: callers in the product may pass by it."""
        self._broken = self._broken or error

    def _check(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _set_rules(self) -> None:
        """Say where bookies are, also while they are down, and what ledgers keep to that have no rule of their own."""
        cluster = self.cluster
        locations = {one.name: one.location for one in cluster.bookies.values() if one.location}
        cluster.rule = self.rng.choice([DEFAULT_RULE, DEFAULT_RULE, ENFORCED])
        if self.racks:
            cluster.rule = ENFORCED if self.is_enforced else DEFAULT_RULE
        change_rules(self.store, lambda _: ClusterRules(cluster.rule, locations))

    def _rule_of_new(self) -> PlacementConfig | None:
        """Return a ledger's own rule; None: it follows the cluster's."""
        if self.racks or self.rng.random() < 0.3:
            return None
        return narrowed(
            self.cluster.rule,
            self.rng.choice(
                [
                    PlacementConfig(policy="rack", min_racks_per_write_quorum=3),
                    ENFORCED,
                    ENFORCED,
                    PlacementConfig(group=GROUP),
                    PlacementConfig(group=GROUP, group_is_hard=True),
                ]
            ),
        )

    def _ensemble(self, rule: PlacementConfig, size: int, write_quorum: int) -> tuple[str, ...]:
        """Return bookies by chance that keep to what a rule enforces; empty if chance finds none."""
        names = sorted(self.cluster.bookies)
        for _ in range(TRIES):
            ensemble = tuple(self.rng.sample(names, size))
            if self.racks or not self.cluster.breach(rule, ensemble, write_quorum, range(size)):
                return ensemble
        return ()

    def _write_ledgers(self) -> None:
        rng = self.rng
        names = sorted(self.cluster.bookies)
        for ledger_id in range(rng.randint(1, 8)):
            size = rng.randint(2, min(5, len(names)))
            write_quorum = rng.randint(2, size)
            firsts = sorted({0, *(rng.randrange(1, 40) for _ in range(rng.randrange(2)))})
            last = rng.randrange(firsts[-1], firsts[-1] + rng.choice([3, 60, 200]))
            wanted = self._rule_of_new()
            rule = self.cluster.rule if wanted is None else wanted
            ensembles = [self._ensemble(rule, size, write_quorum) for _ in firsts]
            if not all(ensembles):
                wanted = PlacementConfig()
                ensembles = [tuple(rng.sample(names, size)) for _ in firsts]
            metadata = LedgerMetadata(
                ensemble_size=size,
                write_quorum=write_quorum,
                ack_quorum=rng.randint(2, write_quorum),
                fragments=tuple(map(Fragment, firsts, ensembles)),
                creation_token=ledger_id,
                custom={} if wanted is None else custom_rule(wanted),
            )
            if rng.random() < 0.8:
                metadata = metadata.closed(last, length_at(last))
            self.cluster.write(ledger_id, metadata, last, lambda: rng.random() < 0.7)

    def _set_limit(self) -> None:
        self.judge.limit_was_set()
        value = msgspec.json.encode(Settings(self.limit, mends_placement=self.mends))
        (found,) = self.store.records.read(["autorecovery/settings"])
        version = None if found is None else found.version
        self.store.records.change([Change("autorecovery/settings", value, version)])

    # --- processes ---------------------------------------------------------------------------------------------

    def _start(self) -> None:
        store = SimulatedStore(self._name, self._clock.monotonic, self.cluster.bookies)
        self.stores.append(store)
        process = SimulatedProcess(self, f"p{len(self.processes)}", store)

        def updated(ledger_id: int, before: LedgerMetadata, after: LedgerMetadata) -> None:
            self.cluster.updated(ledger_id, after)
            try:
                self.judge.updated(process, ledger_id, before, after)
            except AssertionError as error:
                self.found(error)  # nobody waits for the call that it would end

        store.on_update = updated
        self.processes.append(process)

    def process_of(self, sessions: object) -> SimulatedProcess:
        """Return whose sessions these are."""
        (found,) = [one for one in self.processes if one.store.coordination.sessions is sessions]
        return found

    # --- faults ------------------------------------------------------------------------------------------------

    def _strike(self) -> None:
        self._check()
        rng = self.rng
        often = [self._down, self._up, self._crash]
        strikes = [
            *often,
            *often,
            self._lose,
            self._rot,
            self._cut,
            self._unreach,
            self._switch,
            self._change_limit,
        ]
        rng.choice(strikes)()

    def _down(self) -> None:
        up = [one for one in self.cluster.bookies.values() if one.is_up]
        if len(up) > 2:
            self._take_down(self.rng.choice(up))

    def _take_down_once_marked(
        self, ledger_id: int, bookie: SimulatedBookie, until_s: float
    ) -> None:
        """A bookie whose hole is known goes away before it is filled, and has its delay like any other."""
        if self._is_over or not bookie.is_up or self.now_s > until_s:
            return
        if self.store.marks.read(ledger_id).missing:
            self._take_down(bookie)
            return
        again = self._take_down_once_marked
        asyncio.get_running_loop().call_later(0.5, again, ledger_id, bookie, until_s)

    def _take_down(self, bookie: SimulatedBookie) -> None:
        bookie.is_up = False

        def unregister() -> None:
            if not bookie.is_up and bookie.is_registered:
                bookie.is_registered = False
                # A return that no auditor could see cancels no delay.
                if bookie.seen_s >= NOTICED_S or not self.judge.is_counted_lost(bookie.name):
                    bookie.unregistered_s = self.now_s

        asyncio.get_running_loop().call_later(self.rng.uniform(0, REGISTRATION_S), unregister)

    def _up(self) -> None:
        down = [
            one
            for one in self.cluster.bookies.values()
            if not one.is_up and not one.is_gone_for_good
        ]
        if down:
            self._bring_up(self.rng.choice(down))

    def _bring_up(self, bookie: SimulatedBookie) -> None:
        if not bookie.is_registered and self.now_s - bookie.unregistered_s >= self.delay_s:
            bookie.due_until_s = self.now_s + 120.0
        if not bookie.is_registered:
            bookie.seen_s = 0
        bookie.is_up = bookie.is_registered = True

    def _lose(self) -> None:
        """Lose a bookie for good, if every entry has another copy, and enough bookies are left."""
        cluster = self.cluster
        left = [one for one in cluster.bookies.values() if not one.is_gone_for_good]
        bookie = self.rng.choice(left)
        sizes = [cluster.metadata(one).ensemble_size for one in cluster.acknowledged] or [2]
        if len(left) - 1 < max(sizes):
            return
        for ledger_id, last in cluster.acknowledged.items():
            metadata = cluster.metadata(ledger_id)
            quorum = 1 if metadata.is_closed else metadata.ack_quorum
            for entry_id in range(last + 1):
                if len(cluster.survivors(ledger_id, entry_id, bookie.name)) < min(1, quorum):
                    return
            if not metadata.is_closed and not self._is_recoverable(ledger_id, bookie.name):
                return
            if not self.racks and not self._is_replaceable(ledger_id, bookie.name):
                return
        bookie.is_gone_for_good = True
        self._take_down(bookie)

    def _is_replaceable(self, ledger_id: int, name: str) -> bool:
        """Whether all that is gone could be replaced as the ledger's rule enforces it, without this bookie, too."""
        cluster = self.cluster
        named = {one for each in cluster.metadata(ledger_id).fragments for one in each.ensemble}
        gone = {one for one in named if cluster.bookies[one].is_gone_for_good}
        return all(cluster.can_replace(ledger_id, one, name) for one in {*gone, name})

    def _is_recoverable(self, ledger_id: int, name: str) -> bool:
        """Whether each write set of an open ledger keeps enough bookies for its recovery: all but Qa - 1."""
        metadata = self.cluster.metadata(ledger_id)
        gone = [
            one
            for one in metadata.fragments[-1].ensemble
            if one == name or self.cluster.bookies[one].is_gone_for_good
        ]
        return len(gone) < metadata.ack_quorum and metadata.state is not LedgerState.CLOSED

    def _rot(self) -> None:
        """Some entries of one copy are gone, if each has another one."""
        cluster, rng = self.cluster, self.rng
        ledger_id = rng.choice(list(cluster.acknowledged))
        metadata = cluster.metadata(ledger_id)
        if not metadata.is_closed or cluster.store.coordination.worker_of(ledger_id) is not None:
            return
        name = rng.choice(rng.choice(metadata.fragments).ensemble)
        entries = cluster.bookies[name].of(ledger_id).entries
        for entry_id in list(entries):
            if rng.random() < 0.2 and cluster.survivors(ledger_id, entry_id, name):
                del entries[entry_id]
        if rng.random() < 0.5:
            self._take_down_once_marked(ledger_id, cluster.bookies[name], self.now_s + 300.0)

    def _crash(self) -> None:
        if self.alive:
            self.rng.choice(self.alive).crash()
        if len(self.alive) < 3 and self.rng.random() < 0.8:
            self._start()

    def _cut(self) -> None:
        """Cut a process off from metadata, rather one that copies: it may go on in a session that has ended."""
        copying = [one for one in self.alive if one.healer.worker.active]
        if one_of := copying or self.alive:
            self.rng.choice(one_of).cut(self.rng.choice([1, 8, 15, 60]))

    def _unreach(self) -> None:
        if self.alive:
            process = self.rng.choice(self.alive)
            name = self.rng.choice(list(self.cluster.bookies))
            process.unreached[name] = self.now_s + self.rng.choice([2, 30])

    def _switch(self) -> None:
        coordination = self.store.coordination
        self.rng.choice([coordination.enable, coordination.disable])()

    def _change_limit(self) -> None:
        self.limit = self.rng.choice([200.0, 2000.0, 20_000.0])
        self._set_limit()

    # --- the end -----------------------------------------------------------------------------------------------

    async def _heal(self) -> None:
        """End all faults, and wait until everything is whole."""
        self._is_over = True
        self.store.coordination.enable()
        for bookie in self.cluster.bookies.values():
            if not bookie.is_gone_for_good and not bookie.is_up:
                self._bring_up(bookie)
        if not self.alive:
            self._start()
        self.lost_answers = 0.0
        end_s = self.now_s + HOLD_DELAYS * self.delay_s + 2000.0
        while why := self.judge.why_not_whole():
            self._check()
            demand(self.now_s < end_s, f"it does not heal: {why}")
            await asyncio.sleep(5.0)
        self.mends = False  # where no rule is enforced copies could move for long
        self._set_limit()
        quiet_ms = self.epoch_ms + int(self.now_s * 1000)
        end_s = self.now_s + 1500.0
        while why := self.judge.why_not_checked(quiet_ms):
            self._check()
            demand(self.now_s < end_s, f"it does not come to rest: {why}")
            await asyncio.sleep(5.0)
        end_s = self.now_s + 30.0  # what is under way ends, and changes nothing any more
        while self.now_s < end_s:
            await asyncio.sleep(5.0)
        self._check()
        self.judge.at_the_end()


class _LeaseThread:
    """In place of the thread that renews a session."""

    def __init__(self, world: World, target: Any, args: tuple[Any, ...], **_: object) -> None:
        self._world = world
        self._sessions = target.__self__
        self._session = args[0]

    def start(self) -> None:
        """Renew in simulated time."""
        sessions, session = self._sessions, self._session

        def renew() -> None:
            sessions._renew(session)
            sessions._remove_ended()
            sessions._on_renewed()

        if sessions is self._world.store.coordination.sessions:
            return
        self._world.process_of(sessions).begin_lease(renew, session.ended.is_set)


class _Threading:
    """In place of `threading` where a session begins its thread."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)

    def Thread(self, **options: Any) -> _LeaseThread:
        return _LeaseThread(self._world, **options)


def live_world(seed: int) -> World:
    """Live the world of a seed; return it. Raises Broken, Stuck, or whatever else should not be."""
    worlds: list[World] = []

    async def main(clock: Clock) -> None:
        with ExitStack() as stack:
            for module in ("autorecovery.state", "meta.replica_marks", "client.metadata_calls"):
                stack.enter_context(patch(f"fastbk.{module}.time", clock))
            for module in ("auditor", "healer", "worker"):
                stack.enter_context(patch(f"fastbk.autorecovery.{module}.random", _Draws(seed)))
            # Entries here have a few bytes, so what a list counts for is as much less.
            stack.enter_context(patch("fastbk.autorecovery.auditor.LIST_BYTES", 8))
            world = World(seed, clock)
            worlds.append(world)
            stack.enter_context(patch.object(record_sessions, "uuid", _Ids(seed)))
            stack.enter_context(patch.object(record_sessions, "threading", _Threading(world)))
            await world.run()

    run_simulated(main, seed)
    return worlds[0]


class _Draws(Draws):
    def randrange(self, end: int) -> int:
        return self._rng.randrange(end)


class _Ids:
    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def uuid4(self) -> Any:
        class Id:
            hex = self._rng.randbytes(16).hex()

        return Id
