"""How much lies between two offsets, for reports: records exactly, bytes about. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fastbk.spark.offsets import Offsets
from fastbk.spark.splits import RECORD_BYTES


@dataclass(frozen=True, slots=True)
class Known:
    """What the last look said of one stream or ledger."""

    first: int
    """The number of its first record, or entry."""
    each_bytes: float
    """Of a record or entry, about."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Records, or entries of ledgers."""

    records: int
    size_bytes: int
    by_name: Mapping[str, int]
    """Of each stream or ledger that has any."""

    def to_json(self) -> dict[str, object]:
        """Return it for Spark's reports."""
        return {"records": self.records, "bytes": self.size_bytes}


def amount(start: Offsets, end: Offsets, known: Mapping[str, Known]) -> Amount:
    """Return what lies from `start` to `end`; of what is not in `start`, or another stream there, from its first on."""
    found = {str(one): at - start.ledgers.get(one, 0) for one, at in end.ledgers.items()}
    for path, at in end.streams.items():
        before = start.streams.get(path)
        if before is not None and before.stream_id == at.stream_id:
            found[path] = at.seq - before.seq
        elif path in known:
            found[path] = at.seq - known[path].first
    found = {name: count for name, count in found.items() if count > 0}
    plain = Known(0, RECORD_BYTES)
    size_bytes = sum(count * known.get(name, plain).each_bytes for name, count in found.items())
    return Amount(sum(found.values()), round(size_bytes), found)
