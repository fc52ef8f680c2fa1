"""The writer's machine against a slow, obvious model: for each entry the set of acks, for each index its members.

Any order of acks, refusals, lost connections, changes, conflicts, unknown results of the metadata store, late answers
of bookies that were replaced, and edits by others. INV-C1, INV-C2, INV-E1, INV-E2, INV-M1.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fastbk.errors import (
    LedgerClosed,
    LedgerFenced,
    MetadataConflict,
    MetadataUnavailable,
    NotEnoughBookies,
    QuorumTimeout,
)
from fastbk.meta.api import VersionedLedger
from fastbk.model.ledger import Fragment, LedgerState
from fastbk.model.quorum import write_set
from fastbk.replication.options import ChangePolicy
from fastbk.replication.procedure import Choose, ReadMetadata, Replaced, Sleep, UpdateMetadata
from fastbk.wire.statuses import Status
from tests.unit.replication.writer_harness import FRAME, WriterHarness, run

MEMBERS = st.integers(0, 3)
REFUSALS = st.sampled_from(
    [
        Status.READ_ONLY,
        Status.IO_ERROR,
        Status.NO_LEDGER,
        Status.TOO_MANY_REQUESTS,
        Status.NOT_READY,
    ]
)


class AnyHistory(RuleBasedStateMachine):
    """Whatever happens, the head is what the acks of the metadata's members make it."""

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.size = data.draw(st.integers(1, 4))
        self.write_quorum = data.draw(st.integers(1, self.size))
        self.ack_quorum = data.draw(st.integers(1, self.write_quorum))
        policy = ChangePolicy(
            delayed=data.draw(st.booleans()),
            changes_max=data.draw(st.sampled_from([None, None, 2])),
        )
        self.held_max = data.draw(st.sampled_from([0, 5 * FRAME, 1 << 30]))
        self.harness = WriterHarness(
            self.size,
            self.write_quorum,
            self.ack_quorum,
            spares=["s0", "s1", "s2", "b0", "b1", "b2", "b3"],
            policy=policy,
            held_bytes_max=self.held_max,
        )
        self.writer = self.harness.writer
        self.adds = self.writer.adds
        # By index: the entries whose ack counts, and where its bookie's time began.
        self.acked: list[set[int]] = [set() for _ in range(self.size)]
        self.joined = [0] * self.size
        self.members = self.writer.ensemble
        self.stale: dict[str, list[int]] = {}
        self.head = 0
        self.is_over = False
        self.was_refused = False
        self.was_gone = False  # what it had acknowledged is missing, too
        self.taken_over: VersionedLedger | None = None

    # --- the model ---------------------------------------------------------------------------------------------

    def count_ack(self, bookie_id: str, entry_id: int) -> None:
        if bookie_id not in self.members or self.writer.failure is not None:
            return
        index = self.members.index(bookie_id)
        owners = write_set(entry_id, self.size, self.write_quorum)
        if index in owners and self.joined[index] <= entry_id:
            self.acked[index].add(entry_id)

    def follow(self) -> None:
        """After any event: the model learns of replaced bookies, and of the writer's end."""
        ensemble = self.writer.ensemble
        for index in range(self.size):
            if ensemble[index] != self.members[index]:
                # Nothing was released between the change and the unsetting.
                self.acked[index] = {one for one in self.acked[index] if one < self.head}
                self.joined[index] = self.head
        if ensemble != self.members:
            for gone, wire in self.harness.orphaned.items():
                self.stale.setdefault(gone, []).extend(wire)
            self.harness.orphaned.clear()
            self.members = ensemble
        self.is_over = self.writer.failure is not None

    def is_complete(self, entry_id: int) -> bool:
        owners = write_set(entry_id, self.size, self.write_quorum)
        return sum(entry_id in self.acked[one] for one in owners) >= self.ack_quorum

    # --- what happens ------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 4))
    def append(self, count: int) -> None:
        if not self.is_over:
            self.harness.add(count)
            self.follow()

    @rule(member=MEMBERS, count=st.integers(1, 6), data=st.data())
    def ack(self, member: int, count: int, data: st.DataObject) -> None:
        bookie_id = self.members[member % self.size]
        wire = self.harness.wire.get(bookie_id)
        if not wire:
            return
        at = data.draw(st.sampled_from([0, 0, 0, len(wire) // 2, len(wire) - 1]))
        for entry_id in wire[at : at + count]:
            self.count_ack(bookie_id, entry_id)
            self.harness.ack(bookie_id, first=entry_id)
            self.follow()

    @rule()
    def append_and_let_all_that_are_up_acknowledge(self) -> None:
        self.append(2)
        for bookie_id in self.members:
            for entry_id in list(self.harness.wire.get(bookie_id, [])):
                self.count_ack(bookie_id, entry_id)
                self.harness.ack(bookie_id, first=entry_id)
        self.follow()

    @rule()
    def late_answers_of_all_that_were_replaced(self) -> None:
        for bookie_id in set(self.stale) - set(self.members):
            for entry_id in self.stale.pop(bookie_id):
                self.harness.stored.setdefault(bookie_id, set()).add(entry_id)
                assert not self.writer.acknowledged(bookie_id, entry_id, 1)

    @rule(member=MEMBERS, status=REFUSALS)
    def refuse(self, member: int, status: Status) -> None:
        bookie_id = self.members[member % self.size]
        if self.harness.wire.get(bookie_id) and not self.is_over:
            self.was_refused = True
            self.harness.refuse(bookie_id, status)
            self.follow()

    @rule(member=MEMBERS)
    def retry(self, member: int) -> None:
        if not self.is_over:
            self.writer.retry(self.members[member % self.size])
            self.harness.pump()

    @rule(member=MEMBERS, stores=st.booleans(), is_gone=st.sampled_from([False] * 5 + [True]))
    def lose(self, member: int, stores: bool, is_gone: bool) -> None:
        bookie_id = self.members[member % self.size]
        wire = list(self.harness.wire.get(bookie_id, []))
        if stores:
            self.harness.stored.setdefault(bookie_id, set()).update(wire)
        self.stale.setdefault(bookie_id, []).extend(wire)
        self.was_gone |= is_gone
        self.harness.lose(bookie_id, is_gone=is_gone)
        self.follow()

    @rule()
    def all_members_connect(self) -> None:
        for bookie_id in self.members:
            if not self.adds._up[self.members.index(bookie_id)]:
                self.harness.connect(bookie_id)
        self.follow()

    @rule(pause_s=st.sampled_from([0.1, 0.6, 1.1, 3.0]))
    def time_passes(self, pause_s: float) -> None:
        self.harness.pass_time(pause_s)
        self.follow()

    @rule()
    def bookies_change(self) -> None:
        self.writer.bookies_changed(self.harness.now_s)
        self.harness.take()
        self.follow()

    # --- the metadata ------------------------------------------------------------------------------------------

    def step(self, outcome: object = None) -> None:
        head = self.head
        self.harness.answer(outcome)
        assert self.writer.failure is None or self.adds.head == head
        self.follow()

    @rule(how=st.sampled_from(["done", "done", "done", "lost", "lost and done", "away"]))
    def something_is_answered(self, how: str) -> None:
        if not self.harness.todo:
            return
        action = self.harness.todo[0]
        if isinstance(action, UpdateMetadata) and how.startswith("lost"):
            if how == "lost and done":
                self.harness.store.update(action.metadata, action.version)
            self.step(MetadataUnavailable("no answer"))
        elif isinstance(action, ReadMetadata) and how == "away":
            self.step(MetadataUnavailable("no answer"))
        elif isinstance(action, Choose) and how == "away":
            self.step(Replaced({}, {"s0": "full"}))
        elif not isinstance(action, Sleep) or how == "done":
            self.step()

    @rule()
    def somebody_edits_the_custom_metadata(self) -> None:
        now = self.harness.store.now
        if self.taken_over is not None:
            return
        custom = {"edit": b"%d" % now.version}
        self.harness.store.update(replace(now.metadata, custom=custom), now.version)

    @precondition(lambda self: hasattr(self, "harness") and self.writer.is_changing)
    @rule()
    def somebody_repairs_the_bookie_that_is_being_replaced(self) -> None:
        """As a re-replicator does: what the metadata names for it is copied first."""
        now = self.harness.store.now
        last = now.metadata.fragments[-1]
        action = next((one for one in self.harness.todo if isinstance(one, UpdateMetadata)), None)
        if (
            self.taken_over is not None
            or action is None
            or "x" in last.ensemble
            or last.ensemble != self.members
        ):
            return
        wanted = action.metadata.fragments[-1].ensemble
        index = next(one for one in range(self.size) if wanted[one] != last.ensemble[one])
        ensemble = (*last.ensemble[:index], "x", *last.ensemble[index + 1 :])
        owned = {
            one
            for one in range(last.first_entry_id, self.head)
            if index in write_set(one, self.size, self.write_quorum)
        }
        self.harness.stored.setdefault("x", set()).update(owned)
        fragments = (*now.metadata.fragments[:-1], Fragment(last.first_entry_id, ensemble))
        self.harness.store.update(replace(now.metadata, fragments=fragments), now.version)

    @rule(closes=st.booleans(), chance=st.integers(0, 9))
    def somebody_takes_the_ledger_over(self, closes: bool, chance: int) -> None:
        now = self.harness.store.now
        if chance == 0 and now.metadata.state is LedgerState.OPEN:
            taken = replace(now.metadata, state=LedgerState.IN_RECOVERY)
            if closes:
                taken = now.metadata.closed(self.head - 1, 100 * self.head)
            self.harness.store.update(taken, now.version)
            self.taken_over = self.harness.store.now

    # --- what holds --------------------------------------------------------------------------------------------

    @invariant()
    def the_head_is_what_the_acks_make_it(self) -> None:
        if not hasattr(self, "harness"):
            return
        head = self.adds.head
        assert head >= self.head
        assert all(self.is_complete(one) for one in range(self.head, head))
        self.head = head
        if not self.is_over and not self.writer.is_changing:
            assert head == self.adds.next_entry_id or not self.is_complete(head)
        assert self.adds.length_acknowledged == 100 * head

    @invariant()
    def the_metadata_names_an_ack_quorum_for_all_that_is_acknowledged(self) -> None:
        if not hasattr(self, "harness"):
            return
        self.harness.check_acknowledged()
        metadata = self.harness.store.now.metadata
        assert metadata.fragments[-1].first_entry_id <= self.head
        assert all(len(set(one.ensemble)) == self.size for one in metadata.fragments)

    @invariant()
    def a_ledger_that_was_taken_over_is_left_alone(self) -> None:
        if hasattr(self, "harness") and self.taken_over is not None:
            assert self.harness.store.now == self.taken_over

    @invariant()
    def memory_is_bounded_by_what_is_in_flight(self) -> None:
        if hasattr(self, "harness"):
            in_flight = FRAME * (self.adds.next_entry_id - self.head) + 4 * FRAME
            assert self.adds.held_bytes <= max(self.held_max, in_flight) + in_flight

    @invariant()
    def a_writer_that_waits_will_be_woken(self) -> None:
        if hasattr(self, "harness") and not self.is_over:
            waits = self.adds.head < self.adds.next_entry_id
            assert self.writer.wake_s is not None or not waits

    @invariant()
    def only_some_errors_end_it(self) -> None:
        if hasattr(self, "harness") and self.is_over:
            kinds = (LedgerClosed, LedgerFenced, QuorumTimeout, NotEnoughBookies, MetadataConflict)
            assert isinstance(self.writer.failure, kinds)
            assert not self.harness.todo
            assert self.writer.wake_s is None

    def teardown(self) -> None:
        """All is well again: everything is acknowledged, and what is missing is counted."""
        if not hasattr(self, "harness"):
            return
        for _ in range(200):
            if self.is_over or (not self.harness.todo and self.adds.is_replicated):
                break
            if self.harness.todo:
                self.step()
            self.all_members_connect()
            for bookie_id in self.members:
                self.writer.retry(bookie_id)
                self.harness.pump()
                for entry_id in list(self.harness.wire.get(bookie_id, [])):
                    self.count_ack(bookie_id, entry_id)
                    self.harness.ack(bookie_id, first=entry_id)
            self.the_head_is_what_the_acks_make_it()
        if not self.is_over:
            gone = [one for one in self.writer._failed if self.writer._is_gone(one)]
            if not gone:
                assert self.adds.head == self.adds.next_entry_id
                assert self.adds.held_bytes == 0
                self.missing_copies_are_counted_and_marked()
        self.the_metadata_names_an_ack_quorum_for_all_that_is_acknowledged()
        self.it_can_be_closed()

    def missing_copies_are_counted_and_marked(self) -> None:
        counted = sum(self.adds.under_replicated_by_bookie().values())
        # A replacement may have been given copies, which are not missing any more (INV-E3). A copy that was given up,
        # refused, and stored when it came a second time stays counted. Of a bookie that lost its data all is missing.
        never_acked = sum(
            one not in self.acked[index]
            for one in range(self.head)
            for index in write_set(one, self.size, self.write_quorum)
        )
        assert counted <= never_acked or self.was_refused or self.was_gone
        if self.taken_over is None:
            self.let_replacements_be_named()
            assert all(self.is_marked(*one) for one in self.missing_by_metadata())

    def let_replacements_be_named(self) -> None:
        """Let the writer mark what is missing, and name replacements for the copies that they were given."""
        owed = self.writer._keeper.owed
        for _ in range(50):
            is_named = not owed.is_copying and not owed.ready
            if not self.harness.todo and is_named and not owed.unmarked(owed.to_mark()):
                return
            if self.harness.todo:
                self.step()
            else:
                self.harness.pass_time(1.1)
        raise AssertionError("copies are neither named nor marked")

    def missing_by_metadata(self) -> list[tuple[str, int]]:
        """Return the copies of acknowledged entries that are not where the metadata says they are."""
        metadata = self.harness.store.now.metadata
        named = (
            (metadata.fragment_of(one).ensemble[index], one)
            for one in range(self.head)
            for index in write_set(one, self.size, self.write_quorum)
        )
        return [copy for copy in named if copy[1] not in self.harness.stored.get(copy[0], ())]

    def is_marked(self, bookie_id: str, entry_id: int) -> bool:
        return any(
            one.bookie_id == bookie_id
            and one.first_entry_id <= entry_id
            and (one.last_entry_id is None or entry_id <= one.last_entry_id)
            for one in self.writer._keeper.owed.marked
        )

    def it_can_be_closed(self) -> None:
        self.writer.stop(self.harness.now_s)
        closing = self.writer.closing(10.0)
        run(closing, self.harness)  # type: ignore[arg-type]
        metadata = self.harness.store.now.metadata
        assert metadata.is_closed
        if isinstance(closing.error, LedgerClosed):
            assert metadata.last_entry_id != self.head - 1
        else:
            assert (metadata.last_entry_id, metadata.length) == (self.head - 1, 100 * self.head)


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(stateful_step_count=60)
