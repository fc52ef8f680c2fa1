"""The best arrangement of candidates around the ring: depth first, the cheapest and luckiest branch first, bounded.

Positions are filled in the ring's order. Bookies of one place and tier are alike, so the search chooses places
("cells") and takes their bookies by ticket; places that nobody uses yet and that have the same sizes are alike too,
and one of each kind is tried. What a write set must lack, given what is in it and how many positions are open, is
counted at once, not when it is full: branches that break an enforced rule are never entered, and a branch ends when
it is no better than what was found. The first way down is the greedy answer; the search goes on only while that may
be improved, for so many placements as it was given (INV-P2).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace

from fastbk.model.ids import BookieId
from fastbk.placement.candidates import TIER_COUNT, Candidate
from fastbk.placement.rules import TIER_COSTS, Domains, Rule, Rules, domains_of_view, windows_of
from fastbk.placement.values import Policy

# Comparing what the write sets around a position hold costs about their number times their size; a step is about
# the time of this many comparisons, so that steps are a measure of time.
_WINDOW_CELLS_A_STEP = 64


@dataclass(frozen=True, slots=True)
class Ring:
    """The positions of an ensemble: those in `fixed` have a bookie already, the others are to be filled."""

    ensemble: int
    write_quorum: int
    fixed: Mapping[int, Domains] = field(default_factory=dict)

    def open_positions(self) -> list[int]:
        """Return the positions to fill, ascending."""
        return [index for index in range(self.ensemble) if index not in self.fixed]


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The outcome of a search: nothing was found if `chosen` is None."""

    chosen: dict[int, BookieId] | None
    is_certain: bool
    """Whether it is the best there is (or there is none); False when the steps ran out."""


@dataclass(slots=True)
class Steps:
    """How many more placements may be looked at, over all searches of one choice (INV-P2).

    The first way down costs nothing; beyond it a placement with large write sets costs more than one.
    """

    left: int


@dataclass(slots=True)
class _Cell:
    """Candidates of one place and tier, by ticket; the first `taken` are in use."""

    domains: Domains
    tier: int
    ranked: list[Candidate]
    taken: int = 0

    @property
    def is_used_up(self) -> bool:
        return self.taken == len(self.ranked)


_Option = tuple[int, int, float, int, _Cell]  # cost, repeats, ticket, tie-break, cell


def best_arrangement(
    pool: Sequence[Candidate],
    ring: Ring,
    rules: Rules,
    policy: Policy,
    steps: Steps,
    watched: frozenset[int] | None = None,
) -> Arrangement:
    """Return the cheapest way to fill the open positions of `ring` from `pool`, and whether that is certain.

    Only write sets with a position of `watched` count (None: all): a replacement answers for what it touches.
    """
    search = _Search(pool, ring, rules, policy, steps, watched)
    if search.cannot_succeed():
        return Arrangement(None, is_certain=True)
    search.descend(0, search.cost_at_start)
    return Arrangement(search.best, is_certain=not search.is_exhausted)


class _Search:
    def __init__(
        self,
        pool: Sequence[Candidate],
        ring: Ring,
        rules: Rules,
        policy: Policy,
        steps: Steps,
        watched: frozenset[int] | None,
    ) -> None:
        self.ring = ring
        self.open = ring.open_positions()
        self.cells = _cells(pool, policy, len(self.open))
        self.rules = Rules(
            tuple(self._within_reach(rule) for rule in rules.required), rules.has_even_shares
        )
        self.windows = [
            window
            for window in windows_of(ring.ensemble, ring.write_quorum)
            if watched is None or not watched.isdisjoint(window)
        ]
        self.at: list[Domains | None] = [ring.fixed.get(index) for index in range(ring.ensemble)]
        fixed = ring.fixed.values()
        self.whole_used = Counter(domains.whole for domains in fixed)
        self.upper_used = Counter(domains.upper for domains in fixed)
        self.is_whole_ring = watched is None
        self.steps = steps
        self.price = 1 + ring.write_quorum**2 // _WINDOW_CELLS_A_STEP
        self.deepest = 0
        """Each position costs nothing the first time it is filled: the first way down is always made."""
        self.is_exhausted = False
        self.best: dict[int, BookieId] | None = None
        self.best_cost: int | None = None
        self.filled: dict[int, BookieId] = {}
        self.left_of_tier = [0] * TIER_COUNT
        for cell in self.cells:
            self.left_of_tier[cell.tier] += len(cell.ranked)
        self.cost_at_start = self._lacking_at_start()
        self.goal = self.cost_at_start + self._tier_floor(0) + self._shares_floor()
        self._sort_into_kinds()

    # What can be said before anything is placed

    def _within_reach(self, rule: Rule) -> Rule:
        """Return a rule that is not enforced with a target that the places there are can reach."""
        if rule.is_enforced:
            return rule
        places = {getattr(cell.domains, rule.level) for cell in self.cells}
        places |= {getattr(domains, rule.level) for domains in self.ring.fixed.values()}
        return Rule(rule.level, min(rule.target, len(places)), rule.cost, False, rule.noun)

    def cannot_succeed(self) -> bool:
        """Return whether counting alone shows that there is no arrangement."""
        if sum(len(cell.ranked) for cell in self.cells) < len(self.open):
            return True
        return any(
            rule.is_enforced and self._has_too_few_places(rule) for rule in self.rules.required
        )

    def _has_too_few_places(self, rule: Rule) -> bool:
        """Return whether the places cannot carry the ring under an enforced rule.

        A write set of Qw with R places has one place at most Qw - R + 1 times; every position is in Qw of the E
        write sets, so one place holds at most E * (Qw - R + 1) / Qw positions.
        """
        if any(self._must_lack(rule, window) for window in self.windows):
            return True
        if not self.is_whole_ring:
            return False
        size: Counter[str] = Counter()
        for cell in self.cells:
            size[getattr(cell.domains, rule.level)] += len(cell.ranked)
        for domains in self.ring.fixed.values():
            size[getattr(domains, rule.level)] += 1
        write_quorum = self.ring.write_quorum
        share_max = self.ring.ensemble * (write_quorum - rule.target + 1) // write_quorum
        if len(size) < rule.target:
            return True
        return sum(min(share_max, count) for count in size.values()) < self.ring.ensemble

    def _must_lack(self, rule: Rule, window: Sequence[int]) -> int:
        """Return how many domains `window` will lack at least, whatever its open positions get."""
        there = {
            getattr(one, rule.level) for index in window if (one := self.at[index]) is not None
        }
        still_open = sum(self.at[index] is None for index in window)
        return max(0, rule.target - len(there) - still_open)

    def _lacking_at_start(self) -> int:
        return sum(
            rule.cost * self._must_lack(rule, window)
            for rule in self.rules.required
            for window in self.windows
        )

    def _tier_floor(self, depth: int) -> int:
        """Return what the tiers of the bookies for the positions from `depth` on cost at least."""
        needed, floor = len(self.open) - depth, 0
        for tier, count in enumerate(self.left_of_tier):
            taken = min(needed, count)
            floor += taken * TIER_COSTS[tier]
            needed -= taken
        return floor

    def _shares_floor(self) -> int:
        """Return what the most even shares cost, if only sizes mattered: fill the emptiest place each time."""
        if not self.rules.has_even_shares:
            return 0
        size: Counter[str] = Counter()
        for cell in self.cells:
            size[cell.domains.upper] += len(cell.ranked)
        levels = [(self.upper_used[upper], count, upper) for upper, count in size.items()]
        heapify(levels)
        floor = 0
        for _ in self.open:
            used, count, upper = levels[0]
            floor += 2 * used + 1
            # A place that is used up goes behind all that are not.
            heapreplace(levels, (used + 1 if count > 1 else 1 << 30, count - 1, upper))
        return floor

    def _sort_into_kinds(self) -> None:
        """Group the cells that are alike as long as nobody uses their place: same tier, same sizes around."""
        by_whole: dict[str, list[_Cell]] = defaultdict(list)
        for cell in self.cells:
            by_whole[cell.domains.whole].append(cell)
        shape = _numbered(
            {
                whole: tuple(sorted((cell.tier, len(cell.ranked)) for cell in cells))
                for whole, cells in by_whole.items()
            }
        )
        wholes: dict[str, list[str]] = defaultdict(list)
        for whole, cells in by_whole.items():
            wholes[cells[0].domains.upper].append(whole)
        upper_shape = _numbered(
            {
                upper: tuple(sorted(shape[whole] for whole in inside))
                for upper, inside in wholes.items()
            }
        )
        self.cells_of_whole = by_whole
        self.kinds_of_upper: dict[str, dict[object, list[_Cell]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self.kinds: dict[object, list[_Cell]] = defaultdict(list)
        for cell in self.cells:  # by ticket, so that the first of a kind is the luckiest
            upper, whole = cell.domains
            kind = (cell.tier, shape[whole])
            self.kinds_of_upper[upper][kind].append(cell)
            self.kinds[*kind, upper_shape[upper]].append(cell)

    # The way down

    def descend(self, depth: int, cost: int) -> None:
        """Fill the positions from `depth` on in every way that may still be the best."""
        if depth == len(self.open):
            self.best, self.best_cost = dict(self.filled), cost  # better than what was: see below
            return
        position = self.open[depth]
        for option_cost, _, _, _, cell in self._options(position):
            if self.is_exhausted or self.best_cost == self.goal:
                return
            if depth < self.deepest:
                if self.steps.left <= 0:
                    self.is_exhausted = True
                    return
                self.steps.left -= self.price
            self.deepest = max(self.deepest, depth + 1)
            new_cost = cost + option_cost
            self._place(position, cell)
            if self.best_cost is None or new_cost + self._tier_floor(depth + 1) < self.best_cost:
                self.descend(depth + 1, new_cost)
            self._undo(position, cell)

    def _place(self, position: int, cell: _Cell) -> None:
        self.filled[position] = cell.ranked[cell.taken].view.bookie_id
        cell.taken += 1
        self.left_of_tier[cell.tier] -= 1
        self.at[position] = cell.domains
        self.upper_used[cell.domains.upper] += 1
        self.whole_used[cell.domains.whole] += 1

    def _undo(self, position: int, cell: _Cell) -> None:
        del self.filled[position]
        cell.taken -= 1
        self.left_of_tier[cell.tier] += 1
        self.at[position] = None
        self.upper_used[cell.domains.upper] -= 1
        self.whole_used[cell.domains.whole] -= 1

    def _options(self, position: int) -> list[_Option]:
        """Return the cells that `position` may get, cheapest first, then fewest repeats, then by ticket."""
        costs, forbidden, repeats = self._repeat_costs(position)
        options: list[_Option] = []
        for cell in self._different_cells():
            upper, whole = cell.domains
            if ("upper", upper) in forbidden or ("whole", whole) in forbidden:
                continue
            cost = TIER_COSTS[cell.tier] + costs["upper", upper] + costs["whole", whole]
            if self.rules.has_even_shares:
                cost += 2 * self.upper_used[upper] + 1
            ticket = cell.ranked[cell.taken].ticket
            options.append((cost, repeats[whole], ticket, len(options), cell))
        options.sort()
        return options

    def _repeat_costs(
        self, position: int
    ) -> tuple[Counter[tuple[str, str]], set[tuple[str, str]], Counter[str]]:
        """Return what using a domain again at `position` costs, which ones may not be, how often each repeats."""
        costs: Counter[tuple[str, str]] = Counter()
        forbidden: set[tuple[str, str]] = set()
        repeats: Counter[str] = Counter()
        for window in self.windows:
            if position not in window:
                continue
            there = [one for index in window if (one := self.at[index]) is not None]
            repeats.update({one.whole for one in there})
            still_open = len(window) - len(there) - 1
            for rule in self.rules.required:
                used = {getattr(one, rule.level) for one in there}
                if len(used) + still_open >= rule.target:
                    continue  # repeating one is made good by the positions still open
                for name in used:
                    costs[rule.level, name] += rule.cost
                if rule.is_enforced:
                    forbidden |= {(rule.level, name) for name in used}
        return costs, forbidden, repeats

    def _different_cells(self) -> list[_Cell]:
        """Return every cell that differs for the search from those before it, and still has a bookie."""
        found: list[_Cell] = []
        for whole, count in self.whole_used.items():
            if count and whole in self.cells_of_whole:
                found += [cell for cell in self.cells_of_whole[whole] if not cell.is_used_up]
        for upper, count in self.upper_used.items():
            if count and upper in self.kinds_of_upper:
                for kind in self.kinds_of_upper[upper].values():
                    found += _first(
                        cell for cell in kind if not self.whole_used[cell.domains.whole]
                    )
        for kind in self.kinds.values():
            found += _first(cell for cell in kind if not self.upper_used[cell.domains.upper])
        return found


def _numbered(shapes: Mapping[str, Hashable]) -> dict[str, int]:
    """Return a small number for each shape: a shape may be long, and is compared often."""
    numbers: dict[Hashable, int] = {}
    return {name: numbers.setdefault(shape, len(numbers)) for name, shape in shapes.items()}


def _first(cells: Iterable[_Cell]) -> list[_Cell]:
    """Return the first of `cells` in a list, an empty one if there is none."""
    return next(([cell] for cell in cells), [])


def _cells(pool: Sequence[Candidate], policy: Policy, needed: int) -> list[_Cell]:
    """Return the cells of `pool` in the order of their best tickets, each with `needed` candidates at most."""
    cells: dict[tuple[Domains, int], _Cell] = {}
    for candidate in pool:
        domains = domains_of_view(candidate.view, policy)
        cell = cells.setdefault((domains, candidate.tier), _Cell(domains, candidate.tier, []))
        if len(cell.ranked) < needed:
            cell.ranked.append(candidate)
    return list(cells.values())
