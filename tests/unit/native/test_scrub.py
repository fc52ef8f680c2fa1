"""Scanning entry logs and locations files: what is harmed is named, the rest is found, nothing else is blamed."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from fastbk.model.entry import DigestType, mac_key
from fastbk.native.scrub import BAD_RANGES_MAX, DigestScan, LogScan, Run, check_locations, probe
from fastbk.storage.directories import locations_path, log_path
from tests.fixtures import store_harness
from tests.fixtures.entries import make_entry
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.hashes import (
    DIGEST_CRC32,
    DIGEST_CRC32C,
    DIGEST_DUMMY,
    DIGEST_HMAC,
    with_digest,
)
from tests.fixtures.store_harness import (
    CANNOT_TELL,
    DIRECTORY,
    NO_ENTRY,
    OK,
    StoreHarness,
    entry_bytes,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Mapping

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


# Entries' own digests in runs whose checksums are good: what came damaged is named, and nothing
# else.


BAD = {(1, 3), (1, 4), (1, 8), (2, 0), (3, 5)}
TYPES = {1: DIGEST_CRC32C, 2: DIGEST_CRC32, 3: DIGEST_CRC32C}
SHORT = (3, 5)
"""Too short for its digest."""


def entry(ledger_id: int, entry_id: int) -> bytes:
    header = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 0)
    if (ledger_id, entry_id) == SHORT:
        return header + b"abc"
    kind = TYPES.get(ledger_id, DIGEST_CRC32C)
    raw = with_digest(kind, header, b"%d/%d" % (ledger_id, entry_id) * 30)
    return raw[:-1] + b"!" if (ledger_id, entry_id) in BAD else raw


@pytest.fixture
def digests_harness(monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreHarness]:
    monkeypatch.setattr(store_harness, "entry_bytes", lambda ledger, n, _=0: entry(ledger, n))
    with FakeDisk(seed=3) as fake:
        digests_harness = StoreHarness(fake)
        digests_harness.birth()
        digests_harness.start()
        digests_harness.flush([(ledger, n) for ledger in range(1, 5) for n in range(9)])
        yield digests_harness
        digests_harness.end()


def verify(
    digests_harness: StoreHarness, types: Mapping[int, int | bytes], runs: list[Run] | None = None
) -> tuple[list[Run], DigestScan]:
    look = DigestScan(types)
    with LogScan(digests_harness.fake.disk(), LOG, 1, 7) as scan:
        runs = list(scan) if runs is None else runs
    with LogScan(digests_harness.fake.disk(), LOG, 1, 7) as scan:
        return scan.verify(runs, look), look


def test_what_came_with_a_wrong_digest_is_named(digests_harness: StoreHarness) -> None:
    damaged, look = verify(digests_harness, TYPES)
    assert damaged == [], "its bytes are those that came"
    assert look.bad == [(1, 3, 4), (1, 8, 8), (2, 0, 0), (3, 5, 5)]
    assert (look.entries, look.bad_entries) == (27, 5)


@pytest.mark.parametrize("kind", [DIGEST_DUMMY, DIGEST_HMAC, 77])
def test_only_crcs_of_ledgers_that_are_known_are_looked_at(
    digests_harness: StoreHarness, kind: int
) -> None:
    damaged, look = verify(digests_harness, {1: kind, 2: DIGEST_CRC32})
    assert damaged == []
    assert look.bad == [(2, 0, 0)]
    assert (look.entries, look.bad_entries) == (9, 1)
    assert verify(digests_harness, {})[1].entries == 0


def test_a_mac_is_checked_by_its_ledgers_key(
    digests_harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raw(ledger_id: int, entry_id: int, _: int = 0) -> bytes:
        if ledger_id not in (7, 8):
            return entry(ledger_id, entry_id)
        right = make_entry(
            ledger_id, entry_id, -1, 9, b"data" * 40, DigestType.HMAC, b"%d" % ledger_id
        )
        return right[:-1] + b"!" if entry_id == 4 else right

    monkeypatch.setattr(store_harness, "entry_bytes", raw)
    digests_harness.flush([(ledger, n) for ledger in (7, 8, 9) for n in range(6)])
    keys = {7: mac_key(b"7"), 8: mac_key(b"8")}
    _, look = verify(digests_harness, {**keys, 1: DIGEST_CRC32C})
    assert look.bad == [(1, 3, 4), (1, 8, 8), (7, 4, 4), (8, 4, 4)]
    assert look.entries == 9 + 12
    _, look = verify(digests_harness, {7: mac_key(b"8"), 8: DIGEST_HMAC})
    assert look.bad == [(7, 0, 5)]
    assert look.entries == 6


def test_the_wrong_type_fits_nothing(digests_harness: StoreHarness) -> None:
    _, look = verify(digests_harness, {4: DIGEST_CRC32})
    assert look.bad == [(4, 0, 8)]


def test_what_fails_its_checksum_is_damage_and_nothing_else(digests_harness: StoreHarness) -> None:
    with LogScan(digests_harness.fake.disk(), LOG, 1, 7) as scan:
        runs = list(scan)
    raw = digests_harness.fake.disk().read_file(LOG)
    for victim in ((1, 3), (1, 6)):
        digests_harness.fake.corrupt(LOG, raw.index(entry(*victim)) + 50)
    digests_harness.fake.corrupt(
        LOG, next(run.offset_bytes for run in runs if run.ledger_id == 2) + 8
    )
    damaged, look = verify(digests_harness, TYPES, runs)
    assert [(run.ledger_id, run.damaged > 0) for run in damaged] == [(1, True), (2, False)]
    assert look.bad == [(1, 4, 4), (1, 8, 8), (3, 5, 5)]
    assert look.entries == 7 + 9


def test_the_names_are_bounded_and_the_count_is_not(digests_harness: StoreHarness) -> None:
    digests_harness.flush([(9, 2 * n) for n in range(BAD_RANGES_MAX + 5)])
    with LogScan(digests_harness.fake.disk(), LOG, 1, 7) as scan:
        runs = [run for run in scan if run.ledger_id == 9]
    kept = sum(run.entry_count for run in runs)
    assert kept > BAD_RANGES_MAX
    _, look = verify(digests_harness, {9: DIGEST_CRC32}, runs)
    assert len(look.bad) == BAD_RANGES_MAX
    assert look.bad_entries == kept
    assert look.bad[-1] == (9, 2 * BAD_RANGES_MAX - 2, 2 * BAD_RANGES_MAX - 2)
