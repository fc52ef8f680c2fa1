"""`./dev bench growth`: how the cost of an entry grows with ledgers, connections, pairs of directories, and bookies.

What counts is the processor time of worker, journal and index for an entry: a machine with two processors and one disk
cannot show rates of more. Where an entry's time does not grow with the number of bookies, they share nothing that adds
wait for, so each brings its own rate. SECONDS=2.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fastbk.devcluster import DevCluster, cpu_seconds
from fastbk.meta.uri import open_store
from fastbk.native.load import Load
from tests.fixtures.pairs import pair_settings
from tools.one_bookie import ENTRY_BYTES, OneBookie
from tools.part import print_table, scratch, setting

WINDOW = 1000
LEDGERS = (1, 10, 100, 1000, 10_000)
CONNECTIONS = (1, 10, 100, 1000)
PAIRS = (1, 2)
BOOKIES = (1, 2, 3)
DATA_PATH = ("worker", "journal", "index")


@contextlib.contextmanager
def bookies(
    folder: Path, count: int, settings: Mapping[str, Mapping[str, object]] | None = None
) -> Iterator[list[OneBookie]]:
    """Yield `count` running bookies of one cluster."""
    cluster = DevCluster(folder, count, settings=settings)
    cluster.start()
    try:
        store = open_store(cluster.metadata_uri)
        try:
            yield [OneBookie(cluster, store, number) for number in range(count)]
        finally:
            store.close()
    finally:
        cluster.stop()


def data_path_seconds(bookie: OneBookie) -> float:
    """Return the processor time of the bookie's data path so far."""
    spent = cpu_seconds(bookie.bookie.pids)
    return sum(spent[name] for name in spent if name.split(".")[0] in DATA_PATH)


def entries_of(loads: Sequence[Load]) -> int:
    return sum(sum(load.entry_counts()) for load in loads)


def append(loads: Sequence[Load], seconds: float) -> None:
    """Append with all loads at once. Raises what one of them does."""
    failures: list[BaseException] = []

    def one(load: Load) -> None:
        try:
            load.append(seconds)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=one, args=(load,)) for load in loads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def cost_of(
    served: Sequence[OneBookie], seconds: float, ledgers: int = 1, connections: int = 1
) -> dict[str, float]:
    """Return what an entry costs while each bookie gets a load of its own."""
    with contextlib.ExitStack() as stack:
        loads = []
        for bookie in served:
            ids = [bookie.create_ledger() for _ in range(ledgers)]
            options = {"window": WINDOW, "connections": connections, "size_bytes": ENTRY_BYTES}
            loads.append(stack.enter_context(bookie.load(ids, **options)))
        append(loads, seconds / 4)
        entries, spent = entries_of(loads), sum(map(data_path_seconds, served))
        append(loads, seconds)
        entries = entries_of(loads) - entries
        spent = sum(map(data_path_seconds, served)) - spent
    return {
        "µs an entry": round(spent * 1e6 / entries, 3),
        "entries a second": round(entries / seconds),
    }


def main() -> dict[str, dict[str, float]]:
    seconds = setting("SECONDS", 2.0)
    figures = {}
    with scratch() as folder:
        with bookies(folder / "one", 1) as served:
            for count in LEDGERS:
                figures[f"ledgers: {count:,}"] = cost_of(served, seconds, ledgers=count)
            for count in CONNECTIONS:
                figures[f"connections: {count:,}"] = cost_of(served, seconds, count, count)
        for count in PAIRS:
            data = folder / f"pairs{count}"
            with bookies(data, 1, pair_settings(data, count)) as served:
                figures[f"pairs: {count}, 16 ledgers"] = cost_of(served, seconds, ledgers=16)
        for count in BOOKIES:
            with bookies(folder / f"bookies{count}", count) as served:
                figures[f"bookies: {count}"] = cost_of(served, seconds)
    print_table(figures)
    return figures
