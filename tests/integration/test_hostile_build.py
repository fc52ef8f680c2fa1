"""A build with hostile code in every process of a bookie, and what that code cannot do (INV-N3).

The package is copied, and its children's `ready` begins an attack once they are confined. What it achieves is logged.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fastbk
from tests.fixtures.logs import events
from tests.fixtures.wait import wait_until

ROLES = ("worker", "journal", "index", "gc")
PATHS = {"read_secret", "list_root", "read_configuration", "read_other_directory", "write_beside", "write_program",
         "read_supervisor"}  # fmt: skip
"""Attempts that Landlock keeps from succeeding; where the kernel has none only the others are looked at."""
BEGIN = "        self.confinement.finish(self.role)\n"
PLANTED = BEGIN + "        from fastbk import hostile\n        hostile.begin(self)\n"
HOSTILE = '''
import ctypes, fcntl, json, mmap, os, pathlib, socket, sys, threading, time

libc = ctypes.CDLL(None, use_errno=True)
SECRET = pathlib.Path(os.environ["FASTBK_HOSTILE_SECRET"])


def called(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def read_secret(child):
    SECRET.read_text()


def list_root(child):
    os.listdir("/")


def read_configuration(child):
    (SECRET.parent / "bookie.toml").read_text()


def read_other_directory(child):
    """One of the others: workers have tls, journals and indexes the journal, indexes and gc the ledgers."""
    mine = {"worker": "tls", "journal": "journal", "index": "ledgers", "gc": "ledgers"}[child.role]
    others = {"tls", "journal", "ledgers"} - {mine} - ({"journal"} if child.role == "index" else set())
    for name in others:
        os.listdir(SECRET.parent / name)
        return
    raise PermissionError


def write_beside(child):
    (SECRET.parent / "planted").write_text("x")


def write_program(child):
    pathlib.Path(__file__).with_name("planted.py").write_text("x")


def read_supervisor(child):
    open(f"/proc/{os.getppid()}/mem", "rb")


def signal_supervisor(child):
    os.kill(os.getppid(), 0)


def connect(child):
    socket.create_connection(("127.0.0.1", int(os.environ["FASTBK_HOSTILE_PORT"])), 1)


def bind(child):
    made = socket.socket()
    made.bind(("127.0.0.1", 0))


def become_dumpable(child):
    called(157, 4, 1, 0, 0, 0)


def make_code(child):
    mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)


def reopen_memory(child):
    """Shared memory of others, which it has for reading, for writing (INV-R1).

    A process seals its own when it is set up. Workers are the last ones, and accept clients only then.
    """
    own = {child.fds.get("segment")} | {fd for name, fd in child.fds.items() if name.startswith("segment.")}
    own |= {child.fds.get("states")} if child.role == "index" else set()
    for name, fd in child.fds.items():
        if "segment" in name and fd not in own:
            give_up_s = time.monotonic() + 20
            while not fcntl.fcntl(fd, 1034) & 0x10 and time.monotonic() < give_up_s:
                time.sleep(0.01)
            try:
                again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
                mmap.mmap(again, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE)
            except PermissionError:
                continue
            return  # one is enough
    raise PermissionError


TRIES = [read_secret, list_root, read_configuration, read_other_directory, write_beside, write_program, read_supervisor,
         signal_supervisor, connect, bind, become_dumpable, make_code, reopen_memory]


def run_program(child):
    os.execv("/bin/sh", ["sh", "-c", f"cat {SECRET}"])


def trace_supervisor(child):
    called(101, 16, os.getppid(), 0, 0)


def read_memory(child):
    called(310, os.getppid(), 0, 0, 0, 0, 0)


def make_ring(child):
    called(425, 4, ctypes.create_string_buffer(120))


def attack(child):
    found = {}
    for one in TRIES:
        try:
            one(child)
        except OSError as error:
            found[one.__name__] = type(error).__name__
        else:
            found[one.__name__] = "done"
    print(json.dumps({"event": "hostile", "role": child.role, "found": found}), file=sys.stderr, flush=True)
    last = os.environ.get("FASTBK_HOSTILE_LAST", "")
    role, _, name = last.partition(":")
    if role == child.role:
        globals()[name](child)
        print(json.dumps({"event": "hostile", "role": role, "found": {name: "done"}}), file=sys.stderr, flush=True)


def begin(child):
    threading.Thread(target=attack, args=(child,), daemon=True).start()
'''


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the hostile package in it."""
    folder = tmp_path_factory.mktemp("hostile")
    package = Path(fastbk.__file__).parent
    shutil.copytree(package, folder / "fastbk", ignore=shutil.ignore_patterns("__pycache__", "src"))
    child = folder / "fastbk" / "server" / "child.py"
    text = child.read_text()
    assert text.count(BEGIN) == 1
    child.write_text(text.replace(BEGIN, PLANTED))
    (folder / "fastbk" / "hostile.py").write_text(HOSTILE)
    return folder


class Hostile:
    """A bookie of that build."""

    def __init__(self, build: Path, folder: Path, last: str = "", confinement: str = "require") -> None:
        for name in ("journal", "ledgers", "tls"):
            (folder / name).mkdir(parents=True)
        (folder / "secret").write_text("of the user, and nobody's business")
        (folder / "tls" / "revoked").write_text("")
        (folder / "metadata").mkdir()
        config = folder / "bookie.toml"
        config.write_text(
            f"""
[bookie]
listen = "127.0.0.1:0"
id = "hostile"
workers = 1
confinement = "{confinement}"
[metadata]
uri = "sqlite:{folder}/metadata/metadata.sqlite"
[journal]
directory = "{folder}/journal"
[ledgers]
directory = "{folder}/ledgers"
[authentication]
revoked_file = "{folder}/tls/revoked"
"""
        )
        self.log = folder / "log"
        environment = {
            **os.environ,
            "PYTHONPATH": str(build),
            "FASTBK_HOSTILE_SECRET": str(folder / "secret"),
            "FASTBK_HOSTILE_PORT": "9",
            "FASTBK_HOSTILE_LAST": last,
        }
        command = [sys.executable, "-P", "-s", "-m", "fastbk.server", "--config", str(config)]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=folder, process_group=0
            )

    def stop(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def started(build: Path, tmp_path: Path) -> Iterator[Any]:
    made: list[Hostile] = []

    def start(**options: str) -> Hostile:
        made.append(Hostile(build, tmp_path / "bookie", **options))
        return made[-1]

    yield start
    for one in made:
        one.stop()


def has_landlock() -> bool:
    return ctypes.CDLL(None).syscall(444, None, 0, 1) > 0


def test_what_a_taken_over_process_cannot_do(started: Any) -> None:
    bookie = started(confinement="require" if has_landlock() else "auto")
    wait_until(lambda: len(events(bookie.log, "hostile")) >= len(ROLES), "the attacks to end")
    found = {one["role"]: one["found"] for one in events(bookie.log, "hostile")}
    assert set(found) == set(ROLES)
    for role, outcomes in found.items():
        achieved = {name: outcome for name, outcome in outcomes.items() if outcome != "PermissionError"}
        if not has_landlock():
            achieved = {name: outcome for name, outcome in achieved.items() if name not in PATHS}
        assert achieved == {}, role
    wait_until(lambda: bool(events(bookie.log, "bookie.started")), "the bookie to start beside them")
    assert not events(bookie.log, "bookie.broke_down")


def test_without_confinement_the_attacks_succeed(started: Any) -> None:
    """So they show something."""
    bookie = started(confinement="off")
    wait_until(lambda: len(events(bookie.log, "hostile")) >= len(ROLES), "the attacks to end")
    for one in events(bookie.log, "hostile"):
        achieved = {name for name, outcome in one["found"].items() if outcome == "done"}
        wanted = {"read_secret", "list_root", "read_configuration", "read_other_directory", "write_beside"}
        wanted |= {"write_program", "signal_supervisor", "bind", "become_dumpable", "make_code"}
        assert wanted <= achieved, one["role"]


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["run_program", "trace_supervisor", "read_memory", "make_ring"])
@pytest.mark.parametrize("role", ROLES)
def test_an_attempt_to_get_out_ends_the_process(role: str, attack: str, started: Any) -> None:
    bookie = started(last=f"{role}:{attack}", confinement="auto")
    wait_until(lambda: bool(events(bookie.log, "bookie.broke_down")), "the process to be killed")
    reason = events(bookie.log, "bookie.broke_down")[0]["reason"]
    assert reason.startswith(role)
    assert "SIGSYS" in reason
    assert not [one for one in events(bookie.log, "hostile") if attack in one["found"]]
