"""One process of AutoRecovery in simulated time: the product's own `Healer`, over calls and requests that may fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from fastbk.autorecovery.auditor import AuditorOptions
from fastbk.autorecovery.healer import Healer
from fastbk.autorecovery.worker import WorkerOptions
from fastbk.client import LedgerInfo
from fastbk.client.config import ClientConfig
from fastbk.client.ensembles import Ensembles
from fastbk.client.known_bookies import KnownBookies
from fastbk.client.metadata_calls import LockCalls, MarkCalls, RecordCalls
from fastbk.errors import Error, MetadataUnavailable, NotEnoughBookies, QuorumTimeout
from fastbk.meta import MetadataStore
from fastbk.meta.api import BookieRegistration
from fastbk.model.ids import BookieId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.replication.procedure import (
    Action,
    Choose,
    MarkReplicas,
    Outcome,
    Procedure,
    ReadIdentity,
    ReadMetadata,
    SendRequest,
    Sleep,
    UpdateMetadata,
    Withdraw,
)
from tests.fixtures.fake_quorum import copied_by
from tests.simulation.healing.places import LEASE_S, SimulatedStore

if TYPE_CHECKING:
    from tests.simulation.healing.world import World

T = TypeVar("T")


class SimulatedProcess:
    """A process: alive, cut off from metadata or from bookies, or dead.

    Attributes:
        cut_until_s: until then no call reaches the store. unreached: bookies that its requests do not reach.
        lost_session_s: when its session may have ended last.
    """

    def __init__(self, world: World, name: str, store: SimulatedStore) -> None:
        self.world = world
        self.name = name
        self.store = store
        self.is_dead = False
        self.cut_until_s = -1.0
        self.lost_session_s = float("-inf")
        self.unreached: dict[BookieId, float] = {}
        client = SimulatedClient(self)
        self.healer = Healer(
            client,  # type: ignore[arg-type]
            name,
            AuditorOptions(
                cycle_interval_s=120.0, confirm_after_s=20.0, placement_interval_s=120.0
            ),
            WorkerOptions(grace_s=world.grace_s),
        )
        self.task = asyncio.get_running_loop().create_task(self.healer.run())

    @property
    def is_cut(self) -> bool:
        """Whether no call reaches the store now."""
        return self.world.now_s < self.cut_until_s

    def cut(self, seconds: float) -> None:
        """Cut it off from metadata."""
        self.cut_until_s = self.world.now_s + seconds

    def crash(self) -> None:
        """Kill it: nothing that it has not sent yet takes effect."""
        self.is_dead = True
        self.task.cancel()

    def raise_if_dead(self) -> None:
        """End what a dead process would still do on its way out."""
        if self.is_dead:
            raise MetadataUnavailable("this process is dead", outcome="not_written")

    def begin_lease(self, renew: Callable[[], None], is_ended: Callable[[], bool]) -> None:
        """Renew the session as its thread does."""
        loop = asyncio.get_running_loop()

        def step() -> None:
            if self.is_dead or is_ended():
                return
            if self.is_cut:
                self.lost_session_s = self.world.now_s
            else:
                try:
                    renew()
                except Error:
                    self.lost_session_s = self.world.now_s
            loop.call_later(LEASE_S / 3, step)

        loop.call_later(LEASE_S / 3, step)


class SimulatedCalls:
    """In place of `MetadataCalls`: calls take time, and fail before or after they took effect."""

    def __init__(self, process: SimulatedProcess) -> None:
        self._process = process
        self._rng = process.world.rng

    async def call(self, call: Callable[[MetadataStore], T], timeout_s: float | None = None) -> T:
        """Run `call(store)`."""
        process, rng = self._process, self._rng
        process.world.events += 1
        await asyncio.sleep(rng.uniform(0.0005, 0.004))
        process.raise_if_dead()
        if process.is_cut:
            await asyncio.sleep(rng.uniform(0, 1))
            raise MetadataUnavailable("cut off", outcome="not_written")
        result = call(process.store)
        await asyncio.sleep(rng.uniform(0, 0.002))
        process.raise_if_dead()
        if rng.random() < process.world.lost_answers:
            raise MetadataUnavailable("the answer was lost")
        return result


class UnconnectedPool:
    """In place of `BookiePool`: bookies are reached, or not, and reports to them find no connection."""

    def __init__(self, client: SimulatedClient) -> None:
        self.config = ClientConfig()
        self.known = KnownBookies(self.config)
        self._client = client

    async def bookies(self) -> list[BookieRegistration]:
        """Return the bookies that are registered, and remember them."""
        found = await self._client.list_bookies()
        self.known.update(found, asyncio.get_running_loop().time())
        return found

    async def reach(
        self, bookie_ids: Sequence[BookieId], timeout_s: float
    ) -> dict[BookieId, Error]:
        """Return why bookies do not answer."""
        process = self._client.process
        world, rng = process.world, process.world.rng
        missed: dict[BookieId, Error] = {}
        for bookie_id in bookie_ids:
            is_cut = process.unreached.get(bookie_id, -1.0) > world.now_s
            if is_cut or not world.cluster.bookies[bookie_id].is_up:
                missed[bookie_id] = NotEnoughBookies("not reached")
        longest_s = timeout_s if missed else world.latency_s
        await asyncio.sleep(rng.uniform(longest_s / 2, longest_s))
        return missed

    def peer(self, bookie_id: BookieId) -> SimpleNamespace:
        """Return a bookie without connections."""
        return SimpleNamespace(bookie_id=bookie_id, channels=())


class SimulatedClient:
    """In place of `Client`, as far as AutoRecovery uses it."""

    def __init__(self, process: SimulatedProcess) -> None:
        calls = SimulatedCalls(process)
        self.process = process
        self.pool = UnconnectedPool(self)
        self.call_store = calls.call
        self.ensembles = Ensembles(self.pool, calls)  # type: ignore[arg-type]
        self.ensembles._rng = process.world.rng
        self.records = RecordCalls(calls)  # type: ignore[arg-type]
        self.marks = MarkCalls(calls)  # type: ignore[arg-type]
        self.locks = LockCalls(calls)  # type: ignore[arg-type]

    async def ledger_info(self, ledger_id: LedgerId) -> LedgerInfo:
        """Return a ledger as the store has it."""
        read = await self.call_store(lambda store: store.read_ledger(ledger_id))
        return LedgerInfo(ledger_id, read.metadata, read.version)

    async def list_bookies(self) -> list[BookieRegistration]:
        """Return the bookies that are registered."""
        return await self.call_store(lambda store: store.list_bookies())

    async def run_procedure(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, procedure: Procedure[T]
    ) -> T:
        """Run a procedure to its end."""
        await _Run(self, ledger_id, metadata, procedure).to_end()
        return procedure.value()


class _Run:
    """One procedure under way."""

    def __init__(
        self,
        client: SimulatedClient,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        procedure: Procedure[Any],
    ) -> None:
        self._client = client
        self._world = client.process.world
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._procedure = procedure
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[int, asyncio.TimerHandle | asyncio.Task[None]] = {}
        self._ended: asyncio.Future[None] = self._loop.create_future()

    async def to_end(self) -> None:
        self._procedure.start(self._loop.time())
        self._step()
        try:
            await self._ended
        finally:
            # an answer that comes later is dropped
            under_way, self._under_way = (
                self._under_way,
                {},
            )
            for one in under_way.values():
                one.cancel()

    def _step(self) -> None:
        while actions := self._procedure.take_actions():
            for tag, action in actions:
                self._perform(tag, action)
        if self._procedure.is_finished and not self._ended.done():
            self._ended.set_result(None)

    def _completed(self, tag: int, outcome: Outcome) -> None:
        if self._under_way.pop(tag, None) is None or self._client.process.is_dead:
            return
        self._world.events += 1
        try:
            self._procedure.completed(tag, outcome, self._loop.time())
            self._step()
        except Exception as error:
            if not self._ended.done():
                self._ended.set_exception(error)

    def _perform(self, tag: int, action: Action) -> None:
        if isinstance(action, Withdraw):
            if (gone := self._under_way.pop(tag, None)) is not None:
                gone.cancel()
        elif isinstance(action, Sleep):
            self._under_way[tag] = self._loop.call_later(action.pause_s, self._completed, tag, None)
        elif isinstance(action, SendRequest):
            self._send(tag, action)
        else:
            self._under_way[tag] = self._loop.create_task(self._call(tag, action))

    def _send(self, tag: int, action: SendRequest) -> None:
        """A request that was sent arrives, also if its sender gives it up or dies meanwhile."""
        world, rng = self._world, self._world.rng
        self._loop.call_later(rng.uniform(0.0002, world.latency_s), self._arrive, tag, action)
        self._under_way[tag] = self._loop.call_later(
            action.timeout_s, self._completed, tag, QuorumTimeout("no answer in time")
        )

    def _arrive(self, tag: int, action: SendRequest) -> None:
        world, process = self._world, self._client.process
        bookie = world.cluster.bookies[action.bookie_id]
        is_reached = process.unreached.get(action.bookie_id, -1.0) <= world.now_s
        outcome: Outcome
        if not is_reached:
            return  # neither it nor an answer
        if not bookie.is_up:
            outcome = NotEnoughBookies("not reached")
        else:
            for entry_id in copied_by(action.request):
                world.judge.copied(process, self._ledger_id, action.bookie_id, entry_id)
            outcome = bookie.of(self._ledger_id).answer(action.request)
        self._loop.call_later(
            world.rng.uniform(0.0002, world.latency_s), self._answer, tag, outcome
        )

    def _answer(self, tag: int, outcome: Outcome) -> None:
        handle = self._under_way.get(tag)
        if handle is not None:
            handle.cancel()
        self._completed(tag, outcome)

    async def _call(self, tag: int, action: Action) -> None:
        try:
            outcome = await self._outcome(action)
        except Error as error:
            outcome = error
        self._completed(tag, outcome)

    async def _outcome(self, action: Action) -> Outcome:
        client, ledger_id = self._client, self._ledger_id
        if isinstance(action, ReadMetadata):
            return await client.call_store(lambda store: store.read_ledger(ledger_id))
        if isinstance(action, UpdateMetadata):
            return await client.call_store(
                lambda store: store.update_ledger(
                    ledger_id, action.metadata, action.version, action.if_identity
                )
            )
        if isinstance(action, ReadIdentity):
            return await client.call_store(lambda store: store.read_identity(action.bookie_id))
        if isinstance(action, MarkReplicas):
            await client.marks.perform(ledger_id, action)
            return None
        assert isinstance(action, Choose)
        return await client.ensembles.replace(
            ledger_id, action, self._metadata, client.pool.config.placement
        )
