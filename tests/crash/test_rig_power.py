"""The rig `power` in small: images of a real file system after power cuts, and writers that it has to catch."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.rigs import mounts, power_cut
from tests.rigs.block_log import FLUSH, MODELS, WRITE, BlockLog, Images, header
from tests.rigs.report import Plan, Report

IMAGES = 12
IMAGES_OF_A_LIAR = 10


@pytest.fixture
def _needs_fuse() -> None:
    reason = mounts.why_not_fuse()
    if reason:
        pytest.skip(reason)


def run(seed: int, tmp_path: Path, cases: int = IMAGES, **how: bool) -> Report:
    return power_cut.run(Plan(seed, cases, 600.0, tmp_path), **how)


@pytest.mark.usefixtures("_needs_fuse")
@pytest.mark.parametrize("kind", [0, 1])
def test_power_cuts_lose_nothing(kind: int, seed: int, tmp_path: Path) -> None:
    # not a real bookie: that takes long
    report = run(2 * (3 * (seed % 10_000) + 1) + kind, tmp_path)
    assert report.is_good, report.losses[:5]
    assert report.counts[power_cut.KINDS[kind]] == IMAGES
    assert report.counts["un-flushed"] > 0


@pytest.mark.usefixtures("_needs_fuse")
def test_a_writer_that_does_not_sync_is_caught(tmp_path: Path) -> None:
    assert not run(2, tmp_path, IMAGES_OF_A_LIAR, unsynced=True).is_good


@pytest.mark.usefixtures("_needs_fuse")
def test_a_device_that_does_not_flush_is_caught(tmp_path: Path) -> None:
    assert not run(2, tmp_path, IMAGES_OF_A_LIAR, honours_flushes=False).is_good


@pytest.fixture
def images(tmp_path: Path) -> Images:
    """A device of four sectors: 'a' is durable everywhere, then 'b' twice and 'c' once on sector 1, 'd' on sector 2."""
    events = [
        (0, b"a" * 2048),
        None,
        (512, b"b" * 512),
        (512, b"c" * 512),
        (1024, b"d" * 512),
        None,
    ]
    log = tmp_path / "log"
    log.write_bytes(
        b"".join(
            header(FLUSH, 0, 0)
            if event is None
            else header(WRITE, event[0], len(event[1])) + event[1]
            for event in events
        )
    )
    base = tmp_path / "base"
    base.write_bytes(bytes(2048))
    found = BlockLog(log)
    assert len(found.events) == len(events)
    assert found.index_of(found.events[2].end) == 3
    assert found.index_of(found.events[2].end - 1) == 2
    return Images(base, found, tmp_path)


@pytest.mark.parametrize(
    ("model", "cut", "possible"),
    [
        ("lost", 1, {"...."}),
        ("lost", 5, {"aaaa"}),
        ("lost", 6, {"acda"}),
        ("random", 3, {"aaaa", "abaa"}),
        ("random", 5, {"aaaa", "abaa", "acaa", "aada", "abda", "acda"}),
        ("reordered", 4, {"aaaa", "abaa", "acaa"}),
    ],
)
def test_images_hold_what_a_cut_may_leave(
    images: Images, model: str, cut: int, possible: set[str]
) -> None:
    assert model in MODELS
    rng = random.Random(1)
    found = set()
    for _ in range(60):
        path = images.image(cut, model, rng)
        data = path.read_bytes()
        found.add("".join(chr(data[at]) if data[at] else "." for at in range(0, 2048, 512)))
    assert found == possible
