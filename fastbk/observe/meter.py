"""Figures of clients: how long things take, and metrics by OpenTelemetry's API package (the extra `tracing`).

A `LatencyHistogram` costs little. An append is too short for a measurement of its own: what was sent together is
measured together (`AppendClock`).

docs/tracing.md has all metrics. `connect(tracing=fastbk.Tracing())` switches them on, with spans. All instruments are
observed: OpenTelemetry's SDK asks for them when it exports, in its own thread, and until then nothing is done but the
counting for `stats()`.

Decision 157.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, cast
from weakref import WeakMethod

from fastbk.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

    from fastbk.observe.tracing import Tracing

WINDOW_S = 60.0
"""Quantiles are those of the last one to two windows."""
_EXACT_US = 16
"""Below it a bucket is a microsecond; above, an eighth to a sixteenth of its value."""


@dataclass(frozen=True, slots=True)
class Latency:
    """How long something took, in seconds."""

    count: int = 0
    """How often it was measured, over the whole life."""
    total_s: float = 0.0
    """All of that time together: divided by `count` it is the mean."""
    p50_s: float = 0.0
    """The median of the last one to two minutes, to 6 %; 0 where nothing was measured in them."""
    p99_s: float = 0.0
    """What 99 of 100 of the same time took at most."""


class LatencyHistogram:
    """Counts of one thing. Written by one thread, and read by any.

    Attributes:
        count, total_s: see `Latency`.
    """

    __slots__ = ("_before", "_began_s", "_buckets", "count", "total_s")

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self._buckets: dict[int, int] = {}
        self._before: dict[int, int] = {}
        self._began_s = 0.0

    def record(self, took_s: float, count: int, now_s: float) -> None:
        """Note that `count` of them took so long each. `now_s`: by the monotonic clock."""
        if now_s - self._began_s >= WINDOW_S:
            is_next = now_s - self._began_s < 2 * WINDOW_S
            self._before, self._buckets = self._buckets if is_next else {}, {}
            self._began_s = now_s
        self.count += count
        self.total_s += took_s * count
        took_us = int(took_s * 1e6)
        if took_us >= _EXACT_US:
            shift = took_us.bit_length() - 4
            took_us = shift * 8 + (took_us >> shift)
        buckets = self._buckets
        buckets[took_us] = buckets.get(took_us, 0) + count

    def latency(self) -> Latency:
        """Return what is known now."""
        age_s = time.monotonic() - self._began_s
        counts: dict[int, int] = {}
        if age_s < 2 * WINDOW_S:
            for one in (self._buckets, self._before if age_s < WINDOW_S else {}):
                for bucket, count in list(one.items()):
                    counts[bucket] = counts.get(bucket, 0) + count
        p50_s, p99_s = (_quantile_s(counts, share) for share in (0.5, 0.99))
        return Latency(self.count, self.total_s, p50_s, p99_s)


def _quantile_s(counts: dict[int, int], share: float) -> float:
    """Return what this share of them took at most; 0 if there are none."""
    left = share * sum(counts.values())
    for bucket in sorted(counts):
        left -= counts[bucket]
        if left <= 0:
            return _middle_us(bucket) / 1e6
    return 0.0


def _middle_us(bucket: int) -> float:
    if bucket < _EXACT_US:
        return bucket + 0.5
    shift = bucket // 8 - 1
    return ((bucket - shift * 8) + 0.5) * (1 << shift)


class AppendClock:
    """Measures what begins in the order of its numbers, and ends in the same order.

    It costs something for each group that begins together, and for each that ends together; nothing for each number.
    """

    __slots__ = ("_begun", "_ended", "histogram")

    def __init__(self, first: int = 0) -> None:
        """`first`: the number of what begins first."""
        self.histogram = LatencyHistogram()
        self._begun: deque[tuple[int, float]] = deque()
        self._ended = first

    def begin(self, end: int, now_s: float) -> None:
        """All below `end` that had not begun has begun, at this moment of the monotonic clock."""
        self._begun.append((end, now_s))

    def finish(self, end: int) -> None:
        """All below `end` has ended, now."""
        begun, before = self._begun, self._ended
        now_s = time.monotonic()
        while begun and before < end:
            group_end, began_s = begun[0]
            reached = min(group_end, end)
            if reached > before:
                self.histogram.record(now_s - began_s, reached - before, now_s)
                before = reached
            if group_end > end:
                break
            begun.popleft()
        self._ended = max(before, end)


Figures: TypeAlias = Mapping[str, float]
"""Values by the names of `INSTRUMENTS`."""
Attributes: TypeAlias = Mapping[str, str]
_Key: TypeAlias = tuple[tuple[str, str], ...]

SERIES_MAX = 1000
"""Different streams and cursors that have series of their own; all others share one for each direction."""
OTHERS = {"fastbk.others": "true"}


class Instrument(NamedTuple):
    """What is observed of all writers or readers with the same attributes: together, or the highest of them."""

    kind: Literal["counter", "sum", "highest"]
    unit: str
    description: str


SENT, CONSUMED = "messaging.client.sent.messages", "messaging.client.consumed.messages"
DISTANCE = "fastbk.distance"
"""The attribute of `TRAFFIC`: host, rack, region, unknown or other."""
TRAFFIC = (
    "fastbk.client.bookies.received",
    "fastbk.client.bookies.sent",
    "fastbk.client.bookies.read",
    "fastbk.client.bookies.stored",
)
INSTRUMENTS = {
    SENT: Instrument(
        "counter",
        "{message}",
        "Records, or entries of ledgers, that were appended and acknowledged",
    ),
    CONSUMED: Instrument(
        "counter", "{message}", "Records, or entries of ledgers, that readers handed out"
    ),
    "fastbk.client.send.size": Instrument("counter", "By", "Bytes of what was acknowledged"),
    "fastbk.client.send.pending": Instrument(
        "sum", "{append}", "Appends that are not acknowledged yet"
    ),
    "fastbk.client.send.buffered": Instrument("sum", "By", "Bytes that are not acknowledged yet"),
    "fastbk.client.send.resent": Instrument(
        "counter", "{copy}", "Copies of entries that were sent to a bookie again"
    ),
    "fastbk.client.send.ensemble_changes": Instrument(
        "counter", "{change}", "Bookies that writers took others for"
    ),
    "fastbk.client.send.times_ahead": Instrument(
        "counter", "{segment}", "Segments behind a record of a later time"
    ),
    "fastbk.client.send.duration.total": Instrument(
        "counter", "s", "Time of all appends together, to their ends"
    ),
    "fastbk.client.send.duration.p50": Instrument(
        "highest", "s", "Median of an append in the last minutes"
    ),
    "fastbk.client.send.duration.p99": Instrument(
        "highest", "s", "99 of 100 appends in the last minutes took less"
    ),
    "fastbk.client.placements.short": Instrument(
        "counter",
        "{choice}",
        "Choices of bookies that kept less than a rule's minimum, which was not enforced",
    ),
    "fastbk.client.receive.size": Instrument("counter", "By", "Bytes of what readers handed out"),
    "fastbk.client.receive.buffered": Instrument("sum", "By", "Bytes that were read ahead"),
    "fastbk.client.receive.lag": Instrument(
        "highest", "{message}", "Records that a reader knows of, not handed out"
    ),
    "fastbk.client.receive.lag.duration": Instrument(
        "highest", "s", "Age of the record that was handed out last"
    ),
    "fastbk.client.receive.duration.total": Instrument(
        "counter", "s", "Time of all reads from bookies together"
    ),
    "fastbk.client.receive.duration.p50": Instrument(
        "highest", "s", "Median of a read in the last minutes"
    ),
    "fastbk.client.receive.duration.p99": Instrument(
        "highest", "s", "99 of 100 reads in the last minutes took less"
    ),
    TRAFFIC[0]: Instrument("counter", "By", "Bytes that bookies sent, by how far they are"),
    TRAFFIC[1]: Instrument("counter", "By", "Bytes that bookies were sent, by how far they are"),
    TRAFFIC[2]: Instrument("counter", "{entry}", "Entries from bookies, by how far they are"),
    TRAFFIC[3]: Instrument(
        "counter", "{copy}", "Copies of entries that bookies acknowledged, by how far they are"
    ),
}


def duration_figures(direction: Literal["send", "receive"], latency: Latency) -> dict[str, float]:
    """Return the figures of a latency."""
    prefix = f"fastbk.client.{direction}.duration"
    return {
        f"{prefix}.total": latency.total_s,
        f"{prefix}.p50": latency.p50_s,
        f"{prefix}.p99": latency.p99_s,
    }


def sending(stream: str = "") -> dict[str, str]:
    """Return the attributes of what appends to a stream; "": to ledgers."""
    return _attributes("send", stream)


def receiving(stream: str = "", cursor: str = "") -> dict[str, str]:
    """Return the attributes of what reads a stream, for a cursor perhaps; "": ledgers."""
    group = {"messaging.consumer.group.name": cursor} if cursor else {}
    return _attributes("receive", stream) | group


def _attributes(operation: str, stream: str) -> dict[str, str]:
    found = {
        "messaging.system": "fastbk",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }
    return found | ({"messaging.destination.name": stream} if stream else {})


class Source:
    """One writer or reader that is measured, until `close`."""

    def __init__(self, meter: Meter, key: _Key, figures: Callable[[], Figures]) -> None:
        self.key = key
        self.counted: dict[str, float] = {}
        """How far its counters are in those of its key."""
        self._meter = meter
        self._figures = WeakMethod(figures)  # keeps nobody alive

    def read(self) -> Figures | None:
        """Return its figures now; None: it was forgotten without being closed."""
        figures = self._figures()
        return None if figures is None else figures()

    def close(self) -> None:
        """Count what it has counted, and measure it no more; again: does nothing."""
        self._meter.leave(self)


class Meter:
    """The instruments of all clients with the same `Tracing`."""

    def __init__(self, options: Tracing) -> None:
        from opentelemetry import metrics

        self._observation = metrics.Observation
        self._lock = threading.Lock()
        self._sources: dict[int, Source] = {}
        self._counters: dict[str, dict[_Key, float]] = {}
        self._gauges: dict[str, dict[_Key, float]] = {}
        self._keys: set[_Key] = set()
        self._told: set[str] = set(INSTRUMENTS)
        """Instruments that were told by what was looked at last."""
        provider = cast("MeterProvider | None", options.meter_provider)
        meter = metrics.get_meter("fastbk", VERSION, meter_provider=provider)
        makers: dict[str, Callable[..., object]] = {
            "counter": meter.create_observable_counter,
            "sum": meter.create_observable_up_down_counter,
            "highest": meter.create_observable_gauge,
        }
        for name, (kind, unit, description) in INSTRUMENTS.items():
            makers[kind](
                name, callbacks=[partial(self._observe, name)], unit=unit, description=description
            )

    def add(self, attributes: Attributes, figures: Callable[[], Figures]) -> Source:
        """Measure something; `figures`, a method, is called in any thread, and only while its object lives."""
        key = tuple(sorted(attributes.items()))
        with self._lock:
            if key not in self._keys and len(self._keys) >= SERIES_MAX:
                shared = {name: value for name, value in attributes.items() if name in sending()}
                key = tuple(sorted((shared | OTHERS).items()))
            self._keys.add(key)
            source = Source(self, key, figures)
            self._sources[id(source)] = source
        return source

    def leave(self, source: Source) -> None:
        """Count the source a last time."""
        with self._lock:
            if self._sources.pop(id(source), None) is not None:
                self._count(source)

    def _observe(self, name: str, _: CallbackOptions) -> Iterable[Observation]:
        with self._lock:
            if name in self._told:
                self._look()
            self._told.add(name)
            is_counter = INSTRUMENTS[name].kind == "counter"
            found = dict((self._counters if is_counter else self._gauges).get(name, {}))
        return [self._observation(value, dict(key)) for key, value in found.items()]

    def _look(self) -> None:
        """Read all figures, once for all instruments that are asked for together."""
        self._told.clear()
        self._gauges = {}
        for number, source in list(self._sources.items()):
            figures = self._count(source)
            if figures is None:
                del self._sources[number]
                continue
            for name, value in figures.items():
                kind = INSTRUMENTS[name].kind
                if kind != "counter":
                    values = self._gauges.setdefault(name, {})
                    before = values.get(source.key, 0.0)
                    values[source.key] = before + value if kind == "sum" else max(before, value)

    def _count(self, source: Source) -> Figures | None:
        """Put what a source has counted since the last time to the counters of its key; return its figures."""
        try:
            figures = source.read()
        except Exception:  # noqa: BLE001 -- its thread is changing it just now: the next look finds it whole
            return {}
        for name, value in (figures or {}).items():
            if INSTRUMENTS[name].kind == "counter":
                values = self._counters.setdefault(name, {})
                new = value - source.counted.get(name, 0.0)
                values[source.key] = values.get(source.key, 0.0) + max(new, 0.0)
                source.counted[name] = value
        return figures


@cache
def meter_of(options: Tracing | None) -> Meter | None:
    """Return what measures; None: nothing is to."""
    return None if options is None else Meter(options)
