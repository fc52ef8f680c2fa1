"""The typed face of `base/process.c`: what a child asks of the kernel at its start."""

from __future__ import annotations

import os

from fastbk.native._bookie import lib


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
