"""Ensembles of the asyncio client: how bookies that answer are chosen, and how changes are logged and reported."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from fastbk.client.bookie_pool import BookiePool
from fastbk.client.metadata_calls import MetadataCalls
from fastbk.errors import Error, MetadataUnavailable, NotEnoughBookies, Unauthorized
from fastbk.limits import RateLimit
from fastbk.meta.placement_record import read_rules
from fastbk.model.ids import BookieId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.observe.library_log import LibraryLog
from fastbk.observe.meter import Figures, Source, meter_of
from fastbk.placement.choose_ensemble import (
    ChosenEnsemble,
    attainable,
    choose_ensemble,
    choose_partial_ensemble,
    choose_replacements,
    sorted_faults,
)
from fastbk.placement.config import BookieView, Chance, PlacementConfig
from fastbk.placement.rules import (
    DEFAULT_RULE,
    ClusterPlaces,
    ClusterRules,
    narrowed,
    rule_of,
    with_preferences,
)
from fastbk.replication.metadata_update import Replacement
from fastbk.replication.procedure import Choose, Replaced
from fastbk.wire.messages import REPORT, REPORT_BYTES_MAX, Hello, encode_hello, error_text
from fastbk.wire.statuses import Status

if TYPE_CHECKING:
    from fastbk.client.connection import Answer

T = TypeVar("T")

_log = LibraryLog("fastbk.client")
REPLACED = "ledger.bookie_replaced"
RULES_READ_INTERVAL_S = 10.0
"""The cluster's rules are known since so long at most, where metadata answers."""


class Ensembles:
    """One client's."""

    def __init__(self, pool: BookiePool, store: MetadataCalls) -> None:
        self._pool = pool
        self._config = pool.config
        self._store = store
        self._rng = random.Random()
        self._rules: ClusterRules | None = None
        self._rules_read_s = float("-inf")
        self.short = ShortPlacements(pool, store)
        self._locating: asyncio.Task[None] | None = None

    async def rule_of_new(self, wish: PlacementConfig) -> PlacementConfig:
        """Return what a new ledger is to keep to: the cluster's rule, narrowed (INV-P3). Raises ConfigError."""
        return narrowed(await self._cluster_rule(), wish)

    @property
    def cluster_rule(self) -> PlacementConfig:
        """The cluster's rule, as it was known last."""
        return DEFAULT_RULE if self._rules is None else self._rules.rule

    def forget_rules(self) -> None:
        """Have the rules be read again before the next choice: somebody has refused what they led to."""
        self._rules_read_s = float("-inf")

    async def _cluster_rule(self) -> PlacementConfig:
        known, now_s = self._rules, asyncio.get_running_loop().time()
        if known is not None and now_s - self._rules_read_s < RULES_READ_INTERVAL_S:
            return known.rule
        self._rules_read_s = now_s  # others go by what is known meanwhile
        try:
            rules = await self._store.call(read_rules)
        except MetadataUnavailable:
            if known is None:
                raise
            return known.rule
        except Unauthorized:
            # A gateway of a version before 0.4 does not know the record.
            rules = ClusterRules()
        if rules != self._rules:
            self._rules = rules
            self._pool.known.take_places(ClusterPlaces(rules))
        return rules.rule

    async def locate(self) -> None:
        """Know where bookies are before the first of them is read from.

        Later nobody waits for it: what is known goes on to count while it is read again.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s - self._rules_read_s < RULES_READ_INTERVAL_S:
            return
        if self._locating is None or self._locating.done():
            self._locating = asyncio.get_running_loop().create_task(self._locate())
        if self._rules is None:
            # Not shield: the client's end cancels the task, and not who waits for it.
            await asyncio.wait([self._locating])

    def cancel(self) -> None:
        """Read nothing more: the client ends."""
        if self._locating is not None:
            self._locating.cancel()

    async def _locate(self) -> None:
        with contextlib.suppress(Error):  # without it, all bookies are as far
            await self._cluster_rule()
            if self._pool.known.age_s(asyncio.get_running_loop().time()) == float("inf"):
                await self._pool.bookies()

    async def new(
        self, shape: LedgerMetadata, wish: PlacementConfig, *, allow_missing_bookies: bool
    ) -> ChosenEnsemble:
        """Choose bookies that answer for a new ledger; see `Client.create_ledger`. Raises NotEnoughBookies.

        While the bookies are watched, the list of the last change will do, unless too few of it answer.
        """
        quorums = (shape.ensemble_size, shape.write_quorum, shape.ack_quorum)
        before = self._pool.listed
        if before is not None and not allow_missing_bookies:
            choosing = new_ensemble(self._views, *quorums, wish, self._rng)
            try:
                return await self._reached(choosing, self._config.connect_timeout)
            except NotEnoughBookies:
                if await self._pool.bookies() == before:
                    raise
        else:
            await self._pool.bookies()
        missed: dict[BookieId, str] = {}
        choosing = new_ensemble(self._views, *quorums, wish, self._rng, missed)
        if not allow_missing_bookies:
            return await self._reached(choosing, self._config.connect_timeout)
        try:
            return await self._reached(choosing, self._config.probe_timeout)
        except NotEnoughBookies:
            identities = await self._store.call(lambda store: store.list_identities())
        known = self._pool.known
        partial = partial_ensemble(
            self._views, lambda: known.away_views(identities), *quorums, wish, self._rng, missed
        )
        chosen = await self._reached(partial, self._config.probe_timeout)
        known.expect([identity for identity in identities if identity.bookie_id in chosen.away])
        return chosen

    async def replace(
        self,
        ledger_id: LedgerId,
        action: Choose,
        metadata: LedgerMetadata,
        preferences: PlacementConfig,
    ) -> Replaced:
        """Choose bookies that answer in place of bad members of a ledger's ensemble, by the ledger's rule (INV-P4).

        A member that is not registered counts as being where it was seen last: it may come back.
        """
        try:
            await self._pool.bookies()
        except MetadataUnavailable:
            # The last known list has to do.
            if self._pool.known.age_s(asyncio.get_running_loop().time()) == float("inf"):
                raise
        cluster = with_preferences(await self._cluster_rule(), preferences)
        config = rule_of(metadata.custom, cluster)
        quorums = (metadata.write_quorum, metadata.ack_quorum)

        def views() -> Sequence[BookieView]:
            return [*self._pool.known.members(action.ensemble), *self._views()]

        choosing = replacements(views, action, *quorums, config, self._rng)
        replaced = await self._reached(choosing, self._config.probe_timeout)
        if replaced.chosen:
            ensemble = [
                replaced.chosen.get(index, one) for index, one in enumerate(action.ensemble)
            ]
            among = frozenset(replaced.chosen)
            await self.short.check(ledger_id, ensemble, metadata.write_quorum, config, among)
        return replaced

    async def note_created(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, rule: PlacementConfig
    ) -> None:
        """Note whether a new ledger keeps less than its rule's minimums."""
        ensemble = metadata.fragments[0].ensemble
        await self.short.check(ledger_id, ensemble, metadata.write_quorum, rule)

    def _views(self) -> Sequence[BookieView]:
        return self._pool.known.views(asyncio.get_running_loop().time())

    async def _reached(self, choosing: Choosing[T], timeout_s: float) -> T:
        """Connect to what is chosen until all of it answers."""
        refusals: dict[BookieId, str] = {}
        has_reached = False
        try:
            bookie_ids = next(choosing)
            while True:
                missed = await self._pool.reach(bookie_ids, timeout_s)
                has_reached = has_reached or len(missed) < len(bookie_ids)
                refusals |= {
                    one: str(error)
                    for one, error in missed.items()
                    if isinstance(error, Unauthorized)
                }
                bookie_ids = choosing.send({one: str(error) for one, error in missed.items()})
        except StopIteration as end:
            chosen: T = end.value
            return chosen
        except NotEnoughBookies as error:
            if has_reached or not refusals:
                raise
            # There are bookies enough, but not for this client. As a rule all say the same.
            reasons = error.replicas if len(set(refusals.values())) > 1 else {}
            raise Unauthorized(next(iter(refusals.values())), replicas=reasons) from error


def client_name() -> str:
    """Return how other people find this client: its host and process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def log_replacements(
    pool: BookiePool, ledger_id: LedgerId, cause: str, replacements: Iterable[Replacement]
) -> None:
    """Log each of them, and report it to the bookie that came. `cause`: writer, repair and so on."""
    for replacement in replacements:
        fields: dict[str, Any] = {
            "ledger_id": ledger_id,
            "first_entry_id": replacement.first_entry_id,
            "bookie": replacement.bookie_id,
            "replacement": replacement.replacement,
            "index": replacement.index,
            "reason": replacement.reason,
            "cause": cause,
            "client": client_name(),
        }
        # An operator who recovers a bookie wants to know of the progress, not of each of its ledgers.
        is_wanted = cause in ("repair", "rebalance", "placement")
        (_log.info if is_wanted else _log.warning)(REPLACED, **fields)
        send_report(pool, replacement.replacement, REPLACED, fields)


def drain(replacements: list[Replacement]) -> list[Replacement]:
    """Return what is in a list, and empty it."""
    taken = replacements[:]
    replacements.clear()
    return taken


# --- choices that keep less than a rule's minimum ------------------------------------------------
#
# Where a rule is not enforced, a ledger is created and a bookie is replaced with whatever is left.
# That is counted and told. Nothing is written down for it: the ledger's metadata say all that the
# auditor needs to find it again (`fastbk.autorecovery.placement_audit`).


PLACED_SHORT = "ledger.placed_short"
REPORTS_PER_S, REPORTS_BURST_S = 1.0, 20.0
"""So many are told; all are counted."""


class ShortPlacements:
    """What one client chose with less than a rule's minimum, or outside its group, since neither is enforced.

    Attributes:
        count: of such choices since the client was made.
    """

    def __init__(self, pool: BookiePool, store: MetadataCalls) -> None:
        self.count = 0
        self._pool = pool
        self._store = store
        self._source: Source | None = None
        self._untold = 0
        self._limit = RateLimit(REPORTS_PER_S, burst_s=REPORTS_BURST_S, is_rested=True)
        self._attainable: tuple[object, PlacementConfig] | None = None
        """What of the last rule the cluster's bookies could keep, those included that are down."""

    async def check(
        self,
        ledger_id: LedgerId,
        ensemble: Sequence[BookieId],
        write_quorum: int,
        rule: PlacementConfig,
        among: frozenset[int] | None = None,
    ) -> None:
        """Count and tell a choice that falls short of what the cluster's bookies could keep if all were up.

        Where those are that are down, the cluster's table says, or this client has seen it. `among`: the indexes that
        were chosen; None: all.
        """
        views = self._pool.known.members(ensemble)

        def faults(wanted: PlacementConfig) -> list[str]:
            found = sorted_faults(views, ensemble, write_quorum, wanted, among)
            return [fault.reason for fault in found if not fault.is_enforced]

        if faults(rule) and (short := faults(await self._as_far_as_possible(rule))):
            self.count += 1
            self._measure()
            self._report(ledger_id, ensemble, short)

    def close(self) -> None:
        """Measure nothing more."""
        if self._source is not None:
            self._source.close()

    def _measure(self) -> None:
        meter = meter_of(self._pool.config.tracing)
        if meter is not None and self._source is None:
            self._source = meter.add({"messaging.system": "fastbk"}, self._figures)

    def _figures(self) -> Figures:
        return {"fastbk.client.placements.short": self.count}

    async def _as_far_as_possible(self, rule: PlacementConfig) -> PlacementConfig:
        known = self._pool.known
        depends_on = known.updates, known.locations.cluster, rule
        if self._attainable is None or self._attainable[0] != depends_on:
            everyone = {one.service.bookie_id for one in known.listed()}
            if known.locations.cluster.is_known:
                with suppress(MetadataUnavailable, Unauthorized):
                    identities = await self._store.call(lambda store: store.list_identities())
                    everyone.update(identity.bookie_id for identity in identities)
            self._attainable = depends_on, attainable(known.members(everyone), rule)
        return self._attainable[1]

    def _report(
        self, ledger_id: LedgerId, ensemble: Sequence[BookieId], faults: Sequence[str]
    ) -> None:
        if self._limit.wait_s() > 0:
            self._untold += 1
            return
        self._limit.take(1)
        fields: dict[str, Any] = {
            "ledger_id": ledger_id,
            "reason": "; ".join(faults),
            "more": self._untold,
            "client": client_name(),
        }
        self._untold = 0
        _log.warning(PLACED_SHORT, **fields)
        any(send_report(self._pool, bookie_id, PLACED_SHORT, fields) for bookie_id in ensemble)


# --- reports of changes ---------------------------------------------------------------------------
#
# Reports to bookies of what this client did to a ledger, so that operators find it among the
# bookies' events.
#
# Best effort: a report goes by a connection that is up, nothing waits for it, and a bookie that
# refuses it, as those of an older version do, changes nothing. Apache's bookies get none.


PENDING_MAX = 8
"""Reports to one bookie that it has not answered; beyond it none is sent."""
REASON_CHARACTERS_MAX = 500


def send_report(
    pool: BookiePool, bookie_id: BookieId, event: str, fields: Mapping[str, object]
) -> bool:
    """Send a bookie an event of a ledger; return whether it was sent. Never waits."""
    connection = next(
        (
            channel.connection
            for channel in pool.peer(bookie_id).channels
            if channel.connection is not None
        ),
        None,
    )
    if (
        connection is None
        or connection.is_paused
        or connection.hello is None
        or not connection.hello.software  # one of Apache's
        or connection.reports_pending >= PENDING_MAX
    ):
        return False
    shown = {**fields, "reason": str(fields.get("reason", ""))[:REASON_CHARACTERS_MAX]}
    payload = msgspec.json.encode({"event": event, **shown}, enc_hook=str)
    if len(payload) > REPORT_BYTES_MAX:
        return False

    def answered(outcome: Answer | Error) -> None:
        connection.reports_pending -= 1
        if isinstance(outcome, Error):
            _log.debug("report.lost", bookie=bookie_id, reason=str(outcome))
        elif outcome.status != Status.OK:
            _log.debug("report.refused", bookie=bookie_id, reason=error_text(outcome.frame))

    request_id = pool.next_request_id()
    connection.reports_pending += 1
    connection.send_request(
        request_id,
        encode_hello(request_id, Hello(auth_method=REPORT, auth_payload=payload)),
        answered,
    )
    return True


# --- choosing an ensemble -------------------------------------------------------------------------
#
# Chooses bookies for a new ledger or a changed fragment, among those that answer. No I/O.
#
# The client and the simulator run these generators: each yields bookies to connect to and is sent
# why some could not be reached. Those are left out of the next choice. Every round leaves out at
# least one, so it ends.


Views: TypeAlias = Callable[[], Sequence[BookieView]]
Choosing: TypeAlias = Generator[Sequence[BookieId], Mapping[BookieId, str], T]

ROUNDS_MAX = 8
"""Rounds of connecting for replacements: a writer waits for them, and may ask again."""


def new_ensemble(
    views: Views,
    ensemble: int,
    write_quorum: int,
    ack_quorum: int,
    config: PlacementConfig,
    rng: Chance,
    missed: dict[BookieId, str] | None = None,
) -> Choosing[ChosenEnsemble]:
    """Choose for a new ledger. Raises NotEnoughBookies with what is wrong with each that is not taken.

    `missed` gets those that could not be reached, and why.
    """
    missed = {} if missed is None else missed
    while True:
        known = views()
        try:
            chosen = choose_ensemble(
                known, ensemble, write_quorum, ack_quorum, config, rng, exclude=missed
            )
        except NotEnoughBookies as error:
            error.replicas.update(missed)
            raise
        locations = {view.bookie_id: view.location for view in known if view.bookie_id in chosen}
        found = yield chosen
        if not found:
            return ChosenEnsemble(chosen, locations=locations)
        missed.update(found)


def partial_ensemble(
    views: Views,
    away: Callable[[], Sequence[BookieView]],
    ensemble: int,
    write_quorum: int,
    ack_quorum: int,
    config: PlacementConfig,
    rng: Chance,
    missed: dict[BookieId, str],
) -> Choosing[ChosenEnsemble]:
    """Choose for a new ledger that may begin although too few bookies take adds. Raises NotEnoughBookies.

    `away`: bookies that are not registered and were once. `missed`: those that were registered and not reached when
    all was tried; they come before the former, since they were up a moment ago. Read-only ones come before both.
    """
    while True:
        known = views()
        up = [view for view in known if view.bookie_id not in missed]
        silent = [view for view in known if view.bookie_id in missed]
        try:
            chosen = choose_partial_ensemble(
                up, [*silent, *away()], ensemble, write_quorum, ack_quorum, config, rng
            )
        except NotEnoughBookies as error:
            error.replicas.update(missed)
            raise
        found = yield chosen.up
        if not found:
            return chosen
        missed.update(found)


def replacements(
    views: Views,
    action: Choose,
    write_quorum: int,
    ack_quorum: int,
    config: PlacementConfig,
    rng: Chance,
) -> Choosing[Replaced]:
    """Choose in place of an ensemble's bad members, as far as there is anybody."""
    missed: dict[BookieId, str] = {}
    for _ in range(ROUNDS_MAX):
        exclude = {*action.exclude, *missed}
        left_out: dict[BookieId, str] = {}
        shortage = ""
        known = with_members(views(), action)
        locations = {view.bookie_id: view.location for view in known}
        arguments = (known, action.ensemble, action.bad, write_quorum, ack_quorum, config, rng)
        try:
            chosen = choose_replacements(*arguments, exclude=exclude)
        except NotEnoughBookies as error:
            # Not those that are in the ensemble already: what is wrong with them the writer knows better.
            reasons, shortage = error.replicas.items(), error.message
            left_out = {one: why for one, why in reasons if one not in action.ensemble}
            chosen = choose_replacements(*arguments, exclude=exclude, partial=True)
        found = yield tuple(chosen.values())
        if not found:
            named = {*action.ensemble, *chosen.values()}
            of_named = {one: where for one, where in locations.items() if one in named}
            return Replaced(chosen, {**left_out, **missed}, of_named, shortage)
        missed.update(found)
    return Replaced({}, missed)


def with_members(views: Sequence[BookieView], action: Choose) -> list[BookieView]:
    """Return views with those of members that are known only by what their ledger has recorded (INV-P5)."""
    known = {view.bookie_id for view in views}
    return [
        *views,
        *(
            BookieView(bookie_id, writable=False, location=location)
            for bookie_id, location in action.locations.items()
            if bookie_id not in known
        ),
    ]
