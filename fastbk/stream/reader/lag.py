"""How far readers and cursors are behind what they know to be visible."""

from __future__ import annotations

import time
from dataclasses import dataclass

from fastbk.stream.chain.chain import Chain


@dataclass(frozen=True, slots=True)
class Lag:
    """How far it is behind what it knows to be visible; exact where it has caught up."""

    records: int
    seconds: float
    """Since the last record that it handed out was appended, by this machine's clock; 0 where it has caught up."""
    size_bytes: int = 0
    """About: from the average of the segments that are closed, else of what was handed out last."""


def lag_of(chain: Chain, records: int, since_us: int, record_bytes: float) -> Lag:
    """Return the lag of so many records. `record_bytes`: the average where the chain does not say one."""
    if records <= 0:
        return Lag(0, 0.0)
    each = average_bytes(chain)
    return Lag(
        records,
        max(time.time() - (since_us or chain.last_time_us) / 1e6, 0.0),
        round(records * (record_bytes if each is None else each)),
    )


def average_bytes(chain: Chain) -> float | None:
    """Return bytes a record, of the closed segments whose rows are at hand; None if there are none."""
    closed = [row for row in chain.rows if not row.is_open]
    records = sum(row.records for row in closed)
    return sum(row.size_bytes for row in closed) / records if records else None
