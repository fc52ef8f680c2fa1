import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastbk.server.child import MESSAGE_BYTES_MAX, Child, SupervisorGone, enlarge
from tests.fixtures.wait import wait_until

PROGRAM = """
import os, sys
from fastbk.server import child

def main(c):
    while True:
        message = c.receive(None)
        if message["type"] == "drain":
            return
        if message["type"] == "raise":
            raise RuntimeError("as told")
        if message["type"] == "poll":
            c.send({"type": "polled", "nothing": c.receive(0) is None})
            continue
        c.send({"type": "seen", "role": c.role, "index": c.index, "epoch": c.epoch, "config": c.config,
                "fds": {name: os.path.exists(f"/proc/self/fd/{fd}") for name, fd in c.fds.items()},
                "inheritable": [os.get_inheritable(fd) for fd in c.fds.values()], "size": len(message.get("text", ""))})

child.run("journal", main)
"""


class Started:
    def __init__(self, control: socket.socket, process: subprocess.Popen[bytes]) -> None:
        self.control = control
        self.process = process

    def send(self, **message: object) -> None:
        self.control.send(json.dumps(message).encode())

    def receive(self) -> dict[str, object]:
        message: dict[str, object] = json.loads(self.control.recv(MESSAGE_BYTES_MAX))
        return message

    def configure(self, **descriptors: int) -> None:
        assert self.receive() == {"type": "hello", "role": "journal", "pid": self.process.pid}
        self.send(
            type="configure", role="journal", index=2, epoch=7, config={"a": 1}, descriptors=descriptors
        )  # fmt: skip


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Started]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(10)
    enlarge(ours)
    read_end, write_end = os.pipe()
    command = [sys.executable, "-c", PROGRAM, str(theirs.fileno())]
    process = subprocess.Popen(
        command, pass_fds=[theirs.fileno(), read_end], stderr=subprocess.DEVNULL
    )
    theirs.close()
    started = Started(ours, process)
    started.configure(pipe=read_end)
    yield started
    ours.close()
    os.close(read_end)
    os.close(write_end)
    if process.poll() is None:
        process.kill()
    process.wait(10)


def test_a_child_gets_its_own_configuration_and_descriptors(child: Started) -> None:
    child.send(type="tell")
    assert child.receive() == {
        "type": "seen", "role": "journal", "index": 2, "epoch": 7, "config": {"a": 1},
        "fds": {"pipe": True}, "inheritable": [False], "size": 0,
    }  # fmt: skip
    child.send(type="drain")
    assert child.process.wait(10) == 0


def test_a_message_may_be_long(child: Started) -> None:
    child.send(type="tell", text="x" * (MESSAGE_BYTES_MAX - 4096))
    assert child.receive()["size"] == MESSAGE_BYTES_MAX - 4096


def test_a_look_without_waiting_finds_nothing(child: Started) -> None:
    child.send(type="poll")
    assert child.receive() == {"type": "polled", "nothing": True}


def test_a_child_ends_with_its_supervisors_socket(child: Started) -> None:
    child.control.close()
    assert child.process.wait(10) == 3


def test_a_failing_child_says_why(child: Started) -> None:
    child.send(type="raise")
    event = child.receive()
    assert (event["type"], event["event"], event["level"]) == ("event", "process.failed", "error")
    assert child.receive() == {"type": "failed", "reason": "RuntimeError: as told"}
    assert child.process.wait(10) == 1


def test_a_terminals_signals_do_not_end_a_child(child: Started) -> None:
    child.process.send_signal(signal.SIGINT)
    child.process.send_signal(signal.SIGTERM)
    child.send(type="tell")
    assert child.receive()["type"] == "seen"


def test_a_child_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    """The other rope: also when its socket is held open by somebody else."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(10)
    script = tmp_path / "child.py"
    script.write_text(PROGRAM)
    parent = subprocess.Popen(
        [sys.executable, "-c", "import subprocess, sys\n"
         "p = subprocess.Popen(sys.argv[1:], close_fds=False)\nsys.stdin.read()",
         sys.executable, str(script), str(theirs.fileno())],
        stdin=subprocess.PIPE, pass_fds=[theirs.fileno()],
    )  # fmt: skip
    pid = json.loads(ours.recv(MESSAGE_BYTES_MAX))["pid"]
    parent.kill()
    parent.communicate()

    def gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    # `ours` and `theirs` are still open: the socket's end cannot be what ends it.
    wait_until(gone, "the orphan's end")
    theirs.close()
    ours.close()


def test_an_offer_does_not_wait_for_who_does_not_read() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        child = Child(ours, "worker")
        count = 0
        while child.offer({"type": "question", "text": "x" * 1000}):
            count += 1
        assert count > 1
        theirs.recv(MESSAGE_BYTES_MAX)
        assert child.offer({"type": "small"})
        theirs.close()
        with pytest.raises(SupervisorGone):
            child.offer({"type": "question"})
