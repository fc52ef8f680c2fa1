"""What writers, producers, readers and cursors of streams take: values and defaults, and dicts for type checkers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict

from fastbk.errors import ConfigError
from fastbk.option_checks import check_fields, check_options
from fastbk.stream.positions import Start
from fastbk.stream.records import RAW_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """How a writer packs, waits and tells."""

    batch_bytes: int = 64 * 1024
    """A group of records as large becomes an entry."""
    linger: float = 0.0
    """How long a record waits for others, in seconds. 0: not at all; what queues behind others is packed anyway."""
    publish: Literal["immediate", "piggyback"] = "immediate"
    """When readers learn of what is acknowledged: at once, or with the next entry (and when the writer falls idle)."""
    unacked_bytes_max: int = 32 * 1024 * 1024
    """`ready` waits above it; above twice as much `append` raises BufferFull."""
    entry_bytes_max: int = 4 * 1024 * 1024
    """A record, or a batch, that is larger is refused. At most 16 MiB: readers decompress no more of an entry."""
    entries_in_flight: int = 64
    """Entries that may be sent and not acknowledged; what comes meanwhile is packed."""
    first_segment_timeout: float = 30.0
    """How long the first append waits for its segment, in seconds, where one was tried to be made and could not."""
    over_quota: bool = False
    """Open also where a namespace has all bytes that it may: to end what a former writer left, or to seal the stream.
    Nothing can be appended there all the same."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("batch_bytes", "unacked_bytes_max", "entry_bytes_max", "entries_in_flight"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1")
        if self.entry_bytes_max > RAW_BYTES_MAX:
            raise ConfigError(
                f"entry_bytes_max is {self.entry_bytes_max}: readers refuse entries above {RAW_BYTES_MAX}"
                " bytes. Choose a smaller one."
            )
        if not 0 <= self.linger <= 60:
            raise ConfigError("linger must be from 0 to 60 seconds")
        if not 0 < self.first_segment_timeout <= 1e9:
            raise ConfigError("first_segment_timeout must be above 0 and at most 1e9 seconds")


class StreamWriterOptions(TypedDict, total=False):
    """What `Stream.writer` takes, by name; `WriterOptions` has their meanings and defaults."""

    batch_bytes: int
    linger: float
    publish: Literal["immediate", "piggyback"]
    unacked_bytes_max: int
    entry_bytes_max: int
    entries_in_flight: int
    first_segment_timeout: float
    over_quota: bool


def writer_options_of(options: StreamWriterOptions) -> WriterOptions:
    """Return the options as a value. Raises ConfigError for an unknown name, a wrong type or value."""
    check_options(options, StreamWriterOptions)
    return WriterOptions(**options)


# --- producers --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """How a producer packs and waits."""

    batch_bytes: int = 64 * 1024
    """Records that queue up are sent together, when they have as many bytes at the latest."""
    unacked_bytes_max: int = 4 * 1024 * 1024
    """`ready` waits above it; above twice as much `append` raises BufferFull. A service may take less."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("batch_bytes", "unacked_bytes_max"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1")


class StreamProducerOptions(TypedDict, total=False):
    """What `Stream.producer` takes, by name; `ProducerOptions` has their meanings and defaults."""

    batch_bytes: int
    unacked_bytes_max: int


def producer_options_of(options: StreamProducerOptions) -> ProducerOptions:
    """Return the options as a value. Raises ConfigError for an unknown name, a wrong type or value."""
    check_options(options, StreamProducerOptions)
    return ProducerOptions(**options)


# --- readers and cursors --------------------------------------------------------------------------
#
# What readers and cursors take and hand out, for type checkers: with `on_gap="yield"` Gaps, too,
# otherwise none.


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
    """Options of a reader, beside `on_gap`; `StreamReader` explains them."""

    end: Start | None
    tail: bool
    prefetch_bytes: int


class CursorOptions(TypedDict, total=False):
    """Options of a cursor, beside `on_gap`; `Cursor` explains them."""

    hold: bool
    flush_interval: float
    flush_acks: int
    expire_after: float | None
    tail: bool
    prefetch_bytes: int


class PatternReaderOptions(TypedDict, total=False):
    """Options of a reader of a pattern of streams, beside `on_gap`; `PatternReader` explains them."""

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
