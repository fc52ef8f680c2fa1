"""The typed face of `base/confine.c`: what a child gives up for good once it is set up."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fastbk.native._bookie import ffi, lib
from fastbk.native.segment import ROLES

if TYPE_CHECKING:
    from collections.abc import Sequence

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
