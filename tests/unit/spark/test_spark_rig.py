"""The judge of rig `spark` bites, and a kill happens at its pass and at no other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.rigs.spark_kills import judge, payload_of
from tests.rigs.spark_query import Kill


def test_what_is_lost_repeated_or_made_up_is_found() -> None:
    good = [payload_of(at) for at in range(10)]
    assert judge(good, 10) == []
    assert judge(good[::-1], 10) == [], "the order between partitions is not its matter"
    assert judge(good[:-1], 10) == ["1 of 10 records are lost"]
    assert judge([*good, good[3]], 10) == ["1 records are there again"]
    assert judge([*good, b"other"], 10) == ["1 records are nobody's"]


def test_a_kill_is_told_as_it_was_said(tmp_path: Path) -> None:
    kill = Kill("worker", "drafts", "after", 2, tmp_path, 7)
    assert Kill.of(kill.text(), 7) == kill


def test_a_process_dies_at_the_pass_that_was_said(tmp_path: Path) -> None:
    kill = Kill("worker", "drafts", "after", 2, tmp_path)
    program = (
        "import sys; from tests.rigs.spark_query import Kill, Wrapped\n"
        "class Stream:\n"
        "    def drafts(self): print('drafts', flush=True)\n"
        "    def attach(self): print('attach', flush=True)\n"
        "stream = Wrapped(Stream(), Kill.of(sys.argv[1], 0))\n"
        "for _ in range(4): stream.attach(); stream.drafts()\n"
    )
    command = [sys.executable, "-c", program, kill.text()]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=60)
    assert done.returncode == -9, done.stderr
    assert done.stdout.split() == ["attach", "drafts"] * 3
