"""What goes through the order of a simulated journal."""

from __future__ import annotations

from fastbk.model.ids import EntryId, LedgerId
from fastbk.replication.procedure import BookieRequest
from tests.fixtures.decide import Kind, Take
from tests.simulation.answering import Stored
from tests.simulation.network import Connection

# One record of the journal: ledger, kind, flags, key, first entry, what is stored.
Record = tuple[LedgerId, Kind, int, bytes, EntryId, Stored | None]


class Job:
    """A record in the journal's order and who waits for it. `request_id` 0: an add of a writer's stream."""

    __slots__ = ("connection", "record", "request", "request_id", "status", "take")

    def __init__(
        self,
        take: Take,
        status: int,
        record: Record,
        connection: Connection,
        request_id: int,
        request: BookieRequest | None,
    ) -> None:
        self.take = take
        self.status = status
        self.record = record
        self.connection = connection
        self.request_id = request_id
        self.request = request


def runs_of(answers: list[tuple[EntryId, int]]) -> list[tuple[EntryId, int, int]]:
    """Return (first, count, status) for each run of consecutive entries with one status, in order."""
    runs: list[tuple[EntryId, int, int]] = []
    for entry_id, status in answers:
        if runs:
            first, count, last_status = runs[-1]
            if status == last_status and entry_id == first + count:
                runs[-1] = (first, count + 1, status)
                continue
        runs.append((entry_id, 1, status))
    return runs


def split_key(key: bytes) -> tuple[bytes, int]:
    """Return master key and creation mark: a simulated client may name a creation by four bytes behind the key."""
    return key[:20], int.from_bytes(key[20:], "little")
