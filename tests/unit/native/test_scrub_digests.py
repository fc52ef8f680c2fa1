"""Entries' own digests in runs whose checksums are good: what came damaged is named, and nothing else."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

import pytest

from fastbk.model.entry import DigestType, mac_key
from fastbk.native.scrub import BAD_RANGES_MAX, DigestScan, LogScan, Run
from fastbk.storage.directories import log_path
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
from tests.fixtures.store_harness import DIRECTORY, StoreHarness

LOG = log_path(DIRECTORY, 1)
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
def harness(monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreHarness]:
    monkeypatch.setattr(store_harness, "entry_bytes", lambda ledger, n, _=0: entry(ledger, n))
    with FakeDisk(seed=3) as fake:
        harness = StoreHarness(fake)
        harness.birth()
        harness.start()
        harness.flush([(ledger, n) for ledger in range(1, 5) for n in range(9)])
        yield harness
        harness.end()


def verify(
    harness: StoreHarness, types: Mapping[int, int | bytes], runs: list[Run] | None = None
) -> tuple[list[Run], DigestScan]:
    look = DigestScan(types)
    with LogScan(harness.fake.disk(), LOG, 1, 7) as scan:
        runs = list(scan) if runs is None else runs
    with LogScan(harness.fake.disk(), LOG, 1, 7) as scan:
        return scan.verify(runs, look), look


def test_what_came_with_a_wrong_digest_is_named(harness: StoreHarness) -> None:
    damaged, look = verify(harness, TYPES)
    assert damaged == [], "its bytes are those that came"
    assert look.bad == [(1, 3, 4), (1, 8, 8), (2, 0, 0), (3, 5, 5)]
    assert (look.entries, look.bad_entries) == (27, 5)


@pytest.mark.parametrize("kind", [DIGEST_DUMMY, DIGEST_HMAC, 77])
def test_only_crcs_of_ledgers_that_are_known_are_looked_at(
    harness: StoreHarness, kind: int
) -> None:
    damaged, look = verify(harness, {1: kind, 2: DIGEST_CRC32})
    assert damaged == []
    assert look.bad == [(2, 0, 0)]
    assert (look.entries, look.bad_entries) == (9, 1)
    assert verify(harness, {})[1].entries == 0


def test_a_mac_is_checked_by_its_ledgers_key(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raw(ledger_id: int, entry_id: int, _: int = 0) -> bytes:
        if ledger_id not in (7, 8):
            return entry(ledger_id, entry_id)
        right = make_entry(
            ledger_id, entry_id, -1, 9, b"data" * 40, DigestType.HMAC, b"%d" % ledger_id
        )
        return right[:-1] + b"!" if entry_id == 4 else right

    monkeypatch.setattr(store_harness, "entry_bytes", raw)
    harness.flush([(ledger, n) for ledger in (7, 8, 9) for n in range(6)])
    keys = {7: mac_key(b"7"), 8: mac_key(b"8")}
    _, look = verify(harness, {**keys, 1: DIGEST_CRC32C})
    assert look.bad == [(1, 3, 4), (1, 8, 8), (7, 4, 4), (8, 4, 4)]
    assert look.entries == 9 + 12
    _, look = verify(harness, {7: mac_key(b"8"), 8: DIGEST_HMAC})
    assert look.bad == [(7, 0, 5)]
    assert look.entries == 6


def test_the_wrong_type_fits_nothing(harness: StoreHarness) -> None:
    _, look = verify(harness, {4: DIGEST_CRC32})
    assert look.bad == [(4, 0, 8)]


def test_what_fails_its_checksum_is_damage_and_nothing_else(harness: StoreHarness) -> None:
    with LogScan(harness.fake.disk(), LOG, 1, 7) as scan:
        runs = list(scan)
    raw = harness.fake.disk().read_file(LOG)
    for victim in ((1, 3), (1, 6)):
        harness.fake.corrupt(LOG, raw.index(entry(*victim)) + 50)
    harness.fake.corrupt(LOG, next(run.offset_bytes for run in runs if run.ledger_id == 2) + 8)
    damaged, look = verify(harness, TYPES, runs)
    assert [(run.ledger_id, run.damaged > 0) for run in damaged] == [(1, True), (2, False)]
    assert look.bad == [(1, 4, 4), (1, 8, 8), (3, 5, 5)]
    assert look.entries == 7 + 9


def test_the_names_are_bounded_and_the_count_is_not(harness: StoreHarness) -> None:
    harness.flush([(9, 2 * n) for n in range(BAD_RANGES_MAX + 5)])
    with LogScan(harness.fake.disk(), LOG, 1, 7) as scan:
        runs = [run for run in scan if run.ledger_id == 9]
    kept = sum(run.entry_count for run in runs)
    assert kept > BAD_RANGES_MAX
    _, look = verify(harness, {9: DIGEST_CRC32}, runs)
    assert len(look.bad) == BAD_RANGES_MAX
    assert look.bad_entries == kept
    assert look.bad[-1] == (9, 2 * BAD_RANGES_MAX - 2, 2 * BAD_RANGES_MAX - 2)
