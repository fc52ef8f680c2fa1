"""Rigs in small, on real processes: `./dev torture RIG=name` does more of each, for longer."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fastbk.stream.janitor import JanitorOptions
from fastbk.testing import LocalCluster
from tests.fixtures import released
from tests.live.torture import Torture
from tests.rigs import (
    durable,
    mounts,
    outage,
    pipelines,
    producers,
    rolling,
    shutdown,
    spark_kills,
    strangers,
    takeovers,
    upgrade,
    visibility,
)
from tests.rigs.report import Plan, Report
from tests.rigs.rolling import judge, roll
from tests.rigs.rolling_writers import Round
from tests.rigs.takeovers import CONNECTED, OPENED, payload_of

ROUNDS = 6


@pytest.mark.timeout(300)
def test_no_append_fails_while_zookeeper_is_away(tmp_path: Path, rng: random.Random) -> None:
    """S13: ZooKeeper goes away for longer than a session under writers and readers of streams."""
    report = outage.run(Plan(rng.getrandbits(30), 0, 10.0, tmp_path))
    assert report.losses == []
    assert report.cases == 2 and report.counts["segments"] > 4
    assert report.counts["cut_appends"] and report.counts["killed_appends"]


@pytest.mark.parametrize("bookies", [3, pytest.param(5, marks=pytest.mark.long)])
async def test_a_rolling_restart_leaves_no_copy_missing(
    bookies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with LocalCluster(bookies) as cluster:
        life = Round(cluster.metadata_uri, bookies, random.Random(bookies))
        await roll(cluster, life, range(3))
        assert life.counts["restarts"] == 3
        assert await judge(cluster, life) == []
        # A bookie that does not come back is a loss, not an endless wait.
        monkeypatch.setattr(rolling, "BACK_S", 0.0)
        await cluster.stop_bookie_async(1)
        (missing,) = await judge(cluster, life)
        assert missing.endswith(f": {cluster.bookies[1].name}")


async def test_kills_and_partitions_lose_and_alter_nothing(tmp_path: Path, seed: int) -> None:
    """The rig `live`."""
    torture = Torture(tmp_path, seed, ROUNDS)
    report = await torture.run()
    assert report.is_good, report.violations[:10]
    assert report.counts["fault"] == ROUNDS
    # It was a test only if something was written, taken over and read.
    assert report.counts["added"] > 100
    assert report.counts["opened"] > 0
    assert report.counts["read"] >= report.counts["added"]


@pytest.mark.timeout(300)
def test_readers_see_what_writers_left_that_failed(
    tmp_path: Path, rng: random.Random, cluster: LocalCluster
) -> None:
    """The rig `visibility`: INV-S17, INV-S18, with a janitor that waits less than by default."""
    manners = len(visibility.MANNERS)
    plan = Plan(rng.getrandbits(30), manners, 120.0, tmp_path)
    hasty = JanitorOptions(left_check_s=1.0, left_after_s=2 * visibility.BLOCKED_S)
    report = visibility.run(plan, cluster.metadata_uri, hasty)
    assert report.losses == []
    assert report.cases >= manners and report.counts["acknowledged"] >= manners - 1
    assert report.counts["failed"] == 0


def test_the_judge_of_visibility_finds_what_is_lost_or_late() -> None:
    second = 10**9
    for arrivals, is_good in (
        ([second], True),
        ([], False),
        ([62 * second], False),
    ):
        report = Report("visibility")
        case = visibility.Case(0, "exit", 0.0)
        visibility.judge([visibility.Seen(case, [second], 0, arrivals)], report)
        assert report.is_good is is_good


def test_writers_that_are_killed_lose_and_repeat_nothing(
    tmp_path: Path, rng: random.Random, cluster: LocalCluster
) -> None:
    """The rig `takeovers`: INV-S1, INV-S3, INV-S6."""
    report = takeovers.run(Plan(rng.getrandbits(30), 5, 60.0, tmp_path), cluster.metadata_uri)
    assert report.losses == []
    assert report.counts["acknowledged"] and report.counts["opened"]


@pytest.mark.timeout(300)
def test_pipelines_that_are_killed_lose_and_repeat_nothing(
    tmp_path: Path, rng: random.Random, cluster: LocalCluster
) -> None:
    """The rig `pipeline`: INV-S44, INV-S45, INV-S46."""
    report = pipelines.run(Plan(rng.getrandbits(30), 6, 60.0, tmp_path), cluster.metadata_uri)
    assert report.losses == []
    assert report.counts["outputs"] and report.counts["opened"]


def test_outputs_that_are_lost_repeated_or_reordered_are_found() -> None:
    numbers = [number for number in range(40) if number % 7]
    one = [pipelines.payload_of("orders", number) + b"%8d" % number for number in numbers]
    good = [
        pipelines.payload_of("orders", number)
        for number in range(40)
        if "good" in pipelines.sinks_of(number)
    ]
    counts = {"orders": 40}
    assert pipelines.judge({"all": one, "good": good}, counts) == []
    for sink, outputs in (("all", one), ("good", good)):
        assert pipelines.judge({sink: outputs[:-1]}, counts), "lost at the end"
        assert pipelines.judge({sink: outputs[:3] + outputs[4:]}, counts), "lost in the middle"
        assert pipelines.judge({sink: outputs[:3] + outputs[2:]}, counts), "repeated"
        assert pipelines.judge({sink: [outputs[1], outputs[0], *outputs[2:]]}, counts), "reordered"
        assert pipelines.judge({sink: [*outputs[:-1], outputs[-1] + b"?"]}, counts), "other bytes"


def test_producers_lose_and_repeat_nothing_while_all_under_them_fails(
    tmp_path: Path, rng: random.Random
) -> None:
    """The rig `producers`: INV-S23 to INV-S27, INV-S31, INV-S32."""
    report = producers.run(Plan(rng.getrandbits(30), 4, 120.0, tmp_path))
    assert report.losses == []
    assert report.cases == 4 and report.counts["names"] == 16


def test_what_a_producer_lost_repeated_or_reordered_is_found() -> None:
    def judged(*numbers: int) -> producers.Judge:
        judge = producers.Judge()
        for number in numbers:
            judge.take(producers.payload_of("a", number))
        return judge

    good = judged(0, 1, 2)
    assert good.wrong == [] and good.missing({"a": 2}) == []
    assert good.missing({"a": 3}) and good.missing({"b": 0}), "lost at the end"
    for numbers in ((0, 2), (0, 1, 1), (1, 0)):
        assert judged(*numbers).wrong, numbers
    other = producers.Judge()
    other.take(producers.payload_of("a", 0) + b"?")
    assert other.wrong, "other bytes"


def test_what_is_lost_repeated_or_reordered_is_found() -> None:
    good = [(at, at, payload_of(at)) for at in range(10)]
    notes = [[CONNECTED, OPENED, 0, 1, 2], [CONNECTED], [CONNECTED, OPENED, 4, 5]]
    assert takeovers.judge(good, notes) == []
    assert takeovers.judge(good[:5], notes), "lost at the end"
    assert takeovers.judge(good[:3] + good[4:], notes), "lost in the middle"
    assert takeovers.judge(good[:3] + good[2:], notes), "repeated"
    assert takeovers.judge([good[1], good[0], *good[2:]], notes), "reordered"
    assert takeovers.judge([*good[:9], (9, 9, b"other")], notes), "other bytes"
    assert takeovers.judge(good, [*notes, [CONNECTED, OPENED, 5]]), "acknowledged twice"
    assert takeovers.judge(good, [[CONNECTED, OPENED, 1, 0]]), "acknowledged out of order"


def test_a_whole_cluster_cut_off_loses_nothing(seed: int, tmp_path: Path) -> None:
    if reason := mounts.why_not():
        pytest.skip(reason)
    report = shutdown.run(Plan(seed, 1, 600.0, tmp_path))
    assert report.is_good, report.losses[:5]
    assert report.cases == 1
    assert report.counts["entries"] >= shutdown.ACKS_MIN


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("metadata", ["sqlite", "zookeeper"])
def test_a_roll_to_this_version_and_back_loses_nothing(
    tmp_path: Path, rng: random.Random, metadata: str
) -> None:
    """INV-U3: the rig `roll`."""
    if reason := released.why_not():
        pytest.skip(reason)
    report = upgrade.run(Plan(rng.getrandbits(30), 1, 600.0, tmp_path, metadata=metadata))
    assert report.losses == [] and report.skipped == ""
    assert report.cases == 1 and report.counts["restarts"] == 2 * upgrade.BOOKIES
    assert report.counts["entries"] and report.counts["records"]
    assert len(report.notes) == 4


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("only", ["steps|zombie|executor", "orphan", "bookie", "metadata"])
def test_queries_that_are_killed_write_each_record_once(
    tmp_path: Path, rng: random.Random, only: str
) -> None:
    """INV-S13."""
    report = spark_kills.run(Plan(rng.getrandbits(30), 3, 600.0, tmp_path, only=only))
    assert report.losses == []
    assert report.cases >= 3 and report.counts["records"] > 0


def test_no_stranger_ends_a_bookie(tmp_path: Path, rng: random.Random) -> None:
    """The rig `strangers`: INV-N5. `./dev torture RIG=strangers CASES=1000000` is the whole of it."""
    report = strangers.run(Plan(rng.getrandbits(30), 3000, 60.0, tmp_path))
    assert report.losses == [], report.notes
    assert report.counts["handshakes"] >= 100
    assert report.counts["certificates"] and report.counts["answers"] and report.counts["honest"]


@pytest.mark.long
def test_what_is_durable_in_two_racks_outlives_one(tmp_path: Path, seed: int) -> None:
    """The rig `durable`: INV-Q5, INV-P5; and that it finds appends that were acknowledged in one."""
    report = durable.run(Plan(seed, 5, 600.0, tmp_path))
    assert report.losses == [] and report.cases == 5
    assert report.counts["acknowledged"] > 1000
    plan = Plan(seed, 30, 600.0, tmp_path)
    assert not durable.run(plan, "acknowledges-in-one-rack").is_good
