"""Apache BookKeeper's bookies for `./dev bench`, loaded by the same program in C through both of Apache's protocols.

Three configurations:

- default: what a bookie has that is configured with nothing but its folders (SortedLedgerStorage);
- sorted, db: tuned. It commits as soon as its queue is empty, and has caches to match a heap of 1 GiB; with
  SortedLedgerStorage and with DbLedgerStorage.

All have that heap, and are warm before anything is measured. Metadata are in a ZooKeeper that syncs nothing; nothing of
it is on the path of an add. Three bookies are loaded by Apache's own client library, its throttle off.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType

from fastbk.meta.api import MetadataStore
from fastbk.meta.uri import open_store
from fastbk.native.load import LoadError
from fastbk.units import MIB
from tests.compat.jars import NotAvailable, programs
from tests.compat.members import STORAGES, FileMember
from tests.compat.rig import Cluster, Rig
from tools.bench_compat import APACHE_SETTINGS, BOOKIE_OPTIONS, java_append, java_ledger_calls
from tools.benchmark.bookie_loads import ON_ONE_BOOKIE
from tools.benchmark.cases import (
    ENTRY_BYTES,
    Append,
    LedgerCalls,
    Load,
    Read,
    Replicated,
    Restart,
)
from tools.benchmark.run import Figures
from tools.benchmark.system import Measure, System
from tools.one_bookie import LoadedBookie
from tools.part import BUILD

WARM_UP_S = 3.0
FILLER_MIB = {"default": 192, "sorted": 192, "db": 640}
"""More than what a bookie holds in memory: twice its memtable, or its write caches and the one for reading ahead."""
FIRST_WRITE_S_MAX = 60.0
DEFAULTS: dict[str, object] = {
    "journalMaxGroupWaitMSec": 2,
    "journalPreAllocSizeMB": 16,
    "numReadWorkerThreads": 8,
    "ledgerStorageClass": STORAGES["sorted"],
}
"""Stand in place of what tests/compat/members.py sets for tests: the values that a bookie has without them."""
CONFIGURATIONS: dict[str, Mapping[str, object]] = {
    "default": DEFAULTS,
    "sorted": {**APACHE_SETTINGS, "ledgerStorageClass": STORAGES["sorted"]},
    "db": {**APACHE_SETTINGS, "ledgerStorageClass": STORAGES["db"]},
}
PROTOCOLS = {"v3": 3, "v2": 2}
TUNED = tuple(f"Apache {name}, {protocol}" for name in ("sorted", "db") for protocol in PROTOCOLS)
"""Systems' names."""


class ApacheBookie(LoadedBookie):
    """One bookie of Apache's that runs."""

    flush_interval_s = 10.0

    def __init__(self, member: FileMember, store: MetadataStore, filler_mib: int) -> None:
        self.member = member
        self.store = store
        self.steady_bytes = filler_mib * MIB

    @property
    def bookie_id(self) -> str:
        return self.member.bookie_id

    @property
    def port(self) -> int:
        return self.member.port

    @property
    def folder(self) -> Path:
        return self.member.folder

    def processes(self) -> dict[str, int]:
        return self.member.processes()

    def make_cold(self) -> None:
        """Fill its caches with another ledger, and drop the page cache. It goes on: a Java that starts is slow."""
        filler = self.create_ledger()
        self.write(filler, self.steady_bytes // ENTRY_BYTES)
        self.forget([filler])
        self.drop_page_cache()

    def forget(self, ledger_ids: Sequence[int]) -> None:
        """Delete ledgers in metadata, so that the bookie frees the disk; and have what it wrote reach the disk now."""
        for ledger_id in ledger_ids:
            self.store.delete_ledger(ledger_id, self.store.read_ledger(ledger_id).version)
        os.sync()


@dataclass
class ApacheClusters:
    """A ZooKeeper and what runs with it: bookies by configuration, shared by the protocols."""

    rig: Rig
    stack: ExitStack

    def __post_init__(self) -> None:
        self._bookies: dict[str, ApacheBookie] = {}
        self._threes: dict[str, Cluster] = {}

    def bookie(self, configuration: str) -> ApacheBookie:
        """Return one bookie, started and warmed up at the first call."""
        if configuration not in self._bookies:
            cluster = self.stack.enter_context(self._started(configuration, 1))
            store = self.stack.enter_context(contextlib.closing(open_store(cluster.metadata_uri)))
            member = cluster.members[0]
            assert isinstance(member, FileMember)
            bookie = self._bookies[configuration] = ApacheBookie(
                member, store, FILLER_MIB[configuration]
            )
            self._warm_up(bookie)
        return self._bookies[configuration]

    def three(self, configuration: str) -> Cluster:
        """Return three bookies."""
        if configuration not in self._threes:
            self._threes[configuration] = self.stack.enter_context(self._started(configuration, 3))
        return self._threes[configuration]

    def _started(
        self, configuration: str, count: int
    ) -> contextlib.AbstractContextManager[Cluster]:
        settings = dict(CONFIGURATIONS[configuration])
        return self.rig.cluster(apache=count, apache_settings=settings, java_options=BOOKIE_OPTIONS)

    def _warm_up(self, bookie: ApacheBookie) -> None:
        for bookie.protocol in PROTOCOLS.values():
            for load in (Append(1), Append(1000), Read(100, "hot")):
                ON_ONE_BOOKIE[type(load)](bookie, load, WARM_UP_S / 2)


@contextlib.contextmanager
def apache_clusters() -> Iterator[ApacheClusters]:
    """Give what Apache's systems share. Data are on the tree's disk. Raises SystemExit where Maven has no jars."""
    try:
        ours = programs()
    except NotAvailable as error:
        raise SystemExit(f"bench: Apache's jars cannot be had: {error}") from error
    with (
        tempfile.TemporaryDirectory(
            prefix="bench-apache-", dir=BUILD, ignore_cleanup_errors=True
        ) as folder,
        Rig(Path(folder), ours) as rig,
        ExitStack() as stack,
    ):
        yield ApacheClusters(rig, stack)


class SharedClusters:
    """Starts what Apache's systems share with the first one that begins, and stops it with the last that ends."""

    def __init__(self) -> None:
        self._users = 0
        self._stack = ExitStack()

    @cached_property
    def clusters(self) -> ApacheClusters:
        return self._stack.enter_context(apache_clusters())

    def enter(self) -> None:
        self._users += 1

    def leave(self) -> None:
        self._users -= 1
        if self._users == 0:
            self._stack.close()
            self.__dict__.pop("clusters", None)


class Apache(System):
    """A configuration of Apache's bookie, loaded through one protocol."""

    def __init__(self, configuration: str, protocol: str, shared: SharedClusters) -> None:
        self.name = f"Apache {configuration}, {protocol}"
        self._configuration = configuration
        self._protocol = protocol
        self._shared = shared

    def measures(self) -> Mapping[type, Measure]:
        return {
            **{kind: self._on_one_bookie for kind in ON_ONE_BOOKIE},
            Restart: self._restart,
            Replicated: self._replicated,
            LedgerCalls: self._ledger_calls,
        }

    def can(self, load: Load) -> bool:
        """Whether its protocol has that: version 3 has no reads of many entries. It writes past a disk's limit."""
        is_limited = isinstance(load, Append) and load.disk_bytes_per_s > 0
        has_no_batches = self._protocol == "v3"
        return (
            super().can(load)
            and not is_limited
            and not (has_no_batches and isinstance(load, Read) and load.entries_a_read > 1)
        )

    def __enter__(self) -> Apache:
        self._shared.enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._shared.leave()

    def _bookie(self) -> ApacheBookie:
        bookie = self._shared.clusters.bookie(self._configuration)
        bookie.protocol = PROTOCOLS[self._protocol]
        return bookie

    def _on_one_bookie(self, load: Load, seconds: float) -> Figures:
        measure: Callable[[LoadedBookie, Load, float], Figures] = ON_ONE_BOOKIE[type(load)]
        return measure(self._bookie(), load, seconds)

    def _restart(self, load: Restart, _: float) -> Figures:
        """Kill it behind that much of appends and start it; what it has flushed meanwhile is to its advantage."""
        bookie = self._bookie()
        ledger_id = bookie.create_ledger()
        count = bookie.write(ledger_id, load.mib * 1024 * 1024 // ENTRY_BYTES)
        bookie.member.kill()
        bookie.drop_page_cache()
        began_s = time.perf_counter()
        bookie.member.spawn()
        wait_for_write(bookie)
        found = {
            "first_write_s": time.perf_counter() - began_s,
            "bookie_cpu_s": sum(bookie.cpu_seconds().values()),
            "memory_mb": bookie.memory_mb(),
        }
        bookie.member.wait_ready()
        with bookie.load([ledger_id]) as load_again:
            load_again.read(0.1, [count])
        bookie.forget([ledger_id])
        return found

    def _replicated(self, load: Replicated, seconds: float) -> Figures:
        cluster = self._shared.clusters.three(self._configuration)
        run = java_append(cluster, self._protocol, load.window, seconds, quorum=(3, 3, 2))
        return {
            "per_s": run.adds_per_s,
            "p50_us": run.p50_us,
            "p99_us": run.p99_us,
            "bookie_us": run.bookie_cpu_us,
            "client_us": run.client_cpu_us,
            "memory_mb": run.memory_mb,
        }

    def _ledger_calls(self, load: LedgerCalls, _: float) -> Figures:
        return java_ledger_calls(
            self._shared.clusters.three(self._configuration), self._protocol, load.count
        )


def wait_for_write(bookie: ApacheBookie) -> None:
    """Return when an add is acknowledged. Raises SystemExit after a minute."""
    ledger_id = bookie.create_ledger()
    deadline_s = time.monotonic() + FIRST_WRITE_S_MAX
    while time.monotonic() < deadline_s:
        with contextlib.suppress(LoadError), bookie.load([ledger_id]) as load:
            load.append(0.0001)
            if load.entry_counts()[0]:
                bookie.forget([ledger_id])
                return
        time.sleep(0.005)
    raise SystemExit("bench: a bookie of Apache's did not take writes after its start")


def systems() -> list[System]:
    """Return all configurations by all protocols."""
    shared = SharedClusters()
    return [Apache(name, protocol, shared) for name in CONFIGURATIONS for protocol in PROTOCOLS]
