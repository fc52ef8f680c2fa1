"""The judge of rig `spark` bites, its plan has every step, and a kill happens at its step and at no other."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.rigs.spark_kills import Tally, judge, payload_of, rounds, table
from tests.rigs.spark_points import EXECUTORS, STEPS, ZOMBIES, Kill, Kills

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


def test_fifty_kills_have_every_step_of_every_kind() -> None:
    kills: list[Kill] = []
    for life in rounds(random.Random(3)):
        kills += life.kills
        if len(kills) >= 50:
            break
    wanted = {Kill(who, step) for who in ("alone", "driver") for step in STEPS}
    wanted |= {Kill("zombie", step) for step in ZOMBIES}
    wanted |= {Kill("executor", step) for step in EXECUTORS}
    assert len(kills) == len(set(kills)) == 50
    assert set(kills) == wanted
    first, second = (list(islice(rounds(random.Random(seed)), 9)) for seed in (3, 4))
    assert first != second


def test_only_the_last_kill_of_a_life_takes_the_driver() -> None:
    for life in islice(rounds(random.Random(3)), 30):
        assert all(kill.who in ("alone", "executor") for kill in life.kills[:-1])


def test_what_was_not_reached_is_said() -> None:
    one, two = ("commit.attach_drafts", "after"), ("task.close", "before")
    lines = table({("driver", one): Tally(2, 1), ("zombie", two): Tally(1, 0, twice=3)})
    assert "1/2" in next(line for line in lines if line.startswith("after commit.attach_drafts"))
    assert lines[-1] == "not reached: zombie before task.close"


def test_kills_are_told_as_they_were_said(tmp_path: Path) -> None:
    kills = Kills(tmp_path, (Kill("alone", STEPS[0]), Kill("driver", STEPS[1])), 7)
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
