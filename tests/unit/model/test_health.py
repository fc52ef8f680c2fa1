"""One verdict for the same facts, whoever brings them, and a next step for each reason."""

from __future__ import annotations

import math
import re

import pytest

from fastbk.model.health import (
    BACKUP_AGE_MAX_S,
    BookieFacts,
    ClusterFacts,
    DiskFacts,
    MisplacedFacts,
    OpenLedgerFacts,
    Verdict,
    reasons_of_all,
    reasons_of_cluster,
    verdict_of,
)
from tests.fixtures.monitoring import RULES

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
        (
            {"disks": [DiskFacts("journal", 0, "ok", "all", "p99 1.1 s")]},
            Verdict.DEGRADED,
            "disk_slow",
        ),
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
        (ClusterFacts(backup_age_s=math.inf), Verdict.WELL, "backup_missing"),
        (ClusterFacts(backup_age_s=BACKUP_AGE_MAX_S + 1), Verdict.DEGRADED, "backup_old"),
        (
            ClusterFacts(ledgers=OpenLedgerFacts(unfinished=[7])),
            Verdict.DEGRADED,
            "unfinished_recovery",
        ),
        (
            ClusterFacts(ledgers=OpenLedgerFacts(uncloseable=[7], away=["b1"])),
            Verdict.IN_DANGER,
            "uncloseable",
        ),
        (
            ClusterFacts(misplaced=MisplacedFacts(enforced=1, first=[7], reason="one rack")),
            Verdict.DEGRADED,
            "placement_enforced",
        ),
        (
            ClusterFacts(misplaced=MisplacedFacts(refusal="too few racks")),
            Verdict.DEGRADED,
            "placement_refused",
        ),
        (
            ClusterFacts(misplaced=MisplacedFacts(soft=1, first=[7], reason="one rack")),
            Verdict.WELL,
            "placement_soft",
        ),
    ],
)
def test_each_fact_of_a_cluster_has_its_verdict(
    facts: ClusterFacts, verdict: Verdict, name: str
) -> None:
    assert decided(facts) == (verdict, [name])


def test_misplaced_ledgers_are_named_and_counted() -> None:
    facts = MisplacedFacts(enforced=2, soft=100, first=[7, 9, *range(100, 118)], reason="one rack")
    enforced, soft = reasons_of_cluster(ClusterFacts(misplaced=facts))
    assert enforced.text == "2 ledgers: 7, 9 lie against an enforced rule of placement: one rack"
    assert soft.text == (
        "100 ledgers: 100, 101, 102, 103, 104, ... lie otherwise than a rule wants it, not enforced"
    )
    many = MisplacedFacts(enforced=1_000, soft=1, first=range(20), reason="one rack")
    enforced, soft = reasons_of_cluster(ClusterFacts(misplaced=many))
    assert enforced.text.startswith("1,000 ledgers: 0, 1, 2, 3, 4, ... lie against")
    assert soft.text.startswith("1 ledger lies otherwise")


def test_copies_that_nobody_heals_name_who_has_to_be_started() -> None:
    (reason,) = reasons_of_all([WELL], ClusterFacts(marked=3, has_auditor=False))
    assert "start `fastbk autorecovery`" in reason.next_step


def test_a_cluster_of_which_nobody_serves_is_down() -> None:
    down = BookieFacts(bookie_id="b1", state="down")
    first, *_ = reasons_of_all([down, down], ClusterFacts())
    assert (first.verdict, first.name) == (Verdict.DOWN, "no_bookie")
    assert verdict_of(reasons_of_all([], ClusterFacts())) is Verdict.DOWN


def test_a_backup_is_old_in_the_verdict_when_the_alert_fires() -> None:
    assert not list(reasons_of_cluster(ClusterFacts(backup_age_s=BACKUP_AGE_MAX_S)))
    rule = re.search(r"fastbk_autorecovery_last_backup_age_seconds\) > (\d+)", RULES.read_text())
    assert rule is not None and int(rule[1]) == BACKUP_AGE_MAX_S


def test_ledgers_that_wait_are_named_with_a_command_and_the_text_is_bounded() -> None:
    away = [f"bookie-{one}.example" for one in range(100)]
    ledgers = OpenLedgerFacts(unfinished=range(9), uncloseable=range(1000, 2000), away=away)
    first, second = reasons_of_cluster(ClusterFacts(ledgers=ledgers))
    assert first.text.startswith(
        "1,000 ledgers: 1000, 1001, 1002, 1003, 1004, ... cannot be closed while bookie-0"
    )
    assert len(first.text) <= 200
    assert "`fastbk ledger close 1000 --accept-loss --dry-run`" in first.next_step
    assert second.text.startswith("the recovery of 9 ledgers: 0, 1, 2, 3, 4, ... was begun")
    assert "fastbk ledger close 0;" in second.next_step
