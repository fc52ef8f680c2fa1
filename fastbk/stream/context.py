"""What writers, readers, cursors and the janitor of one stream share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fastbk.client.client import Client
from fastbk.stream.chain_store import ChainStore
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

    @property
    def stream_id(self) -> str:
        """The stream's id in metadata."""
        return self.store.stream_id
