"""The auditor's rounds over all closed ledgers: do their copies lie where their rules want them?

    audit = PlacementAudit(client)
    await audit.run(lambda: True)          # called again and again; most calls find that no round is due
    for ledger in audit.misplaced:         # what the last whole round found, the worst first
        ...

A round reads metadata, a page at a time, and asks no bookie (`fastbk.client.placement_judge`). A new auditor begins
one at once. Others begin after `interval_s`, when bookies came, left or moved, and when the cluster's rule changed.

No ledger has a mark of its own for this. A ledger's rule and its bookies stand in its metadata, and say at any time
whether both fit: a mark would be a second word on the same matter, and of ledgers of Apache's clients there would be
none (decision 171).

A bookie that is down counts as being where this auditor saw it last, so that a restart mends nothing and breaks
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from fastbk.autorecovery.state import PlacementCounts, clock_ms
from fastbk.client import Client
from fastbk.client.placement_judge import (
    BookiePlace,
    LedgerVerdict,
    MisplacedFragment,
    PlacementJudge,
    read_judge,
)
from fastbk.limits import RateLimit
from fastbk.meta import MetadataStore
from fastbk.meta.api import Check, VersionedLedger
from fastbk.meta.health_records import (
    MISPLACED_NAMED_MAX,
    PlacementFaults,
    note_placement_faults,
    read_placement_faults,
)
from fastbk.model.ids import BookieId, LedgerId
from fastbk.observe.library_log import LibraryLog

_log = LibraryLog("fastbk.autorecovery")
INTERVAL_S = 3600.0
"""Between the ends of two rounds, while nothing changes."""
CHANGED_PAUSE_S = 60.0
"""After a round, at least, before another one that a change of bookies or rules causes."""
LEDGERS_PER_S = 1000.0
PAGE_LEDGERS = 100
RUN_S = 20.0
MISPLACED_KEPT_MAX = 10_000


@dataclass(frozen=True, slots=True)
class MisplacedLedger:
    """A ledger that breaks its rule. `is_enforced`: the rule forbids it. `reason`: of its first such fragment."""

    ledger_id: LedgerId
    is_enforced: bool
    namespace: str
    reason: str


@dataclass(slots=True)
class _Round:
    """A round under way. `after`: ledgers up to this id are done."""

    began_ms: int
    after: LedgerId = -1
    ledgers: int = 0
    unsure: int = 0
    counts: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    misplaced: dict[bool, list[MisplacedLedger]] = field(
        default_factory=lambda: {True: [], False: []}
    )
    """By whether a rule forbids it, at most `MISPLACED_KEPT_MAX` of each kind."""

    def take(self, verdict: LedgerVerdict) -> None:
        """Count one ledger."""
        self.ledgers += 1
        self.unsure += verdict.unsure > 0
        misplaced = verdict.enforced or verdict.soft
        if misplaced:
            is_enforced = bool(verdict.enforced)
            self.counts[is_enforced] += 1
            if len(self.misplaced[is_enforced]) < MISPLACED_KEPT_MAX:
                self.misplaced[is_enforced].append(_misplaced(misplaced[0], is_enforced))

    def worst(self) -> tuple[MisplacedLedger, ...]:
        """Return what was found, as far as it is kept; first what a rule forbids."""
        soft = self.misplaced[False]
        # Where nothing mends those that a rule forbids, the others still have their turns.
        kept = max(MISPLACED_KEPT_MAX // 2, MISPLACED_KEPT_MAX - len(soft))
        return (*self.misplaced[True][:kept], *soft)[:MISPLACED_KEPT_MAX]


def _misplaced(fragment: MisplacedFragment, is_enforced: bool) -> MisplacedLedger:
    return MisplacedLedger(fragment.ledger_id, is_enforced, fragment.namespace, fragment.reasons[0])


class PlacementAudit:
    """The rounds of one auditor.

    Attributes:
        misplaced: the ledgers that the last whole round found misplaced: first those that an enforced rule forbids,
            then the others, each by id; at most `MISPLACED_KEPT_MAX`. Empty before the first round has ended. They
            were so then: judge a ledger anew before acting on it.
        last_places: where bookies are, or were when they were up last.
        ended_ms: when that round ended, in ms since 1970; 0: none has.
    """

    def __init__(
        self,
        client: Client,
        *,
        interval_s: float = INTERVAL_S,
        ledgers_per_s: float = LEDGERS_PER_S,
        counts: PlacementCounts | None = None,
    ) -> None:
        """`interval_s`: between two rounds; 0: there are none."""
        self.counts = PlacementCounts() if counts is None else counts
        self.misplaced: tuple[MisplacedLedger, ...] = ()
        self.ended_ms = 0
        self._client = client
        self._interval_s = interval_s
        self._pace = RateLimit(ledgers_per_s)
        self._round: _Round | None = None
        self._is_requested = False
        self.last_places: dict[BookieId, BookiePlace] = {}
        self._judged_by: object = None
        """The rules and places that the last round began with."""

    def request(self) -> None:
        """Have another round begin soon: the caller has moved copies, say."""
        self._is_requested = True

    def mended(self, ledger_id: LedgerId) -> None:
        """Take a ledger off the list that lies as its rule wants it by now. Counts follow with the next round."""
        self.misplaced = tuple(each for each in self.misplaced if each.ledger_id != ledger_id)

    async def run(self, may_work: Callable[[], bool]) -> None:
        """Check ledgers for at most about `RUN_S` seconds, if a round is under way or due."""
        if self._interval_s <= 0:
            return
        judge = await self._client.call_store(partial(_judge_of, self.last_places))
        self.last_places |= {
            bookie_id: place for bookie_id, place in judge.places.items() if place.state != "down"
        }
        if self._round is None:
            if not await self._is_due(judge):
                return
            self._round = _Round(clock_ms())
            self._is_requested = False
            self._judged_by = _facts_of(judge)
        loop = asyncio.get_running_loop()
        end_s = loop.time() + RUN_S
        while may_work() and loop.time() < end_s:
            page = await self._client.call_store(partial(_page_after, judge, self._round.after))
            if page is None:
                await self._end(self._round)
                return
            self._round.after = page.last_id
            for verdict in page.verdicts:
                self._round.take(verdict)
            self.counts.ledgers += len(page.verdicts)
            await asyncio.sleep(self._pace.take(page.size))

    async def _is_due(self, judge: PlacementJudge) -> bool:
        if self._is_requested or not self.ended_ms:
            return True
        now_ms = clock_ms()
        if self._judged_by != _facts_of(judge) and now_ms - self.ended_ms >= CHANGED_PAUSE_S * 1000:
            return True
        # Apache's tools have a check begin by putting this time back.
        ended_ms = await self._client.call_store(
            lambda store: store.coordination.check_time_ms(Check.PLACEMENT)
        )
        return now_ms - ended_ms >= self._interval_s * 1000

    async def _end(self, done: _Round) -> None:
        now_ms = clock_ms()
        before = await self._client.call_store(read_placement_faults) or PlacementFaults()
        worst = done.worst()
        first = worst[:MISPLACED_NAMED_MAX]
        faults = PlacementFaults(
            ended_ms=now_ms,
            ledgers=done.ledgers,
            enforced=done.counts[True],
            soft=done.counts[False],
            first=tuple(each.ledger_id for each in first),
            reason=first[0].reason if first else "",
        )
        self._log_round(before, faults, worst)
        await self._client.call_store(partial(note_placement_faults, faults=faults))
        await self._client.call_store(
            lambda store: store.coordination.set_check_time(Check.PLACEMENT, now_ms)
        )
        self.counts.ended(done.counts[True], done.counts[False], done.unsure, now_ms)
        self.counts.round_ms.add(now_ms - done.began_ms)
        self.misplaced, self.ended_ms, self._round = worst, now_ms, None

    def _log_round(
        self, before: PlacementFaults, faults: PlacementFaults, worst: Iterable[MisplacedLedger]
    ) -> None:
        """Log one line for a round that found something else than the one before, however much that is."""
        counts, counts_before = (faults.enforced, faults.soft), (before.enforced, before.soft)
        if self.ended_ms:
            now = {each.ledger_id for each in worst}
            known = {each.ledger_id for each in self.misplaced}
            appeared, mended = len(now - known), len(known - now)
        else:  # the record of another auditor's last round has counts, and not all names
            more = sum(counts) - sum(counts_before)
            appeared, mended = max(0, more), max(0, -more)
        if counts == counts_before and not (appeared or mended):
            return
        if not any(counts):
            _log.info("autorecovery.placement_mended", ledgers=before.enforced + before.soft)
            return
        _log.warning(
            "autorecovery.ledgers_misplaced",
            enforced=faults.enforced,
            soft=faults.soft,
            appeared=appeared,
            mended=mended,
            first=list(faults.first),
            reason=faults.reason,
        )


@dataclass(frozen=True, slots=True)
class _Page:
    """Ledgers that were read together, up to `last_id`; verdicts of those that are closed."""

    last_id: LedgerId
    size: int
    verdicts: list[LedgerVerdict]


def _page_after(judge: PlacementJudge, after: LedgerId, store: MetadataStore) -> _Page | None:
    """Judge the next ledgers above `after`; None: there are no more."""
    ids = store.list_ledgers(after, PAGE_LEDGERS)
    if not ids:
        return None
    verdicts = [
        judge.judge_ledger(ledger_id, read.metadata)
        for ledger_id, read in zip(ids, store.read_ledgers(ids), strict=True)
        if isinstance(read, VersionedLedger)
        and read.metadata.is_closed
        and not read.metadata.is_placeholder
    ]
    return _Page(ids[-1], len(ids), verdicts)


def _judge_of(last_places: Mapping[BookieId, BookiePlace], store: MetadataStore) -> PlacementJudge:
    return read_judge(store, last_places=last_places)


def _facts_of(judge: PlacementJudge) -> object:
    """Return what verdicts depend on; it is the same while bookies only restart."""
    places = {
        bookie_id: (place.view.location, place.view.labels)
        for bookie_id, place in judge.places.items()
    }
    return judge.rules, places
