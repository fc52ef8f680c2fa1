"""A cluster of three bookies for the bench tools, with its metadata in sqlite or in a ZooKeeper of its own; counts."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from fastbk.client.client import Client
from fastbk.devcluster.cluster import LOCAL, DevMetadata
from fastbk.errors import ConfigError
from fastbk.meta.sqlite.store import SqliteStore
from fastbk.testing import LocalCluster

T = TypeVar("T")
STORES = ("sqlite", "zookeeper")


@asynccontextmanager
async def bench_cluster() -> AsyncIterator[LocalCluster]:
    """Give three running bookies; METADATA=sqlite or zookeeper."""
    kind = os.environ.get("METADATA", STORES[0])
    if kind not in STORES:
        raise ConfigError(f"METADATA={kind}: {' or '.join(STORES)}")
    with tempfile.TemporaryDirectory(prefix="fastbk-bench-") as folder:
        metadata = DevMetadata(Path(folder) / "metadata", LOCAL if kind == "zookeeper" else None)
        try:
            uri = metadata.start()
            async with LocalCluster(3, data=Path(folder) / "bookies", metadata_uri=uri) as cluster:
                yield cluster
        finally:
            metadata.stop()


class MetadataCount:
    """Counts one client's calls of the metadata store, from now on; and what they take in its thread.

    Attributes:
        calls: made so far.
        commits: by sqlite, so far: calls that wait for its one thread share one.
        busy_s: spent in them by the store's threads.
    """

    def __init__(self, client: Client) -> None:
        self.calls = self.commits = 0
        self.busy_s = 0.0
        store: Any = client._store
        call_store, call_waiting, opened = store._call_store, store._call_waiting, store._opened
        is_counted = False

        def counted(call: Callable[[Any], T]) -> T:
            self.calls += 1
            return timed_call(call_store, call) if not store._is_single else call_store(call)  # type: ignore[no-any-return]

        def timed_call(function: Callable[..., T], *given: object) -> T:
            began_s = time.perf_counter()
            try:
                return function(*given)
            finally:
                self.busy_s += time.perf_counter() - began_s

        def traced() -> Any:
            nonlocal is_counted
            found = opened()
            if not is_counted and isinstance(found, SqliteStore):
                is_counted = True
                with found._file.reading() as db:
                    db.set_trace_callback(self._seen)
            return found

        store._call_store, store._opened = counted, traced
        store._call_waiting = lambda loop: timed_call(call_waiting, loop)

    def _seen(self, statement: str) -> None:
        self.commits += statement == "COMMIT"


async def timed(some: Callable[[], Awaitable[T]]) -> tuple[T, float]:
    """Return what it returns, and the seconds that it took."""
    began_s = time.perf_counter()
    found = await some()
    return found, time.perf_counter() - began_s
