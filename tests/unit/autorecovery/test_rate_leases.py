"""The cluster's copy rate, divided among workers: what they may use never adds up to more."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from fastbk.autorecovery.rate_leases import LEASE_S, HeldLease, Lease, RateLeases

LIMIT = 100.0


@dataclass(frozen=True)
class Announcement:
    """What one worker stores."""

    counter: int
    is_busy: bool = False


def test_a_new_auditor_grants_nothing_while_leases_of_the_former_may_be_in_use() -> None:
    leases = RateLeases(0.0)
    assert leases.grant({"a": Announcement(1)}, LIMIT, LEASE_S - 0.1) == {}
    assert leases.grant({"a": Announcement(1)}, LIMIT, LEASE_S) == {"a": Lease(1, LIMIT)}


def test_a_busy_worker_gets_more_than_an_idle_one() -> None:
    leases = RateLeases(-LEASE_S)
    granted = leases.grant({"a": Announcement(1, is_busy=True), "b": Announcement(1)}, LIMIT, 0.0)
    assert granted["a"].bytes_per_s == pytest.approx(8 * (granted["b"].bytes_per_s or 0))
    assert sum(one.bytes_per_s or 0 for one in granted.values()) == pytest.approx(LIMIT)


def test_without_a_limit_every_worker_is_free_at_once() -> None:
    held = HeldLease()
    held.announced(3, 1.0)
    held.received(Lease(3, None))
    assert held.bytes_per_s(2.0) == float("inf")
    assert RateLeases(0.0).grant({"a": Announcement(3)}, 0.0, 1.0) == {"a": Lease(3, None)}


def test_a_lease_ends_and_answers_to_others_count_for_nothing() -> None:
    held = HeldLease()
    held.announced(1, 0.0)
    assert held.bytes_per_s(0.0) == 0
    held.received(Lease(7, 50.0))
    assert held.bytes_per_s(0.0) == 0
    held.received(Lease(1, 50.0))
    assert held.bytes_per_s(LEASE_S - 0.1) == 50.0
    assert held.bytes_per_s(LEASE_S) == 0


@pytest.mark.parametrize("seed", range(40))
def test_the_leases_in_use_never_add_up_to_more_than_the_limit(seed: int) -> None:
    """INV-H5, with answers that are seen late or never, workers that come and go, auditors and limits that change."""
    chance = random.Random(seed)
    now_s, limit = 0.0, LIMIT
    limits = [(0.0, limit)]
    leases = RateLeases(now_s)
    held: dict[str, HeldLease] = {}
    announced: dict[str, Announcement] = {}
    stored: dict[str, Lease] = {}
    counters: dict[str, int] = {}
    used = 0.0
    for _ in range(400):
        now_s += chance.uniform(0.1, 2.0)
        name = chance.choice("abcd")
        if chance.random() < 0.02:
            leases = RateLeases(now_s)  # another auditor
        if chance.random() < 0.02:
            held.pop(name, None)  # a worker restarts
            announced.pop(name, None)
        if chance.random() < 0.02:
            limit = chance.choice([20.0, LIMIT, 300.0])
            limits.append((now_s, limit))
        if chance.random() < 0.5:
            counters[name] = counters.get(name, 0) + 1
            held.setdefault(name, HeldLease()).announced(counters[name], now_s)
            announced[name] = Announcement(counters[name], is_busy=chance.random() < 0.5)
        if chance.random() < 0.5:
            stored |= leases.grant(announced, limit, now_s)
        if chance.random() < 0.5 and name in held and name in stored:
            held[name].received(stored[name])
        before = [one for at, one in limits if at <= now_s - LEASE_S][-1:]
        recent = [one for at, one in limits if at > now_s - LEASE_S]
        in_use = sum(one.bytes_per_s(now_s) for one in held.values())
        assert in_use <= max(before + recent) + 1e-6
        used = max(used, in_use)
    assert used > 0
