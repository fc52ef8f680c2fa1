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
from tools.bench_costs import written_of
from tools.benchmark.cases import Append, Read, ReadDuringWrites, TailRead
from tools.benchmark.run import Figures
from tools.one_bookie import LoadedBookie

PASS_SHARE = 0.95
"""Share of a ledger that is read once: beyond its end it would be read again."""
PASS_S_MAX = 10.0
"""Maximum time of a pass that is not timed."""
CHECK_S = 0.02
SLICE_S = 0.5
"""Window 1 and the disk take turns this long."""
WARM_UP_S = 0.3


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
        disk_bytes = self._written()
        yield
        self.disk_bytes += self._written() - disk_bytes
        self.bookie_s += sum(self.bookie.cpu_seconds().values()) - bookie_s
        self.client_s += time.process_time() - client_s

    def _written(self) -> int:
        return sum(map(written_of, self.bookie.processes().values()))

    def of(self, entries: int) -> Figures:
        """Return microseconds an entry, and the memory now."""
        return {
            "bookie_us": self.bookie_s * 1e6 / max(entries, 1),
            "client_us": self.client_s * 1e6 / max(entries, 1),
            "memory_mb": self.bookie.memory_mb(),
        }


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
    """Append for so long. At window 1 the disk's own commits are measured in turn with it."""
    ids = [bookie.create_ledger() for _ in range(what.ledgers)]
    options = {
        "window": what.window,
        "size_bytes": what.size_bytes,
        "connections": what.connections,
    }
    spent = Spent(bookie)
    disk: Figures = {}
    with contextlib.ExitStack() as stack:
        warm = stack.enter_context(bookie.load(ids, **options))
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
            disk = {"disk_p50_us": probe.latencies.percentile_us(50)}
        else:
            with spent.measured():
                load.append(seconds)
        result = checked(load)
        figures = {
            "per_s": result.entries / result.busy_s,
            **latencies_of(result.latencies),
            **spent.of(result.entries),
            **disk,
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
    Read: read,
    TailRead: tail_read,
    ReadDuringWrites: read_during_writes,
}
"""What can be asked of any bookie, Apache's included."""
