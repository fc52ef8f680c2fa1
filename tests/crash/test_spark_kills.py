"""The rig `spark`: a query through Spark itself, killed at calls of its sink, and gone on with. INV-S13."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.rigs.report import Plan
from tests.rigs.spark_kills import run


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("only", ["steps|zombie|executor", "orphan", "bookie", "metadata"])
def test_queries_that_are_killed_write_each_record_once(
    tmp_path: Path, rng: random.Random, only: str
) -> None:
    report = run(Plan(rng.getrandbits(30), 3, 600.0, tmp_path, only=only))
    assert report.losses == []
    assert report.cases >= 3 and report.counts["records"] > 0
