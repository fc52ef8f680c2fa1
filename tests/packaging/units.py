"""systemd's unit files as tests read them, and run them where there is no systemd."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from fastbk.observe.systemd import SOCKET, WATCHDOG_US
from tests.fixtures.wait import wait_until
from tests.style.tree import ROOT

UNITS = ROOT / "packaging" / "systemd"
SERVICES = (
    "fastbk-bookie@.service",
    "fastbk-janitor.service",
    "fastbk-autorecovery.service",
    "fastbk-gateway.service",
    "fastbk-serve.service",
    "fastbk-console.service",
)


def unit(path: Path) -> dict[str, dict[str, list[str]]]:
    """Return a unit's sections: each key has all its values."""
    sections: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    section = ""
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            sections[section][key].append(value)
    return sections


class Supervised:
    """A service that is started, watched and started again as its unit says: what systemd does, as far as units use it.

    Nothing happens by itself: `watch` has to be called all the time.

    Attributes:
        ends: what each process ended with, in order; negative: the signal.
        is_ready: whether the process that runs now has said so.
        watchdog_kills: processes that were killed since they did not say that they are alive.
    """

    def __init__(self, name: str, folder: Path, *, restart_s: float, watchdog_s: float) -> None:
        """`folder`: has `etc`, which the unit finds as /etc/fastbk. The times are those of a drop-in."""
        self.name = name
        self.log = folder / f"{name}.log"
        self.ends: list[int] = []
        self.is_ready = False
        self.watchdog_kills = 0
        self._service = unit(UNITS / name)["Service"]
        self._restart_s, self._watchdog_s = restart_s, watchdog_s
        self._codes_of_no_restart = {
            0,
            *map(int, self._service["RestartPreventExitStatus"][0].split()),
        }
        self._start_s = _seconds(self._service["TimeoutStartSec"][0])
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._starts_at_s = time.monotonic()
        self._ends_at_s = 0.0
        """When the start has to be done, and after that: when the next sign of life has to be there."""
        self._notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notified.bind(str(folder / f"{name}.notify"))
        self._notified.setblocking(False)

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def watch(self) -> None:
        """Do what is due: take its words, start it, start it again, kill it."""
        now_s = time.monotonic()
        self._take_words(now_s)
        if self._process is None:
            if now_s >= self._starts_at_s:
                self._start(now_s)
            return
        code = self._process.poll()
        if code is not None:
            self._process = None
            self.is_ready = False
            self.ends.append(code)
            assert code not in self._codes_of_no_restart, (
                f"{self.name} is not started again: {self.text()}"
            )
            self._starts_at_s = now_s + self._restart_s
        elif now_s > self._ends_at_s:
            assert self.is_ready, f"{self.name}: TimeoutStartSec is over: {self.text()}"
            self.watchdog_kills += 1
            self._process.send_signal(signal.SIGABRT)
            self._ends_at_s = now_s + self._watchdog_s

    def stop(self) -> int:
        """End it as `systemctl stop` does; return what it ended with, 0 if it does not run."""
        if self._process is None:
            return 0
        self._process.terminate()
        return self._process.wait(timeout=_seconds((self._service["TimeoutStopSec"] or ["90s"])[0]))

    def close(self) -> None:
        """Kill what still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._notified.close()

    def text(self) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace")[-3000:] if self.log.exists() else "no log"

    def _start(self, now_s: float) -> None:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("FASTBK_")
        }
        for text in self._service["Environment"]:
            environment |= dict(word.split("=", 1) for word in shlex.split(text))
        for file in self._service["EnvironmentFile"]:
            lines = Path(self._placed(file)).read_text().splitlines()
            environment |= dict(line.split("=", 1) for line in lines)
        words: list[str] = []
        for word in shlex.split(self._service["ExecStart"][0]):
            # As systemd has it: a variable that stands alone becomes as many words as it has.
            words += (
                environment.get(word[1:], "").split()
                if word.startswith("$")
                else [self._placed(word)]
            )
        assert words[0] == "/usr/bin/fastbk"
        environment[SOCKET] = str(self._folder / f"{self.name}.notify")
        environment[WATCHDOG_US] = str(int(self._watchdog_s * 1e6))
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fastbk.cli", *words[1:]],
                env=environment,
                stdout=log,
                stderr=log,
            )
        self._ends_at_s = now_s + self._start_s

    def _placed(self, text: str) -> str:
        return text.replace("/etc/fastbk", str(self._folder / "etc")).replace("%i", "bookie")

    def _take_words(self, now_s: float) -> None:
        words: list[str] = []
        while True:
            try:
                words += self._notified.recv(4096).decode().split("\n")
            except BlockingIOError:
                break
        for word in words:
            name, _, value = word.partition("=")
            if name == "READY":
                self.is_ready = True
            if name in ("READY", "WATCHDOG") and self.is_ready:
                self._ends_at_s = now_s + self._watchdog_s
            elif name == "EXTEND_TIMEOUT_USEC" and not self.is_ready:
                self._ends_at_s = max(self._ends_at_s, now_s + int(value) / 1e6)


def _seconds(text: str) -> float:
    """Return a time of systemd's, of one number."""
    number = text.rstrip("mins")
    return float(number) * (60 if text.endswith("min") else 1)


def watch_until(
    services: Iterable[Supervised], condition: Callable[[], object], what: str, deadline_s: float
) -> None:
    """Watch services until `condition` holds; fail with what they logged."""
    services = list(services)

    def holds() -> object:
        for one in services:
            one.watch()
        return condition()

    try:
        wait_until(holds, what, deadline_s)
    except AssertionError as error:
        logs = "\n".join(
            f"{one.name} (ready: {one.is_ready}, ends: {one.ends}): {one.text()}"
            for one in services
        )
        raise AssertionError(f"{error}\n{logs}") from error
