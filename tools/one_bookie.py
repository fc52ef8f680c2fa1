"""One bookie for the bench tools: its loads, its processes' time and memory, its files uncached."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.devcluster import DevCluster, cpu_seconds, memory_pss_bytes
from fastbk.meta.uri import open_store
from fastbk.model.entry import DigestType, master_key
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.native.load import Load, LoadOptions
from fastbk.units import MIB
from fastbk.wire.messages import Hello, encode_hello

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fastbk.devcluster import Bookie
    from fastbk.meta.api import MetadataStore

ENTRY_BYTES = 1024


class LoadedBookie(ABC):
    """A running bookie of ours or of Apache's, its metadata, and what a bench asks of it."""

    store: MetadataStore
    protocol = 0
    """What the load speaks: 0 is ours; 2 and 3 are Apache's."""
    steady_bytes: int
    """After so much of a load it is in its steady state: its caches are full, and so are its first files."""
    flush_interval_s: float
    """It has written what it has in memory when this is over."""

    @property
    @abstractmethod
    def bookie_id(self) -> str: ...

    @property
    @abstractmethod
    def port(self) -> int: ...

    @property
    @abstractmethod
    def folder(self) -> Path:
        """Where its files lie."""

    @abstractmethod
    def processes(self) -> dict[str, int]:
        """Return the pids of its processes by name."""

    @abstractmethod
    def make_cold(self) -> None:
        """Have nothing of what was written so far in any memory."""

    @abstractmethod
    def forget(self, ledger_ids: Sequence[int]) -> None:
        """Delete ledgers that were measured, where more is to follow."""

    def create_ledger(self) -> int:
        ledger_id = self.store.next_ledger_id()
        fragments = (Fragment(0, (self.bookie_id,)),)
        metadata = LedgerMetadata(
            ensemble_size=1,
            write_quorum=1,
            ack_quorum=1,
            fragments=fragments,
            digest_type=DigestType.CRC32C,
        )
        self.store.create_ledger(ledger_id, metadata)
        return int(ledger_id)

    def close_ledger(self, ledger_id: int, count: int, size_bytes: int = ENTRY_BYTES) -> None:
        """Close a ledger of `count` entries in metadata."""
        read = self.store.read_ledger(ledger_id)
        closed = read.metadata.closed(count - 1, count * size_bytes)
        self.store.update_ledger(ledger_id, closed, read.version)

    @contextlib.contextmanager
    def load(self, ledger_ids: Sequence[int], **options: int) -> Iterator[Load]:
        """Yield a connected load generator; `options` are those of `LoadOptions`."""
        given = {"protocol": self.protocol, **options}
        what = LoadOptions(host="127.0.0.1", port=self.port, master_key=master_key(b""), **given)
        load = Load(what, ledger_ids, encode_hello(0, Hello(client_name="bench")))
        try:
            yield load
        finally:
            load.close()

    def write(self, ledger_id: int, entries: int, size_bytes: int = ENTRY_BYTES) -> int:
        """Append about `entries` entries to one ledger, as fast as it goes, and close it; return how many there are."""
        with self.load([ledger_id], window=1000, size_bytes=size_bytes) as load:
            while load.entry_counts()[0] < entries:
                load.append(0.1)
            count = load.entry_counts()[0]
        self.close_ledger(ledger_id, count, size_bytes)
        return count

    def drop_page_cache(self) -> None:
        """Have the kernel forget what it holds of the bookie's files."""
        os.sync()
        for path in self.folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                if path.is_file():
                    file = os.open(path, os.O_RDONLY)
                    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                    os.close(file)

    def cpu_seconds(self) -> dict[str, float]:
        """Return the processor time so far by process."""
        return cpu_seconds(self.processes())

    def memory_mb(self) -> float:
        """Return the proportional set size of all its processes in MB (10⁶ bytes)."""
        return round(memory_pss_bytes(self.processes().values()) / 1e6, 1)


class OneBookie(LoadedBookie):
    """A running bookie of ours."""

    # The first two journal files, and as much again: from then on files have their full size, and may stay as logs.
    steady_bytes = 512 * MIB
    flush_interval_s = 60.0

    def __init__(self, cluster: DevCluster, store: MetadataStore, number: int = 0) -> None:
        """`number`: of the cluster's bookies."""
        self.cluster = cluster
        self.store = store
        self._number = number

    @property
    def bookie(self) -> Bookie:
        return self.cluster.bookies[self._number]

    @property
    def bookie_id(self) -> str:
        return self.bookie.name

    @property
    def port(self) -> int:
        return self.bookie.port

    @property
    def folder(self) -> Path:
        return self.bookie.directory

    @property
    def ledger_directory(self) -> Path:
        """Where its entry logs and locations lie."""
        return self.folder / "ledgers"

    def processes(self) -> dict[str, int]:
        return self.bookie.pids

    def restart(self) -> None:
        """Stop the bookie cleanly and start it again: whatever it held in memory is gone."""
        self.cluster.stop()
        self.cluster.start()

    def make_cold(self) -> None:
        self.restart()
        self.drop_page_cache()

    def forget(self, ledger_ids: Sequence[int]) -> None:
        """Keep them: what is measured next has a bookie of its own."""

    def pss_mb(self, name: str) -> float:
        """Return the proportional set size of one process in MB (10⁶ bytes)."""
        return round(memory_pss_bytes([self.bookie.pids[name]]) / 1e6, 1)


@contextlib.contextmanager
def one_bookie(
    folder: Path, settings: Mapping[str, Mapping[str, object]] | None = None
) -> Iterator[OneBookie]:
    """Yield a bookie that runs in `folder`; it is stopped at the end."""
    cluster = DevCluster(folder, 1, settings=settings)
    cluster.start()
    try:
        store = open_store(cluster.metadata_uri)
        try:
            yield OneBookie(cluster, store)
        finally:
            store.close()
    finally:
        cluster.stop()
