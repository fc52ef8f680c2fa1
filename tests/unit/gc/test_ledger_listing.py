"""Many ids in little memory, against sets."""

from __future__ import annotations

import random
from array import array

import pytest

from fastbk.gc.ledger_listing import in_both, missing_from, sorted_ids


def test_against_sets() -> None:
    random.seed(7)
    for _ in range(300):
        local = {random.randrange(60) for _ in range(random.randrange(40))}
        other = {random.randrange(60) for _ in range(random.randrange(40))}
        shuffled = random.sample(sorted(local), len(local)) * random.randrange(1, 3)
        size = random.randrange(1, 9)
        ids = sorted_ids([shuffled[at : at + size] for at in range(0, len(shuffled), size)])
        assert ids.tolist() == sorted(local)
        listed = sorted(other)
        pages = [listed[at : at + size] for at in range(0, len(listed), size)]
        assert list(missing_from(ids, pages)) == sorted(local - other)
        assert list(in_both(ids, array("q", listed))) == sorted(local & other)


@pytest.mark.slow
def test_a_million_ids_take_eight_bytes_each() -> None:
    pages = [list(range(at, 1_000_000, 250)) for at in range(250)]
    ids = sorted_ids(pages)
    assert len(ids) == 1_000_000
    assert ids.buffer_info()[1] * ids.itemsize == 8_000_000
    assert list(missing_from(ids, [list(range(999_999))])) == [999_999]
