"""A writer's machine with bookies that are sets of entries and a metadata store that is one value. No clock, no I/O."""

from __future__ import annotations

from dataclasses import replace

from fastbk.errors import Error, MetadataConflict, MetadataUnavailable
from fastbk.meta.api import VersionedLedger
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.model.missing_replica import MissingReplica, merged, without
from fastbk.model.quorum import write_set
from fastbk.replication.options import ChangePolicy, WriterOptions
from fastbk.replication.procedure import (
    Action,
    Choose,
    MarkReplicas,
    Procedure,
    ReadMetadata,
    Replaced,
    SendRequest,
    Sleep,
    UpdateMetadata,
    Withdraw,
)
from fastbk.replication.under_replication import owed_by
from fastbk.replication.writer_machine import CloseLedger, WriterMachine

FRAME = 20
DATA = 100


def frames_of(first: int, count: int) -> tuple[bytes, list[int]]:
    """Frames that name their entry."""
    raw = b"".join(b"%020d" % (first + one) for one in range(count))
    return raw, [DATA] * count


def entries_in(frames: bytes) -> list[int]:
    """The entries that frames name."""
    raw = bytes(frames)
    return [int(raw[at : at + FRAME]) for at in range(0, len(raw), FRAME)]


def metadata_of(ensemble: int = 3, write_quorum: int = 3, ack_quorum: int = 2) -> LedgerMetadata:
    """An open ledger on b0, b1 and so on."""
    return LedgerMetadata(
        ensemble_size=ensemble,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        fragments=(Fragment(0, tuple(f"b{one}" for one in range(ensemble))),),
    )


class Store:
    """The metadata of one ledger, changed by compare-and-set."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        self.versions = [metadata]
        self.marked: tuple[MissingReplica, ...] = ()

    @property
    def now(self) -> VersionedLedger:
        return VersionedLedger(self.versions[-1], len(self.versions) - 1)

    def update(self, metadata: LedgerMetadata, version: int) -> int | Error:
        if version != len(self.versions) - 1:
            return MetadataConflict("another version")
        self.versions.append(metadata)
        return version + 1

    def edit(self, metadata: LedgerMetadata | None = None, **changes: object) -> None:
        """Change the metadata as another client does."""
        now = self.now
        self.update(metadata or replace(now.metadata, **changes), now.version)  # type: ignore[arg-type]


class WriterHarness:
    """A writer, its bookies, and what is under way between them; every step is the test's.

    Attributes:
        spares: bookies that `Choose` gives, in order.
        wire: by bookie, the entries that were sent and not answered.
        stored: by bookie, the entries that it has.
        orphaned: what was on the wire to bookies that were replaced.
        away: members that are never reached until the test connects them.
    """

    def __init__(
        self,
        ensemble: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        *,
        spares: list[str] | None = None,
        policy: ChangePolicy | None = None,
        is_deferred: bool = False,
        held_bytes_max: int = 1 << 30,
        away: tuple[str, ...] = (),
        custom: dict[str, bytes] | None = None,
    ) -> None:
        metadata = metadata_of(ensemble, write_quorum, ack_quorum)
        self.store = Store(replace(metadata, custom=custom or {}))
        self.spares = ["s0", "s1", "s2"] if spares is None else spares
        self.now_s = 0.0
        options = WriterOptions(
            away=frozenset(away),
            held_bytes_max=held_bytes_max,
            change=policy or ChangePolicy(replace_after_s=1.0),
            is_deferred=is_deferred,
        )
        self.writer = WriterMachine(7, self.store.now, options)
        self.store.marked = merged(owed_by(away))
        self.wire: dict[str, list[int]] = {}
        self.stored: dict[str, set[int]] = {}
        self.orphaned: dict[str, list[int]] = {}
        self._under_way: dict[int, Action] = {}
        self.writer.start(self.now_s)
        for bookie_id in self.writer.ensemble:
            if bookie_id not in away:
                self.connect(bookie_id)

    # --- bookies -----------------------------------------------------------------------------------------------

    def connect(self, bookie_id: str) -> None:
        self.wire[bookie_id] = []
        self.stored.setdefault(bookie_id, set())
        self.writer.connected(bookie_id, self.now_s)
        self.take()
        self.pump()

    def lose(self, bookie_id: str, *, is_gone: bool = False) -> None:
        self.wire[bookie_id] = []
        self.writer.lost(bookie_id, "cut", self.now_s, is_gone=is_gone)
        self.take()

    def add(self, count: int = 1) -> None:
        adds = self.writer.adds
        adds.add(*frames_of(adds.next_entry_id, count), self.now_s)
        self.writer.added(self.now_s)
        self.take()
        self.pump()

    def pump(self) -> None:
        """Send everything that members which are connected have not been sent."""
        for index, bookie_id in enumerate(self.writer.ensemble):
            if self.writer.adds._up[index]:
                while (frames := self.writer.adds.next_to_send(index)) is not None:
                    self.wire[bookie_id] += entries_in(bytes(frames))

    def ack(self, *bookie_ids: str, first: int | None = None, count: int | None = None) -> None:
        """Let bookies store and acknowledge what was sent to them, or [first, first + count) of it."""
        for bookie_id in bookie_ids:
            wire = self.wire[bookie_id]
            chosen = [
                one
                for one in wire
                if first is None or first <= one < first + (1 if count is None else count)
            ]
            for entry_id in chosen:
                wire.remove(entry_id)
                self.stored[bookie_id].add(entry_id)
                self.writer.acknowledged(bookie_id, entry_id, 1)
        self.take()

    def refuse(self, bookie_id: str, status: int) -> bool:
        """Let a bookie refuse the first entry that it was sent."""
        entry_id = self.wire[bookie_id].pop(0)
        again = self.writer.refused(bookie_id, entry_id, 1, status, self.now_s)
        self.take()
        return again

    def pass_time(self, pause_s: float) -> None:
        """Let time pass, with a tick at every moment that the machine asked for."""
        end_s = self.now_s + pause_s
        while self.writer.wake_s is not None and self.writer.wake_s <= end_s:
            assert self.writer.wake_s > self.now_s or self.now_s == 0, "a tick that asks for itself"
            self.now_s = max(self.now_s, self.writer.wake_s)
            self.writer.tick(self.now_s)
            self.take()
        self.now_s = end_s

    # --- actions -------------------------------------------------------------------------------------------------

    @property
    def todo(self) -> list[Action]:
        """What the writer asked for and has no outcome of, oldest first."""
        return list(self._under_way.values())

    def take(self) -> None:
        for tag, action in self.writer.take_actions():
            if isinstance(action, Withdraw):
                self._under_way.pop(tag, None)
            else:
                self._under_way[tag] = action

    def pending(self, kind: type[Action]) -> list[Action]:
        return [one for one in self.todo if isinstance(one, kind)]

    def answer(self, outcome: object = None) -> Action:
        """Perform the oldest action and bring its outcome, or `outcome` in its place."""
        tag = next(iter(self._under_way))
        action = self._under_way.pop(tag)
        if outcome is None:
            outcome = self.perform(action)
        version = self.writer.ensemble_version
        self.writer.completed(tag, outcome, self.now_s)  # type: ignore[arg-type]
        if self.writer.ensemble_version != version:
            for bookie_id in list(self.wire):
                if bookie_id not in self.writer.ensemble:
                    self.orphaned[bookie_id] = self.wire.pop(bookie_id)
        self.take()
        self.pump()
        return action

    def perform(self, action: Action) -> object:
        if isinstance(action, Choose):
            return self.choose(action)
        if isinstance(action, ReadMetadata):
            return self.store.now
        if isinstance(action, UpdateMetadata):
            return self.store.update(action.metadata, action.version)
        if isinstance(action, MarkReplicas):
            before = without(self.store.marked, action.remove)
            self.store.marked = merged((*before, *action.add))
            return None
        if isinstance(action, Sleep):
            self.now_s += action.pause_s
            return None
        raise AssertionError(action)

    def choose(self, action: Choose) -> Replaced:
        chosen: dict[int, str] = {}
        for index in sorted(action.bad):
            for spare in self.spares:
                if spare not in {*action.ensemble, *action.exclude, *chosen.values()}:
                    chosen[index] = spare
                    break
        return Replaced(chosen, {} if chosen else {"s9": "read-only"})

    def change(self) -> None:
        """Perform everything until nothing is asked for."""
        for _ in range(100):
            if not self.todo:
                return
            self.answer()
        raise AssertionError("no end of actions")

    def fail(self, *lost: str) -> None:
        """Lose bookies and go on to the compare-and-set that is to replace them, which stays pending."""
        for bookie_id in lost:
            self.lose(bookie_id)
        self.pass_time(1.0)
        while not isinstance(self.todo[0], UpdateMetadata):
            self.answer()

    def lose_reply(self, *, takes_effect: bool) -> None:
        """The compare-and-set that is pending is done or not; its answer is lost."""
        action = self.todo[0]
        assert isinstance(action, UpdateMetadata)
        if takes_effect:
            self.store.update(action.metadata, action.version)
        self.answer(MetadataUnavailable("no answer"))

    def stop(self) -> CloseLedger:
        """Stop the writer; return the close of its ledger."""
        self.writer.stop(self.now_s)
        self.take()
        return self.writer.closing(10.0)

    def close(self) -> CloseLedger:
        """Stop the writer and close its ledger; return the procedure that did it."""
        closing = self.stop()
        run(closing, self)  # type: ignore[arg-type]
        return closing

    def marks(self) -> list[tuple[str, int, int | None]]:
        return [(one.bookie_id, one.first_entry_id, one.last_entry_id) for one in self.store.marked]

    def fragments(self) -> list[tuple[int, tuple[str, ...]]]:
        return [(one.first_entry_id, one.ensemble) for one in self.store.now.metadata.fragments]

    def holders(self, entry_id: int) -> set[str]:
        """The bookies that are to hold an entry by the metadata and have it."""
        metadata = self.store.now.metadata
        ensemble = metadata.fragment_of(entry_id).ensemble
        indexes = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
        return {ensemble[one] for one in indexes if entry_id in self.stored.get(ensemble[one], ())}

    def check_acknowledged(self) -> None:
        """Every acknowledged entry is on an ack quorum of the bookies that the metadata names for it (I1, I7)."""
        quorum = self.store.now.metadata.ack_quorum
        for entry_id in range(self.writer.adds.head):
            assert len(self.holders(entry_id)) >= quorum, entry_id


def run(
    procedure: Procedure[object], harness: WriterHarness, outcomes: dict[str, object] | None = None
) -> None:
    """Run a procedure of its own on the harness's store; `outcomes`: answers to `SendRequest` by bookie."""
    procedure.start(harness.now_s)
    todo = procedure.take_actions()
    while todo:
        tag, action = todo.pop(0)
        if isinstance(action, Withdraw):
            continue
        outcome = (
            (outcomes or {})[action.bookie_id]
            if isinstance(action, SendRequest)
            else harness.perform(action)
        )
        procedure.completed(tag, outcome, harness.now_s)  # type: ignore[arg-type]
        todo += procedure.take_actions()
