"""What systemd is told, by a socket of the test's own: every form of address, and nothing that waits or raises."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastbk.observe.systemd import STATUS_CHARACTERS_MAX, Systemd


@pytest.fixture(params=["path", "abstract"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    name = f"fastbk-test-{os.getpid()}-{tmp_path.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.setblocking(False)
        if request.param == "path":
            one.bind(str(tmp_path / "notify"))
            yield one, str(tmp_path / "notify")
        else:
            one.bind(f"\0{name}")
            yield one, f"@{name}"


def test_each_word_is_a_datagram(listener: tuple[socket.socket, str]) -> None:
    heard, address = listener
    systemd = Systemd({"NOTIFY_SOCKET": address})
    systemd.ready()
    systemd.status("two\nlines, " + "x" * 1000)
    systemd.alive()
    systemd.extend(1.5)
    systemd.stopping()
    systemd.notify("READY=1", "STATUS=both")
    found = [heard.recv(4096).decode() for _ in range(6)]
    status = found.pop(1)
    assert found == [
        "READY=1",
        "WATCHDOG=1",
        "EXTEND_TIMEOUT_USEC=1500000",
        "STOPPING=1",
        "READY=1\nSTATUS=both",
    ]
    assert status.startswith("STATUS=two lines, xxx")
    assert len(status) == len("STATUS=") + STATUS_CHARACTERS_MAX
    systemd.close()
    systemd.close()


@pytest.mark.parametrize("address", [None, "", "vsock:2:1", "/nowhere/at/all"])
def test_nobody_has_to_listen(address: str | None) -> None:
    systemd = Systemd({} if address is None else {"NOTIFY_SOCKET": address})
    systemd.ready()
    assert systemd.is_there == (address == "/nowhere/at/all")
    systemd.close()


def test_a_full_socket_keeps_nobody_waiting(listener: tuple[socket.socket, str]) -> None:
    heard, address = listener
    systemd = Systemd({"NOTIFY_SOCKET": address})
    for _ in range(10_000):
        systemd.alive()  # would wait for ever, as nobody reads
    found = 0
    with contextlib.suppress(BlockingIOError):
        while heard.recv(100) == b"WATCHDOG=1":
            found += 1
    assert 0 < found < 10_000, "what found no room is not kept"
    systemd.ready()
    assert heard.recv(100) == b"READY=1", "and nothing is broken by it"
    systemd.close()


@pytest.mark.parametrize(
    ("time_us", "pid", "expected_s"),
    [
        ("60000000", "7", 30.0),
        ("60000000", "", 30.0),
        ("60000000", "8", None),
        ("0", "7", None),
        ("x", "7", None),
    ],
)
def test_the_watchdog_is_for_one_process(time_us: str, pid: str, expected_s: float | None) -> None:
    environment = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": time_us, "WATCHDOG_PID": pid}
    assert Systemd(environment, 7).watchdog_s == expected_s
    assert Systemd({}, 7).watchdog_s is None
