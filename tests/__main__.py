"""`python -m tests`: the tests by tiers. `./dev test` sets up and calls this.

FAST=1 runs style, types, unit, property and native tests in about a minute; nothing set runs all that CI runs;
ALL=1 adds soak and performance tests. SEED=n repeats the random choices of an earlier run. SERVICES=n runs so many
tests that start services at once, instead of two. Any other arguments go to pytest, which then runs once with just
these.

A committed tree has one seed in the tiers below ALL, so that it is judged the same wherever it is tested, and each
change draws another; ALL=1 and runs of chosen tests draw a new one each time.

Tests that share nothing run beside each other first, as many as there are processors. Those that start services, with
ports, folders and file systems of their own, follow two at a time, since they wait much: for starts, leases, timeouts.
Those that measure times run last, each alone.

Up to three tests that fail in a tier are run once more, by themselves and with the same SEED. One that passes then
is reported as `unsteady` with both results on the page: its deadline was missed on a busy machine, or it has a race,
and it wants mending. One that fails again fails the run. Random choices are repeated, so what a seed found stays found.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests import SERVICE_FOLDERS

ROOT = Path(__file__).resolve().parent.parent

# Pytest's exit code for "no test ran": for us a failure, or else an empty run would pass.
EXIT_NO_TESTS = 5
EXIT_TESTS_FAILED = 1
SECOND_TRIES_MAX = 3
# A cluster alone is fifteen processes and more: a third test would only lengthen the waits of the other two.
SERVICES_AT_ONCE = 2


def tier() -> tuple[str, str]:
    """Return the tier's name and its marker expression."""
    if os.environ.get("ALL"):
        return "all", ""
    if os.environ.get("FAST"):
        return "fast", "not slow and not soak and not perf"
    return "ci", "not soak and not perf"


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
    """Return the pytest runs of the chosen tier: a title and arguments."""
    name, markers = tier()
    both = f"({markers}) and " if markers else ""
    slowest = "--durations=30"
    beside = ["--dist", "worksteal", slowest, "-m"]
    cores = str(os.cpu_count() or 1)
    listed = [("parallel", ["-n", cores, *beside, f"{both}not service"])]
    if name != "fast":
        # Only these folders: reading the others for nothing takes each process ten seconds.
        folders = [f"tests/{folder}" for folder in SERVICE_FOLDERS]
        some = os.environ.get("SERVICES") or str(SERVICES_AT_ONCE)
        listed.append(("services", ["-n", some, *beside, f"{both}service and not alone", *folders]))
        listed.append(("alone", [slowest, "-m", f"{both}service and alone", *folders]))
    return listed


def run_pytest(arguments: list[str], sentinels: Path, run_id: str) -> int:
    """Run pytest in a process of its own, name the test in which it crashed if it did; return its exit code."""
    environment = dict(
        os.environ,
        FASTBK_TIER=tier()[0],
        FASTBK_TEST_SENTINELS=str(sentinels),
        FASTBK_TEST_RUN=run_id,
        PYTHONFAULTHANDLER="1",
    )
    code = subprocess.call([sys.executable, "-m", "pytest", *arguments], cwd=ROOT, env=environment)
    if code < 0:
        running = ", ".join(sorted(file.read_text() for file in sentinels.iterdir())) or "no test"
        print(
            f"tests: pytest died of {signal.Signals(-code).name} while running: {running}",
            flush=True,
        )
    elif code == EXIT_NO_TESTS:
        print("tests: no test ran", flush=True)
    return code


def second_try(failures: Path, sentinels: Path, run_id: str) -> int:
    """Run the failed tests once more if they are few; return the exit code that counts."""
    failed = failures.read_text().splitlines() if failures.exists() else []
    if not 0 < len(failed) <= SECOND_TRIES_MAX:
        return EXIT_TESTS_FAILED
    failures.unlink()
    print(f"tests: once more, by themselves: {' '.join(failed)}", flush=True)
    code = run_pytest(failed, sentinels, run_id)
    if code == 0:
        print(f"tests: unsteady, passed the second time: {' '.join(failed)}", flush=True)
    return code


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
        print(f"tests: left running, killed: {pid} {command}", flush=True)
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
    failed = []
    for title, arguments in runs:
        run_id = secrets.token_hex(8)
        with tempfile.TemporaryDirectory(prefix="fastbk-tests-") as folder:
            sentinels = Path(folder) / "running"
            sentinels.mkdir()
            failures = Path(folder) / "failed"
            os.environ["FASTBK_TEST_FAILURES"] = str(failures)
            code = run_pytest(arguments, sentinels, run_id)
            if code == EXIT_TESTS_FAILED and title != "chosen":
                code = second_try(failures, sentinels, run_id)
        dirty = end_left_behind(run_id)
        if code != 0 or dirty:
            failed.append(f"{title} (exit {code}{', processes left behind' if dirty else ''})")
    took_s = time.monotonic() - started
    verdict = f"FAILED: {'; '.join(failed)}" if failed else "passed"
    print(f"tests: tier {tier()[0]}, SEED={os.environ['SEED']}, {took_s:.0f} s: {verdict}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
