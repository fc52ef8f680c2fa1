"""One turned bit anywhere in a bookie's files: told, refused or harmless; never a wrong byte, never a wrong "no"."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from tests.rigs.flips import flip_case, image

pytestmark = pytest.mark.fast

CASES = 60 if os.environ.get("FASTBK_TIER", "fast") == "fast" else 120


def test_every_kind_of_file_has_its_turn() -> None:
    assert {"log", "loc", "journal", "manifest", "json", "ids", "unclean"} <= set(image(0).files)


def test_a_turned_bit_is_told_refused_or_harmless(rng: random.Random) -> None:
    first = rng.randrange(1 << 40)
    outcomes: Counter[str] = Counter()
    for seed in range(first, first + CASES):
        flip = flip_case(seed)
        assert not flip.losses, (seed, flip)
        outcomes[flip.outcome] += 1
    assert outcomes["told"] > 2, outcomes
    assert outcomes["refused"] > 2, outcomes
