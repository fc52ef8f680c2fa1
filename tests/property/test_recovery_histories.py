"""Recoveries against each other, a writer that still sends, lost answers, dying bookies and dying recoverers.

Whatever the order: what the writer saw acknowledged is below the end (I1, I2), everything up to the end is there (I5)
on Qa bookies of its fragment (I18) with the writer's bytes (I4), all who closed agree (I10), closed is final (I8), no
LAC passes what was acknowledged (I7), and the writer gets no acknowledgement behind the end (I9). INV-M1, INV-Q3.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import Error, MetadataUnavailable, NotEnoughBookies
from fastbk.model.ids import BookieId, EntryId
from fastbk.model.ledger import LedgerMetadata
from fastbk.replication.metadata_update import MetadataUpdate
from fastbk.replication.procedure import Procedure, SendRequest, Sleep, UpdateMetadata
from fastbk.replication.recovery import RecoverLedger, RecoveryOptions
from fastbk.replication.replicas import Pacing
from fastbk.wire.statuses import Status
from tests.fixtures.fake_quorum import (
    LEDGER,
    Client,
    FakeQuorum,
    data_of,
    entry_of,
    holders,
    length_at,
    metadata_of,
)

PACING = Pacing(request_timeout_s=1.0, give_up_s=2.0, pause_min_s=0.02, pause_max_s=0.2)


@dataclass
class Writer:
    """The old writer: its adds are on their way for as long as the network likes, its acks too."""

    harness: FakeQuorum
    metadata: LedgerMetadata
    next_entry: EntryId
    head: EntryId
    adds: list[tuple[EntryId, BookieId, EntryId]] = field(default_factory=list)
    acks: dict[EntryId, set[BookieId]] = field(default_factory=dict)
    is_over: bool = False

    def append(self) -> None:
        """Send the next entry to its write set."""
        if not self.is_over:
            for one in holders(self.metadata, self.next_entry):
                self.adds.append((self.next_entry, one, self.head - 1))
            self.acks[self.next_entry] = set()
            self.next_entry += 1

    def deliver(self, chance: random.Random) -> None:
        """One of the adds arrives, and its answer."""
        if not self.adds:
            return
        entry_id, bookie_id, lac = self.adds.pop(chance.randrange(len(self.adds)))
        bookie = self.harness.bookies[bookie_id]
        if bookie.away:
            return
        status = bookie.take(entry_of(entry_id, lac)).status
        if chance.random() < 0.1:
            return  # the answer is lost
        if status == Status.FENCED:
            self.is_over = True
        elif status == Status.OK and not self.is_over:
            self.acks[entry_id].add(bookie_id)
            while len(self.acks.get(self.head, ())) >= self.metadata.ack_quorum:
                self.head += 1


class History:
    """One run: everything that happens is drawn from one generator."""

    def __init__(self, seed: int) -> None:
        chance = self.chance = random.Random(seed)
        size = chance.randint(1, 5)
        write_quorum = chance.randint(1, size)
        ack_quorum = chance.randint(1, write_quorum)
        firsts = sorted(chance.sample(range(1, 6), chance.choice([0, 0, 1, 2])))
        metadata = metadata_of(size, write_quorum, ack_quorum, *firsts)
        self.harness = FakeQuorum.of(metadata, spare=2 * ack_quorum)
        self.ack_quorum = ack_quorum
        start = firsts[-1] if firsts else 0
        for entry_id in range(start):
            names = holders(metadata, entry_id)
            self.harness.write(
                entry_id, chance.sample(names, chance.randint(ack_quorum, len(names)))
            )
        self.writer = Writer(self.harness, metadata, start, start)
        self.recoverers: list[Client] = []
        self.closer: Client | None = None
        self.dead: set[BookieId] = set()
        self.orphans: list[SendRequest] = []  # requests of recoverers that died
        self.lossy = chance.choice([0.0, 0.05, 0.3])
        self.ends: set[tuple[EntryId, int]] = set()

    def recoverer(self) -> Client:
        """Return a new recoverer that read the metadata now, or some time ago."""
        options = RecoveryOptions(
            pacing=PACING, entries_max=self.chance.choice([1, 2, 16]), metadata_timeout_s=5.0
        )
        known = self.chance.choice([self.harness.current, None])
        procedure: Procedure[object] = RecoverLedger(LEDGER, known, options)  # type: ignore[assignment]
        return Client(self.harness, procedure)

    def step(self) -> None:
        """One thing happens."""
        chance = self.chance
        kind = chance.random()
        if kind < 0.3:
            self.writer.append() if chance.random() < 0.3 else self.writer.deliver(chance)
        elif kind < 0.33 and len(self.recoverers) < 3:
            self.recoverers.append(self.recoverer())
        elif kind < 0.34 and self.recoverers:
            gone = self.recoverers.pop(chance.randrange(len(self.recoverers)))
            self.orphans += [one for one in gone.pending.values() if isinstance(one, SendRequest)]
        elif kind < 0.35:
            self.toggle()
        elif kind < 0.355 and not self.harness.metadata.is_closed:
            self.harness.edit(custom={"edited": b"%d" % chance.randrange(100)})
        elif kind < 0.36 and self.closer is None:
            self.close_by_writer()
        elif kind < 0.4 and self.orphans:
            ask = self.orphans.pop(chance.randrange(len(self.orphans)))
            if not self.harness.bookies[ask.bookie_id].away:
                self.harness.bookies[ask.bookie_id].answer(ask.request)
        else:
            running = [one for one in (*self.recoverers, self.closer) if one and one.pending]
            if running:
                self.deliver(chance.choice(running))

    def deliver(self, client: Client) -> None:
        """One of a client's actions is performed; it, or its answer, may be lost."""
        chance = self.chance
        action = chance.choice(list(client.pending.values()))
        if isinstance(action, Sleep) or chance.random() >= self.lossy:
            client.deliver(action)
        else:
            if chance.random() < 0.5:
                self.harness.outcome(action)
            if isinstance(action, SendRequest):
                client.complete(action, NotEnoughBookies("lost"))
            elif isinstance(action, UpdateMetadata):
                client.complete(action, MetadataUnavailable("lost"))
            else:
                client.deliver(action)
        if client.procedure.is_finished and client.procedure.error is None:
            self.saw_end()

    def saw_end(self) -> None:
        metadata = self.harness.metadata
        assert metadata.is_closed
        self.ends.add((metadata.last_entry_id, metadata.length))

    def toggle(self) -> None:
        """A bookie goes or comes; fewer than Qa are lost for good."""
        name = self.chance.choice(sorted(self.harness.bookies))
        if name in self.dead:
            return
        bookie = self.harness.bookies[name]
        bookie.away = not bookie.away
        if bookie.away and len(self.dead) < self.ack_quorum - 1 and self.chance.random() < 0.5:
            self.dead.add(name)

    def close_by_writer(self) -> None:
        """The writer closes with its own end (P27): it counts nothing that comes later."""
        self.writer.is_over = True
        last = self.writer.head - 1

        def decide(current: LedgerMetadata) -> LedgerMetadata | None:
            return None if current.is_closed else current.closed(last, length_at(last))

        update: Procedure[object] = MetadataUpdate(decide, None, 5.0)  # type: ignore[assignment]
        self.closer = Client(self.harness, update)

    def heal_and_recover(self) -> None:
        """Everybody who lives is back; a last recovery must come to its end."""
        for name, bookie in self.harness.bookies.items():
            bookie.away = name in self.dead
        last = self.recoverer()
        last.run(self.chance)
        assert last.procedure.error is None, last.procedure.error
        for client in self.recoverers:
            client.run(self.chance)
            if client.procedure.error is None:
                value = client.procedure.value()
                assert value.metadata == self.harness.metadata or self.ends  # type: ignore[attr-defined]
        self.saw_end()
        for ask in self.orphans:
            self.harness.bookies[ask.bookie_id].answer(ask.request)
        while self.writer.adds:
            self.writer.deliver(self.chance)

    def check(self) -> None:
        """Check what must hold for every history."""
        metadata = self.harness.metadata
        last = metadata.last_entry_id
        assert self.writer.head - 1 <= last, "I2, I9: acknowledged entries were cut off"
        assert metadata.length == length_at(last)
        assert self.ends == {(last, metadata.length)}, "I10"
        for entry_id in range(last + 1):
            copies = [
                self.harness.bookies[one].entries.get(entry_id)
                for one in holders(metadata, entry_id)
            ]
            good = [one for one in copies if one is not None]
            assert len(good) >= self.ack_quorum, f"I18: entry {entry_id} has {len(good)} copies"
            assert all(bytes(one.data) == data_of(entry_id) for one in good), "I4"
        for bookie in self.harness.bookies.values():
            assert bookie.lac() < self.writer.head, "I7: a LAC behind what was acknowledged"
        closed = [one for one in self.harness.history if one.is_closed]
        assert len({(one.last_entry_id, one.length, one.fragments) for one in closed}) == 1, "I8"
        for one in self.harness.history:
            assert all(len(set(part.ensemble)) == len(part.ensemble) for part in one.fragments), (
                "I16"
            )


@given(st.integers(0, 2**32 - 1))
def test_no_history_of_recoveries_loses_or_invents_anything(seed: int) -> None:
    history = History(seed)
    for _ in range(history.chance.randint(20, 400)):
        history.step()
    history.heal_and_recover()
    history.check()


@given(st.integers(0, 2**32 - 1))
def test_a_recoverer_that_dies_at_any_step_leaves_what_another_goes_on_from(seed: int) -> None:
    history = History(seed)
    for _ in range(history.chance.randint(5, 60)):
        history.writer.append() if history.chance.random() < 0.3 else history.writer.deliver(
            history.chance
        )
    for _ in range(4):
        client = history.recoverer()
        for _ in range(history.chance.randint(0, 30)):
            if client.pending:
                history.deliver(client)
        history.orphans += [one for one in client.pending.values() if isinstance(one, SendRequest)]
        error: Error | None = client.procedure.error
        assert error is None or history.lossy
    history.heal_and_recover()
    history.check()
