"""Connections for callers without an event loop: plain sockets and poll, nothing else.

Everything that waits does so in `socket` and `select.poll`, looked up when called, so that gevent's patches take
effect. One reactor serves a client; whoever waits runs it. The protocol's state machines and the codec are the same
as the asyncio client's.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from fastbk.client.blocking_channel import BlockingChannel
from fastbk.client.config import ClientConfig
from fastbk.client.connection import (
    HELLO_REQUEST_ID,
    AddListener,
    Answer,
)
from fastbk.errors import ClientClosed, Error, NotEnoughBookies, QuorumTimeout
from fastbk.meta.api import BookieRegistration, MetadataStore
from fastbk.model.ids import BookieId

_POLL_S_MAX = 1.0


class Reactor:
    """All channels of one blocking client. Not thread-safe: the client has a lock."""

    def __init__(
        self, config: ClientConfig, list_bookies: Callable[[], list[BookieRegistration]]
    ) -> None:
        self.config = config
        self.slots: dict[int, AddListener] = {}
        self.incarnations: dict[BookieId, int] = {}
        self._list_bookies = list_bookies
        self._known: dict[BookieId, BookieRegistration] = {}
        self._channels: dict[tuple[BookieId, str], BlockingChannel] = {}
        self._request_id = 0
        self._slot = 0
        self.is_closed: str | None = None

    def channel(self, bookie_id: BookieId, use: str) -> BlockingChannel:
        """Return the channel for `use`: "adds" or "reads"."""
        found = self._channels.get((bookie_id, use))
        if found is None:
            found = self._channels[bookie_id, use] = BlockingChannel(self, bookie_id)
        return found

    def new_slot(self, listener: AddListener) -> int:
        """Return a slot for the adds of one writer."""
        self._slot += 1
        self.slots[self._slot] = listener
        return self._slot

    def bookies(self) -> list[BookieRegistration]:
        """Return the bookies that are registered now."""
        found = self._list_bookies()
        self._known.update({one.service.bookie_id: one for one in found})
        return found

    def address(self, bookie_id: BookieId, *, fresh: bool) -> tuple[str, int]:
        """Return where the bookie listens."""
        if fresh or bookie_id not in self._known:
            self.bookies()
        known = self._known.get(bookie_id)
        endpoint = known.service.endpoint() if known is not None else None
        if endpoint is None:
            raise NotEnoughBookies(f"bookie {bookie_id} is not registered")
        return endpoint.host, endpoint.port

    def run_until(self, is_done: Callable[[], bool], deadline_s: float) -> bool:
        """Serve the channels until `is_done()` or the deadline; return which: True if done."""
        while not is_done():
            if self.is_closed is not None:
                raise ClientClosed(self.is_closed)
            now_s = time.monotonic()
            if now_s >= deadline_s:
                return False
            self.turn(min(deadline_s - now_s, _POLL_S_MAX))
        return True

    def turn(self, timeout_s: float) -> None:
        """Wait once for the sockets and handle what happened; connect what is wanted and down."""
        now_s = time.monotonic()
        poll = select.poll()
        by_file: dict[int, BlockingChannel] = {}
        for channel in list(self._channels.values()):
            if channel.is_wanted:
                channel.start(now_s)
            channel.check_deadline(now_s)
            file = channel.file
            if file >= 0:
                by_file[file] = channel
                poll.register(file, select.POLLIN | (select.POLLOUT if channel.wants_out else 0))
            elif channel.is_wanted:
                timeout_s = min(timeout_s, max(0.0, channel.next_try_s - now_s))
        if not by_file:
            time.sleep(min(timeout_s, 0.05))
            return
        # Rounded up: a poll that ends a little early would spin.
        for file, events in poll.poll(int(timeout_s * 1000) + 1):
            by_file[file].handle(events)

    def open(self, bookie_id: BookieId, use: str, timeout_s: float) -> BlockingChannel:
        """Return a channel that is up, or raise why not."""
        channel = self.channel(bookie_id, use)
        if channel.is_up:
            return channel
        channel.next_try_s = 0.0
        channel.start(time.monotonic())
        self.run_until(lambda: channel.is_up or channel.file < 0, time.monotonic() + timeout_s)
        if channel.hello is None:
            raise NotEnoughBookies(f"bookie {bookie_id}: {channel.reason}")
        return channel

    def ask(self, bookie_id: BookieId, build: Callable[[int], bytes], timeout_s: float) -> Answer:
        """Send a request other than an add and return its answer."""
        (result,) = self.ask_all([bookie_id], build, timeout_s, is_enough=None)
        if isinstance(result, Error):
            raise result
        return result

    def ask_all(
        self,
        bookie_ids: list[BookieId],
        build: Callable[[int], bytes],
        timeout_s: float,
        is_enough: Callable[[dict[BookieId, Answer | Error | None]], bool] | None,
    ) -> list[Answer | Error]:
        """Send the same request to several bookies; return each one's answer or why there is none."""
        deadline_s = time.monotonic() + timeout_s
        asked: dict[BookieId, tuple[BlockingChannel, int]] = {}
        result: dict[BookieId, Answer | Error | None] = {}
        for bookie_id in bookie_ids:
            try:
                channel = self.open(bookie_id, "reads", max(0.0, deadline_s - time.monotonic()))
            except NotEnoughBookies as error:
                result[bookie_id] = error
                continue
            self._request_id = self._request_id % (HELLO_REQUEST_ID - 1) + 1
            asked[bookie_id] = (channel, self._request_id)
            channel.answers[self._request_id] = None
            channel.write(build(self._request_id))
        try:

            def is_done() -> bool:
                for bookie_id, (channel, request_id) in asked.items():
                    result[bookie_id] = channel.answers[request_id]
                if all(one is not None for one in result.values()):
                    return True
                return is_enough is not None and is_enough(result)

            self.run_until(is_done, deadline_s)
        finally:
            # An abandoned answer finds no entry here and is dropped.
            for channel, request_id in asked.values():
                del channel.answers[request_id]
        late = QuorumTimeout(f"no answer within {timeout_s:.3g} s")
        return [result[one] or late for one in bookie_ids]

    def close(self, timeout_s: float) -> None:
        """Close all channels."""
        deadline_s = time.monotonic() + timeout_s
        for channel in self._channels.values():
            channel.close(deadline_s)


class Owner(Protocol):
    """The blocking client, as its writers and readers see it."""

    config: ClientConfig
    reactor: Reactor

    def turn(self) -> AbstractContextManager[Reactor]:
        """Hold the client for one call; raises ClientClosed."""

    def store(self) -> MetadataStore:
        """Return the metadata store, opened; only while holding the client."""
