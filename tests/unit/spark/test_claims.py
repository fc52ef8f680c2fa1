"""One run at a time in a place: races of real processes, owners that are killed, places that are taken over."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fastbk.errors import ConfigError, StorageError
from fastbk.spark.jobs.claims import LocalFiles, Owner, claimed

ROOT = Path(__file__).parents[3]
HAVE = (
    "import sys\n"
    "from pathlib import Path\n"
    "from fastbk.errors import ConfigError\n"
    "from fastbk.spark.jobs.claims import LocalFiles, claimed\n"
    "print('ready', flush=True); sys.stdin.readline()\n"
    "try:\n"
    "    with claimed(LocalFiles(Path(sys.argv[1])), lambda: 0) as claim:\n"
    "        print(claim.number, flush=True); sys.stdin.readline()\n"
    "except ConfigError:\n"
    "    print('refused', flush=True)\n"
)


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    return LocalFiles(tmp_path / "claims")


def start(tmp_path: Path) -> subprocess.Popen[str]:
    """Return a process that will claim as soon as it is told a line, and end at the next."""
    process = subprocess.Popen(
        [sys.executable, "-c", HAVE, str(tmp_path / "claims")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.communicate("\n", timeout=60)


def test_whoever_is_second_is_refused_and_numbers_are_never_used_again(files: LocalFiles) -> None:
    with claimed(files, lambda: 6) as claim:
        assert claim.number == 7
        claim.check()
        with (
            pytest.raises(ConfigError, match=r"run 7 of process \d+ on .* --take-over"),
            claimed(files, lambda: 6),
        ):
            pass
        claim.check()
    assert files.names() == []
    with pytest.raises(ZeroDivisionError), claimed(files, lambda: 7):
        1 / 0  # noqa: B018 -- a run that fails
    assert files.names() == []


def test_of_many_that_begin_together_one_has_the_place(tmp_path: Path) -> None:
    processes = [start(tmp_path) for _ in range(6)]
    try:
        for one in processes:
            go(one)
        heard = [said(one) for one in processes]
        assert sorted(heard) == ["1", *["refused"] * 5]
    finally:
        for one in processes:
            end(one)
    assert LocalFiles(tmp_path / "claims").names() == []


def test_a_dead_owner_is_passed_by(files: LocalFiles, tmp_path: Path) -> None:
    process = start(tmp_path)
    go(process)
    assert said(process) == "1"
    process.send_signal(signal.SIGKILL)
    # Not waited for: a process of which only its exit code is left is dead, too.
    while not Owner.of(files.read("run=000001") or "").is_dead:
        assert process.poll() in (None, -signal.SIGKILL)
    with claimed(files, lambda: 0) as claim:
        assert claim.number == 2 and files.names() == ["run=000002"]
    end(process)


def test_of_an_owner_on_another_machine_nothing_is_known(files: LocalFiles) -> None:
    other = Owner("process 1 on elsewhere", "another machine", 1, "5", "then")
    for text in (other.text(), ""):
        assert files.create("run=000004", text)
        with pytest.raises(ConfigError, match=r"run 4 of (process 1 on elsewhere|somebody)"):
            claimed(files, lambda: 0).__enter__()
        with claimed(files, lambda: 0, take_over=True) as claim:
            assert claim.number == 5 and files.names() == ["run=000005"]


def test_a_run_whose_place_was_taken_over_is_told_so(files: LocalFiles) -> None:
    with claimed(files, lambda: 0) as first, claimed(files, lambda: 0, take_over=True) as second:
        with pytest.raises(StorageError, match="run 1 does not count"):
            first.check()
        second.check()


def test_a_run_that_came_and_went_meanwhile_keeps_its_number(files: LocalFiles) -> None:
    answers = iter([0, 1, 1, 1])
    with claimed(files, lambda: next(answers)) as claim:
        assert claim.number == 2 and files.names() == ["run=000002"]
