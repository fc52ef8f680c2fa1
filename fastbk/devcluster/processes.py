"""What can be asked of processes and ports of this machine from outside."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


def is_free(port: int) -> bool:
    """Return whether a bookie could have `port` on loopback now. Port 0 is nobody's."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return port != 0


def free_port() -> int:
    """Return a port of the loopback that nobody listens on; where one takes it first, the next start has another."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def is_alive(pid: int) -> bool:
    """Return whether process `pid` exists and is not merely waiting to be collected."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def wait_for(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Wait until `condition()` holds, looking every few milliseconds. Raises TimeoutError naming
    `what`.
    """
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}")
        time.sleep(0.005)


def memory_pss_bytes(pids: Iterable[int]) -> int:
    """Return the proportional set size of these processes together; those that are gone count
    nothing.
    """
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total * 1024


def cpu_seconds(pids: Mapping[str, int]) -> dict[str, float]:
    """Return processor time spent so far (user and system) by process name."""
    spent: dict[str, float] = {}
    for name, pid in pids.items():
        # The clock of a process, as clock_getcpuclockid(3) makes it: to the nanosecond, where /proc has hundredths.
        with contextlib.suppress(OSError):
            spent[name] = time.clock_gettime(~pid << 3 | 2)
    return spent
