"""Entries that a bookie should hold and may lack: what a mark of an under-replicated ledger says. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec

from fastbk.model.ids import ID_MAX, BookieId, EntryId

RANGES_MAX = 100
"""Ranges that a mark keeps for one bookie. A mark with more covers them by one range."""


_Count = Annotated[int, msgspec.Meta(ge=0, le=ID_MAX)]


class _Row(msgspec.Struct):
    """A range in a mark's JSON."""

    bookie: str
    first: _Count
    last: _Count | None
    reason: str = ""
    marked_ms: _Count = 0


class _Mark(msgspec.Struct):
    """A mark's JSON."""

    version: int
    missing: tuple[_Row, ...]


@dataclass(frozen=True, slots=True)
class MissingReplica:
    """A range of entry ids. The bookie may lack those that belong to its share.

    Attributes:
        last_entry_id: None where the range has no end yet, since the ledger is still being written.
        reason: why they are missing.
        marked_ms: when they were marked, by the clock of the client that did; 0 where nobody said.
    """

    bookie_id: BookieId
    first_entry_id: EntryId
    last_entry_id: EntryId | None = None
    reason: str = ""
    marked_ms: int = 0

    @property
    def end(self) -> float:
        """Return the id behind the last one, infinite where the range has no end."""
        return math.inf if self.last_entry_id is None else self.last_entry_id + 1


def merged(replicas: Iterable[MissingReplica]) -> tuple[MissingReplica, ...]:
    """Return the same entries in as few ranges as possible, by bookie and entry. The oldest reason stays."""
    found: list[MissingReplica] = []
    for replica in sorted(
        replicas, key=lambda one: (one.bookie_id, one.first_entry_id, one.marked_ms)
    ):
        before = found[-1] if found else None
        if (
            before is None
            or before.bookie_id != replica.bookie_id
            or replica.first_entry_id > before.end
        ):
            found.append(replica)
        elif replica.end > before.end:
            found[-1] = replace(before, last_entry_id=replica.last_entry_id)
    return tuple(_covered(found))


def _covered(replicas: list[MissingReplica]) -> Iterable[MissingReplica]:
    counts: dict[BookieId, int] = {}
    for replica in replicas:
        counts[replica.bookie_id] = counts.get(replica.bookie_id, 0) + 1
    covers: dict[BookieId, MissingReplica] = {}
    for replica in replicas:
        if counts[replica.bookie_id] <= RANGES_MAX:
            yield replica
        else:
            cover = covers.get(replica.bookie_id, replica)
            covers[replica.bookie_id] = replace(cover, last_entry_id=replica.last_entry_id)
    yield from covers.values()


def without(
    replicas: Iterable[MissingReplica], removed: Iterable[MissingReplica]
) -> tuple[MissingReplica, ...]:
    """Return `replicas` but for the entries of `removed`."""
    left = list(replicas)
    for gone in removed:
        cut: list[MissingReplica] = []
        for one in left:
            if (
                one.bookie_id != gone.bookie_id
                or gone.end <= one.first_entry_id
                or one.end <= gone.first_entry_id
            ):
                cut.append(one)
                continue
            if one.first_entry_id < gone.first_entry_id:
                cut.append(replace(one, last_entry_id=gone.first_entry_id - 1))
            if gone.last_entry_id is not None and gone.end < one.end:
                cut.append(replace(one, first_entry_id=gone.last_entry_id + 1))
        left = cut
    return merged(left)


def to_json(replicas: Iterable[MissingReplica]) -> bytes:
    """Return the bytes that a mark stores."""
    rows = [
        {
            "bookie": replica.bookie_id,
            "first": replica.first_entry_id,
            "last": replica.last_entry_id,
            "reason": replica.reason,
            "marked_ms": replica.marked_ms,
        }
        for replica in replicas
    ]
    return json.dumps({"version": 1, "missing": rows}, separators=(",", ":")).encode()


def from_json(raw: bytes) -> tuple[MissingReplica, ...]:
    """Return what a mark says. Raises ValueError."""
    try:
        message = msgspec.json.decode(raw, type=_Mark)
    except RecursionError as error:
        raise ValueError(str(error)) from error
    if message.version != 1:
        raise ValueError(f"version {message.version} is not known")
    return tuple(
        MissingReplica(one.bookie, one.first, one.last, one.reason, one.marked_ms)
        for one in message.missing
    )
