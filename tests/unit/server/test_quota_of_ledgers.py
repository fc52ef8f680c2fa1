"""A quota of ledgers in a whole worker: adds to new ledgers wait, adds to others and other principals' do not."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from fastbk.native.worker import COLD, SLOTS, Worker
from tests.fixtures import apache_wire, frames
from tests.fixtures.hashes import DIGEST_CRC32C
from tests.fixtures.wait import wait_until
from tests.fixtures.worker_harness import WorkerHarness

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
