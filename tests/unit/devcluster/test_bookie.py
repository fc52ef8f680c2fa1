"""A supervisor's messages are taken in while another thread stops that supervisor."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from fastbk.devcluster.processes import Bookie

if TYPE_CHECKING:
    from pathlib import Path


class Lifeline(socket.socket):
    """A real socket whose read another thread's `forget` overtakes."""

    bookie: Bookie

    def recv(self, size_bytes: int, flags: int = 0) -> bytes:
        other = threading.Thread(target=self.bookie.forget)
        other.start()
        other.join()
        return super().recv(size_bytes, flags)


@pytest.mark.parametrize("said", [b"", b'{"type": "state"}'])
def test_a_run_that_another_thread_forgets_says_nothing_more(tmp_path: Path, said: bytes) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if said:
        theirs.send(said)
    bookie = Bookie("bookie-1", tmp_path, {})
    lifeline = Lifeline(fileno=ours.detach())
    lifeline.bookie = bookie
    bookie._lifeline = lifeline
    with theirs:
        bookie.refresh()
    assert bookie.watched() is None
    assert not bookie.is_ready
    assert bookie.pids == {}
