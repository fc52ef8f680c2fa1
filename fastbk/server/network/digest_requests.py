"""Asks the supervisor which digests the ledgers of Apache's clients have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from fastbk.native.worker import Worker

INTERVAL_S = 0.05
"""Between two questions; the first after a pause goes out at once."""


class DigestRequests:
    """Requests the digests of ledgers of Apache's clients from the supervisor (`supervision/digest_service.py`).

    No add waits for this: an entry whose digest is not known yet is stored unverified, and counted.
    """

    def __init__(self, worker: Worker, loop: asyncio.AbstractEventLoop) -> None:
        self._worker = worker
        self._loop = loop
        self._due: asyncio.TimerHandle | None = None
        self._next_s = 0.0
        self.send: Callable[[dict[str, Any]], bool] | None = None
        """Hands a message to the supervisor; never waits. What does not get there C wants again in some seconds."""

    def request_soon(self) -> None:
        """Ask for what C wants to know, unless a question is about to go out anyway."""
        if self._due is None:
            self._due = self._loop.call_at(self._next_s, self._request)

    def known(self, message: dict[str, Any]) -> None:
        """Hand over what the supervisor said."""
        self._worker.digests_known(
            [(int(ledger_id), digest_type) for ledger_id, digest_type in message["digests"]]
        )

    def stop(self) -> None:
        """Ask nothing more."""
        if self._due is not None:
            self._due.cancel()

    def _request(self) -> None:
        self._due = None
        ledgers = self._worker.digests_wanted()
        if not ledgers:
            return
        self._next_s = self._loop.time() + INTERVAL_S
        if self.send is not None:
            self.send({"type": "digests_wanted", "ledgers": ledgers})
