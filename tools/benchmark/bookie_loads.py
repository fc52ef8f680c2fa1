"""How one bookie is loaded: by the load generator in C, in this process, whatever the bookie's make and protocol.

Each function returns the figures of one round. A bad answer ends the bench: figures of a broken bookie mean nothing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fastbk.native.load import Latencies, Load, LoadResult, disk_probe
from tools.bench_costs import counters_of, written_of
from tools.benchmark.cases import Append, DiskBytes, Read, ReadDuringWrites, TailRead
from tools.benchmark.disk_limit import disk_limit
from tools.benchmark.run import Figures
from tools.one_bookie import LoadedBookie, OneBookie
from tools.part import BUILD

PASS_SHARE = 0.95
"""Share of a ledger that is read once: beyond its end it would be read again."""
PASS_S_MAX = 10.0
"""Maximum time of a pass that is not timed."""
CHECK_S = 0.02
SLICE_S = 0.5
"""Window 1 and the disk take turns this long."""
WARM_UP_S = 0.3
FRAME_BYTES = 100
"""What an entry has around its data, roughly."""
REST_S, REST_S_MAX, REST_LOOK_S = 0.6, 15.0, 0.1
WRITTEN = ("fastbk_journal_disk_written_bytes_total", "fastbk_index_disk_written_bytes_total")
ADOPTED, JOURNALED = "fastbk_index_adopted_bytes_total", "fastbk_journal_bytes_total"


@dataclass
class Spent:
    """Processor time of a bookie and of this process while it was loaded, and what the bookie wrote to disks."""

    bookie: LoadedBookie
    bookie_s: float = field(default=0.0, init=False)
    client_s: float = field(default=0.0, init=False)
    disk_bytes: int = field(default=0, init=False)

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Count what goes by inside."""
        bookie_s, client_s = sum(self.bookie.cpu_seconds().values()), time.process_time()
        disk_bytes = kernel_written_bytes(self.bookie)
        yield
        self.disk_bytes += kernel_written_bytes(self.bookie) - disk_bytes
        self.bookie_s += sum(self.bookie.cpu_seconds().values()) - bookie_s
        self.client_s += time.process_time() - client_s

    def of(self, entries: int) -> Figures:
        """Return microseconds an entry, and the memory now."""
        return {
            "bookie_us": self.bookie_s * 1e6 / max(entries, 1),
            "client_us": self.client_s * 1e6 / max(entries, 1),
            "memory_mb": self.bookie.memory_mb(),
        }


def kernel_written_bytes(bookie: LoadedBookie) -> int:
    """Return what a bookie has had written to disks so far, by the kernel's account of its processes."""
    return sum(map(written_of, bookie.processes().values()))


def written_bytes(bookie: LoadedBookie) -> int:
    """Return what a bookie has had written to disks so far: by its own metrics, where it has them."""
    counters = counters_of(bookie) if isinstance(bookie, OneBookie) else {}
    if any(name not in counters for name in WRITTEN):
        return kernel_written_bytes(bookie)
    return int(sum(counters[name] for name in WRITTEN))


def kept_of(before: dict[str, float], after: dict[str, float]) -> Figures:
    """Return which share of a journal's bytes stay where they are, as an entry log, if the bookie counts that."""
    if ADOPTED not in after:
        return {}
    journaled = after[JOURNALED] - before[JOURNALED]
    return {"kept_share": (after[ADOPTED] - before[ADOPTED]) / max(journaled, 1.0)}


@contextlib.contextmanager
def kept_share(bookie: LoadedBookie, figures: Figures) -> Iterator[None]:
    """Add to `figures` which share of the journal's bytes stay as an entry log, of what is written inside."""
    if not isinstance(bookie, OneBookie):
        yield
        return
    before = counters_of(bookie)
    yield
    figures.update(kept_of(before, counters_of(bookie)))


def until_disk_rests(
    bookie: LoadedBookie, rest_s: float = REST_S, rest_s_max: float = REST_S_MAX
) -> None:
    """Wait until the bookie has written nothing for `rest_s`: what it makes ahead, and what it flushes, is there."""
    known_bytes, rested_s = -1, 0.0
    for _ in range(round(rest_s_max / REST_LOOK_S)):
        now_bytes = kernel_written_bytes(bookie)
        rested_s = rested_s + REST_LOOK_S if now_bytes == known_bytes else 0.0
        if rested_s >= rest_s:
            return
        known_bytes = now_bytes
        time.sleep(REST_LOOK_S)


def until_steady(bookie: LoadedBookie, load: Load, size_bytes: int) -> None:
    """Append until the bookie is in its steady state."""
    wanted = bookie.steady_bytes // (size_bytes + FRAME_BYTES)
    while sum(load.entry_counts()) < wanted:
        load.append(SLICE_S)
    checked(load)


def latencies_of(latencies: Latencies, prefix: str = "") -> Figures:
    """Return the median and the tail."""
    percents = (("p50_us", 50.0), ("p99_us", 99.0), ("p999_us", 99.9))
    return {f"{prefix}{name}": latencies.percentile_us(percent) for name, percent in percents}


def checked(load: Load) -> LoadResult:
    """Return the result. Raises SystemExit where an answer was bad."""
    result = load.result()
    if result.errors:
        raise SystemExit(f"bench: {result.errors} bad answers, the first: {result.first_error}")
    if not result.entries:
        raise SystemExit("bench: nothing was answered")
    return result


def append(bookie: LoadedBookie, what: Append, seconds: float) -> Figures:
    """Append for so long. At window 1 the disk's own commits are measured in turn with it.

    A sustained load begins in the bookie's steady state, and is under its limit of the disk from then on.
    """
    ids = [bookie.create_ledger() for _ in range(what.ledgers)]
    options = {
        "window": what.window,
        "size_bytes": what.size_bytes,
        "connections": what.connections,
    }
    spent = Spent(bookie)
    more: Figures = {}
    with contextlib.ExitStack() as stack:
        warm = stack.enter_context(bookie.load(ids, **options))
        if what.seconds_min:
            until_steady(bookie, warm, what.size_bytes)
        else:
            warm.append(min(WARM_UP_S, seconds / 4))
        # Its histogram begins with what follows; entry ids go on, so the ledgers are others.
        timed = [bookie.create_ledger() for _ in range(what.ledgers)]
        load = stack.enter_context(bookie.load(timed, **options))
        if what.window == 1:
            probe = stack.enter_context(disk_probe(bookie.folder))
            for _ in range(max(1, round(seconds / SLICE_S))):
                with spent.measured():
                    load.append(SLICE_S)
                probe.run(SLICE_S)
            more = {"disk_p50_us": probe.latencies.percentile_us(50)}
        elif what.seconds_min:
            pids = bookie.processes().values()
            with (
                disk_limit(BUILD, what.disk_bytes_per_s, pids),
                kept_share(bookie, more),
                spent.measured(),
            ):
                load.append(seconds)
        else:
            with spent.measured():
                load.append(seconds)
        result = checked(load)
        figures = {
            "per_s": result.entries / result.busy_s,
            **latencies_of(result.latencies),
            **spent.of(result.entries),
            **more,
        }
        if what.seconds_min:
            figures["disk_bytes"] = spent.disk_bytes / (result.entries * what.size_bytes)
        counts = load.entry_counts()
    check(
        bookie,
        {ledger_id: count for ledger_id, count in zip(timed, counts, strict=True) if count},
        what,
    )
    bookie.forget([*ids, *timed])
    return figures


def disk_bytes(bookie: LoadedBookie, what: DiskBytes, seconds: float) -> Figures:
    """Append for so long, wait until the bookie has flushed all of it, and count what it wrote for a byte of data.

    Zeros of journal files are apart: the journal writes them when the load is over, however long that was.
    """
    rest_s = bookie.flush_interval_s + REST_S
    options = {"window": what.window, "size_bytes": what.size_bytes}
    ids = [bookie.create_ledger() for _ in range(what.ledgers)]
    figures: Figures = {}
    with bookie.load(ids, **options) as load:
        until_steady(bookie, load, what.size_bytes)
        until_disk_rests(bookie, rest_s, rest_s + REST_S_MAX)
        entries, before_bytes = checked(load).entries, written_bytes(bookie)
        with kept_share(bookie, figures):
            load.append(seconds)
            journal = bookie.processes().get("journal")
            ahead_bytes = -written_of(journal) if journal else 0
            until_disk_rests(bookie, rest_s, rest_s + REST_S_MAX)
        ahead_bytes += written_of(journal) if journal else 0
        entries = checked(load).entries - entries
    data_bytes = entries * what.size_bytes
    all_bytes = written_bytes(bookie) - before_bytes
    figures |= {
        "mb_per_s": data_bytes / 1e6 / seconds,
        "disk_bytes": (all_bytes - ahead_bytes) / data_bytes,
    }
    if journal:
        figures["ahead_mb"] = ahead_bytes / 1e6
    bookie.forget(ids)
    return figures


def check(bookie: LoadedBookie, counts: dict[int, int], what: Append) -> None:
    """Read some of it back, digest and data. Raises SystemExit where something is not as it was written."""
    with bookie.load(list(counts), window=10, size_bytes=what.size_bytes) as load:
        load.read(CHECK_S, list(counts.values()))
        checked(load)


def read_once(load: Load, count: int, seconds_max: float) -> None:
    """Read a ledger of `count` entries nearly to its end, or for so long."""
    end_s = time.monotonic() + seconds_max
    while load.result().entries < PASS_SHARE * count and time.monotonic() < end_s:
        load.read(0.02, [count])


def pass_over(bookie: LoadedBookie, ledger_id: int, count: int) -> None:
    """Read a ledger once, as fast as the protocol can."""
    options = {"window": 100} if bookie.protocol == 3 else {"window": 10, "entries_a_read": 64}
    with bookie.load([ledger_id], **options) as load:
        read_once(load, count, PASS_S_MAX)


def read(bookie: LoadedBookie, what: Read, seconds: float) -> Figures:
    """Write a ledger, bring it into the state that the case names, and read it."""
    ledger_id = bookie.create_ledger()
    count = bookie.write(ledger_id, what.entries)
    options = {
        "window": what.window,
        "entries_a_read": what.entries_a_read,
        "is_random": what.is_random,
    }
    if what.state == "hot":
        pass_over(bookie, ledger_id, count)
        with bookie.load([ledger_id], **options) as load:
            load.read(WARM_UP_S, [count])
    elif what.state == "cold":
        bookie.make_cold()
    spent = Spent(bookie)
    with bookie.load([ledger_id], **options) as load:
        with spent.measured():
            if what.state == "hot" or what.is_random:
                load.read(seconds, [count])
            else:
                read_once(load, count, seconds)
        result = checked(load)
    figures = {
        "per_s": result.entries / result.busy_s,
        **latencies_of(result.latencies),
        **spent.of(result.entries),
    }
    bookie.forget([ledger_id])
    return figures


def tail_read(bookie: LoadedBookie, what: TailRead, seconds: float) -> Figures:
    """Append, and read some entries as soon as they are acknowledged."""
    ledger_id = bookie.create_ledger()
    spent = Spent(bookie)
    with bookie.load([ledger_id], window=what.window, tail_every=what.every) as load:
        with spent.measured():
            load.append(seconds)
        result = checked(load)
    bookie.forget([ledger_id])
    return {
        "per_s": result.entries / result.busy_s,
        **latencies_of(result.latencies),
        **latencies_of(result.tail_latencies, "tail_"),
        **spent.of(result.entries),
    }


def read_during_writes(bookie: LoadedBookie, what: ReadDuringWrites, seconds: float) -> Figures:
    """Append, while a second thread reads an older ledger."""
    old, new = bookie.create_ledger(), bookie.create_ledger()
    count = bookie.write(old, Read(1, "hot").entries)
    spent = Spent(bookie)
    pass_over(bookie, old, count)
    with (
        bookie.load([old], window=what.reads) as reads,
        bookie.load([new], window=what.window) as appends,
    ):
        reader = threading.Thread(target=reads.read, args=(seconds, [count]))
        with spent.measured():
            reader.start()
            appends.append(seconds)
            reader.join()
        added, were_read = checked(appends), checked(reads)
    bookie.forget([old, new])
    return {
        "per_s": added.entries / added.busy_s,
        **latencies_of(added.latencies),
        "reads_per_s": were_read.entries / were_read.busy_s,
        **latencies_of(were_read.latencies, "read_"),
        **spent.of(added.entries + were_read.entries),
    }


ON_ONE_BOOKIE: dict[type, Callable[[LoadedBookie, Any, float], Figures]] = {
    Append: append,
    DiskBytes: disk_bytes,
    Read: read,
    TailRead: tail_read,
    ReadDuringWrites: read_during_writes,
}
"""What can be asked of any bookie, Apache's included."""
