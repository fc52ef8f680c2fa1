"""A real cluster for tests: `LocalCluster`, and the pytest fixture `fastbk_cluster`.

    from fastbk.testing import LocalCluster

    async with LocalCluster() as cluster:
        async with fastbk.connect(cluster.metadata_uri) as client: ...

The same as `with LocalCluster() as cluster:` for code without a loop. Real processes, real disks, free ports; ready
in under two seconds; nothing is left behind. For pytest put `pytest_plugins = ["fastbk.testing"]` into conftest.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.devcluster import (
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    Bookie,
    ClusterFaults,
    DevCluster,
    DevTls,
    DevWriteService,
    Link,
)
from fastbk.errors import ConfigError, Error, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from fastbk.security.tls import TlsOptions

try:
    import pytest
except ImportError:  # the class is of use without pytest, too
    pytest = None  # type: ignore[assignment]

__all__ = ["Fault", "LocalCluster"]

NOT_STARTED = "the cluster is not started: use `with LocalCluster() as cluster`"


class Fault:
    """A fault that lasts for a block, by `with` or `async with`. It ends with the block, however that ends."""

    def __init__(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        """`end` has nothing to do where `begin` has failed before anything happened."""
        self._begin = begin
        self._end = end

    def __enter__(self) -> None:
        try:
            self._begin()
        except BaseException:
            with contextlib.suppress(Error):
                self._end()
            raise

    def __exit__(self, *_: object) -> None:
        self._end()

    async def __aenter__(self) -> None:
        begun = asyncio.ensure_future(asyncio.to_thread(self.__enter__))
        try:
            await asyncio.shield(begun)
        except asyncio.CancelledError:
            await asyncio.wait([begun])  # a thread cannot be cancelled
            await asyncio.to_thread(self._end)
            raise

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._end)


class LocalCluster:
    """Bookies and metadata on this machine, from `with` to its end.

    Bookies count from 0; their processes are called `supervisor`, `worker.0`, `journal`, `index`, `gc`.
    Methods block; those of the same name with `_async` run the same in a thread. `kill`, `freeze`, `fill`, `delay` and
    `cut_off` are faults for an application's tests (docs/testing.md). `killed`, `frozen`, `filled`, `delayed` and
    `partitioned` are the same for a block, by `with` or `async with`. All faults end with the cluster.
    """

    def __init__(
        self,
        bookies: int = 3,
        *,
        data: Path | str | None = None,
        settings: Mapping[str, Mapping[str, object]] | None = None,
        metadata_uri: str | None = None,
        tls: bool = False,
        proxies: bool = False,
        write_services: int = 1,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        """Nothing runs yet.

        Args:
            bookies: how many.
            data: a folder, which is kept; None: a temporary one, which is removed at the end.
            settings: section → key → value of the bookies' configuration files.
            metadata_uri: of a store that is there already, as one in ZooKeeper; None: sqlite in the folder.
            tls: encrypt, and refuse clients without a certificate; `tls_options` has one.
            proxies: before each bookie, for `cut_off` and `delay(network_ms=)`; what passes them is slower.
            write_services: how many processes of `fastbk serve`, for producers of streams, which wait for them.
            start_timeout_s: longest wait for all to take writes.
        """
        self._bookie_count = bookies
        self._given = None if data is None else Path(data)
        self._settings = settings
        self._given_metadata_uri = metadata_uri
        self._has_tls = tls
        self._tls: DevTls | None = None
        self._has_proxies = proxies
        self._write_service_count = write_services
        self.write_services: list[DevWriteService] = []
        """They start with the cluster, which does not wait for them. Each can `stop`, `start`, and `kill`."""
        self._start_timeout_s = start_timeout_s
        self._cluster: DevCluster | None = None
        self._faults: ClusterFaults | None = None
        self._temporary: Path | None = None
        self._pid = 0
        """The process that started it."""

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
        folder, self._pid = self._given, os.getpid()
        if folder is None:
            folder = self._temporary = Path(tempfile.mkdtemp(prefix="fastbk-"))
        self._tls = DevTls(folder / "tls") if self._has_tls else None
        self._cluster = self._made(folder)
        try:
            self._faults = ClusterFaults(self._cluster.bookies, has_proxies=self._has_proxies)
            self._cluster.start(self._start_timeout_s)
            self._faults.bookies_ready()
            self._start_write_services(self._cluster)
        except BaseException:
            with contextlib.suppress(StorageError):
                self.stop()
            raise

    def _start_write_services(self, cluster: DevCluster) -> None:
        for number in range(self._write_service_count):
            name = "serve" if number == 0 else f"serve-{number + 1}"
            service = DevWriteService(name, cluster.data, cluster.metadata_uri, self._tls)
            self.write_services.append(service)
            service.start()

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
        if self._cluster is None or os.getpid() != self._pid:
            return  # in a forked child it is the parent's
        try:
            if self._faults is not None:
                self._faults.end()
            for service in self.write_services:
                # What is not kept needs no planned end.
                service.stop() if self._temporary is None else service.kill()
            self.write_services.clear()
            if not self._cluster.stop():
                raise StorageError(f"a bookie did not stop cleanly\n{self.log_tails()}")
        finally:
            self._remove()

    # --- bookies that end, and start again ----------------------------------------------------------------------

    def kill(self, bookie: int, process: str = "supervisor") -> None:
        """SIGKILL one process; the rest of that bookie ends with a supervisor, and restarts with a child."""
        self._injected.kill(bookie, process)

    def stop_bookie(self, bookie: int, timeout_s: float = STOP_TIMEOUT_S) -> int | None:
        """Drain one bookie and wait; return its exit code."""
        self._injected.thaw(bookie)
        stopped = self._injected.bookie(bookie)
        stopped.request_stop()
        return stopped.wait_gone(timeout_s)

    def start_bookie(self, bookie: int) -> None:
        """Start a stopped or killed bookie and wait until it takes writes."""
        started = self._injected.bookie(bookie)
        if started.is_running:
            raise ConfigError(
                f"{started.name} runs already: `kill({bookie})` or `stop_bookie({bookie})` first"
            )
        boots = started.boots
        started.spawn()
        self._running.wait_ready([started], self._start_timeout_s, boots + 1)
        self._injected.bookies_ready()

    def restart_bookie(self, bookie: int) -> None:
        """Drain one bookie and start it again."""
        self.stop_bookie(bookie)
        self.start_bookie(bookie)

    def wait_ready(self, bookie: int | None = None, boots_min: int = 1) -> None:
        """Wait until this bookie (all) takes writes, for at least the `boots_min`-th time."""
        wanted = None if bookie is None else [self._injected.bookie(bookie)]
        self._running.wait_ready(wanted, self._start_timeout_s, boots_min)

    def log_tails(self, lines: int = 5) -> str:
        """Return the last log lines of every bookie, for the message of a failed test."""
        return "\n".join(f"{b.name}:\n{b.log_tail(lines)}" for b in self._running.bookies)

    # --- other faults -------------------------------------------------------------------------------------------

    def freeze(self, bookie: int, process: str | None = None) -> None:
        """Stop all processes of a bookie, or one, by SIGSTOP: connections stay, and nobody answers. Ends by `thaw`.

        Raises ConfigError for a bookie or process that does not run, as all faults do.
        """
        self._injected.freeze(bookie, process)

    def thaw(self, bookie: int) -> None:
        """Let the frozen processes of a bookie go on."""
        self._injected.thaw(bookie)

    def fill(self, bookie: int) -> None:
        """Have a bookie find no free byte on its disk: it refuses adds, fences and repairs, and serves reads."""
        self._injected.inject(bookie, is_full=True)

    def unfill(self, bookie: int) -> None:
        """Have it find the room that there is."""
        self._injected.inject(bookie, is_full=False)

    def delay(
        self, bookie: int, *, journal_ms: int | None = None, network_ms: int | None = None
    ) -> None:
        """Slow a bookie down; 0 ends it, None changes nothing. Both are at most 10,000.

        Args:
            journal_ms: least time that a commit of its journal takes; an add waits for one, or for two.
            network_ms: added to what passes between it and its clients, each way. Needs `proxies`.
        """
        if journal_ms is None and network_ms is None:
            raise ConfigError("nothing to delay: give journal_ms or network_ms")
        if network_ms is not None:
            self._injected.delay_network(bookie, network_ms)
        if journal_ms is not None:
            self._injected.inject(bookie, commit_delay_ms=journal_ms)

    def cut_off(self, bookie: int, of: Link = "clients", *, silently: bool = False) -> None:
        """Cut a bookie off from its "clients" or its "metadata" (of ZooKeeper); needs `proxies`. Ends by `rejoin`.

        Connections are reset and new ones refused. `silently`: they stay, and nothing passes; that arrives later.
        """
        self._injected.cut_off(bookie, of, silently=silently)

    def rejoin(self, bookie: int) -> None:
        """Connect a bookie that was cut off."""
        self._injected.rejoin(bookie)

    def killed(self, bookie: int) -> Fault:
        """A block in which a bookie is dead; it is started at the end."""
        return Fault(lambda: self.kill(bookie), lambda: self.start_bookie(bookie))

    def frozen(self, bookie: int, process: str | None = None) -> Fault:
        """A block in which a bookie is frozen."""
        return Fault(lambda: self.freeze(bookie, process), lambda: self.thaw(bookie))

    def filled(self, bookie: int) -> Fault:
        """A block in which a bookie's disk is full."""
        return Fault(lambda: self.fill(bookie), lambda: self.unfill(bookie))

    def delayed(
        self, bookie: int, *, journal_ms: int | None = None, network_ms: int | None = None
    ) -> Fault:
        """A block in which a bookie is slow."""
        end_ms = {
            name: 0
            for name, ms in (("journal_ms", journal_ms), ("network_ms", network_ms))
            if ms is not None
        }
        return Fault(
            lambda: self.delay(bookie, journal_ms=journal_ms, network_ms=network_ms),
            lambda: self.delay(bookie, **end_ms),
        )

    def partitioned(self, bookie: int, of: Link = "clients", *, silently: bool = False) -> Fault:
        """A block in which a bookie is cut off."""
        return Fault(
            lambda: self.cut_off(bookie, of, silently=silently), lambda: self.rejoin(bookie)
        )

    # --- the same for asyncio -----------------------------------------------------------------------------------

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

    async def freeze_async(self, bookie: int, process: str | None = None) -> None:
        """`freeze` without blocking the loop."""
        await asyncio.to_thread(self.freeze, bookie, process)

    async def thaw_async(self, bookie: int) -> None:
        """`thaw` without blocking the loop."""
        await asyncio.to_thread(self.thaw, bookie)

    async def fill_async(self, bookie: int) -> None:
        """`fill` without blocking the loop."""
        await asyncio.to_thread(self.fill, bookie)

    async def unfill_async(self, bookie: int) -> None:
        """`unfill` without blocking the loop."""
        await asyncio.to_thread(self.unfill, bookie)

    async def delay_async(
        self, bookie: int, *, journal_ms: int | None = None, network_ms: int | None = None
    ) -> None:
        """`delay` without blocking the loop."""
        await asyncio.to_thread(self.delay, bookie, journal_ms=journal_ms, network_ms=network_ms)

    async def cut_off_async(
        self, bookie: int, of: Link = "clients", *, silently: bool = False
    ) -> None:
        """`cut_off` without blocking the loop."""
        await asyncio.to_thread(self.cut_off, bookie, of, silently=silently)

    async def rejoin_async(self, bookie: int) -> None:
        """`rejoin` without blocking the loop."""
        await asyncio.to_thread(self.rejoin, bookie)

    @property
    def _injected(self) -> ClusterFaults:
        if self._faults is None:
            raise RuntimeError(NOT_STARTED)
        return self._faults

    @property
    def _running(self) -> DevCluster:
        if self._cluster is None:
            raise RuntimeError(NOT_STARTED)
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
