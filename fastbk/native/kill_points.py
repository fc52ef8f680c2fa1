"""Named places where a process ends by SIGKILL, for tests of what a crash there leaves behind.

Nothing happens unless the environment says so when the process starts:

    FASTBK_KILL_POINT=journal.after_submit:3   die at the third pass (`:0`: only count passes)
    FASTBK_KILL_POINT_FILE=/path               made at that moment; while it exists nobody dies

A point is `kill_point("role.place")` here and `FBK_KILL_POINT("role.place")` in C; a bookie hands the variables on
to its children. They are in release builds too: unarmed, a point costs a function call in Python, a load in C. The
other switch for tests is FASTBK_HOLD_MARK (`fastbk.server.index.hold_mark`).
"""

from __future__ import annotations

import os

from fastbk.errors import ConfigError
from fastbk.native._bookie import lib
from fastbk.native.ffi import check

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
