"""The streams that a pattern chooses, found and followed, each read in its turn.

A stream's reader says when something came; then the stream stands in line, once. Whoever is first hands out what was
decoded of it, at most `max_bytes`, and goes to the end of the line while it has more. So order is kept within a
stream, and a large backlog holds nobody else up for longer than one such part.

A reader that waits holds no entries. Those that read hold a place (`ReadTurns`), and there are few of these: so what is
read ahead is bounded whatever the number of streams (INV-S21).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from fastbk.errors import ClientClosed, Error, MetadataUnavailable, QuotaExceeded, StreamNotFound
from fastbk.retry import Retry
from fastbk.stream.context import StreamContext, as_error, gathered
from fastbk.stream.namespace.catalog import Catalog, label
from fastbk.stream.namespace.events import NamespaceEvent, watched_changes
from fastbk.stream.pattern.record import STREAMS_MAX, is_match, too_many
from fastbk.stream.positions import DLSN
from fastbk.stream.reader.read_ahead import ReadTurns
from fastbk.stream.reader.stream_reader import StreamReader
from fastbk.stream.records import Chunk, Gap, Origin

PLACES = 8
"""Streams that hold entries at once. Each has what one reader's answers and half a MiB of `prefetch_bytes` come to."""
PREFETCH_BYTES_MIN = 64 * 1024
OPENED_TOGETHER = 16
AGAIN_S = 0.1
AGAIN_S_MAX = 5.0

How = Literal["there", "created", "renamed"]
"""Why a stream is read: it was there at the beginning, came with its first record, or got a name that matches."""


class Delivery(Protocol):
    """What hands out a stream's records: its reader, or a cursor's part."""

    async def next(
        self, max_records: int, max_bytes: int, timeout: float | None
    ) -> Chunk | Gap | None:
        """Return what comes next; None after `timeout` seconds, or at the end."""

    @property
    def held(self) -> Chunk | None:
        """What was taken from the reader and not handed out yet."""


Made = tuple[StreamReader[Gap], Delivery]
Make = Callable[[Origin, StreamContext, How, "asyncio.Event", ReadTurns, int], Awaitable[Made]]
"""Returns the reader of a stream, opened, and what hands its records out. Given: what the reader takes of these."""


class _Bell(asyncio.Event):
    """Of one stream's reader: puts the stream into line whenever something came."""

    def __init__(self, ring: Callable[[], None]) -> None:
        super().__init__()
        self._ring = ring

    def set(self) -> None:
        super().set()
        self._ring()


@dataclass(slots=True, eq=False)
class Part:
    """One stream."""

    origin: Origin
    how: How
    bell: _Bell
    reader: StreamReader[Gap] | None = None
    delivery: Delivery | None = None
    error: Error | None = None
    """Why it could not be opened; told in its turn."""
    opening: asyncio.Task[None] | None = None
    is_ended: bool = False
    rest: Chunk | None = None
    """What was handed out and came back."""
    last_position: DLSN | None = None
    """Where its reader was as it ended."""

    @property
    def position(self) -> DLSN | None:
        """Where the next record lies, or will lie; None before it was opened."""
        return self.last_position if self.reader is None else self.reader.position

    @property
    def has_more(self) -> bool:
        """Whether something was decoded that is not handed out: its turn goes on."""
        if self.rest is not None:
            return True
        reader, delivery = self.reader, self.delivery
        return (
            reader is not None
            and delivery is not None
            and (delivery.held is not None or reader._has_record)
        )


class PatternSource:
    """One reader's, or one holder's of a cursor. One call of `next` at a time."""

    def __init__(
        self,
        catalog: Catalog,
        path: tuple[str, ...],
        pattern: str,
        make: Make,
        gone: Callable[[str], None],
        *,
        is_tailing: bool,
        prefetch_bytes: int,
    ) -> None:
        """`gone(stream_id)` is called when a stream is not the pattern's any more: deleted, or renamed."""
        self._catalog = catalog
        self._path = path
        self._pattern = pattern
        self._make = make
        self._gone = gone
        self._is_tailing = is_tailing
        self._prefetch_bytes = max(prefetch_bytes // PLACES, PREFETCH_BYTES_MIN)
        self._turns = ReadTurns(PLACES)
        self._parts: dict[str, Part] = {}
        self._line: OrderedDict[str, Part] = OrderedDict()
        self._came = asyncio.Event()
        self._failure: Error | None = None
        self._refused: set[str] = set()
        self._space_id = ""
        self._following: asyncio.Task[None] | None = None
        self._waiting_opened = asyncio.Semaphore(OPENED_TOGETHER)
        self._ending: set[asyncio.Task[None]] = set()

    # --- life -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Find the streams that are there, and open their readers. Raises StreamNotFound, QuotaExceeded.

        What keeps one stream from being read is told when its turn comes, and keeps no other from that.
        """
        changes = watched_changes(self._catalog, self._path)
        try:
            events = await anext(changes)
            self._space_id = (await self._catalog.place(self._path)).here.id
            found = [
                one for one in events if one.what == "stream" and is_match(self._pattern, one.name)
            ]
            if len(found) > STREAMS_MAX:
                raise self._too_many(len(found))
            parts = [self._part(one.id, one.name, "there") for one in found]
            await gathered(self._open_first, parts, OPENED_TOGETHER)
        except BaseException:
            await changes.aclose()
            await self.close()
            raise
        if self._is_tailing:
            self._following = asyncio.get_running_loop().create_task(self._follow(changes))
        else:
            await changes.aclose()

    async def close(self) -> None:
        """Read no more. A `next` that waits raises ClientClosed."""
        self._failure = self._failure or ClientClosed(
            "this was closed while it was read: make a new one"
        )
        self._came.set()
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.wait([following])
        for part in [*self._parts.values()]:
            self._end(part)
        self._parts.clear()
        self._line.clear()
        if self._ending:
            await asyncio.wait(self._ending)

    def _too_many(self, count: int) -> QuotaExceeded:
        return too_many(label((*self._path, self._pattern)), count)

    # --- streams that come and go -----------------------------------------------------------------------------------

    def _part(self, stream_id: str, name: str, how: How) -> Part:
        part = Part(
            Origin(label((*self._path, name)), stream_id), how, _Bell(lambda: self._ring(stream_id))
        )
        self._parts[stream_id] = part
        return part

    def _ring(self, stream_id: str) -> None:
        part = self._parts.get(stream_id)
        if part is not None and not part.is_ended:
            self._line.setdefault(stream_id, part)
        self._came.set()

    async def _open_first(self, part: Part) -> None:
        try:
            await self._opened(part)
        except MetadataUnavailable:
            raise
        except StreamNotFound:
            self._drop(part)  # it was deleted just now
        except Error as error:
            part.error = error
            self._ring(part.origin.id)

    async def _opened(self, part: Part) -> None:
        context = self._catalog.reading(part.origin.id, part.origin.path)
        made = await self._make(
            part.origin, context, part.how, part.bell, self._turns, self._prefetch_bytes
        )
        if self._parts.get(part.origin.id) is not part:
            await made[0].close()
            return
        part.reader, part.delivery = made
        self._ring(part.origin.id)

    def _begin_opening(self, part: Part) -> None:
        async def opened() -> None:
            retry = Retry(AGAIN_S, AGAIN_S_MAX)
            async with self._waiting_opened:
                while True:
                    try:
                        await self._opened(part)
                        return
                    except MetadataUnavailable as error:
                        pause_s = retry.pause_s(error)
                    except StreamNotFound:
                        self._drop(part)
                        return
                    except asyncio.CancelledError:
                        raise
                    except BaseException as error:  # noqa: BLE001 -- told in the stream's turn
                        part.error = as_error(error, f"opening stream {part.origin.path}")
                        self._ring(part.origin.id)
                        return
                    await asyncio.sleep(pause_s)

        part.opening = asyncio.get_running_loop().create_task(opened())

    async def _follow(self, changes: AsyncGenerator[list[NamespaceEvent], None]) -> None:
        try:
            async with contextlib.aclosing(changes):
                async for events in changes:
                    for event in events:
                        self._happened(event)
            self._failure = StreamNotFound(
                f"there is no namespace {label(self._path)}: it was deleted"
            )
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._failure = as_error(error, f"following namespace {label(self._path)}")
            if not isinstance(error, Error):
                raise
        finally:
            self._came.set()

    def _happened(self, event: NamespaceEvent) -> None:
        if event.what == "namespace":
            if event.kind == "renamed" and event.id == self._space_id:
                self._path = tuple(event.name.split("/"))
                for part in self._parts.values():
                    name = part.origin.path.rpartition("/")[2]
                    part.origin = part.origin._replace(path=label((*self._path, name)))
            return
        known = self._parts.get(event.id)
        if event.kind == "deleted" or (
            event.kind == "renamed" and not is_match(self._pattern, event.name)
        ):
            if known is not None:
                self._drop(known)
        elif known is not None:
            known.origin = known.origin._replace(path=label((*self._path, event.name)))
        elif event.kind in ("present", "created", "renamed") and is_match(
            self._pattern, event.name
        ):
            self._come(event.id, event.name, "renamed" if event.kind == "renamed" else "created")

    def _come(self, stream_id: str, name: str, how: How) -> None:
        part = self._part(stream_id, name, how)
        if self._is_full:
            self._refused.add(stream_id)
            self._ring(stream_id)
        else:
            self._begin_opening(part)

    @property
    def _is_full(self) -> bool:
        return len(self._parts) - len(self._refused) > STREAMS_MAX

    def _drop(self, part: Part) -> None:
        """The stream is not the pattern's any more: its position goes, and reading goes on."""
        self._end(part)
        if self._parts.pop(part.origin.id, None) is None:
            return
        self._line.pop(part.origin.id, None)
        self._refused.discard(part.origin.id)
        self._gone(part.origin.id)
        self._came.set()

    def _end(self, part: Part) -> None:
        """Close a stream's reader, in the background."""
        part.is_ended = True
        part.last_position = part.position
        reader, part.reader, part.delivery = part.reader, None, None
        opening, part.opening = part.opening, None

        async def ended() -> None:
            if opening is not None and opening is not asyncio.current_task():
                opening.cancel()
                await asyncio.wait([opening])
            if reader is not None:
                await reader.close()

        task = asyncio.get_running_loop().create_task(ended())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    # --- reading ----------------------------------------------------------------------------------------------------

    async def next(
        self, max_records: int, max_bytes: int, timeout: float | None
    ) -> Chunk | Gap | None:
        """Return records of one stream, or a gap, which say of which; None after `timeout` s, or at the end of all.

        Cancelled, it loses nothing. Raises what readers raise, of one stream: the next call goes on with the others.
        """
        try:
            async with asyncio.timeout(timeout):
                while True:
                    self._came.clear()
                    while self._line:
                        item = await self._turn(
                            next(iter(self._line.values())), max_records, max_bytes
                        )
                        if item is not None:
                            return item
                    if self._failure is not None:
                        raise self._failure.copy()
                    if not self._is_tailing and all(one.is_ended for one in self._parts.values()):
                        return None
                    await self._came.wait()
        except TimeoutError:
            return None

    async def _turn(self, part: Part, max_records: int, max_bytes: int) -> Chunk | Gap | None:
        """Return what the first in line has; None if that is nothing."""
        stream_id = part.origin.id
        self._line.move_to_end(stream_id)
        if stream_id in self._refused or part.error is not None:
            await asyncio.sleep(0)
        if stream_id in self._refused:
            if len(self._parts) - len(self._refused) >= STREAMS_MAX:
                raise self._too_many(len(self._parts))
            self._refused.discard(stream_id)
            self._line.pop(stream_id)
            self._begin_opening(part)
            return None
        if part.error is not None:
            error, part.error = part.error, None
            self._line.pop(stream_id)
            self._begin_opening(part)
            raise error.copy()
        reader, delivery = part.reader, part.delivery
        if reader is None or delivery is None:
            self._line.pop(stream_id, None)
            return None
        if part.rest is not None:
            await asyncio.sleep(0)  # others have to come on, whoever asks again at once
            rest = part.rest
            part.rest = rest[max_records:] if len(rest) > max_records else None
            return self._handed_out(part, rest[:max_records])
        try:
            item = await delivery.next(max_records, max_bytes, 0.0)
        except StreamNotFound:
            self._drop(part)
            return None
        except ClientClosed:
            if part.is_ended:
                return None  # it went meanwhile
            raise
        except Error:
            # Raised again in its next turns: until it is passed, others need its place more.
            if not part.is_ended:
                reader._let_go()
            await asyncio.sleep(0)
            raise
        if part.is_ended:
            return None
        if item is None:
            if not part.bell.is_set():
                self._line.pop(stream_id, None)
            if reader.is_at_end:
                self._line.pop(stream_id, None)
                self._end(part)
            return None
        return self._handed_out(part, item)

    def _handed_out(self, part: Part, item: Chunk | Gap) -> Chunk | Gap:
        if part.has_more and part.origin.id in self._line:
            self._line.move_to_end(part.origin.id, last=False)
        if isinstance(item, Gap):
            return replace(item, stream=part.origin.path)
        item.origin = part.origin
        return item

    def give_back(self, chunk: Chunk) -> None:
        """These records, the last that were handed out, come again in their stream's next turn."""
        part = None if chunk.origin is None else self._parts.get(chunk.origin.id)
        if part is None or part.is_ended:
            return
        # What is behind them, if a part of what came back was handed out, is of the same chunk.
        part.rest = chunk if part.rest is None else chunk._part(0, len(chunk) + len(part.rest))
        self._line.setdefault(part.origin.id, part)
        self._line.move_to_end(part.origin.id)

    # --- questions --------------------------------------------------------------------------------------------------

    @property
    def streams(self) -> list[str]:
        """The paths of the streams that are read now, sorted."""
        return sorted(part.origin.path for part in self._parts.values())

    @property
    def path(self) -> tuple[str, ...]:
        """The namespace's, as it is called now."""
        return self._path

    def parts(self) -> dict[str, Part]:
        """Return what is known of each stream, by id."""
        return self._parts
