"""Worlds whose bookies are in racks, and whose ledgers are durable only in several of them (INV-Q5, INV-P5).

A plan says how many racks an append waits for. The cluster's table says where bookies are. It changes while the world
lives: clients hear of it late, and what counts for a ledger is what its writer recorded. Somebody else takes members
out of that record, or all of it.
"""

from __future__ import annotations

import random
import zlib
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from fastbk.model.ids import BookieId
from fastbk.placement.choose_ensemble import choose_ensemble
from fastbk.placement.config import BookieView, PlacementConfig
from fastbk.placement.rules import custom_rule
from fastbk.replication.ack_domains import ACK_DOMAINS_KEY, AckDomains, custom_of_new

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastbk.model.ledger import LedgerMetadata
    from tests.simulation.plan import Plan

SHARE_PERCENT = 20
"""Of the worlds whose quorums allow it."""
SALT = 1974
"""With it none of the seeds that finders.py had before has racks: they find what they found."""
LOST_RACK_SHARE = 0.3
MOVES_SHARE = 0.3
FORGETS_SHARE = 0.3


Loss: TypeAlias = tuple[float, str, str, float, str, float]
"""The arguments of an item of a plan."""


def draw_racks(plan: Plan) -> list[Loss]:
    """Draw how many racks an append waits for, and return losses of whole racks.

    Other draws of the seed stay as they are.
    """
    rng = random.Random(f"racks {plan.seed}")
    is_one = zlib.crc32(b"%d %d" % (SALT, plan.seed)) % 100 < SHARE_PERCENT
    if not is_one or plan.write_quorum < 2 or plan.away:
        return []
    # Three racks in each write set of a larger ring would take more of them.
    wants_three = plan.ensemble == plan.write_quorum == 3 and rng.random() < 0.2
    plan.ack_racks = 3 if wants_three else 2
    racks = plan.ack_racks + 1
    count = max(len(plan.bookies), 2 * racks)
    plan.bookies = [f"b{number}" for number in range(count)]
    names = plan.bookies[:]
    rng.shuffle(names)
    plan.racks = {name: f"/r{number % racks}" for number, name in enumerate(names)}
    losses: list[Loss] = []
    if rng.random() < LOST_RACK_SHARE:
        at_s, span_s = rng.random() * plan.duration_s, rng.random() * plan.duration_s
        losses.append((at_s, "lose_rack", rng.choice(names), span_s, "", rng.random()))
    if rng.random() < MOVES_SHARE:
        plan.moves = [
            (rng.random() * plan.duration_s, rng.choice(plan.bookies), f"/r{rng.randrange(racks)}")
            for _ in range(rng.randint(1, 3))
        ]
    if rng.random() < FORGETS_SHARE:
        plan.forgets = [
            (rng.random() * plan.duration_s, rng.random() < 0.3) for _ in range(rng.randint(1, 3))
        ]
    is_simple = not plan.moves and not plan.forgets and plan.ack_racks == 2
    plan.is_rack_away = is_simple and plan.ensemble == plan.write_quorum <= 3 and rng.random() < 0.7
    return losses


def rule_of_plan(plan: Plan) -> PlacementConfig:
    """Return the rule of a world's ledgers."""
    if not plan.ack_racks:
        return PlacementConfig()
    return PlacementConfig(
        policy="rack",
        min_racks_per_write_quorum=plan.ack_racks,
        min_racks_per_ack_quorum=plan.ack_racks,
    )


def forget(metadata: LedgerMetadata, *, is_all: bool) -> dict[str, bytes]:
    """Return a ledger's custom metadata as somebody leaves it who knows nothing of the record: a member is missing."""
    custom = dict(metadata.custom)
    stored = custom.pop(ACK_DOMAINS_KEY, None)
    if stored is None or is_all:
        return custom
    record = msgspec.json.decode(stored, type=AckDomains)
    of = dict(sorted(record.of.items())[1:])
    changed = msgspec.structs.replace(record, of=of)
    return {**custom, ACK_DOMAINS_KEY: msgspec.json.encode(changed)}


class Racks:
    """Where bookies are, as the cluster's table says it now, and where they have ever been, which no node knows.

    Attributes:
        ack_racks: how many an append waits for; 0: nobody is in a rack.
        rule: of the world's ledgers.
    """

    def __init__(self, plan: Plan | None = None) -> None:
        self.ack_racks = 0 if plan is None else plan.ack_racks
        self.rule = PlacementConfig() if plan is None else rule_of_plan(plan)
        self._plan = plan
        self._now: dict[BookieId, str] = {} if plan is None else dict(plan.racks)
        self._ever = {name: {rack} for name, rack in self._now.items()}

    def move(self, name: BookieId, rack: str) -> None:
        """Have the table say something else of a bookie."""
        self._now[name] = rack
        self._ever[name].add(rack)

    def reset(self) -> None:
        """Have the table say what it said at first."""
        if self._plan is not None:
            self._now = dict(self._plan.racks)

    def in_rack_of(self, name: BookieId) -> list[BookieId]:
        """Return the bookies in the rack of one, itself too."""
        rack = self._now.get(name)
        return [other for other, where in self._now.items() if where == rack]

    def rack_of(self, name: BookieId) -> str | None:
        """Return where a bookie is."""
        return self._now.get(name)

    def view_of(self, name: BookieId) -> BookieView:
        """Return what placement knows of a bookie."""
        rack = self._now.get(name)
        return BookieView(name) if rack is None else BookieView(name, location=rack)

    def ensemble_of_new(self, names: Iterable[BookieId], rng: random.Random) -> list[BookieId]:
        """Return an ensemble for a new ledger by the product's placement."""
        plan = self._plan
        assert plan is not None
        quorums = plan.ensemble, plan.write_quorum, plan.ack_quorum
        views = [self.view_of(name) for name in names]
        return list(choose_ensemble(views, *quorums, self.rule, rng))

    def custom_of_new(self, write_quorum: int, ensemble: Iterable[BookieId]) -> dict[str, bytes]:
        """Return the custom metadata of a new ledger."""
        if not self.ack_racks:
            return {}
        locations = {name: self._now[name] for name in ensemble}
        return {**custom_rule(self.rule), **custom_of_new(self.rule, write_quorum, locations)}

    def was_in(self, name: BookieId, rack: str) -> bool:
        """Return whether a bookie has ever been there."""
        return rack in self._ever[name]

    def may_span(self, names: Iterable[BookieId]) -> bool:
        """Return whether these can have been in so many racks as an append waits for."""
        members = list(names)
        everywhere: set[str] = set().union(*(self._ever[name] for name in members))
        return min(len(members), len(everywhere)) >= self.ack_racks
