"""Log events of ensemble changes: which bookie was replaced, from which entry on, why, and by which client."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable

from fastbk.model.ids import LedgerId
from fastbk.observe.library_log import LibraryLog
from fastbk.replication.ensemble_change import Replacement

_log = LibraryLog("fastbk.client")


def client_name() -> str:
    """Return how other people find this client: its host and process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def log_replacements(ledger_id: LedgerId, cause: str, replacements: Iterable[Replacement]) -> None:
    """Log each of them. `cause`: "writer", "recovery" or "repair"."""
    for one in replacements:
        _log.warning(
            "ledger.bookie_replaced",
            ledger_id=ledger_id,
            first_entry_id=one.first_entry_id,
            bookie=one.bookie_id,
            replacement=one.replacement,
            index=one.index,
            reason=one.reason,
            cause=cause,
            client=client_name(),
        )


def take(replacements: list[Replacement]) -> list[Replacement]:
    """Return what is in a list, and empty it."""
    taken = replacements[:]
    replacements.clear()
    return taken
