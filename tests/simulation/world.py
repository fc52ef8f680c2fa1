"""One world from one seed: a cluster, the faults and the work of its plan, the judges, and what must hold at the end.

First the *safety* phase: everything may fail. Then *liveness*: everything works again, and within bounded simulated
time every ledger must be closed, read by several readers, and a new one written (I1, I5, I18, I20).
"""

from __future__ import annotations

import random
import traceback
from dataclasses import dataclass, field

from tests.simulation.away import ensemble_without, send_away
from tests.simulation.bookie import Bookie
from tests.simulation.checks import Checks
from tests.simulation.client import Client
from tests.simulation.domains import Racks
from tests.simulation.faults import Faults
from tests.simulation.final import Final
from tests.simulation.kernel import Kernel, Node, Violation
from tests.simulation.network import Network
from tests.simulation.plan import WRITERS, Plan, draw_plan
from tests.simulation.store import Store
from tests.simulation.workload import Workload

COUNTED_EVENTS = 200
COUNTED_FAULTS = 3
LIVENESS_EVENTS_MAX = 60_000


@dataclass(slots=True)
class Result:
    """What became of one world.

    Attributes:
        violation: name of the invariant that was broken, "crash" for an exception of the product; None: all is well.
        text: what was seen.
        faults: kinds of faults that struck.
    """

    seed: int
    events: int
    digest: int
    faults: dict[str, int]
    branches: set[tuple[str, str, str, str]] = field(repr=False)
    violation: str | None = None
    text: str = ""
    lines: list[tuple[float, int, str]] | None = field(default=None, repr=False)
    names: list[str] = field(default_factory=list, repr=False)

    @property
    def is_counted(self) -> bool:
        """Whether enough happened for this world to be worth counting."""
        return self.events >= COUNTED_EVENTS and len(self.faults) >= COUNTED_FAULTS


class World:
    """A cluster and its time."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.kernel = kernel = Kernel(plan.seed)
        self.network = network = Network(kernel)
        self.checks = checks = Checks()
        checks.racks = self.racks = Racks(plan)
        self.store = Store(kernel, network, checks)
        self.bookies = {
            name: Bookie(kernel, network, self.store, checks, name) for name in plan.bookies
        }
        checks.indexes = {name: bookie.index for name, bookie in self.bookies.items()}
        self.clients: dict[str, Client] = {}
        for name in plan.clients:
            self.add_client(name)
        self.workload = Workload(self)
        self.faults = Faults(self)

    @property
    def nodes(self) -> dict[str, Node]:
        return {**self.bookies, **self.clients, "m": self.store}

    def add_client(self, name: str) -> Client:
        client = Client(self.kernel, self.network, self.store, self.bookies, name, self.racks)
        self.clients[name] = client
        self.store.tell_all()
        return client

    def begin(self) -> None:
        plan = self.plan
        rng = random.Random(f"ensemble {plan.seed}")
        # Before any fault: registrations are heard, the ledger is made.
        self.faults.schedule(plan.faults)
        left = send_away(self) if plan.away else []
        self.kernel.run(0.01, plan.events_max)
        for writer in WRITERS[: plan.ledgers]:
            client = self.clients[writer]
            if plan.away:
                ensemble, away = ensemble_without(self, left)
                self.workload.create(ensemble, client, away)
            elif plan.racks:
                self.workload.create(self.racks.ensemble_of_new(plan.bookies, rng), client)
            else:
                self.workload.create(rng.sample(plan.bookies, plan.ensemble), client)
        self.workload.schedule(plan.work)
        self.workload.schedule_racks()

    def run(self) -> None:
        """Live through both phases; raises Violation, or what the product raised."""
        self.begin()
        self.kernel.run(self.plan.duration_s + 0.02, self.plan.events_max)
        self.faults.heal()
        Final(self).run(self.kernel.events + LIVENESS_EVENTS_MAX)

    def close(self) -> None:
        self.store.close()


def run_plan(plan: Plan, *, is_traced: bool = False) -> Result:
    world = World(plan)
    if is_traced:
        world.kernel.lines = []
    violation: str | None = None
    text = ""
    try:
        world.run()
    except Violation as error:
        violation, text = error.invariant, str(error)
    except Exception as error:
        violation = f"crash {type(error).__name__}"
        text = "".join(traceback.format_exception(error)[-6:])
    finally:
        world.close()
    kernel = world.kernel
    return Result(
        plan.seed,
        kernel.events,
        kernel.digest,
        world.faults.struck,
        kernel.branches,
        violation,
        text,
        kernel.lines,
        [node.name for node in kernel.nodes],
    )


def run_seed(seed: int, *, is_traced: bool = False) -> Result:
    return run_plan(draw_plan(seed), is_traced=is_traced)
