"""The flight recorder: what is slow leaves its stages, what is quick leaves nothing, and the memory is bounded."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from fastbk.native import flight
from fastbk.native.flight import FlightReader, SlowRecord
from fastbk.native.segment import Segment
from fastbk.server.supervision.slow_reports import stages, verdict
from fastbk.storage.journal_pool import JournalPool
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.journal_harness import JournalHarness
from tests.fixtures.wait import wait_until

pytestmark = pytest.mark.slow

KIB = 1024
MS = 1_000_000
SLOW_S = 0.03


class Harness:
    """A journal on a disk whose writes complete when they are released."""

    def __init__(self, fake: FakeDisk) -> None:
        self.fake = fake
        disk = fake.disk()
        disk.make_directory("/j")
        self.harness = JournalHarness(disk, ring_bytes=256 * KIB)
        assert self.harness.journal is not None
        self.journal = self.harness.journal
        size_bytes = 4096 * KIB
        self.pool = JournalPool(
            disk,
            "/j",
            next_file_id=1,
            file_size_bytes=size_bytes,
            first_file_size_bytes=size_bytes,
            limit_bytes=4 * size_bytes,
            in_background=False,
        )
        file = self.pool.take(wait=True)
        assert file is not None
        self.journal.roll(file.file, file.file_id, file.salt, file.size_bytes)
        self.segment = Segment(self.harness.journal_memory.fd, "journal")
        self.reader = FlightReader(self.segment)
        self.entry_id = 0

    def add(self, received_us: int | None = None) -> None:
        """An add, received now or when it is said."""
        now_us = time.monotonic_ns() // 1000 if received_us is None else received_us
        self.harness.add(1, self.entry_id, b"x" * 100, received_us=now_us & 0xFFFFFFFF)
        self.entry_id += 1

    def commit(self, *, write_s: float = 0.0) -> None:
        """Commit what waits, on a disk that takes so long."""
        self.fake.deliver("held")
        self.journal.step(0)
        assert self.fake.in_flight == 1
        pass_time(write_s)
        self.fake.release()
        before = len(self.harness.published.descriptors)
        while len(self.harness.published.descriptors) == before:
            self.journal.step(0)
            self.harness.look()

    def fresh(self) -> list[SlowRecord]:
        return self.reader.fresh()[0]


def pass_time(seconds: float) -> None:
    """Let so much time pass."""
    end_s = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= end_s, "time to pass")


@pytest.fixture
def harness() -> Iterator[Harness]:
    with FakeDisk() as fake:
        made = Harness(fake)
        yield made
        made.segment.close()
        made.pool.close()
        made.harness.close()


def test_quick_commits_leave_nothing(harness: Harness) -> None:
    slow = 0
    for _ in range(50):
        harness.add()
        harness.commit()
        slow += len(harness.fresh())
    assert slow < 25, "only what a busy machine made slow"


def test_a_slow_disk_is_named_with_the_stages(harness: Harness) -> None:
    harness.add()
    harness.commit(write_s=SLOW_S)
    (record,) = harness.fresh()
    assert record.kind == flight.COMMIT and record.record_count == 1
    assert record.received_ns <= record.submitted_ns <= record.completed_ns <= record.ended_ns
    by_name = {one.name: one.took_ns for one in stages(record)}
    assert by_name["write"] >= SLOW_S * 1e9
    found = verdict(record)
    assert found.stage.name == "write"
    # The test itself works while the disk is slow; a thread that waits for it does not.
    assert found.cause in ("disk", "processor")
    assert harness.fresh() == [], "each record is read once"


def test_an_add_that_waited_for_the_journal_is_no_slow_disk(harness: Harness) -> None:
    harness.add()
    harness.commit()  # the first one may wait for the file
    harness.fresh()
    received_us = time.monotonic_ns() // 1000
    # It sleeps, and nobody rings. In one step: time between steps counts as waiting for files.
    harness.journal.step(2 * round(SLOW_S * 1e3))
    harness.add(received_us=received_us)
    harness.commit()
    (record,) = harness.fresh()
    found = verdict(record)
    assert found.stage.name == "take" and found.cause != "disk"
    assert SLOW_S * 1e9 <= record.took_ns < 100 * SLOW_S * 1e9


def test_a_commit_behind_a_slow_one_blames_that(harness: Harness) -> None:
    harness.add()
    harness.fake.deliver("held")
    harness.journal.step(0)
    began_us = time.monotonic_ns() // 1000
    harness.add(received_us=began_us)
    pass_time(SLOW_S)
    harness.fake.release()
    while len(harness.harness.published.descriptors) < 2:
        harness.journal.step(0)
        if harness.fake.in_flight:
            harness.fake.release()
        harness.harness.look()
    first, second = harness.fresh()
    assert verdict(first).stage.name == "write"
    assert verdict(second).stage.name == "behind"


def test_the_newest_records_are_kept_and_the_lost_ones_counted(harness: Harness) -> None:
    count = flight.RECORDS_MAX + 20
    for n in range(count):
        harness.add(received_us=time.monotonic_ns() // 1000 - 20_000 - n * 1000)
        harness.commit()
    records, lost = harness.reader.fresh()
    assert len(records) + lost == count and lost >= 20
    assert len(records) >= flight.RECORDS_MAX - 1
    assert records[-1].took_ns >= (20 + count - 1) * MS
    ended = [one.ended_ns for one in records]
    assert ended == sorted(ended)


def test_what_the_thread_used_is_counted(harness: Harness) -> None:
    harness.journal.step(0)
    began_s = time.thread_time()
    while time.thread_time() < began_s + SLOW_S:
        pass  # it is this work that is counted
    harness.add(received_us=time.monotonic_ns() // 1000 - 40_000)
    harness.commit()
    (record,) = harness.fresh()
    assert record.processor_ns > 0
    assert record.sampled_ns <= record.ended_ns


@pytest.mark.parametrize("stall_s", [0.02, 0.15, 0.6])
def test_what_is_counted_covers_the_whole_stall(harness: Harness, stall_s: float) -> None:
    end_s = time.monotonic() + 0.3
    while time.monotonic() < end_s:
        harness.journal.step(1)
    began_us = time.monotonic_ns() // 1000
    while time.monotonic_ns() // 1000 < began_us + stall_s * 1e6:
        harness.journal.step(1)
    harness.add(received_us=began_us)
    harness.commit()
    (record,) = harness.fresh()
    assert record.sampled_ns <= record.received_ns
    assert record.voluntary > 0 and record.sampled_ns > record.received_ns - 2_000 * MS
