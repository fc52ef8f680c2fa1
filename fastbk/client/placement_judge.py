"""Where bookies are, and whether ensembles lie as their rules want it: judged by metadata, no bookie is asked.

    judge = read_judge(store)
    print(judge.unmet(judge.rules.rule))                  # what the bookies that are there cannot keep
    print(judge.judge_ledger(ledger_id, metadata).enforced)

A ledger's own rule counts, and the cluster's where it has none (INV-P4).

- A minimum that is not enforced counts as far as the cluster's bookies could keep it: where nobody said where bookies
  are, all are in one rack, and nothing is misplaced.
- Only the cluster's table and Pulsar's node say where a bookie is that is not registered. Where they do not, a fragment
  counts as misplaced if it is so wherever that bookie is, and else as unsure.
- Fragments without entries are passed over: there is nothing to lose.

For `fastbk cluster placement` and for whoever walks all ledgers anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from fastbk.client.known_bookies import LOCATION_PROPERTY, view_of
from fastbk.meta.api import BookieRegistration, VersionedLedger
from fastbk.meta.health_records import read_placement_faults
from fastbk.meta.placement_record import read_rules
from fastbk.model.health import NONE_MISPLACED, MisplacedFacts
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.placement.choose_ensemble import (
    MINIMUM,
    attainable,
    domains_of_view,
    rules_of,
    sorted_faults,
)
from fastbk.placement.config import (
    DEFAULT_LOCATION,
    BookieView,
    PlacementConfig,
    valid_location,
)
from fastbk.placement.rules import ClusterPlaces, ClusterRules, rule_of
from fastbk.replication.copy_check import last_of_fragment
from fastbk.units import format_count

if TYPE_CHECKING:
    from fastbk.meta import MetadataStore

Source: TypeAlias = Literal["table", "pulsar", "bookie", "default", "unknown"]
"""Who says where a bookie is: the cluster's table, Pulsar's node, the bookie itself, nobody; `unknown`: it is not
registered."""
State: TypeAlias = Literal["up", "read-only", "down"]

VERDICTS_KEPT_MAX = 10_000
RULES_KEPT_MAX = 1_000
WRITE_QUORUM_MAX = 64


# --- bookies ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BookiePlace:
    """One bookie and where it is. Its view has another `location` where that is unknown: one that nobody shares."""

    view: BookieView
    source: Source
    state: State

    @property
    def location(self) -> str:
        """Where it is; "" if that is unknown."""
        return "" if self.source == "unknown" else self.view.location


def registered_place(registration: BookieRegistration, places: ClusterPlaces) -> BookiePlace:
    """Return where a bookie is that is registered."""
    service = registration.service
    endpoint = service.client_endpoint()
    if endpoint is None:  # its registration cannot be read, so nobody reaches it
        return unregistered_place(service.bookie_id, places)
    view = view_of(registration, places=places, is_local=lambda _: False)
    source: Source
    if places.location_of(service.bookie_id, endpoint.host) is not None:
        source = _source(places, service.bookie_id, endpoint.host)
    elif valid_location(service.properties.get(LOCATION_PROPERTY, "")) is not None:
        source = "bookie"
    else:
        source = "default"
    return BookiePlace(view, source, "up" if view.writable else "read-only")


def unregistered_place(bookie_id: BookieId, places: ClusterPlaces) -> BookiePlace:
    """Return where a bookie is that is not registered: only operators know. Its host may be in its id, as Apache's."""
    host, _, port = bookie_id.rpartition(":")
    host = host if port.isdecimal() else ""
    location, groups = places.location_of(bookie_id, host), places.groups_of(bookie_id, host)
    source: Source = "unknown" if location is None else _source(places, bookie_id, host)
    nowhere = f"/unknown:{bookie_id}/unknown:{bookie_id}"
    view = BookieView(bookie_id, writable=False, location=location or nowhere, labels=groups)
    return BookiePlace(view, source, "down")


def _source(places: ClusterPlaces, bookie_id: BookieId, host: str) -> Source:
    return "table" if places.is_in_table(bookie_id, host) else "pulsar"


def read_judge(
    store: MetadataStore,
    rules: ClusterRules | None = None,
    last_places: Mapping[BookieId, BookiePlace] | None = None,
) -> PlacementJudge:
    """Return what judges by the cluster's rules, or by `rules` in their place. Raises MetadataUnavailable.

    `last_places`: where the caller saw bookies when they were registered. It counts for those that are not, and of
    which the cluster's table says nothing.
    """
    rules = read_rules(store) if rules is None else rules
    operators = ClusterPlaces(rules)
    places = {
        registration.service.bookie_id: registered_place(registration, operators)
        for registration in store.list_bookies()
    }
    for identity in store.list_identities():
        if identity.bookie_id in places:
            continue
        place = unregistered_place(identity.bookie_id, operators)
        before = None if last_places is None else last_places.get(identity.bookie_id)
        if place.source == "unknown" and before is not None:
            view = msgspec.structs.replace(before.view, writable=False)
            place = BookiePlace(view, before.source, "down")
        places[identity.bookie_id] = place
    return PlacementJudge(rules, places)


# --- judging ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unmet:
    """What the bookies that take adds now cannot keep of a rule, as `2 racks`, and why."""

    minimum: str
    reason: str
    is_enforced: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong with an ensemble, as sentences: against what its rule enforces, and against what it only wants.

    Attributes:
        is_unsure: it may have more faults, depending on where bookies are that are not registered.
    """

    enforced: tuple[str, ...] = ()
    soft: tuple[str, ...] = ()
    is_unsure: bool = False

    @property
    def rank(self) -> tuple[int, int]:
        """Lower is better."""
        return len(self.enforced), len(self.soft)


@dataclass(frozen=True, slots=True)
class MisplacedFragment:
    """A fragment that breaks its ledger's rule."""

    ledger_id: LedgerId
    first_entry_id: EntryId
    namespace: str
    ensemble: tuple[BookieId, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerVerdict:
    """What is misplaced of one ledger."""

    enforced: tuple[MisplacedFragment, ...] = ()
    soft: tuple[MisplacedFragment, ...] = ()
    fragments: int = 0
    unsure: int = 0


class PlacementJudge:
    """Judges ensembles by what was known of bookies and rules when it was made; it keeps its last verdicts."""

    def __init__(self, rules: ClusterRules, places: Mapping[BookieId, BookiePlace]) -> None:
        self.rules = rules
        self.places = dict(sorted(places.items()))
        self._places = ClusterPlaces(rules)
        self._verdicts: dict[tuple[tuple[BookieId, ...], int, PlacementConfig], Verdict] = {}
        self._attainable: dict[PlacementConfig, PlacementConfig] = {}

    def place(self, bookie_id: BookieId) -> BookiePlace:
        """Return where a bookie is, also one that metadata does not know."""
        known = self.places.get(bookie_id)
        return unregistered_place(bookie_id, self._places) if known is None else known

    def unlocated(self) -> list[BookieId]:
        """Return the registered bookies of which nobody says where they are."""
        return [bookie_id for bookie_id, place in self.places.items() if place.source == "default"]

    def unmet(self, rule: PlacementConfig) -> list[Unmet]:
        """Return what the bookies that take adds now cannot keep of a rule, for ledgers of a large Qw."""
        able = [place for place in self._of_hard_group(rule) if place.view.writable]
        group = f" of the group {rule.group!r}" if rule.group_is_hard else ""
        if rule.group_is_hard and not able:
            return [Unmet(f"group {rule.group}", f"no bookie{group} takes adds", is_enforced=True)]
        lacking = []
        for each in rules_of(rule, WRITE_QUORUM_MAX).required:
            names = self._domains(able, rule, each.level)
            if each.cost == MINIMUM and len(names) < each.target:
                listed = f" ({', '.join(sorted(names))})" if names else ""
                minimum = format_count(each.target, each.noun)
                reason = (
                    f"the minimum is {minimum}, and the bookies{group} that take adds are"
                    f" in {len(names)}{listed}, too few for a Qw of {len(names) + 1} or more"
                )
                lacking.append(Unmet(minimum, reason, each.is_enforced))
        return lacking

    def judge(
        self, ensemble: tuple[BookieId, ...], write_quorum: int, rule: PlacementConfig
    ) -> Verdict:
        """Return what is wrong with an ensemble."""
        key = (ensemble, write_quorum, rule)
        verdict = self._verdicts.get(key)
        if verdict is None:
            if len(self._verdicts) >= VERDICTS_KEPT_MAX:
                self._verdicts.clear()
            verdict = self._verdicts[key] = self._judged(ensemble, write_quorum, rule)
        return verdict

    def judge_ledger(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> LedgerVerdict:
        """Return what is misplaced of a ledger, by its own rule or the cluster's (INV-P4)."""
        rule = rule_of(metadata.custom, self.rules.rule)
        enforced: list[MisplacedFragment] = []
        soft: list[MisplacedFragment] = []
        fragments = unsure = 0
        for fragment in fragments_with_entries(metadata):
            fragments += 1
            verdict = self.judge(fragment.ensemble, metadata.write_quorum, rule)
            unsure += verdict.is_unsure
            for reasons, misplaced in ((verdict.enforced, enforced), (verdict.soft, soft)):
                if reasons:
                    misplaced.append(
                        MisplacedFragment(
                            ledger_id,
                            fragment.first_entry_id,
                            metadata.namespace,
                            fragment.ensemble,
                            reasons,
                        )
                    )
        return LedgerVerdict(tuple(enforced), tuple(soft), fragments, unsure)

    def _judged(
        self, ensemble: tuple[BookieId, ...], write_quorum: int, rule: PlacementConfig
    ) -> Verdict:
        wanted = self.attainable_rule(rule)
        places = [self.place(member) for member in dict.fromkeys(ensemble)]
        # Labels come with a registration. One that is down gets the benefit of the doubt, here and for its place.
        in_doubt = frozenset(() if rule.group is None else (rule.group,))
        views = [
            msgspec.structs.replace(each.view, labels=in_doubt)
            if each.state == "down"
            else each.view
            for each in places
        ]
        faults = sorted_faults(views, ensemble, write_quorum, wanted)
        is_unsure = len(faults) < max(
            (
                len(sorted_faults(worst, ensemble, write_quorum, wanted))
                for worst in self._at_worst(places)
            ),
            default=0,
        )
        return Verdict(
            tuple(fault.reason for fault in faults if fault.is_enforced),
            tuple(fault.reason for fault in faults if not fault.is_enforced),
            is_unsure,
        )

    @staticmethod
    def _at_worst(places: Sequence[BookiePlace]) -> Iterator[list[BookieView]]:
        """Yield the views of an ensemble as they might be, with those that are down where the others are."""
        if all(each.state != "down" for each in places):
            return
        for location in {each.location for each in places if each.location} or {DEFAULT_LOCATION}:
            yield [
                msgspec.structs.replace(each.view, location=each.location or location)
                for each in places
            ]

    def attainable_rule(self, rule: PlacementConfig) -> PlacementConfig:
        """Return a rule with minimums that the cluster's bookies could keep, unless they are enforced."""
        if rule.enforce:
            return rule
        if rule in self._attainable:
            return self._attainable[rule]
        if len(self._attainable) >= RULES_KEPT_MAX:
            self._attainable.clear()
        known = [place.view for place in self.places.values() if place.source != "unknown"]
        self._attainable[rule] = attainable(known, rule)
        return self._attainable[rule]

    def _of_hard_group(self, rule: PlacementConfig) -> list[BookiePlace]:
        return [
            place
            for place in self.places.values()
            if not rule.group_is_hard or rule.group in place.view.labels
        ]

    @staticmethod
    def _domains(places: Iterable[BookiePlace], rule: PlacementConfig, level: str) -> set[str]:
        return {getattr(domains_of_view(place.view, rule.policy), level) for place in places}


def fragments_with_entries(metadata: LedgerMetadata) -> list[Fragment]:
    """Return a ledger's fragments but for those that are finished and empty."""
    lasts = [last_of_fragment(metadata, index) for index in range(len(metadata.fragments))]
    return [
        fragment
        for fragment, last in zip(metadata.fragments, lasts, strict=True)
        if last is None or last >= fragment.first_entry_id
    ]


def misplaced_ledgers(store: MetadataStore) -> MisplacedFacts:
    """Return what the auditor's last round found misplaced, without the named ledgers that are well placed by now.

    And why new ledgers are refused, if they are. Raises MetadataUnavailable.
    """
    faults, rules = read_placement_faults(store), read_rules(store)
    nothing_found = faults is None or not faults.first
    if nothing_found and not (rules.rule.enforce or rules.rule.group_is_hard):
        return NONE_MISPLACED
    judge = read_judge(store, rules)
    refusal = next((each.reason for each in judge.unmet(rules.rule) if each.is_enforced), "")
    if faults is None or not faults.first:
        return MisplacedFacts(refusal=refusal)
    counts = {True: faults.enforced, False: faults.soft}
    left: list[LedgerId] = []
    reason = ""
    ledgers = store.read_ledgers(faults.first)
    for number, (ledger_id, ledger) in enumerate(zip(faults.first, ledgers, strict=True)):
        verdict = LedgerVerdict()
        if isinstance(ledger, VersionedLedger):
            verdict = judge.judge_ledger(ledger_id, ledger.metadata)
        misplaced = verdict.enforced or verdict.soft
        if misplaced or verdict.unsure:
            left.append(ledger_id)
            reason = reason or (misplaced[0].reasons[0] if misplaced else faults.reason)
        else:
            counts[number < faults.enforced] -= 1
    return MisplacedFacts(
        enforced=counts[True],
        soft=counts[False],
        first=tuple(left),
        reason=reason or faults.reason,
        refusal=refusal,
    )
