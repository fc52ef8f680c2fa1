"""The page /log_level: how much the processes of a bookie log, changed while it runs.

The supervisor changes its own level and sends the new one to all children. A child that is started later inherits it
with the environment. A bookie that is started anew has the level of FASTBK_LOG_LEVEL again: a level that somebody
forgot must not fill a disk for years.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import ConfigError
from fastbk.observe import logs

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.server.supervision.spawn import Boot
    from fastbk.web.page_server import Request, Response

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
