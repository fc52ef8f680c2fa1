"""`python -m tests`: the tests by tiers. `./dev test` sets up and calls this.

FAST=1 runs those style, type, unit, property and native tests that are not `slow`; nothing set
runs all that CI runs; ALL=1 adds long, soak and performance tests. SEED=n repeats the random choices of an earlier run.
SERVICES=n runs so many tests that start services at once, instead of two. Any other arguments go to pytest, which then
runs once with just these.

A committed tree has one seed in the tiers below ALL, so that it is judged the same wherever it is tested, and each
change draws another; ALL=1 and runs of chosen tests draw a new one each time.

Three phases start at once. Tests that start services, with ports, folders and file systems of their own, run two at a
time: they wait much, for starts, leases and timeouts. Those of them that do little else are marked `waits`, and run one
after the other beside those two. Tests that share nothing run beside them all, one more at a time than there are
processors, with a lower priority, and so use the time in which those wait. The output of one phase is printed after
that of another. Tests that measure times run last, each alone.

Up to three tests that fail in a phase run once more when all these phases have ended, by themselves and with the same
SEED. One that passes then is reported as `unsteady` with both results on the page: it missed its deadline on a busy
machine, or it has a race. Mend it. One that fails again fails the run. A second try repeats the random choices of the
first.

Compiled modules are kept beside their sources, also where PYTHONDONTWRITEBYTECODE is set: several processes collect
tests, hundreds are started by them, and each would compile all that it imports anew. Before the phases start all that
is not compiled is, once and on all processors (compiling.py).

The last lines say how many seconds and how many processor minutes each phase took.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests import FAST_FOLDERS, SERVICE_FOLDERS

ROOT = Path(__file__).resolve().parent.parent

# Pytest's exit code for "no test ran": for us a failure, or else an empty run would pass.
EXIT_NO_TESTS = 5
EXIT_TESTS_FAILED = 1
SECOND_TRIES_MAX = 3
# A cluster alone is fifteen processes and more: a third test would only lengthen the waits of the other two.
SERVICES_AT_ONCE = 2
# Tests of services have deadlines. Beside them, the others get a tenth of a busy processor, and all of an idle one.
NICE_BESIDE_SERVICES = 10
POLL_S = 0.2


def tier() -> tuple[str, str]:
    """Return the tier's name and its marker expression."""
    if os.environ.get("ALL"):
        return "all", ""
    if os.environ.get("FAST"):
        return "fast", "not slow and not soak and not perf and not long"
    return "ci", "not soak and not perf and not long"


def seed() -> int:
    """Return the seed of this run, 0 to 2^32-1: that of the committed tree in the tiers below ALL, else a new one."""
    if tier()[0] != "all" and not sys.argv[1:]:
        command = ["git", "rev-parse", "--verify", "HEAD^{tree}"]
        try:
            named = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
            return int(named.stdout[:8], 16)
        except (OSError, subprocess.CalledProcessError, ValueError):
            pass  # no git, or no commit: an unpacked archive
    return secrets.randbelow(2**32)


def phases() -> list[tuple[str, list[str]]]:
    """Return the pytest runs of the chosen tier: a title and arguments. All but `alone` run at once."""
    name, markers = tier()
    both = f"({markers}) and " if markers else ""
    slowest = "--durations=30"
    beside = ["--dist", "worksteal", slowest, "-m"]
    # They wait, too, a sixth of their time: one more keeps all processors busy.
    processes = str((os.cpu_count() or 1) + 1)
    parallel = ("parallel", ["-n", processes, *beside, f"{both}not service"])
    # Each process reads all that it is given: the folders of services take ten seconds, mostly for nothing.
    if name == "fast":
        parallel[1].extend(f"tests/{folder}" for folder in FAST_FOLDERS)
        return [parallel]
    folders = [f"tests/{folder}" for folder in SERVICE_FOLDERS]
    others = sorted({*test_folders()} - {*SERVICE_FOLDERS})
    parallel[1].extend(f"tests/{one}" for one in others)
    parallel[1].extend(service_files("no_service"))
    waiting = service_files("waits")
    alone = service_files("alone", *(("soak", "perf") if name == "all" else ()))
    some = os.environ.get("SERVICES") or str(SERVICES_AT_ONCE)
    return [
        ("services", ["-n", some, *beside, f"{both}service and not waits and not alone", *folders]),
        ("waiting", [slowest, "-m", f"{both}service and waits and not alone", *waiting]),
        parallel,
        ("alone", [slowest, "-m", f"{both}service and alone", *alone]),
    ]


def test_folders() -> list[str]:
    """Return the names of all folders of tests."""
    places = (ROOT / "tests").iterdir()
    return sorted(one.name for one in places if one.is_dir() and one.name[0] != "_")


def service_files(*markers: str) -> list[str]:
    """Return the files in the folders of services that mention any of these markers."""
    return [
        str(path.relative_to(ROOT))
        for folder in SERVICE_FOLDERS
        for path in sorted((ROOT / "tests" / folder).rglob("test_*.py"))
        if any(f"mark.{one}" in path.read_text("utf-8") for one in markers)
    ]


def environment_of_tests() -> dict[str, str]:
    """Return this process's environment, in which compiled modules are kept."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    # Or each process imports Trio, which came with another package and has a plugin.
    return {**kept, "HYPOTHESIS_NO_PLUGINS": "1"}


def compile_all(folders: Sequence[str]) -> None:
    """Compile the product and these folders of tests, on all processors, where that is not done yet."""
    parts = os.cpu_count() or 1
    command = [sys.executable, "-m", "tests.compiling"]
    environment = environment_of_tests()
    running = [
        subprocess.Popen([*command, str(part), str(parts), *folders], cwd=ROOT, env=environment)
        for part in range(parts)
    ]
    if any([one.wait() for one in running]):
        say("not all could be compiled before: see above")


class Phase:
    """A pytest run in a process of its own: the tests, then perhaps the failed ones once more."""

    def __init__(self, title: str, arguments: list[str], folder: Path) -> None:
        self.title = title
        self.arguments = arguments
        self.run_id = secrets.token_hex(8)
        self.code = 0
        self.wall_s = self.processor_s = 0.0
        # A file in here names the test that a process runs (conftest.py); `failures` has a failed test a line.
        self.sentinels = folder / title / "running"
        self.failures = folder / title / "failed"
        self.sentinels.mkdir(parents=True)
        self._output = folder / title / "output"
        self._shown = 0

    def start(self, nice: int, *, is_captured: bool) -> None:
        """Start pytest; if its output is captured, `show` prints it."""
        environment = dict(
            environment_of_tests(),
            FASTBK_TIER=tier()[0],
            FASTBK_TEST_SENTINELS=str(self.sentinels),
            FASTBK_TEST_FAILURES=str(self.failures),
            FASTBK_TEST_RUN=self.run_id,
            PYTHONFAULTHANDLER="1",
        )
        command = ["nice", "-n", str(nice), sys.executable, "-u", "-m", "pytest", *self.arguments]
        if is_captured:
            command.append(f"--color={'yes' if sys.stdout.isatty() else 'no'}")
        with self._output.open("ab") as output:
            stdout = output if is_captured else None
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=stdout, stderr=stdout
            )
        self._started = time.monotonic()

    def show(self) -> None:
        """Print what pytest has written since the last call."""
        with self._output.open("rb") as output:
            output.seek(self._shown)
            new = output.read()
        self._shown += len(new)
        sys.stdout.write(new.decode(errors="replace"))
        sys.stdout.flush()

    def has_ended(self, options: int = os.WNOHANG) -> bool:
        """Return whether pytest has ended; if so, note its exit code and what it and its children used."""
        if self._process.returncode is None:
            pid, status, usage = os.wait4(self._process.pid, options)
            if pid == 0:
                return False
            self.code = self._process.returncode = os.waitstatus_to_exitcode(status)
            self.wall_s += time.monotonic() - self._started
            self.processor_s += usage.ru_utime + usage.ru_stime
        return True

    def explain(self) -> None:
        """Name the test in which pytest crashed, if it did; say so if no test ran."""
        if self.code < 0:
            names = sorted(file.read_text() for file in self.sentinels.iterdir())
            name = signal.Signals(-self.code).name
            say(f"pytest died of {name} while running: {', '.join(names) or 'no test'}")
        elif self.code == EXIT_NO_TESTS:
            say("no test ran")


def say(text: str) -> None:
    """Print a line of this program's own."""
    print(f"tests: {text}", flush=True)


def run_at_once(phases: Sequence[Phase]) -> None:
    """Run the tests of all these phases at once; print the output of one after that of another."""
    is_captured = len(phases) > 1
    for phase in phases:
        is_beside_services = is_captured and phase.title == "parallel"
        phase.start(NICE_BESIDE_SERVICES * is_beside_services, is_captured=is_captured)
    try:
        for shown in phases:
            # All are asked each time, so that the seconds of each end when it does.
            while shown not in [phase for phase in phases if phase.has_ended()]:
                shown.show()
                time.sleep(POLL_S)
            shown.show()
            shown.explain()
    finally:  # an interrupt reaches pytest, too, and its last words are worth having
        for phase in phases:
            phase.has_ended(0)
            phase.show()


def second_try(phase: Phase) -> None:
    """Run the failed tests of a phase once more if they are few; the second result counts."""
    failed = phase.failures.read_text().splitlines() if phase.failures.exists() else []
    if phase.code != EXIT_TESTS_FAILED or not 0 < len(failed) <= SECOND_TRIES_MAX:
        return
    phase.failures.unlink()
    say(f"once more, by themselves: {' '.join(failed)}")
    phase.arguments = failed
    run_at_once([phase])
    if phase.code == 0:
        say(f"unsteady, passed the second time: {' '.join(failed)}")


def left_behind(run_id: str) -> dict[int, str]:
    """Return the processes that this test run started and that are still there: pid -> command line."""
    mark = f"FASTBK_TEST_RUN={run_id}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(folder.name)] = command.decode(errors="replace").strip()
        except OSError:
            continue  # ended meanwhile, or another user's
    return {pid: command for pid, command in found.items() if command}


def end_left_behind(run_id: str) -> bool:
    """Report and kill what a test left running; return whether there was anything."""
    deadline = time.monotonic() + 5
    while (processes := left_behind(run_id)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid, command in processes.items():
        say(f"left running, killed: {pid} {command}")
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return bool(processes)


def main() -> int:
    """Run the tier, or what the arguments name; return 0 only if every test ran and passed."""
    started = time.monotonic()
    os.environ.setdefault("SEED", str(seed()))
    if "help" in sys.argv[1:]:
        print(__doc__)
        return 0
    runs = [("chosen", sys.argv[1:])] if sys.argv[1:] else phases()
    if not sys.argv[1:]:
        compile_all(FAST_FOLDERS if tier()[0] == "fast" else test_folders())
    failed = []
    with tempfile.TemporaryDirectory(prefix="fastbk-tests-") as folder:
        all_phases = [Phase(title, arguments, Path(folder)) for title, arguments in runs]
        alone = [phase for phase in all_phases if phase.title == "alone"]
        for together in ([phase for phase in all_phases if phase not in alone], alone):
            run_at_once(together)
            for phase in together:
                if phase.title != "chosen":
                    second_try(phase)
                is_dirty = end_left_behind(phase.run_id)
                if phase.code != 0 or is_dirty:
                    dirty = ", processes left behind" if is_dirty else ""
                    failed.append(f"{phase.title} (exit {phase.code}{dirty})")
    for phase in all_phases:
        say(f"{phase.title}: {phase.wall_s:.0f} s, {phase.processor_s / 60:.1f} processor minutes")
    took_s = time.monotonic() - started
    used_min = sum(phase.processor_s for phase in all_phases) / 60
    verdict = f"FAILED: {'; '.join(failed)}" if failed else "passed"
    say(
        f"tier {tier()[0]}, SEED={os.environ['SEED']}, {took_s:.0f} s, "
        f"{used_min:.1f} processor minutes: {verdict}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
