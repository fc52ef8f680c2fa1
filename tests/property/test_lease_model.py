"""Leases in a small world: several candidates with clocks of their own, and metadata that is slow and loses answers.

Each node runs the real `Lease` on an event loop of its own, whose time is the node's clock; the world steps the loops.
A frozen node is not stepped. The judge looks at every change of the record and at every moment (INV-K1 to INV-K3).
Planted mistakes show that it finds them.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from fastbk.coordination import lease as lease_module
from fastbk.coordination import tenure
from fastbk.coordination.lease import Lease
from fastbk.coordination.records import LeaseRecord, check_change, get_record
from fastbk.errors import LeaseLost, MetadataConflict, MetadataUnavailable, StorageError
from fastbk.formats import LEVEL_MAX
from fastbk.meta.records import Change, VersionedRecord

DURATION_S = 1.0
TICK_S = 0.01
TIMEOUT_S = 0.6
RATES = (0.91, 1.0, 1.09)
"""How fast clocks run: a holder believes for 0.8 of the duration, so a fifth between two of them is allowed."""


class Broken(AssertionError):
    """The judge found a broken invariant."""


class NodeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is its node's clock."""

    clock: Callable[[], float]

    def time(self) -> float:
        return self.clock()

    def is_due(self) -> bool:
        timers = self._scheduled  # type: ignore[attr-defined]
        return bool(self._ready) or bool(timers and timers[0]._when <= self.time())  # type: ignore[attr-defined]

    def step(self) -> None:
        self.call_soon(self.stop)
        self.run_forever()


@dataclass
class Faults:
    """What happens to this world's requests and nodes."""

    slow: float = 0.0
    """Share of requests that take up to half a second each way."""
    lost: float = 0.0
    """Share of answers that are lost; half of these requests happen late, if they still can."""
    freezes: float = 0.0
    """Share of nodes that are frozen in each half second, for up to three."""
    cuts: float = 0.0
    """Share of nodes that are cut off from metadata in each half second, for up to three."""
    clocks_stop: bool = False
    """Whether the clock of a frozen node stands still, as in a machine that is suspended."""


@dataclass
class World:
    random: random.Random
    faults: Faults
    now_s: float = 0.0
    records: dict[str, VersionedRecord] = field(default_factory=dict)
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    versions: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    nodes: list[Node] = field(default_factory=list)
    beat_at_s: float = 0.0
    grants: int = 0
    takeovers: int = 0
    acts: list[tuple[float, str, int]] = field(default_factory=list)
    highest: int = 0
    refused: int = 0
    _order: Iterator[int] = field(default_factory=itertools.count)

    def at(self, after_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now_s + after_s, next(self._order), act))

    def delay_s(self) -> float:
        is_slow = self.random.random() < self.faults.slow
        return self.random.uniform(0.1, 0.5) if is_slow else self.random.uniform(0.001, 0.03)

    # --- metadata ---

    def change(self, changes: tuple[Change, ...]) -> list[int]:
        for change in changes:
            known = self.records.get(change.path)
            if (None if known is None else known.version) != change.version:
                raise MetadataConflict(change.path)
        versions = []
        for change in changes:
            version = next(self.versions)
            assert change.value is not None
            if change.path.endswith("/leader"):
                self._judge_change(change)
            self.records[change.path] = VersionedRecord(change.value, version)
            versions.append(version)
        return versions

    def _judge_change(self, change: Change) -> None:
        assert change.value is not None
        known, after = self.records.get(change.path), get_record(change.value)
        assert isinstance(after, LeaseRecord)
        if known is None:
            self.grants += 1
        else:
            before = get_record(known.value)
            assert isinstance(before, LeaseRecord)
            try:
                check_change(before, after)
            except StorageError as error:
                raise Broken(str(error)) from error
            if after.key not in ("", before.key):
                self.grants += 1
                if before.key:
                    self.takeovers += 1
                    still_s = self.now_s - self.beat_at_s
                    if still_s < DURATION_S / max(RATES) - 2 * TICK_S:
                        raise Broken(f"INV-K2: taken after {still_s:.3f} s")
        self.beat_at_s = self.now_s

    # --- time ---

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += TICK_S
            while self.events and self.events[0][0] <= self.now_s:
                heapq.heappop(self.events)[2]()
            for node in self.nodes:
                node.tick()
            if not self.faults.clocks_stop:
                held = [node.name for node in self.nodes if not node.is_frozen and node.believes()]
                if len(held) > 1:
                    raise Broken(f"INV-K3: {held} hold it at {self.now_s:.2f}")

    def write(self, name: str, token: int) -> None:
        """A resource that compares tokens."""
        if token < self.highest:
            self.refused += 1
            return
        self.highest = token
        self.acts.append((self.now_s, name, token))


class Records:
    """`RecordCalls` of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def _call(self, act: Callable[[], Any]) -> Any:
        world, loop = self._node.world, asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def happens() -> None:
            try:
                result, error = act(), None
            except MetadataConflict as conflict:
                result, error = None, conflict
            if world.random.random() >= world.faults.lost:
                world.at(world.delay_s(), lambda: arrives(result, error))

        def arrives(result: Any, error: Exception | None) -> None:
            if not answer.done():
                if error is None:
                    answer.set_result(result)
                else:
                    answer.set_exception(error)

        if self._node.cut_until_s <= world.now_s:
            is_late = world.random.random() < world.faults.lost / 2
            world.at(world.random.uniform(0.5, 3.0) if is_late else world.delay_s(), happens)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await answer
        except TimeoutError:
            raise MetadataUnavailable("no answer") from None

    async def read_all(self, paths: list[str]) -> Any:
        records = self._node.world.records
        return await self._call(lambda: [records.get(path) for path in paths])

    async def read(self, path: str) -> Any:
        return (await self.read_all([path]))[0]

    async def change(self, *changes: Change) -> Any:
        return await self._call(lambda: self._node.world.change(changes))

    async def format_level(self) -> int:
        return LEVEL_MAX

    async def watch(self, path: str, callback: Callable[[], None]) -> Any:
        return SimpleNamespace(close=lambda: None)


class Node:
    """One candidate: it takes the lease, acts under it, and releases it or is thrown out, again and again."""

    def __init__(self, world: World, name: str, rate: float) -> None:
        self.world, self.name, self._rate = world, name, rate
        self._clock_s, self._at_s = world.random.uniform(0, 1000), world.now_s
        self.frozen_until_s = self.cut_until_s = 0.0
        self.loop = NodeLoop()
        self.loop.clock = self.clock
        client = SimpleNamespace(
            records=Records(self), config=SimpleNamespace(metadata_timeout=TIMEOUT_S)
        )

        async def namespace_id() -> str:
            return "root"

        namespace: Any = SimpleNamespace(path="", client=client, namespace_id=namespace_id)
        self.lease = Lease(namespace, "leader", duration=DURATION_S, holder=name)
        self._main = self.loop.create_task(self._run())

    def clock(self) -> float:
        self._clock_s += (self.world.now_s - self._at_s) * self._rate
        self._at_s = self.world.now_s
        return self._clock_s

    @property
    def is_frozen(self) -> bool:
        return self.world.now_s < self.frozen_until_s

    def believes(self) -> bool:
        held = self.lease
        return held._held is not None and held._loss is None and held._tenure.is_held(self.clock())

    def tick(self) -> None:
        world = self.world
        if self.is_frozen:
            if world.faults.clocks_stop:
                self._at_s = world.now_s
            return
        while self.loop.is_due():
            self.loop.step()
        if self._main.done():
            self._main.result()
        if world.random.random() < world.faults.freezes * TICK_S / 0.5:
            self.frozen_until_s = world.now_s + world.random.uniform(0.1, 3.0)
        if world.random.random() < world.faults.cuts * TICK_S / 0.5:
            self.cut_until_s = world.now_s + world.random.uniform(0.1, 3.0)

    async def _run(self) -> None:
        rng = self.world.random
        while True:
            try:
                await self.lease.acquire()
                while rng.random() > 0.02:
                    token = self.lease.check()
                    await asyncio.sleep(rng.uniform(0, 0.2))  # what it does before it writes
                    self.world.write(self.name, token)
            except (LeaseLost, MetadataUnavailable):
                continue
            finally:
                await self.lease.release()

    def close(self) -> None:
        while tasks := asyncio.all_tasks(self.loop):
            for task in tasks:
                task.cancel()  # again where it has an end to make, such as a release
            self.loop.step()
        if not self._main.cancelled():
            self._main.exception()
        self.loop.close()


@pytest.fixture(autouse=True)
def clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is that of the node whose loop runs."""
    now = SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time())
    monkeypatch.setattr(lease_module, "time", now)
    monkeypatch.setattr(lease_module, "_log", SimpleNamespace(warning=lambda *_, **__: None))


def simulate(seed: int, faults: Faults, seconds: float = 40.0) -> World:
    rng = random.Random(seed)
    world = World(rng, faults)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lease_module, "random", rng)
            world.nodes += [Node(world, f"n{index}", rng.choice(RATES)) for index in range(3)]
            world.run(seconds)
    finally:
        for node in world.nodes:
            node.close()
    return world


ROUGH = Faults(slow=0.2, lost=0.1, freezes=0.1, cuts=0.1)
SEEDS = range(12)


def test_a_quiet_world_hands_it_over_by_releases() -> None:
    world = simulate(1, Faults())
    assert world.grants > 3
    assert (world.takeovers, world.refused) == (0, 0)


def test_one_holds_it_at_a_time_whatever_is_slow_lost_or_frozen() -> None:
    """INV-K1, INV-K2, INV-K3."""
    worlds = [simulate(seed, ROUGH) for seed in SEEDS]
    assert min(world.grants for world in worlds) > 3
    assert sum(world.takeovers for world in worlds) > 20


def test_clocks_that_stand_still_make_two_holders_and_tokens_decide() -> None:
    """INV-K3: the resource obeys the later holder; without tokens the earlier one would have come behind it."""
    faults = Faults(slow=0.1, lost=0.05, freezes=0.3, clocks_stop=True)
    worlds = [simulate(seed, faults) for seed in SEEDS]
    assert sum(world.refused for world in worlds) > 0
    for world in worlds:
        tokens = [token for _, _, token in world.acts]
        assert tokens == sorted(tokens)


def _same_token(record: LeaseRecord | None, claim: tenure.Claim, floor: int = 0) -> LeaseRecord:
    return LeaseRecord(
        1 if record is None else record.number, 0, claim.key, claim.duration_ms, claim.holder
    )


def _extended_from_the_answer(self: tenure.Tenure, sent_s: float) -> None:
    self.until_s = asyncio.get_running_loop().time() + tenure.HELD_SHARE * self.duration_s


def _still_from_the_question(
    self: tenure.Stillness, record: LeaseRecord, sent_s: float, answered_s: float
) -> float:
    return _update(self, record, answered_s, sent_s)


_update = tenure.Stillness.update
MISTAKES: dict[str, tuple[object, str, object]] = {
    "a takeover leaves the token as it was": (lease_module, "granted", _same_token),
    "a holder counts from the answer": (tenure.Tenure, "extend", _extended_from_the_answer),
    "a holder believes too long": (tenure, "HELD_SHARE", 1.3),
    "a waiter counts from its question": (tenure.Stillness, "update", _still_from_the_question),
    "a waiter is impatient": (
        lease_module,
        "may_take",
        lambda record, still_s: tenure.may_take(record, 1.5 * still_s),
    ),
    "a waiter takes what is held": (lease_module, "may_take", lambda record, still_s: True),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_judge_finds(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, name, wrong = MISTAKES[mistake]
    monkeypatch.setattr(place, name, wrong)
    slow = Faults(slow=0.4, lost=0.1, freezes=0.1, cuts=0.1)
    with pytest.raises(Broken):
        for seed in range(60):
            simulate(seed, slow)
