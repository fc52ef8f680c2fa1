"""Connections for callers without an event loop: plain sockets and poll, nothing else.

Everything that waits does so in `socket` and `select.poll`, looked up when called, so that gevent's patches take
effect. One reactor serves a client; whoever waits runs it. The protocol's state machines and the codec are the same
as the asyncio client's.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Protocol

from fastbk.client.asking import Build
from fastbk.client.blocking_channel import BlockingChannel
from fastbk.client.config import ClientConfig
from fastbk.client.connection import (
    HELLO_REQUEST_ID,
    AddListener,
    Answer,
    late,
    next_slot,
)
from fastbk.client.known_bookies import KnownBookies
from fastbk.client.lanes import BookieLane, Use, lane_of, use_of
from fastbk.errors import ClientClosed, Error, NotEnoughBookies
from fastbk.meta.api import BookieRegistration, Endpoint, MetadataStore
from fastbk.model.ids import BookieId

_POLL_S_MAX = 1.0
_REFRESH_S = 1.0


class Posted:
    """A request on its way to one bookie.

    Attributes:
        outcome: the answer, or NotEnoughBookies or QuorumTimeout; None while it is under way.
    """

    def __init__(
        self,
        reactor: Reactor,
        channel: BlockingChannel,
        request_id: int,
        frame: bytes | bytearray,
        now_s: float,
        timeout_s: float,
    ) -> None:
        self.outcome: Answer | Error | None = None
        self._deadline_s = now_s + timeout_s
        self._timeout_s = timeout_s
        self._reactor = reactor
        self._channel = channel
        self._frame: bytes | bytearray | None = frame
        self._request_id = request_id

    def look(self, now_s: float) -> bool:
        """Take the next step that is possible; return whether it is done."""
        if self.outcome is not None:
            return True
        outcome = self._look(now_s)
        if outcome is None:
            return False
        self.outcome = outcome
        self.cancel()
        if isinstance(outcome, Error):
            self._reactor.known.failed(self._channel.bookie_id, now_s)
        return True

    def _look(self, now_s: float) -> Answer | Error | None:
        channel, is_late = self._channel, now_s >= self._deadline_s
        if self._frame is None:
            return channel.answers[self._request_id] or (late(self._timeout_s) if is_late else None)
        if channel.is_up:
            frame, self._frame = self._frame, None
            channel.answers[self._request_id] = None
            channel.write(frame)
            return None
        if channel.file < 0:
            return NotEnoughBookies(f"bookie {channel.bookie_id}: {channel.reason}")
        if is_late:
            return NotEnoughBookies(
                f"bookie {channel.bookie_id} was not reached within {self._timeout_s:.3g} s"
            )
        return None

    def cancel(self) -> None:
        """Let go of it: an answer finds no entry and is dropped."""
        self._channel.forget(self._request_id)


class Reactor:
    """All channels of one blocking client. Not thread-safe: the client has a lock."""

    def __init__(
        self, config: ClientConfig, list_bookies: Callable[[], list[BookieRegistration]]
    ) -> None:
        self.config = config
        self.slots: dict[int, AddListener] = {}
        self.bookies_version = 0
        """Counts what the watch tells: bookies came or went."""
        self.known = KnownBookies(config)
        self._list_bookies = list_bookies
        self._channels: dict[tuple[BookieId, Use], BlockingChannel] = {}
        self._request_id = 0
        self._slot = 0
        self.is_closed: str | None = None
        self.before_wait: Callable[[float], float] | None = None
        """Work that goes on beside calls: called before each wait with its longest time, returns how long to wait."""

    def channel(self, bookie_id: BookieId, use: Use) -> BlockingChannel:
        """Return the channel for `use`."""
        found = self._channels.get((bookie_id, use))
        if found is None:
            found = self._channels[bookie_id, use] = BlockingChannel(self, bookie_id, use)
        return found

    def lane(self, bookie_id: BookieId, endpoint: Endpoint, use: Use) -> BookieLane | None:
        """Return the translation of a new connection, None where the bookie speaks our protocol."""
        return lane_of(self.config, self.known, bookie_id, endpoint, use)

    def new_slot(self, listener: AddListener) -> int:
        """Return a slot for the adds of one writer."""
        self._slot = next_slot(self._slot, self.slots)
        self.slots[self._slot] = listener
        return self._slot

    def bookies(self) -> list[BookieRegistration]:
        """Return the bookies that are registered now."""
        found = self._list_bookies()
        self.known.update(found, time.monotonic())
        self.known.locations.learn_blocking(self.known.hosts())
        return found

    def address(self, bookie_id: BookieId, *, fresh: bool) -> Endpoint:
        """Return where the bookie listens."""
        if self.known.endpoint(bookie_id) is None:
            self.bookies()
        elif fresh and self.known.age_s(time.monotonic()) > _REFRESH_S:
            # Without metadata the last known place is still worth a try.
            with suppress(Error):
                self.bookies()
        endpoint = self.known.endpoint(bookie_id)
        if endpoint is None:
            raise NotEnoughBookies(f"bookie {bookie_id} is not registered")
        return endpoint

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
        if self.before_wait is not None:
            timeout_s = self.before_wait(timeout_s)
        now_s = time.monotonic()
        poll = select.poll()
        by_file: dict[int, BlockingChannel] = {}
        for channel in list(self._channels.values()):
            if channel.take_own_answers():
                timeout_s = 0.0
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

    def open(self, bookie_id: BookieId, use: Use, timeout_s: float) -> BlockingChannel:
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

    def post(self, bookie_id: BookieId, build: Build, timeout_s: float) -> Posted:
        """Begin a request other than a writer's add; it moves on while the reactor runs."""
        now_s = time.monotonic()
        request_id = self.next_request_id()
        frame = build(request_id)
        channel = self.channel(bookie_id, use_of(self.config, self.known, bookie_id, frame))
        if not channel.is_up:
            channel.next_try_s = 0.0
            channel.start(now_s)
        posted = Posted(self, channel, request_id, frame, now_s, timeout_s)
        posted.look(now_s)
        return posted

    def next_request_id(self) -> int:
        """Return an id for a request other than a writer's add; 0 is never used."""
        self._request_id = self._request_id % (HELLO_REQUEST_ID - 1) + 1
        return self._request_id

    def ask_all(
        self, bookie_ids: Sequence[BookieId], build: Build, timeout_s: float
    ) -> list[Answer | Error]:
        """Send the same request to several bookies; return each one's answer or why there is none."""
        posted = [self.post(one, build, timeout_s) for one in bookie_ids]
        try:
            self.run_until(
                lambda: all([one.look(time.monotonic()) for one in posted]),
                time.monotonic() + timeout_s + _POLL_S_MAX,
            )
        finally:
            for one in posted:
                one.cancel()
        late = NotEnoughBookies("the request was given up")
        return [late if one.outcome is None else one.outcome for one in posted]

    def reach(self, bookie_ids: Sequence[BookieId], timeout_s: float) -> dict[BookieId, str]:
        """Connect to these for adds; return why those that do not answer are not reached."""
        missed: dict[BookieId, str] = {}
        for bookie_id in bookie_ids:
            try:
                self.open(bookie_id, "adds", timeout_s)
            except NotEnoughBookies as error:
                missed[bookie_id] = str(error)
        return missed

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
