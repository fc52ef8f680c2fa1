"""What is there: streams and ledgers found, where they begin and end now, options' places resolved. In the driver.

Nothing here fences anybody or looks beyond what is published.

Decision 144.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

import fastbk.sync
from fastbk.errors import (
    ConfigError,
    DataLost,
    Error,
    MetadataUnavailable,
    NoSuchEntry,
    NoSuchLedger,
    NotEnoughBookies,
    PositionTruncated,
    QuorumTimeout,
    StreamNotFound,
)
from fastbk.observe.library_log import LibraryLog
from fastbk.retry import jittered
from fastbk.spark.offsets import (
    RECORD_BYTES,
    Offsets,
    SizeEstimate,
    StreamOffset,
    is_behind,
    parse_wanted,
)
from fastbk.spark.options import ReadOptions
from fastbk.spark.worker_client import client_of, in_parallel
from fastbk.stream.namespace.stream_ranges import StreamRange
from fastbk.stream.paths import split_stream_path
from fastbk.stream.positions import DLSN, AtSeq
from fastbk.stream.sync import SyncStream, SyncStreamRanges

T = TypeVar("T")
_log = LibraryLog("fastbk.spark")
CHOICE = (
    'write .option("failOnDataLoss", "false") to go on with what is there, or begin anew elsewhere'
)
ALLOWED = "failOnDataLoss is false"
AGAIN_S = 0.5
RETRIES = 3
AGED_MAX = 100
"""Streams whose oldest record that waits is asked for its time, for one report."""
_PLAIN_PATH = re.compile(r"(?:[\w -]+/)*(?![?*+{])")


@dataclass(frozen=True, slots=True)
class StreamBounds:
    """One stream as it is now: its trim point, and behind what is published."""

    resolver: OffsetResolver
    path: str
    first: StreamOffset
    end: StreamOffset
    record_bytes: float
    """Estimated bytes of a record."""

    @property
    def stream(self) -> SyncStream:
        """Its handle: of the stream that was looked at, whatever has its name by now."""
        return self.resolver.stream(self.path, self.end.stream_id)

    def beginning(self) -> StreamOffset:
        """Return where a query begins that reads all of it, and that it began there."""
        return StreamOffset(self.first.dlsn, self.first.seq, self.first.stream_id, self.first.dlsn)


class OffsetResolver:
    """What a driver asks of the cluster for one read. Cheap to make."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._spans: SyncStreamRanges | None = None
        self._spans_of = 0
        self.known: dict[str, SizeEstimate] = {}
        """What the last look said, by path or ledger id."""

    @property
    def client(self) -> fastbk.sync.Client:
        """This process's client."""
        return client_of(self.options.metadata, **self.options.client_settings)

    def patiently(self, ask: Callable[[], T], retries: int = RETRIES) -> T:
        """Return what it returns; ask again, as often as the option `retries` says, while metadata or bookies are away.

        For planning, which changes nothing. Each try has waited for its own timeouts already. `retries`: without the
        option; 0 where nothing has begun yet, so that a wrong address is told soon.
        """
        times = retries if self.options.retries is None else self.options.retries
        for left in reversed(range(times + 1)):
            try:
                return ask()
            except (MetadataUnavailable, NotEnoughBookies, QuorumTimeout) as error:
                if not left:
                    raise
                _log.warning("spark.planning_waits", tries_left=left, reason=str(error))
                time.sleep(jittered(AGAIN_S))
        raise AssertionError("unreachable")

    def stream(self, path: str, stream_id: str) -> SyncStream:
        """Return the handle of a stream that was found at this path, for reading. No I/O."""
        namespace, name = split_stream_path(path)
        return self.client.namespace(namespace).stream_of_id(stream_id, name)

    # --- streams -------------------------------------------------------------------------------------------------

    def all_now(self, *, missing_ok: bool = False) -> dict[str, StreamBounds]:
        """Return how all of them are now: those named, or those whose whole paths match the pattern.

        Raises StreamNotFound for one that is named; others come and go.
        """
        pattern = self.options.pattern
        if pattern is None:
            return self.nows(self.options.streams, missing_ok=missing_ok)
        plain = _PLAIN_PATH.match(pattern)
        # The namespaces that the pattern writes out need not be looked for.
        prefix = plain[0].rstrip("/") if plain is not None and "|" not in pattern else ""
        is_wanted = re.compile(pattern).fullmatch
        found = self._stream_ranges().below(prefix, lambda path: is_wanted(path) is not None)
        return {path: self._now(found[path]) for path in sorted(found)}

    def nows(self, paths: Iterable[str], *, missing_ok: bool = False) -> dict[str, StreamBounds]:
        """Return how these are now, asked together. Raises StreamNotFound, unless they may be missing."""
        wanted = list(paths)
        found = self._stream_ranges().of(wanted)
        missing = [path for path in wanted if path not in found]
        if missing and not missing_ok:
            raise StreamNotFound(
                f"there is no stream {missing[0]}: create it, or name another one, such as"
                ' .option("stream", "shop/orders")'
            )
        return {path: self._now(found[path]) for path in wanted if path in found}

    def nows_of(self, ats: Mapping[str, StreamOffset]) -> dict[str, StreamBounds]:
        """Return how the streams of these offsets are now, if they are there, whatever their names are by now."""
        found = self._stream_ranges().of_ids({path: at.stream_id for path, at in ats.items()})
        return {path: self._now(span) for path, span in found.items()}

    def now(self, path: str) -> StreamBounds:
        """Return how the stream is now. Raises StreamNotFound."""
        return self.nows([path])[path]

    def now_if_any(self, path: str) -> StreamBounds | None:
        """Return how the stream is now, None if there is none."""
        return self.nows([path], missing_ok=True).get(path)

    def _stream_ranges(self) -> SyncStreamRanges:
        # One for all looks: what has not changed since the last one costs nothing.
        if self._spans is None or self._spans_of != os.getpid():
            self._spans, self._spans_of = self.client.namespace("").spans(), os.getpid()
        return self._spans

    def _now(self, span: StreamRange) -> StreamBounds:
        each_bytes = span.record_bytes or RECORD_BYTES
        self.known[span.path] = SizeEstimate(span.first_seq, each_bytes)
        return StreamBounds(
            self,
            span.path,
            StreamOffset(span.first, span.first_seq, span.stream_id),
            StreamOffset(span.end, span.end_seq, span.stream_id),
            each_bytes,
        )

    def at(
        self, now: StreamBounds, place: DLSN | int | str | datetime, option: str
    ) -> StreamOffset:
        """Return the place that an option names. Raises ConfigError; PositionTruncated, DataLost where it is gone."""
        try:
            return self._at(now, place, option)
        except (DataLost, NoSuchLedger) as error:
            if self.options.fail_on_data_loss:
                raise DataLost(f"{option}: {now.path} at {place}: {error}. {CHOICE}") from error
            return self._next_segment(now, place)

    def _at(
        self, now: StreamBounds, place: DLSN | int | str | datetime, option: str
    ) -> StreamOffset:
        if place == "earliest":
            return now.first
        if place == "latest":
            return now.end
        if isinstance(place, datetime):
            dlsn = now.stream.find(time=place)
        elif isinstance(place, int):
            if place >= now.end.seq:
                return self._at_end(now, place == now.end.seq, str(place), option)
            if place < now.first.seq:
                return self._gone(now, str(place), option)
            dlsn = now.stream.find(seq=place)
        else:
            assert isinstance(place, DLSN)
            if place >= now.end.dlsn:
                return self._at_end(now, place == now.end.dlsn, str(place), option)
            if place < now.first.dlsn:
                return self._gone(now, str(place), option)
            dlsn = place
        if dlsn is None or dlsn >= now.end.dlsn:
            return now.end
        return StreamOffset(dlsn, self._seq_of(now, dlsn), now.end.stream_id)

    def _gone(self, now: StreamBounds, place: str, option: str) -> StreamOffset:
        if not self.options.fail_on_data_loss:
            return now.first
        raise PositionTruncated(
            f"{option}: {place} of {now.path} was truncated, the stream begins at {now.first.dlsn}: {CHOICE}"
        )

    @staticmethod
    def _at_end(now: StreamBounds, is_there: bool, place: str, option: str) -> StreamOffset:
        if is_there:
            return now.end
        raise ConfigError(
            f"{option}: {place} of {now.path} is behind its end, {now.end.dlsn} (record {now.end.seq}):"
            f' write .option("{option}", "latest")'
        )

    def _seq_of(self, now: StreamBounds, dlsn: DLSN) -> int:
        """Return the number of the first record that is not before a position."""
        for place in (dlsn, DLSN(dlsn.segment, dlsn.entry + 1, 0)):
            try:
                return now.stream.get(place).seq
            except NoSuchEntry:
                continue  # behind an entry's last slot, or a segment's last entry
        for segment in now.stream.segments(dlsn.segment):
            if segment.number > dlsn.segment and segment.first_seq >= 0:
                return segment.first_seq
        return now.end.seq

    def find_seq(self, now: StreamBounds, start: StreamOffset, seq: int) -> StreamOffset:
        """Return where record `seq` of a stream is: behind `start`, not behind its end."""
        if seq >= now.end.seq:
            return now.end
        try:
            dlsn = now.stream.find(seq=seq)
        except (DataLost, NoSuchLedger):
            # Somewhere in what is lost: up to the next segment, whose reader is told, or passes it by.
            return self._next_segment(now, seq)
        if dlsn is None or dlsn >= now.end.dlsn:
            return now.end
        if dlsn <= start.dlsn or dlsn == now.first.dlsn:
            return StreamOffset(
                max(dlsn, start.dlsn), max(now.first.seq, start.seq), now.end.stream_id
            )
        return StreamOffset(dlsn, seq, now.end.stream_id)

    @staticmethod
    def _next_segment(now: StreamBounds, place: DLSN | int | str | datetime) -> StreamOffset:
        """Return the beginning of the first segment whose records are all behind or at a place, else the end."""
        for segment in now.stream.segments(now.first.dlsn.segment):
            if segment.first_seq >= 0 and is_behind(segment, place):
                return StreamOffset(
                    DLSN(segment.number, 0, 0), segment.first_seq, now.end.stream_id
                )
        return now.end

    def checked(
        self, now: StreamBounds | None, path: str, start: StreamOffset
    ) -> StreamOffset | None:
        """Return where to go on with a stream that was read before, None if it is gone.

        Raises StreamNotFound, PositionTruncated, DataLost with failOnDataLoss.
        """
        fails = self.options.fail_on_data_loss
        if now is None:
            if fails:
                raise StreamNotFound(
                    f"the stream {path} was deleted or renamed, and was read up to {start.dlsn}: {CHOICE}"
                )
            return None
        if now.end.stream_id != start.stream_id:
            if fails:
                raise DataLost(
                    f"the stream {path} was deleted and made anew; the one before was read up to {start.dlsn}: {CHOICE}"
                )
            return now.beginning()
        if start.seq < now.first.seq:
            if fails:
                raise PositionTruncated(
                    f"{path}: {start.dlsn} up to {now.first.dlsn} were truncated,"
                    f" {now.first.seq - start.seq} records that were not read: {CHOICE}"
                )
            return StreamOffset(
                max(now.first.dlsn, start.dlsn), now.first.seq, start.stream_id, start.began
            )
        # Behind the last record of a segment that is gone is where the next one begins.
        return StreamOffset(
            max(now.first.dlsn, start.dlsn), start.seq, start.stream_id, start.began
        )

    def is_beyond(self, now: StreamBounds, at: StreamOffset) -> bool:
        """Return whether a place that is behind the end, as bookies tell it now, is one that no query has reached.

        In an open segment bookies that answer now may know of less than those that answered before. What was read
        then is there, though: the entry before the place is asked for, acknowledged or not.
        """
        segment, entry, slot = at.dlsn
        found = [one for one in now.stream.segments(segment) if one.number == segment]
        if not found:
            return True
        last = entry if slot else entry - 1
        if not found[0].is_open:
            return last > found[0].last_entry_id
        return last >= 0 and self._is_missing(found[0].ledger_id, last, None, b"")

    def is_beyond_ledger(self, ledger_id: int, behind: int) -> bool:
        """Return the same of a ledger: whether entry `behind` - 1 was never there."""
        return self._is_missing(ledger_id, behind - 1, self.options.digest, self.options.password)

    def _is_missing(
        self, ledger_id: int, entry_id: int, digest: str | None, password: bytes
    ) -> bool:
        """Raises NotEnoughBookies where nobody can tell."""
        try:
            with self.client.open_ledger(ledger_id, False, digest, password) as reader:
                if reader.is_closed:
                    return entry_id > reader.metadata.last_entry_id
                return not reader.read_unconfirmed(entry_id, entry_id)
        except (NoSuchLedger, NoSuchEntry):
            return True

    def beyond(self, what: str, place: object, end: object) -> None:
        """Raise DataLost for a place behind the end, unless that may be.

        Records that come would be passed by in silence until the place is reached.
        """
        text = f"{what} was read up to {place}, and ends at {end} now: it lost records since, or the checkpoint is of"
        if self.options.fail_on_data_loss:
            raise DataLost(f"{text} another one, or was changed: {CHOICE}")
        _log.warning(
            "spark.place_beyond_end", what=what, place=str(place), end=str(end), reason=ALLOWED
        )

    def seq_of(self, now: StreamBounds, dlsn: DLSN) -> int:
        """Return the number of the first record that is not before a position; the end's behind the end."""
        if dlsn >= now.end.dlsn:
            return now.end.seq
        try:
            return self._seq_of(now, dlsn)
        except (DataLost, NoSuchLedger):
            return self._next_segment(now, dlsn).seq

    def oldest_ms(self, done: Offsets, waiting: Mapping[str, int]) -> int:
        """Return how many milliseconds old the oldest record is that waits behind `done`; `waiting`: how many in each.

        Of the streams the 100 that have most are asked. A record that cannot be read counts as new, and so do entries
        of ledgers, which have no times: this is for reports only.
        """
        most = sorted(waiting, key=lambda path: -waiting[path])[:AGED_MAX]
        sampled = [(path, done.streams[path]) for path in most if path in done.streams]
        return round(1000 * max(in_parallel(lambda one: self._age_s(*one), sampled), default=0.0))

    def _age_s(self, path: str, at: StreamOffset) -> float:
        with suppress(Error):
            record = self.stream(path, at.stream_id).get(AtSeq(at.seq))
            return max(time.time() - record.time_us / 1e6, 0.0)
        return 0.0

    # --- ledgers -------------------------------------------------------------------------------------------------

    def ledger_end(self, ledger_id: int) -> tuple[int, int] | None:
        """Return (behind the last acknowledged entry, bytes) of a ledger; None if it is gone and that may be.

        Raises NoSuchLedger with failOnDataLoss.
        """
        options = self.options
        try:
            with self.client.open_ledger(
                ledger_id, False, options.digest, options.password
            ) as reader:
                if reader.is_closed:
                    return reader.metadata.last_entry_id + 1, max(reader.metadata.length, 0)
                last = reader.last_add_confirmed()
                if last < 0:
                    return 0, 0
                try:
                    (entry,) = reader.read(last, last)
                except NoSuchEntry:
                    return last + 1, last + 1
                return last + 1, (last + 1) * max(len(entry.data), 1)
        except NoSuchLedger as error:
            if options.fail_on_data_loss:
                raise NoSuchLedger(
                    f"there is no ledger {ledger_id}, it was deleted or never made: {CHOICE}",
                    ledger_id=ledger_id,
                ) from error
            return None

    def ledger_ends(self) -> dict[int, tuple[int, int]]:
        """Return the ends of all ledgers that are there."""
        found = {ledger: self.ledger_end(ledger) for ledger in self.options.ledgers}
        ends = {one: end for one, end in found.items() if end is not None}
        for one, (count, size_bytes) in ends.items():
            self.known[str(one)] = SizeEstimate(0, size_bytes / max(count, 1))
        return ends

    # --- options' offsets ----------------------------------------------------------------------------------------

    def edge(self, which: str | Mapping[str, object] | datetime, option: str) -> Offsets:
        """Return the offsets that startingOffsets or endingOffsets name. Raises ConfigError, StreamNotFound."""
        if self.options.reads_ledgers:
            return Offsets({}, self._ledger_edge(which, option))
        nows = self.all_now()
        if isinstance(which, Mapping):
            places = parse_wanted(which, ledgers=False)
            wanted = places.streams
            unknown = sorted(set(wanted) - set(nows))
            if unknown:
                raise ConfigError(
                    f"{option} names {unknown[0]}, which is not read here; {_read(sorted(nows))}"
                )
            for path, stream_id in places.ids.items():
                if stream_id != nows[path].end.stream_id:
                    raise ConfigError(
                        f"{option}: {path} was deleted and made anew since these offsets were shown: take new ones,"
                        ' or leave "id" out'
                    )
            rest = "earliest" if option == "startingOffsets" else "latest"
            return Offsets(
                {path: self.at(now, wanted.get(path, rest), option) for path, now in nows.items()},
                {},
            )
        ats = in_parallel(lambda now: self.at(now, which, option), list(nows.values()))
        return Offsets(dict(zip(nows, ats, strict=True)), {})

    def _ledger_edge(
        self, which: str | Mapping[str, object] | datetime, option: str
    ) -> dict[int, int]:
        ends = {one: end for one, (end, _) in self.ledger_ends().items()}
        if which == "earliest":
            return dict.fromkeys(ends, 0)
        if not isinstance(which, Mapping):
            return ends
        wanted = parse_wanted(which, ledgers=True).ledgers
        unknown = sorted(set(wanted) - set(self.options.ledgers))
        if unknown:
            raise ConfigError(
                f"{option} names ledger {unknown[0]}, which is not among the ledgers that are read"
            )
        ledger_edge: dict[int, int] = {}
        for one, end in ends.items():
            place = wanted.get(one, "earliest" if option == "startingOffsets" else "latest")
            at = 0 if place == "earliest" else end if place == "latest" else int(place)
            if at > end:
                raise ConfigError(f"{option}: entry {at} of ledger {one} is behind its end, {end}")
            ledger_edge[one] = at
        return ledger_edge


def _read(paths: list[str]) -> str:
    return f"read are {', '.join(paths[:10])}" if paths else "no stream matches"
