"""What happens in one world, drawn from one seed before it begins: sizes, the swarm of faults, the work.

Swarm: every class of faults is on or off for a seed, and its rate is drawn, each direction of each link by itself.
A uniform mixture of everything finds next to nothing. The plan is a list of items, so that shrinking can take single
ones away without changing the luck of the others.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.simulation.away import draw_away
from tests.simulation.domains import draw_racks

QUORUMS = [
    (3, 3, 2),
    (3, 3, 2),
    (3, 2, 2),
    (4, 3, 2),
    (2, 2, 2),
    (3, 3, 3),
    (4, 2, 2),
    (5, 3, 2),
    (3, 3, 1),
    (3, 2, 1),
]

# Who writes the first ledger and who the second.
WRITERS = ("c0", "c1")

# Classes of faults: each is on in about half of the worlds.
CLASSES = (
    "delays",
    "cuts",
    "losses",
    "duplicates",
    "reordering",
    "clogs",
    "partitions",
    "kills",
    "power cuts",
    "wipes",
    "bookie pauses",
    "client pauses",
    "slow disks",
    "failed syncs",
    "corruption",
    "metadata trouble",
    "expiries",
    "read-only",
    "busy",
    "client crashes",
    "liars",
)


@dataclass(frozen=True, slots=True)
class Item:
    """Something that happens at a time: a fault or a piece of work. `kind` names a method of `Faults` or `Workload`."""

    at_s: float
    kind: str
    target: str = ""
    value: float = 0.0
    other: str = ""
    more: float = 0.0

    def __str__(self) -> str:
        words = [f"{self.at_s:8.4f} s", self.kind, self.target, self.other]
        return " ".join([*filter(None, words), f"{self.value:.4g} {self.more:.4g}"])


@dataclass(slots=True)
class Plan:
    """One world; see the module's text.

    Attributes:
        away: bookies of each ledger that are away when it is created.
        ack_racks: how many racks an append waits for; 0: it counts bookies only, and nobody is in a rack.
        racks: where bookies are, as the cluster's table says it.
        moves: when it says something else of which bookie.
        forgets: when somebody takes members out of a ledger's record of racks, and whether all of them.
        is_rack_away: in the end a whole rack is down while ledgers are recovered.
    """

    seed: int
    ensemble: int
    write_quorum: int
    ack_quorum: int
    bookies: list[str]
    clients: list[str]
    classes: list[str]
    duration_s: float
    events_max: int
    is_deferred: bool = False
    ledgers: int = 1
    away: int = 0
    ack_racks: int = 0
    racks: dict[str, str] = field(default_factory=dict)
    moves: list[tuple[float, str, str]] = field(default_factory=list)
    forgets: list[tuple[float, bool]] = field(default_factory=list)
    is_rack_away: bool = False
    faults: list[Item] = field(default_factory=list)
    work: list[Item] = field(default_factory=list)
    options: dict[str, float] = field(default_factory=dict)


class _Drawing:
    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(f"plan {seed}")
        ensemble, write_quorum, ack_quorum = rng.choice(QUORUMS)
        bookies = [f"b{number}" for number in range(ensemble + rng.choice((0, 1, 1, 2, 3)))]
        clients = ["c0", "c1", "c2", "c3", "repair"]
        classes = [one for one in CLASSES if rng.random() < 0.35]
        duration_s = rng.choice((0.3, 1.0, 3.0, 8.0))
        self.plan = Plan(
            seed,
            ensemble,
            write_quorum,
            ack_quorum,
            bookies,
            clients,
            classes,
            duration_s,
            events_max=rng.choice((400, 800, 1200, 2000)),
            is_deferred=rng.random() < 0.06,
            ledgers=rng.choice((1, 1, 1, 2)),
        )
        self.links = [
            (one, other)
            for client in clients
            for bookie in [*bookies, "m"]
            for one, other in ((client, bookie), (bookie, client))
        ]

    def time_s(self) -> float:
        return self.rng.random() * self.plan.duration_s

    def span_s(self) -> float:
        rng = self.rng
        return rng.choice((0.002, 0.02, 0.2, 0.5, 1.0)) * rng.uniform(0.5, 2) * self.plan.duration_s

    def some(self, most: int) -> int:
        """Return how often a class that is on strikes."""
        return self.rng.randint(1, most)

    def has(self, name: str) -> bool:
        return name in self.plan.classes

    def add(
        self, kind: str, target: str = "", value: float = 0.0, other: str = "", more: float = 0.0
    ) -> None:
        self.plan.faults.append(Item(self.time_s(), kind, target, value, other, more))

    def on_links(self) -> None:
        """Draw what is wrong with single directions all the time."""
        rng, plan = self.rng, self.plan
        for source, target in self.links:
            if self.has("delays") and rng.random() < 0.5:
                plan.faults.append(Item(0.0, "delay", source, rng.choice((4, 40, 200)), target))
            for name, kind, rates in (
                ("cuts", "cut", (0.002, 0.02, 0.1)),
                ("losses", "lose", (0.002, 0.02, 0.15)),
                ("duplicates", "duplicate", (0.01, 0.05)),
                ("reordering", "reorder", (1.0,)),
            ):
                if self.has(name) and rng.random() < 0.3:
                    plan.faults.append(Item(0.0, kind, source, rng.choice(rates), target))
            if self.has("losses") and rng.random() < 0.03:
                plan.faults.append(Item(0.0, "lose", source, 0.7, target))
            if self.has("metadata trouble") and "m" in (source, target) and rng.random() < 0.3:
                plan.faults.append(Item(0.0, "lose", source, rng.choice((0.1, 0.4)), target))

    def on_network(self) -> None:
        rng, plan = self.rng, self.plan
        if self.has("clogs"):
            for _ in range(self.some(8)):
                source, target = rng.choice(self.links)
                self.add("clog", source, self.span_s(), target, rng.random())
        if self.has("partitions"):
            for _ in range(self.some(3)):
                kind = rng.choice(("one", "split", "one-way", "metadata"))
                loses = float(rng.random() < 0.5)
                nodes = [*plan.bookies, *plan.clients]
                if kind == "one":
                    self.add("isolate", rng.choice(nodes), self.span_s(), "", loses)
                elif kind == "split":
                    side = " ".join(one for one in [*nodes, "m"] if rng.random() < 0.5)
                    self.add("split", side, self.span_s(), "", loses)
                elif kind == "one-way":
                    source, target = rng.choice(self.links)
                    self.add("block", source, self.span_s(), target, loses)
                else:
                    self.add("isolate", "m", self.span_s(), "", loses)

    def on_bookies(self) -> None:
        rng = self.rng
        for name, kind, most in (
            ("kills", "kill", 6),
            ("power cuts", "power_cut", 4),
            ("bookie pauses", "pause", 4),
            ("slow disks", "slow_disk", 4),
            ("failed syncs", "fail_sync", 3),
            ("corruption", "corrupt", 5),
            ("expiries", "expire", 3),
            ("read-only", "read_only", 2),
            ("busy", "make_busy", 3),
        ):
            if self.has(name):
                for _ in range(self.some(most)):
                    self.add(kind, rng.choice(self.plan.bookies), self.span_s(), "", rng.random())
        if self.has("power cuts") and rng.random() < 0.2:
            moment = self.time_s()
            for bookie in self.plan.bookies:
                self.plan.faults.append(
                    Item(moment, "power_cut", bookie, self.span_s(), "", rng.random())
                )
        if self.has("wipes"):
            for _ in range(self.some(2)):
                self.add("wipe", rng.choice(self.plan.bookies), self.span_s(), "", rng.random())
        if self.has("liars"):
            bookie = rng.choice(self.plan.bookies)
            lie = rng.choice(("alters", "lies_on_lac", "denies", "drops_after_ack"))
            self.plan.faults.append(Item(0.0, "make_liar", bookie, rng.choice((0.3, 1.0)), lie))

    def on_clients(self) -> None:
        rng = self.rng
        if self.has("client pauses"):
            for _ in range(self.some(3)):
                self.add("pause", rng.choice(self.plan.clients), self.span_s())
        if self.has("client crashes"):
            for _ in range(self.some(2)):
                self.add("crash_client", rng.choice(self.plan.clients))
        if self.has("metadata trouble"):
            for _ in range(self.some(3)):
                self.add("metadata_down", "m", self.span_s())

    def work(self) -> None:
        """Draw what the clients are at: writers c0 and c1, recoverers c1 to c3, readers c2 and c3, and a repairer."""
        rng, plan = self.rng, self.plan
        bursts = rng.choice((4, 12, 30, 60))
        for ledger, writer in enumerate(WRITERS[: plan.ledgers]):
            for _ in range(bursts):
                self.do("append", writer, rng.choice((1, 1, 1, 2, 4)), ledger)
            for kind, chance, most in (("force", 0.3, 3), ("tell_lac", 0.5, 6), ("close", 0.35, 1)):
                if rng.random() < chance or (kind == "force" and plan.is_deferred):
                    for _ in range(self.some(most)):
                        self.do(kind, writer, 0.0, ledger)
        # The interesting moments are close together: recoverers that start one behind the other.
        moment = rng.uniform(0.1, 1.0) * plan.duration_s
        for client in rng.sample(("c1", "c2", "c3"), rng.choice((0, 1, 1, 2, 3))):
            at_s = moment + rng.choice((0, 0.001, 0.01, 0.1)) * rng.random()
            plan.work.append(Item(at_s, "recover", client, more=float(self.a_ledger())))
        for client in ("c2", "c3"):
            for _ in range(rng.choice((0, 1, 3))):
                kind = rng.choice(("read", "read_lac", "tail", "read_unconfirmed"))
                self.do(kind, client, rng.random(), self.a_ledger())
        for _ in range(rng.choice((0, 0, 1, 3))):
            self.do("edit", rng.choice(("c0", "c1", "c2", "c3")), 0.0, self.a_ledger())
        for _ in range(rng.choice((0, 0, 0, 2))):
            self.do("intrude", "c3", rng.random(), self.a_ledger())
        if rng.random() < 0.3:
            self.do("read_own", "c0")
        if rng.random() < 0.04:
            self.do("delete", "c2", 0.0, self.a_ledger())
        if self.has("wipes"):
            for _ in range(rng.choice((0, 1, 2))):
                self.do("repair", "repair", 0.0, self.a_ledger())

    def do(self, kind: str, client: str, value: float = 0.0, ledger: int = 0) -> None:
        self.plan.work.append(Item(self.time_s(), kind, client, value, "", ledger))

    def a_ledger(self) -> int:
        return self.rng.randrange(self.plan.ledgers)

    def options(self) -> None:
        rng = self.rng
        self.plan.options = {
            "append_timeout_s": rng.choice((1.0, 4.0, 10.0)),
            "replace_after_s": rng.choice((0.01, 0.1, 1.0)),
            "bookie_timeout_s": rng.choice((0.05, 0.5, 2.0)),
            "delayed": float(rng.random() < 0.25),
            "changes_max": rng.choice((-1, -1, -1, 0, 1)),
            "held_bytes_max": rng.choice((16, 256, 1 << 20)),
            "entries_max": rng.choice((1, 2, 16)),
            "request_timeout_s": rng.choice((0.1, 0.5, 2.0)),
            "give_up_s": rng.choice((0.5, 3.0)),
            "speculative_s": rng.choice((0.0, 0.002, 0.05)),
            "parallel": float(rng.random() < 0.2),
        }

    def habits(self) -> None:
        """Draw what clients do on top: change their minds, and begin with metadata that they read long ago."""
        rng, plan = self.rng, self.plan
        plan.options["stale"] = float(rng.random() < 0.3)
        for item in [one for one in plan.work if one.kind in ("recover", "tail", "read")]:
            if rng.random() < 0.1:
                at_s = item.at_s + rng.choice((0.001, 0.01, 0.1)) * rng.random()
                plan.work.append(Item(at_s, "cancel", item.target))


def draw_plan(seed: int) -> Plan:
    drawing = _Drawing(seed)
    drawing.on_links()
    drawing.on_network()
    drawing.on_bookies()
    drawing.on_clients()
    drawing.work()
    drawing.options()
    drawing.habits()
    drawing.plan.away = draw_away(drawing.plan)
    drawing.plan.faults += [Item(*one) for one in draw_racks(drawing.plan)]
    return drawing.plan
