"""Rolling restarts of real bookies under load leave no copy missing. The rig `rolling` does the same for longer."""

from __future__ import annotations

import random

import pytest

from fastbk.testing import LocalCluster
from tests.rigs.rolling import judge, roll
from tests.rigs.rolling_writers import Round


@pytest.mark.parametrize("bookies", [3, 5])
async def test_a_rolling_restart_leaves_no_copy_missing(bookies: int) -> None:
    async with LocalCluster(bookies) as cluster:
        life = Round(cluster.metadata_uri, bookies, random.Random(bookies))
        await roll(cluster, life, range(3))
        assert life.counts["restarts"] == 3
        assert await judge(cluster, life) == []
