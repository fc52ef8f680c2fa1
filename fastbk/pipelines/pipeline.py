"""A pipeline: reads sources, has records transformed, appends the outputs to sinks, each exactly once.

    async with fastbk.pipeline(source=orders, sinks=invoices, transform=invoice_of) as pipeline:
        await pipeline.run()

INV-S45: nothing is read before every sink's former pipeline is fenced and what its log says is known; where a sink
begins in a source is stored before anything of that source is. INV-S46: outputs that a sink has already are left out
of it, by its own positions: with several sinks each has each output once.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, Unpack, cast

from fastbk.errors import (
    ClientClosed,
    ConfigError,
    Error,
    PositionTruncated,
    StreamExists,
    WrongType,
)
from fastbk.observe.library_log import LibraryLog
from fastbk.option_checks import checked_integer, owned_bytes
from fastbk.pipelines.sink import Packed, SinkWriter, source_id_of
from fastbk.stream.chain import NONE
from fastbk.stream.context import StreamContext
from fastbk.stream.options import StreamWriterOptions, WriterOptions, writer_options_of
from fastbk.stream.positions import DLSN, FIRST, Start, check_start
from fastbk.stream.provenance import SourceRow
from fastbk.stream.reader.search import resolve, tail_position
from fastbk.stream.reader.stream_reader import Lag, StreamReader
from fastbk.stream.records import Chunk, Gap, HeadersLike, Origin, Record, put_headers
from fastbk.stream.stream import Stream
from fastbk.stream.writer.engine import StreamWriterStats

Data: TypeAlias = bytes | bytearray | memoryview
BATCH_BYTES = 256 * 1024
"""Default of the option `batch_bytes`: nobody waits for a single output."""
SLICE_S = 0.1
"""A transform that takes longer for a chunk has its outputs sent in parts, each of about this time."""
HOLD_INTERVAL_S = 10.0
"""How often the cursors that hold records of the sources back are moved."""
NO_NAME = ""
_log = LibraryLog("fastbk.pipeline")


class Output(NamedTuple):
    """What a transform makes of a record, where it is more than a payload."""

    payload: Data
    key: Data | None = None
    headers: HeadersLike = ()
    sink: str = NO_NAME
    """Name of the sink; with one sink it needs none."""


Result: TypeAlias = Data | Output | Iterable[Data | Output] | None
"""What a transform returns of a record: one output, several, or none."""
Transform: TypeAlias = Callable[[Record], Result | Awaitable[Result]]
TransformMany: TypeAlias = Callable[[Chunk], Sequence[Result] | Awaitable[Sequence[Result]]]


@dataclass(frozen=True, slots=True)
class PipelineStats:
    """Figures of one pipeline at one moment, since it was opened."""

    records: int
    """Of sources, that were transformed."""
    outputs: int
    """That were appended to sinks, acknowledged or not."""
    repeats: int
    """Records whose outputs some sink had already: read again since another sink did not have them."""
    gaps: int
    """Gaps of sources that were passed over, with `on_gap="skip"`."""
    lag: Lag
    """How far it is behind what it knows of its sources: the sum of records, the longest time."""
    sinks: dict[str, StreamWriterStats]
    """Figures of the sinks' writers, by their names."""


class Batch(NamedTuple):
    """Records of one source that are to be transformed."""

    source: Source
    chunk: Chunk


class Results(NamedTuple):
    """What a transform made of the first records of a chunk, and what it raised at the one behind them."""

    values: Sequence[Result]
    error: BaseException | None


class Source:
    """One source while the pipeline is open.

    Attributes:
        position: of the next record that is to be transformed.
        held: where the cursor is that holds records back.
        until: a run ends behind this record; None: behind none.
        is_done: nothing more comes in this run.
    """

    def __init__(self, context: StreamContext, reader: StreamReader[Gap], row: SourceRow) -> None:
        self.id = row.stream
        self.path = context.name
        self.reader = reader
        self.position = row.dlsn
        self.until: DLSN | None = None
        self.is_done = False
        self.reading: asyncio.Task[Chunk | Gap | None] | None = None
        self.held = row.dlsn
        self._context = context

    async def find_end(self) -> None:
        """Have the run end behind what is visible now."""
        tail = await tail_position(self._context)
        self.until = None if tail is None else tail.dlsn
        self.check_end(is_bounded=True)

    def check_end(self, *, is_bounded: bool) -> None:
        """Find out whether all of a run that ends is read."""
        self.is_done = is_bounded and (self.until is None or self.position > self.until)

    async def close(self) -> None:
        """Read no more."""
        if self.reading is not None:
            self.reading.cancel()
            await asyncio.gather(self.reading, return_exceptions=True)
        await self.reader.close()


class Pipeline:
    """Made by `fastbk.pipeline()`. `async with` opens it: whoever wrote to the sinks before is fenced.

    One task at a time may run it. What a transform or an append raises ends the pipeline, and so does a cancellation
    meanwhile; open another one, which goes on behind the last outputs that are stored. What reading raises does not
    (NotEnoughBookies, MetadataUnavailable): run it again.
    """

    def __init__(
        self,
        sources: Sequence[Stream],
        sinks: Mapping[str, Stream],
        applying: Applying,
        options: PipelineOptions,
    ) -> None:
        """`fastbk.pipeline()` makes it."""
        self._given_sources = sources
        self._given_sinks = sinks
        self._applying = applying
        self._options = options
        self._sources: list[Source] = []
        self._sinks: dict[str, SinkWriter] = {}
        self._stack = AsyncExitStack()
        self._is_open = self._is_over = self._is_stopped = self._is_bounded = False
        self._woken: asyncio.Future[None] | None = None
        self._turn = 0
        self._records = self._repeats = self._gaps = 0
        self._stored_s = self._held_s = 0.0
        self._holding: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        sources = ", ".join(stream.path for stream in self._given_sources)
        sinks = ", ".join(stream.path for stream in self._given_sinks.values())
        return f"<Pipeline from {sources} to {sinks}{'' if self._is_open else ', not open'}>"

    # --- life -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Take the sinks over, and find where to go on; `async with` does it.

        Raises ConfigError, WrongStreamKind, StreamNotFound, PositionTruncated, and what opening a writer raises.
        """
        if self._is_open or self._is_over:
            raise ClientClosed(f"{self!r} was opened before: make another one")
        try:
            await self._open()
        except BaseException as error:
            self._is_over = True
            await self._stack.__aexit__(type(error), error, error.__traceback__)
            raise

    async def _open(self) -> None:
        contexts = [await stream.context() for stream in self._given_sources]
        sinks = {name: (await stream.context()) for name, stream in self._given_sinks.items()}
        ids = [context.stream_id for context in (*contexts, *sinks.values())]
        if len({*ids}) < len(ids):
            raise ConfigError(f"{self!r}: a stream is there twice")
        for name, context in sorted(sinks.items(), key=lambda item: item[1].stream_id):
            # Two pipelines that open at once mostly meet at the first sink, in this order.
            may_begin_anew = self._options.on_unknown == "start"
            writer = SinkWriter(context, self._options.writer, may_begin_anew=may_begin_anew)
            self._sinks[name] = await self._stack.enter_async_context(writer)
            writer.outputs.on_failure = self._wake
        self._loop = asyncio.get_running_loop()
        rows = [await self._row_of(context) for context in contexts]
        await self._flush()
        for context, row in zip(contexts, rows, strict=True):
            reader: StreamReader[Gap] = StreamReader(
                context,
                row.dlsn,
                on_gap="raise" if self._options.on_gap == "raise" else "yield",
                prefetch_bytes=self._options.prefetch_bytes,
                start_seq=row.seq,
            )
            await self._stack.enter_async_context(reader)
            self._sources.append(Source(context, reader, row))
        await self._make_cursors()
        self._stored_s = self._held_s = time.monotonic()
        self._is_open = True

    async def _row_of(self, context: StreamContext) -> SourceRow:
        """Return where to read a source from; sinks that do not know it yet store where they begin (INV-S45)."""
        source = source_id_of(context.stream_id)
        queues = [sink.outputs for sink in self._sinks.values()]
        begin: SourceRow | None = None
        for queue in queues:
            if source not in queue.positions:
                begin = begin or await _row_at(context, source, self._options.start)
                queue.begin_at([begin])
        return min((queue.positions[source] for queue in queues), key=lambda row: row.dlsn)

    async def close(self) -> None:
        """Store what was transformed, and end. Raises what ended the sinks' writers."""
        await self.__aexit__(None, None, None)

    async def __aenter__(self) -> Pipeline:
        await self.open()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._is_over, was_open, self._is_open = True, self._is_open, False
        if not was_open:
            return
        for source in self._sources:
            await source.close()
        if self._holding is not None:
            self._holding.cancel()
            await asyncio.gather(self._holding, return_exceptions=True)
        if kind is None:
            self._put_positions()
        await self._stack.__aexit__(type(error) if error else None, error, None)

    def stop(self) -> None:
        """Have `run` return when what it transforms now is stored. It may be called again then."""
        self._is_stopped = True
        self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    # --- running --------------------------------------------------------------------------------------------------

    async def run(self, *, until_caught_up: bool = False) -> PipelineStats:
        """Transform records until `stop` is called, or all sources are sealed and read; return the figures then.

        `until_caught_up`: until everything that is visible now is transformed. All outputs are durable when it returns.
        Raises what `transform` raises, after the outputs of the records before are stored; PositionTruncated or
        DataLost of a source; and what ended a sink's writer (WriterFenced: another pipeline goes on).
        """
        await self._begin(until_caught_up=until_caught_up)
        while (batch := await self._next()) is not None:
            await self._transform(batch)
        return await self._end_run()

    async def _transform(self, batch: Batch) -> None:
        first = 0
        try:
            while first < len(batch.chunk):
                results = await self._applying.awaited(batch.chunk[first:])
                await self._put(batch, first, results)
                first += len(results.values)
        except BaseException:
            self._is_over = True  # the rest of the chunk is not read again
            raise

    async def _end_run(self) -> PipelineStats:
        await self._flush()
        await self._move_cursors()
        self._is_stopped = False
        return self.stats()

    async def _begin(self, *, until_caught_up: bool) -> None:
        self._check_open()
        self._is_bounded = until_caught_up
        for source in self._sources:
            source.is_done = False
            if until_caught_up:
                await source.find_end()

    def _check_open(self) -> None:
        if not self._is_open or self._is_over:
            raise ClientClosed(f"{self!r} is not open, or has ended: open another one")

    async def _next(self) -> Batch | None:
        """Return what is to be transformed next; None at the end of the run."""
        while True:
            self._woken = (
                self._loop.create_future()
            )  # before anything is looked at: no wake-up is missed
            if self._is_stopped:
                return None
            for sink in self._sinks.values():
                sink.check()
            self._store_positions()
            live = [source for source in self._sources if not source.is_done]
            if not live:
                return None
            self._turn += 1
            turn = self._turn % len(live)
            live = [*live[turn:], *live[:turn]]
            for source in live:
                if source.reading is None:
                    source.reading = self._loop.create_task(
                        source.reader.read(self._options.max_records)
                    )
            await asyncio.sleep(0)
            ready = next(
                (source for source in live if source.reading and source.reading.done()), None
            )
            if ready is None:
                await self._until_something(live)
            elif (batch := self._taken(ready)) is not None:
                return batch

    async def _until_something(self, live: Sequence[Source]) -> None:
        """Return when a source has something, a sink has failed, `stop` was called, or positions are to be stored."""
        assert self._woken is not None
        waiting = [cast("asyncio.Future[object]", source.reading) for source in live]
        await asyncio.wait(
            [*waiting, cast("asyncio.Future[object]", self._woken)],
            timeout=self._options.position_interval if self._has_moved else None,
            return_when=asyncio.FIRST_COMPLETED,
        )

    def _taken(self, source: Source) -> Batch | None:
        """Take what was read of a source; None where that is nothing to transform."""
        assert source.reading is not None
        reading, source.reading = source.reading, None
        item = reading.result()
        if item is None:
            source.is_done = True
            return None
        if isinstance(item, Gap):
            self._gaps += 1
            source.position = item.next
            source.check_end(is_bounded=self._is_bounded)
            return None
        source.position = item.next_dlsn
        source.check_end(is_bounded=self._is_bounded)
        if len(self._sources) > 1:
            item.origin = Origin(source.path, f"{source.id:016x}")
        return Batch(source, item)

    # --- outputs --------------------------------------------------------------------------------------------------

    async def _put(self, batch: Batch, first: int, results: Results) -> None:
        """Put the outputs of records from `first` on; return when there is room for more. Raises the results' error."""
        part, error = batch.chunk[first : first + len(results.values)], results.error
        try:
            self._put_part(batch.source, part, results.values)
        except Exception as wrong:  # noqa: BLE001 -- raised as the transform's own
            error = wrong
        else:
            self._records += len(part)
        for sink in self._sinks.values():
            sink.send()
        if error is not None:
            await self._flush()
            raise error
        for sink in self._sinks.values():
            await sink.ready()

    def _put_part(self, source: Source, part: Chunk, values: Sequence[Result]) -> None:
        """Put outputs into the sinks' queues, with no step between that another task could see."""
        if not len(part):
            return
        queues = {name: sink.outputs for name, sink in self._sinks.items()}
        begins = {name: queue.first_new(source.id, part) for name, queue in queues.items()}
        self._repeats += max(begins.values())
        least = min(begins.values())
        ((name, queue), *others) = queues.items()
        if not others and {*map(type, values)} == {bytes}:
            queue.put_each(cast("Sequence[bytes]", values[least:]), source.id, part, least)
        else:
            for index in range(least, len(part)):
                for name, outputs in self._outputs_of(values[index]).items():
                    if index >= begins[name]:
                        queues[name].put(outputs, source.id, part, index)
        for name, queue in queues.items():
            if begins[name] < len(part):
                queue.passed(source.id, part, len(part))

    def _outputs_of(self, result: Result) -> dict[str, list[Packed]]:
        """Return a record's outputs by sink. Raises WrongType, ConfigError."""
        if result is None:
            return {}
        if isinstance(result, Output | bytes | bytearray | memoryview):
            result = (result,)
        given: object = result
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise _is_wrong("a transform", given, "bytes, an Output, a list of these, or None")
        outputs: dict[str, list[Packed]] = {}
        for item in given:
            output = item if isinstance(item, Output) else Output(item)
            name = self._sink_of(output.sink)
            key = None if output.key is None else owned_bytes(output.key, "key")
            headers = put_headers(output.headers) if output.headers else b""
            packed = owned_bytes(output.payload, "payload"), key, headers
            outputs.setdefault(name, []).append(packed)
        return outputs

    def _sink_of(self, name: str) -> str:
        if name in self._sinks:
            return name
        if name == NO_NAME and len(self._sinks) == 1:
            return next(iter(self._sinks))
        names = ", ".join(self._sinks)
        raise ConfigError(
            f"an output is for sink {name!r}: with several sinks each output names one of {names}"
        )

    # --- positions ------------------------------------------------------------------------------------------------

    @property
    def _has_moved(self) -> bool:
        return any(sink.outputs.has_moved for sink in self._sinks.values())

    def _store_positions(self) -> None:
        """Store positions that moved without an output, now and then."""
        now_s = time.monotonic()
        if not self._has_moved:
            self._stored_s = now_s
        elif now_s - self._stored_s >= self._options.position_interval:
            self._stored_s = now_s
            self._put_positions()

        if self._options.hold and now_s - self._held_s >= HOLD_INTERVAL_S:
            self._held_s = now_s
            if self._holding is None or self._holding.done():
                self._holding = self._loop.create_task(self._move_cursors())

    async def _make_cursors(self) -> None:
        """Have a cursor of each source that holds records back; one that is there stays."""
        if self._options.hold is None:
            return
        for stream, source in zip(self._given_sources, self._sources, strict=True):
            with suppress(StreamExists):
                try:
                    await stream.create_cursor(self._options.hold, source.position)
                except PositionTruncated:  # the reader says so, or passes over it
                    await stream.create_cursor(self._options.hold)

    async def _move_cursors(self) -> None:
        """Move the cursors that hold records back to where all sinks are durable."""
        if self._options.hold is None:
            return
        for stream, source in zip(self._given_sources, self._sources, strict=True):
            stored = [sink.outputs.stored[source.id].dlsn for sink in self._sinks.values()]
            where = min(stored)
            if where == source.held:
                continue
            try:
                await stream.move_cursor(self._options.hold, where)
            except Error as error:  # it holds more than it has to, until the next time
                _log.info("pipeline.cursor_waits", stream=source.path, reason=str(error))
            else:
                source.held = where

    def _put_positions(self) -> None:
        for sink in self._sinks.values():
            sink.outputs.put_positions()
            sink.send()

    async def _flush(self) -> None:
        """Store all that was put, and all positions."""
        self._put_positions()
        for sink in self._sinks.values():
            await sink.flush()

    # --- what it is -----------------------------------------------------------------------------------------------

    @property
    def positions(self) -> dict[str, dict[str, DLSN]]:
        """Where each sink goes on in each source after a crash now: by the sink's name and the source's path."""
        return {
            name: {source.path: sink.outputs.stored[source.id].dlsn for source in self._sources}
            for name, sink in self._sinks.items()
        }

    def stats(self) -> PipelineStats:
        """Return the figures now; no I/O."""
        lags = [source.reader.lag for source in self._sources] if self._is_open else []
        return PipelineStats(
            records=self._records,
            outputs=sum(sink.outputs.outputs for sink in self._sinks.values()),
            repeats=self._repeats,
            gaps=self._gaps,
            lag=Lag(
                sum(lag.records for lag in lags),
                max((lag.seconds for lag in lags), default=0.0),
                sum(lag.size_bytes for lag in lags),
            ),
            sinks={name: sink.stats() for name, sink in self._sinks.items()},
        )


async def _row_at(context: StreamContext, source: int, start: Start) -> SourceRow:
    """Return the row of a position where a source is begun, with the number of its first record where it is known."""
    if start == "latest":
        tail = await tail_position(context)
        if tail is not None:
            return SourceRow(source, *tail.next, tail.seq + 1)
    chain = (await context.store.read()).chain
    dlsn = await resolve(context, start)
    seq = chain.head_seq if dlsn == DLSN(chain.head, 0, 0) else 0 if dlsn == FIRST else NONE
    return SourceRow(source, *dlsn, seq)


# --- transforms -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Applying:
    """The user's function, called for a record or a chunk. One of both is there."""

    each: Transform | None
    many: TransformMany | None

    def now(self, chunk: Chunk) -> Results:
        """Return what it makes of the first records, without `await`."""
        if self.many is not None:
            try:
                return self._checked(chunk, self.many(chunk))
            except Exception as error:  # noqa: BLE001 -- raised when what is before it is stored
                return Results((), error)
        each = cast("Callable[[Record], Result]", self.each)
        values: list[Result] = []
        end_s = time.monotonic() + SLICE_S
        try:
            for record in chunk:
                values.append(each(record))
                if time.monotonic() >= end_s:
                    break
        except Exception as error:  # noqa: BLE001 -- as above
            return Results(values, error)
        return Results(values, None)

    async def awaited(self, chunk: Chunk) -> Results:
        """Do as `now`; the function may be one of asyncio's."""
        function = self.many or self.each
        if not inspect.iscoroutinefunction(function):
            return self.now(chunk)
        if self.many is not None:
            try:
                many = cast("Callable[[Chunk], Awaitable[Sequence[Result]]]", self.many)
                return self._checked(chunk, await many(chunk))
            except Exception as error:  # noqa: BLE001 -- as above
                return Results((), error)
        each = cast("Callable[[Record], Awaitable[Result]]", self.each)
        values: list[Result] = []
        end_s = time.monotonic() + SLICE_S
        try:
            for record in chunk:
                values.append(await each(record))
                if time.monotonic() >= end_s:
                    break
        except Exception as error:  # noqa: BLE001 -- as above
            return Results(values, error)
        return Results(values, None)

    @staticmethod
    def _checked(chunk: Chunk, values: object) -> Results:
        if isinstance(values, str | bytes) or not isinstance(values, Sequence):
            raise _is_wrong("transform_many", values, "a list, with an item for each record")
        if len(values) != len(chunk):
            raise ConfigError(
                f"transform_many returned {len(values)} items for {len(chunk)} records: it must return one for each"
                " record; None for a record without outputs, a list for one with several"
            )
        return Results(values, None)


def _is_wrong(what: str, value: object, wanted: str) -> WrongType:
    """Return the error of a transform that returned no outputs."""
    if inspect.iscoroutine(value):
        value.close()
        wanted += ". One that waits is written as `async def`, and fastbk.sync.pipeline takes none"
    return WrongType(f"{what} returned {type(value).__name__}: it must return {wanted}")


# --- how it is made -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """Options of a pipeline as values; `pipeline` explains them."""

    start: Start
    on_unknown: Literal["raise", "start"]
    on_gap: Literal["raise", "skip"]
    hold: str | None
    position_interval: float
    prefetch_bytes: int
    max_records: int
    writer: WriterOptions


class PipelineArguments(StreamWriterOptions, total=False):
    """What `pipeline` takes beside its streams, by name."""

    transform: Transform
    transform_many: TransformMany
    deterministic: bool
    start: Start
    on_unknown: Literal["raise", "start"]
    on_gap: Literal["raise", "skip"]
    hold: str | None
    position_interval: float
    prefetch_bytes: int
    max_records: int


def pipeline(
    *,
    source: Stream | Sequence[Stream],
    sinks: Stream | Sequence[Stream] | Mapping[str, Stream],
    transform: Transform | None = None,
    transform_many: TransformMany | None = None,
    deterministic: bool = False,
    start: Start = "earliest",
    on_unknown: Literal["raise", "start"] = "raise",
    on_gap: Literal["raise", "skip"] = "raise",
    hold: str | None = None,
    position_interval: float = 5.0,
    prefetch_bytes: int = 8 << 20,
    max_records: int = 1000,
    **options: Unpack[StreamWriterOptions],
) -> Pipeline:
    """Return a pipeline from sources to sinks that stores the outputs of each source record exactly once. No I/O.

    Args:
        source: the stream that is read, or several.
        sinks: the stream that is appended to, or several: by the names that outputs say, or by those of the streams.
        transform: returns the outputs of a record: bytes, an `Output`, a list of these, or None. May be `async def`.
        transform_many: in place of it; returns a list with such a result for each record of a chunk: faster.
        deterministic: the transform makes the same outputs whenever it is given a record. Needed for several sinks: a
            record may be transformed again where one sink has its outputs and another has not.
        start: where to begin in a source of which a sink has nothing yet.
        on_unknown: "start": begin there, too, where a sink's log does not say any more where an earlier pipeline was.
        on_gap: "skip": pass over records of a source that were truncated or lost; otherwise `run` raises.
        hold: name of a cursor of each source that holds records back from retention until all sinks have their outputs.
            It shows the pipeline's lag, too. It does not say where the pipeline goes on.
        position_interval: after so many seconds a sink stores how far it is, if records had no outputs for it.
        prefetch_bytes: of each source, read ahead.
        max_records: of a chunk.
        options: of the sinks' writers; see `WriterOptions`. `batch_bytes` is 256 KiB by default.
    """
    sources = [source] if isinstance(source, Stream) else list(source)
    named = _named_sinks(sinks)
    if not sources or not named:
        raise ConfigError("a pipeline needs at least one source and one sink")
    if (transform is None) == (transform_many is None):
        raise ConfigError("a pipeline needs `transform` or `transform_many`, and not both")
    if len(named) > 1 and not deterministic:
        raise ConfigError(
            "several sinks need a deterministic transform: after a crash a record is transformed again for the sinks"
            " that do not have its outputs. If yours makes the same outputs each time (no clock, no random numbers, no"
            " state), say deterministic=True; otherwise use one sink, and pipelines from it to the others."
        )
    check_start(start)
    if on_unknown not in ("raise", "start") or on_gap not in ("raise", "skip"):
        raise ConfigError('on_unknown must be "raise" or "start", on_gap "raise" or "skip"')
    if not 0 < position_interval <= 1e9:
        raise ConfigError("position_interval must be above 0 seconds")
    checked_integer("max_records", max_records, 1, 1 << 20)
    writer = writer_options_of({"batch_bytes": BATCH_BYTES, **options})
    return Pipeline(
        sources,
        named,
        Applying(transform, transform_many),
        PipelineOptions(
            start, on_unknown, on_gap, hold, position_interval, prefetch_bytes, max_records, writer
        ),
    )


def _named_sinks(
    sinks: Stream | Sequence[Stream] | Mapping[str, Stream],
) -> dict[str, Stream]:
    if isinstance(sinks, Stream):
        return {sinks.name: sinks}
    if isinstance(sinks, Mapping):
        if NO_NAME in sinks:
            raise ConfigError("a sink's name is empty")
        return dict(sinks)
    named = {stream.name: stream for stream in sinks}
    if len(named) < len(sinks):
        raise ConfigError("two sinks have the same name: give a mapping of names to streams")
    return named
