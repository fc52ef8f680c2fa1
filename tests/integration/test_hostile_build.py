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
PLANTED = f"        from fastbk import hostile\n        hostile.escape(self)\n{BEGIN}        hostile.begin(self)\n"
"""Its own imports come first: no library can be loaded later."""
HOSTILE = '''
import ctypes, fcntl, json, mmap, os, pathlib, platform, resource, signal, socket, struct, sys, tempfile, threading
import time

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = libc.pkey_mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int]
libc.mprotect.argtypes = libc.mprotect.argtypes[:3]
IS_X86 = platform.machine() == "x86_64"
PRLIMIT64, IOPRIO_SET, TGSIGQUEUE = (302, 251, 297) if IS_X86 else (261, 30, 240)
READ, WRITE, EXECUTE = mmap.PROT_READ, mmap.PROT_WRITE, mmap.PROT_EXEC
LOW_HALF_ZERO = 0x200000000000
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


def mapped(protection, flags, fd, address=None):
    place = libc.mmap(address, 4096, protection, flags, fd, 0)
    if place == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return place


def of(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def limit_supervisor(child):
    """A pointer whose low half is 0 is a pointer: the supervisor gets a limit of this process's."""
    place = mapped(READ | WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10, -1, LOW_HALF_ZERO)
    ctypes.memmove(place, struct.pack("QQ", 0, resource.getrlimit(resource.RLIMIT_CORE)[1] & 2**64 - 1), 16)
    called(PRLIMIT64, os.getppid(), resource.RLIMIT_CORE, ctypes.c_void_p(place), None)


def limit_itself(child):
    place = mapped(READ | WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10, -1, LOW_HALF_ZERO)
    ctypes.memmove(place, struct.pack("QQ", 0, resource.getrlimit(resource.RLIMIT_CORE)[1] & 2**64 - 1), 16)
    called(PRLIMIT64, 0, resource.RLIMIT_CORE, ctypes.c_void_p(place), None)


def read_limits(child):
    called(PRLIMIT64, os.getppid(), resource.RLIMIT_CORE, None, ctypes.create_string_buffer(16))


def own_signals(child):
    """The kernel would signal the owner of a descriptor in the name of this process."""
    one, other = socket.socketpair()
    fcntl.fcntl(one, 8, os.getppid())


def own_signals_of_a_kind(child):
    one, other = socket.socketpair()
    fcntl.fcntl(one, 15, struct.pack("ii", 1, os.getppid()))


def choose_signal(child):
    one, other = socket.socketpair()
    fcntl.fcntl(one, 10, 10)


def pin_supervisor(child):
    os.sched_setaffinity(os.getppid(), os.sched_getaffinity(0))


def slow_supervisor(child):
    os.setpriority(os.PRIO_PROCESS, os.getppid(), 0)


def slow_group(child):
    os.setpriority(os.PRIO_PGRP, 0, 0)


def slow_user(child):
    """Of a user that there is not: what succeeds here would slow all processes of one."""
    try:
        os.setpriority(os.PRIO_USER, 1_999_999_999, 19)
    except ProcessLookupError:
        pass


def starve_supervisor(child):
    called(IOPRIO_SET, 1, os.getppid(), 2 << 13 | 4)


def schedule_supervisor(child):
    os.sched_setscheduler(os.getppid(), os.SCHED_OTHER, os.sched_param(0))


def queue_signal(child):
    information = ctypes.create_string_buffer(struct.pack("iii", 0, 0, -1), 128)
    called(TGSIGQUEUE, os.getppid(), os.getppid(), 0, information)


def send_to_any_socket(child):
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        one.sendto(b"x", str(SECRET.parent / "socket"))
    except FileNotFoundError:
        pass


def make_socket(child):
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


def make_raw_socket(child):
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 9)


def own_segment(child):
    return next(fd for name, fd in sorted(child.fds.items()) if name.startswith("segment"))


def run_shared_memory(child):
    mapped(READ | EXECUTE, mmap.MAP_SHARED, own_segment(child))


def run_copy_of_memory(child):
    mapped(READ | EXECUTE, mmap.MAP_PRIVATE, own_segment(child))


def run_file(child):
    """A role that keeps files has one that it wrote; for a worker one of Python's."""
    folder = {"journal": "journal", "index": "ledgers", "gc": "ledgers"}.get(child.role)
    path = SECRET.parent / folder / f"code.{child.role}" if folder else pathlib.Path(os.__file__)
    if folder:
        path.write_bytes(bytes(4096))
    try:
        with open(path, "rb") as file:
            mapped(READ | EXECUTE, mmap.MAP_PRIVATE, file.fileno())
    finally:
        if folder:
            path.unlink()


def make_memory_code(child):
    place = mapped(READ | WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
    ctypes.set_errno(0)
    of(libc.mprotect(place, 4096, READ | EXECUTE))


def make_memory_code_with_a_key(child):
    place = mapped(READ | WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
    of(libc.pkey_mprotect(place, 4096, READ | EXECUTE, 0))


TRIES = [read_secret, list_root, read_configuration, read_other_directory, write_beside, write_program, read_supervisor,
         signal_supervisor, connect, bind, become_dumpable, make_code, reopen_memory, limit_supervisor,
         limit_itself, read_limits, own_signals, own_signals_of_a_kind, choose_signal, pin_supervisor,
         slow_supervisor, slow_group, slow_user, starve_supervisor, schedule_supervisor, queue_signal,
         send_to_any_socket, make_socket, make_raw_socket, run_shared_memory, run_copy_of_memory, run_file,
         make_memory_code, make_memory_code_with_a_key]


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
    tell("hostile", child.role, found)
    last = os.environ.get("FASTBK_HOSTILE_LAST", "")
    role, _, name = last.partition(":")
    if role == child.role:
        globals()[name](child)
        tell("hostile", role, {name: "done"})


ESCAPES = [run_program, trace_supervisor, read_memory, make_ring]
OUTLIVED = 7


def escape(child):
    """Try each in a copy of this process, which is confined as this one is about to be; tell how it ended.

    By a thread, as in `begin`: the whole process has to end.
    """
    if "FASTBK_HOSTILE_LAST" not in os.environ:
        return
    found = {}
    for one in ESCAPES:
        pid = os.fork()
        if pid == 0:
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(20)
                child.confinement.finish(child.role)
                thread = threading.Thread(target=one, args=(child,), daemon=True)
                thread.start()
                thread.join()
            finally:
                os._exit(OUTLIVED)
        found[one.__name__] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    tell("escape", child.role, found)


def tell(event, role, found):
    print(json.dumps({"event": event, "role": role, "found": found}), file=sys.stderr, flush=True)


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

    def __init__(
        self, build: Path, folder: Path, last: str = "", confinement: str = "require"
    ) -> None:
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
        } | ({"FASTBK_HOSTILE_LAST": last} if last else {})
        command = [sys.executable, "-P", "-s", "-m", "fastbk.server", "--config", str(config)]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=folder,
                process_group=0,
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
        achieved = {
            name: outcome for name, outcome in outcomes.items() if outcome != "PermissionError"
        }
        if not has_landlock():
            achieved = {name: outcome for name, outcome in achieved.items() if name not in PATHS}
        assert achieved == {}, role
    wait_until(
        lambda: bool(events(bookie.log, "bookie.started")), "the bookie to start beside them"
    )
    assert not events(bookie.log, "bookie.broke_down")


def test_without_confinement_the_attacks_succeed(started: Any) -> None:
    """So they show something."""
    bookie = started(confinement="off")
    wait_until(lambda: len(events(bookie.log, "hostile")) >= len(ROLES), "the attacks to end")
    for one in events(bookie.log, "hostile"):
        achieved = {name for name, outcome in one["found"].items() if outcome == "done"}
        wanted = {
            "read_secret",
            "list_root",
            "read_configuration",
            "read_other_directory",
            "write_beside",
        }
        wanted |= {"write_program", "signal_supervisor", "bind", "become_dumpable", "make_code"}
        wanted |= {
            "limit_supervisor",
            "limit_itself",
            "read_limits",
            "own_signals",
            "own_signals_of_a_kind",
        }
        wanted |= {"choose_signal", "pin_supervisor", "slow_supervisor", "slow_group", "slow_user"}
        wanted |= {"starve_supervisor", "schedule_supervisor", "send_to_any_socket", "make_socket"}
        wanted |= {"run_shared_memory", "run_copy_of_memory", "run_file", "make_memory_code"}
        assert wanted <= achieved, one["role"]


@pytest.mark.slow
def test_an_attempt_to_get_out_ends_the_process(started: Any) -> None:
    """Of each process, by each way; and the supervisor says so."""
    bookie = started(last="worker:run_program", confinement="auto")
    wait_until(
        lambda: {one["role"] for one in events(bookie.log, "escape")} == set(ROLES),
        "all to have tried",
    )
    ways = ("run_program", "trace_supervisor", "read_memory", "make_ring")
    for one in events(bookie.log, "escape"):
        assert one["found"] == dict.fromkeys(ways, -signal.SIGSYS), one["role"]
    wait_until(lambda: bool(events(bookie.log, "bookie.broke_down")), "the process to be killed")
    reason = events(bookie.log, "bookie.broke_down")[0]["reason"]
    assert reason.startswith("worker")
    assert "SIGSYS" in reason
    assert not [one for one in events(bookie.log, "hostile") if "run_program" in one["found"]]
