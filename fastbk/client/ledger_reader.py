"""The asyncio reader of one ledger: the reading procedures as calls and iterators, and the entries that it hands out.

Decisions 79, 152 and 173.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from fastbk.client.async_tools import Elements, raised_again
from fastbk.client.config import ClientConfig
from fastbk.client.known_bookies import KnownBookies
from fastbk.client.ledger_options import pacing_of, read_options
from fastbk.client.runner import LedgerIo, Runner, run
from fastbk.errors import ClientClosed, ConfigError, MetadataUnavailable, NoSuchEntry
from fastbk.meta.api import Watch
from fastbk.model.ids import ID_MAX, BookieId, EntryId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.observe.meter import (
    CONSUMED,
    Figures,
    Latency,
    LatencyHistogram,
    Meter,
    Source,
    duration_figures,
    receiving,
)
from fastbk.option_checks import checked_integer, checked_timeout
from fastbk.placement.config import Distance
from fastbk.printable_text import shown_bytes
from fastbk.replication.entry_table import EntryTable, datas_of, size_bytes_of, table_of
from fastbk.replication.lac_procedures import (
    LacNews,
    PollLac,
    PollOptions,
    ReadLastConfirmed,
    TryReadLastConfirmed,
)
from fastbk.replication.procedure import Found
from fastbk.replication.reading import ReadRange
from fastbk.retry import Retry


@dataclass(frozen=True, slots=True, repr=False)
class Entry:
    """One entry. `data` is a view of the answer that it came in: keep `value` to keep it alone.

    It can be pickled and copied: what comes out has its own data.
    """

    ledger_id: LedgerId
    entry_id: EntryId
    data: memoryview

    @property
    def value(self) -> bytes:
        """The data as bytes of its own, as `json.loads` and others want it."""
        return bytes(self.data)

    def __repr__(self) -> str:
        size = len(self.data)
        return f"<Entry {self.entry_id} of ledger {self.ledger_id}: {size} bytes {shown_bytes(self.data)}>"

    def __reduce__(self) -> tuple[object, ...]:
        return _entry_of, (self.ledger_id, self.entry_id, self.value)


def _entry_of(ledger_id: LedgerId, entry_id: EntryId, value: bytes) -> Entry:
    """Return an entry that was pickled."""
    return Entry(ledger_id, entry_id, memoryview(value))


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """A ledger as the metadata store has it."""

    ledger_id: LedgerId
    metadata: LedgerMetadata
    version: int


class Batch:
    """Entries with consecutive ids that were read together, at least one; in one or more runs, as they came.

    It can be pickled and copied: what comes out has its own data.
    """

    __slots__ = ("first_entry_id", "ledger_id", "runs")

    def __init__(self, ledger_id: LedgerId, *runs: Sequence[Found]) -> None:
        """`runs`: at least one, none is empty; an `EntryTable` makes no object for an entry that is not looked at."""
        self.ledger_id = ledger_id
        self.first_entry_id = runs[0][0].entry_id
        self.runs = runs

    @property
    def last_entry_id(self) -> EntryId:
        """The id of the last entry."""
        return self.first_entry_id + len(self) - 1

    @property
    def last_data(self) -> bytes | memoryview:
        """The data of the last entry."""
        return self.runs[-1][-1].data

    @property
    def datas(self) -> list[memoryview]:
        """The data of all entries in order, without an object for each entry."""
        return [data for run in self.runs for data in datas_of(run)]

    @property
    def lengths(self) -> list[int]:
        """For each entry the bytes of data of the ledger up to and with it, as its writer said."""
        return [length for run in self.runs for _, _, length, _ in run]

    @property
    def size_bytes(self) -> int:
        """Bytes of data of all entries."""
        return sum(map(size_bytes_of, self.runs))

    def tables(self) -> list[EntryTable]:
        """Return the entries as tables, to be written by columns."""
        return [table_of(run) for run in self.runs]

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    def __repr__(self) -> str:
        entries = f"{len(self)} entries from {self.first_entry_id}, {self.size_bytes} bytes"
        return f"<Batch of ledger {self.ledger_id}: {entries}>"

    def __reduce__(self) -> tuple[object, ...]:
        runs = [[(*one[:3], bytes(one.data)) for one in run] for run in self.runs]
        return _batch_of, (self.ledger_id, runs)

    def __iter__(self) -> Iterator[Entry]:
        for entries in self.runs:
            for entry_id, _, _, data in entries:
                # What came over the wire is a view already; a call an entry would be felt.
                yield Entry(self.ledger_id, entry_id, data)  # type: ignore[arg-type]


def _batch_of(ledger_id: LedgerId, runs: Sequence[Sequence[tuple[int, int, int, bytes]]]) -> Batch:
    """Return a batch that was pickled."""
    return Batch(ledger_id, *(table_of([Found(*one) for one in run]) for run in runs))


def batches_of(
    ledger_id: LedgerId, metadata: LedgerMetadata, runs: Sequence[Sequence[Found]]
) -> Sequence[Batch]:
    """Return answers that follow each other as batches: one each, but of a striped ledger, whose answers are short."""
    if metadata.ensemble_size != metadata.write_quorum:
        return [Batch(ledger_id, *runs)]
    return [Batch(ledger_id, run) for run in runs]


# --- the reader ------------------------------------------------------------------------------------


POLL_SPREAD = 1.5
"""A poll is longer than it has to be by up to this factor."""
POLL_S_MAX = 60.0
"""No bookie lets a request wait longer."""


@dataclass(frozen=True, slots=True)
class LedgerReaderStats:
    """Figures of one reader at one moment."""

    last_known: EntryId
    """The highest entry that it knows to be acknowledged, -1 if there is none."""
    entries: int
    """That bookies gave."""
    bytes: int
    """The bytes of their data."""
    copies_skipped: int
    """Copies that were missing, damaged or not to be had, so that another bookie was asked."""
    read_latency: Latency
    """Time from the request of a range of entries until the first of them came."""


class ReadFigures:
    """What readers count: one of a ledger, or all those of a stream's reader together."""

    __slots__ = ("bytes", "copies_skipped", "entries", "histogram")

    def __init__(self) -> None:
        self.entries = 0
        self.bytes = 0
        self.copies_skipped = 0
        self.histogram = LatencyHistogram()


class ReadingTurns(Protocol):
    """Turns of one reader among many that may not all hold entries together."""

    async def begin(self) -> None:
        """Wait until it may fetch entries."""

    def rest(self) -> None:
        """It fetches none for now."""


class LedgerReader:
    """Reads one ledger; made by `Client.open_ledger`. Safe to share between tasks of one loop.

    Cancelling a call, or leaving an `async for`, withdraws it: a late answer is dropped by its request id. An iterator
    that has raised an error, or was cancelled, raises again: read from the last entry that it gave.
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        io: LedgerIo,
        config: ClientConfig,
        watch_ledger: Callable[[LedgerId, Callable[[], None]], Awaitable[Watch]],
    ) -> None:
        self.ledger_id = io.ledger_id
        self.metadata = metadata
        self._io = io
        self._config = config
        self._watch_ledger = watch_ledger
        self._loop = asyncio.get_running_loop()
        self._lac: EntryId = metadata.last_entry_id
        self._prefer = ReadOrder(
            io.pool.known,
            random.randrange(1 << 16),
            is_striped=metadata.ensemble_size != metadata.write_quorum,
        )
        self.figures = ReadFigures()
        self._closed = False
        self._runs: set[Runner[Any]] = set()
        self._source: Source | None = None

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "open"
        return f"<LedgerReader of ledger {self.ledger_id}, {state}, entries to {self._lac} known>"

    # --- LAC ---------------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether the ledger is closed, as far as this reader knows."""
        return self.metadata.is_closed

    @property
    def last_known(self) -> EntryId:
        """The highest entry that this reader knows to be acknowledged; no I/O."""
        return self._lac

    async def last_add_confirmed(self, *, timeout: float | None = None) -> EntryId:
        """Ask the bookies for the last acknowledged entry, -1 if there is none; only good digests count.

        Returns once the answers must contain every LAC that anybody has seen. A closed ledger needs no asking.
        While too many bookies are away or busy it goes on asking until the time is over; then NotEnoughBookies.
        """
        return await self._request_lac(ReadLastConfirmed, timeout)

    async def try_last_add_confirmed(self, *, timeout: float | None = None) -> EntryId:
        """Ask all bookies once and return the best that is proven, however few answer: it may be an old one.

        Raises NotEnoughBookies when none answers.
        """
        return await self._request_lac(TryReadLastConfirmed, timeout)

    async def _request_lac(self, kind: type[ReadLastConfirmed], timeout: float | None) -> EntryId:
        self._check()
        checked_timeout(timeout)
        if not self.metadata.is_closed:
            await self._refresh()
        if self.metadata.is_closed:
            return self._lac
        asking = kind(self.ledger_id, self.metadata, pacing_of(self._config, timeout))
        self._lac = max(self._lac, await run(asking, self._io, self._runs))
        return self._lac

    async def _refresh(self) -> None:
        """Read the metadata: the writer may have changed its ensemble, or closed. Without it, what is known counts."""
        with contextlib.suppress(MetadataUnavailable):
            await self._read_metadata()

    async def _read_metadata(self) -> None:
        self._see((await self._io.store.read_ledger(self.ledger_id)).metadata)

    # --- reading -----------------------------------------------------------------------------------------------

    def read(self, first: EntryId = 0, last: EntryId | None = None) -> AsyncGenerator[Entry, None]:
        """Yield the entries first..last in order; `last` None: up to the last acknowledged one known now.

        Raises NoSuchEntry for ids beyond that, and what `DigestMismatch` and `NotEnoughBookies` say.
        """
        return Elements(self.read_batches(first, last))

    @raised_again
    async def read_batches(
        self, first: EntryId = 0, last: EntryId | None = None
    ) -> AsyncGenerator[Batch, None]:
        """Like `read`, a Batch of consecutive entries at a time: the fast way."""
        async with contextlib.aclosing(self.found_batches(first, last)) as parts:
            async for batches in parts:
                for batch in batches:
                    yield batch

    async def found_batches(
        self, first: EntryId, last: EntryId | None
    ) -> AsyncGenerator[list[Batch], None]:
        """Like `read_batches`, all that has come at a time; for `fastbk.sync`."""
        end = await self._last_readable(first, last)
        if end < first:
            return
        async with contextlib.aclosing(self._found(first, end)) as parts:
            async for runs in parts:
                yield list(batches_of(self.ledger_id, self.metadata, runs))

    async def _found(
        self,
        first: EntryId,
        last: EntryId,
        *,
        timeout: float | None = None,
        is_unconfirmed: bool = False,
    ) -> AsyncGenerator[list[Sequence[Found]], None]:
        """Yield what is found of a range, in order, as it came; more is fetched meanwhile, within the bounds."""
        options = read_options(self._config, timeout, is_unconfirmed=is_unconfirmed)
        order = self._prefer.at(self._loop.time())
        reading = ReadRange(self.ledger_id, self.metadata, first, last, options, order)
        moved = asyncio.Event()
        runner = Runner(reading, self._io, moved.set)
        figures, began_s = self.figures, time.monotonic()
        self._runs.add(runner)
        runner.start()
        try:
            while True:
                runs = reading.take_tables(self._loop.time())
                runner.step()
                moved.clear()
                if runs:
                    if began_s:
                        now_s = time.monotonic()
                        figures.histogram.record(now_s - began_s, 1, now_s)
                        began_s = 0.0
                    figures.entries += sum(map(len, runs))
                    figures.bytes += sum(map(size_bytes_of, runs))
                    # Each entry carries the LAC of its time.
                    self._lac = max(self._lac, runs[-1][-1].lac)
                    yield runs
                elif runner.is_over:
                    runner.value()
                    return
                else:
                    await moved.wait()
        finally:
            self._runs.discard(runner)
            runner.stop()
            figures.copies_skipped += reading.skipped
            self._prefer.were_slow(reading.slow)
            if not self.metadata.is_closed:
                self._see(reading.metadata)

    async def _last_readable(self, first: EntryId, last: EntryId | None) -> EntryId:
        self._check()
        check_range(first, first if last is None else last)
        known = self._lac
        if (last is None or last > known) and not self.metadata.is_closed:
            known = await self.last_add_confirmed()
        if last is None:
            return known
        if last > known:
            raise NoSuchEntry(
                f"ledger {self.ledger_id}: entry {last} is beyond the last acknowledged one, {known};"
                " wait for it with tail(), or use read_unconfirmed()",
                ledger_id=self.ledger_id,
                entry_id=last,
            )
        return last

    async def read_unconfirmed(
        self, first: EntryId, last: EntryId, *, timeout: float | None = None
    ) -> list[Entry]:
        """Return the entries first..last that bookies hold, acknowledged or not, up to the first that is missing.

        What lies beyond the LAC may not be there later: a recovery may cut it off.
        """
        self._check()
        check_range(first, last)
        entries: list[Entry] = []
        parts = self._found(first, last, timeout=timeout, is_unconfirmed=True)
        async with contextlib.aclosing(parts):
            async for runs in parts:
                entries += Batch(self.ledger_id, *runs)
        return entries

    async def read_last(self, *, timeout: float | None = None) -> Entry:
        """Return the last acknowledged entry, as `last_add_confirmed` finds it; NoSuchEntry in an empty ledger."""
        last = await self.last_add_confirmed(timeout=timeout)
        if last < 0:
            raise NoSuchEntry(f"ledger {self.ledger_id} has no entries", ledger_id=self.ledger_id)
        (entry,) = [one async for one in self.read(last, last)]
        return entry

    # --- tailing -----------------------------------------------------------------------------------------------

    def tail(self, first: EntryId = 0) -> AsyncGenerator[Entry, None]:
        """Yield entries from `first` on as they are acknowledged, for ever; ends after the last one of a closed ledger.

        Waits by long polls at one bookie of the ledger, soon at all of them, and follows its changes of bookies. When
        no bookie answers for `read_timeout`, raises NotEnoughBookies: tail again from the last entry seen.
        """
        return Elements(self.tail_batches(first))

    @raised_again
    async def tail_batches(
        self, first: EntryId = 0, turns: ReadingTurns | None = None
    ) -> AsyncGenerator[Batch, None]:
        """Like `tail`, a Batch of consecutive entries at a time: whatever was acknowledged since the last one.

        `turns`: of one of many readers, which may not all hold entries together.
        """
        async with contextlib.aclosing(self.tailed_batches(first, turns)) as parts:
            async for batches in parts:
                for batch in batches:
                    yield batch

    async def tailed_batches(
        self, first: EntryId, turns: ReadingTurns | None = None
    ) -> AsyncGenerator[list[Batch], None]:
        """Like `tail_batches`, all that has come at a time; for `fastbk.sync`."""
        self._check()
        check_range(first, first)
        follower = LedgerFollower(partial(self._watch_ledger, self.ledger_id), self._read_metadata)
        try:
            async with contextlib.aclosing(self._tailed(first, follower, turns)) as parts:
                async for batches in parts:
                    yield batches
        finally:
            await follower.stop()

    async def _tailed(
        self, position: EntryId, follower: LedgerFollower, turns: ReadingTurns | None
    ) -> AsyncGenerator[list[Batch], None]:
        is_quiet = False
        while True:
            if self._lac >= position:
                if turns is not None:
                    await turns.begin()
                async with contextlib.aclosing(self.found_batches(position, self._lac)) as parts:
                    async for batches in parts:
                        position = batches[-1].last_entry_id + 1
                        yield batches
                continue
            if self.metadata.is_closed:
                return
            if turns is not None:
                turns.rest()
            news = await self._poll(position, follower, is_quiet=is_quiet)
            is_quiet = news.lac < position
            self._lac = max(self._lac, news.lac)
            if news.slow is not None:
                self._prefer.was_late(news.slow)
            if news.entry is not None:
                if turns is not None:
                    await turns.begin()
                entry = news.entry._replace(data=memoryview(news.entry.data))
                self.figures.entries += 1
                self.figures.bytes += len(entry.data)
                position += 1
                yield [Batch(self.ledger_id, [entry])]

    async def _poll(
        self, position: EntryId, follower: LedgerFollower, *, is_quiet: bool
    ) -> LacNews:
        """Wait at the bookies until the LAC has reached `position`, a close, or for `poll_interval` and a bit."""
        self._check()
        if follower.failure is not None:
            raise follower.failure
        # Readers that were opened together do not ask together for ever.
        wait_s = min(POLL_S_MAX, self._config.poll_interval * random.uniform(1.0, POLL_SPREAD))
        options = PollOptions(wait_s=wait_s, is_quiet=is_quiet, pacing=pacing_of(self._config))
        order = self._prefer.at(self._loop.time())
        poll = PollLac(self.ledger_id, self.metadata, position, options, order)
        done: asyncio.Future[None] = self._loop.create_future()

        def stepped() -> None:
            if runner.is_over and not done.done():
                done.set_result(None)

        def followed() -> None:
            if follower.failure is not None:
                runner.end(follower.failure)
                return
            poll.metadata_changed(self.metadata, self._loop.time())
            runner.step()

        runner = Runner(poll, self._io, stepped)
        self._runs.add(runner)
        runner.start()
        follower.follow(followed)
        try:
            await done
        finally:
            self._runs.discard(runner)
            follower.pause()
            runner.stop()
        news = runner.value()
        if news.fenced and news.lac < position and not self.metadata.is_closed:
            follower.check()
        return news

    def _see(self, metadata: LedgerMetadata) -> None:
        if self.metadata.is_closed:
            return  # two reads may end in the other order; what is closed stays closed
        self.metadata = metadata
        if metadata.is_closed:
            self._lac = metadata.last_entry_id

    # --- the rest ----------------------------------------------------------------------------------------------

    def stats(self) -> LedgerReaderStats:
        """Return this reader's figures now."""
        one = self.figures
        return LedgerReaderStats(
            self._lac, one.entries, one.bytes, one.copies_skipped, one.histogram.latency()
        )

    def measure(self, meter: Meter) -> None:
        """Have this reader's figures observed until it is closed."""
        self._source = meter.add(receiving(), self._figures)

    def _figures(self) -> Figures:
        return {
            CONSUMED: self.figures.entries,
            "fastbk.client.receive.size": self.figures.bytes,
            **duration_figures("receive", self.figures.histogram.latency()),
        }

    def _check(self) -> None:
        if self._closed or self._io.pool.is_closed:
            raise self._closed_error()

    def _closed_error(self) -> ClientClosed:
        return ClientClosed(
            "this reader is closed: open the ledger again", ledger_id=self.ledger_id
        )

    async def close(self) -> None:
        """Take no more calls. Reads, polls and tails that are under way end with ClientClosed."""
        self._closed = True
        if self._source is not None:
            self._source.close()
        for runner in list(self._runs):
            runner.end(self._closed_error())

    async def __aenter__(self) -> LedgerReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def check_range(first: EntryId, last: EntryId) -> None:
    """Raise ConfigError for what are no ids of entries, or do not ascend."""
    checked_integer("first", first, 0, ID_MAX)
    checked_integer("last", last, 0, ID_MAX)
    if last < first:
        raise ConfigError(f"entries {first}..{last}: must be 0 or above and ascend")


# --- following the metadata -----------------------------------------------------------------------
#
# Keeps the metadata of a ledger that is tailed up to date, beside the tail and never in its way.


AGAIN_S = 0.1
AGAIN_S_MAX = 5.0


class LedgerFollower:
    """Begins a watch at the first `follow`, reads the metadata, and reads it again at each change and each `check`.

    Nothing else: the store's watch looks again by itself after its connection was lost (`fastbk.meta.api`). So an idle
    tail makes no calls.

    While the metadata store is away the tail goes on with the metadata it has (S13), and the follower tries again.

    Attributes:
        failure: why the ledger cannot be followed any more, such as NoSuchLedger; None while it is followed.
    """

    def __init__(
        self,
        watch: Callable[[Callable[[], None]], Awaitable[Watch]],
        read: Callable[[], Awaitable[object]],
    ) -> None:
        """`watch(changed)` begins a watch; `read()` reads and keeps the metadata. MetadataUnavailable: try again."""
        self.failure: BaseException | None = None
        self._watch = watch
        self._read = read
        self._changed = asyncio.Event()
        self._listener: Callable[[], None] | None = None
        self._task: asyncio.Task[None] | None = None

    def follow(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each read, and after a failure, until `pause`."""
        self._listener = listener
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._ended)

    def pause(self) -> None:
        """Call nobody; go on reading."""
        self._listener = None

    def check(self) -> None:
        """Read the metadata now: a bookie knows more than was read."""
        self._changed.set()

    async def _run(self) -> None:
        retry = Retry(AGAIN_S, AGAIN_S_MAX)
        watch: Watch | None = None
        try:
            while True:
                try:
                    if watch is None:
                        watch = await self._watch(self._changed.set)
                    self._changed.clear()  # a change during the read is read again
                    await self._read()
                except MetadataUnavailable as error:
                    await asyncio.sleep(retry.pause_s(error))
                    continue
                retry.restart()
                self._notify()
                await self._changed.wait()
        finally:
            if watch is not None:
                watch.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.failure = task.exception()
            self._notify()

    def _notify(self) -> None:
        if self._listener is not None:
            self._listener()

    async def stop(self) -> None:
        """Follow no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


# --- whom to ask first ----------------------------------------------------------------------------
#
# In which order a reader asks the bookies that hold the same: near ones first, those that fail or
# are slow last. No I/O.


AVOID_S = 5.0
"""A bookie that was slower than another is asked last for so long."""


class ReadOrder:
    """One reader's order. Times are seconds of the clock that `known` uses.

    A bookie that failed, or left a read unanswered until another one was quicker, is asked behind all others, however
    near it is; of the rest the nearest ones come first (INV-P9). A near one that only had a tail's news a moment later
    than a far one stays before that: it costs milliseconds, and the far one costs money.

    `turn` spreads readers over bookies; within a striped ledger the order that comes is kept, since the first one there
    holds the longest run of what follows.
    """

    def __init__(self, known: KnownBookies, turn: int, *, is_striped: bool) -> None:
        self._known = known
        self._turn = turn
        self._is_striped = is_striped
        self._slow_until_s: dict[BookieId, float] = {}
        self._late_until_s: dict[BookieId, float] = {}
        self._now_s = 0.0

    def at(self, now_s: float) -> ReadOrder:
        """Set the time by which the next orders are made."""
        self._now_s = now_s
        return self

    def were_slow(self, bookie_ids: Sequence[BookieId] | Mapping[BookieId, int]) -> None:
        """Take note of bookies that another was quicker than."""
        for bookie_id in bookie_ids:
            self._slow_until_s[bookie_id] = self._now_s + AVOID_S

    def was_late(self, bookie_id: BookieId) -> None:
        """Take note of a bookie that others had a tail's news before."""
        self._late_until_s[bookie_id] = self._now_s + AVOID_S

    def __call__(self, bookie_ids: Sequence[BookieId]) -> Sequence[BookieId]:
        """Return the same bookies, those to ask first first."""
        turned = list(bookie_ids)
        if not self._is_striped and turned:
            index = self._turn % len(turned)
            turned = turned[index:] + turned[:index]
        now_s, known, distances = self._now_s, self._known, self._known.differing_distances()
        if not (distances or known.has_suspects or self._slow_until_s or self._late_until_s):
            return turned
        return sorted(
            turned,
            key=lambda one: (
                known.is_suspect(one, now_s),
                self._slow_until_s.get(one, 0.0) > now_s,
                distances.get(one, Distance.UNKNOWN),
                self._late_until_s.get(one, 0.0) > now_s,
            ),
        )
