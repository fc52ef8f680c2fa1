"""`identity.json`, and what a directory has to hold to count as one with data (INV-D1, A20)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.errors import StorageError
from fastbk.native.ffi import CorruptDataError, FormatTooNewError
from fastbk.native.hashes import crc32c
from fastbk.native.segment import PAIRS_MAX, SHARD_COUNT, shard_of
from fastbk.server.configuration import checks
from fastbk.storage.directories import data_in, make_ledger_directory
from fastbk.storage.identity import (
    Identity,
    decode,
    even_shards,
    evened,
    is_map,
    new_identity,
    new_incarnation,
    pair_of,
    read_identity,
    write_identity,
)
from fastbk.storage.manifest import Manifest, ManifestSlots
from fastbk.storage.small_files import encode
from tests.fixtures.fake_disk import FakeDisk

GOLDEN = Path(__file__).parents[2] / "golden" / "storage" / "identity.json"
ME = "127.0.0.1:3181"
JOURNAL = Identity(
    bookie_id=ME, incarnation="00000000000000ff", directory_id="a1", role="journal", created_s=5
)
LEDGER = msgspec.structs.replace(JOURNAL, directory_id="b2", role="ledger")
OLD_GOLDEN = GOLDEN.with_name("identity_before_starts.json")


def test_golden_file() -> None:
    assert decode(GOLDEN.read_bytes()) == LEDGER
    assert encode(LEDGER) == GOLDEN.read_bytes()


def test_a_file_from_before_starts_were_counted() -> None:
    assert decode(OLD_GOLDEN.read_bytes()) == LEDGER


def test_every_changed_byte_is_noticed() -> None:
    raw = encode(LEDGER)
    for at in range(len(raw)):
        bad = bytearray(raw)
        bad[at] ^= 1
        try:
            assert decode(bytes(bad)) == LEDGER  # white space
        except (CorruptDataError, FormatTooNewError):
            continue


def test_edited_by_hand_is_refused() -> None:
    fields = json.loads(encode(LEDGER))
    fields["bookie_id"] = "other:1"
    with pytest.raises(CorruptDataError, match="edited by hand"):
        decode(json.dumps(fields).encode())


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"null", b"{}", b'{"crc": 1}', b"[" * 100_000, b"\xff"]
)
def test_rubbish_is_refused(raw: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode(raw)


def test_a_newer_format_is_refused_by_name() -> None:
    fields = msgspec.to_builtins(LEDGER) | {"format": 2}
    fields["crc"] = crc32c(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())
    with pytest.raises(FormatTooNewError, match="format 2"):
        decode(json.dumps(fields).encode())


def test_written_and_read_back() -> None:
    with FakeDisk() as fake:
        disk = fake.disk()
        assert read_identity(disk, "/") is None
        mine = new_identity(ME, new_incarnation(), "ledger", 1)
        write_identity(disk, "/", mine)
        fake.restart("lose")
        assert read_identity(fake.disk(), "/") == mine
        assert new_identity(ME, 1, "ledger", 1).directory_id != mine.directory_id


def test_what_counts_as_data() -> None:
    with FakeDisk() as fake:
        disk = fake.disk()
        assert data_in(disk, "/") == []
        make_ledger_directory(disk, "/")
        make_ledger_directory(disk, "/")
        assert data_in(disk, "/") == []
        disk.close(disk.open("/logs/readme", create=True))
        assert data_in(disk, "/") == []
        disk.close(disk.open("/logs/0000000000000001.log", create=True))
        disk.close(disk.open("/0000000000000001.journal", create=True))
        slots = ManifestSlots(disk, "/")
        slots.load()
        slots.commit(Manifest(generation=2))
        assert data_in(disk, "/") == [
            "0000000000000001.journal",
            "logs/0000000000000001.log",
            "manifest",
        ]


def test_a_birth_cut_at_every_operation_can_be_finished() -> None:
    with FakeDisk() as whole:
        make_ledger_directory(whole.disk(), "/")
        count = whole.operations()
    for nth in range(1, count + 1):
        for mode in ("lose", "keep", "random"):
            with FakeDisk(seed=nth) as fake:
                disk = fake.disk()
                fake.fault("cut", nth=nth)
                with pytest.raises((OSError, StorageError)):
                    make_ledger_directory(disk, "/")
                fake.restart(mode, nth)
                assert data_in(fake.disk(), "/") == []
                make_ledger_directory(fake.disk(), "/")
                assert ManifestSlots(fake.disk(), "/").load() == Manifest(generation=1)


# Which pair a ledger lives in (A19, INV-D3): a function that never changes, and maps.


GOLDEN_SHARDS = Path(__file__).resolve().parents[2] / "golden" / "storage" / "shards.json"
MASK = (1 << 64) - 1


def splitmix64(value: int) -> int:
    """The definition, in other words than the product's."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def test_the_shards_of_ledgers_are_those_of_every_version() -> None:
    golden = json.loads(GOLDEN_SHARDS.read_text())
    assert {int(ledger_id): shard_of(int(ledger_id)) for ledger_id in golden} == {
        int(ledger_id): shard for ledger_id, shard in golden.items()
    }


@given(st.integers(min_value=0, max_value=(1 << 63) - 1))
def test_a_shard_is_the_top_of_the_hash(ledger_id: int) -> None:
    assert shard_of(ledger_id) == splitmix64(ledger_id) >> 58


def test_neighbouring_ids_spread_evenly() -> None:
    counts = Counter(shard_of(ledger_id) for ledger_id in range(64_000))
    assert len(counts) == SHARD_COUNT
    assert max(counts.values()) < 1.15 * 1000 < 1.3 * min(counts.values())


@pytest.mark.parametrize("pairs", range(1, PAIRS_MAX + 1))
def test_a_bookie_is_born_with_shards_spread_evenly(pairs: int) -> None:
    shards = even_shards(pairs)
    assert is_map(shards, pairs)
    counts = Counter(shards)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert pair_of(0, shards) == shards[shard_of(0)]


def test_what_is_no_map() -> None:
    assert not is_map(even_shards(2), 1)
    assert not is_map(even_shards(2)[:63], 2)
    assert not is_map((), 0)
    assert not is_map((-1,) * SHARD_COUNT, 1)
    assert not is_map((0,) * SHARD_COUNT, PAIRS_MAX + 1)


@given(st.lists(st.integers(0, 4), min_size=SHARD_COUNT, max_size=SHARD_COUNT))
def test_evening_moves_as_few_shards_as_go(shards: list[int]) -> None:
    moves = evened(shards, 5)
    after = list(shards)
    for shard, pair in moves:
        assert after[shard] != pair
        after[shard] = pair
    assert len({shard for shard, _ in moves}) == len(moves), "no shard moves twice"
    counts = Counter(after)
    assert sorted(counts[pair] for pair in range(5)) == [12, 13, 13, 13, 13]
    before = Counter(shards)
    surplus = sorted((before[pair] for pair in range(5)), reverse=True)
    fewest = min(
        sum(max(0, have - room) for have, room in zip(surplus, rooms, strict=True))
        for rooms in ([13, 13, 13, 13, 12],)
    )
    assert len(moves) == fewest


def test_bounds_are_said_alike_everywhere() -> None:
    assert checks.PAIRS_MAX == PAIRS_MAX
