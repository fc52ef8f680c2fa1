"""Segments, their read-only descriptors and their statistics, from Python."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from fastbk.native import segment as segments
from fastbk.native.disk import Disk
from fastbk.native.ffi import LayoutError
from fastbk.native.index import Index, IndexOptions
from fastbk.native.journal import Journal
from fastbk.native.segment import (
    Segment,
    can_seal,
    create_segment,
    is_sealed,
    reopen_read_only,
    seal_segment,
)
from fastbk.server.configuration.settings import LedgerSettings, LimitSettings
from tests.fixtures.journal_harness import EPOCH, JournalHarness
from tests.fixtures.os_errors import fails_with

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def fd() -> Iterator[int]:
    made = create_segment("worker", 2, 41, [8192, 4096])
    yield made
    os.close(made)


def test_facts(fd: int) -> None:
    with Segment(fd, "worker") as segment:
        facts = segment.facts
    assert (facts.role, facts.role_index, facts.epoch) == ("worker", 2, 41)
    assert facts.size_bytes == os.fstat(fd).st_size
    assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC


@pytest.mark.parametrize("role", sorted(segments.ROLES))
def test_every_role_can_be_made_and_mapped(role: str) -> None:
    fd = create_segment(role, 0, 1, [4096] if role == "index" else [], 3 if role == "index" else 1)
    try:
        with Segment(fd, role) as segment:
            assert segment.facts.role == role
        for other in set(segments.ROLES) - {role}:
            with pytest.raises(LayoutError):
                Segment(fd, other)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("role", "sizes", "repeat"),
    [
        ("worker", [5000], 1),
        ("worker", [2048], 1),
        ("worker", [4096, 4096], 2),
        ("index", [4096], 0),
        ("index", [4096], 17),
        ("nobody", [], 1),
        ("worker", [4096] * 5, 1),
    ],
)
def test_what_cannot_be_is_refused(role: str, sizes: list[int], repeat: int) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        create_segment(role, 0, 1, sizes, repeat)


def test_a_read_only_descriptor_stays_read_only(fd: int) -> None:
    """INV-R1: whoever is not the owner cannot write, not even on purpose."""
    reader = reopen_read_only(fd)
    try:
        with pytest.raises(PermissionError):
            Segment(reader, "worker", is_writable=True)
        with pytest.raises(PermissionError):
            mmap.mmap(reader, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        with fails_with(errno.EBADF):
            os.write(reader, b"x")
        with Segment(reader, "worker") as segment:
            assert segment.facts.epoch == 41
            with pytest.raises(PermissionError, match="another process"):
                segments.Stats(segment).count(0)
    finally:
        os.close(reader)


def test_a_read_only_descriptor_reopened_through_proc_writes_until_the_owner_has_sealed(
    fd: int,
) -> None:
    """What a compromised reader does: /proc/self/fd gives it a descriptor for writing."""
    reader = reopen_read_only(fd)
    with Segment(fd, "worker", is_writable=True) as segment:
        before = os.open(f"/proc/self/fd/{reader}", os.O_RDWR)
        mmap.mmap(before, 4096).close()
        assert not is_sealed(fd)
        assert seal_segment(fd) and is_sealed(reader)
        after = os.open(f"/proc/self/fd/{reader}", os.O_RDWR)
        for attacker in (before, after, fd):
            with pytest.raises(PermissionError):
                mmap.mmap(attacker, 4096)
            with fails_with(errno.EPERM):
                os.pwrite(attacker, b"x", 0)
            with fails_with(errno.EPERM):
                fcntl.fcntl(attacker, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        with pytest.raises(PermissionError):
            Segment(fd, "worker", is_writable=True)
        assert seal_segment(fd), "a second time does nothing"
        segments.Stats(segment).count(3)
        with Segment(reader, "worker") as theirs:
            assert segments.Stats(theirs).counters()[3] == 1, "the owner goes on writing"
    for each in (reader, before, after):
        os.close(each)


def test_this_kernel_can_seal() -> None:
    assert can_seal()


def test_nobody_can_cut_it_off(fd: int) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)


def test_a_foreign_file_is_refused(tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "x")
    with open(path, "wb+") as file:
        file.write(bytes(1 << 20))
        file.flush()
        with pytest.raises(LayoutError):
            Segment(file.fileno(), "worker")


def test_closed_means_closed(fd: int) -> None:
    segment = Segment(fd, "worker")
    segment.close()
    segment.close()
    with pytest.raises(ValueError, match="closed"):
        _ = segment.facts


def test_counters_and_gauges(fd: int) -> None:
    with Segment(fd, "worker", is_writable=True) as mine, Segment(fd, "worker") as theirs:
        writer, reader = segments.Stats(mine), segments.Stats(theirs)
        assert set(reader.counters()) == {0}
        writer.count(5)
        writer.count(5, 10)
        writer.gauge(7, 2**63)
        writer.gauge(7, 2**64 - 1)
        assert len(reader.counters()) == segments.COUNTERS_MAX
        assert reader.counters()[5] == 11
        assert reader.counters()[7] == 2**64 - 1
        with fails_with(errno.EINVAL):
            writer.count(segments.COUNTERS_MAX)
        with fails_with(errno.EINVAL):
            reader.histogram(segments.HISTOGRAMS_MAX)


def test_histogram_percentiles_are_close(fd: int) -> None:
    values = [random.randrange(1, 10 ** random.randrange(1, 7)) for _ in range(2000)]
    with Segment(fd, "worker", is_writable=True) as segment:
        stats = segments.Stats(segment)
        for value in values[:1000]:
            stats.observe(3, value)
        half = stats.histogram(3)
        for value in values[1000:]:
            stats.observe(3, value)
        histogram = stats.histogram(3)
    assert histogram.count == sum(histogram.buckets) == 2000
    assert histogram.sum == sum(values)
    assert histogram.max == max(values)
    ordered = sorted(values)
    for percent in (1, 50, 90, 99, 99.9, 100):
        exact = ordered[max(int(len(ordered) * percent / 100) - 1, 0)]
        assert exact <= histogram.percentile(percent) <= exact * 1.13 + 1
    second = histogram.minus(half)
    assert second.count == 1000
    assert second.sum == sum(values[1000:])
    assert segments.Histogram(0, 0, 0, [0] * segments.BUCKET_COUNT).percentile(50) == 0


def test_bell_and_clock() -> None:
    bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    segments.ring_bell(bell)
    segments.ring_bell(bell)
    assert os.eventfd_read(bell) == 2
    os.close(bell)
    before = segments.now_ns()
    assert segments.now_ns() >= before > 0


# A journal and an index take only the segments of their own pair (A19): a mixed-up descriptor
# ends the start.


RINGS = [1 << 20, 4096]


@pytest.fixture
def others() -> Iterator[dict[str, int]]:
    """Segments of the second pair."""
    made = {
        "worker": create_segment("worker", 0, EPOCH, RINGS, pair=1),
        "journal": create_segment("journal", 1, EPOCH, pair=1),
        "index": create_segment("index", 1, EPOCH, [1 << 18], pair=1),
    }
    yield made
    for fd in made.values():
        os.close(fd)


def test_a_segment_says_whose_pair_it_is(others: dict[str, int]) -> None:
    for role, fd in others.items():
        with Segment(fd, role) as segment:
            assert segment.facts.pair == 1


def test_a_journal_takes_segments_of_its_pair_alone(tmp_path: Path, others: dict[str, int]) -> None:
    with Disk(tmp_path, "plain") as disk:
        harness = JournalHarness(disk, open_journal=False)
        mixed = [
            {"pair": 1},
            {"worker_segment_fds": [others["worker"]]},
            {"index_segment_fd": others["index"]},
            {"segment_fd": others["journal"]},
        ]
        for changes in mixed:
            with pytest.raises(LayoutError):
                Journal(disk, replace(harness.options, **changes))  # type: ignore[arg-type]


def test_an_index_takes_segments_of_its_pair_alone(others: dict[str, int]) -> None:
    bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    worker = create_segment("worker", 0, EPOCH, RINGS)
    try:
        options = IndexOptions(
            epoch=EPOCH,
            segment_fd=others["index"],
            journal_segment_fd=others["journal"],
            worker_segment_fds=[others["worker"]],
            bell_fd=bell,
            journal_bell_fd=bell,
            worker_bell_fds=[bell],
            reader_fd=bell,
            cache_bytes=1 << 20,
            cache_reserve_bytes=1 << 17,
            flush_used_bytes=1 << 19,
            flush_journal_bytes=1 << 30,
            parked_bytes_max=8 << 20,
            requests_max=64,
            settings=(LimitSettings(frame_size_bytes_max=65536), LedgerSettings()),
            seed=1,
        )
        Index(options, None).destroy()
        with pytest.raises(LayoutError):
            Index(replace(options, worker_segment_fds=[worker]), None)
        journal = create_segment("journal", 0, EPOCH)
        try:
            with pytest.raises(LayoutError):
                Index(replace(options, journal_segment_fd=journal), None)
        finally:
            os.close(journal)
    finally:
        os.close(worker)
        os.close(bell)
