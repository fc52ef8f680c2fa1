"""What readers and cursors take and hand out, for type checkers: with `on_gap="yield"` Gaps, too, otherwise none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict

from fastbk.stream.positions import Start

if TYPE_CHECKING:
    from typing import Never

    # Only here, where a type checker brings it along: a default lets `StreamReader` alone stand for one without Gaps.
    from typing_extensions import TypeVar

    GapT = TypeVar("GapT", covariant=True, default=Never)
else:
    from typing import TypeVar

    GapT = TypeVar("GapT", covariant=True)
"""What is handed out beside records and chunks: Gap, or nothing."""


class ReaderOptions(TypedDict, total=False):
    """Of a reader, beside `on_gap`; what they mean stands at `StreamReader`."""

    end: Start | None
    tail: bool
    prefetch_bytes: int


class CursorOptions(TypedDict, total=False):
    """Of a cursor, beside `on_gap`; what they mean stands at `Cursor`."""

    hold: bool
    flush_interval: float
    flush_acks: int
    expire_after: float | None
    tail: bool
    prefetch_bytes: int


class PatternReaderOptions(TypedDict, total=False):
    """Of a reader of a pattern of streams, beside `on_gap`; what they mean stands at `PatternReader`."""

    tail: bool
    prefetch_bytes: int


class AnyPatternReaderOptions(PatternReaderOptions, total=False):
    """All of a pattern's reader's."""

    on_gap: Literal["raise", "yield"]


class AnyReaderOptions(ReaderOptions, total=False):
    """All of a reader's."""

    on_gap: Literal["raise", "yield"]


class AnyCursorOptions(CursorOptions, total=False):
    """All of a cursor's."""

    on_gap: Literal["raise", "yield"]
