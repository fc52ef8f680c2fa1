"""What writers, readers and cursors of streams tell about themselves by `stats()`."""

from __future__ import annotations

from dataclasses import dataclass

from fastbk.observe.latency import Latency


@dataclass(frozen=True, slots=True)
class Lag:
    """How far it is behind what it knows to be visible; exact where it has caught up."""

    records: int
    seconds: float
    """Since the last record that it handed out was appended, by this machine's clock; 0 where it has caught up."""
    size_bytes: int = 0
    """About: from the average of the segments that are closed, else of what was handed out last."""


@dataclass(frozen=True, slots=True)
class StreamWriterStats:
    """Figures of one writer at one moment, since it was opened."""

    records: int
    """Acknowledged."""
    bytes: int
    """Of their payloads, keys and headers."""
    appends_in_flight: int
    """Records and batches that were taken and are not acknowledged yet."""
    bytes_in_flight: int
    """What these count in the bound `unacked_bytes_max`: with some 30 bytes around each record."""
    appends_waiting: int
    """Appends that wait for room, and are not taken yet."""
    segments: int
    """That it has begun to write."""
    entries_resent: int
    """Copies of entries that were sent to a bookie again, after a lost connection or a refusal."""
    ensemble_changes: int
    """How often other bookies were taken in place of some."""
    append_latency: Latency
    """Of a record, from the turn of the event loop that took it to its acknowledgement; with `linger` that, too."""
    times_ahead: int = 0
    """How often the last record before a segment said a time over a minute ahead of this machine's clock."""


@dataclass(frozen=True, slots=True)
class StreamReaderStats:
    """Figures of one reader at one moment, since it was opened."""

    records: int
    """Handed out."""
    bytes: int
    """About, of these: payloads, keys, headers, and some bytes around each record."""
    buffered_bytes: int
    """Read ahead, and not handed out yet; as stored, with compression."""
    entries_read: int
    """Entries that bookies gave."""
    bytes_read: int
    """Of these, as stored."""
    copies_skipped: int
    """Copies that were missing, damaged or not to be had, so that another bookie was asked."""
    read_latency: Latency
    """From asking bookies for a range of entries until the first of them came."""
    lag: Lag
    """How far it is behind what it knows to be visible."""


@dataclass(frozen=True, slots=True)
class CursorStats:
    """Figures of one cursor at one moment."""

    reader: StreamReaderStats
    """Since it was opened. What is done does not count in `lag`."""
    mark_seq: int
    """The number of the first record that is not done; -1 while none was seen."""
    ranges: int
    """Ranges done behind the mark."""
    changes_unstored: int
    """Changes that a crash would forget now: acknowledgements, gaps that were passed, and the number of the mark."""
    gap_records: int
    """Records that were gone before they were done, over the cursor's life."""
