"""Which pair a ledger lives in (A19, INV-D3): a function that never changes, and maps."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.native.segment import PAIRS_MAX, SHARD_COUNT, shard_of
from fastbk.server.configuration import checks
from fastbk.storage.identity import even_shards, evened, is_map, pair_of

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "storage" / "shards.json"
MASK = (1 << 64) - 1


def splitmix64(value: int) -> int:
    """The definition, in other words than the product's."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def test_the_shards_of_ledgers_are_those_of_every_version() -> None:
    golden = json.loads(GOLDEN.read_text())
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
