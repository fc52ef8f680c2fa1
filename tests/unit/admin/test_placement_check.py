"""Judging where copies are, by what metadata says: no bookie is asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from fastbk.admin import placement_check
from fastbk.admin.placement_check import (
    FURTHER,
    LedgerPlacement,
    PlacementReport,
    check_placement,
    explain_ledger,
)
from fastbk.client import placement_judge
from fastbk.client.placement_judge import read_judge
from fastbk.meta import MetadataStore, open_store
from fastbk.model.ids import LedgerId
from fastbk.model.ledger import NAMESPACE_KEY, LedgerState
from fastbk.placement.config import PlacementConfig
from fastbk.placement.rules import (
    GROUP_KEY,
    PLACEMENT_KEY,
    ClusterRules,
    custom_rule,
)
from tests.fixtures.placed import TABLE, know, make_ledger, register

RACKS = PlacementConfig(policy="rack", enforce=True)
SOFT = replace(RACKS, enforce=False)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MetadataStore]:
    with closing(open_store(f"memory:{tmp_path}")) as opened:
        yield opened


def checked(
    store: MetadataStore, rule: PlacementConfig, table: dict[str, str] | None = None, **options: int
) -> PlacementReport:
    judge = read_judge(store, ClusterRules(rule, TABLE if table is None else table))
    return check_placement(
        store,
        judge,
        with_open=bool(options.get("with_open")),
        listed_max=options.get("listed_max", 20),
    )


def explained(store: MetadataStore, rule: PlacementConfig, ledger_id: int) -> LedgerPlacement:
    judge = read_judge(store, ClusterRules(rule, TABLE))
    return explain_ledger(
        judge, LedgerId(ledger_id), store.read_ledger(LedgerId(ledger_id)).metadata
    )


# --- all ledgers --------------------------------------------------------------------------------------------------


def test_enforced_and_soft_faults_are_told_apart_and_counted_by_namespace(
    store: MetadataStore,
) -> None:
    register(store, *TABLE)
    shop = {NAMESPACE_KEY: b"shop"}
    make_ledger(store, 1, ("b1", "b3"), custom=shop)
    make_ledger(store, 2, ("b1", "b2"), ("b1", "b3"), ("b2", "b1"), custom=shop)
    make_ledger(store, 3, ("b1", "b2"), custom={**shop, **custom_rule(replace(SOFT, group="ssd"))})
    make_ledger(store, 4, ("b1", "b2"), last=None)
    report = checked(store, RACKS)
    assert (report.ledgers, report.open, report.fragments) == (3, 1, 5)
    assert (report.enforced.ledgers, report.enforced.fragments) == (1, 2)
    assert [(one.ledger_id, one.first_entry_id) for one in report.enforced.first] == [
        (2, 0),
        (2, 20),
    ]
    (soft,) = report.soft.first
    assert soft.reasons == (
        "b1 is not in the group 'ssd'",
        "b2 is not in the group 'ssd'",
        "the write set b1, b2 spans 1 rack (/eu/r1), the minimum is 2",
    )
    assert {name: (one.enforced, one.soft) for name, one in report.namespaces.items()} == {
        "shop": (1, 1)
    }
    assert not report.is_well
    report = checked(store, RACKS, with_open=1, listed_max=1)
    assert (report.ledgers, report.open, report.enforced.ledgers) == (4, 0, 2)
    assert len(report.enforced.first) == 1
    assert report.namespaces[""].enforced == 1


def test_a_minimum_that_is_not_enforced_counts_as_far_as_it_can_be_kept(
    store: MetadataStore,
) -> None:
    register(store, *TABLE)
    make_ledger(store, 1, ("b1", "b2", "b3"), write_quorum=3)
    make_ledger(store, 2, ("b1", "b2", "b2x"), write_quorum=2)
    three = replace(SOFT, min_racks_per_write_quorum=3)
    nowhere: dict[str, str] = {}
    assert checked(store, three, nowhere).is_well, "nobody said where they are"
    two_racks = {**TABLE, "b4": "/eu/r2", "b2x": "/eu/r1"}
    report = checked(store, three, two_racks)
    assert [one.ledger_id for one in report.soft.first] == [2], "two racks are all there are"
    enforced = checked(store, replace(three, enforce=True), two_racks)
    assert [one.ledger_id for one in enforced.enforced.first] == [1, 2]


def test_what_depends_on_bookies_that_are_down_is_unsure(store: MetadataStore) -> None:
    register(store, *TABLE)
    know(store, "gone")
    make_ledger(store, 1, ("b1", "gone"))
    make_ledger(store, 2, ("b1", "b2", "gone"), write_quorum=2)
    make_ledger(store, 3, ("b1", "b3", "gone"), write_quorum=3)
    report = checked(store, RACKS)
    assert [one.ledger_id for one in report.enforced.first] == [2], "wherever it is"
    assert report.unsure == 2, "the first two; in the third the others are enough"
    assert checked(store, RACKS, {**TABLE, "gone": "/us/r9"}).unsure == 0
    grouped = replace(SOFT, group="ssd", group_is_hard=True)
    register(store, "s1", labels="ssd", location="/eu/r1")
    make_ledger(store, 4, ("s1", "gone"))
    report = checked(store, grouped)
    assert [one.ledger_id for one in report.enforced.first] == [1, 2, 3]
    assert report.unsure == 4, "labels come with a registration"


def test_empty_fragments_and_empty_ledgers_have_nothing_to_lose(store: MetadataStore) -> None:
    register(store, *TABLE)
    make_ledger(store, 1, ("b1", "b2"), last=-1)
    make_ledger(store, 2, ("b1", "b3"), ("b1", "b2"), last=9)
    assert checked(store, RACKS).is_well


def test_a_rule_of_a_ledgers_own_counts_and_one_that_cannot_be_read_does_not(
    store: MetadataStore,
) -> None:
    register(store, *TABLE)
    regions = PlacementConfig(policy="region", enforce=True)
    make_ledger(store, 1, ("b1", "b3"), custom=custom_rule(regions))
    make_ledger(store, 2, ("b1", "b2"), custom={PLACEMENT_KEY: b"?"})
    make_ledger(store, 3, ("b1", "b3"), custom={GROUP_KEY: b"hard:ssd"})
    make_ledger(store, 4, ("b1", "b3"), custom={GROUP_KEY: b"?"})
    report = checked(store, RACKS)
    assert [one.ledger_id for one in report.enforced.first] == [1, 2, 3]
    assert [explained(store, RACKS, one).rule_from for one in (1, 2, 3, 4)] == [
        "its own",
        "the cluster's, since its own cannot be read",
        "its own group, as a version before 0.4 stored it, and the cluster's",
        "the cluster's, since its group cannot be read",
    ]


def test_names_of_namespaces_do_not_fill_memory(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement_check, "NAMESPACES_MAX", 2)
    monkeypatch.setattr(placement_judge, "VERDICTS_KEPT_MAX", 1)
    monkeypatch.setattr(placement_judge, "RULES_KEPT_MAX", 1)
    register(store, *TABLE)
    for number in range(5):
        group = replace(SOFT, group=f"g{number}")
        custom = {NAMESPACE_KEY: b"n%d" % number, **custom_rule(group)}
        make_ledger(store, number, ("b1", "b2") if number % 2 else ("b2", "b1"), custom=custom)
    report = checked(store, RACKS)
    assert {name: one.soft for name, one in report.namespaces.items()} == {
        "n0": 1,
        "n1": 1,
        FURTHER: 3,
    }


# --- one ledger ---------------------------------------------------------------------------------------------------


def others_of(placement: LedgerPlacement, index: int = 0) -> dict[str, tuple[bool, str]]:
    fragment = placement.fragments[index]
    return {one.bookie_id: (one.can_replace, one.reason) for one in fragment.others}


def test_why_each_other_bookie_could_take_a_place_or_not(store: MetadataStore) -> None:
    register(store, *TABLE)
    register(store, "b1x", location="/eu/r1")
    register(store, "full", writable=False, reads_only="the disk is full")
    know(store, "gone")
    make_ledger(store, 1, ("b1", "b2"), ("b1", "b3"), last=9)
    placement = explained(store, RACKS, 1)
    assert not placement.is_well
    assert (placement.state, placement.rule_from) == ("closed", "the cluster's")
    first, second = placement.fragments
    assert first.enforced == ("the write set b1, b2 spans 1 rack (/eu/r1), the minimum is 2",)
    assert (second.first_entry_id, second.last_entry_id, second.enforced) == (10, 9, ())
    assert others_of(placement) == {
        "b1x": (False, "in no place would it mend anything; the same rack (/eu/r1) as b1, b2"),
        "b3": (True, "it could take the place of b1 or b2: that leaves no fault"),
        "b4": (True, "it could take the place of b1 or b2: that leaves no fault"),
        "full": (False, "it is read-only: the disk is full"),
        "gone": (False, "it is not registered"),
    }
    others = others_of(placement, 1)
    assert others["b4"] == (True, "it could take any place")
    assert others["b2"] == (True, "it could take the place of b1; the same rack (/eu/r1) as b1")


def test_groups_keep_others_out_or_come_first(store: MetadataStore) -> None:
    register(store, "b1", "b3", labels="ssd")
    register(store, "b4")
    register(store, "s5", labels="ssd", location="/asia/r1")
    make_ledger(store, 1, ("b1", "b3"))
    hard = others_of(explained(store, replace(RACKS, group="ssd", group_is_hard=True), 1))
    assert hard == {
        "b4": (False, "it is not in the group 'ssd'"),
        "s5": (True, "it could take any place"),
    }
    soft = others_of(explained(store, replace(RACKS, group="ssd"), 1))
    assert soft["b4"] == (
        True,
        "it could take any place; it is not in the group 'ssd', so others come first",
    )
    make_ledger(store, 2, ("b1", "b4"))
    other = explained(store, replace(RACKS, group="ssd"), 2)
    assert other.fragments[0].soft == ("b4 is not in the group 'ssd'",)
    assert others_of(other)["s5"] == (
        True,
        "it could take the place of b4: that leaves no fault",
    )


def test_each_member_says_what_it_is_there_for(store: MetadataStore) -> None:
    register(store, "b1", "b3", labels="ssd")
    register(store, "b2")
    know(store, "away")
    make_ledger(store, 1, ("b1", "b2", "b3", "away"))

    def reasons(rule: PlacementConfig) -> dict[str, str]:
        members = explained(store, rule, 1).fragments[0].members
        return {member.bookie_id: member.reason for member in members}

    assert reasons(replace(RACKS, group="ssd")) == {
        "b1": "shares the rack /eu/r1 with b2; of the group 'ssd'",
        "b2": "shares the rack /eu/r1 with b1; not of the group 'ssd'",
        "b3": "the only one in the rack /eu/r2; of the group 'ssd'",
        "away": "",
    }
    assert reasons(PlacementConfig(policy="region"))["b3"] == "shares the region /eu with b1, b2"
    assert set(reasons(PlacementConfig()).values()) == {"its rule takes any bookie"}


def test_no_place_is_left_where_every_rack_is_needed(store: MetadataStore) -> None:
    register(store, *TABLE)
    register(store, "b4x", location="/us/r1")
    make_ledger(store, 1, ("b1", "b4"))
    regions = PlacementConfig(policy="region", enforce=True)
    assert others_of(explained(store, regions, 1))["b2"] == (
        True,
        "it could take the place of b1; the same region (/eu) as b1",
    )
    make_ledger(store, 2, ("b1", "b3", "b4"), write_quorum=3)
    three = replace(RACKS, min_racks_per_write_quorum=3)
    assert others_of(explained(store, three, 2))["b2"][0]
    open_ledger = make_ledger(store, 3, ("b1", "b3"), last=None)
    assert open_ledger.state is LedgerState.OPEN
    placement = explained(store, RACKS, 3)
    assert placement.is_well and placement.fragments[0].last_entry_id is None
