"""The typed face of `base/process.c`: what a child asks of the kernel at its start."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

from fastbk.errors import ConfigError
from fastbk.native._bookie import ffi, lib
from fastbk.native.ffi import check
from fastbk.native.segment import ROLES

if TYPE_CHECKING:
    from collections.abc import Sequence


def die_with_parent() -> None:
    """Have the kernel kill this process (SIGKILL) as soon as the thread that started it ends.

    Raises OSError. The caller has to look whether its parent was gone before (an ended control
    socket).
    """
    result = lib.fbk_process_die_with_parent()
    if result < 0:
        raise OSError(-result, os.strerror(-result))


def confine() -> None:
    """Give up new privileges for good, and keep other processes of this user out of this one's memory. Raises OSError.

    FASTBK_DUMPABLE=1 leaves the second one, for debuggers and cores.
    """
    result = lib.fbk_process_confine(os.environ.get("FASTBK_DUMPABLE") == "1")
    if result < 0:
        raise OSError(-result, os.strerror(-result))


def watch_signals() -> None:
    """Have this process note when it is continued after a SIGSTOP, for the flight recorder. Raises OSError."""
    result = lib.fbk_flight_watch_signals()
    if result < 0:
        raise OSError(-result, os.strerror(-result))


def lower_thread() -> None:
    """Have the calling thread's disk requests and computing come behind those of others, as far as allowed."""
    lib.fbk_process_lower_thread()


_SECTOR_BYTES = 512


def disk_written_bytes() -> int:
    """Return how many bytes this process handed to disks so far, as the kernel counts them: getrusage(2).

    What went into the page cache counts, too, even if it is deleted before it gets to a disk.
    """
    return resource.getrusage(resource.RUSAGE_SELF).ru_oublock * _SECTOR_BYTES


# --- confinement -------------------------------------------------------------------------------------------------
#
# The typed face of `base/confine.c`: what a child gives up for good once it is set up.


UNSUPPORTED = 0


def confine_paths(read: Sequence[str], write: Sequence[str], *, may_connect: bool) -> int:
    """Have the calling thread, and those it starts from now on, open only files below these paths.

    Without `may_connect` they connect to nobody either, where the kernel is Linux 6.7 or later. Paths that are not
    there are passed over; open descriptors stay good. Returns the version of the kernel's Landlock, UNSUPPORTED where
    it has none. Raises OSError.
    """
    accesses = [(path, lib.FBK_PATH_READ) for path in read] + [
        (path, lib.FBK_PATH_WRITE) for path in write
    ]
    texts = [ffi.new("char[]", os.fsencode(path)) for path, _ in accesses]
    rules = ffi.new("struct fbk_confine_path[]", len(accesses))
    for rule, text, (_, access) in zip(rules, texts, accesses, strict=True):
        rule.path, rule.access = text, access
    flags = lib.FBK_MAY_CONNECT if may_connect else 0
    return _check(lib.fbk_confine_paths(rules, len(accesses), flags))


def landlock_version() -> int:
    """Return the version of the kernel's Landlock; UNSUPPORTED: it has none."""
    return max(lib.fbk_confine_version(), UNSUPPORTED)


def confine_rings() -> None:
    """Have this process find no io_uring from now on. Raises OSError."""
    _check(lib.fbk_confine_rings())


def preload(library: str) -> bool:
    """Load a shared library before `confine_calls`, which allows it no more; return whether it is there."""
    return bool(lib.fbk_confine_preload(library.encode()))


def confine_calls(role: str, *, may_connect: bool) -> None:
    """Have all threads of this process make only the system calls of `role`. Raises OSError.

    Others fail with EPERM; those that only an attacker makes end the process with SIGSYS. No library can be loaded any
    more. Without `may_connect` gc opens no socket.
    """
    _check(lib.fbk_confine_calls(ROLES[role], lib.FBK_MAY_CONNECT if may_connect else 0))


def _check(result: int) -> int:
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


# --- kill points -------------------------------------------------------------------------------------------------
#
# Named places where a process ends by SIGKILL, for tests of what a crash there leaves behind.
#
# Nothing happens unless the environment says so when the process starts:
#
#     FASTBK_KILL_POINT=journal.after_submit:3   die at the third pass (`:0`: only count passes)
#     FASTBK_KILL_POINT_FILE=/path               made at that moment; while it exists nobody dies
#
# A point is a call of `kill_point` here and of `FBK_KILL_POINT` in C, named "role.place"; a bookie
# hands the variables on to its children. They are in release builds too: unarmed, a point costs a
# function call in Python, a load in C. The other switches for tests are FASTBK_HOLD_MARK
# (`fastbk.server.index.process`) and FASTBK_ADOPT_FROM (`fastbk.server.journal.process`).


POINT_VARIABLE = "FASTBK_KILL_POINT"
FILE_VARIABLE = "FASTBK_KILL_POINT_FILE"

_is_armed = False


def kill_point(name: str) -> None:
    """Come by the point `name`: one pass, if that is the one that is armed."""
    if _is_armed:
        lib.fbk_kill_point_pass(name.encode())


def arm_from_environment() -> None:
    """Arm the point that the environment names, if any; first thing in a process. Raises ConfigError."""
    global _is_armed
    text = os.environ.get(POINT_VARIABLE)
    if not text:
        return
    name, _, number = text.partition(":")
    path = os.environ.get(FILE_VARIABLE, "")
    if not number.isdigit() or not path:
        raise ConfigError(
            f"{POINT_VARIABLE}={text}: must be name:pass, and {FILE_VARIABLE} a path for what happened"
        )
    check(lib.fbk_kill_point_arm(name.encode(), int(number), os.fsencode(path)), "arm a kill point")
    _is_armed = True
