"""Where many streams begin and end, and marks in them, without `await`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from fastbk.client.loop_thread import LoopThread
from fastbk.errors import Error
from fastbk.stream.client import Client
from fastbk.stream.cursor.cursor_positions import CursorPositions
from fastbk.stream.namespace.stream_ranges import StreamRange, StreamRanges
from fastbk.stream.positions import DLSN


class SyncStreamRanges:
    """Looks at the streams of a client's cluster; made by `Namespace.spans` of `fastbk.sync`, without I/O."""

    def __init__(self, loop: LoopThread[Client], make: Callable[[], StreamRanges]) -> None:
        self._loop = loop
        self._make = make
        self._made: StreamRanges | None = None

    def _inner(self) -> StreamRanges:
        """Return the asyncio one. Only on the loop."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def below(self, path: str, is_wanted: Callable[[str], bool]) -> dict[str, StreamRange]:
        """Return the streams of a namespace, and of those below it, whose paths are wanted, by path."""
        return self._loop.call(lambda: self._inner().below(path, is_wanted))

    def of(self, paths: Iterable[str]) -> dict[str, StreamRange]:
        """Return these streams, by path; those that are not there are left out."""
        return self._loop.call(lambda: self._inner().of(paths))

    def of_ids(self, ids: Mapping[str, str]) -> dict[str, StreamRange]:
        """Return the streams of these ids, whatever their names are by now, by the keys given."""
        return self._loop.call(lambda: self._inner().of_ids(ids))

    def close(self) -> None:
        """Let go of what is kept open; it may be asked again."""
        if self._made is not None:
            self._loop.call(self._made.close)


class SyncCursorPositions:
    """Moves marks of one cursor in many streams; made by `Namespace.marks` of `fastbk.sync`."""

    def __init__(self, loop: LoopThread[Client], inner: CursorPositions) -> None:
        self._loop = loop
        self._inner = inner

    def move(self, marks: Mapping[str, tuple[DLSN, int]]) -> dict[str, Error]:
        """Have the marks there, by the streams' paths; return what could not be moved, and why."""
        return self._loop.call(lambda: self._inner.move(marks))
