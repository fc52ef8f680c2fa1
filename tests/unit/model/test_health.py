"""One verdict for the same facts, whoever brings them, and a next step for each reason."""

from __future__ import annotations

import pytest

from fastbk.model.health import (
    BookieFacts,
    ClusterFacts,
    DiskFacts,
    Verdict,
    reasons_of_all,
    verdict_of,
)

WELL = BookieFacts(bookie_id="b1", state="writable", disks=[DiskFacts("journal", 0, "ok", "all")])


def decided(cluster: ClusterFacts | None = None, **facts: object) -> tuple[Verdict, list[str]]:
    one = BookieFacts(**{"bookie_id": "b1", "state": "writable", **facts})  # type: ignore[arg-type]
    found = reasons_of_all([one, WELL], cluster or ClusterFacts())
    assert all(reason.next_step and reason.text and "\n" not in reason.text for reason in found)
    return verdict_of(found), [reason.name for reason in found]


def test_a_cluster_without_a_fault_is_well() -> None:
    assert decided(ClusterFacts(has_auditor=False)) == (Verdict.WELL, [])


@pytest.mark.parametrize(
    ("facts", "verdict", "name"),
    [
        ({"state": "down"}, Verdict.IN_DANGER, "bookie_down"),
        ({"state": "no answer", "why": "refused"}, Verdict.IN_DANGER, "bookie_silent"),
        ({"state": "read_only", "why": "an operator"}, Verdict.DEGRADED, "read_only"),
        ({"is_frozen": True}, Verdict.IN_DANGER, "frozen"),
        ({"reads_only": True}, Verdict.IN_DANGER, "reads_only"),
        ({"state": "replaying"}, Verdict.IN_DANGER, "state"),
        ({"limbo": 46}, Verdict.IN_DANGER, "limbo"),
        ({"has_damage": True}, Verdict.IN_DANGER, "damage_on_record"),
        ({"quarantined": 2}, Verdict.IN_DANGER, "quarantined"),
        ({"slow_commits": "33 ms"}, Verdict.DEGRADED, "journal_slow"),
        ({"conditions": [("metadata_hold", "back")]}, Verdict.DEGRADED, "metadata_hold"),
        ({"conditions": [("metadata", "away")]}, Verdict.DEGRADED, "metadata"),
        ({"disks": [DiskFacts("journal", 0, "ok", "all", "p99 1.1 s")]}, Verdict.DEGRADED, "disk_slow"),
        ({"disks": [DiskFacts("ledger", 1, "warn", "all")]}, Verdict.DEGRADED, "disk"),
        ({"disks": [DiskFacts("ledger", 0, "full", "repairs")]}, Verdict.IN_DANGER, "disk_refuses"),
    ],
)
def test_each_fact_of_a_bookie_has_its_verdict(
    facts: dict[str, object], verdict: Verdict, name: str
) -> None:
    assert decided(**facts) == (verdict, [name])


@pytest.mark.parametrize(
    ("facts", "verdict", "name"),
    [
        (ClusterFacts(hold="rolled back"), Verdict.DEGRADED, "metadata_hold"),
        (ClusterFacts(heals=False), Verdict.DEGRADED, "healing_paused"),
        (ClusterFacts(marked=1), Verdict.IN_DANGER, "copies_missing"),
        (ClusterFacts(lost=["b7"]), Verdict.IN_DANGER, "bookie_lost"),
    ],
)
def test_each_fact_of_a_cluster_has_its_verdict(
    facts: ClusterFacts, verdict: Verdict, name: str
) -> None:
    assert decided(facts) == (verdict, [name])


def test_copies_that_nobody_heals_name_who_has_to_be_started() -> None:
    (reason,) = reasons_of_all([WELL], ClusterFacts(marked=3, has_auditor=False))
    assert "start `fastbk autorecovery`" in reason.next_step


def test_a_cluster_of_which_nobody_serves_is_down() -> None:
    down = BookieFacts(bookie_id="b1", state="down")
    first, *_ = reasons_of_all([down, down], ClusterFacts())
    assert (first.verdict, first.name) == (Verdict.DOWN, "no_bookie")
    assert verdict_of(reasons_of_all([], ClusterFacts())) is Verdict.DOWN
