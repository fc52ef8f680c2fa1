"""Forked children of the rigs (`tests/rigs/children.py`)."""

from __future__ import annotations

import os
import select
import signal
import struct

import pytest

from tests.rigs.children import ChildFailed, start_child

PATIENCE_S = 10.0


def test_a_child_ends_with_its_parent() -> None:
    reading, writing = os.pipe()

    def work() -> None:
        os.write(writing, struct.pack("i", os.getpid()))
        signal.pause()

    def parent() -> None:
        start_child(work)
        os.close(writing)
        signal.pause()

    child = start_child(parent)
    os.close(writing)
    (grandchild,) = struct.unpack("i", os.read(reading, 4))
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(ChildFailed):
        child.result(PATIENCE_S)
    # The grandchild alone holds the other end now.
    has_ended = bool(select.select([reading], [], [], PATIENCE_S)[0])
    os.close(reading)
    if not has_ended:
        os.kill(grandchild, signal.SIGKILL)
    assert has_ended, "it outlives its parent"
