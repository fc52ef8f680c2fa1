"""The judge of rig `spark` bites, its plan has every step, and a kill happens at its step and at no other."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from fastbk.meta.records import Change
from tests.rigs.spark_kills import KINDS, Tally, judge, payload_of, table
from tests.rigs.spark_lives import AWAY_S_MAX, FAMILIES, Life, rounds
from tests.rigs.spark_points import (
    BOOKIES,
    EXECUTORS,
    HEIRS,
    METADATA,
    ORPHANS,
    STEPS,
    ZOMBIES,
    Kill,
    Kills,
    name_of,
)
from tools.torture import RIGS

pytest.importorskip("pyspark")
ROOT = Path(__file__).parents[3]
PROGRAM = (
    "import sys; from tests.rigs.spark_points import Kills, Wrapped\n"
    "class Stream:\n"
    "    def drafts(self): print('drafts', flush=True)\n"
    "    def attach(self): print('attach', flush=True)\n"
    "stream = Wrapped(Stream(), Kills.of(sys.argv[1]), 'commit')\n"
    "stream.attach(); stream.drafts(); stream.attach()\n"
)


def test_what_is_lost_repeated_made_up_or_in_another_order_is_found() -> None:
    good = [payload_of(at) for at in range(5, 15)]
    assert judge(good, 5, 10) == (0, 0, [])
    assert judge(good[::-1], 5, 10) == (0, 0, ["the records are in another order"])
    assert judge(good[:-1], 5, 10) == (1, 0, ["1 of 10 records are lost"])
    assert judge([*good, good[3]], 5, 10) == (0, 1, ["1 records are there again"])
    assert judge([*good, b"other"], 5, 10) == (0, 0, ["1 records are nobody's"])
    assert judge([*good[1:], payload_of(3)], 5, 10)[0] == 1, "a record of an earlier life"


def lives_of(only: str, seed: int = 3) -> list[Life]:
    """Return the lives of the families that match, each once."""
    rng = random.Random(seed)
    count = sum(len(make(rng)) for name, make in FAMILIES.items() if re.search(only, name))
    return list(islice(rounds(random.Random(seed), only), count))


def test_every_step_of_every_kind_comes_once_before_any_comes_again() -> None:
    kills = [kill for life in lives_of("") for kill in life.kills]
    assert len(kills) == RIGS["spark"].cases
    steps = {kind: sorted(one.step for one in kills if one.kind == kind) for kind in KINDS}
    # One more, since only what an attempt that died has left is given up.
    assert steps.pop("alone") == sorted([*STEPS, ("task.close", "after")])
    assert steps == {
        "driver": sorted(STEPS),
        "zombie": sorted(ZOMBIES),
        "executor": sorted(EXECUTORS),
        "orphan": sorted(ORPHANS),
        "release": [],
        "bookie": sorted(BOOKIES),
        "metadata": sorted(METADATA),
    }
    assert lives_of("", 3) == lives_of("", 3) != lives_of("", 4)


def test_orphans_go_on_under_the_next_driver_of_their_cluster() -> None:
    lives = lives_of("orphan")
    assert {kill.step for life in lives for kill in life.heir} == set(HEIRS)
    assert all(life.workers == 2 and len(life.kills) == len(life.heir) == 1 for life in lives)
    assert all(not life.heir for life in lives_of("steps|zombie|executor|bookie|metadata"))


def test_what_a_query_stands_on_is_away_for_a_time_of_the_seed() -> None:
    kills = [kill for life in lives_of("bookie|metadata") for kill in life.kills if kill.service]
    assert all(0 <= kill.away_s <= AWAY_S_MAX for kill in kills)
    assert len({kill.away_s for kill in kills}) > len(kills) / 2
    # A driver that is dead sends no change that the server could die of.
    assert all(kill.who == "nobody" for kill in kills if kill.step[1] == "during")
    with pytest.raises(ValueError, match="nothing like it"):
        next(rounds(random.Random(3), "nothing like it"))


def test_a_change_of_a_commit_is_named_by_what_it_changes() -> None:
    chain, draft = (
        Change("streams/ab/abcd", b"chain", 3),
        Change("streams/ab/abcd/drafts/1~", None, 0),
    )
    assert name_of([chain]) == "take_over"
    assert name_of([chain, draft, draft]) == "attach"
    assert name_of([draft]) == "give_up"


def test_only_the_last_kill_of_a_life_takes_the_driver() -> None:
    for life in lives_of(""):
        assert all(kill.who in ("alone", "executor", "nobody") for kill in life.kills[:-1])


def test_what_was_not_reached_is_said() -> None:
    one, two = ("commit.attach_drafts", "after"), ("task.close", "before")
    lines = table({("driver", one): Tally(2, 1), ("zombie", two): Tally(1, 0, twice=3)})
    assert "1/2" in next(line for line in lines if line.startswith("after commit.attach_drafts"))
    assert lines[-1] == "not reached: zombie before task.close"


def test_kills_are_told_as_they_were_said(tmp_path: Path) -> None:
    kills = Kills(
        tmp_path, (Kill("alone", STEPS[0]), Kill("driver", STEPS[1], "bookie", 2, 1.5)), 7, 8
    )
    assert Kills.of(kills.text()) == kills
    assert json.loads(kills.text())["group"] == 7


def test_processes_die_at_their_steps_in_order_and_then_no_more(tmp_path: Path) -> None:
    steps = (("commit.drafts", "before"), ("commit.attach", "after"))
    kills = Kills(tmp_path, tuple(Kill("alone", step) for step in steps), 0)
    command = [sys.executable, "-c", PROGRAM, kills.text()]
    said = []
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
        said.append((done.returncode, done.stdout.split(), kills.happened()))
    assert said == [
        (-9, ["attach"], 1),
        (-9, ["attach"], 2),
        (0, ["attach", "drafts", "attach"], 2),
    ]
