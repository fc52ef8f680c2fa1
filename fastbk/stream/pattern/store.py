"""Cursors of patterns in metadata: what is kept of one, and how they are listed, taken over and deleted.

A record has a cursor's positions in all streams. A stream that it does not name is held from its first record on
(INV-S20): so one that was created a moment ago, and that no holder has seen yet, loses nothing. A position is written
when something was done, or where the cursor does not begin at the first record. `PatternHolds` says what these cursors
hold of a stream, for its retention.

INV-U4: a new cursor of a pattern is made only in a cluster whose format level, read for it, has such cursors. Janitors
of versions that lack the level do not look for them, and delete what one has not read.

Decision 159.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias
from urllib.parse import unquote

import msgspec
from msgspec.structs import replace

from fastbk.errors import (
    ConfigError,
    Error,
    MetadataConflict,
    MetadataUnavailable,
    QuotaExceeded,
    StorageError,
    StreamExists,
    StreamNotFound,
    WrongType,
)
from fastbk.formats import PATTERN_CURSOR, level_of
from fastbk.meta.records import BadRecord, Change
from fastbk.meta.records import decoded as read_or_bad
from fastbk.printable_text import printable
from fastbk.retry import Retry
from fastbk.stream.context import clock_us, gathered
from fastbk.stream.cursor.state import (
    EXPIRY_S_MAX,
    HOLDER_CHARACTERS_MAX,
    NONE,
    CheckedData,
    check_kept_data,
    decoded,
    encoded,
)
from fastbk.stream.cursor.store import (
    AGAIN_S,
    AGAIN_S_MAX,
    OPEN_TIMEOUT_S,
    CursorInfo,
    CursorStore,
    first_mark,
    part_of,
)
from fastbk.stream.namespace.listing import entries_of
from fastbk.stream.namespace.tree import ROOT_ID, Id, StreamRecord, get_or
from fastbk.stream.opening import new_owner
from fastbk.stream.paths import (
    CURSORS,
    NAME_BYTES_MAX,
    check_name,
    namespace_path,
    pattern_cursors_path,
    stream_path,
)
from fastbk.stream.positions import DLSN, FIRST, AtTime, Count, Number, TimeUs

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from fastbk.client.client import Client
    from fastbk.client.metadata_calls import RecordCalls
    from fastbk.stream.namespace.catalog import Catalog
    from fastbk.stream.positions import DLSN


# --- the record -----------------------------------------------------------------------------------


VERSION = 1
STREAMS_MAX = 4000
"""Streams that one record names. At most 58 bytes each: with all else below, the record stays below 512 KiB."""
RANGES_MAX = 4000
"""Ranges done behind the marks, of all streams together. At most 46 bytes each."""
PATTERN_CHARACTERS_MAX = NAME_BYTES_MAX
_MARK = b"FBKP"
_MAGIC = re.compile(r"[*?\[]")
_S = 1_000_000

_Ends = Annotated[tuple[Count, ...], msgspec.Meta(max_length=RANGES_MAX)]


class StreamPosition(msgspec.Struct, frozen=True, array_like=True):
    """What is done of one stream; see `CursorState`, whose fields these are."""

    mark: DLSN = FIRST
    mark_seq: Number = NONE
    firsts: _Ends = ()
    ends: _Ends = ()
    behinds: Annotated[tuple[DLSN, ...], msgspec.Meta(max_length=RANGES_MAX)] = ()


class PatternRecord(msgspec.Struct, frozen=True, array_like=True):
    """The record of metadata of one pattern's cursor. All that acknowledgements make is in it: it has no ledgers."""

    pattern: Annotated[str, msgspec.Meta(min_length=1, max_length=PATTERN_CHARACTERS_MAX)]
    """Pattern of the names in its namespace. It is the cursor's for good."""
    serial: Count = 0
    """Rises with each state that is written, over all holders."""
    epoch: Count = 0
    """Epoch of the holder that wrote it; rises with each opening."""
    holder: Annotated[str, msgspec.Meta(max_length=HOLDER_CHARACTERS_MAX)] = ""
    """Drawn at each opening: who holds it."""
    positions: Annotated[dict[Id, StreamPosition], msgspec.Meta(max_length=STREAMS_MAX)] = (
        msgspec.field(default_factory=dict)
    )
    """Positions by the streams' ids. Of a stream that is not there nothing is done."""
    data: CheckedData = msgspec.field(default_factory=dict)
    """The user's map, as it came with the last acknowledgement that had one."""
    time_us: TimeUs = 0
    """When it was written, by the holder's clock."""
    gaps: Count = 0
    gap_records: Count = 0
    holds: bool = True
    """Whether retention keeps what is not done, in all streams that the pattern matches."""
    expire_after_s: Annotated[float, msgspec.Meta(ge=0, le=EXPIRY_S_MAX)] = 0.0
    created_us: TimeUs = 0
    used_at_us: TimeUs = 0

    @property
    def expires_at_us(self) -> int:
        """When it goes if nobody uses it, in µs since 1970; 0: never."""
        return self.used_at_us + int(self.expire_after_s * _S) if self.expire_after_s > 0 else 0

    @property
    def is_deleting(self) -> bool:
        """False: without ledgers its deletion is one change."""
        return False

    def mark_of(self, stream_id: str) -> DLSN:
        """Return the position in a stream before which everything is done."""
        return self.positions.get(stream_id, _AT_FIRST).mark


_AT_FIRST = StreamPosition()
_records = msgspec.msgpack.Decoder(PatternRecord)


def put_pattern(record: PatternRecord) -> bytes:
    """Return a record's bytes. Raises StorageError for what `get_pattern` would refuse (INV-S14)."""
    _check(record)
    return encoded(_MARK, record)


def get_pattern(raw: bytes | memoryview) -> PatternRecord:
    """Return what `put_pattern` wrote. Raises StorageError."""
    record = decoded(_MARK, _records, raw)
    _check(record)
    return record


def _check(record: PatternRecord) -> None:
    """Raise StorageError for ranges that are none, or too many, and for a map that is too large."""
    check_kept_data(record.data)
    ranges = 0
    for stream_id, position in record.positions.items():
        ranges += len(position.firsts)
        if not len(position.firsts) == len(position.ends) == len(position.behinds):
            raise StorageError(
                f"a cursor's ranges in stream {printable(stream_id, 64)} are not whole"
            )
        ends = [end for pair in zip(position.firsts, position.ends, strict=True) for end in pair]
        if ends and not (
            position.mark_seq < ends[0] and all(low < high for low, high in pairwise(ends))
        ):
            raise StorageError(
                f"a cursor's ranges in stream {printable(stream_id, 64)} do not follow each other"
            )
    if ranges > RANGES_MAX or len(record.positions) > STREAMS_MAX:
        raise StorageError(
            f"a cursor of {len(record.positions):,} streams with {ranges:,} ranges: it has at most"
            f" {STREAMS_MAX:,} and {RANGES_MAX:,}"
        )
    if not record.pattern.isprintable():
        raise StorageError("a cursor's pattern is no printable text")


# --- patterns -------------------------------------------------------------------------------------


def split_pattern(pattern: str) -> tuple[tuple[str, ...], str]:
    """Return the namespace's names and the pattern of names in it, of such as `tenant/shop/*`. Raises ConfigError.

    `*` stands for any characters, `?` for one, `[ab]` for one of some; none of them for a slash.
    """
    if not isinstance(pattern, str):
        raise WrongType(f"{pattern!r} is no pattern of streams: write text, such as shop/*")
    *spaces, names = pattern.split("/")
    for name in spaces:
        if _MAGIC.search(name):
            raise ConfigError(
                f"{printable(pattern, 80)!r}: only the last name of a pattern may have *, ? or [: it chooses streams of"
                " one namespace. Read each namespace by a reader of its own"
            )
        check_name(name)
    if "**" in names:
        raise ConfigError(
            f"{printable(pattern, 80)!r}: ** means nothing: a pattern chooses streams of one namespace"
        )
    if len(names) > PATTERN_CHARACTERS_MAX:
        raise ConfigError(
            f"a pattern of streams has at most {PATTERN_CHARACTERS_MAX} characters, not {len(names)}"
        )
    if not names or not names.isprintable() or names[0] in ".<":
        raise ConfigError(
            f"{printable(pattern, 80)!r} is no pattern of streams: write such as shop/* or orders-?"
        )
    return tuple(spaces), names


def has_magic(text: str) -> bool:
    """Return whether the last name of a path has characters that stand for others."""
    return bool(_MAGIC.search(text.rpartition("/")[2]))


def too_many(pattern: str, count: int) -> QuotaExceeded:
    """Return what is raised where a pattern, with its namespace's path, matches so many streams."""
    return QuotaExceeded(
        f"the pattern {pattern} matches {count:,} streams, and one reader or cursor takes {STREAMS_MAX:,}: split it"
        " into several, such as a*, b* and [!ab]*"
    )


def is_match(pattern: str, name: str) -> bool:
    """Return whether a stream of this name is one of the pattern's."""
    return fnmatchcase(name, pattern)


def marks_of(records: Mapping[str, PatternRecord], stream_id: str, name: str) -> dict[str, DLSN]:
    """Return the marks of the cursors that hold a stream, by the cursors' names."""
    return {
        cursor: record.mark_of(stream_id)
        for cursor, record in records.items()
        if record.holds and is_match(record.pattern, name)
    }


# --- cursors in metadata --------------------------------------------------------------------------


CURSORS_MAX = 100
"""Maximum cursors of one namespace. Each may have 512 KiB, and a janitor reads them all where they hold data."""
TRIES_MAX = 8
BEGUN_TOGETHER = 16
"""Streams of which the place is found together where a new cursor begins."""
POSITIONS_KEPT_MAX = 50_000
"""What a janitor's pass keeps of cursors that it has read, some 300 bytes each; beyond that it begins anew."""
_UNREADABLE = PatternRecord("*")


@dataclass(frozen=True, slots=True)
class PatternCursorInfo:
    """A cursor of a pattern, as its record says."""

    name: str
    record: PatternRecord
    version: int
    fault: str = ""
    """Why its record cannot be read; "": it can. It holds all streams of the namespace then, until it is deleted."""

    @property
    def pattern(self) -> str:
        """Pattern of the names in its namespace; "": it cannot be read."""
        return "" if self.fault else self.record.pattern

    @property
    def ranges(self) -> int:
        """Ranges done behind the marks, in all streams."""
        return sum(len(position.firsts) for position in self.record.positions.values())

    def is_expired(self, now_us: int) -> bool:
        """Whether nobody has used it for as long as it said."""
        return not self.fault and 0 < self.record.expires_at_us <= now_us

    def reads(self, name: str) -> bool:
        """Whether a stream of this name is one of its pattern's."""
        return bool(self.fault) or is_match(self.record.pattern, name)

    def mark_of(self, stream_id: str) -> DLSN:
        """Return the position in a stream before which everything is done."""
        return FIRST if self.fault else self.record.mark_of(stream_id)

    def of_stream(self, stream_id: str) -> CursorInfo:
        """Return what it says of one stream that it reads, as cursors of that stream say it."""
        record, one = self.record, self.record.positions.get(stream_id, StreamPosition())
        return CursorInfo(
            name=self.name,
            mark=one.mark,
            mark_seq=one.mark_seq,
            ranges=len(one.firsts),
            packed_data=msgspec.msgpack.encode(record.data),
            holds=bool(self.fault) or record.holds,
            expires_at_us=record.expires_at_us,
            used_at_us=record.used_at_us,
            moved_at_us=record.time_us,
            created_us=record.created_us,
            epoch=record.epoch,
            holder=record.holder,
            gaps=record.gaps,
            gap_records=record.gap_records,
            is_deleting=False,
            ledgers=(),
            version=self.version,
            fault=self.fault,
            pattern=record.pattern,
        )

    def mark_that_holds(self, stream_id: str, name: str) -> DLSN | None:
        """Return where retention of this stream has to end for it; None: it holds nothing of it (INV-S20)."""
        is_holding = self.fault or self.record.holds
        return self.mark_of(stream_id) if is_holding and self.reads(name) else None


def path_of(namespace_id: str, name: str) -> str:
    """Return where a cursor of a pattern is. Raises ConfigError for what is no name."""
    return f"{pattern_cursors_path(namespace_id)}/{part_of(name)}"


def check_count(namespace: str, count: int) -> None:
    """Raise QuotaExceeded if a namespace that has so many cursors of patterns may not get another one (INV-B1)."""
    if count >= CURSORS_MAX:
        raise QuotaExceeded(
            f"namespace {namespace or '(the root)'} has {count:,} cursors of patterns, and a new one needs fewer than"
            f" {CURSORS_MAX:,}: delete those that nobody uses (`fastbk namespace cursors` lists them)"
        )


def check_level(namespace: str, level: int) -> None:
    """Raise ConfigError if a cluster of this format level has no cursors of patterns (INV-U4)."""
    needed = level_of(PATTERN_CURSOR)
    if level < needed:
        raise ConfigError(
            f"namespace {namespace or '(the root)'} gets no cursor of a pattern: that needs format level {needed}, and"
            f" the cluster has {level}. Janitors of versions without that level delete records that such a cursor has"
            " not read. Upgrade or stop them, then run `fastbk cluster finalize`"
        )


async def pattern_cursors_of(records: RecordCalls, namespace_id: str) -> list[PatternCursorInfo]:
    """Return a namespace's cursors of patterns, by name. Raises MetadataUnavailable."""
    return [one async for one in each_pattern_cursor(records, namespace_id)]


async def each_pattern_cursor(
    records: RecordCalls, namespace_id: str
) -> AsyncGenerator[PatternCursorInfo, None]:
    """Yield a namespace's cursors of patterns, by name: one may be large (INV-M18). Raises MetadataUnavailable."""
    folder = pattern_cursors_path(namespace_id)
    names = await records.children(folder)
    found = records.each([f"{folder}/{name}" for name in names])
    for name in names:
        one = await anext(found)
        if one is None:
            continue
        record = read_or_bad(f"{folder}/{name}", lambda: get_pattern(one.value))  # noqa: B023
        if isinstance(record, BadRecord):
            yield PatternCursorInfo(unquote(name), _UNREADABLE, one.version, record.reason)
        else:
            yield PatternCursorInfo(unquote(name), record, one.version)


async def delete_pattern_cursor(
    records: RecordCalls, namespace_id: str, name: str, *, expected: PatternCursorInfo | None = None
) -> bool:
    """Delete a cursor; return whether there was one. Whoever holds it finds itself fenced.

    `expected`: only if its record is still as it was listed. Raises MetadataOnHold, MetadataUnavailable.
    """
    path = path_of(namespace_id, name)
    await records.check_not_held()
    for _ in range(TRIES_MAX):
        record = await records.read(path)
        if record is None or (expected is not None and expected.version != record.version):
            return False
        try:
            await records.change(Change(path, None, record.version))
        except MetadataConflict:
            continue
        return True
    raise MetadataUnavailable(f"cursor {name}: others change it again and again", retryable=True)


async def delete_all_of(records: RecordCalls, namespace_id: str) -> None:
    """Delete the cursors of a namespace that is gone."""
    for name in await records.children(pattern_cursors_path(namespace_id)):
        await delete_pattern_cursor(records, namespace_id, unquote(name))


# --- taking over ----------------------------------------------------------------------------------


CursorStart: TypeAlias = Literal["earliest", "latest"] | AtTime
"""Where a cursor begins, or goes on, in all streams of its pattern."""


@dataclass(frozen=True, slots=True)
class PatternCursorRequest:
    """What an opening says about its cursor. Raises ConfigError for what is no start."""

    pattern: str
    start: CursorStart = "earliest"
    """Where a new cursor begins in the streams that are there, and one that is moved goes on."""
    holds: bool = True
    expire_after_s: float = 0.0
    is_new: bool = False
    """Whether a cursor that is there already is an error."""
    is_move: bool = False
    """Whether a cursor that is there goes on at `start`; what it was opened with stays. One that is not is an error."""

    def __post_init__(self) -> None:
        if not isinstance(self.start, AtTime) and self.start not in ("earliest", "latest"):
            raise ConfigError(
                f'start={self.start!r}: "earliest", "latest" or AtTime; `reset` sets one stream'
            )


async def take_over(
    client: Client,
    namespace_id: str,
    label: str,
    name: str,
    wish: PatternCursorRequest,
    begins: Callable[[], Awaitable[dict[str, StreamPosition]]],
) -> CursorStore[PatternRecord]:
    """Make the cursor, or take it over; return its record, which nobody else changes from now on (INV-S10).

    `label`: the namespace's path. `begins()` returns where a new cursor begins, or one that is moved goes on, in the
    streams in which that is not the first record. Raises ConfigError for another pattern than the cursor has and for a
    new one where the cluster's format level has none (INV-U4), StreamNotFound, StreamExists, QuotaExceeded,
    MetadataOnHold, StorageError, and the last trouble with metadata.
    """
    path, holder = path_of(namespace_id, name), new_owner()
    records, full = client.records, f"{label}/{wish.pattern} {name}".strip("/")
    retry = Retry(AGAIN_S, AGAIN_S_MAX, OPEN_TIMEOUT_S)
    await records.check_not_held()
    moved = await begins() if wish.is_move else None

    def store(record: PatternRecord, version: int) -> CursorStore[PatternRecord]:
        return CursorStore(records, path, full, record, version, put_pattern, get_pattern)

    while True:
        try:
            found = await records.read(path)
            former = None if found is None else get_pattern(found.value)
            if found is not None and former is not None and former.holder == holder:
                return store(former, found.version)  # the answer to our own change was lost
            now_us = clock_us()
            if former is None and wish.is_move:
                raise StreamNotFound(
                    f"{label or 'the root namespace'} has no cursor {name} of a pattern"
                )
            if former is not None and wish.is_new:
                raise StreamExists(f"{label or 'the root namespace'} has a cursor {name} already")
            if former is None:
                check_count(label, len(await records.children(pattern_cursors_path(namespace_id))))
                check_level(label, await records.format_level())
                former = PatternRecord(wish.pattern, positions=await begins(), created_us=now_us)
            if former.pattern != wish.pattern:
                raise ConfigError(
                    f"cursor {name} of {label or 'the root namespace'} reads {former.pattern!r}, not {wish.pattern!r}:"
                    " give it that pattern, or open a cursor of another name"
                )
            record = replace(
                former,
                serial=former.serial + 1,
                epoch=former.epoch + 1,
                holder=holder,
                positions=former.positions if moved is None else moved,
                holds=wish.holds if moved is None else former.holds,
                expire_after_s=wish.expire_after_s if moved is None else former.expire_after_s,
                time_us=now_us,
                used_at_us=now_us,
            )
            version = None if found is None else found.version
            (version,) = await records.change(Change(path, put_pattern(record), version))
            if found is None:
                await _check_namespace(records, namespace_id, label, Change(path, None, version))
            return store(record, version)
        except (MetadataConflict, MetadataUnavailable) as error:
            failed: Error = error
        await asyncio.sleep(retry.pause_s(failed))


async def begins_of(
    catalog: Catalog, path: tuple[str, ...], namespace_id: str, wish: PatternCursorRequest
) -> dict[str, StreamPosition]:
    """Return where a cursor begins: in each stream in which that is not the first record. Raises QuotaExceeded."""
    found: dict[str, str] = {}
    async for entries in entries_of(catalog, namespace_id):
        found |= {
            one.id: name
            for name, one in entries
            if one.kind == "stream" and is_match(wish.pattern, name)
        }
    if len(found) > STREAMS_MAX:
        raise too_many("/".join((*path, wish.pattern)), len(found))

    async def begin(stream_id: str) -> tuple[str, StreamPosition | None]:
        context = catalog.reading(stream_id, "/".join((*path, found[stream_id])))
        try:
            mark, seq = await first_mark(context, wish.start, raises=False)
        except StreamNotFound:
            return stream_id, None
        return stream_id, StreamPosition(mark, seq) if mark != FIRST else None

    begun = await gathered(begin, found, BEGUN_TOGETHER)
    return {stream_id: one for stream_id, one in begun if one is not None}


async def made_or_moved(
    catalog: Catalog, path: tuple[str, ...], name: str, wish: PatternCursorRequest
) -> PatternCursorInfo:
    """Make a cursor that nobody reads yet, or have one go on elsewhere, which fences its holder; return it."""
    space = (await catalog.place(path)).here.id
    begins = lambda: begins_of(catalog, path, space, wish)  # noqa: E731
    store = await take_over(catalog.client, space, "/".join(path), name, wish, begins)
    return PatternCursorInfo(name, store.record, store.version)


async def _check_namespace(
    records: RecordCalls, namespace_id: str, label: str, undo: Change
) -> None:
    """Take a new cursor back whose namespace was deleted while it was made."""
    if namespace_id != ROOT_ID and await records.read(namespace_path(namespace_id)) is None:
        await records.change(undo)
        raise StreamNotFound(f"there is no namespace {label}: it was deleted")


# --- for the janitor ------------------------------------------------------------------------------


class PatternHolds:
    """What cursors of patterns hold of streams, in one pass of a janitor.

    What was read once in a pass is enough to keep something. Before something is deleted all is read anew: a cursor may
    have been made or reset meanwhile, and the stream renamed.
    """

    def __init__(self, records: RecordCalls) -> None:
        self._records = records
        self._known: dict[str, list[PatternCursorInfo]] = {}
        self._positions = 0

    def begin(self) -> None:
        """A pass begins."""
        self._known.clear()
        self._positions = 0

    async def marks(self, record: StreamRecord, stream_id: str, *, is_fresh: bool) -> list[DLSN]:
        """Return the marks of the cursors that hold a stream. Raises MetadataUnavailable."""
        space, names = record.namespace, {record.name}
        if is_fresh:
            where = stream_path(stream_id)
            raw = await self._records.read(where)
            if raw is not None:
                names.add(get_or(StreamRecord, raw.value, where, record).name)
        marks = [
            info.mark_that_holds(stream_id, name)
            async for info in self._infos(space, is_fresh=is_fresh)
            for name in names
        ]
        return [mark for mark in marks if mark is not None]

    async def of_stream(self, record: StreamRecord, stream_id: str) -> list[CursorInfo]:
        """Return the cursors that read a stream, as the pass knows them."""
        infos = self._infos(record.namespace, is_fresh=False)
        return [info.of_stream(stream_id) async for info in infos if info.reads(record.name)]

    async def _infos(
        self, space: str, *, is_fresh: bool
    ) -> AsyncGenerator[PatternCursorInfo, None]:
        """Yield a namespace's cursors; they are remembered where they are not too large together (INV-M18)."""
        if not is_fresh and space in self._known:
            for one in self._known[space]:
                yield one
            return
        self._positions -= sum(len(one.record.positions) for one in self._known.pop(space, ()))
        if self._positions > POSITIONS_KEPT_MAX // 2:
            self.begin()
        kept: list[PatternCursorInfo] = []
        positions = 0
        async for one in each_pattern_cursor(self._records, space):
            positions += len(one.record.positions)
            if positions <= POSITIONS_KEPT_MAX // 2:
                kept.append(one)
            else:
                kept.clear()
            yield one
        if positions <= POSITIONS_KEPT_MAX // 2:
            self._positions += positions
            self._known[space] = kept


async def gone_cursors(
    records: RecordCalls,
    ids_below: Callable[[RecordCalls, str], AsyncGenerator[list[str], None]],
    now_us: int,
) -> AsyncGenerator[tuple[str, PatternCursorInfo], None]:
    """Yield the cursors that nobody has used for as long as they said, or whose namespace is gone."""
    async for namespace_ids in ids_below(records, CURSORS):
        for namespace_id in namespace_ids:
            is_gone: bool | None = None
            async for one in each_pattern_cursor(records, namespace_id):
                if is_gone is None:
                    space = await records.read(namespace_path(namespace_id))
                    is_gone = namespace_id != ROOT_ID and space is None
                if is_gone or one.is_expired(now_us):
                    yield namespace_id, one
