"""Scanning entry logs and locations files: what is harmed is named, the rest is found, nothing else is blamed."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from fastbk.native.scrub import LogScan, Run, check_locations, probe
from fastbk.storage.directories import locations_path, log_path
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.store_harness import (
    CANNOT_TELL,
    DIRECTORY,
    NO_ENTRY,
    OK,
    StoreHarness,
    entry_bytes,
)

LOG = log_path(DIRECTORY, 1)
LOCATIONS = locations_path(DIRECTORY, 1)
INCARNATION = 7


@pytest.fixture
def harness() -> Iterator[StoreHarness]:
    with FakeDisk(seed=2) as fake:
        harness = StoreHarness(fake)
        harness.birth()
        harness.start()
        harness.flush([(ledger, entry) for ledger in range(1, 6) for entry in range(9)])
        harness.flush([(9, 2 * entry) for entry in range(300)])
        yield harness
        harness.end()


def scan(harness: StoreHarness, **options: int) -> list[Run]:
    with LogScan(harness.fake.disk(), LOG, 1, INCARNATION, **options) as found:
        return list(found)


def test_every_run_is_found_by_its_header(harness: StoreHarness) -> None:
    runs = scan(harness)
    assert [(run.ledger_id, run.entry_count) for run in runs] == [
        *((ledger, 9) for ledger in range(1, 6)),
        (9, 256),
        (9, 44),
    ]
    assert runs == sorted(runs, key=lambda run: run.offset_bytes)
    assert all(run.damaged == 0 for run in runs)
    with LogScan(harness.fake.disk(), LOG, 1, INCARNATION) as found:
        list(found)
        status = found.status
    assert not status.skipped_bytes
    assert not status.unreadable_bytes
    assert not status.header_damaged
    assert scan(harness, end_bytes=runs[-1].offset_bytes) == runs[:-1]


def test_runs_of_another_log_or_life_are_not_taken(harness: StoreHarness) -> None:
    with LogScan(harness.fake.disk(), LOG, 2, INCARNATION) as found:
        assert list(found) == []
        assert found.status.header_damaged
        assert found.status.skipped_bytes > 0
    assert scan(harness, salt=43) == []


@pytest.mark.slow
def test_one_changed_bit_costs_its_own_run_at_most(
    harness: StoreHarness, rng: random.Random
) -> None:
    whole = scan(harness)
    size = len(harness.fake.disk().read_file(LOG))
    hits = 0
    for at in range(rng.randrange(37), size, 37):
        with harness.fake.copy() as copy:
            copy.corrupt(LOG, at, 1, 1 << rng.randrange(8))
            with LogScan(copy.disk(), LOG, 1, INCARNATION) as log:
                found = list(log)
                bad = log.verify(whole)
                skipped = log.status.skipped_bytes
        hit = [run for run in whole if run.offset_bytes <= at < run.offset_bytes + run.size_bytes]
        assert [(run.ledger_id, run.offset_bytes) for run in bad] in (
            [],  # padding between two entries
            [(run.ledger_id, run.offset_bytes) for run in hit],
        )
        others = [run for run in found if run.damaged == 0]
        assert others == [run for run in whole if run not in hit or not bad]
        if bad:
            hits += 1
            assert skipped or [run for run in found if run.damaged], "seen by a scan, too"
    assert hits > 100


def test_an_unreadable_block(harness: StoreHarness) -> None:
    whole = scan(harness)
    first = whole[0].offset_bytes
    harness.fake.make_unreadable(LOG, 8192, 12288)
    with LogScan(harness.fake.disk(), LOG, 1, INCARNATION) as log:
        bad = log.verify(whole)
        assert list(log)
        assert log.status.unreadable_bytes > 0
    touched = [r for r in whole if r.offset_bytes < 12288 and r.offset_bytes + r.size_bytes > 8192]
    assert [run.offset_bytes for run in bad] == [run.offset_bytes for run in touched]
    assert first not in [run.offset_bytes for run in bad] or first + whole[0].size_bytes > 8192


def test_what_is_cut_off_is_not_there(harness: StoreHarness) -> None:
    whole = scan(harness)
    with LogScan(
        harness.fake.disk(), LOG, 1, INCARNATION, end_bytes=whole[3].offset_bytes + 8
    ) as log:
        assert list(log) == whole[:3]
        assert [run.offset_bytes for run in log.verify(whole)] == [
            r.offset_bytes for r in whole[3:]
        ]


def test_locations_files_and_their_states(harness: StoreHarness, rng: random.Random) -> None:
    disk = harness.fake.disk()
    found = check_locations(disk, LOCATIONS, 1, INCARNATION, with_states=True)
    assert found.is_whole
    assert sorted(state.ledger_id for state in found.states) == [1, 2, 3, 4, 5]
    size = found.size_bytes
    assert size == 3 * 4096
    for block, name in ((0, "header_damaged"), (1, "damaged_blocks"), (2, "damaged_state_blocks")):
        for _ in range(20):
            with harness.fake.copy() as copy:
                at = block * 4096 + (rng.randrange(96) if block == 0 else rng.randrange(4096))
                copy.corrupt(LOCATIONS, at, 1, 1 << rng.randrange(8))
                if block == 0 and 8 <= at < 12:
                    continue  # the version: too new, or damaged
                harmed = check_locations(copy.disk(), LOCATIONS, 1, INCARNATION, with_states=True)
            assert getattr(harmed, name), at
            assert not harmed.is_whole
            assert len(harmed.states) == (0 if block == 2 else 5), (
                "salvaged without the header, too"
            )
    other = check_locations(disk, LOCATIONS, 1, INCARNATION + 1)
    assert other.header_damaged


def test_a_probe_says_what_a_read_would(harness: StoreHarness) -> None:
    assert harness.life is not None
    store = harness.life.store
    assert probe(store, 1, 3) == OK
    assert probe(store, 1, 9) == NO_ENTRY
    assert probe(store, 9, 3) == NO_ENTRY
    run = next(run for run in scan(harness) if run.ledger_id == 2)
    harness.restart()
    raw = harness.fake.disk().read_file(LOG)
    harness.fake.corrupt(LOG, raw.index(entry_bytes(2, 4), run.offset_bytes) + 40)
    assert harness.life is not None
    store = harness.life.store
    assert [probe(store, 2, entry) for entry in (3, 4, 5)] == [OK, CANNOT_TELL, OK]
