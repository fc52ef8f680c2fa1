"""Looks at a stream after each single effect that metadata or the ledgers take: no step between two is missed."""

from __future__ import annotations

import random
from collections.abc import Callable

from fastbk.stream.chain import Chain, Segment, get_chain
from fastbk.stream.cursor.state import NONE, CursorRecord, CursorState, get_record, get_state
from fastbk.stream.paths import chain_path, cursors_path
from fastbk.stream.policy import StreamPolicy
from fastbk.stream.positions import DLSN
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan
from tests.simulation.streams.facts import Judge, demand
from tests.simulation.streams.loop import Clock
from tests.simulation.streams.world import WorldPlan

Effect = Callable[[FakeClient, str], None]
EFFECTS = ("metadata.change", "create", "delete", "open")
NEW_S = 40.0
"""A cursor that was made so lately need not have been seen by who decides about retention."""


class QuietPlan(Plan):
    """Nothing fails, and every effect is looked at."""

    def __init__(self, effect: Effect) -> None:
        self._effect = effect

    async def after(self, client: FakeClient, what: str) -> None:
        if what in EFFECTS:
            self._effect(client, what)


class WatchedPlan(WorldPlan):
    """The faults of `WorldPlan`, every effect is looked at, and clients crash at a given one of their calls."""

    def __init__(self, rng: random.Random, clock: Clock, effect: Effect) -> None:
        super().__init__(rng, clock)
        self._effect = effect
        self._crashes: dict[FakeClient, tuple[int, bool, Callable[[], None]]] = {}

    def crash_at(
        self, client: FakeClient, call: int, is_after: bool, told: Callable[[], None]
    ) -> None:
        """Have the client crash before its n-th call from now takes effect, or right after it did."""
        self._crashes[client] = (call, is_after, told)

    def _count(self, client: FakeClient, is_after: bool) -> None:
        left = self._crashes.get(client)
        if left is None or left[1] != is_after:
            return
        call, _, told = left
        self._crashes[client] = (call - 1, is_after, told)
        if call <= 1:
            del self._crashes[client]
            client.crash()
            told()

    async def before(self, client: FakeClient, what: str) -> None:
        await super().before(client, what)
        self._count(client, is_after=False)

    async def after(self, client: FakeClient, what: str) -> None:
        if what in EFFECTS:
            self._effect(client, what)
        self._count(client, is_after=True)
        await super().after(client, what)


class WholeJudge(Judge):
    """Beside what holds at any moment: what a single step may do to the trim point, segments and cursors."""

    def __init__(
        self, cluster: Cluster, stream_id: str, policy: StreamPolicy, clock: Clock
    ) -> None:
        super().__init__(cluster, stream_id)
        self.policy = policy
        self.wall_us = 0
        """The latest that any clock has shown."""
        self.free: set[str] = set()
        """Cursors whose marks may go back."""
        self._clock = clock
        self._version = -1
        self._chain: Chain | None = None
        self._first_seen: dict[tuple[str, int], float] = {}
        self._closed_s: dict[int, float] = {}
        """When each segment was first seen closed."""
        self._cursors: dict[str, CursorRecord] = {}
        self._cursors_before: dict[str, CursorRecord] = {}

    @property
    def chain(self) -> Chain:
        held = self._cluster.records.values[chain_path(self._stream_id)]
        if held.version != self._version or self._chain is None:
            self._version, self._chain = held.version, get_chain(held.value)
        return self._chain

    # --- cursors ------------------------------------------------------------------------------------------------

    def cursors(self) -> dict[str, CursorRecord]:
        folder = f"{cursors_path(self._stream_id)}/"
        values = self._cluster.records.values
        return {
            path.removeprefix(folder): get_record(held.value)
            for path, held in values.items()
            if path.startswith(folder)
        }

    def cursor_state(self, record: CursorRecord) -> CursorState:
        """Return the latest state that is kept."""
        ledger = self._cluster.ledgers.get(record.ledger) if record.ledger != NONE else None
        if ledger is None or ledger.acknowledged == 0:
            return record.state
        other = get_state(ledger.entries[ledger.acknowledged - 1])
        return max(record.state, other, key=lambda one: one.serial)

    def named_beside(self) -> set[int]:
        return {one for record in self._cursors.values() for one in record.ledgers}

    def _look_at_cursors(self) -> None:
        for name, record in self._cursors.items():
            self._first_seen.setdefault((name, record.created_us), self._clock.monotonic())
            former = self._cursors_before.get(name)
            if former is None or former.created_us != record.created_us:
                continue
            old, new = former.state, record.state
            demand(
                new.epoch >= old.epoch,
                f"S6, S8: the epoch of cursor {name} fell: a former holder wrote",
            )
            demand(
                new.epoch > old.epoch or record.is_deleting or former.holder == record.holder,
                f"S8: cursor {name} has another holder in the same epoch",
            )
            demand(
                new.serial >= old.serial,
                f"S8: an older state of cursor {name} was written over a newer one",
            )
            is_free = name in self.free
            demand(
                is_free or new.mark >= old.mark,
                f"S8: the mark of cursor {name} went back in its record",
            )
        self._cursors_before = self._cursors

    # --- steps --------------------------------------------------------------------------------------------------

    def step(self) -> None:
        self.wall_us = max(self.wall_us, self._clock.time_ns() // 1000)
        before, self._cursors = self._before, self.cursors()
        self.look()
        self._look_at_cursors()
        chain = self.chain
        for row in chain.rows:
            if not row.is_open:
                self._closed_s.setdefault(row.number, self._clock.monotonic())
        if before is None or before is chain:
            return
        if chain.trim > before.trim:
            demand(chain.trim <= self._end(chain), f"S7: {chain.trim} lies beyond the end")
        if chain.deleting > before.deleting:
            rows = self.rows(before)
            for row in rows:
                if before.deleting <= row.number < chain.deleting:
                    why = self.why_kept(before, rows, row, is_late=True)
                    demand(not why, f"S9: segment {row.number} is to be deleted: {why}")

    def _end(self, chain: Chain) -> DLSN:
        for row in reversed(chain.open_rows):
            ledger = self._cluster.ledgers.get(row.ledger_id)
            if ledger is not None and ledger.acknowledged:
                return DLSN(row.number, ledger.acknowledged, 0)
        return DLSN(chain.open_rows[0].number if chain.open_rows else chain.next_number, 0, 0)

    def why_kept(self, chain: Chain, rows: list[Segment], row: Segment, *, is_late: bool) -> str:
        """Return why a segment has to be there still; empty if it may go.

        `is_late`: cursors of the last moment count only where whoever decided had to know them.
        """
        if row.is_open or row.number >= chain.next_number - 1 - len(chain.open_rows):
            return "it is open, or the newest closed one"
        assert isinstance(row.last_entry_id, int)

        def lies_before(point: DLSN) -> bool:
            return (row.number, row.last_entry_id) < point[:2]

        policy, now_s = self.policy, self._clock.monotonic()
        behind = sum(one.size_bytes for one in rows if one.number > row.number and not one.is_open)

        def is_beyond(age_s: float, size_bytes: int) -> bool:
            # Records that say a time which has not come yet, after a clock was set back, are as old as they are.
            is_old = row.last_time_us < self.wall_us - int(age_s * 1e6)
            closed_s = self._closed_s.get(row.number, now_s) if is_late else now_s
            is_old = age_s > 0 and (is_old or now_s - closed_s > age_s)
            return is_old or 0 < size_bytes <= behind

        if lies_before(chain.trim) or is_beyond(policy.hard_age_s, policy.hard_bytes):
            return ""
        if not is_beyond(policy.retention_age_s, policy.retention_bytes):
            return "it is within what retention keeps"
        if policy.hold_for_cursors:
            for name, record in self._cursors.items():
                age_s = now_s - self._first_seen.get((name, record.created_us), now_s)
                may_be_unknown = is_late and (name in self.free or age_s < NEW_S)
                is_held = (
                    record.holds and not record.is_deleting and not lies_before(record.state.mark)
                )
                if is_held and not may_be_unknown:
                    return f"cursor {name} is at {record.state.mark}"
        return ""
