"""Where many streams begin and end, without `await`. Names and meanings are those of `spans.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fastbk.stream.blocking_loop import BlockingLoop
from fastbk.stream.spans import Span, Spans


class BlockingSpans:
    """Looks at the streams of a client's cluster; made by `Namespace.spans` of `fastbk.sync`, without I/O."""

    def __init__(self, loop: BlockingLoop, make: Callable[[], Spans]) -> None:
        self._loop = loop
        self._make = make
        self._made: Spans | None = None

    def _inner(self) -> Spans:
        """Return the asyncio one. Only on the loop."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def below(self, path: str, is_wanted: Callable[[str], bool]) -> dict[str, Span]:
        """Return the streams of a namespace, and of those below it, whose paths are wanted, by path."""
        return self._loop.call(lambda: self._inner().below(path, is_wanted))

    def of(self, paths: Iterable[str]) -> dict[str, Span]:
        """Return these streams, by path; those that are not there are left out."""
        return self._loop.call(lambda: self._inner().of(paths))

    def close(self) -> None:
        """Let go of what is kept open; it may be asked again."""
        if self._made is not None:
            self._loop.call(self._made.close)
