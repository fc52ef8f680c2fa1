"""What operators see and ask of garbage collection: the pages /gc, /gc/run, /gc/suspend and /gc/resume.

The supervisor passes orders on to the gc process of the boot under way and keeps what that told of itself last. What is
suspended stays so over a child's death and the boot that follows; a bookie that is started anew begins with nothing
suspended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastbk.errors import ConfigError, StorageError
from fastbk.observe import logs
from fastbk.server.gc_messages import KINDS, LEDGERS
from fastbk.server.process_table import GC

if TYPE_CHECKING:
    from fastbk.server.supervision.spawn import Boot
    from fastbk.web.page_server import PageServer

Send = Callable[[dict[str, Any]], bool]
"""Hands a message to the gc process; False when it is gone."""


class GcGone(StorageError):
    """There is no gc process now: the bookie is starting, stopping, or serves reads only."""

    default_retryable = True


class GcAdmin:
    """One bookie's, over all its boots."""

    def __init__(self) -> None:
        self._send: Send | None = None
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

    def attach(self, boot: Boot) -> None:
        """Speak to the gc process of a new boot, if it has one, and tell that what is suspended."""
        self._lost = self._number
        if GC not in boot.children:
            return
        self._send = boot.children[GC].send
        if self._suspended:
            self._send({"type": "gc_suspend", "what": sorted(self._suspended)})

    def detach(self) -> None:
        """The boot is over."""
        self._send = None

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
            "running": self._send is not None,
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
        if self._send is None or not self._send(message):
            raise GcGone(
                "no gc process runs now: see /readyz for what the bookie is at; try again once it is ready"
            )


def _what(asked: dict[str, Any], default: object) -> list[str]:
    what = asked.get("what") or default
    if not isinstance(what, list | tuple) or not all(one in KINDS for one in what):
        raise ConfigError(f"what must be a list of: {', '.join(KINDS)}")
    return list(what)
