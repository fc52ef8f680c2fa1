"""The rig `outage`: ZooKeeper goes away for longer than a session under writers and readers of streams. S13."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.rigs.outage import run
from tests.rigs.report import Plan


@pytest.mark.timeout(300)
def test_no_append_fails_while_zookeeper_is_away(tmp_path: Path, rng: random.Random) -> None:
    report = run(Plan(rng.getrandbits(30), 0, 10.0, tmp_path))
    assert report.losses == []
    assert report.cases == 2 and report.counts["segments"] > 4
    assert report.counts["cut_appends"] and report.counts["killed_appends"]
