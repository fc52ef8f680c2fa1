"""A real cluster for tests: `LocalCluster`, and the pytest fixture `fastbk_cluster`.

    from fastbk.testing import LocalCluster

    async with LocalCluster() as cluster:
        async with fastbk.connect(cluster.metadata_uri) as client: ...

The same as `with LocalCluster() as cluster:` for code without a loop. Real processes, real disks, free ports; ready
in under two seconds; nothing is left behind. For pytest put `pytest_plugins = ["fastbk.testing"]` into conftest.py.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.devcluster import START_TIMEOUT_S, STOP_TIMEOUT_S, Bookie, DevCluster, DevTls
from fastbk.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from fastbk.tls.options import TlsOptions

try:
    import pytest
except ImportError:  # the class is of use without pytest, too
    pytest = None  # type: ignore[assignment]

__all__ = ["LocalCluster"]


class LocalCluster:
    """Bookies and metadata on this machine, from `with` to its end.

    Bookies count from 0; their processes are called `supervisor`, `worker.0`, `journal`, `index`, `gc`.
    Methods block; those of the same name with `_async` run the same in a thread.
    """

    def __init__(
        self,
        bookies: int = 3,
        *,
        data: Path | str | None = None,
        settings: Mapping[str, Mapping[str, object]] | None = None,
        metadata_uri: str | None = None,
        tls: bool = False,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        """Nothing runs yet.

        Args:
            bookies: how many.
            data: a folder, which is kept; None: a temporary one, which is removed at the end.
            settings: section → key → value of the bookies' configuration files.
            metadata_uri: of a store that is there already, as one in ZooKeeper; None: sqlite in the folder.
            tls: encrypt, and refuse clients without a certificate; `tls_options` has one.
            start_timeout_s: longest wait for all to take writes.
        """
        self._bookie_count = bookies
        self._given = None if data is None else Path(data)
        self._settings = settings
        self._given_metadata_uri = metadata_uri
        self._has_tls = tls
        self._tls: DevTls | None = None
        self._start_timeout_s = start_timeout_s
        self._cluster: DevCluster | None = None
        self._temporary: Path | None = None

    @property
    def metadata_uri(self) -> str:
        """What `fastbk.connect` takes."""
        return self._running.metadata_uri

    @property
    def tls_options(self) -> TlsOptions | None:
        """What `fastbk.connect(..., tls=...)` takes; None: the cluster has no TLS."""
        return None if self._tls is None else self._tls.options

    @property
    def data(self) -> Path:
        """The folder with everything in it."""
        return self._running.data

    @property
    def bookies(self) -> list[Bookie]:
        """The bookies, with their ports, process ids and state as of the last look."""
        self._running.refresh()
        return self._running.bookies

    def start(self) -> None:
        """Start all bookies; `with` does it."""
        folder = self._given
        if folder is None:
            folder = self._temporary = Path(tempfile.mkdtemp(prefix="fastbk-"))
        self._tls = DevTls(folder / "tls") if self._has_tls else None
        self._cluster = self._made(folder)
        try:
            self._cluster.start(self._start_timeout_s)
        except BaseException:
            self._remove()
            raise

    def _made(self, folder: Path) -> DevCluster:
        """Return the cluster; nothing runs yet."""
        return DevCluster(
            folder,
            self._bookie_count,
            settings=self._settings,
            metadata_uri=self._given_metadata_uri,
            tls=self._tls,
        )

    def stop(self) -> None:
        """Stop all bookies and remove a temporary folder; the end of `with` does it.

        Raises StorageError if a bookie did not end cleanly.
        """
        if self._cluster is None:
            return
        try:
            if not self._cluster.stop():
                raise StorageError(f"a bookie did not stop cleanly\n{self.log_tails()}")
        finally:
            self._remove()

    def kill(self, bookie: int, process: str = "supervisor") -> None:
        """SIGKILL one process; the rest of that bookie ends with a supervisor, and restarts with a child."""
        self._running.bookies[bookie].kill(process)

    def stop_bookie(self, bookie: int, timeout_s: float = STOP_TIMEOUT_S) -> int | None:
        """Drain one bookie and wait; return its exit code."""
        stopped = self._running.bookies[bookie]
        stopped.request_stop()
        return stopped.wait_gone(timeout_s)

    def start_bookie(self, bookie: int) -> None:
        """Start a stopped or killed bookie and wait until it takes writes."""
        started = self._running.bookies[bookie]
        boots = started.boots
        started.spawn()
        self._running.wait_ready([started], self._start_timeout_s, boots + 1)

    def restart_bookie(self, bookie: int) -> None:
        """Drain one bookie and start it again."""
        self.stop_bookie(bookie)
        self.start_bookie(bookie)

    def wait_ready(self, bookie: int | None = None, boots_min: int = 1) -> None:
        """Wait until this bookie (all) takes writes, for at least the `boots_min`-th time."""
        wanted = None if bookie is None else [self._running.bookies[bookie]]
        self._running.wait_ready(wanted, self._start_timeout_s, boots_min)

    def log_tails(self, lines: int = 5) -> str:
        """Return the last log lines of every bookie, for the message of a failed test."""
        return "\n".join(f"{b.name}:\n{b.log_tail(lines)}" for b in self._running.bookies)

    async def kill_async(self, bookie: int, process: str = "supervisor") -> None:
        """`kill` without blocking the loop."""
        await asyncio.to_thread(self.kill, bookie, process)

    async def stop_bookie_async(self, bookie: int) -> int | None:
        """`stop_bookie` without blocking the loop."""
        return await asyncio.to_thread(self.stop_bookie, bookie)

    async def start_bookie_async(self, bookie: int) -> None:
        """`start_bookie` without blocking the loop."""
        await asyncio.to_thread(self.start_bookie, bookie)

    async def restart_bookie_async(self, bookie: int) -> None:
        """`restart_bookie` without blocking the loop."""
        await asyncio.to_thread(self.restart_bookie, bookie)

    async def wait_ready_async(self, bookie: int | None = None, boots_min: int = 1) -> None:
        """`wait_ready` without blocking the loop."""
        await asyncio.to_thread(self.wait_ready, bookie, boots_min)

    @property
    def _running(self) -> DevCluster:
        if self._cluster is None:
            raise RuntimeError("the cluster is not started: use `with LocalCluster() as cluster`")
        return self._cluster

    def _remove(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        except StorageError:
            # A failed test is the news; that its bookies ended badly may well be part of it.
            if error is None:
                raise

    async def __aenter__(self) -> LocalCluster:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)


if pytest is not None:

    @pytest.fixture
    def fastbk_cluster() -> Iterator[LocalCluster]:
        """Three bookies of this test's own."""
        with LocalCluster() as cluster:
            yield cluster
