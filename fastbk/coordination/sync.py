"""Coordination without `await`: the same names and meanings as the asyncio classes, from `fastbk.sync`.

The process's loop, which is a thread, renews a lease. So a thread of the application that hangs keeps its lease, and
one that is busy does not lose it: `check()` before each act.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack, cast

from fastbk.client.loop_thread import LoopThread, blocking
from fastbk.coordination import guarded_writer, values
from fastbk.coordination import lease as leases
from fastbk.stream.client import Client
from fastbk.stream.options import StreamWriterOptions

if TYPE_CHECKING:
    from fastbk.coordination.lease import Leader
    from fastbk.coordination.values import ConfigValue
    from fastbk.stream.positions import DLSN
    from fastbk.stream.sync import SyncNamespace, SyncStream

A = TypeVar("A")
L = TypeVar("L", bound=leases.Lease)
T = TypeVar("T")


class _Facade(Generic[A]):
    def __init__(self, loop: LoopThread[Client], make: Callable[[], A]) -> None:
        self._loop = loop
        self._inner: A = loop.call_plain(make)

    def _call(self, act: Callable[[A], Awaitable[T]]) -> T:
        return self._loop.call(lambda: act(self._inner))

    def __repr__(self) -> str:
        return f"<fastbk.sync {repr(self._inner)[1:]}"


class SyncLease(_Facade[L]):
    """A lease; see `fastbk.coordination.Lease`."""

    _kind: type[leases.Lease] = leases.Lease

    def __init__(
        self,
        namespace: SyncNamespace,
        name: str,
        *,
        duration: float = leases.DURATION_S,
        holder: str | None = None,
        data: bytes = b"",
    ) -> None:
        """No I/O. Raises ConfigError. Arguments: those of the asyncio class."""

        def make() -> L:
            options = {"duration": duration, "holder": holder, "data": data}
            return cast("L", self._kind(namespace._inner(), name, **options))  # type: ignore[arg-type]

        super().__init__(namespace._loop, make)

    @property
    def name(self) -> str:
        """Its name in the namespace."""
        return self._inner.name

    @property
    def token(self) -> int:
        """The token of the last granting; 0 before the first."""
        return self._inner.token

    @property
    def is_held(self) -> bool:
        """Whether this process may believe to have it, by its clock."""
        return self._inner.is_held

    def check(self) -> int:
        """Return the token, if the lease is held by this process's clock. Raises LeaseLost."""
        if self._inner.is_held:
            return self._inner.token  # nearly always: no way to the loop and back
        return self._loop.call_plain(self._inner.check)

    acquire = blocking(leases.Lease.acquire)
    renew = blocking(leases.Lease.renew)
    release = blocking(leases.Lease.release)
    until_lost = blocking(leases.Lease.until_lost)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.release()


class SyncLock(SyncLease[leases.Lock]):
    """A lock; see `fastbk.coordination.Lock`. A block in a thread cannot be cancelled: its end raises LeaseLost."""

    _kind = leases.Lock

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if kind is None:
                self.check()
        finally:
            self.release()


class SyncElection(SyncLease[leases.Election]):
    """An election; see `fastbk.coordination.Election`."""

    _kind = leases.Election

    leader = blocking(leases.Election.leader)

    def follow(self) -> Iterator[Leader | None]:
        """Yield the leader now and after each change; None while nobody leads."""
        return self._loop.iterate(self._inner.follow)


class SyncCounter(_Facade[values.Counter]):
    """A counter; see `fastbk.coordination.Counter`."""

    def __init__(self, namespace: SyncNamespace, name: str) -> None:
        """No I/O. Raises ConfigError."""
        super().__init__(namespace._loop, lambda: values.Counter(namespace._inner(), name))

    value = blocking(values.Counter.value)
    add = blocking(values.Counter.add)


class SyncConfig(_Facade[values.Config]):
    """A watched configuration; see `fastbk.coordination.Config`."""

    def __init__(self, namespace: SyncNamespace, name: str) -> None:
        """No I/O. Raises ConfigError."""
        super().__init__(namespace._loop, lambda: values.Config(namespace._inner(), name))

    get = blocking(values.Config.get)
    set = blocking(values.Config.set)

    def follow(self) -> Iterator[ConfigValue | None]:
        """Yield the value now and after changes, of which several may be told as one."""
        return self._loop.iterate(self._inner.follow)


class SyncGuardedWriter(_Facade[guarded_writer.GuardedWriter]):
    """A stream's writer for the holder of a lease; see `fastbk.coordination.GuardedWriter`."""

    def __init__(
        self,
        stream: SyncStream,
        lease: SyncLease[Any] | None = None,
        *,
        create: bool = False,
        **options: Unpack[StreamWriterOptions],
    ) -> None:
        """No I/O. `create` and `options`: those of the stream's writer."""
        inner = None if lease is None else lease._inner
        super().__init__(
            stream._loop,
            lambda: guarded_writer.GuardedWriter(stream._inner(), inner, create=create, **options),
        )

    @property
    def token(self) -> int:
        """The lease's token; 0: there is no lease."""
        return self._inner.token

    @property
    def epoch(self) -> int:
        """Epoch of this opening of the stream."""
        return self._inner.epoch

    @property
    def last_dlsn(self) -> DLSN | None:
        """The position of the stream's last record that is acknowledged; None in an empty stream."""
        return self._loop.call_plain(lambda: self._inner.last_dlsn)

    open = blocking(guarded_writer.GuardedWriter.open)
    append = blocking(guarded_writer.GuardedWriter.append)
    append_if_last = blocking(guarded_writer.GuardedWriter.append_if_last)
    flush = blocking(guarded_writer.GuardedWriter.flush)
    close = blocking(guarded_writer.GuardedWriter.close)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call(lambda: self._inner.__aexit__(kind, error, trace))
