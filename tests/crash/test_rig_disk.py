"""The rig `disk` in small: thousands of crashes lose nothing, and it notices when something is lost.

The rig `flips`: one turned bit anywhere in a bookie's files is told, refused or harmless; never a wrong byte, never a
wrong "no".
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from fastbk.native.disk import Disk
from fastbk.storage.checkpoint import Checkpoint
from tests.fixtures.fake_disk import FOREVER, FakeDisk
from tests.fixtures.storage_harness import Life
from tests.rigs import fake_disk
from tests.rigs.flips import flip_case, image
from tests.rigs.judge import Found, Known, judge
from tests.rigs.report import Plan, Report

pytestmark = pytest.mark.no_service

CASES = 800
CASES_OF_A_FAULT = 400
FLIPS = 60 if os.environ.get("FASTBK_TIER", "fast") == "fast" else 120


def run(seed: int, cases: int) -> Report:
    return fake_disk.run(Plan(seed % (1 << 30), cases, 600.0, Path()))


def test_crashes_at_every_moment_lose_nothing(seed: int) -> None:
    report = run(seed, CASES)
    assert report.is_good, report.losses[:5]
    assert report.cases >= CASES
    assert report.counts["whole"] > CASES // 50
    assert report.counts["moments"] > CASES // 5


def test_a_disk_that_lies_about_syncs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = FakeDisk.take_snapshots

    def lying(self: FakeDisk, *arguments: object) -> None:
        self.fault("lie", times=FOREVER)
        real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(FakeDisk, "take_snapshots", lying)
    assert run(1, CASES_OF_A_FAULT).losses_count > 10


def test_acks_before_the_write_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Life, "unsynced", True)
    report = run(2, CASES_OF_A_FAULT)
    assert any("acknowledged, and not there" in loss for loss in report.losses)


def test_a_mark_too_far_ahead_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Checkpoint.run
    monkeypatch.setattr(
        Checkpoint,
        "run",
        lambda self, store, items, mark, **more: real(self, store, items, mark + 2, **more),
    )
    assert not run(3, CASES_OF_A_FAULT).is_good


def test_a_cut_into_the_last_batch_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_disk, "ADOPTING_SHARE", 1.0)
    monkeypatch.setattr(fake_disk, "SETTLES_A_ROLL", (3,))
    real = Disk.cut
    monkeypatch.setattr(
        Disk, "cut", lambda self, path, size_bytes: real(self, path, size_bytes - 2 * 4096)
    )
    assert not run(4, CASES_OF_A_FAULT).is_good


KNOWN = Known(
    acked={(1, 0): b"a", (1, 1): b"b", (2, 0): b"c", (3, 0): b"d"},
    sent={(1, 0): [b"a"], (1, 1): [b"b", b"x"], (2, 0): [b"c"], (3, 0): [b"d"], (4, 0): [b"e"]},
    fenced={5, 6},
    deleted={2, 6},
    damaged={(3, 0)},
)
GOOD = {(1, 0): b"a", (1, 1): b"b", (3, 0): b"d", (4, 0): b"e"}


@pytest.mark.parametrize(
    ("found", "losses"),
    [
        (Found(GOOD, fenced={5}), []),
        (Found({key: GOOD[key] for key in GOOD if key != (3, 0)}, {(3, 0)}, {5}), []),
        (Found({key: GOOD[key] for key in GOOD if key != (3, 0)}, set(), {5}), ["not there"]),
        (Found({key: GOOD[key] for key in GOOD if key != (1, 0)}, {(1, 0)}, {5}), ["unknown"]),
        (Found({**GOOD, (1, 1): b"x"}, fenced={5}), ["other bytes"]),
        (Found({**GOOD, (3, 0): b"z"}, fenced={5}), ["other bytes", "nobody sent"]),
        (Found({**GOOD, (4, 0): b"z"}, fenced={5}), ["nobody sent"]),
        (Found({**GOOD, (9, 0): b"z"}, fenced={5}), ["nobody sent"]),
        (Found(GOOD), ["takes adds"]),
        (Found(GOOD, fenced={5}, complaints=["x"]), ["damage where there is none"]),
    ],
)
def test_the_judge(found: Found, losses: list[str]) -> None:
    wrong = judge(KNOWN, found)
    assert len(wrong) == len(losses)
    for line, part in zip(wrong, losses, strict=True):
        assert part in line


def test_every_kind_of_file_has_its_turn() -> None:
    assert {"log", "loc", "journal", "manifest", "json", "ids", "unclean"} <= set(image(0).files)


def test_a_turned_bit_is_told_refused_or_harmless(rng: random.Random) -> None:
    first = rng.randrange(1 << 40)
    outcomes: Counter[str] = Counter()
    for seed in range(first, first + FLIPS):
        flip = flip_case(seed)
        assert not flip.losses, (seed, flip)
        outcomes[flip.outcome] += 1
    assert outcomes["told"] > 2, outcomes
    assert outcomes["refused"] > 2, outcomes
