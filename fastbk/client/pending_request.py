"""One request to one bookie on an asyncio loop: connect if need be, send, wait, with one deadline for all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from fastbk.client.connection import Answer, Connection, late
from fastbk.client.ledger_tags import show
from fastbk.errors import Error, NotEnoughBookies

if TYPE_CHECKING:
    from fastbk.client.bookie_pool import Channel, Peer
    from fastbk.client.ledger_tags import LedgerTag

# Encodes a request, given its id.
Build: TypeAlias = Callable[[int], bytes | bytearray]


class PendingRequest:
    """A request on its way to one bookie; `tell` gets the answer or an Error, once, unless it was cancelled."""

    __slots__ = (
        "_connection",
        "_peer",
        "_request_id",
        "_tag",
        "_task",
        "_tell",
        "_timeout_s",
        "_timer",
    )

    def __init__(
        self,
        peer: Peer,
        build: Build,
        timeout_s: float,
        tell: Callable[[Answer | Error], None],
        tag: LedgerTag | None = None,
    ) -> None:
        """`tag`: is shown to the bookie first."""
        self._peer = peer
        self._tag = tag
        self._tell = tell
        self._timeout_s = timeout_s
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(timeout_s, self._timed_out)
        self._request_id = peer.pool.next_request_id()
        frame = build(self._request_id)
        channel = peer.channel_for(frame)
        if channel.connection is not None:
            self._send(channel.connection, frame)
        else:
            self._task = loop.create_task(self._open(channel, frame))

    async def _open(self, channel: Channel, frame: bytes | bytearray) -> None:
        try:
            self._send(await channel.open(self._timeout_s), frame)
        except Error as error:
            self._end(error)

    def _send(self, connection: Connection, frame: bytes | bytearray) -> None:
        self._connection = connection
        if self._tag is not None:
            show(connection, self._tag, self._peer.pool.next_request_id())
        connection.send_request(self._request_id, frame, self._end)

    def _timed_out(self) -> None:
        if self._connection is not None:
            self._end(late(self._timeout_s))
        else:
            self._end(
                NotEnoughBookies(
                    f"bookie {self._peer.bookie_id} was not reached within {self._timeout_s:.3g} s"
                )
            )

    def _end(self, outcome: Answer | Error) -> None:
        self.cancel()
        if isinstance(outcome, Error):
            self._peer.pool.failed(self._peer.bookie_id)
        self._tell(outcome)

    def cancel(self) -> None:
        """Let go of it: a late answer is dropped."""
        self._timer.cancel()
        if self._connection is not None:
            self._connection.forget(self._request_id)
        elif self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
