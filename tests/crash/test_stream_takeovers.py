"""The rig `takeovers`: some writers of a stream killed by SIGKILL; and that its judge bites. INV-S1, INV-S3, INV-S6."""

from __future__ import annotations

import random
from pathlib import Path

from tests.rigs.report import Plan
from tests.rigs.takeovers import CONNECTED, OPENED, judge, payload_of, run


def test_writers_that_are_killed_lose_and_repeat_nothing(
    tmp_path: Path, rng: random.Random
) -> None:
    report = run(Plan(rng.getrandbits(30), 5, 60.0, tmp_path))
    assert report.losses == []
    assert report.counts["acknowledged"] and report.counts["opened"]


def test_what_is_lost_repeated_or_reordered_is_found() -> None:
    good = [(at, at, payload_of(at)) for at in range(10)]
    notes = [[CONNECTED, OPENED, 0, 1, 2], [CONNECTED], [CONNECTED, OPENED, 4, 5]]
    assert judge(good, notes) == []
    assert judge(good[:5], notes), "lost at the end"
    assert judge(good[:3] + good[4:], notes), "lost in the middle"
    assert judge(good[:3] + good[2:], notes), "repeated"
    assert judge([good[1], good[0], *good[2:]], notes), "reordered"
    assert judge([*good[:9], (9, 9, b"other")], notes), "other bytes"
    assert judge(good, [*notes, [CONNECTED, OPENED, 5]]), "acknowledged twice"
    assert judge(good, [[CONNECTED, OPENED, 1, 0]]), "acknowledged out of order"
