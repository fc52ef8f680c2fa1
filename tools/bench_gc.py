"""`./dev bench gc`: what gc's looks cost a metadata store. COUNT=20000 ledgers; sqlite, and a real ZooKeeper.

One cycle lists all ledgers and reads those once more that are missing in it; one round reads every local ledger's
metadata once. Both without pauses here: what they ask for, and how fast the store can answer. With as many ledgers as a
page of a listing holds under each parent, everything grows linearly: the last column is that, not a measurement.
"""

from __future__ import annotations

import sys
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastbk.devcluster.cluster import ZooKeeperServer
from fastbk.gc.dead_ledgers import Cluster, DeadLedgers, Rules
from fastbk.gc.over_replicated import CopiesWatch
from fastbk.limits import RateLimit
from fastbk.meta import MetadataStore, open_store
from fastbk.meta.uri import ZooKeeperLocation
from fastbk.meta.zookeeper import admin as zookeeper_admin
from fastbk.meta.zookeeper.paths import Layout
from fastbk.meta.zookeeper.session import Call
from fastbk.model.ids import BookieId
from fastbk.model.ledger import Fragment, LedgerMetadata, LedgerState
from tools.part import setting

MILLION = 1_000_000
DEAD_SHARE = 100
"""One local ledger in so many is in metadata no more."""
ME, OTHERS = BookieId("me:3181"), (BookieId("a:3181"), BookieId("b:3181"), BookieId("c:3181"))


class Local:
    """The index's ledgers: all that metadata lists, and some more."""

    def __init__(self, count: int) -> None:
        self._ids = array("q", range(count + count // DEAD_SHARE))
        self.deleted = 0

    def ids(self) -> array[int]:
        return self._ids

    def delete(self, ledger_ids: list[int], reason: str) -> int:
        self.deleted += len(ledger_ids)
        return len(ledger_ids)

    def settled(self, cursor: int) -> tuple[list[tuple[int, int]], int]:
        """Return 1,000 of them, and where the next begin; 0 at the end."""
        after = cursor + 1000
        return [(one, 1) for one in self._ids[cursor:after]], after if after < len(self._ids) else 0

    def drop(self, copies: Sequence[tuple[int, int]], reason: str) -> int:
        """Nothing is old enough."""
        raise AssertionError((copies, reason))


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the requests that ZooKeeper gets meanwhile, and the names that it lists."""
    counts: Counter[str] = Counter()
    kept = {name: getattr(Call, name) for name in ("get_all", "children", "sync")}

    def counting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Call, argument: Any, *rest: Any) -> Any:
            if name == "get_all":
                argument = list(argument)
            found = original(self, argument, *rest)
            counts[name] += len(argument) if name == "get_all" else 1
            counts["names"] += len(found or ()) if name == "children" else 0
            return found

        return call

    for name, original in kept.items():
        setattr(Call, name, counting(name, original))
    try:
        yield counts
    finally:
        for name, original in kept.items():
            setattr(Call, name, original)


def fill(store: MetadataStore, count: int) -> None:
    """Create `count` closed ledgers of three bookies."""
    metadata = LedgerMetadata(
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        fragments=(Fragment(0, OTHERS),),
        state=LedgerState.CLOSED,
        last_entry_id=9,
        length=100,
    )
    for ledger_id in range(count):
        store.create_ledger(ledger_id, metadata)
        if ledger_id % 5000 == 4999:
            print(f"made {ledger_id + 1:,} ledgers", file=sys.stderr, flush=True)


def timed(what: Callable[[], object], times: float) -> str:
    """Run it and say what it took, and what it would for a million."""
    with counted() as counts:
        began_s, cpu_s = time.perf_counter(), time.process_time()
        what()
        took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    requests = sum(counts[name] for name in ("get_all", "children", "sync"))
    asked = "" if not requests else (
        f", {requests:,} requests ({counts['children']:,} listings with {counts['names']:,} names,"
        f" {counts['get_all']:,} reads, {counts['sync']:,} syncs)"
    )  # fmt: skip
    million = f"{took_s * times:.1f} s, CPU {cpu_s * times:.1f} s"
    if requests:
        million += f", {requests * times:,.0f} requests"
    return f"{took_s:.2f} s, CPU {cpu_s:.2f} s{asked}; a million: {million}"


def measure(name: str, store: MetadataStore, count: int) -> None:
    """Fill a store and look through it."""
    fill(store, count)
    local, times = Local(count), MILLION / count
    cluster, pace = Cluster(store), RateLimit(1e12, lambda _: None)
    collector = DeadLedgers(local, store, cluster, pace)
    copies = CopiesWatch(local, store, cluster, ME, pace, Rules(), 86_400.0)
    print(f"{name}, {count:,} ledgers")
    print(f"  cycle   {timed(collector.run, times)}")
    dead = count // DEAD_SHARE
    print(f"  cycle, {dead:,} to delete   {timed(collector.run, times)}")
    assert local.deleted == dead

    def whole_round() -> None:
        while not copies.check().is_round_over:
            pass

    print(f"  round   {timed(whole_round, times)}", flush=True)


def main() -> None:
    count = setting("COUNT", 20_000)
    with tempfile.TemporaryDirectory(prefix="fastbk-bench-gc-") as folder:
        store = open_store(f"sqlite:{folder}/metadata.sqlite")
        measure("sqlite", store, count)
        store.close()
        server = ZooKeeperServer(Path(folder) / "zookeeper", is_durable=False)
        server.start()
        try:
            location = ZooKeeperLocation((server.address,), "/bench/ledgers", Layout.HIERARCHICAL)
            zookeeper_admin.init(location)
            store = open_store(location.uri)
            measure("ZooKeeper", store, count)
            store.close()
        finally:
            server.stop()
