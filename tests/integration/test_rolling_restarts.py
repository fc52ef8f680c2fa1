"""Rolling restarts of real bookies under load leave no copy missing. The rig `rolling` does the same for longer."""

from __future__ import annotations

import random

import pytest

from fastbk.testing import LocalCluster
from tests.rigs.rolling import Round, judge, roll


@pytest.mark.parametrize("bookies", [3, 5])
async def test_a_rolling_restart_leaves_no_copy_missing(bookies: int) -> None:
    life = Round(random.Random(bookies))
    async with LocalCluster(bookies) as cluster:
        await roll(cluster, life, range(3))
        assert life.counts["restarts"] == 3
        assert await judge(cluster, life) == []
