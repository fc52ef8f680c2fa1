"""What the endpoints of Apache's know of the bookie they stand in, and how they reach its metadata."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from fastbk.meta import open_store

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from fastbk.meta.api import MetadataStore
    from fastbk.server.admin.metrics import Metrics
    from fastbk.server.configuration.bookie_config import BookieConfig
    from fastbk.server.disks.disk_reports import DiskReports
    from fastbk.server.supervision.lifecycle import Lifecycle
    from fastbk.server.supervision.operator_requests import GcAdmin, LogLevel, ReadOnlyAdmin

T = TypeVar("T")

THREADS = 2


class StoreThreads:
    """A connection to metadata of its own, opened when a page needs it first: slow pages must not delay the lease."""

    def __init__(self, uri: str, session_timeout_s: float | None = None) -> None:
        """`session_timeout_s`: of ZooKeeper; None: the default."""
        self._uri = uri
        self._session_timeout_s = session_timeout_s
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="http-metadata")
        self._lock = threading.Lock()
        self._store: MetadataStore | None = None

    async def call(self, action: Callable[[MetadataStore], T]) -> T:
        """Return what `action` returns for the store. Raises Error."""
        return await asyncio.get_running_loop().run_in_executor(
            self._pool, lambda: action(self._opened())
        )

    async def close(self) -> None:
        """Let go of the store; what is under way ends with an error of the store's."""

        store, self._store = self._store, None
        if store is not None:
            await asyncio.get_running_loop().run_in_executor(None, store.close)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _opened(self) -> MetadataStore:
        with self._lock:
            if self._store is None:
                self._store = open_store(self._uri, session_timeout_s=self._session_timeout_s)
            return self._store


@dataclass(frozen=True)
class BookieFacts:
    """One bookie, as its pages see it.

    `set_read_only`: returns once adds are refused, or taken. `audit`: takes an event and its values for the audit log.
    `cluster_id`: "" while metadata has not answered that.
    """

    config: BookieConfig
    bookie_id: str
    life: Lifecycle
    metrics: Metrics
    disks: DiskReports
    gc: GcAdmin
    read_only: ReadOnlyAdmin
    set_read_only: Callable[[bool], Awaitable[None]]
    audit: Callable[..., object]
    cluster_id: Callable[[], str]
    log_level: LogLevel
