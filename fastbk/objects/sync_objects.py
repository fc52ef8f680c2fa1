"""Objects without `await`: the same, on the loop's thread. Made by `fastbk.sync.Objects(namespace)`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TypeVar

from fastbk.client.loop_thread import LoopThread, blocking
from fastbk.errors import ClientClosed
from fastbk.objects.objects import ObjectInfo, Objects
from fastbk.objects.reader import ObjectReader
from fastbk.objects.writer import ObjectWriter
from fastbk.stream.client import Client
from fastbk.stream.paths import check_object_name
from fastbk.stream.sync import SyncNamespace

T = TypeVar("T")
LISTED_AT_ONCE = 256
_aborting: set[asyncio.Task[None]] = set()


class SyncObjectWriter:
    """Writes one object; made by `Objects.writer` of `fastbk.sync`. One thread at a time writes."""

    def __init__(self, loop: LoopThread[Client], inner: ObjectWriter) -> None:
        self._loop = loop
        self._inner = inner

    def __repr__(self) -> str:
        return f"<fastbk.sync {repr(self._inner)[1:]}"

    def _call(self, act: Callable[[ObjectWriter], Awaitable[T]]) -> T:
        return self._loop.call(lambda: act(self._inner))

    @property
    def size_bytes(self) -> int:
        """Bytes that were written so far."""
        return self._inner.size_bytes

    def open(self) -> None:
        """Begin the upload; `with` does it. Raises as the asyncio writer's."""
        # One that nobody has got is ended (INV-C3).
        self._loop.call(self._inner.open, undo=lambda _: self._inner.abort())

    write = blocking(ObjectWriter.write)
    close = blocking(ObjectWriter.close)
    abort = blocking(ObjectWriter.abort)

    def abandon(self) -> None:
        """Begin to abort, and wait for nothing: for garbage, which is collected in any thread."""

        def begin() -> None:
            task = asyncio.get_running_loop().create_task(self._inner.abort())
            _aborting.add(task)
            task.add_done_callback(_aborting.discard)

        with suppress(ClientClosed):
            self._loop.soon(begin)

    def __enter__(self) -> SyncObjectWriter:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()


class SyncObjectReader:
    """Reads one object; made by `Objects.open` of `fastbk.sync`. Threads may share it."""

    def __init__(self, loop: LoopThread[Client], inner: ObjectReader) -> None:
        self._loop = loop
        self._inner = inner

    def __repr__(self) -> str:
        return f"<fastbk.sync {repr(self._inner)[1:]}"

    def _call(self, act: Callable[[ObjectReader], Awaitable[T]]) -> T:
        return self._loop.call(lambda: act(self._inner))

    @property
    def size_bytes(self) -> int:
        """Bytes of the object."""
        return self._inner.record.size_bytes

    def open(self) -> None:
        """Find the object and read its manifest; `with` does it."""
        self._loop.call(self._inner.open, undo=lambda _: self._inner.close())

    read = blocking(ObjectReader.read)
    close = blocking(ObjectReader.close)

    def chunks(self, start: int = 0, end: int | None = None) -> Iterator[memoryview]:
        """Yield the bytes start..end (not included) in pieces; each is checked, and more are read meanwhile."""
        return self._loop.iterate(lambda: self._inner.chunks(start, end))

    def __enter__(self) -> SyncObjectReader:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SyncObjects:
    """The objects of one namespace; the rules are those of the asyncio `Objects`. Making it does no I/O."""

    def __init__(self, namespace: SyncNamespace) -> None:
        self.namespace = namespace
        self._loop = namespace._loop

    def __repr__(self) -> str:
        return f"<fastbk.sync Objects of {self.namespace.path or 'the root namespace'}>"

    def _inner(self) -> Objects:
        """Return the asyncio one. Only on the loop."""
        return Objects(self.namespace._inner())

    def _call(self, act: Callable[[Objects], Awaitable[T]]) -> T:
        return self._loop.call(lambda: act(self._inner()))

    put = blocking(Objects.put)
    put_many = blocking(Objects.put_many)
    get = blocking(Objects.get)
    info = blocking(Objects.info)
    usage = blocking(Objects.usage)
    verify = blocking(Objects.verify)
    delete = blocking(Objects.delete)

    def writer(
        self, name: str, *, metadata: Mapping[str, str] | None = None, if_absent: bool = True
    ) -> SyncObjectWriter:
        """Return a writer; `with` begins the upload, and publishes it where the block ends without exception."""
        made = self._loop.call_plain(
            lambda: self._inner().writer(name, metadata=metadata, if_absent=if_absent)
        )
        return SyncObjectWriter(self._loop, made)

    def open(self, name: str) -> SyncObjectReader:
        """Return a reader; `with` opens it."""
        check_object_name(name)
        return SyncObjectReader(self._loop, self._loop.call_plain(lambda: self._inner().open(name)))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects whose names begin with `prefix`, by name."""
        return self._loop.iterate(lambda: self._inner().list(prefix), LISTED_AT_ONCE)
