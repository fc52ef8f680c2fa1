"""Prometheus text of a bookie: exact values, read from the segments of its processes at each request.

Counters of several workers are added up: one series a bookie (a dashboard that sums quantiles or
counters by bookie must not count twice). Journals and indexes of several pairs have a series each, with
the label `pair`: disks fail one by one; a single pair has no label. Counters begin anew with each
boot, as Prometheus expects of a restart.

Decision 70.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

import fastbk
from fastbk.native.segment import Histogram, Segment, Stats, bucket_from
from fastbk.observe.names import NAMES, SLOTS, Name
from fastbk.observe.prometheus import family, heading, single
from fastbk.server.supervision.lifecycle import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fastbk.server.process_table import Process
    from fastbk.server.supervision.lifecycle import Lifecycle, RestartBudget

_TIME_BOUNDS, _SIZE_BOUNDS = 20, 10
"""Buckets shown of one histogram, of times a power of two apart, of sizes and counts a power of four: every bound is
one of the stored ones, so the counts are exact."""

_COARSE = ("fastbk_index_intake_seconds", "fastbk_index_flush_seconds")
"""Histograms of which every second bound is shown: a page has fewer than 400 series."""

Family = Literal["fastbk", "apache"]
Names = Literal["all", "fastbk", "apache"]
FAMILIES: tuple[Names, ...] = ("all", "fastbk", "apache")

_STATE_VALUES = {State.WRITABLE: 1, State.READ_ONLY: 0}


class Metrics:
    """What `/metrics` answers."""

    def __init__(self, life: Lifecycle, budget: RestartBudget, names: Names = "all") -> None:
        """`names`: what is shown to those who do not ask for either family."""
        self._life = life
        self._budget = budget
        self._names = names
        self._began_s = time.time()
        self._stats: dict[str, list[Stats]] = {}
        self.boots = 0
        """How often counters began anew."""
        self._sources: dict[Family, list[Callable[[], list[str]]]] = {"fastbk": [], "apache": []}

    def add_source(self, lines: Callable[[], list[str]], family: Family = "fastbk") -> None:
        """Have `/metrics` show what `lines` returns, too: whole lines of the text format, with names of one family."""
        self._sources[family].append(lines)

    def attach(self, segments: dict[Process, int]) -> None:
        """Read from these segments from now on; their descriptors stay the caller's."""
        self.detach()
        self.boots += 1
        for process, descriptor in segments.items():
            mapped = Stats(Segment(descriptor, process.role))
            self._stats.setdefault(process.role, []).append(mapped)

    def detach(self) -> None:
        """Let go of the segments: only the supervisor's own metrics are left."""
        for stats in self._stats.values():
            for one in stats:
                one.segment.close()
        self._stats.clear()

    def stats(self, role: str) -> list[Stats]:
        """Return the statistics of each process of a role; none while none runs."""
        return self._stats.get(role, [])

    def damage(self) -> dict[str, int]:
        """Return how much waits for `fastbk bookie repair`, and how much came with wrong digests."""
        return {
            "quarantined": self.value("FBK_C_INDEX_QUARANTINED"),
            "limbo": self.value("FBK_C_INDEX_LIMBO"),
            "damage_on_record": self.value("FBK_C_INDEX_DAMAGED"),
            "bad_digests": self.value("FBK_C_INDEX_BAD_DIGESTS"),
        }

    def value(self, slot_name: str) -> int:
        """Return a counter or gauge, added up over the processes of its role; 0 when none runs."""
        return sum(self.values(slot_name))

    def values(self, slot_name: str) -> list[int]:
        """Return a counter or gauge of each process of its role."""
        slot = SLOTS[slot_name]
        return [stats.counters()[slot] for stats in self.stats(role_of(slot_name))]

    def journals_refusing(self) -> int:
        """Return how many journals refuse normal adds now."""
        return sum(value > 0 for value in self.values("FBK_C_JOURNAL_LIMIT"))

    def refuses_adds(self) -> bool:
        """Return whether the index or the journal refuses normal adds now."""
        return any(self.value(name) for name in _REFUSING)

    def text(self, names: Names | None = None) -> str:
        """Return the metrics of both families of names, or of one, in Prometheus' text format, version 0.0.4."""
        names = names or self._names
        lines: list[str] = []
        if names != "fastbk":
            lines += self._status()
            for source in self._sources["apache"]:
                lines += source()
        if names != "apache":
            for metric, kind, text, labels, value in self._own():
                lines += family(f"fastbk_{metric}", kind, text, [(labels, value)])
            lines += self._conditions()
            for source in self._sources["fastbk"]:
                lines += source()
            self._counted(lines)
        return "\n".join(lines) + "\n"

    def _counted(self, lines: list[str]) -> None:
        series = {role: list(_series(role, stats)) for role, stats in self._stats.items()}
        hides_apaches = self.value("FBK_C_WORKER_APACHE_CONNECTIONS") == 0
        for name in NAMES:
            if name.role not in series or not name.is_own:
                continue
            if hides_apaches and name.is_of_apaches_clients:
                continue
            if name.is_limit and self.value(name.slot_name) == 0:
                continue
            if name.kind == "histogram":
                lines += heading(name.metric, name.kind, name.text)
                for one in series[name.role]:
                    lines += _histogram_lines(name, one.histogram(name.slot), one.label)
                continue
            values = [(one.label, one.counters[name.slot]) for one in series[name.role]]
            if name.scale != 1.0:
                values = [(label, _number(value * name.scale)) for label, value in values]
            lines += family(name.metric, name.kind, name.text, values)

    def _status(self) -> list[str]:
        value = _STATE_VALUES.get(self._life.state, -1)
        return single(
            "bookie_SERVER_STATUS", "gauge", "1 writable, 0 read-only, -1 anything else.", value
        )

    def _conditions(self) -> list[str]:
        """Return a series for each condition of readiness that stands now; a healthy bookie has none."""
        conditions = self._life.conditions(time.monotonic())
        series = [
            (f'name="{condition.name}",concerns="{condition.concerns}"', 1)
            for condition in conditions
        ]
        text = "1 while a condition of readiness stands: /readyz has the reason."
        return family("fastbk_supervisor_condition", "gauge", text, series) if series else []

    def _own(self) -> Iterator[tuple[str, str, str, str, object]]:
        """Yield name, kind, text, labels and value of each metric of the supervisor's own."""
        life = self._life
        text = "The version that runs, and the cluster's format level, which `fastbk cluster finalize` raises."
        labels = f'version="{fastbk.__version__}",format_level="{life.format_level}"'
        yield "build_info", "gauge", text, labels, 1
        text = "Boots that ended because a child died."
        yield "supervisor_restarts_total", "counter", text, "", self._budget.total
        text = (
            "Times that children died again and again, so that only reads were served, or nothing."
        )
        yield "supervisor_crash_loops_total", "counter", text, "", self._budget.crash_loops
        text = "1 after a crash loop: only reads are served, or nothing, until the next try."
        yield "supervisor_reads_only", "gauge", text, "", int(bool(life.crash_loop))
        text = "1 while metadata is on hold: nothing is deleted until `fastbk metadata confirm`."
        yield "supervisor_metadata_on_hold", "gauge", text, "", int(bool(life.metadata_hold))
        text = "When the supervisor started, seconds since 1970."
        yield "supervisor_start_time_seconds", "gauge", text, "", round(self._began_s, 3)
        if life.unclean_start_s is not None:
            text = "When the supervisor started, if the life of the bookie before was not stopped cleanly."
            yield (
                "supervisor_unclean_start_time_seconds",
                "gauge",
                text,
                "",
                round(life.unclean_start_s, 3),
            )
        text, lasted_s = (
            "How long the bookie has been in its state.",
            time.monotonic() - life.since_s,
        )
        labels = f'state="{life.state.value}"'
        yield "supervisor_state_seconds", "gauge", text, labels, round(lasted_s, 3)


_ROLES_OF_PAIRS = ("journal", "index")
_REFUSING = ("FBK_C_JOURNAL_LIMIT", "FBK_C_INDEX_READS_ONLY")


def role_of(slot_name: str) -> str:
    """Return the role whose processes have this slot: `journal` of `FBK_C_JOURNAL_BATCHES`."""
    return slot_name.split("_")[2].lower()


class _Series:
    """What one series is made of: the statistics of one process, or those of several, added up."""

    def __init__(self, stats: list[Stats], label: str = "") -> None:
        self.label = label
        self.counters = [
            sum(values) for values in zip(*(one.counters() for one in stats), strict=True)
        ]
        self._stats = stats

    def histogram(self, slot: int) -> Histogram:
        """Return a histogram as it is now."""
        return added(one.histogram(slot) for one in self._stats)


def _series(role: str, stats: list[Stats]) -> Iterator[_Series]:
    if role in _ROLES_OF_PAIRS and len(stats) > 1:
        for pair, one in enumerate(stats):
            yield _Series([one], f'pair="{pair}"')
    else:
        yield _Series(stats)


def added(histograms: Iterable[Histogram]) -> Histogram:
    """Return the histogram of all values of several ones."""
    many = list(histograms)
    return Histogram(
        sum(one.count for one in many),
        sum(one.sum for one in many),
        max(one.max for one in many),
        [sum(times) for times in zip(*(one.buckets for one in many), strict=True)],
    )


def _histogram_lines(name: Name, histogram: Histogram, label: str) -> list[str]:
    first, own = (f"{label},", f"{{{label}}}") if label else ("", "")
    bounds = list(cumulative(histogram, name.scale))
    if name.metric in _COARSE:
        # the counts are of all below, so any bounds may be left out
        bounds = bounds[::-1][::2][::-1]
    lines = [
        f'{name.metric}_bucket{{{first}le="{_number(bound * name.scale)}"}} {below}'
        for bound, below in bounds
    ]
    # Of the buckets, not the counter beside them: both were read while the owner went on.
    count = sum(histogram.buckets)
    lines.append(f'{name.metric}_bucket{{{first}le="+Inf"}} {count}')
    lines.append(f"{name.metric}_sum{own} {_number(histogram.sum * name.scale)}")
    lines.append(f"{name.metric}_count{own} {count}")
    return lines


def cumulative(histogram: Histogram, scale: float) -> list[tuple[int, int]]:
    """Return (bound, values below it) for bounds that are powers of two of the stored unit.

    The unit fixes them, not the values: a series must not come and go. Times are shown from about 16 us to 8 s, other
    values from 16 to 4 Mi. A stored time is cut to whole units, so below the bound and up to it are the same.
    """
    first = 4
    if scale < 1.0:
        while (1 << first) * scale < 15e-6:
            first += 1
    count, step = (_TIME_BOUNDS, 1) if scale < 1.0 else (_SIZE_BOUNDS, 2)
    bounds = [1 << octave for octave in range(first, min(64, first + step * count), step)]
    found: list[tuple[int, int]] = []
    below = 0
    position = 0
    for bound in bounds:
        while position < len(histogram.buckets) and bucket_from(position) < bound:
            below += histogram.buckets[position]
            position += 1
        found.append((bound, below))
    return found


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{value:.9g}"
