"""The rig `shutdown` in small: three bookies lose power at once, and nothing that was acknowledged is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rigs import mounts, shutdown
from tests.rigs.report import Plan


def test_a_whole_cluster_cut_off_loses_nothing(seed: int, tmp_path: Path) -> None:
    if reason := mounts.why_not():
        pytest.skip(reason)
    report = shutdown.run(Plan(seed, 1, 600.0, tmp_path))
    assert report.is_good, report.losses[:5]
    assert report.cases == 1
    assert report.counts["entries"] >= shutdown.ACKS_MIN
