"""The fake disk against a model in Python: reads see the last write, and what was durable survives any crash.

The model keeps, per sector, every version since the last durable one: a crash may leave any of the last written and
the durable, nothing else.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.fixtures.fake_disk import FakeDisk

SECTOR = 512
SECTORS = 12


class Model(RuleBasedStateMachine):
    """One file of twelve sectors, written, synced, cut and restarted."""

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeDisk(seed=3)
        self.disk = self.fake.disk()
        self.file = self.disk.open("x", create=True)
        self.disk.preallocate(self.file, 0, SECTORS * SECTOR)
        self.disk.sync_directory("/")
        self.live = [0] * SECTORS
        self.durable = [0] * SECTORS
        self.version = 0

    def teardown(self) -> None:
        self.fake.destroy()

    def sector(self, index: int) -> int:
        """Return the version in a sector; a sector of two versions is torn below the unit of a disk."""
        data = self.disk.read(self.file, SECTOR, index * SECTOR)
        assert len(set(data)) == 1
        return data[0]

    @rule(
        first=st.integers(0, SECTORS - 1),
        count=st.integers(1, SECTORS),
        durable=st.booleans(),
        lie=st.booleans(),
    )
    def write(self, first: int, count: int, durable: bool, lie: bool) -> None:
        count = min(count, SECTORS - first)
        self.version = self.version % 250 + 1
        if lie:
            self.fake.fault("lie", "write")
        data = bytes([self.version]) * (count * SECTOR)
        self.disk.write_all(self.file, data, first * SECTOR, durable=durable)
        for index in range(first, first + count):
            self.live[index] = self.version
            if durable and not lie:
                self.durable[index] = self.version

    @rule(lie=st.booleans())
    def sync(self, lie: bool) -> None:
        if lie:
            self.fake.fault("lie", "sync")
        self.disk.sync(self.file)
        if not lie:
            self.durable = list(self.live)

    @rule(seed=st.integers(0, 2**32), mode=st.sampled_from(["lose", "keep", "random"]))
    def crash(self, seed: int, mode: str) -> None:
        self.fake.cut()
        self.fake.restart(mode, seed)
        self.file = self.disk.open("x")
        found = [self.sector(index) for index in range(SECTORS)]
        for index, version in enumerate(found):
            allowed = {
                "lose": {self.durable[index]},
                "keep": {self.live[index]},
                "random": {self.durable[index], self.live[index]},
            }
            assert version in allowed[mode], f"sector {index}"
        self.live = list(found)
        self.durable = list(found)

    @precondition(lambda self: self.disk.size(self.file) == SECTORS * SECTOR)
    @invariant()
    def reads_see_the_last_write(self) -> None:
        assert [self.sector(index) for index in range(SECTORS)] == self.live


TestFakeDiskModel = Model.TestCase
