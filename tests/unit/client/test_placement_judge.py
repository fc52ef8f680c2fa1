"""Where bookies are, as metadata says it, and what they cannot keep of a rule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from fastbk.client.placement_judge import misplaced_ledgers, read_judge
from fastbk.meta import MetadataStore, open_store
from fastbk.meta.health_records import PlacementFaults, note_placement_faults
from fastbk.meta.placement_record import change_rules
from fastbk.model.health import NONE_MISPLACED, MisplacedFacts
from fastbk.placement.config import PlacementConfig
from fastbk.placement.rules import ClusterRules
from tests.fixtures.placed import TABLE, know, make_ledger, register

RACKS = PlacementConfig(policy="rack", enforce=True)
SOFT = replace(RACKS, enforce=False)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MetadataStore]:
    with closing(open_store(f"memory:{tmp_path}")) as opened:
        yield opened


def test_the_table_goes_before_the_bookie_and_only_it_knows_those_that_are_down(
    store: MetadataStore,
) -> None:
    register(store, "b1", "other", location="/own/r9")
    register(store, "b5", location="no place")
    register(store, "full", writable=False)
    know(store, "b1", "b2", "b6", "10.1.2.3:3181")
    rules = ClusterRules(RACKS, {**TABLE, "10.1.2.3": "/eu/r7", "host-full": "/eu/r8"})
    places = read_judge(store, rules).places
    assert {name: (one.state, one.location, one.source) for name, one in places.items()} == {
        "b1": ("up", "/eu/r1", "table"),
        "other": ("up", "/own/r9", "bookie"),
        "b5": ("up", "/default-region/default-rack", "default"),
        "full": ("read-only", "/eu/r8", "table"),
        "b2": ("down", "/eu/r1", "table"),
        "b6": ("down", "", "unknown"),
        "10.1.2.3:3181": ("down", "/eu/r7", "table"),
    }


@pytest.mark.parametrize(
    ("rule", "minimums"),
    [
        (PlacementConfig(), []),
        (replace(RACKS, min_racks_per_write_quorum=3), []),
        (replace(RACKS, min_racks_per_write_quorum=4), [("4 racks", True)]),
        (replace(SOFT, min_racks_per_write_quorum=4), [("4 racks", False)]),
        (
            PlacementConfig(policy="region", enforce=True, min_regions_per_write_quorum=3),
            [("3 regions", True)],
        ),
        (PlacementConfig(policy="zone", enforce=True), []),
        (replace(SOFT, group="ssd", group_is_hard=True), [("group ssd", True)]),
        (replace(RACKS, group="ssd"), []),
    ],
)
def test_what_the_bookies_that_take_adds_cannot_keep(
    store: MetadataStore, rule: PlacementConfig, minimums: list[tuple[str, bool]]
) -> None:
    register(store, "b1", "b2", "b3", "b4")
    register(store, "b5", writable=False, location="/eu/r5")
    unmet = read_judge(store, ClusterRules(rule, TABLE)).unmet(rule)
    assert [(one.minimum, one.is_enforced) for one in unmet] == minimums


def test_where_a_bookie_was_seen_counts_while_it_is_down_unless_the_table_says_it(
    store: MetadataStore,
) -> None:
    register(store, "x1", "b1", location="/own/r9", labels="ssd")
    seen = read_judge(store, ClusterRules(RACKS)).places
    with closing(open_store("memory:another")) as other:
        know(other, "x1", "b1", "x2")
        places = read_judge(other, ClusterRules(RACKS, TABLE), seen).places
    assert {name: (one.state, one.location) for name, one in places.items()} == {
        "x1": ("down", "/own/r9"),
        "b1": ("down", "/eu/r1"),
        "x2": ("down", ""),
    }
    assert places["x1"].view.labels == {"ssd"}


def test_what_was_mended_since_the_auditors_round_is_not_told(store: MetadataStore) -> None:
    assert misplaced_ledgers(store) == NONE_MISPLACED
    register(store, "b1", "b2", "b3")
    change_rules(store, lambda _: ClusterRules(RACKS, TABLE))
    make_ledger(store, 1, ("b1", "b2"))
    make_ledger(store, 2, ("b1", "b3"))
    make_ledger(store, 4, ("b2", "b1"))
    note_placement_faults(
        store, PlacementFaults(ended_ms=1, enforced=3, soft=50, first=(2, 1, 3, 4), reason="what")
    )
    reason = "the write set b1, b2 spans 1 rack (/eu/r1), the minimum is 2"
    # 2 lies well by now, 3 is gone; 4 is the first of those that were not enforced then
    assert misplaced_ledgers(store) == MisplacedFacts(
        enforced=1, soft=50, first=(1, 4), reason=reason
    )
