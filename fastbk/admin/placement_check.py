"""Whether the copies of all ledgers lie as their rules want it, and why those of one do: `fastbk cluster placement`.

    judge = read_judge(store)
    print(check_placement(store, judge).enforced.ledgers)  # reads the metadata of all ledgers, a batch at a time

`fastbk.client.placement_judge` says what counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fastbk.client.placement_judge import (
    BookiePlace,
    LedgerVerdict,
    MisplacedFragment,
    PlacementJudge,
    Source,
    State,
)
from fastbk.errors import ConfigError
from fastbk.meta.api import VersionedLedger, all_ledgers
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.placement.choose_ensemble import Domains, domains_of_view
from fastbk.placement.config import PlacementConfig
from fastbk.placement.pulsar_racks import GROUP_KEY as PULSAR_GROUP_KEY
from fastbk.placement.rules import GROUP_KEY, PLACEMENT_KEY, decode_rule, rule_of
from fastbk.replication.copy_check import last_of_fragment

if TYPE_CHECKING:
    from fastbk.meta import MetadataStore

LISTED_MAX = 20
NAMESPACES_MAX = 1_000
FURTHER = "(further namespaces)"
"""Counts what is in namespaces beyond `NAMESPACES_MAX`: their names are held in memory."""


# --- all ledgers --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Misplaced:
    """What is misplaced: how many ledgers and fragments, and the first fragments."""

    ledgers: int = 0
    fragments: int = 0
    first: list[MisplacedFragment] = field(default_factory=list)


@dataclass(slots=True)
class NamespaceMisplaced:
    """Ledgers of one namespace that are misplaced."""

    enforced: int = 0
    soft: int = 0


@dataclass(slots=True)
class PlacementReport:
    """What a check of all ledgers found.

    Attributes:
        ledgers: judged. open: open ones that were passed over. unreadable: whose metadata nobody can read.
        fragments: judged. unsure: of them, those where it depends on bookies that are not registered.
        enforced: against what a rule enforces. soft: against what a rule only wants.
        namespaces: by path, "" where ledgers name none; only those with misplaced ledgers.
    """

    ledgers: int = 0
    open: int = 0
    unreadable: int = 0
    fragments: int = 0
    unsure: int = 0
    enforced: Misplaced = field(default_factory=Misplaced)
    soft: Misplaced = field(default_factory=Misplaced)
    namespaces: dict[str, NamespaceMisplaced] = field(default_factory=dict)

    @property
    def is_well(self) -> bool:
        """Whether nothing is known to be misplaced."""
        return not (self.enforced.ledgers or self.soft.ledgers)

    def count(self, namespace: str, verdict: LedgerVerdict, listed_max: int) -> None:
        """Add one ledger."""
        self.ledgers += 1
        self.fragments += verdict.fragments
        self.unsure += verdict.unsure
        if not (verdict.enforced or verdict.soft):
            return
        if namespace not in self.namespaces and len(self.namespaces) >= NAMESPACES_MAX:
            namespace = FURTHER
        counts = self.namespaces.setdefault(namespace, NamespaceMisplaced())
        counts.enforced += bool(verdict.enforced)
        counts.soft += bool(verdict.soft)
        for misplaced, more in ((self.enforced, verdict.enforced), (self.soft, verdict.soft)):
            misplaced.ledgers += bool(more)
            misplaced.fragments += len(more)
            misplaced.first += more[: listed_max - len(misplaced.first)]


def check_placement(
    store: MetadataStore,
    judge: PlacementJudge,
    *,
    with_open: bool = False,
    listed_max: int = LISTED_MAX,
) -> PlacementReport:
    """Judge all closed ledgers, `with_open`: open ones, too; at most `listed_max` fragments are listed of each kind.

    Raises MetadataUnavailable.
    """
    report = PlacementReport()
    for ledger_id, read in all_ledgers(store):
        if not isinstance(read, VersionedLedger):
            report.unreadable += 1
        elif read.metadata.is_placeholder:
            continue
        elif not (with_open or read.metadata.is_closed):
            report.open += 1
        else:
            verdict = judge.judge_ledger(ledger_id, read.metadata)
            report.count(read.metadata.namespace, verdict, listed_max)
    return report


# --- one ledger ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemberFacts:
    """A bookie of an ensemble. `reason`: what it is there for, by its ledger's rule."""

    bookie_id: BookieId
    state: State
    location: str
    source: Source
    labels: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class OtherBookie:
    """A bookie that is not in an ensemble, and why it could take a place there, or not."""

    bookie_id: BookieId
    location: str
    can_replace: bool
    reason: str


@dataclass(frozen=True, slots=True)
class FragmentPlacement:
    """How a fragment lies. `last_entry_id`: below the first, it is empty; None: it is being written."""

    first_entry_id: EntryId
    last_entry_id: EntryId | None
    members: tuple[MemberFacts, ...]
    enforced: tuple[str, ...]
    soft: tuple[str, ...]
    is_unsure: bool
    others: tuple[OtherBookie, ...]


@dataclass(frozen=True, slots=True)
class LedgerPlacement:
    """How a ledger lies, its rule, and where that comes from."""

    ledger_id: LedgerId
    namespace: str
    state: str
    ensemble: int
    write_quorum: int
    ack_quorum: int
    rule: PlacementConfig
    rule_from: str
    fragments: tuple[FragmentPlacement, ...]

    @property
    def is_well(self) -> bool:
        """Whether no fragment with entries has a fault."""
        return not any(
            fragment.enforced or fragment.soft
            for fragment in self.fragments
            if fragment.last_entry_id is None or fragment.last_entry_id >= fragment.first_entry_id
        )


def explain_ledger(
    judge: PlacementJudge, ledger_id: LedgerId, metadata: LedgerMetadata
) -> LedgerPlacement:
    """Return all that there is to know of how a ledger lies."""
    rule = rule_of(metadata.custom, judge.rules.rule)
    others: dict[tuple[BookieId, ...], tuple[OtherBookie, ...]] = {}
    fragments = []
    for index, fragment in enumerate(metadata.fragments):
        ensemble = fragment.ensemble
        if ensemble not in others:
            others[ensemble] = _others(judge, ensemble, metadata.write_quorum, rule)
        verdict = judge.judge(ensemble, metadata.write_quorum, rule)
        fragments.append(
            FragmentPlacement(
                fragment.first_entry_id,
                last_of_fragment(metadata, index),
                tuple(_member(judge, bookie_id, ensemble, rule) for bookie_id in ensemble),
                verdict.enforced,
                verdict.soft,
                verdict.is_unsure,
                others[ensemble],
            )
        )
    return LedgerPlacement(
        ledger_id,
        metadata.namespace,
        metadata.state.name.lower().replace("_", " "),
        metadata.ensemble_size,
        metadata.write_quorum,
        metadata.ack_quorum,
        rule,
        rule_origin(metadata.custom),
        tuple(fragments),
    )


def rule_origin(custom: Mapping[str, bytes]) -> str:
    """Return where `rule_of` has a ledger's rule from, in words."""
    if (stored := custom.get(PLACEMENT_KEY)) is not None:
        try:
            decode_rule(stored)
        except ConfigError:
            return "the cluster's, since its own cannot be read"
        return "its own"
    if rule_of(custom, PlacementConfig()).group is not None:
        if PULSAR_GROUP_KEY in custom:
            return "the group of its Pulsar namespace, and the cluster's"
        return "its own group, as a version before 0.4 stored it, and the cluster's"
    if GROUP_KEY in custom:
        return "the cluster's, since its group cannot be read"
    return "the cluster's"


def _member(
    judge: PlacementJudge, bookie_id: BookieId, ensemble: Sequence[BookieId], rule: PlacementConfig
) -> MemberFacts:
    place = judge.place(bookie_id)
    labels = tuple(sorted(place.view.labels))
    reasons = []
    if rule.policy != "spread" and place.source != "unknown":
        own, same = _domain_mates(judge, bookie_id, ensemble, rule)
        with_whom = f"shares the {rule.policy} {own} with {', '.join(same)}"
        reasons.append(with_whom if same else f"the only one in the {rule.policy} {own}")
    if rule.group is not None and place.state != "down":
        reasons.append(
            f"of the group {rule.group!r}"
            if rule.group in labels
            else f"not of the group {rule.group!r}"
        )
    reason = "; ".join(reasons) or ("" if rule.policy != "spread" else "its rule takes any bookie")
    return MemberFacts(bookie_id, place.state, place.location, place.source, labels, reason)


def _others(
    judge: PlacementJudge, ensemble: tuple[BookieId, ...], write_quorum: int, rule: PlacementConfig
) -> tuple[OtherBookie, ...]:
    """Return all bookies that are not in the ensemble. Those of one place and group are judged once."""
    known: dict[tuple[Domains, bool], tuple[bool, str]] = {}
    others = []
    for bookie_id, place in judge.places.items():
        if bookie_id in ensemble:
            continue
        is_of_group = rule.group is None or rule.group in place.view.labels
        if place.state == "down":
            can_replace, reason = False, "it is not registered"
        elif not place.view.writable:
            why = place.view.reads_only_reason
            can_replace, reason = False, f"it is read-only{f': {why}' if why else ''}"
        elif not is_of_group and rule.group_is_hard:
            can_replace, reason = False, f"it is not in the group {rule.group!r}"
        else:
            alike = (domains_of_view(place.view, rule.policy), is_of_group)
            if alike not in known:
                judged_by = rule if is_of_group else replace(rule, group=None)
                known[alike] = _replacing(judge, bookie_id, ensemble, write_quorum, judged_by)
            can_replace, reason = known[alike]
            if not is_of_group:
                reason += f"; it is not in the group {rule.group!r}, so others come first"
        others.append(OtherBookie(bookie_id, place.location, can_replace, reason))
    return tuple(others)


def _replacing(
    judge: PlacementJudge,
    bookie_id: BookieId,
    ensemble: tuple[BookieId, ...],
    write_quorum: int,
    rule: PlacementConfig,
) -> tuple[bool, str]:
    """Return whether a bookie could take a place of an ensemble, and which, or why not."""
    before = judge.judge(ensemble, write_quorum, rule).rank
    ranks = [
        judge.judge((*ensemble[:index], bookie_id, *ensemble[index + 1 :]), write_quorum, rule).rank
        for index in range(len(ensemble))
    ]
    best = min(ranks)
    shared = _sharing(judge, bookie_id, ensemble, rule)
    if best < before:
        named = _named(ensemble, [index for index, rank in enumerate(ranks) if rank == best])
        left = "no fault" if best == (0, 0) else "fewer faults"
        return True, f"it could take the place of {named}: that leaves {left}"
    if before != (0, 0):
        return False, f"in no place would it mend anything{shared}"
    unharmed = [index for index, rank in enumerate(ranks) if rank == before]
    if len(unharmed) == len(ensemble):
        return True, "it could take any place"
    if unharmed:
        return True, f"it could take the place of {_named(ensemble, unharmed)}{shared}"
    return False, f"in any place it would break the rule{shared}"


def _named(ensemble: Sequence[BookieId], indexes: Iterable[int]) -> str:
    return " or ".join(ensemble[index] for index in indexes)


def _sharing(
    judge: PlacementJudge, bookie_id: BookieId, ensemble: Sequence[BookieId], rule: PlacementConfig
) -> str:
    """Return with whom a bookie shares its rack or zone, as the end of a sentence."""
    if rule.policy == "spread":
        return ""
    own, same = _domain_mates(judge, bookie_id, ensemble, rule)
    return f"; the same {rule.policy} ({own}) as {', '.join(same)}" if same else ""


def _domain_mates(
    judge: PlacementJudge, bookie_id: BookieId, ensemble: Sequence[BookieId], rule: PlacementConfig
) -> tuple[str, list[BookieId]]:
    """Return the rack, region or zone that a bookie is in, and which others of an ensemble are there."""

    def domain(place: BookiePlace) -> str:
        upper, whole = domains_of_view(place.view, rule.policy)
        return whole if rule.policy == "rack" else upper

    own = domain(judge.place(bookie_id))
    others = [member for member in ensemble if member != bookie_id]
    return own, [member for member in others if domain(judge.place(member)) == own]
