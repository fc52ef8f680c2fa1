"""The plan of a reader against chains that change under it: every entry once, none passed by (INV-S11)."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from fastbk.stream.chain import (
    Chain,
    Contents,
    add_segment,
    close_segment,
    open_for_append,
    reserve,
    seal,
    truncate,
)
from fastbk.stream.positions import DLSN, FIRST
from fastbk.stream.reader.read_plan import Next, ReadPlan


@dataclass
class Harness:
    """A stream: its chain, and how many entries each ledger has, of one record each."""

    chain: Chain = field(default_factory=lambda: open_for_append(Chain("ab"), "w"))
    chains: list[Chain] = field(default_factory=list)
    entries: dict[int, int] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)
    next_ledger_id: int = 0

    def changed(self, chain: Chain) -> None:
        self.chains.append(self.chain)
        self.chain = chain

    def add(self) -> None:
        if len(self.chain.open_rows) < 2:
            self.next_ledger_id += 1
            ledger_id = self.next_ledger_id
            self.entries[ledger_id] = 0
            chain = reserve(self.chain, self.chain.epoch, ledger_id)
            self.changed(add_segment(chain, self.chain.epoch, ledger_id, 0))

    def append(self) -> None:
        """To the first open ledger that is not closed: the second one only when the first is."""
        for row in self.chain.open_rows:
            if row.ledger_id not in self.closed:
                self.entries[row.ledger_id] += 1
                return

    def close_ledger(self) -> None:
        """The first open segment's: the chain does not say so yet."""
        if self.chain.open_rows:
            self.closed.add(self.chain.open_rows[0].ledger_id)

    def close(self) -> None:
        """The first open segment: an empty one leaves the chain, and takes the one behind with it."""
        for row in self.chain.open_rows[:1]:
            self.closed.add(row.ledger_id)
            count = self.entries[row.ledger_id]
            last = DLSN(row.number, count - 1, 0) if count else None
            self.changed(
                close_segment(self.chain, row.ledger_id, Contents(count, 0, 0, 0, 0, last))
            )


class Machine:
    """A reader that asks the plan, and does as it says."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.plan = ReadPlan(FIRST)
        self.found: list[tuple[int, int]] = []
        self.told: list[tuple[str, tuple[int, ...]]] = []

    def step(self, chain: Chain, most: int) -> Next:
        plan, what = self.plan, self.plan.next(chain)
        row = chain.row(plan.segment) if what is Next.READ else None
        if row is None or not plan.begin(row):
            return what
        ledger_id = row.ledger_id
        count = self.harness.entries[ledger_id] if row.is_open else row.last_entry_id + 1
        last = min(count, plan.entry + most) - 1
        if last >= plan.entry:
            self.tell("read", (row.number, ledger_id, plan.entry, last, last + 1))
        if plan.entry >= count and (ledger_id in self.harness.closed or not row.is_open):
            self.tell("completed" if count else "was_empty", (row.number, ledger_id))
        return what

    def tell(self, name: str, arguments: tuple[int, ...]) -> None:
        self.told.append((name, arguments))
        seq, plan = self.plan.next_seq, self.plan
        taken = getattr(plan, name)(*arguments)
        if name == "read" and taken:
            _, ledger_id, first, last, _ = arguments
            self.found += [(ledger_id, entry) for entry in range(first, last + 1)]
            assert plan.next_seq == -1 or plan.next_seq == len(self.found), "INV-S11"
            assert seq == -1 or plan.next_seq == seq + last - first + 1

    def repeat(self, at: int) -> None:
        """An event comes again, late: DistributedLog moved on twice by it, or read twice (B15)."""
        if self.told:
            before = list(self.found)
            self.tell(*self.told[at % len(self.told)])
            assert self.found == before, "INV-S11: nothing is taken twice"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["add", "append", "append", "close_ledger", "close", "read", "read", "old", "repeat"]
        ),
        st.integers(0, 1000),
    ),
    max_size=120,
)


@given(STEPS)
def test_every_entry_is_read_once_and_in_order(steps: list[tuple[str, int]]) -> None:
    harness = Harness()
    machine = Machine(harness)
    for name, number in steps:
        if name == "read":
            machine.step(harness.chain, 1 + number % 4)
        elif name == "old" and harness.chains:
            machine.step(harness.chains[-1 - number % min(3, len(harness.chains))], 1 + number % 4)
        elif name == "repeat":
            machine.repeat(number)
        elif name != "old":
            getattr(harness, name)()
    while harness.chain.open_rows:
        harness.close()
    harness.changed(seal(harness.chain, harness.chain.epoch))
    for _ in range(2000):
        if machine.step(harness.chain, 3) is Next.END:
            break
    else:
        raise AssertionError("INV-S11: the reader stands still for ever")
    expected = [
        (row.ledger_id, entry)
        for row in harness.chain.rows
        for entry in range(harness.entries[row.ledger_id])
    ]
    assert machine.found == expected, "INV-S11"


def test_two_moves_on_pass_by_one_segment_only() -> None:
    plan, harness = ReadPlan(FIRST), Harness()
    for _ in range(2):
        harness.add()
    first, _ = harness.chain.open_rows
    plan.begin(first)
    plan.read(1, first.ledger_id, 0, 0, 1)
    for _ in range(2):
        plan.completed(1, first.ledger_id)
    assert plan.place == DLSN(2, 0, 0) and plan.next_seq == 1


def test_what_is_told_late_of_an_earlier_segment_changes_nothing() -> None:
    plan, harness = ReadPlan(FIRST), Harness()
    for _ in range(2):
        harness.add()
    first, second = harness.chain.open_rows
    for row in (first, second):
        plan.begin(row)
        plan.read(row.number, row.ledger_id, 0, 0, 1)
        plan.completed(row.number, row.ledger_id)
    plan.completed(1, first.ledger_id)
    plan.lost(1, first.ledger_id, 0)
    assert not plan.read(1, first.ledger_id, 0, 0, 1)
    assert plan.place == DLSN(3, 0, 0) and plan.next_seq == 2, "INV-S11"


def test_an_empty_ledger_is_waited_out_until_another_has_its_number() -> None:
    plan, harness = ReadPlan(FIRST), Harness()
    harness.add()
    (row,) = harness.chain.open_rows
    assert plan.begin(row)
    plan.was_empty(1, row.ledger_id)
    assert plan.next(harness.chain) is Next.WAIT
    harness.close()
    assert plan.next(harness.chain) is Next.WAIT
    harness.add()
    assert plan.next(harness.chain) is Next.READ and harness.chain.open_rows[0].number == 1


def test_a_trim_point_behind_the_place_is_told() -> None:
    plan, harness = ReadPlan(DLSN(1, 3, 1)), Harness()
    assert plan.next(truncate(harness.chain, DLSN(1, 3, 1))) is Next.WAIT
    harness.add()
    assert plan.next(truncate(harness.chain, DLSN(1, 3, 1))) is Next.READ
    assert plan.next(truncate(harness.chain, DLSN(1, 3, 2))) is Next.TRIMMED


def test_a_lost_entry_makes_numbers_unknown_until_the_chain_says_them() -> None:
    plan, harness = ReadPlan(FIRST), Harness()
    harness.add()
    for _ in range(3):
        harness.append()
    (row,) = harness.chain.open_rows
    plan.begin(row)
    plan.read(1, row.ledger_id, 0, 1, 2)
    plan.lost(1, row.ledger_id, 2)
    assert plan.place == DLSN(1, 3, 0) and plan.next_seq == -1
    harness.close()
    closed = harness.chain.row(1)
    assert closed is not None and not plan.begin(closed)
    assert plan.place == DLSN(2, 0, 0) and plan.next_seq == 3
