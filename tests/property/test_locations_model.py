"""The store against a sorted map: flushes with gaps, runs that interleave, merges, deletions, restarts.

`python -m tests.property.test_locations_model` writes the golden files anew, for a new version of the formats only.
"""

from __future__ import annotations

import bisect
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fastbk.native.ledger_state import UNCONFIRMED
from fastbk.native.store import FlushContents, LedgerState, Scope
from fastbk.storage.checkpoint import CheckpointSettings
from fastbk.storage.directories import locations_path
from tests.fixtures import upkeep_at_once
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.store_harness import DIRECTORY, NO_ENTRY, OK, Life, StoreHarness, entry_bytes

GOLDEN = Path(__file__).parent.parent / "golden" / "storage"
LAST = 2**63 - 1
LEDGERS = st.sampled_from([0, 1, 2, 3, 1000, LAST])
STARTS = st.sampled_from([0, 1, 60, 250, 4000, 2**32, LAST - 300])
RUNS = st.tuples(LEDGERS, STARTS, st.integers(1, 300), st.sampled_from([1, 1, 2, 3, 17, 5000]))


class StoreModel(RuleBasedStateMachine):
    """`entries`: ids on disk by ledger; `states`: the newest state of each ledger."""

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeDisk(seed=1)
        self.entries: dict[int, list[int]] = {}
        self.states: dict[int, LedgerState] = {}
        self.mark = 0

    @initialize(log_bytes=st.sampled_from([1, 50_000, 1 << 30]))
    def begin(self, log_bytes: int) -> None:
        self.harness = StoreHarness(
            self.fake, CheckpointSettings(attempts_max=1, entry_log_size_bytes=log_bytes)
        )
        self.harness.birth()
        self.harness.start()

    @property
    def life(self) -> Life:
        assert self.harness.life is not None
        return self.harness.life

    @rule(runs=st.lists(RUNS, max_size=4), flags=st.integers(0, 15))
    def flush(self, runs: list[tuple[int, int, int, int]], flags: int) -> None:
        fresh: dict[int, set[int]] = {}
        for ledger_id, start, count, step in runs:
            ids = {start + i * step for i in range(count) if start + i * step <= LAST}
            fresh.setdefault(ledger_id, set()).update(ids)
        entries = []
        for ledger_id, ids in fresh.items():
            held = self.entries.setdefault(ledger_id, [])
            ids -= set(held)  # the write cache holds no entry that is on disk: first copy wins
            entries += [(ledger_id, entry_id, entry_bytes(ledger_id, entry_id)) for entry_id in ids]
            held += ids
            held.sort()
        self.mark += 1
        states = [
            LedgerState(
                ledger_id, (self.entries[ledger_id] or [-1])[-1], self.mark, self.mark, flags,
                bytes([self.mark % 256]) * 20,
            )
            for ledger_id in fresh
        ]  # fmt: skip
        self.states |= {state.ledger_id: state for state in states}
        items = FlushContents.from_entries(entries, states)
        self.harness.take(self.life.checkpoint.run(self.life.store, items, self.mark))

    @rule()
    def merge(self) -> None:
        self.harness.merge()

    @rule()
    def merge_everything(self) -> None:
        self.harness.merge_all()

    @rule(count=st.integers(1, 3))
    def compact(self, count: int) -> None:
        sealed = [log.log_id for log in self.life.checkpoint.manifest.logs if log.sealed]
        if sealed:
            self.harness.compact(*sealed[:count])
            assert not {log.log_id for log in self.life.checkpoint.manifest.logs} & set(
                sealed[:count]
            )

    @rule(ledger_ids=st.sets(LEDGERS, min_size=1, max_size=2))
    def drop(self, ledger_ids: set[int]) -> None:
        """All at once, of ledgers that may come again."""
        store = self.life.store
        self.harness.upkeep(
            lambda life: upkeep_at_once.merge_all(life.checkpoint, store, dropped=ledger_ids)
        )
        self.harness.recount()
        for ledger_id in ledger_ids:
            self.entries.pop(ledger_id, None)
        logs = self.life.checkpoint.manifest.logs
        assert all(log.live_bytes or not log.sealed for log in logs)

    @rule()
    def restart(self) -> None:
        self.harness.end()
        self.fake.restart("lose")
        self.harness.start()

    @rule(ledger_id=LEDGERS, data=st.data())
    def read(self, ledger_id: int, data: st.DataObject) -> None:
        held = self.entries.get(ledger_id, [])
        near = [entry_id + d for entry_id in (held[:2] + held[-2:]) for d in (-1, 0, 1)]
        ids = st.one_of(
            st.sampled_from([*near, 0, LAST]), st.sampled_from(held or [0]), st.integers(0, LAST)
        )
        first = min(max(data.draw(ids), 0), LAST)
        last = min(first + data.draw(st.sampled_from([0, 1, 300, LAST])), LAST)
        at = bisect.bisect_left(held, first)
        result = self.life.store.read(ledger_id, first, last, scan=data.draw(st.booleans()))
        if at == len(held) or held[at] > last:
            assert (result.status, result.entry_id, result.entry) == (NO_ENTRY, -1, None)
            return
        assert (result.status, result.entry_id) == (OK, held[at])
        assert result.entry == entry_bytes(ledger_id, held[at])
        if result.alone_through >= 0:
            self.check_alone(ledger_id, held[at], result.alone_through)

    def check_alone(self, ledger_id: int, entry_id: int, through: int) -> None:
        """Ids up to `through` all lie in the run that was read: so all are in the read cache now."""
        assert through >= entry_id
        held = self.entries[ledger_id]
        low, high = bisect.bisect_left(held, entry_id), bisect.bisect_right(held, through)
        for other in held[low:high]:
            assert self.life.store.cached(ledger_id, other) == entry_bytes(ledger_id, other)

    @rule(ledger_id=LEDGERS, first=STARTS, count_max=st.sampled_from([1, 2, 7, 1000]))
    def list_ids(self, ledger_id: int, first: int, count_max: int) -> None:
        got: list[int] = []
        at = first
        for _ in range(3):
            result = self.life.store.list(ledger_id, at, count_max)
            assert result.status == OK
            assert len(result.ranges) <= count_max
            for (_, a), (b, _) in zip(result.ranges, result.ranges[1:], strict=False):
                assert b > a + 1, "neighbouring ranges are joined"
            got += [i for low, high in result.ranges for i in range(low, high + 1)]
            at = result.go_on
            if at < 0:
                break
        held = [i for i in self.entries.get(ledger_id, []) if i >= first and (at < 0 or i < at)]
        assert got == held

    @invariant()
    def states_are_the_newest(self) -> None:
        if not hasattr(self, "harness"):
            return
        found: dict[int, LedgerState] = {}
        for entry in self.life.checkpoint.manifest.locations:
            found |= {state.ledger_id: state for state in self.life.store.states(entry.file_id)}
        assert found == self.states

    @invariant()
    def live_bytes_are_exact(self) -> None:
        if not hasattr(self, "harness"):
            return
        manifest = self.life.checkpoint.manifest
        files = [entry.file_id for entry in manifest.locations]
        scope = Scope(files, [log.log_id for log in manifest.logs])
        # Exact but for copies that a drop left behind, until the recount that follows it.
        live = self.life.store.log_bytes(scope)
        runs = self.life.store.log_runs(scope)
        places = [(run.log_id, run.offset_bytes) for run in runs]
        assert places == sorted(set(places)), "in the order of (log, offset), each once"
        assert sum(run.size_bytes for run in runs) == sum(live.values())
        if len(places) > 4:
            page = self.life.store.log_runs(scope, places[1], 3)
            assert [(run.log_id, run.offset_bytes) for run in page] == places[1:4]
            assert page.next_place > places[3] and not page.is_all
        assert live == {log.log_id: log.live_bytes for log in manifest.logs if log.live_bytes}
        self.harness.check_files()

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.harness.end()
        self.fake.destroy()


TestStoreModel = StoreModel.TestCase
TestStoreModel.settings = settings(stateful_step_count=25, deadline=None)


# ---------------------------------------------------------------------------------------- golden files


def golden_files() -> dict[str, bytes]:
    """The files of one flush of known entries: runs with gaps, a large entry, several ledgers, states."""
    with FakeDisk() as fake:
        harness = StoreHarness(fake, CheckpointSettings(attempts_max=1))
        harness.birth()
        life = harness.start()
        entries = [(1, i, entry_bytes(1, i)) for i in range(5)]
        entries += [(2, 10 * i, entry_bytes(2, 10 * i)) for i in range(3)]
        entries += [(2, 9000, entry_bytes(2, 9000, 1000)), (LAST, LAST, entry_bytes(3, 3))]
        states = [
            LedgerState(1, 4, 3, 9, 9, b"k" * 20),
            LedgerState(LAST, LAST, -1, 1, 4, deleted_s=8, creation_mark=2**32 - 1),
        ]
        life.checkpoint.run(life.store, FlushContents.from_entries(entries, states), 9)
        files = {
            "entry_log.bin": life.disk.read_file(f"{DIRECTORY}/logs/0000000000000001.log"),
            "locations.bin": life.disk.read_file(locations_path(DIRECTORY, 1)),
        }
        harness.end()
        return files


def test_golden_files_are_written() -> None:
    for name, raw in golden_files().items():
        assert (GOLDEN / name).read_bytes() == raw, name


@pytest.mark.parametrize("locations", ["locations.bin", "locations_version_1.bin"])
def test_golden_files_are_read(locations: str) -> None:
    """INV-T1: states of version 1 have no creation mark, and their ledgers count as confirmed."""
    with FakeDisk() as fake:
        harness = StoreHarness(fake)
        harness.birth()
        life = harness.start()
        for folder, name in (("logs", "entry_log.bin"), ("locations", locations)):
            ending = "log" if folder == "logs" else "loc"
            file = life.disk.open(f"{DIRECTORY}/{folder}/0000000000000001.{ending}", create=True)
            life.disk.write_all(file, (GOLDEN / name).read_bytes())
            life.disk.close(file)
        assert not life.store.add(1)
        life.store.set_logs([1])
        assert life.store.list(1).ranges == ((0, 4),)
        assert life.store.list(2).ranges == ((0, 0), (10, 10), (20, 20), (9000, 9000))
        assert life.store.read(LAST, 0, LAST).entry == entry_bytes(3, 3)
        states = life.store.states(1)
        assert states[0] == LedgerState(1, 4, 3, 9, 9, b"k" * 20)
        mark = 0 if locations != "locations.bin" else 2**32 - 1
        assert (states[1].deleted_s, states[1].creation_mark) == (8, mark)
        assert not any(state.flags & UNCONFIRMED for state in states)
        harness.end()


if __name__ == "__main__":
    for name, raw in golden_files().items():
        (GOLDEN / name).write_bytes(raw)
        # Seeds of the fuzz harnesses: a byte of flags (which checksums are mended), then the file.
        for flags in (0, 15):
            seed = GOLDEN.parent / f"fuzz_{Path(name).stem}" / f"whole-{flags}.bin"
            seed.write_bytes(bytes([flags]) + raw)
