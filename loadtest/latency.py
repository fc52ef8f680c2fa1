"""A histogram of microseconds with at most 1.6 % of error: locust rounds its own to whole units and two digits.

Histograms of several processes are added bucket by bucket: percentiles of the sum are those of all requests together.
"""

from __future__ import annotations

SUB_BITS = 6
SUB_COUNT = 1 << SUB_BITS


def bucket_of(value: int) -> int:
    """Return the bucket of a value ≥ 0: exact below 64, then 64 buckets an octave."""
    if value < SUB_COUNT:
        return value
    shift = value.bit_length() - SUB_BITS - 1
    return (shift + 1) * SUB_COUNT + (value >> shift) - SUB_COUNT


def top_of(bucket: int) -> int:
    """Return the largest value that falls into `bucket`."""
    if bucket < SUB_COUNT:
        return bucket
    octave, sub = divmod(bucket, SUB_COUNT)
    return ((SUB_COUNT + sub + 1) << (octave - 1)) - 1


class Latency:
    """Counts of one kind of request."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.count = 0
        self.failures = 0
        self.max_us = 0
        self.size_bytes = 0

    def record(self, value_us: float, size_bytes: int = 0) -> None:
        """Count one request that took `value_us` microseconds."""
        value = max(0, int(value_us))
        bucket = bucket_of(value)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1
        self.count += 1
        self.max_us = max(self.max_us, value)
        self.size_bytes += size_bytes

    def add(self, other: Latency) -> None:
        """Count what another one has counted, too."""
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.count += other.count
        self.failures += other.failures
        self.max_us = max(self.max_us, other.max_us)
        self.size_bytes += other.size_bytes

    def percentile_us(self, percent: float) -> int:
        """Return the value that `percent` of all do not exceed, 0 when there are none."""
        wanted = self.count * percent / 100
        seen = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= wanted:
                return min(top_of(bucket), self.max_us)
        return 0

    def summary(self) -> dict[str, int]:
        """Return count, failures, bytes and percentiles in microseconds."""
        return {
            "count": self.count,
            "failures": self.failures,
            "size_bytes": self.size_bytes,
            "p50_us": self.percentile_us(50),
            "p90_us": self.percentile_us(90),
            "p99_us": self.percentile_us(99),
            "p999_us": self.percentile_us(99.9),
            "max_us": self.max_us,
        }

    def to_words(self) -> list[int]:
        """Return all of it as numbers, for a message."""
        pairs = [word for pair in self.counts.items() for word in pair]
        return [self.count, self.failures, self.max_us, self.size_bytes, *pairs]

    @classmethod
    def of_words(cls, words: list[int]) -> Latency:
        """Return what `to_words` has made numbers of."""
        made = cls()
        made.count, made.failures, made.max_us, made.size_bytes = words[:4]
        made.counts = dict(zip(words[4::2], words[5::2], strict=True))
        return made
