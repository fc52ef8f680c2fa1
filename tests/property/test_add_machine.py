"""The add machine against a slow, obvious model, under any order of acks, refusals and lost connections. INV-C1, C2."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fastbk.errors import LedgerFenced, NotEnoughBookies, QuorumTimeout
from fastbk.model.quorum import write_set
from fastbk.replication.add_machine import AddMachine
from fastbk.wire.statuses import Status

FRAME = 10


def frames_of(first: int, count: int) -> tuple[bytes, list[int]]:
    """Frames that name their entry, ten bytes each."""
    raw = b"".join(b"%010d" % (first + one) for one in range(count))
    return raw, [100] * count


def entries_in(frames: bytes) -> list[int]:
    raw = bytes(frames)
    return [int(raw[at : at + FRAME]) for at in range(0, len(raw), FRAME)]


def machine_of(
    ensemble: int = 3,
    write_quorum: int = 3,
    ack_quorum: int = 2,
    held: int = 1 << 30,
    ends_when_unable: bool = True,
) -> AddMachine:
    names = [f"b{one}" for one in range(ensemble)]
    machine = AddMachine(
        7, names, write_quorum, ack_quorum, held_bytes_max=held, ends_when_unable=ends_when_unable
    )
    for index in range(ensemble):
        machine.connected(index)
    return machine


def add(machine: AddMachine, count: int, now_s: float = 0.0) -> None:
    machine.add(*frames_of(machine.next_entry_id, count), now_s)


def sent(machine: AddMachine, index: int) -> list[int]:
    found: list[int] = []
    while (frames := machine.next_to_send(index)) is not None:
        found += entries_in(frames)
    return found


class AnyHistory(RuleBasedStateMachine):
    """Bookies here are sets of entries; whatever happens, the machine's head is what they make true."""

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.size = data.draw(st.integers(1, 4))
        self.write_quorum = data.draw(st.integers(1, self.size))
        self.ack_quorum = data.draw(st.integers(1, self.write_quorum))
        held = data.draw(st.sampled_from([0, 5 * FRAME, 1 << 30]))
        self.machine = machine_of(
            self.size, self.write_quorum, self.ack_quorum, held, ends_when_unable=False
        )
        self.up = [True] * self.size
        self.wire: list[list[int]] = [[] for _ in range(self.size)]
        self.acked: list[set[int]] = [set() for _ in range(self.size)]
        self.head = 0

    def owns(self, index: int, entry_id: int) -> bool:
        return index in write_set(entry_id, self.size, self.write_quorum)

    def is_complete(self, entry_id: int) -> bool:
        return sum(entry_id in acked for acked in self.acked) >= self.ack_quorum

    @rule(count=st.integers(1, 5))
    def append(self, count: int) -> None:
        add(self.machine, count)

    @rule(index=st.integers(0, 3))
    def send(self, index: int) -> None:
        if index < self.size and self.up[index]:
            frames = self.machine.next_to_send(index)
            if frames is not None:
                entries = entries_in(frames)
                assert all(self.owns(index, one) for one in entries)
                assert entries == sorted(set(entries))
                self.wire[index] += entries

    def answer(self, index: int, first: int, count: int) -> None:
        if self.machine.failure is None:
            self.acked[index] |= {
                one for one in range(first, first + count) if self.owns(index, one)
            }
        before = self.machine.head
        moved = self.machine.acknowledged(index, first, count)
        assert moved == (self.machine.head > before)

    @rule(index=st.integers(0, 3), count=st.integers(1, 6), data=st.data())
    def ack(self, index: int, count: int, data: st.DataObject) -> None:
        if index >= self.size or not self.wire[index]:
            return
        wire = self.wire[index]
        at = data.draw(st.sampled_from([0, 0, 0, len(wire) // 2, len(wire) - 1]))
        run = wire[at : at + 1]
        while len(run) < count and at + len(run) < len(wire) and wire[at + len(run)] == run[-1] + 1:
            run.append(wire[at + len(run)])
        del wire[at : at + len(run)]
        self.answer(index, run[0], len(run))

    @rule(
        index=st.integers(0, 3),
        status=st.sampled_from([Status.TOO_MANY_REQUESTS, Status.READ_ONLY]),
    )
    def refuse(self, index: int, status: Status) -> None:
        if index < self.size and self.wire[index]:
            entry_id = self.wire[index].pop(0)
            if self.machine.refused(index, entry_id, 1, status):
                self.machine.rewind(index)

    @rule(index=st.integers(0, 3), stored=st.booleans())
    def lose(self, index: int, stored: bool) -> None:
        if index < self.size:
            self.up[index] = False
            self.wire[index] = []
            self.machine.lost(index, "cut")

    @rule(index=st.integers(0, 3))
    def come_back(self, index: int) -> None:
        if index < self.size:
            self.up[index] = True
            self.wire[index] = []
            self.machine.connected(index)

    @invariant()
    def the_head_is_what_the_acks_make_it(self) -> None:
        if not hasattr(self, "machine"):
            return
        assert self.machine.head >= self.head
        self.head = self.machine.head
        expected = self.head
        while expected < self.machine.next_entry_id and self.is_complete(expected):
            expected += 1
        assert expected == self.head
        assert all(self.is_complete(one) for one in range(self.head))
        assert self.machine.length_confirmed == 100 * self.head

    @invariant()
    def memory_is_bounded_by_what_is_in_flight(self) -> None:
        if hasattr(self, "machine"):
            batch_slack = 5 * FRAME
            in_flight = FRAME * (self.machine.next_entry_id - self.machine.head) + batch_slack
            assert (
                self.machine.held_bytes <= max(self.machine.held_bytes_max, in_flight) + in_flight
            )

    @precondition(lambda self: hasattr(self, "machine"))
    @rule()
    def everybody_catches_up(self) -> None:
        machine = self.machine
        for index in range(self.size):
            self.up[index] = True
            self.wire[index] = []
            machine.connected(index)
        for index in range(self.size):
            for entry_id in sent(machine, index):
                self.answer(index, entry_id, 1)
        assert machine.head == machine.next_entry_id
        assert machine.is_replicated
        assert machine.held_bytes == 0
        assert all(machine.lagging(index) == 0 for index in range(self.size))
        for index in range(self.size):
            owned = {one for one in range(machine.next_entry_id) if self.owns(index, one)}
            assert len(owned - self.acked[index]) == machine.under_replicated[index]


TestAnyHistory = AnyHistory.TestCase


def test_a_run_of_acks_from_two_of_three_completes_a_batch() -> None:
    machine = machine_of()
    add(machine, 1000)
    assert [len(sent(machine, index)) for index in range(3)] == [1000] * 3
    assert not machine.acknowledged(0, 0, 1000)
    assert machine.acknowledged(2, 0, 400)
    assert machine.head == 400
    assert machine.length_confirmed == 40_000
    assert machine.lagging(1) == 1000


def test_one_buffer_serves_all_bookies_of_a_whole_ensemble() -> None:
    machine = machine_of()
    raw, sizes = frames_of(0, 10)
    machine.add(raw, sizes, 0.0)
    assert all(machine.next_to_send(index) is raw for index in range(3))


def test_nothing_is_acknowledged_after_a_fence() -> None:
    machine = machine_of()
    add(machine, 10)
    for index in range(3):
        sent(machine, index)
    machine.acknowledged(0, 0, 5)
    machine.acknowledged(1, 0, 3)
    assert not machine.refused(2, 4, 1, Status.FENCED)
    assert isinstance(machine.failure, LedgerFenced)
    assert not machine.acknowledged(1, 3, 7)
    assert machine.head == 3
    assert machine.failure.outcome == "unknown"
    assert machine.failure.replicas == {"b2": "FENCED"}


def test_an_entry_that_all_it_was_sent_to_refused_is_not_written() -> None:
    machine = machine_of(1, 1, 1)
    add(machine, 2)
    sent(machine, 0)
    machine.refused(0, 0, 2, Status.FENCED)
    assert machine.outcome(0) == machine.outcome(1) == "not_written"
    assert machine.outcome(2) == "not_written"


def test_a_refusal_after_a_resend_leaves_the_outcome_unknown() -> None:
    machine = machine_of(1, 1, 1)
    add(machine, 1)
    sent(machine, 0)
    machine.lost(0, "cut")
    machine.connected(0)
    assert sent(machine, 0) == [0]
    machine.refused(0, 0, 1, Status.FENCED)
    assert machine.outcome(0) == "unknown"


def test_too_few_bookies_that_can_store_end_the_writer_at_once() -> None:
    machine = machine_of()
    add(machine, 1)
    for index in range(3):
        sent(machine, index)
    assert machine.refused(0, 0, 1, Status.READ_ONLY)
    assert machine.failure is None
    machine.refused(1, 0, 1, Status.IO_ERROR)
    assert isinstance(machine.failure, NotEnoughBookies)
    assert machine.failure.replicas == {"b0": "READ_ONLY", "b1": "IO_ERROR"}
    assert machine.failure.outcome == "unknown"


def test_the_oldest_add_decides_when_time_is_up() -> None:
    machine = machine_of()
    assert machine.expire(100.0, 10.0) is None
    add(machine, 1, now_s=100.0)
    add(machine, 1, now_s=105.0)
    assert machine.expire(101.0, 10.0) == 110.0
    for index in range(2):
        machine.acknowledged(index, 0, 1)
    assert machine.expire(111.0, 10.0) == 115.0
    machine.lost(2, "cut")
    assert machine.expire(115.0, 10.0) is None
    assert isinstance(machine.failure, QuorumTimeout)
    assert machine.failure.entry_id == 1
    assert machine.failure.replicas == {"b2": "cut"}


def test_completed_entries_that_a_missing_bookie_lacks_are_dropped_beyond_the_bound() -> None:
    machine = machine_of(held=100)
    machine.lost(2, "cut")
    for _ in range(50):
        add(machine, 1)
        for index in (0, 1):
            assert len(sent(machine, index)) == 1
            machine.acknowledged(index, machine.next_entry_id - 1, 1)
    assert machine.head == 50
    assert machine.held_bytes <= 100
    assert machine.under_replicated == [0, 0, 40]
    machine.connected(2)
    assert sent(machine, 2) == list(range(40, 50))
    machine.acknowledged(2, 40, 10)
    assert machine.is_replicated
    assert machine.held_bytes == 0


@given(st.integers(0, 2**63 - 100), st.integers(1, 4), st.data())
def test_large_ids_are_completed_like_small_ones(
    first: int, size: int, data: st.DataObject
) -> None:
    write_quorum = data.draw(st.integers(1, size))
    names = [f"b{one}" for one in range(size)]
    machine = AddMachine(
        1, names, write_quorum, write_quorum, held_bytes_max=0, first_entry_id=first
    )
    machine.add(b"0" * 40, [1] * 4, 0.0)
    for entry_id in range(first, first + 4):
        for index in write_set(entry_id, size, write_quorum):
            assert machine.head == entry_id
            machine.acknowledged(index, entry_id, 1)
    assert machine.head == first + 4
