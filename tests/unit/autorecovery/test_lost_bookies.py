"""Which bookies are lost and due: each with its own delay, kept in metadata, and held where the loss is doubtful."""

from __future__ import annotations

import random

import pytest

from fastbk.autorecovery.lost_bookies import (
    DELAY_DEFAULT_S,
    HALF_LOST,
    HOLD_DELAYS,
    HOLD_S_MAX,
    SESSION_LOST,
    HealingHold,
    Judged,
    LossRules,
    LostBookies,
    delay_of,
    judge,
)

ALL = {f"b{one}" for one in range(5)}
DELAY_S = 60.0
RULES = LossRules(DELAY_S)


def without(*lost: int) -> set[str]:
    return ALL - {f"b{one}" for one in lost}


class Cluster:
    """One auditor after the other, with what is stored between them."""

    def __init__(self) -> None:
        self.stored = LostBookies()
        self.now_s = 1000.0

    def judge(self, registered: set[str], rules: LossRules = RULES) -> Judged:
        judged = judge(self.stored, ALL, registered, int(self.now_s * 1000), rules)
        self.stored = judged.after
        return judged


def test_each_lost_bookie_has_its_own_delay() -> None:
    """INV-H3: a second loss does not hurry the first, nor begin at once itself (Apache's auditor does)."""
    cluster = Cluster()
    assert cluster.judge(without(0)).new == {"b0"}
    cluster.now_s += DELAY_S / 2
    judged = cluster.judge(without(0, 1))
    assert not judged.due
    assert judged.waiting == {"b0": DELAY_S / 2, "b1": DELAY_S}
    cluster.now_s += DELAY_S / 2
    assert cluster.judge(without(0, 1)).due == {"b0"}
    cluster.now_s += DELAY_S / 2
    assert cluster.judge(without(0, 1)).due == {"b0", "b1"}


def test_a_bookie_that_returns_is_not_lost_and_its_next_loss_counts_anew() -> None:
    """INV-H3."""
    cluster = Cluster()
    cluster.judge(without(0))
    cluster.now_s += DELAY_S - 1
    assert cluster.judge(ALL).returned == {"b0"}
    assert not cluster.stored.lost
    cluster.now_s += 2
    assert not cluster.judge(without(0)).due


def test_an_auditor_that_takes_over_continues_the_count() -> None:
    """INV-H3: the time of loss is in what is stored, not in the auditor."""
    cluster = Cluster()
    cluster.judge(without(0))
    cluster.now_s += DELAY_S  # nobody was the auditor meanwhile
    assert cluster.judge(without(0)).due == {"b0"}


def test_a_time_of_loss_in_the_future_counts_as_now() -> None:
    cluster = Cluster()
    cluster.judge(without(0))
    cluster.now_s -= 500  # another machine's clock
    assert cluster.judge(without(0)).waiting == {"b0": DELAY_S}
    cluster.now_s += DELAY_S
    assert cluster.judge(without(0)).due == {"b0"}


def test_the_loss_of_half_of_the_bookies_is_held_for_six_delays() -> None:
    """INV-H4."""
    cluster = Cluster()
    judged = cluster.judge(without(0, 1, 2))
    assert judged.held == dict.fromkeys(("b0", "b1", "b2"), HALF_LOST)
    cluster.now_s += HOLD_DELAYS * DELAY_S - 1
    assert not cluster.judge(without(0, 1, 2)).due
    cluster.now_s += 1
    assert cluster.judge(without(0, 1, 2)).due == {"b0", "b1", "b2"}


def test_a_hold_ends_with_its_condition() -> None:
    """INV-H4: once fewer than half are lost, what is still lost has its own delay."""
    cluster = Cluster()
    cluster.judge(without(0, 1, 2))
    cluster.now_s += DELAY_S
    judged = cluster.judge(without(0))
    assert judged.due == {"b0"}
    assert not judged.held


def test_resume_covers_what_is_lost_now_and_no_later_loss() -> None:
    """INV-H4."""
    cluster = Cluster()
    cluster.judge(without(0, 1, 2))
    cluster.stored = cluster.stored.released()
    cluster.now_s += DELAY_S
    judged = cluster.judge(without(0, 1, 2, 3))
    assert judged.due == {"b0", "b1", "b2"}
    assert judged.held == {"b3": HALF_LOST}


def test_losses_after_the_auditors_own_session_was_lost_are_held() -> None:
    """INV-H4: it may be the auditor that was cut off."""
    cluster = Cluster()
    rules = LossRules(DELAY_S, session_lost_ms=int(cluster.now_s * 1000) - 10_000)
    assert cluster.judge(without(0), rules).held == {"b0": SESSION_LOST}
    cluster.now_s += 55
    # The doubt stays with the loss of then; what is lost a minute later is no longer in doubt.
    judged = cluster.judge(without(0, 1), rules)
    assert judged.held == {"b0": SESSION_LOST}
    cluster.now_s += DELAY_S
    assert cluster.judge(without(0, 1), rules).due == {"b1"}


def test_a_bookie_whose_ledgers_are_marked_is_due_whatever_is_lost_later() -> None:
    cluster = Cluster()
    cluster.judge(without(0))
    cluster.now_s += DELAY_S
    assert cluster.judge(without(0)).due == {"b0"}
    cluster.stored = cluster.stored.marked({"b0": cluster.stored.lost["b0"].lost_ms})
    judged = cluster.judge(without(0, 1, 2))
    assert judged.due == {"b0"}
    assert set(judged.held) == {"b1", "b2"}


def test_a_scan_for_an_earlier_loss_marks_nothing_of_a_later_one() -> None:
    """INV-H3: the bookie returned while its ledgers were marked, and was lost again before the scan ended."""
    cluster = Cluster()
    cluster.judge(without(0))
    cluster.now_s += DELAY_S
    scanned = {one: cluster.stored.lost[one].lost_ms for one in cluster.judge(without(0)).due}
    cluster.judge(ALL)
    cluster.now_s += 1
    cluster.judge(without(0))
    cluster.stored = cluster.stored.marked(scanned)
    judged = cluster.judge(without(0))
    assert not judged.due
    assert judged.waiting == {"b0": DELAY_S}


def test_a_bookie_that_left_the_cluster_is_forgotten() -> None:
    cluster = Cluster()
    cluster.judge(without(0))
    judged = judge(cluster.stored, without(0), without(0), 0, RULES)
    assert judged.forgotten == {"b0"}
    assert not judged.after.lost


@pytest.mark.parametrize("seed", range(50))
def test_no_order_of_losses_and_returns_makes_a_bookie_due_early(seed: int) -> None:
    """INV-H3 and INV-H4 against a plain count of how long each bookie was away without a break."""
    chance = random.Random(seed)
    cluster, away_since = Cluster(), dict[str, float]()
    for _ in range(200):
        cluster.now_s += chance.choice([1.0, 10.0, 30.0])
        lost = {one for one in ALL if chance.random() < chance.choice([0.1, 0.5])}
        lost |= {one for one in away_since if chance.random() < 0.9}
        away_since = {one: away_since.get(one, cluster.now_s) for one in lost}
        judged = cluster.judge(ALL - lost)
        assert judged.after.lost.keys() == lost
        for one in judged.due:
            away_s = cluster.now_s - away_since[one]
            assert away_s >= DELAY_S
            if 2 * len(lost) >= len(ALL):
                assert away_s >= HOLD_DELAYS * DELAY_S
        for one in lost - judged.due:
            assert cluster.now_s - away_since[one] < HOLD_DELAYS * DELAY_S


def test_an_operators_hold_keeps_lost_bookies_from_being_due_until_its_time() -> None:
    """INV-H6."""
    cluster = Cluster()
    rules = LossRules(
        DELAY_S, hold=HealingHold(int((cluster.now_s + 5 * DELAY_S) * 1000), "a roll")
    )
    judged = cluster.judge(without(0), rules)
    assert judged.held == {"b0": "a roll"} and judged.waiting == {"b0": 5 * DELAY_S}
    cluster.now_s += 4.5 * DELAY_S
    cluster.judge(without(0, 1), rules)
    cluster.now_s += 0.5 * DELAY_S - 1
    judged = cluster.judge(without(0, 1), rules)
    assert not judged.due and set(judged.held) == {"b0"}, "the delay of b1 is longer"
    cluster.now_s += 1
    judged = cluster.judge(without(0, 1), rules)
    assert judged.due == {"b0"} and judged.waiting == {"b1": 0.5 * DELAY_S} and not judged.held


def test_a_hold_undoes_nothing_and_resume_ends_it() -> None:
    """INV-H6."""
    cluster = Cluster()
    lost_ms = cluster.judge(without(0)).after.lost["b0"].lost_ms
    cluster.stored = cluster.stored.marked({"b0": lost_ms})
    rules = LossRules(DELAY_S, hold=HealingHold(int(cluster.now_s * 1000) + 10**7, "a roll"))
    assert cluster.judge(without(0), rules).due == {"b0"}, "its ledgers are marked"
    cluster.judge(without(0, 1), rules)
    cluster.stored = cluster.stored.released()
    cluster.now_s += DELAY_S
    assert cluster.judge(without(0, 1), rules).due == {"b0", "b1"}


def test_maintenance_holds_one_bookie_and_ends_at_its_time() -> None:
    """INV-H6: the other lost bookie is due after its delay."""
    cluster = Cluster()
    end_ms = int((cluster.now_s + 5 * DELAY_S) * 1000)
    rules = LossRules(DELAY_S, maintenance={"b0": HealingHold(end_ms, "a new disk")})
    cluster.judge(without(0, 1), rules)
    cluster.now_s += DELAY_S
    judged = cluster.judge(without(0, 1), rules)
    assert judged.due == {"b1"} and judged.waiting == {"b0": 4 * DELAY_S}
    assert judged.held == {"b0": "it is in maintenance: a new disk"}
    cluster.now_s += 4 * DELAY_S
    assert cluster.judge(without(0, 1), rules).due == {"b0", "b1"}


def test_of_two_holds_the_longer_one_counts() -> None:
    """INV-H6."""
    cluster = Cluster()
    at = [HealingHold(int((cluster.now_s + each * DELAY_S) * 1000), str(each)) for each in (3, 5)]
    for hold, own in (at, reversed(at)):
        judged = cluster.judge(without(0), LossRules(DELAY_S, hold=hold, maintenance={"b0": own}))
        assert judged.waiting == {"b0": 5 * DELAY_S}


def test_no_clock_makes_a_hold_longer_than_a_day() -> None:
    """INV-H6: it was written by another machine."""
    assert HealingHold(10**15).left_s(1000) == HOLD_S_MAX
    assert HealingHold().left_s(1000) == 0


def test_apaches_stored_zero_is_our_default() -> None:
    assert delay_of(None) == delay_of(0) == DELAY_DEFAULT_S
    assert delay_of(7) == 7.0
