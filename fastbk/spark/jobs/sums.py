"""What is held against each other when data went from one place to another: how much, which, the sum of all hashes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True, slots=True)
class Sums:
    """Of one stream's records: how many, first and last number (-1: none), bytes of payloads, the sum of hashes."""

    records: int = 0
    first_seq: int = -1
    last_seq: int = -1
    size_bytes: int = 0
    hashes: str = "0"

    @property
    def has_holes(self) -> bool:
        """Whether numbers are missing, or there twice."""
        return self.records > 0 and self.records != self.last_seq - self.first_seq + 1


def sums_of(rows: DataFrame, hashed: Sequence[Column | str]) -> dict[str, Sums]:
    """Return the sums of rows with the columns stream, seq and value, for each stream, in one pass.

    `hashed`: what has to be the same; the order of rows does not matter, so `seq` should be among it.
    """
    # As a decimal: a sum of many 64-bit numbers does not fit into 64 bits.
    total = f.sum(f.xxhash64(*hashed).cast("decimal(20,0)")).cast("decimal(38,0)").cast("string")
    found = rows.groupBy("stream").agg(
        f.count("*"),
        f.min("seq"),
        f.max("seq"),
        f.sum(f.coalesce(f.length("value"), f.lit(0))),
        total,
    )
    return {stream: Sums(*rest) for stream, *rest in found.collect()}
