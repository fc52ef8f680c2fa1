"""Bookies of ours that Apache's tests start, stop and hold up, each from the configuration that a test made."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import urllib.error
from pathlib import Path

from fastbk.devcluster import Bookie, is_free, wait_for
from tests.compat.java_cells import Answer
from tests.compat.members import http_text

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
HTTP_TIMEOUT_S = 20.0
PORT_TRIES = 10
SMALL = {
    "journalMaxSizeMB": 16,
    "journalMaxMemorySizeMb": 16,
    "dbStorage_writeCacheMaxSizeMb": 8,
    "dbStorage_readAheadCacheMaxSizeMb": 8,
}
"""What a test does not set: bookies of its size, which start fast."""


class ConfBookie(Bookie):
    """One that is started with a file of Apache's."""

    conf: Path

    def _write_config(self) -> Path:
        return self.conf


class SuiteBookies:
    """All bookies of one run of a test class, by id."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bookies: dict[str, ConfBookie] = {}

    def answers(self) -> dict[str, Answer]:
        """Return what the tests may ask, as `java_cells` serves it."""
        return {
            "spawn": self.spawn,
            "wait-ready": self.wait_ready,
            "is-running": lambda bookie_id: _word(self._bookies[bookie_id].is_running),
            "stop": self.stop,
            "suspend": lambda bookie_id: self._signal(bookie_id, signal.SIGSTOP),
            "resume": lambda bookie_id: self._signal(bookie_id, signal.SIGCONT),
            "read-only": self.set_read_only,
            "is-read-only": self.is_read_only,
            "collect-garbage": self.collect_garbage,
        }

    def spawn(self, bookie_id: str, conf: str) -> None:
        """Start a bookie and return at once."""
        bookie = self._bookies.get(bookie_id)
        if bookie is None:
            folder = self._folder / f"bookie-{len(self._bookies) + 1}-{bookie_id.replace(':', '-')}"
            folder.mkdir(parents=True)
            bookie = self._bookies[bookie_id] = ConfBookie(bookie_id, folder, {})
        text = Path(conf).read_text("iso-8859-1")
        Path(conf).unlink()
        known = {line.partition("=")[0].strip() for line in text.splitlines()}
        text += "".join(f"{key} = {value}\n" for key, value in SMALL.items() if key not in known)
        bookie.conf = bookie.directory / "bk_server.conf"
        bookie.conf.write_text(text, "iso-8859-1")
        bookie.reason = ""
        bookie.spawn()

    def wait_ready(self, bookie_id: str) -> None:
        """Wait until it serves. Raises TimeoutError, RuntimeError with what it said."""
        bookie = self._bookies[bookie_id]

        def is_settled() -> bool:
            bookie.refresh()
            return bookie.is_ready or not bookie.is_running

        port = _port(bookie.conf)
        for _ in range(PORT_TRIES):
            wait_for(is_settled, START_TIMEOUT_S, f"{bookie_id} to be ready")
            if bookie.is_ready or "cannot listen" not in bookie.reason:
                break
            # The test chose a free port, and somebody's connection has it since: not for long.
            wait_for(lambda: is_free(port), START_TIMEOUT_S, f"port {port}")
            bookie.reason = ""
            bookie.spawn()
        if not bookie.is_ready:
            raise RuntimeError(f"{bookie_id} did not start: {bookie.reason or bookie.log_tail(1)}")

    def stop(self, bookie_id: str) -> None:
        bookie = self._bookies[bookie_id]
        self._signal(bookie_id, signal.SIGCONT)
        bookie.request_stop()
        bookie.wait_gone(STOP_TIMEOUT_S)

    def stop_all(self) -> None:
        for bookie_id, bookie in self._bookies.items():
            if bookie.is_running:
                self._signal(bookie_id, signal.SIGCONT)
                bookie.request_stop()
        for bookie in self._bookies.values():
            bookie.wait_gone(STOP_TIMEOUT_S)

    def set_read_only(self, bookie_id: str, is_read_only: str) -> str | None:
        """Have it refuse writes, or take them again, over Apache's HTTP endpoint; say if it refuses to."""
        try:
            self._http(bookie_id, "state/readonly", f'{{"readOnly": {is_read_only}}}')
        except urllib.error.HTTPError as error:
            return f"refused: {error.read().decode(errors='replace')}"
        return None

    def is_read_only(self, bookie_id: str) -> str:
        """Whether it says that it refuses writes."""
        state = self._http(bookie_id, "state/readonly", None)
        return _word(isinstance(state, dict) and bool(state["readOnly"]))

    def collect_garbage(self, bookie_id: str) -> None:
        """Have it look for deleted ledgers over Apache's HTTP endpoint, and wait until it has."""
        self._http(bookie_id, "gc", "{}")
        wait_for(
            lambda: self._http(bookie_id, "gc", None) == {"is_in_force_gc": "false"},
            HTTP_TIMEOUT_S,
            f"garbage collection of {bookie_id}",
        )

    def _http(self, bookie_id: str, path: str, body: str | None) -> object:
        """GET a path of Apache's endpoints, or PUT `body` there; return the answer's JSON, or its text."""
        port = self._bookies[bookie_id].http_port
        assert port is not None
        text = http_text(port, f"/api/v1/bookie/{path}", body)
        try:
            parsed: object = json.loads(text)
        except ValueError:
            return str(text)
        return parsed

    def _signal(self, bookie_id: str, number: signal.Signals) -> None:
        """Signal what serves the network; the rest goes on, as with Apache's `suspendProcessing`."""
        bookie = self._bookies[bookie_id]
        bookie.refresh()
        for name, pid in bookie.pids.items():
            if name.startswith("worker"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)


def _port(conf: Path) -> int:
    """Return the port that a file of Apache's asks for."""
    lines = conf.read_text("iso-8859-1").splitlines()
    (port,) = (line.partition("=")[2] for line in lines if line.startswith("bookiePort "))
    return int(port)


def _word(value: bool) -> str:
    return "true" if value else "false"
