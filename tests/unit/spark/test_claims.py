"""One run at a time in a place: races of real processes, owners that are killed, places that are taken over."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
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


@pytest.mark.slow
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


def test_a_number_is_not_used_again_while_its_run_may_still_write(files: LocalFiles) -> None:
    """Also where the run that took the place over has left nothing of a higher number."""
    with claimed(files, lambda: 0) as first:
        with claimed(files, lambda: 0, take_over=True) as second:
            assert (first.number, second.number) == (1, 2)
        for _ in range(2):
            with claimed(files, lambda: 0) as third:
                assert third.number == 2
                with pytest.raises(StorageError, match="run 1 does not count"):
                    first.check()
    with claimed(files, lambda: 0) as fourth:
        assert fourth.number == 2
    # As soon as something of a higher number is there, nothing else has to say so.
    left = iter([0, 0, 2])
    with claimed(files, lambda: next(left)):
        pass
    assert files.names() == []


def test_an_owner_whose_spark_is_not_gone_is_not_dead(files: LocalFiles) -> None:
    """Spark's process ends a moment after the one that started it was killed, and writes what it was told."""
    spark = subprocess.Popen(["sleep", "300"])
    try:
        of_spark = Path(f"/proc/{spark.pid}/stat").read_text().rpartition(")")[2].split()[19]
        gone = replace(Owner.this(), pid=1 << 22, java=spark.pid, java_started=of_spark)
        assert files.create("run=000001", gone.text())
        with pytest.raises(ConfigError, match="run 1 of process"):
            claimed(files, lambda: 0).__enter__()
    finally:
        spark.kill()
        spark.wait()
    with claimed(files, lambda: 0) as claim:
        assert claim.number == 2


class LastWins(LocalFiles):
    """A store as there are some: a file that is there is replaced, and nobody is told."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.meanwhile: list[str] = []

    def create(self, name: str, text: str) -> bool:
        """As Files says, without its promise; then what another client writes."""
        for one in (text, *self.meanwhile):
            self.delete(name)
            assert super().create(name, one)
        self.meanwhile = []
        return True


def test_where_creation_is_not_exclusive_the_later_claim_counts(tmp_path: Path) -> None:
    files = LastWins(tmp_path / "claims")
    other = Owner("process 1 on elsewhere", "another machine", 1, "5", "then").text()
    files.meanwhile = [other]
    with pytest.raises(ConfigError, match="run 1 of process 1 on elsewhere"):
        claimed(files, lambda: 0).__enter__()
    files.delete("run=000001")
    with ExitStack() as stack:
        claim = stack.enter_context(claimed(files, lambda: 0))
        files.create("run=000001", other)  # after this one has looked
        with pytest.raises(StorageError, match="run 1 does not count"):
            claim.check()
    assert files.read("run=000001") == other
