"""A connection whose token has ended is closed once, however long that takes."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from fastbk.errors import ConfigError
from fastbk.native.worker import COLD, COLLECT, QUOTAS_MAX, SLOTS, Worker
from fastbk.observe import logs
from fastbk.security.rights import ALL_RIGHTS, Principal
from fastbk.server.configuration.settings import (
    Quota,
    QuotaSettings,
    quota_of,
    quota_problems,
    rules_of,
)
from fastbk.server.network.principals import KEPT_S, Principals, Quotas, QuotaWaits
from tests.fixtures import apache_wire, frames
from tests.fixtures.hashes import DIGEST_CRC32C
from tests.fixtures.wait import wait_until
from tests.fixtures.worker_harness import WorkerHarness

if TYPE_CHECKING:
    from collections.abc import Iterator


class FakeConnection:
    """One that says it was closed, and stays."""

    def __init__(self, principal: Principal, done: list[str]) -> None:
        self.client = SimpleNamespace(principal=principal)
        self.address, self.slot, self._done = "here", 3, done

    def close(self) -> None:
        self._done.append("closed")


def test_a_connection_that_takes_long_to_close_ends_once() -> None:
    done: list[str] = []
    worker = SimpleNamespace(
        count=lambda _: done.append("counted"), admit=lambda *_: done.append("admitted")
    )
    admission = SimpleNamespace(
        files=SimpleNamespace(has_changed=lambda: False),
        why_ended=lambda *_: "its token has expired",
    )
    audit = SimpleNamespace(note=lambda *_, **__: done.append("noted"))
    quotas = SimpleNamespace(enter=lambda *_: None, leave=lambda *_: None)
    principals = Principals(
        *cast("tuple[Any, Any, float, Any, Any]", (admission, worker, 10.0, audit, quotas)),
        clock_s=lambda: 0.0, wall_clock_s=lambda: 100.0,
    )  # fmt: skip
    connection = FakeConnection(
        Principal(name="token:app", rights=ALL_RIGHTS, ends_at_s=50.0), done
    )
    principals.admitted(cast("Any", connection))
    for _ in range(3):
        principals.sweep()
    assert done == ["counted", "noted", "admitted", "closed"]
    principals.left(cast("Any", connection))


# When clients at their quotas are logged.


@pytest.fixture
def names() -> Iterator[list[str]]:
    found: list[str] = []

    def take(level: str, event: str, values: object) -> None:
        found.append(event)

    logs.add_taker(take)
    yield found
    logs.remove_taker(take)


def test_the_beginning_and_the_end_are_logged_once_each(names: list[str]) -> None:
    waits, now_s = QuotaWaits(), 100.0
    waits.poll(0, 0, now_s)
    for count in range(1, 50):
        now_s += 1
        waits.poll(count, count % 2, now_s)
    assert names == ["quota.reached"]
    began_s = now_s
    while len(names) < 2:
        now_s += 1
        waits.poll(49, 0, now_s)
    assert names == ["quota.reached", "quota.kept_again"]
    assert now_s - began_s == KEPT_S
    waits.poll(50, 0, now_s + 1)
    assert names[2:] == ["quota.reached"]


def test_a_connection_that_still_waits_has_not_kept_its_quota(names: list[str]) -> None:
    waits = QuotaWaits()
    for second in range(200):
        waits.poll(1, 1, float(second))
    assert names == ["quota.reached"]


# The section [quotas]: whom its bounds are for, and what is wrong with it.


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


# A quota of ledgers in a whole worker: adds to new ledgers wait, adds to others and other
# principals' do not.


NEARLY_NO_RATE = 1e-9
"""One ledger at first, then none as long as a test runs."""
RECOVERY, FENCE = 1, 1
WAITS_QUOTA = SLOTS["FBK_C_WORKER_WAITS_QUOTA"]


class Rig:
    """A worker, and connections whose bytes the test hands to it."""

    def __init__(self, stack: ExitStack) -> None:
        self.harness = stack.enter_context(WorkerHarness())
        self.worker = Worker(self.harness.options(has_quotas=True))
        stack.callback(self.worker.close)
        self._stack = stack

    def connect(self, number: int, *, is_apache: bool = False) -> int:
        """Return the slot of a connection whose quota has that number."""
        near, far = (self._stack.enter_context(one) for one in socket.socketpair())
        for end in (near, far):
            end.setblocking(False)
        slot = self.worker.connect(near.fileno())
        assert slot is not None
        if not is_apache:
            assert self.receive(slot, frames.hello()) & COLD
            self.worker.proceed(slot)
        self.worker.use_quota(slot, number)
        return slot

    def receive(self, slot: int, data: bytes) -> int:
        """Have the worker receive from a connection."""
        self.worker.receive_buffer[: len(data)] = data
        return self.worker.receive(slot, len(data))

    def placed(self) -> list[tuple[int, int]]:
        """Return ledgers and entries of the adds that were placed since the last call."""
        return [(record.ledger_id, record.entry_id) for record in self.harness.take_all()]

    def ledgers(self) -> list[int]:
        """Return the ledgers of the records that were placed since the last call."""
        return [record.ledger_id for record in self.harness.take_all()]

    def wait_for_none(self) -> None:
        """Collect until no connection waits for its quota."""

        def is_over() -> bool:
            self.worker.collect()
            return not self.worker.quota_waits

        wait_until(is_over, "every connection has gone on")


@pytest.fixture
def rig() -> Iterator[Rig]:
    with ExitStack() as stack:
        rig = Rig(stack)
        for number in (1, 2):
            rig.worker.set_quota(number, 0, 0, NEARLY_NO_RATE)
        yield rig


def add(ledger_id: int, entry_id: int, *, flags: int = 0) -> bytes:
    return frames.add(100 * ledger_id + entry_id, entry_id, ledger_id=ledger_id, flags=flags)


def fence(request_id: int, ledger_id: int) -> bytes:
    return frames.read(request_id, -1, flags=FENCE, key=frames.KEY, ledger_id=ledger_id)


def test_a_new_ledger_waits_and_known_ones_do_not(rig: Rig) -> None:
    one, two, other = rig.connect(1), rig.connect(1), rig.connect(2)
    rig.receive(one, add(6, 0) + add(6, 1) + add(7, 0) + add(6, 2))
    assert rig.placed() == [(6, 0), (6, 1)], "what comes behind a new ledger waits with it"
    rig.receive(two, add(6, 3))
    rig.receive(other, add(7, 1) + add(7, 2))
    rig.worker.collect()
    assert rig.placed() == [(6, 3), (7, 1), (7, 2)]
    assert (rig.worker.quota_waits, rig.worker.counter(WAITS_QUOTA)) == (1, 1)
    rig.worker.set_quota(1, 0, 0, 1000)
    rig.wait_for_none()
    assert rig.placed() == [(7, 0), (6, 2)]
    assert rig.worker.counter(WAITS_QUOTA) == 1, "a look at who waits is no other wait"


def test_to_another_principal_with_that_number_all_ledgers_are_new(rig: Rig) -> None:
    rig.receive(rig.connect(1), add(6, 0))
    rig.worker.set_quota(1, 0, 0, NEARLY_NO_RATE)
    another = rig.connect(1)
    rig.receive(another, add(8, 0) + add(6, 1))
    assert rig.placed() == [(6, 0), (8, 0)]
    assert rig.worker.quota_waits == 1


def test_a_connection_of_another_principal_waits_no_longer(rig: Rig) -> None:
    """A renewed token may name one that is in its own quota, or in none."""
    slots = [rig.connect(1) for _ in range(2)]
    for slot in slots:
        rig.receive(slot, add(6, 0) + add(7 + slot, 0))
    assert (rig.placed(), rig.worker.quota_waits) == ([(6, 0), (6, 0)], 2)
    rig.worker.use_quota(slots[0], 0)
    rig.worker.use_quota(slots[1], 2)
    rig.wait_for_none()
    assert sorted(rig.placed()) == [(7 + slot, 0) for slot in sorted(slots)]


def test_recovery_adds_begin_ledgers_too(rig: Rig) -> None:
    """A bookie that does not have the ledger makes it."""
    one, two = rig.connect(1), rig.connect(1)
    rig.receive(one, add(10, 0, flags=RECOVERY) + add(11, 0, flags=RECOVERY))
    rig.receive(two, add(10, 1, flags=RECOVERY) + add(10, 2))
    assert rig.placed() == [(10, 0), (10, 1), (10, 2)]
    assert rig.worker.quota_waits == 1


def test_fences_begin_ledgers_too(rig: Rig) -> None:
    """A fence makes a ledger that the bookie does not have."""
    one, two, other = rig.connect(1), rig.connect(1), rig.connect(2)
    rig.receive(one, b"".join(fence(2 + n, 20 + n) for n in range(5)))
    assert rig.ledgers() == [20]
    rig.receive(two, fence(9, 20) + add(20, 0) + frames.read(10, 0, ledger_id=30))
    rig.receive(other, fence(2, 21))
    assert rig.ledgers() == [20, 20, 21]
    assert rig.worker.quota_waits == 1
    rig.worker.set_quota(1, 0, 0, 1000)
    rig.wait_for_none()
    assert rig.ledgers() == [21, 22, 23, 24]


def test_a_fence_takes_nothing_of_the_other_rates(rig: Rig) -> None:
    """Who has added too much can still open and fence what it has."""
    slot = rig.connect(3)
    rig.worker.set_quota(3, 1, 1, 0)
    rig.receive(slot, add(6, 0))
    second = rig.connect(3)
    rig.receive(second, b"".join(fence(2 + n, 6) for n in range(3)))
    assert rig.ledgers() == [6, 6, 6, 6]
    rig.receive(second, add(6, 1))
    assert (rig.ledgers(), rig.worker.quota_waits) == ([], 1)


@pytest.mark.parametrize("version", [2, 3])
def test_fences_of_apaches_clients_begin_ledgers_too(rig: Rig, version: int) -> None:
    def apache_fence(number: int, ledger_id: int) -> bytes:
        if version == 2:
            return apache_wire.v2_read(
                0, flags=apache_wire.V2_FENCE, key=apache_wire.KEY, ledger_id=ledger_id
            )
        return apache_wire.v3_read(
            number, 0, flag=apache_wire.FENCE, key=apache_wire.KEY, ledger_id=ledger_id
        )

    one, batch = (rig.connect(number, is_apache=True) for number in (1, 2))
    rig.receive(one, b"".join(apache_fence(1 + n, 40 + n) for n in range(3)))
    assert (rig.ledgers(), rig.worker.quota_waits) == ([40], 1)
    if version == 2:
        read = b"".join(
            apache_wire.v2_batch(
                n, 0, 5, flags=apache_wire.V2_FENCE, key=apache_wire.KEY, ledger_id=50 + n
            )
            for n in range(3)
        )
        rig.receive(batch, read)
        assert (rig.ledgers(), rig.worker.quota_waits) == ([50], 2)


def test_batches_begin_ledgers_too(rig: Rig) -> None:
    entries = [frames.entry_bytes(entry_id) for entry_id in range(3)]
    one, two = rig.connect(1), rig.connect(2)
    rig.receive(one, frames.add_batch(2, 0, entries) + frames.add(3, 3))
    assert rig.placed() == [(frames.LEDGER, 0), (frames.LEDGER, 3)]
    rig.receive(two, add(6, 0) + frames.add_batch(2, 0, entries))
    assert (rig.placed(), rig.worker.quota_waits) == ([(6, 0)], 1)


def test_a_refused_add_begins_no_ledger(rig: Rig) -> None:
    slot = rig.connect(1)
    damaged = bytearray(frames.entry_bytes(0, ledger_id=6, digest_type=DIGEST_CRC32C))
    damaged[-1] ^= 1
    rig.receive(
        slot,
        frames.add(2, 0, ledger_id=6, entry=bytes(damaged))
        + frames.add(3, 0, ledger_id=6, key=None),
    )
    assert rig.placed() == []
    rig.receive(slot, add(7, 0))
    assert rig.placed() == [(7, 0)]


@pytest.mark.parametrize("version", [2, 3])
def test_apaches_clients_begin_ledgers_too(rig: Rig, version: int) -> None:
    def apache_add(ledger_id: int, entry_id: int, *, is_recovery: bool = False) -> bytes:
        body = apache_wire.entry(entry_id, ledger_id=ledger_id)
        if version == 2:
            return apache_wire.v2_add(
                entry_id, body=body, flags=apache_wire.V2_RECOVERY if is_recovery else 0
            )
        return apache_wire.v3_add(
            entry_id + 1, entry_id, ledger_id=ledger_id, body=body, recovery=is_recovery
        )

    one, two, other = (rig.connect(number, is_apache=True) for number in (1, 1, 2))
    rig.receive(one, apache_add(5, 0) + apache_add(5, 1) + apache_add(6, 0, is_recovery=True))
    rig.receive(two, apache_add(5, 2) + apache_add(7, 0))
    rig.receive(other, apache_add(6, 1))
    assert rig.placed() == [(5, 0), (5, 1), (5, 2), (6, 1)]
    assert rig.worker.quota_waits == 2
    rig.worker.set_quota(1, 0, 0, 1000)
    rig.wait_for_none()
    assert sorted(rig.placed()) == [(6, 0), (7, 0)]


def test_those_who_wait_get_their_turns_in_order(rig: Rig) -> None:
    """However late the worker is: with ten a second, one ledger is saved, and only one."""
    rig.worker.set_quota(1, 0, 0, 10)
    slots = [rig.connect(1) for _ in range(3)]
    for slot in slots:
        rig.receive(slot, b"".join(add(100 * slot + n, 0) for n in range(3)))
    assert rig.worker.quota_waits == 3
    rig.wait_for_none()
    placed = [ledger_id // 100 for ledger_id, _ in rig.placed()]
    first, second, third = slots
    assert placed == [first, first, second, third, first, second, third, second, third]
