"""What writers, readers, cursors and the janitor of one stream share."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeAlias, TypeVar
from weakref import WeakSet

from fastbk.client.client import Client
from fastbk.errors import ConfigError, Error
from fastbk.stream.chain_store import ChainStore
from fastbk.stream.policy import StreamPolicy

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")


def one_at_a_time(
    read: Callable[Concatenate[A, P], Awaitable[T]],
) -> Callable[Concatenate[A, P], Coroutine[object, object, T]]:
    """Return the method of a reader, which raises ConfigError while another task waits in it.

    Two tasks that read would each get some of the records, and none would know of what the other one failed at.
    """
    waiting: WeakSet[object] = WeakSet()

    @functools.wraps(read)
    async def guarded(self: A, /, *args: P.args, **options: P.kwargs) -> T:
        if self in waiting:
            raise ConfigError(
                f"{self!r}: another task reads from it. One task at a time may read; hand its records on by a queue"
            )
        waiting.add(self)
        try:
            return await read(self, *args, **options)
        finally:
            waiting.discard(self)

    return guarded


async def _no_policy() -> StreamPolicy:
    raise Error("the stream is only read here")


@dataclass(frozen=True, slots=True)
class StreamContext:
    """One stream, as one client sees it."""

    client: Client
    store: ChainStore
    name: str
    """Namespace and name, for messages."""
    policy: Callable[[], Awaitable[StreamPolicy]] = _no_policy
    """What holds for the next segment; by default unknown, for one who only reads."""
    check_room: Callable[[], None] = lambda: None
    """Raises QuotaExceeded if `policy`, called before, found that no new segment may be made."""

    @property
    def namespace(self) -> str:
        """The path of its namespace; "": the root."""
        return self.name.rpartition("/")[0]

    @property
    def stream_id(self) -> str:
        """The stream's id in metadata."""
        return self.store.stream_id


@dataclass(frozen=True, slots=True)
class LateContext:
    """A context that is not known before the first I/O: awaiting it finds the stream. Awaited as often as one likes."""

    name: str
    _find: Callable[[], Awaitable[StreamContext]]

    def __await__(self) -> Generator[object, None, StreamContext]:
        return self._find().__await__()


ContextLike: TypeAlias = StreamContext | LateContext


async def context_of(given: ContextLike) -> StreamContext:
    """Return the context. Raises StreamNotFound, MetadataUnavailable."""
    return given if isinstance(given, StreamContext) else await given


def as_error(error: BaseException, doing: str) -> Error:
    """Return what callers are told of what ended `doing`: one of our errors as it is, anything else as a bug."""
    if isinstance(error, Error):
        return error
    bug = Error(
        f"{doing} has ended by a bug of ours, please report it: {type(error).__name__}: {error}",
        outcome="unknown",
    )
    bug.__cause__ = error
    return bug


def clock_us() -> int:
    """Return microseconds since 1970, by this machine's clock."""
    return time.time_ns() // 1000


async def gathered(act: Callable[[A], Awaitable[T]], items: Iterable[A], together: int) -> list[T]:
    """Return what `act` returns of each item, in their order; at most `together` run at a time.

    The first error is raised, and then the others are cancelled and have ended.
    """
    turns = asyncio.Semaphore(together)

    async def one(item: A) -> T:
        async with turns:
            return await act(item)

    tasks = [asyncio.ensure_future(one(item)) for item in items]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
