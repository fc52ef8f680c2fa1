"""The section [quotas]: whom its bounds are for, and what is wrong with it."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import msgspec
import pytest

from fastbk.errors import ConfigError
from fastbk.native.worker import COLD, COLLECT, QUOTAS_MAX, Worker
from fastbk.server.configuration.settings import (
    Quota,
    QuotaSettings,
    quota_of,
    quota_problems,
    rules_of,
)
from fastbk.server.network.principals import Quotas
from tests.fixtures import frames
from tests.fixtures.worker_harness import WorkerHarness


class FakeWorker:
    """What the quotas say to C."""

    def __init__(self) -> None:
        self.set: dict[int, tuple[int, int, float]] = {}
        self.used: dict[int, int] = {}

    def set_quota(
        self, number: int, adds_per_s: int, bytes_per_s: int, ledgers_per_s: float
    ) -> None:
        self.set[number] = (adds_per_s, bytes_per_s, ledgers_per_s)

    def use_quota(self, slot: int, number: int) -> None:
        self.used[slot] = number


SETTINGS = QuotaSettings(
    connections_max=10,
    adds_rate=1000,
    exceptions=(
        "user:batch-* adds_rate=100 data_rate=1MiB",
        "user:free connections_max=0 adds_rate=0",
    ),
)


def test_the_first_pattern_that_matches_counts() -> None:
    rules = rules_of(SETTINGS)
    assert quota_of(rules, "user:batch-1") == Quota(10, 100, 1 << 20)
    assert quota_of(rules, "user:free") == Quota(0, 0, 0)
    assert quota_of(rules, "token:app") == Quota(10, 1000, 0)
    assert Quota(10, 1001, 3).share(4) == Quota(3, 251, 1)


def test_a_quota_of_ledgers_may_differ_and_is_shared_exactly() -> None:
    """Such rates are small: one a second for each of many workers would be much more than was meant."""
    exceptions = ("user:many ledgers_rate=500", "user:all ledgers_rate=0")
    rules = rules_of(QuotaSettings(ledgers_rate=20, exceptions=exceptions))
    assert [quota_of(rules, f"user:{name}").ledgers_rate for name in ("many", "all", "x")] == [
        500,
        0,
        20,
    ]
    assert Quota(10, 1001, 3, 10).share(4) == Quota(3, 251, 1, 2.5)
    assert Quota(ledgers_rate=1).share(4) == Quota(ledgers_rate=0.25)
    with pytest.raises(msgspec.ValidationError, match="ledgers_rate"):
        msgspec.convert({"ledgers_rate": -1}, QuotaSettings)
    fake = FakeWorker()
    quotas = Quotas(QuotaSettings(ledgers_rate=1), 2, fake)  # type: ignore[arg-type]
    quotas.enter(1, "a")
    assert (quotas.are_on, fake.set) == (True, {fake.used[1]: (0, 0, 0.5)})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("user:x", "write PATTERN and what differs"),
        ("user:x speed=1", "'speed' is none of"),
        ("user:x adds_rate=fast", "invalid literal"),
        ("user:x data_rate=1parsec", "user:x data_rate=1parsec"),
        ("user:x adds_rate=-1", "must be 0 to"),
        ("user:x ledgers_rate=0.5", "invalid literal"),
        ("user:x ledgers_rate=-1", "ledgers_rate must be 0 to"),
    ],
)
def test_what_is_wrong_is_named(text: str, reason: str) -> None:
    settings = QuotaSettings(exceptions=(text,))
    with pytest.raises(ConfigError, match=reason):
        rules_of(settings)
    assert any(reason in problem for problem in quota_problems(settings, has_names=True))


def test_a_bound_needs_names() -> None:
    assert list(quota_problems(QuotaSettings(), has_names=False)) == []
    assert "nobody has a name" in next(quota_problems(SETTINGS, has_names=False))


def test_connections_are_counted_by_principal() -> None:
    fake = FakeWorker()
    quotas = Quotas(QuotaSettings(connections_max=4, adds_rate=100), 2, fake)  # type: ignore[arg-type]
    assert quotas.refusal("a") == ""
    quotas.enter(1, "a")
    quotas.enter(2, "a")
    quotas.enter(2, "a")  # a renewed token
    assert "a has all 2 connections" in quotas.refusal("a")
    assert quotas.refusal("b") == ""
    quotas.enter(3, "b")
    assert fake.used[1] == fake.used[2] != fake.used[3]
    assert fake.set[fake.used[1]] == (50, 0, 0)
    quotas.leave(1)
    assert quotas.refusal("a") == ""
    quotas.leave(2)
    quotas.leave(2)


def test_who_comes_again_finds_its_debt() -> None:
    """Else one add a connection would be free of any rate."""
    fake = FakeWorker()
    quotas = Quotas(QuotaSettings(adds_rate=100), 1, fake)  # type: ignore[arg-type]
    quotas.enter(1, "a")
    quotas.leave(1)
    fake.set.clear()
    quotas.enter(2, "a")
    assert (fake.used[2], fake.set) == (fake.used[1], {}), "nothing is filled up"


def test_the_number_of_who_has_been_gone_longest_is_given_to_another() -> None:
    fake = FakeWorker()
    quotas = Quotas(QuotaSettings(adds_rate=100), 1, fake)  # type: ignore[arg-type]
    for slot in range(QUOTAS_MAX):
        assert quotas.refusal(f"user:{slot}") == ""
        quotas.enter(slot, f"user:{slot}")
    assert "principals have connections" in quotas.refusal("another")
    quotas.leave(7)
    quotas.leave(3)
    assert quotas.refusal("another") == ""
    fake.set.clear()
    quotas.enter(7, "another")
    assert fake.set == {fake.used[7]: (100, 0, 0)}
    quotas.enter(3, "user:3")
    assert list(fake.set) == [fake.used[7]]
    assert len(set(fake.used.values())) == QUOTAS_MAX


def test_a_connection_that_waits_for_its_quota_has_it_looked_at() -> None:
    """Where Python receives, as with TLS, nothing else may come that would begin the timer."""
    with WorkerHarness() as worker_harness, ExitStack() as stack:
        worker = Worker(worker_harness.options(has_quotas=True))
        stack.callback(worker.close)
        near, far = (stack.enter_context(one) for one in socket.socketpair())
        for end in (near, far):
            end.setblocking(False)
        slot = worker.connect(near.fileno())
        assert slot is not None

        def receive(data: bytes) -> int:
            worker.receive_buffer[: len(data)] = data
            return worker.receive(slot, len(data))

        assert receive(frames.hello()) & COLD
        worker.proceed(slot)
        worker.set_quota(1, 1, 0, 0)
        worker.use_quota(slot, 1)
        assert not receive(frames.add(2, 0, b"the one that it may")) & COLLECT
        assert receive(frames.add(3, 1, b"one too many")) & COLLECT
        assert worker.quota_waits == 1


def test_without_a_bound_nothing_is_kept() -> None:
    fake = FakeWorker()
    quotas = Quotas(QuotaSettings(), 1, fake)  # type: ignore[arg-type]
    quotas.enter(1, "a")
    assert (quotas.are_on, fake.used, quotas.refusal("a")) == (False, {}, "")
