"""Faults that whoever started a bookie has put on it, to test an application: `fastbk.testing` does.

They come by the lifeline, a socket that only the process has which started the bookie for itself: no setting, no
variable and no page can ask for them. They live in memory, and end with the bookie. Each child injects its own: a
journal delays its commits (`fastbk/native/src/io/delayed.c`), an index measures a full disk (`DiskWatch.pretend_full`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.server.supervision.spawn import Boot

FAULTS = "faults"
"""The type of a message with the fields of `Faults`: to a bookie, from it to its children, and back once they hold."""
FAULTS_TAKEN = "faults_taken"
"""The type of a child's answer: it does as the last message said."""
DELAY_MS_MAX = 10_000
_ROLES = ("journal", "index")


class Faults(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=FAULTS):
    """What is wrong with a bookie on purpose; with the defaults nothing."""

    commit_delay_ms: Annotated[int, msgspec.Meta(ge=0, le=DELAY_MS_MAX)] = 0
    """A batch of the journal counts as durable so long after it was submitted, at the earliest."""
    is_full: bool = False
    """The disks of its ledger directories have no room."""


class FaultInjection:
    """One bookie's faults, over all its boots."""

    def __init__(
        self, report: Callable[[dict[str, Any]], None], boot: Callable[[], Boot | None]
    ) -> None:
        """Begin with none.

        Args:
            report: gets the faults, as a message, once all children do as they say.
            boot: returns the boot whose children are ready, if there is one.
        """
        self._report = report
        self._faults = Faults()
        self._boot = boot
        self._unanswered = 0

    def boot_is_ready(self) -> None:
        """Inject into the children of the new boot."""
        self._unanswered = 0
        if self._faults != Faults():
            self._send()

    def take(self, message: dict[str, Any]) -> None:
        """Put these faults in place of those before. Raises msgspec.ValidationError."""
        self._faults = msgspec.convert(message, Faults)
        self._send()

    def taken(self, message: dict[str, Any]) -> None:
        """One more child does as it was last asked."""
        self._unanswered -= 1
        if self._unanswered == 0:
            self._report(msgspec.to_builtins(self._faults))

    def _send(self) -> None:
        if (boot := self._boot()) is None:
            return
        message = msgspec.to_builtins(self._faults)
        for process, child in boot.children.items():
            if process.role in _ROLES:
                child.send(message)
                boot.ring(process)
                self._unanswered += 1
