"""A process dies at a named point, under load (`tests/rigs/kill_points.py`): one of each, all in the soak, and
deaths within the recoveries from deaths.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from pathlib import Path

import pytest

import fastbk
from fastbk.testing import LocalCluster
from tests.fixtures.wait import wait_until_async
from tests.rigs import kill_points
from tests.rigs import points as points_rig
from tests.rigs.kill_points import (
    HAPPENS_S,
    ONCE,
    SETTINGS,
    World,
    all_points,
    check,
    fence_some,
    is_written,
    points,
    run_point,
    spawn_armed,
    until_served,
    write_endlessly,
)
from tests.rigs.report import Plan

NUMBERS = (1, 2, 3, 10, 30, 400)
# Passed with every batch or received buffer.
HOT = re.compile(r"(worker\.|journal\.(after|before_publish)|index\.(take_middle|after_take)$)")
# Passed a few times a second at most.
RARE = re.compile(
    r"(gc\.|index\.(delete|merge|before_unlink|after_unlink|journal_files_free)|journal\.(roll|recycle|prewrite))"
)
# Passed when logs have lost enough of what lived in them.
SELDOM = re.compile(r"index\.(compact|recount)_")
# Passed at each start, in this order: as long as nothing is committed all of the first have something to do.
BEFORE_COMMIT = (
    "index.replay_batch",
    "index.replay_before_flush",
    "index.flush_after_runs",
    "index.flush_after_log_sync",
    "index.flush_before_locations_sync",
    "index.flush_after_locations",
    "index.manifest_before_commit",
)
FROM_COMMIT_ON = (
    "index.manifest_before_sync",
    "index.manifest_before_mirror",
    "index.manifest_after_mirror",
    "index.flush_before_install",
    "index.flush_before_mark",
    "index.replay_before_states",
    "index.replay_after_states",
    "journal.roll_after_headers",
    "journal.before_ready",
    "index.before_ready",
    "supervisor.before_ready",
)


def numbers(point: str) -> tuple[int, ...]:
    """At which passes to die."""
    if ONCE.match(point):
        return (1,)
    if point.startswith("supervisor.") or point == "index.replay_batch":
        return NUMBERS[:3]
    if point.startswith("journal.prewrite"):
        # in the steady state files are recycled: how many are made hangs on timing
        return NUMBERS[:1]
    if SELDOM.match(point):
        return NUMBERS[:2]
    if RARE.match(point):
        return NUMBERS[:4]
    return NUMBERS if HOT.match(point) else NUMBERS[:5]


@pytest.mark.timeout(200)  # a busy machine may be long in coming to the point
@pytest.mark.parametrize("process", kill_points.PROCESSES)
async def test_a_point_of_each_process(process: str, rng: random.Random) -> None:
    point = rng.choice([one for one in points() if one.startswith(f"{process}.")])
    # The latest pass of each is left to the soak: on a slow machine it may be long in coming.
    number = rng.choice(numbers(point)[:-1] or (1,))
    print(f"point {point}:{number}")
    async with LocalCluster(1, settings=points_rig.settings_for(point)) as cluster:
        await run_point(cluster, point, number, rng, points_rig.PATIENCE_S)


@pytest.mark.soak
@pytest.mark.timeout(600)  # five cases, each as patient as the rig
@pytest.mark.parametrize("point", points())
async def test_every_point(point: str, rng: random.Random) -> None:
    async with LocalCluster(1, settings=points_rig.settings_for(point)) as cluster:
        for number in numbers(point):
            started_s = time.monotonic()
            await run_point(cluster, point, number, rng, points_rig.PATIENCE_S)
            print(f"{point}:{number} took {time.monotonic() - started_s:.1f} s")


async def test_deaths_within_recoveries_from_deaths(rng: random.Random) -> None:
    async with LocalCluster(1, settings=SETTINGS) as cluster:
        world = World()
        async with (
            fastbk.connect(cluster.metadata_uri, append_timeout=60.0) as client,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(write_endlessly(world, client, 64, 20_000))
            group.create_task(write_endlessly(world, client, 4, 500))
            group.create_task(fence_some(world, cluster, client))
            await wait_until_async(lambda: sum(world.acknowledged.values()) > 5000, "some load")
            await cluster.kill_async(0)
            plan = [p for p in BEFORE_COMMIT if rng.random() < 0.6]
            plan += [p for p in FROM_COMMIT_ON if rng.random() < 0.4]
            print(plan)
            for turn, point in enumerate(plan):
                died = cluster.data / f"died-{turn}"
                spawn_armed(cluster, point, 1, died)
                await wait_until_async(
                    lambda died=died: is_written(died), f"{turn}: {point} was passed", HAPPENS_S
                )
                # Before anything of it has healed.
                await asyncio.to_thread(kill_supervisor, cluster)
            await cluster.start_bookie_async(0)
            await until_served(world)
            world.stop.set()
        assert world.fenced
        await check(world, cluster)


def kill_supervisor(cluster: LocalCluster) -> None:
    bookie = cluster.bookies[0]
    bookie.refresh()
    if "supervisor" in bookie.pids and bookie.is_running:
        bookie.kill()
    else:
        bookie.wait_gone()


def test_there_are_points_in_every_process() -> None:
    assert len(points()) >= 40
    assert {name.partition(".")[0] for name in points()} == set(kill_points.PROCESSES)
    # Each of these is killed, or cut off at every operation, by a test of its own.
    assert {name.partition(".")[0] for name in set(all_points()) - set(points())} <= {
        "expand",
        "import",
        "move",
        "rebirth",
        "rebuild",
        "unadopt",
        "unclean",
    }


def test_the_rig_resumes_and_sums_up(tmp_path: Path) -> None:
    case = points_rig.cases()[0]
    plan = Plan(1, 1, 0.0, tmp_path, is_resumed=True)
    points_rig.write_done(plan, case, points_rig.REACHED, 1.0)
    points_rig.write_done(plan, ("index.after_take", 9), points_rig.UNREACHED, 1.0)
    points_rig.write_done(plan, ("index.after_take", 8), points_rig.UNREACHED, 1.0)
    points_rig.write_done(plan, ("index.after_take", 8), points_rig.LOST, 1.0)
    report = points_rig.run(plan)
    assert report.cases == 0, "no time was given"
    notes = points_rig.sum_up(plan)
    assert "reached 1, lost 1," in notes[0]
    assert "journal.before_ready" in notes[1]
    assert notes[2:] == ["lost: index.after_take:8", "not reached: index.after_take:9"]
    assert report.notes == [*notes[:3]], "what was not reached is to be tried again"
    assert (
        json.loads((tmp_path / points_rig.DONE_NAME).read_text().splitlines()[0])["point"]
        == case[0]
    )
    assert len(points_rig.cases()) > 600
