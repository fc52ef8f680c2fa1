"""What writers, readers, cursors and the janitor of one stream share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import TypeAlias

from fastbk.client.client import Client
from fastbk.errors import Error
from fastbk.stream.chain.store import ChainStore
from fastbk.stream.policy import StreamPolicy


@dataclass(frozen=True, slots=True)
class StreamContext:
    """One stream, as one client sees it."""

    client: Client
    store: ChainStore
    name: str
    """Namespace and name, for messages."""
    policy: Callable[[], Awaitable[StreamPolicy]]
    """What holds for the next segment."""
    check_room: Callable[[], None] = lambda: None
    """Raises QuotaExceeded if `policy`, called before, found that no new segment may be made."""

    @property
    def stream_id(self) -> str:
        """The stream's id in metadata."""
        return self.store.stream_id


class LateContext:
    """A context that is not known before the first I/O: awaiting it finds the stream. Awaited as often as one likes."""

    def __init__(self, name: str, find: Callable[[], Awaitable[StreamContext]]) -> None:
        self.name = name
        self._find = find

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
    told = Error(
        f"{doing} has ended by a bug of ours, please report it: {type(error).__name__}: {error}",
        outcome="unknown",
    )
    told.__cause__ = error
    return told
