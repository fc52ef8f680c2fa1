"""What a process gives up at its start."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes
from fastbk.native.process import confine
PR_GET_DUMPABLE, PR_GET_NO_NEW_PRIVS = 3, 39
confine()
libc = ctypes.CDLL(None)
print(libc.prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), libc.prctl(PR_GET_DUMPABLE, 0, 0, 0, 0))
"""


@pytest.mark.parametrize(("wish", "given_up"), [("", "1 0"), ("1", "1 1")])
def test_privileges_and_memory(wish: str, given_up: str) -> None:
    environment = {**os.environ, "FASTBK_DUMPABLE": wish}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == given_up
