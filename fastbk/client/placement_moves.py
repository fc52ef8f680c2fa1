"""Which copies go to other bookies: so that they lie as their ledgers' rules want, and disks fill evenly. Pure.

    planner = MovePlanner(judge, disks)
    for metadata in all_closed: planner.count(metadata)
    planner.begin()
    for metadata in all_closed: moves = planner.plan(metadata).moves

Ledgers come one by one, so a million of them takes no more memory than the bookies do. The same ledgers in the same
order give the same plan.

**Faults** go first. A search tries the moves of one copy, then of two and three: with E > Qw the copy that is in the
way may be another one than the one that is wrong. Each step leaves the fragment as good as it was, or better.

**Even disks**: what metadata says that a bookie holds is compared with its goal, its part of all bytes by the size of
its disk. Metadata counts and not free space, since copies that moved away stay on their disk until gc drops them: a
second run would move as much again. Copies go from bookies above their goals to some below, and never past both. So no
copy moves twice, and no more bytes than lie above the goals. Which copies go is drawn from all of a bookie's, so that
no disk ends with the old ledgers and another one with the new ones. Where a rule keeps copies on a bookie, its goal is
what it can be brought to, and the others' goals are set anew (`end`).

A bookie's copies of all fragments of a ledger go together: gc drops those of whole ledgers only.

Decision 170.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from fastbk.client.ensembles import log_replacements
from fastbk.client.placement_judge import PlacementJudge
from fastbk.errors import NotEnoughBookies
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.placement.choose_ensemble import (
    MINIMUM,
    Domains,
    choose_replacements,
    domains_of_view,
    rules_of,
    windows_of,
)
from fastbk.placement.config import Chance, PlacementConfig
from fastbk.placement.rules import rule_of
from fastbk.replication.copy_check import member_bytes
from fastbk.replication.re_replication import LedgerReReplicated, Move, MoveCopies
from fastbk.replication.repair_options import RepairOptions

if TYPE_CHECKING:
    from fastbk.client import Client

Ensemble: TypeAlias = tuple[BookieId, ...]

MOVES_MAX = 3
"""So many moves may stand on each other to mend one fragment."""
STEPS_MAX = 2_000
"""Ensembles that are tried for one fragment."""
UNUSED_TRIED_MAX = MOVES_MAX + 1
"""Racks without a copy are alike for a rule: so many are tried."""
RANKS_KEPT_MAX = 50_000
TOLERANCE = 0.05
"""Bookies whose bytes differ less than this from their goals are even."""
FREE_SHARE_MIN = 0.1
"""So much of a disk stays free of moved copies."""
PASSES_MAX = 4
TARGETS_TRIED_MAX = 16
DRAWN_FEW_SHARE = 50
GIVEN_SHARE_MIN = 0.02


class Rank(NamedTuple):
    """How far an ensemble is from what its rule wants; lower is better, the first differs before the others."""

    enforced: int
    minimum: int
    wanted: int
    wishes: int

    @property
    def faults(self) -> tuple[int, int]:
        """What the judge reports."""
        return self.enforced, self.minimum


class Ranking:
    """Ranks ensembles by what a judge knows; it keeps its last answers."""

    def __init__(self, judge: PlacementJudge) -> None:
        self.judge = judge
        self._ranks: dict[tuple[Ensemble, int, PlacementConfig], Rank] = {}

    def rank(self, ensemble: Ensemble, write_quorum: int, rule: PlacementConfig) -> Rank:
        """Return the rank of an ensemble."""
        key = (ensemble, write_quorum, rule)
        rank = self._ranks.get(key)
        if rank is None:
            if len(self._ranks) >= RANKS_KEPT_MAX:
                self._ranks.clear()
            rank = self._ranks[key] = self._ranked(ensemble, write_quorum, rule)
        return rank

    def are_known(self, members: Iterable[BookieId], rule: PlacementConfig) -> bool:
        """Return whether somebody says where these bookies are, as far as the rule asks.

        One that is down, and of which only it knows, may come back in any rack: no move is right or wrong beside it.
        """
        if rule.policy == "spread":
            return True
        return all(self.judge.place(member).source != "unknown" for member in members)

    def _ranked(self, ensemble: Ensemble, write_quorum: int, rule: PlacementConfig) -> Rank:
        wanted_rule = self.judge.attainable_rule(rule)
        places = [self.judge.place(member) for member in ensemble]
        domains = [domains_of_view(place.view, rule.policy) for place in places]
        windows = windows_of(len(ensemble), write_quorum)
        enforced = minimum = wanted = wishes = 0
        if rule.group is not None:
            outside = sum(
                place.state != "down" and rule.group not in place.view.labels for place in places
            )
            enforced, minimum = (outside, 0) if rule.group_is_hard else (0, outside)
        for each in rules_of(wanted_rule, write_quorum).required:
            lacks = sum(
                max(0, each.target - len({getattr(domains[index], each.level) for index in window}))
                for window in windows
            )
            if each.is_enforced:
                enforced += lacks
            elif each.cost == MINIMUM:
                minimum += lacks
            else:
                wanted += lacks
        if rule.policy != "spread":
            for window in windows:
                wishes += len(window) - len({domains[index].whole for index in window})
        if rule.policy == "region":
            uppers = [each.upper for each in domains]
            wishes += sum(uppers.count(upper) ** 2 for upper in set(uppers))
        return Rank(enforced, minimum, wanted, wishes)


# --- faults -------------------------------------------------------------------------------------------------------


class _Tried(NamedTuple):
    """An ensemble that moves lead to. `fill`: how full the fullest bookie is that got a copy."""

    rank: Rank
    moves: tuple[Move, ...]
    fill: float

    @property
    def order(self) -> tuple[tuple[int, int], int, Rank, float]:
        return self.rank.faults, len(self.moves), self.rank, self.fill


class Mender:
    """Finds moves for fragments that lie otherwise than their rule wants."""

    def __init__(
        self, ranking: Ranking, fill: Mapping[BookieId, float], avoid: Collection[BookieId] = ()
    ) -> None:
        """`fill`: how full bookies are, for the choice among those that a rule takes. `avoid`: never given copies."""
        self._ranking = ranking
        self._judge = ranking.judge
        self._fill = fill
        self._avoid = set(avoid)
        self._roomless: set[tuple[Ensemble, int, PlacementConfig, frozenset[BookieId]]] = set()
        self._unmendable: set[tuple[Ensemble, int, PlacementConfig]] = set()

    @property
    def avoided(self) -> frozenset[BookieId]:
        """Bookies that get no copies."""
        return frozenset(self._avoid)

    def avoid(self, bookie_id: BookieId) -> None:
        """Give this one no copies from now on."""
        self._avoid.add(bookie_id)

    def mend(self, fragment: Fragment, write_quorum: int, rule: PlacementConfig) -> list[Move]:
        """Return the fewest moves that leave the fewest faults; none where nothing gets better."""
        ensemble = fragment.ensemble
        start = _Tried(self._ranking.rank(ensemble, write_quorum, rule), (), 0.0)
        key = (ensemble, write_quorum, rule)
        if start.rank.faults == (0, 0) or key in self._unmendable:
            return []
        if not self._ranking.are_known(ensemble, rule):
            return []
        best = start
        for tried in self._search(fragment, write_quorum, rule, start):
            if tried.rank.faults < start.rank.faults:
                best = min(best, tried, key=lambda each: each.order)
        if best is start and len(self._unmendable) < RANKS_KEPT_MAX:
            self._unmendable.add(key)
        return list(best.moves)

    def make_room(
        self,
        fragment: Fragment,
        metadata: LedgerMetadata,
        rule: PlacementConfig,
        gone: Collection[BookieId],
        rng: Chance,
    ) -> list[Move]:
        """Return moves of copies that are there, after which the gone members can be replaced by the rule.

        None where they can be as it is, or where nothing helps.
        """
        bad = [index for index, member in enumerate(fragment.ensemble) if member in gone]
        if not self._ranking.are_known(set(fragment.ensemble).difference(gone), rule):
            return []
        views = [
            place.view
            for place in self._judge.places.values()
            if place.state != "down" and place.view.bookie_id not in self._avoid
        ]
        views += [self._judge.place(fragment.ensemble[index]).view for index in bad]

        def is_replaceable(ensemble: Ensemble) -> bool:
            try:
                choose_replacements(
                    views,
                    ensemble,
                    bad,
                    metadata.write_quorum,
                    metadata.ack_quorum,
                    rule,
                    rng,
                    exclude=gone,
                )
            except NotEnoughBookies:
                return False
            return True

        missing = frozenset(fragment.ensemble[index] for index in bad)
        key = (fragment.ensemble, metadata.write_quorum, rule, missing)
        if not bad or key in self._roomless or is_replaceable(fragment.ensemble):
            return []
        start = _Tried(self._ranking.rank(fragment.ensemble, metadata.write_quorum, rule), (), 0.0)
        for tried in self._search(fragment, metadata.write_quorum, rule, start, goes_on=True):
            if is_replaceable(tried.moves[-1].moved_ensemble):
                return list(tried.moves)
        if len(self._roomless) < RANKS_KEPT_MAX:
            self._roomless.add(key)
        return []

    def _search(
        self,
        fragment: Fragment,
        write_quorum: int,
        rule: PlacementConfig,
        start: _Tried,
        *,
        goes_on: bool = False,
    ) -> Iterator[_Tried]:
        """Yield ensembles that moves lead to, the fewest moves first; no step is worse than the one before.

        It ends with the number of moves that leaves no fault, unless it `goes_on`.
        """
        numbers, steps = itertools.count(), 0
        heap = [(0, start.rank, next(numbers), start)]
        tried_before = {fragment.ensemble}
        found_with = MOVES_MAX
        while heap:
            count, *_, before = heapq.heappop(heap)
            if count >= found_with:
                return
            ensemble = before.moves[-1].moved_ensemble if before.moves else fragment.ensemble
            for source, target in self._steps(ensemble, fragment.ensemble, rule):
                move = Move(fragment.first_entry_id, ensemble, source, target)
                after = move.moved_ensemble
                if after in tried_before:
                    continue
                tried_before.add(after)
                steps += 1
                rank = self._ranking.rank(after, write_quorum, rule)
                if rank.faults > before.rank.faults:
                    continue
                fill = max(before.fill, self._fill.get(target, 0.0))
                tried = _Tried(rank, (*before.moves, move), fill)
                yield tried
                if rank.faults == (0, 0) and not goes_on:
                    found_with = count + 1
                heapq.heappush(heap, (count + 1, rank, next(numbers), tried))
            if steps >= STEPS_MAX:
                return

    def _steps(
        self, ensemble: Ensemble, before: Ensemble, rule: PlacementConfig
    ) -> Iterator[tuple[BookieId, BookieId]]:
        """Yield whose copy could go where. Copies that a search moved may go on from there."""
        targets = self._targets(ensemble, before, rule)
        for member in ensemble:
            if self._judge.place(member).state != "down":
                for target in targets:
                    yield member, target

    def _targets(
        self, ensemble: Ensemble, before: Ensemble, rule: PlacementConfig
    ) -> list[BookieId]:
        """Return bookies that could get a copy: the emptiest of each rack, and those that gave one away."""
        used = {domains_of_view(self._judge.place(member).view, rule.policy) for member in ensemble}
        emptiest: dict[tuple[Domains, bool], tuple[float, BookieId]] = {}
        back: list[BookieId] = []
        for bookie_id, place in self._judge.places.items():
            is_of_group = rule.group is None or rule.group in place.view.labels
            if (
                place.state != "up"
                or bookie_id in ensemble
                or bookie_id in self._avoid
                or (rule.group_is_hard and not is_of_group)
            ):
                continue
            if bookie_id in before:
                back.append(bookie_id)
                continue
            kind = (domains_of_view(place.view, rule.policy), is_of_group)
            fill = (self._fill.get(bookie_id, 0.0), bookie_id)
            emptiest[kind] = min(emptiest.get(kind, fill), fill)
        targets = list(back)
        unused: dict[tuple[str, bool], int] = {}
        uppers_unused: set[str] = set()
        for (domains, is_of_group), (_, bookie_id) in sorted(
            emptiest.items(), key=lambda each: each[1]
        ):
            if domains not in used:
                group = (domains.upper, is_of_group)
                unused[group] = unused.get(group, 0) + 1
                if all(domains.upper != each.upper for each in used):
                    uppers_unused.add(domains.upper)
                if unused[group] > UNUSED_TRIED_MAX or len(uppers_unused) > UNUSED_TRIED_MAX:
                    continue
            targets.append(bookie_id)
        return targets


# --- even disks ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Disk:
    """A bookie's ledger disks."""

    size_bytes: int
    free_bytes: int


@dataclass(slots=True)
class LedgerMoves:
    """What is to be moved of one ledger.

    Attributes:
        moves: in their order. size_bytes: of each, estimated.
        mended: fragments that get fewer faults. unmended: misplaced ones for which no moves were found.
    """

    moves: list[Move] = field(default_factory=list)
    size_bytes: list[int] = field(default_factory=list)
    mended: int = 0
    unmended: int = 0

    def add(self, moves: Iterable[Move], size_bytes: int) -> None:
        """Add moves of a fragment."""
        for move in moves:
            self.moves.append(move)
            self.size_bytes.append(size_bytes)


@dataclass(slots=True)
class _Balance:
    """One bookie in a pass.

    Attributes:
        above_bytes: that are to go. room_bytes: that may come.
        left_bytes: of copies that the pass has not come to.
        drawn_bytes: of copies that were to go. given_bytes: of those that found a bookie.
    """

    disk: Disk
    is_target: bool
    is_leaving: bool
    held_bytes: int = 0
    goal_bytes: int = 0
    is_stuck: bool = False
    now_bytes: int = 0
    left_bytes: int = 0
    above_bytes: int = 0
    room_bytes: int = 0
    drawn_bytes: int = 0
    given_bytes: int = 0

    @property
    def given_share(self) -> float:
        """Which part of its copies finds a bookie, as far as the pass has seen: rules keep the others here."""
        few = self.held_bytes / DRAWN_FEW_SHARE
        return max(GIVEN_SHARE_MIN, (self.given_bytes + few) / (self.drawn_bytes + few + 1))


class MovePlanner:
    """Plans moves of all ledgers: faults, and then even disks unless it is told of faults only."""

    def __init__(
        self,
        judge: PlacementJudge,
        disks: Mapping[BookieId, Disk],
        *,
        leaving: Collection[BookieId] = (),
        faults_only: bool = False,
        seed: int = 0,
        tolerance: float = TOLERANCE,
    ) -> None:
        """`disks`: of all registered bookies. `leaving`: bookies that are to hold nothing in the end."""
        self._ranking = Ranking(judge)
        self._judge = judge
        self._seed = seed
        self._tolerance = tolerance
        self._is_evening = not faults_only
        self._rng = random.Random(seed)
        self._balances = {
            bookie_id: _Balance(
                disk,
                judge.place(bookie_id).state == "up" and bookie_id not in leaving,
                bookie_id in leaving,
            )
            for bookie_id, disk in sorted(disks.items())
        }
        self._fill: dict[BookieId, float] = {}
        self._mender = Mender(self._ranking, self._fill, leaving)

    def count(self, metadata: LedgerMetadata) -> None:
        """Count what bookies hold of a ledger."""
        for index, fragment in enumerate(metadata.fragments):
            size_bytes = member_bytes(metadata, index)
            for member in fragment.ensemble:
                if (balance := self._balances.get(member)) is not None:
                    balance.held_bytes += size_bytes

    @property
    def held_bytes(self) -> dict[BookieId, int]:
        """What bookies hold by metadata, as it was counted."""
        return {bookie_id: each.held_bytes for bookie_id, each in self._balances.items()}

    @property
    def planned_bytes(self) -> dict[BookieId, int]:
        """What bookies hold once all that was planned is done."""
        return {bookie_id: each.now_bytes for bookie_id, each in self._balances.items()}

    @property
    def least_bytes(self) -> int:
        """The fewest bytes that have to go so that every bookie holds its goal, if no rule were in the way."""
        return sum(max(0, each.held_bytes - each.goal_bytes) for each in self._balances.values())

    def begin(self) -> None:
        """Begin a pass over all ledgers, by the goals as they are known."""
        self._rng = random.Random(self._seed)
        self._set_goals()
        is_even = all(
            each.is_stuck
            or abs(each.held_bytes - each.goal_bytes) <= self._tolerance * each.goal_bytes
            for each in self._balances.values()
        )
        for bookie_id, each in self._balances.items():
            each.now_bytes = each.left_bytes = each.held_bytes
            each.above_bytes = each.room_bytes = each.drawn_bytes = each.given_bytes = 0
            if self._is_evening and not is_even:
                each.above_bytes = max(0, each.held_bytes - each.goal_bytes)
                if each.is_target:
                    spare = each.disk.free_bytes - int(FREE_SHARE_MIN * each.disk.size_bytes)
                    each.room_bytes = max(0, min(each.goal_bytes - each.held_bytes, spare))
            self._note_fill(bookie_id)

    def end(self) -> bool:
        """End a pass; return whether another one has better goals: rules keep copies on bookies above theirs."""
        stuck = [
            each
            for each in self._balances.values()
            if not (each.is_stuck or each.is_leaving)
            and each.above_bytes > self._tolerance * each.goal_bytes
        ]
        for each in stuck:
            each.is_stuck = True
            each.goal_bytes += each.above_bytes
        return bool(stuck)

    def _set_goals(self) -> None:
        """Give each bookie its part of what those have not that are stuck."""
        every = self._balances.values()
        while True:
            free = [each for each in every if not each.is_stuck and not each.is_leaving]
            total_bytes = sum(each.held_bytes for each in every)
            total_bytes -= sum(each.goal_bytes for each in every if each.is_stuck)
            size_bytes = max(1, sum(each.disk.size_bytes for each in free))
            for each in free:
                each.goal_bytes = max(0, total_bytes) * each.disk.size_bytes // size_bytes
            # One that takes no adds can only give.
            low = [
                each for each in free if not each.is_target and each.held_bytes < each.goal_bytes
            ]
            for each in low:
                each.goal_bytes, each.is_stuck = each.held_bytes, True
            if not low:
                return

    def plan(self, metadata: LedgerMetadata) -> LedgerMoves:
        """Return the moves of the next ledger."""
        planned = LedgerMoves()
        if not metadata.is_closed:
            return planned
        rule = rule_of(metadata.custom, self._judge.rules.rule)
        fragments = [
            self._mended(planned, metadata, index, rule) for index in range(len(metadata.fragments))
        ]
        if self._is_evening:
            self._even(planned, metadata, fragments, rule)
        return planned

    def give_up(self, moves: Iterable[tuple[Move, int]]) -> None:
        """Note that planned moves, each with its bytes, were not made."""
        for move, size_bytes in moves:
            self._moved(move.target, move.source, size_bytes)
            if (source := self._balances.get(move.source)) is not None and self._is_evening:
                above_bytes = min(
                    source.above_bytes + size_bytes, source.now_bytes - source.goal_bytes
                )
                source.above_bytes = max(source.above_bytes, above_bytes)

    def judge_by(self, judge: PlacementJudge) -> None:
        """Go by rules and places as they are now; what was planned stays, and bookies that came get nothing yet."""
        self._judge = judge
        self._ranking = Ranking(judge)
        avoid = self._mender.avoided | (judge.places.keys() - self._balances.keys())
        self._mender = Mender(self._ranking, self._fill, avoid)

    def leave_out(self, bookie_id: BookieId) -> None:
        """Plan no more moves to a bookie."""
        self._mender.avoid(bookie_id)
        if (balance := self._balances.get(bookie_id)) is not None:
            balance.is_target = False
            balance.room_bytes = 0

    # --- one ledger --------------------------------------------------------------------------------------------

    def _mended(
        self, planned: LedgerMoves, metadata: LedgerMetadata, index: int, rule: PlacementConfig
    ) -> Fragment:
        """Plan what a fragment needs by its rule; return how it is then."""
        fragment, size_bytes = metadata.fragments[index], member_bytes(metadata, index)
        if not _has_entries(metadata, index):
            return fragment
        rank = self._ranking.rank(fragment.ensemble, metadata.write_quorum, rule)
        if rank.faults == (0, 0):
            return fragment
        moves = self._mender.mend(fragment, metadata.write_quorum, rule)
        planned.mended += bool(moves)
        planned.unmended += not moves
        planned.add(moves, size_bytes)
        for move in moves:
            self._moved(move.source, move.target, size_bytes)
        return Fragment(fragment.first_entry_id, moves[-1].moved_ensemble) if moves else fragment

    def _even(
        self,
        planned: LedgerMoves,
        metadata: LedgerMetadata,
        fragments: list[Fragment],
        rule: PlacementConfig,
    ) -> None:
        held: dict[BookieId, int] = {}
        for index, fragment in enumerate(fragments):
            for member in fragment.ensemble:
                held[member] = held.get(member, 0) + member_bytes(metadata, index)
        unsure = {
            member
            for fragment in fragments
            if not self._ranking.are_known(fragment.ensemble, rule)
            for member in fragment.ensemble
        }
        for member, size_bytes in held.items():
            balance = self._balances.get(member)
            if member in unsure or balance is None or not self._is_drawn(balance, size_bytes):
                continue
            target = self._target_of(member, size_bytes, fragments, metadata.write_quorum, rule)
            balance.drawn_bytes += size_bytes
            if target is None:
                continue
            balance.given_bytes += size_bytes
            for index, fragment in enumerate(fragments):
                if member not in fragment.ensemble:
                    continue
                move = Move(fragment.first_entry_id, fragment.ensemble, member, target)
                planned.add([move], member_bytes(metadata, index))
                fragments[index] = Fragment(fragment.first_entry_id, move.moved_ensemble)
            self._moved(member, target, size_bytes)

    def _is_drawn(self, balance: _Balance, size_bytes: int) -> bool:
        """Draw whether a copy goes, so that in the end as much goes as lies above the goal."""
        left_bytes, balance.left_bytes = balance.left_bytes, balance.left_bytes - size_bytes
        if balance.is_leaving:
            return True
        if not size_bytes or size_bytes > 2 * balance.above_bytes:
            return False
        return self._rng.random() * left_bytes * balance.given_share < balance.above_bytes

    def _target_of(
        self,
        source: BookieId,
        size_bytes: int,
        fragments: list[Fragment],
        write_quorum: int,
        rule: PlacementConfig,
    ) -> BookieId | None:
        """Return a bookie below its goal that could take a member's place everywhere; None: there is none."""
        concerned = [each.ensemble for each in fragments if source in each.ensemble]
        members = {member for ensemble in concerned for member in ensemble}
        is_leaving = self._balances[source].is_leaving
        drawn = [
            (self._rng.expovariate(room), bookie_id)
            for bookie_id, each in self._balances.items()
            if each.is_target
            and bookie_id not in members
            and (room := each.room_bytes / max(1, each.disk.size_bytes)) > 0
            and (is_leaving or size_bytes <= 2 * each.room_bytes)
        ]
        for _, bookie_id in heapq.nsmallest(TARGETS_TRIED_MAX, drawn):
            if self._may_replace(source, bookie_id, concerned, write_quorum, rule):
                return bookie_id
        if is_leaving:
            emptiest = sorted(
                (self._fill.get(bookie_id, 0.0), bookie_id)
                for bookie_id, each in self._balances.items()
                if each.is_target and bookie_id not in members
            )
            for _, bookie_id in emptiest:
                if self._may_replace(source, bookie_id, concerned, write_quorum, rule):
                    return bookie_id
        return None

    def _may_replace(
        self,
        source: BookieId,
        target: BookieId,
        ensembles: Iterable[Ensemble],
        write_quorum: int,
        rule: PlacementConfig,
    ) -> bool:
        """Return whether no ensemble is worse with a bookie in another one's place."""
        if rule.group is not None and rule.group not in self._judge.place(target).view.labels:
            return False
        rank = self._ranking.rank
        return all(
            rank(
                tuple(target if member == source else member for member in ensemble),
                write_quorum,
                rule,
            )
            <= rank(ensemble, write_quorum, rule)
            for ensemble in ensembles
        )

    def _moved(self, source: BookieId, target: BookieId, size_bytes: int) -> None:
        for bookie_id, change in ((source, -size_bytes), (target, size_bytes)):
            balance = self._balances.get(bookie_id)
            if balance is not None:
                balance.now_bytes += change
                balance.above_bytes = max(0, balance.above_bytes + min(0, change))
                balance.room_bytes = max(0, balance.room_bytes - max(0, change))
                self._note_fill(bookie_id)

    def _note_fill(self, bookie_id: BookieId) -> None:
        balance = self._balances[bookie_id]
        self._fill[bookie_id] = balance.now_bytes / max(1, balance.disk.size_bytes)


def _has_entries(metadata: LedgerMetadata, index: int) -> bool:
    firsts = [each.first_entry_id for each in metadata.fragments]
    end: EntryId = firsts[index + 1] - 1 if index + 1 < len(firsts) else metadata.last_entry_id
    return end >= firsts[index]


# --- moving -------------------------------------------------------------------------------------------------------


async def move_copies(
    client: Client,
    ledger_id: LedgerId,
    moves: Sequence[Move],
    options: RepairOptions,
    cause: str,
    unlisted: Collection[BookieId] = (),
) -> LedgerReReplicated:
    """Make moves of one ledger; the caller holds its lock. Raises NoSuchLedger. `cause`: of the ledger's events."""
    metadata = (await client.ledger_info(ledger_id)).metadata
    procedure = MoveCopies(ledger_id, moves, options, unlisted=unlisted)
    try:
        return await client.run_procedure(ledger_id, metadata, procedure)
    finally:
        log_replacements(client.pool, ledger_id, cause, procedure.repaired.replacements)
