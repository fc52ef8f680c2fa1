"""What operators ask of a running bookie by its pages: garbage collection, no adds, another log level.

- `GcAdmin`: the pages /gc, /gc/run, /gc/suspend and /gc/resume. The supervisor passes orders on to the gc process of
  the boot under way and keeps what that told of itself last. What is suspended stays so over a child's death and the
  boot that follows; a bookie that is started anew begins with nothing suspended.
- `ReadOnlyAdmin`: no adds any more, or all again. Recovery adds, fences and reads always go on. The journals refuse;
  registration and state follow what they say, as they do where a disk is full. What was asked for stays so over a
  child's death and the boot that follows, and over a restart where `[bookie] read_only_persists` says so.
- `LogLevel`: the page /log_level. The supervisor changes its own level and sends the new one to all children. A child
  that is started later inherits it with the environment. A bookie that is started anew has the level of
  FASTBK_LOG_LEVEL again: a level that somebody forgot must not fill a disk for years.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any

import msgspec

from fastbk.errors import ConfigError, StorageError
from fastbk.native.disk import Disk
from fastbk.observe import logs
from fastbk.server.gc_messages import KINDS, LEDGERS
from fastbk.server.process_table import GC
from fastbk.storage import small_files

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.server.admin.metrics import Metrics
    from fastbk.server.configuration.bookie_config import BookieConfig
    from fastbk.server.supervision.spawn import Boot, ChildProcess
    from fastbk.web.page_server import PageServer, Request, Response


class GcGone(StorageError):
    """There is no gc process now: the bookie is starting, stopping, or serves reads only."""

    default_retryable = True


class GcAdmin:
    """One bookie's, over all its boots."""

    def __init__(self, boot: Callable[[], Boot | None]) -> None:
        """`boot`: returns the boot whose children are ready, if there is one."""
        self._boot = boot
        self._status: dict[str, Any] = {}
        self._suspended: set[str] = set()
        self._number = 0
        self._lost = 0
        """Runs up to this number were asked of processes that are gone."""

    def add_routes(self, admin: PageServer) -> None:
        """Have the pages answered."""
        admin.add_route("GET", "/gc", self.status)
        for name, handler in (
            ("run", self.run),
            ("suspend", self.suspend),
            ("resume", self.resume),
        ):
            admin.add_route("POST", f"/gc/{name}", handler)

    def boot_is_ready(self) -> None:
        """Tell the gc process of the new boot, if it has one, what is suspended."""
        self._lost = self._number
        if self._suspended and (gc := self._process) is not None:
            gc.send({"type": "gc_suspend", "what": sorted(self._suspended)})

    @property
    def _process(self) -> ChildProcess | None:
        boot = self._boot()
        return None if boot is None else boot.children.get(GC)

    def take_status(self, message: dict[str, Any]) -> None:
        """Keep what gc told of itself."""
        status = message.get("status")
        if isinstance(status, dict):
            self._status = status

    @property
    def listed_id(self) -> int:
        """The highest ledger id that gc saw in metadata's listings, -1 where it saw none."""
        return int(self._status.get("listed_id", -1))

    def compactions_ended(self, kind: str) -> int:
        """Return how many looks of that kind of compaction the gc process has ended."""
        return int(self._status.get("ended", {}).get(kind, {}).get("count", 0))

    async def status(self, _: dict[str, Any]) -> object:
        """Answer GET /gc."""
        return {
            "running": self._process is not None,
            "runs_asked": self._number,
            "runs_lost": self._lost,
            **self._status,
            "suspended": sorted(self._suspended),
        }

    async def run(self, asked: dict[str, Any]) -> object:
        """Answer POST /gc/run: {"what": [...], "force": bool}. It is over when `run_done` has reached its number."""
        what = _what(asked, [LEDGERS])
        force = asked.get("force", False)
        if not isinstance(force, bool):
            raise ConfigError("force must be true or false")
        self._number += 1
        self._order({"type": "gc_run", "what": what, "force": force, "number": self._number})
        logs.warning("gc.run_asked", what=what, force=force, number=self._number)
        return {"number": self._number}

    async def suspend(self, asked: dict[str, Any]) -> object:
        """Answer POST /gc/suspend: {"what": [...]}, everything without."""
        what = _what(asked, KINDS)
        self._suspended.update(what)
        self._order({"type": "gc_suspend", "what": what})
        return {"suspended": sorted(self._suspended)}

    async def resume(self, asked: dict[str, Any]) -> object:
        """Answer POST /gc/resume: {"what": [...]}, everything without."""
        what = _what(asked, KINDS)
        self._suspended.difference_update(what)
        self._order({"type": "gc_resume", "what": what})
        return {"suspended": sorted(self._suspended)}

    def _order(self, message: dict[str, Any]) -> None:
        gc = self._process
        if gc is None or not gc.send(message):
            raise GcGone(
                "no gc process runs now: see /readyz for what the bookie is at; try again once it is ready"
            )


def _what(asked: dict[str, Any], default: object) -> list[str]:
    what = asked.get("what") or default
    if not isinstance(what, list | tuple) or not all(one in KINDS for one in what):
        raise ConfigError(f"what must be a list of: {', '.join(KINDS)}")
    return list(what)


ASKED = "an operator asked for no adds"
FORCED = "[bookie] read_only is set"
ASKED_WAIT_S = 5.0
ASKED_POLL_S = 0.01


class ReadOnlyAdmin:
    """One bookie's, over all its boots."""

    def __init__(self, config: BookieConfig, boot: Callable[[], Boot | None]) -> None:
        """`boot`: returns the boot whose children are ready, if there is one."""
        self.is_forced = config.bookie.read_only
        self._persists = config.bookie.read_only_persists
        self._directory = config.ledgers.all_directories[0]
        self._is_asked = False
        self._boot = boot
        self._turn = asyncio.Lock()

    @property
    def reason(self) -> str:
        """Why there are to be no adds; empty: there may be."""
        if self.is_forced:
            return FORCED
        return ASKED if self._is_asked else ""

    def load(self) -> None:
        """Take up what was asked before the last restart. With the directory locked. Raises StorageError, OSError."""
        if not self._persists:
            return
        with Disk.of_small_files() as disk:
            self._is_asked = small_files.is_read_only_requested(disk, self._directory)

    def boot_is_ready(self) -> None:
        """Tell the journals of the new boot."""
        self._order()

    async def request(self, metrics: Metrics, *, read_only: bool) -> None:
        """Have the journals refuse normal adds, or take them again; returns once they do, or after ASKED_WAIT_S.

        What a full disk refuses stays refused. Raises ConfigError, OSError.
        """
        if self.is_forced and not read_only:
            raise ConfigError(f"{FORCED}: change that, and restart the bookie")
        # Who asked may be gone before the disk is done: what is written down happens all the same.
        await asyncio.shield(asyncio.create_task(self._change(read_only)))
        deadline_s = time.monotonic() + ASKED_WAIT_S
        while time.monotonic() < deadline_s and (boot := self._boot()) is not None:
            journals = sum(process.role == "journal" for process in boot.children)
            if metrics.journals_refusing() == (journals if read_only else 0):
                return
            await asyncio.sleep(ASKED_POLL_S)

    async def _change(self, read_only: bool) -> None:
        """Write it down and have it done; one at a time, in the order in which they were asked."""
        async with self._turn:
            if self._persists:
                await asyncio.to_thread(self._write, read_only)
            self._is_asked = read_only
            logs.warning("bookie.read_only_asked", read_only=read_only, persists=self._persists)
            self._order()

    def _write(self, read_only: bool) -> None:
        with Disk.of_small_files() as disk:
            small_files.write_read_only_request(disk, self._directory, is_read_only=read_only)

    def _order(self) -> None:
        if (boot := self._boot()) is None:
            return
        for process, child in boot.children.items():
            if process.role == "journal":
                child.send({"type": "refuse_adds", "on": bool(self.reason)})
                boot.ring(process)


PATH = "/log_level"


class LogLevel:
    """One bookie's."""

    def __init__(self, boot: Callable[[], Boot | None]) -> None:
        """`boot`: returns the boot under way, None between two."""
        self._boot = boot

    async def page(self, request: Request) -> Response:
        """Answer GET, and PUT {"level": "debug"}: the level, and with PUT the processes that were sent it."""
        from fastbk.web.page_server import decoded_object  # not before the children run

        if request.method == "GET":
            return _answer(200, {"level": logs.level()})
        if request.method != "PUT":
            return _answer(405, {"error": f"{PATH} takes GET and PUT"})
        try:
            level = decoded_object(request.body).get("level")
            if not isinstance(level, str) or level not in logs.LEVELS:
                raise ConfigError(f"level must be one of {', '.join(logs.LEVELS)}, not {level!r}")
        except ConfigError as error:
            return _answer(400, {"error": str(error)})
        return _answer(200, {"level": level, "processes": self.change(level)})

    def change(self, level: str) -> list[str]:
        """Have all processes log from `level` on; return the names of those that were sent it."""
        before = logs.level()
        logs.set_level(level)
        os.environ[logs.LEVEL_VARIABLE] = level
        sent = ["supervisor"]
        boot = self._boot()
        if boot is not None:
            for process, child in boot.children.items():
                if child.send({"type": "log_level", "level": level}):
                    boot.ring(process)
                    sent.append(process.name)
        # At a level that is logged before and after: who reads the log has to know what it leaves out.
        said = max(level, before, "info", key=logs.LEVELS.__getitem__)
        logs.write(said, "log.level_changed", {"before": before, "to": level})
        return sent


def _answer(status: int, body: dict[str, object]) -> Response:
    return status, "application/json", msgspec.json.encode(body) + b"\n"
