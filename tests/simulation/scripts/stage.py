"""A stage for scripts: a quiet world in which every frame that a script names is kept until it says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fastbk.meta.api import VersionedLedger
from fastbk.replication.procedure import AddEntry, BookieRequest, ReadEntry, Reply
from fastbk.replication.re_replication import LedgerReReplicated, ReReplicateLedger
from fastbk.replication.reading import ReadRange
from fastbk.replication.recovery import RecoverLedger
from tests.simulation.bookie import Bookie
from tests.simulation.client import Client
from tests.simulation.kernel import Node
from tests.simulation.plan import Plan
from tests.simulation.readers import Reader
from tests.simulation.running import Running
from tests.simulation.workload import KEY, REPAIR, data_of
from tests.simulation.world import World
from tests.simulation.writing import Writing

EVENTS_MAX = 1_000_000
SOON_S = 0.2


@dataclass(slots=True)
class Kept:
    """A frame that was not let go, and the rule that kept it."""

    rule: Rule
    node: Node
    handler: Callable[..., object]
    arguments: tuple[Any, ...]


@dataclass(slots=True)
class Rule:
    """Which frames are kept: from `source` to `target` (names, "" = any) whose handler and arguments please `wants`."""

    source: str
    target: str
    wants: Callable[[str, tuple[Any, ...]], bool]


def plan_of(
    ensemble: int, write_quorum: int, ack_quorum: int, spare: int, **options: float
) -> Plan:
    """Return a plan in which nothing happens by itself. `spare`: bookies beside the ensemble."""
    settings = {
        "append_timeout_s": 10.0,
        "replace_after_s": 0.05,
        "bookie_timeout_s": 30.0,
        "delayed": 0.0,
        "changes_max": -1,
        "held_bytes_max": 1 << 20,
        "entries_max": 16,
        "request_timeout_s": 2.0,
        "give_up_s": 3.0,
        "speculative_s": 0.0,
        "parallel": 0.0,
    }
    return Plan(
        seed=7,
        ensemble=ensemble,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        bookies=[f"b{number}" for number in range(ensemble + spare)],
        clients=["c0", "c1", "c2", "c3", "repair"],
        classes=[],
        duration_s=1e9,
        events_max=EVENTS_MAX,
        options={**settings, **options},
    )


class Stage:
    """A writer c0 on b0, b1, ... and other clients to play with."""

    def __init__(
        self,
        ensemble: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        *,
        is_deferred: bool = False,
        spare: int = 3,
        **options: float,
    ) -> None:
        plan = plan_of(ensemble, write_quorum, ack_quorum, spare, **options)
        plan.is_deferred = is_deferred
        self.world = World(plan)
        self.kernel = self.world.kernel
        self.store = self.world.store
        self.checks = self.world.checks
        self.rules: list[Rule] = []
        self.kept: list[Kept] = []
        self.world.network.passes = self._passes
        self.run()
        self.ledger = self.world.workload.create(plan.bookies[:ensemble], self.client("c0"))
        self.facts = self.checks.facts[0]
        self.run()

    def client(self, name: str) -> Client:
        return self.world.clients[name]

    def bookie(self, number: int) -> Bookie:
        return self.world.bookies[f"b{number}"]

    @property
    def writer(self) -> Writing:
        return self.world.workload.writers[0]

    @property
    def metadata(self):  # type: ignore[no-untyped-def]
        return self.store.ledgers[0].metadata

    # --- time and frames ---------------------------------------------------------------------------------------

    def run(self, seconds: float = SOON_S) -> None:
        self.kernel.run(self.kernel.now_s + seconds, EVENTS_MAX)

    def until(self, condition: Callable[[], bool], what: str, limit_s: float = 60.0) -> None:
        if not condition():
            self.kernel.run(self.kernel.now_s + limit_s, EVENTS_MAX, condition)
        assert condition(), what

    def keep(
        self,
        source: str,
        target: str,
        wants: Callable[[str, tuple[Any, ...]], bool] = lambda name, arguments: True,
    ) -> Rule:
        """Keep frames from now on."""
        rule = Rule(source, target, wants)
        self.rules.append(rule)
        return rule

    def release(self, *rules: Rule) -> None:
        """Let the frames of each rule go, in order, and keep no more of them."""
        for rule in rules:
            for number, one in enumerate(self.drop(rule)):
                at_s = self.kernel.now_s + number * 1e-6
                self.kernel.deliver(at_s, one.node, one.handler, *one.arguments)

    def drop(self, *rules: Rule) -> list[Kept]:
        """Return what the rules have kept, and keep no more."""
        for rule in rules:
            self.rules.remove(rule)
        dropped = [one for one in self.kept if one.rule in rules]
        self.kept = [one for one in self.kept if one.rule not in rules]
        return dropped

    def _passes(
        self, one: Node, other: Node, handler: Callable[..., object], arguments: tuple[Any, ...]
    ) -> bool:
        owner = getattr(handler, "__self__", None)
        assert isinstance(owner, Node)
        source, target = (one, other) if owner is other else (other, one)
        for rule in self.rules:
            if (
                rule.source in ("", source.name)
                and rule.target in ("", target.name)
                and rule.wants(handler.__name__, arguments)
            ):
                self.kept.append(Kept(rule, owner, handler, arguments))
                return False
        return True

    # --- what clients do ---------------------------------------------------------------------------------------

    def append(self, count: int = 1) -> None:
        """The writer adds entries; nothing is waited for."""
        first = len(self.ledger.written)
        self.writer.append([data_of(0, first + number) for number in range(count)])

    def write(self, count: int = 1) -> None:
        """The writer adds entries, and all that were added are acknowledged."""
        self.append(count)
        self.until(lambda: self.acked == len(self.ledger.written), "an entry is not acknowledged")

    def leave_on_b2(self, count: int = 1) -> None:
        """The writer adds entries that reach b2 alone, and dies."""
        rules = [self.keep("c0", name, adds()) for name in ("b0", "b1")]
        self.append(count)
        self.run()
        self.client("c0").crash()
        self.drop(*rules)

    def kill(self, *numbers: int) -> None:
        """Kill bookies; nothing that was synced is lost."""
        for number in numbers:
            self.bookie(number).crash(0.0, is_power_cut=False)

    @property
    def acked(self) -> int:
        """How many entries the application was told to be stored."""
        return self.facts.acked

    def recover(self, name: str) -> Running[VersionedLedger]:
        procedure = RecoverLedger(0, None, self.world.workload.recovery_options())
        running = Running(self.client(name), self.ledger, procedure, self.world.workload.recovered)
        running.start()
        return running

    def recovered(self, name: str) -> int:
        """A client takes the ledger over; returns the last entry."""
        running = self.recover(name)
        self.until(lambda: running.procedure.is_finished, f"{name} does not finish")
        return running.procedure.value().metadata.last_entry_id

    def begin_repair(self, number: int) -> ReReplicateLedger:
        procedure = ReReplicateLedger(0, f"b{number}", REPAIR)
        Running(self.client("repair"), self.ledger, procedure).start()
        return procedure

    def repair(self, number: int) -> LedgerReReplicated:
        procedure = self.begin_repair(number)
        self.until(lambda: procedure.is_finished, "the repair does not finish")
        return procedure.value()

    def ask(
        self,
        name: str,
        number: int,
        request: BookieRequest,
        *,
        key: bytes = KEY,
        ledger_id: int = 0,
    ) -> Reply:
        """Ask one bookie something, as a client of any kind may."""
        replies: list[Any] = []
        self.client(name).ask(ledger_id, key, f"b{number}", request, 5.0, replies.append)
        self.until(lambda: bool(replies), f"b{number} does not answer")
        reply = replies[0]
        assert isinstance(reply, Reply), reply
        return reply

    def read_all(self) -> None:
        """Three readers read all of a closed ledger, each another replica first."""
        metadata = self.metadata
        assert metadata.is_closed
        for turn in range(3):
            client = self.world.add_client(f"r{len(self.world.clients)}")
            done: list[ReadRange] = []
            if metadata.last_entry_id < 0:
                continue
            reader = Reader(self.world, client, self.ledger)
            reader.range(metadata, 0, metadata.last_entry_id, done.append, turn=turn)
            self.until(lambda done=done: bool(done), "a read does not finish")  # type: ignore[misc]
            assert done[0].error is None, done[0].error


def adds(entry_id: int | None = None) -> Callable[[str, tuple[Any, ...]], bool]:
    """Return what wants adds of a writer, of one entry or of any."""

    def wants(name: str, arguments: tuple[Any, ...]) -> bool:
        if name != "receive_adds":
            return False
        return entry_id is None or any(one == entry_id for one, _ in arguments[3])

    return wants


def reads(entry_id: int) -> Callable[[str, tuple[Any, ...]], bool]:
    """Return what wants reads of one entry; -1 = the fence that begins a recovery."""
    return _requests(ReadEntry, entry_id)


def rewrites(entry_id: int) -> Callable[[str, tuple[Any, ...]], bool]:
    """Return what wants recovery adds of one entry."""
    return _requests(AddEntry, entry_id)


def _requests(
    kind: type[ReadEntry | AddEntry], entry_id: int
) -> Callable[[str, tuple[Any, ...]], bool]:
    def wants(name: str, arguments: tuple[Any, ...]) -> bool:
        request = arguments[4] if name == "receive" else None
        return isinstance(request, kind) and request.entry_id == entry_id

    return wants


def closes(name: str, arguments: tuple[Any, ...]) -> bool:
    """Want updates of metadata that close the ledger."""
    return name == "update" and arguments[3].is_closed


def named(*names: str) -> Callable[[str, tuple[Any, ...]], bool]:
    """Return what wants frames by the name of their handler."""
    return lambda name, arguments: name in names


@contextmanager
def stage(*quorums: int, **options: Any) -> Iterator[Stage]:
    made = Stage(*quorums, **options)
    try:
        yield made
    finally:
        made.world.close()
