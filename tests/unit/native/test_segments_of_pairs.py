"""A journal and an index take only the segments of their own pair (A19): a mixed-up descriptor ends the start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fastbk.native.disk import Disk
from fastbk.native.ffi import LayoutError
from fastbk.native.index import Index, IndexOptions
from fastbk.native.journal import Journal
from fastbk.native.segment import Segment, create_segment
from fastbk.server.configuration.settings import LedgerSettings, LimitSettings
from tests.fixtures.journal_harness import EPOCH, JournalHarness

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
