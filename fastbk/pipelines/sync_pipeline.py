"""Pipelines without `await`: the transform runs in the caller's thread, all else on the clients' loop.

with fastbk.sync.pipeline(source=orders, sinks=invoices, transform=invoice_of) as pipeline:
    pipeline.run()
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar, Unpack

from fastbk.client.loop_thread import LoopThread
from fastbk.errors import ClientClosed
from fastbk.pipelines.pipeline import Pipeline, PipelineArguments, PipelineStats, pipeline
from fastbk.stream.client import Client
from fastbk.stream.positions import DLSN
from fastbk.stream.stream import Stream
from fastbk.stream.sync import SyncStream

T = TypeVar("T")


class SyncPipeline:
    """Made by `fastbk.sync.pipeline()`; the rules are those of the asyncio pipeline. One thread runs it."""

    def __init__(self, loop: LoopThread[Client], make: Callable[[], Pipeline]) -> None:
        self._loop = loop
        self._make = make
        self._inner: Pipeline | None = None

    def __repr__(self) -> str:
        return f"<fastbk.sync {'Pipeline, not open' if self._inner is None else repr(self._inner)[1:-1]}>"

    def _opened(self) -> Pipeline:
        self._loop.check()
        if self._inner is None:
            raise ClientClosed("this pipeline is not open: use `with`")
        return self._inner

    def _call(self, act: Callable[[Pipeline], Awaitable[T]]) -> T:
        inner = self._opened()
        return self._loop.call(lambda: act(inner))

    def open(self) -> None:
        """Take the sinks over, and find where to go on; `with` does it. Raises as the asyncio pipeline's."""

        async def opened() -> Pipeline:
            made = self._make()
            await made.open()
            return made

        self._inner = self._loop.call(opened, undo=lambda made: made.close())

    def run(self, *, until_caught_up: bool = False) -> PipelineStats:
        """Transform records until another thread calls `stop`, or all sources are sealed and read.

        `until_caught_up`: until everything that is visible now is transformed. All outputs are durable when it returns.
        Raises as the asyncio pipeline's. An exception in the caller's thread (Ctrl-C) may end the pipeline.
        """
        inner = self._opened()
        applying = inner._applying
        self._call(lambda inner: inner._begin(until_caught_up=until_caught_up))
        while (batch := self._call(Pipeline._next)) is not None:
            first = 0
            try:
                while first < len(batch.chunk):
                    results = applying.now(batch.chunk[first:])
                    self._call(lambda inner: inner._put(batch, first, results))  # noqa: B023
                    first += len(results.values)
            except BaseException:
                inner._is_over = True
                raise
        return self._call(Pipeline._end_run)

    def stop(self) -> None:
        """Have `run`, which is in another thread, return when what it transforms now is stored."""
        self._loop.call_plain(self._opened().stop)

    @property
    def positions(self) -> dict[str, dict[str, DLSN]]:
        """Where each sink goes on in each source after a crash now: by the sink's name and the source's path."""
        inner = self._opened()
        return self._loop.call_plain(lambda: inner.positions)

    def stats(self) -> PipelineStats:
        """Return the figures now."""
        return self._loop.call_plain(self._opened().stats)

    def close(self) -> None:
        """Store what was transformed, and end. Raises what ended the sinks' writers."""
        if self._inner is not None:
            self._call(Pipeline.close)

    def __enter__(self) -> SyncPipeline:
        self.open()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._call(lambda inner: inner.__aexit__(kind, error, trace))


def sync_pipeline(
    *,
    source: SyncStream | Sequence[SyncStream],
    sinks: SyncStream | Sequence[SyncStream] | Mapping[str, SyncStream],
    **options: Unpack[PipelineArguments],
) -> SyncPipeline:
    """Return a pipeline; its streams and options are as those of `fastbk.pipeline`. No I/O. Raises ConfigError."""
    sources = [source] if isinstance(source, SyncStream) else list(source)
    if isinstance(sinks, SyncStream):
        sinks = [sinks]
    given = sinks if isinstance(sinks, Mapping) else {stream.name: stream for stream in sinks}

    def made() -> Pipeline:
        named: Mapping[str, Stream] = {name: stream._inner() for name, stream in given.items()}
        return pipeline(source=[stream._inner() for stream in sources], sinks=named, **options)

    loop = sources[0]._loop
    loop.call_plain(made)  # what is wrong with the arguments is told here
    return SyncPipeline(loop, made)
