"""The pool of a journal's files against a model: what may be taken again when (INV-J3)."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fastbk.storage.journal_files import OldFile, find_files, name_of
from fastbk.storage.journal_pool import JournalPool
from tests.fixtures.fake_disk import FakeDisk

SIZE = 64 * 1024
BLOCK = 4096


class PoolModel(RuleBasedStateMachine):
    """`content`: what each file that was written to holds: (its last batch, whether it adopts)."""

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeDisk()
        self.disk = self.fake.disk()
        self.disk.make_directory("/j")
        self.content: dict[int, tuple[int, bool]] = {}
        self.ends: dict[int, int] = {}
        """Where the last batch of files ends that were left; 0: not known, or they do not adopt."""
        self.sizes: dict[int, int] = {}
        """Of the files that were written to, when they were."""
        self.earlier_end = 0
        self.released: set[int] = set()
        self.mark = self.sequence = 0
        self.current: tuple[int, bool] | None = None

    @initialize(kept=st.sets(st.integers(1, 4)), listed=st.booleans(), end=st.integers(0, 15))
    def begin(self, kept: set[int], listed: bool, end: int) -> None:
        old = []
        for file_id in range(1, 5):
            file = self.disk.open(f"/j/{name_of(file_id)}", create=True)
            self.disk.preallocate(file, 0, SIZE)
            self.disk.close(file)
            is_kept = file_id in kept
            old.append(OldFile(file_id, f"/j/{name_of(file_id)}", 0, SIZE, is_kept))
            if is_kept:
                self.content[file_id] = (0, True)
        self.pool = JournalPool(
            self.disk,
            "/j",
            next_file_id=5,
            file_size_bytes=SIZE,
            first_file_size_bytes=SIZE // 4,
            limit_bytes=4 * SIZE,
            old_files=old if listed else [file for file in old if not file.kept],
            in_background=False,
            retry_s=0.0,
        )
        if 4 in kept and 0 < end < SIZE // BLOCK * 7 // 8:
            self.earlier_end = end * BLOCK
            self.pool.cut_earlier(4, self.earlier_end)

    @rule(adopts=st.booleans(), batches=st.integers(0, 5), end=st.integers(0, SIZE // BLOCK))
    def roll(self, adopts: bool, batches: int, end: int) -> None:
        self.pool.update(self.mark)
        file = self.pool.take()
        assert file is not None
        self.sequence += batches
        end_bytes = end * BLOCK
        if self.current is not None:
            end_bytes = min(end_bytes, self.sizes[self.current[0]])
        self.pool.used(file, self.sequence, adopts=adopts, end_bytes=end_bytes)
        if self.current is not None:
            self.content[self.current[0]] = (self.sequence, self.current[1])
            self.ends[self.current[0]] = end_bytes if self.current[1] else 0
        elif self.earlier_end:
            self.ends[4] = self.earlier_end
        self.current = (file.file_id, adopts)
        self.sizes[file.file_id] = file.size_bytes
        assert self.size_of(file.file_id) == file.size_bytes, (
            "it is as long as the journal believes"
        )

    @rule(ahead=st.integers(0, 6))
    def flush(self, ahead: int) -> None:
        self.mark = min(self.sequence, self.mark + ahead)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """The index names what the mark has passed, and ids of no such files, and some of them again."""
        passed = [
            file_id
            for file_id, (last_sequence, _) in self.content.items()
            if last_sequence <= self.mark
        ]
        named = data.draw(st.lists(st.sampled_from([*passed, 900]), max_size=4))
        self.released.update(named)
        if self.current is None and 4 in named:
            self.earlier_end = 0  # free before it was cut
        self.pool.release(named)

    @rule()
    def update(self) -> None:
        self.pool.update(self.mark)

    @invariant()
    def nothing_is_taken_again_too_early(self) -> None:
        names = set(self.disk.list("/j"))
        for file_id, (last_sequence, adopts) in self.content.items():
            if last_sequence > self.mark or (adopts and file_id not in self.released):
                assert name_of(file_id) in names, "INV-J3"

    @invariant()
    def what_the_mark_has_passed_counts_no_more(self) -> None:
        if self.current is None:
            return
        self.pool.update(self.mark)
        behind = [
            file_id
            for file_id, (last_sequence, _) in self.content.items()
            if last_sequence > self.mark
        ]
        sizes = [self.size_of(file_id) for file_id in (self.current[0], *behind)]
        assert self.pool.behind_bytes == sum(sizes)

    @invariant()
    def nothing_is_cut_but_behind_the_end(self) -> None:
        if self.current is None:
            return
        assert self.size_of(self.current[0]) == self.sizes[self.current[0]]
        names = set(self.disk.list("/j"))
        for file_id, end_bytes in self.ends.items():
            if name_of(file_id) in names:
                whole = self.sizes.get(file_id, SIZE)
                is_cut = 0 < end_bytes < whole * 7 // 8
                assert self.size_of(file_id) == (end_bytes if is_cut else whole)

    def size_of(self, file_id: int) -> int:
        """Return how long the file is."""
        file = self.disk.open(f"/j/{name_of(file_id)}", read_only=True)
        try:
            return self.disk.size(file)
        finally:
            self.disk.close(file)

    @invariant()
    def no_file_is_held_and_free(self) -> None:
        if not hasattr(self, "pool"):
            return
        pool = self.pool
        ids = [file.file_id for file in (*pool._held, *pool._free, *pool._kept.values())]
        ids += [file.file_id for file in pool._ready]
        ids += [] if self.current is None else [self.current[0]]
        assert len(ids) == len(set(ids))
        assert {name_of(file_id) for file_id in ids} <= set(self.disk.list("/j"))

    def teardown(self) -> None:
        if self.current is not None:
            self.pool.close()
            # What is left is free as soon as it is named: nothing leaks.
            found = find_files(self.fake.disk(), "/j", lock=False)
            assert len(found) >= 1
        self.disk.destroy()
        self.fake.destroy()


TestPoolModel = PoolModel.TestCase
TestPoolModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
