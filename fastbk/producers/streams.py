"""The streams that one write service owns: taken over when a producer asks for one, handed over when the service stops.

    streams = Streams(client, directory, peers, StreamOwner.take_over, StreamsOptions())
    owned = await streams.find("shop/orders", timeout_s)    # raises Moved, NotReady
    owned.owner.produce(frame, body)
    await streams.hand_over()                               # planned stop: the next services have them

The chain of a stream says who owns it. A service that is asked for a stream of another one takes it over only if that
one is gone: whoever answers keeps it, and so does whoever beats. A mistake costs a pause and no record, since taking
over fences (S6): it is one compare-and-set of the chain, and the loser's next append fails.

INV-S40: a stream has one owner in a process at a time, and only one takeover of it is under way.
INV-S41: while a stream is handed over its frames are kept back, and its producers are told the new address only when
the chain is released.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fastbk.errors import Error, MetadataUnavailable
from fastbk.observe import logs
from fastbk.producers.directory import Directory
from fastbk.producers.table import Frame
from fastbk.stream.client import Client
from fastbk.stream.context import StreamContext
from fastbk.stream.paths import split_stream_path
from fastbk.stream.positions import DLSN
from fastbk.stream.provenance import Row
from fastbk.stream.services import OwnerService, owner_name, service_of_owner

PROBE_TIMEOUT_S = 1.0
POLL_S = 0.2
AGAIN_S_MAX = 2.0
"""Longest pause before a stream whose owner failed here is taken over again."""
FAILURES_KEPT_S = 60.0
AT_ONCE = 16
"""Streams that are handed over at once."""
RELEASE_TIMEOUT_S = 15.0
TAKE_TIMEOUT_S = 5.0


class Moved(Exception):
    """Another service has the stream.

    Attributes:
        address: of that service.
    """

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


class NotReady(Exception):
    """The stream cannot be served now; its text says why. The same request may succeed later."""


class Owner(Protocol):
    """What a service needs of a stream's owner (`owner.py`)."""

    @property
    def failure(self) -> Error | None:
        """What ended it."""

    @property
    def pending_bytes(self) -> int:
        """Bytes of records that are not answered yet."""

    @property
    def names(self) -> int:
        """How many names its table has."""

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call back once when it ends by a failure."""

    def last_number(self, name: bytes, incarnation: int) -> int:
        """Return a name's last number."""

    def open(self, name: bytes) -> asyncio.Future[Row]:
        """Open a name."""

    def produce(self, frame: Frame, body: bytes | memoryview) -> asyncio.Future[DLSN | None]:
        """Append a frame."""

    def close(self, name: bytes, incarnation: int) -> None:
        """Take in that a producer has ended: a random name leaves the table."""

    async def release(self) -> None:
        """End as planned."""

    def abandon(self) -> None:
        """End at once."""


TakeOver = Callable[[StreamContext, str], Awaitable[Owner]]


class Peers(Protocol):
    """The way to other services."""

    async def is_there(self, service: OwnerService, timeout_s: float) -> bool | None:
        """Return whether a service answers at its address; None: nobody knows, as nothing answered in time."""

    async def have_taken(
        self, address: str, service_id: str, stream: str, timeout_s: float
    ) -> None:
        """Have a service take a stream over. Raises Error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsOptions:
    """Bounds of one service's streams."""

    streams_max: int = 10_000
    idle_s: float = 600.0
    """A stream that has had no producer for so long is released."""


@dataclass(eq=False, slots=True)
class Owned:
    """A stream that this service owns, or did.

    Attributes:
        path: as producers name it.
        end: why it is owned no more; None: it is.
        on_end: called when `end` is set, once.
        producers: how many are open on connections.
        is_moving: it is being handed over; its frames wait for `end`.
        idle_since_s: since when it has no producers.
    """

    path: str
    stream_id: str
    owner: Owner
    end: Moved | NotReady | None = None
    on_end: list[Callable[[], None]] = field(default_factory=list)
    producers: int = 0
    is_moving: bool = False
    idle_since_s: float = 0.0


@dataclass(slots=True)
class _Failures:
    """Of one stream's owners here, one behind the other."""

    count: int = 0
    last_s: float = 0.0

    def pause_s(self, now_s: float) -> float:
        """Return how long nobody takes the stream over yet."""
        if not self.count:
            return 0.0
        wait_s = min(0.05 * 2.0**self.count, AGAIN_S_MAX)
        return max(0.0, self.last_s + wait_s - now_s)


class Streams:
    """All streams of one service. Belongs to one event loop.

    Attributes:
        takeovers, handovers, lost: how many streams were taken over, given to another service, and lost by a failure.
    """

    def __init__(
        self,
        client: Client,
        directory: Directory,
        peers: Peers,
        take_over: TakeOver,
        options: StreamsOptions | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.takeovers = self.handovers = self.lost = 0
        self._client = client
        self._directory = directory
        self._peers = peers
        self._take_over = take_over
        self._options = options or StreamsOptions()
        self._clock_s = clock_s
        self._owned: dict[str, Owned] = {}
        self._paths: dict[str, str] = {}
        """Ids of owned streams: a stream is served while metadata is away."""
        self._opening: dict[str, asyncio.Task[Owned]] = {}
        self._failures: dict[str, _Failures] = {}
        self._is_stopping = False

    @property
    def owned(self) -> Sequence[Owned]:
        """The streams that are owned now."""
        return tuple(self._owned.values())

    async def find(self, path: str, timeout_s: float) -> Owned:
        """Return a stream of this service, taken over if nobody else has it.

        Raises Moved, NotReady; StreamNotFound, WrongStreamKind and what else `take_over` raises.
        """
        path = "/".join(split_stream_path(path)).lstrip("/")
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    owned = await asyncio.shield(self._task_of(path, timeout_s))
                    if owned.is_moving:
                        await _until_end(owned)
                    if owned.end is None:
                        return owned
                    if isinstance(owned.end, Moved) or self._is_stopping or not owned.is_moving:
                        raise owned.end
        except TimeoutError:
            raise NotReady(f"stream {path} is being taken over: try again") from None

    def _task_of(self, path: str, timeout_s: float) -> asyncio.Task[Owned]:
        task = self._opening.get(path)
        if task is None:
            task = asyncio.get_running_loop().create_task(
                self._found(path, timeout_s), name=f"fastbk take over {path}"
            )
            self._opening[path] = task
            task.add_done_callback(lambda ended: self._found_out(path, ended))
        return task

    def _found_out(self, path: str, task: asyncio.Task[Owned]) -> None:
        del self._opening[path]
        if not task.cancelled():
            task.exception()  # who asked may have gone

    async def _found(self, path: str, timeout_s: float) -> Owned:
        try:
            context = await self._context(path)
        except MetadataUnavailable:
            owned = self._owned.get(self._paths.get(path, ""))
            if owned is None:
                raise
            return owned
        owned = self._owned.get(context.stream_id)
        if owned is not None:
            return owned
        if self._is_stopping:
            raise self._elsewhere(path)
        if len(self._owned) >= self._options.streams_max:
            raise NotReady(
                f"this service owns {len(self._owned)} streams ([serve] streams_max): start another one"
            )
        failures = self._failures.get(context.stream_id, _Failures())
        await asyncio.sleep(failures.pause_s(self._clock_s()))
        await self._check_owner(context, self._clock_s() + timeout_s)
        me = self._directory.me
        owner = await self._take_over(context, owner_name(me.service_id, me.address))
        owned = Owned(path, context.stream_id, owner, idle_since_s=self._clock_s())
        self._owned[context.stream_id] = owned
        self._paths[path] = context.stream_id
        self.takeovers += 1
        owner.on_end(lambda: self._lost(owned))
        logs.info("serve.stream_taken_over", stream=path, names=owner.names)
        if owner.failure is not None:
            self._lost(owned)
        return owned

    async def _context(self, path: str) -> StreamContext:
        namespace, name = split_stream_path(path)
        return await self._client.namespace(namespace).stream(name).context()

    async def _check_owner(self, context: StreamContext, end_s: float) -> None:
        """Return when the stream may be taken over. Raises Moved where its owner lives, NotReady where it may."""
        known: OwnerService | None = None
        since = 0
        first_beat: int | None = None
        while True:
            service = service_of_owner((await context.store.read()).chain.owner)
            if service is None or service.service_id == self._directory.me.service_id:
                return
            if service != known:
                known, since, first_beat = service, self._directory.updates, None
            answer = await self._peers.is_there(service, PROBE_TIMEOUT_S)
            if answer is False:
                return
            beat = self._directory.beat_of(service.service_id)
            if answer or (first_beat is not None and beat not in (None, first_beat)):
                raise Moved(service.address)
            # A look that had begun before this may bring a beat from before a freeze.
            if first_beat is None and self._directory.updates >= since + 2:
                first_beat = beat
            if not self._directory.is_alive(service.service_id):
                return
            if self._clock_s() >= end_s:
                raise NotReady(
                    f"{context.name}: its service {service.service_id} at {service.address} does not answer, and has"
                    " not stood still for long enough yet"
                )
            await asyncio.sleep(POLL_S)

    def _elsewhere(self, path: str) -> Moved | NotReady:
        others = self._directory.others_for(path)
        if not others:
            return NotReady(
                "this service stops, and there is no other one: start one (`fastbk serve`)"
            )
        return Moved(others[0].address)

    # --- ends ---------------------------------------------------------------------------------------------------

    def _lost(self, owned: Owned) -> None:
        """An owner has failed: somebody else has the stream, or bookies are away."""
        if owned.end is not None or owned.is_moving:
            return
        reason = str(owned.owner.failure or "its owner has ended")
        self.lost += 1
        failures = self._failures.setdefault(owned.stream_id, _Failures())
        failures.count += 1
        failures.last_s = self._clock_s()
        logs.warning("serve.stream_lost", stream=owned.path, reason=reason)
        self._end(owned, NotReady(f"{owned.path}: {reason}"))

    def _end(self, owned: Owned, end: Moved | NotReady) -> None:
        if owned.end is not None:
            return
        owned.end = end
        if self._owned.get(owned.stream_id) is owned:
            del self._owned[owned.stream_id]
        self._paths = {
            path: stream_id
            for path, stream_id in self._paths.items()
            if stream_id != owned.stream_id
        }
        callbacks, owned.on_end = owned.on_end, []
        for callback in callbacks:
            callback()

    async def sweep(self) -> None:
        """Release streams that nobody produces to any more."""
        now_s = self._clock_s()
        for stream_id, failures in list(self._failures.items()):
            if now_s - failures.last_s > FAILURES_KEPT_S:
                del self._failures[stream_id]
        for owned in self.owned:
            if owned.producers:
                owned.idle_since_s = now_s
            elif now_s - owned.idle_since_s >= self._options.idle_s and not owned.is_moving:
                await self._released(owned)
                self._end(owned, NotReady(f"{owned.path} was idle"))

    async def _released(self, owned: Owned) -> bool:
        """Give a stream up as planned; return whether its chain names nobody now."""
        owned.is_moving = True
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                await owned.owner.release()
        except (Error, TimeoutError) as error:
            logs.warning("serve.stream_not_released", stream=owned.path, reason=str(error))
            owned.owner.abandon()
            return False
        return True

    async def hand_over(self) -> None:
        """Give all streams to other services; no more are taken over."""
        self._is_stopping = True
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        turns = asyncio.Semaphore(AT_ONCE)

        async def in_turn(owned: Owned) -> None:
            async with turns:
                await self._hand_over(owned)

        await asyncio.gather(*(in_turn(owned) for owned in self.owned))

    async def _hand_over(self, owned: Owned) -> None:
        began_s = self._clock_s()
        is_released = await self._released(owned)
        for service in self._directory.others_for(owned.path):
            try:
                await self._peers.have_taken(
                    service.address, service.service_id, owned.path, TAKE_TIMEOUT_S
                )
            except (
                Error
            ) as error:  # the next one does; without any, the first one that a producer asks
                logs.warning(
                    "serve.stream_not_taken",
                    stream=owned.path,
                    by=service.service_id,
                    reason=str(error),
                )
                continue
            self.handovers += 1
            logs.info(
                "serve.stream_handed_over",
                stream=owned.path,
                to=service.service_id,
                is_released=is_released,
                took_ms=round(1e3 * (self._clock_s() - began_s)),
            )
            self._end(owned, Moved(service.address))
            return
        self._end(owned, NotReady(f"{owned.path}: this service stops, and no other one takes it"))

    def abandon(self) -> None:
        """Give all up at once: other services recover what is under way."""
        self._is_stopping = True
        for task in self._opening.values():
            task.cancel()
        for owned in self.owned:
            owned.is_moving = True
            owned.owner.abandon()
            self._end(owned, self._elsewhere(owned.path))


async def _until_end(owned: Owned) -> None:
    """Wait until a stream is handed over, or given up."""
    if owned.end is None:
        ended = asyncio.Event()
        owned.on_end.append(ended.set)
        await ended.wait()
