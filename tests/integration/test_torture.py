"""A few rounds of the live torture; `./dev torture ROUNDS=500` does many."""

from __future__ import annotations

from pathlib import Path

from tests.live.torture import Torture

ROUNDS = 8


async def test_kills_and_partitions_lose_and_alter_nothing(tmp_path: Path, seed: int) -> None:
    torture = Torture(tmp_path, seed, ROUNDS)
    report = await torture.run()
    assert report.is_good, report.violations[:10]
    assert report.counts["fault"] == ROUNDS
    # It was a test only if something was written, taken over and read.
    assert report.counts["added"] > 100
    assert report.counts["opened"] > 0
    assert report.counts["read"] >= report.counts["added"]
