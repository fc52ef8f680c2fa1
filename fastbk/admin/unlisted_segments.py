"""Segments of streams that no chain names, after metadata was lost: found in ledgers' metadata, and put back.

A segment's metadata names its stream, namespace and number; its entries have their sequence in the segment, transaction
ids and times. So a stream is put together again from its ledgers alone: `put_back`. What no ledger says is lost:
policies, cursors, the truncation point, and of a stream whose first segments were deleted the sequence number of its
first record, which is 0 then. Finding needs a store only; putting back needs bookies.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fastbk.errors import ConfigError, StorageError, StreamExists
from fastbk.meta.api import all_ledgers
from fastbk.meta.records import BadRecord
from fastbk.model.ledger import CURSOR_KEY, NAME_KEY, SEGMENT_KEY, STREAM_KEY
from fastbk.stream.chain import Chain, get_chain, get_page
from fastbk.stream.chain_store import page_path
from fastbk.stream.drafts import LEDGERS_MAX, ledgers_named
from fastbk.stream.namespace.namespace import restore_stream
from fastbk.stream.namespace.tree import ROOT_ID, NamespaceRecord, StreamRecord, get
from fastbk.stream.opening import new_owner, open_stream, slots_of
from fastbk.stream.paths import (
    chain_path,
    check_name,
    drafts_path,
    namespace_path,
    split_path,
    split_stream_path,
    stream_path,
)
from fastbk.stream.positions import DLSN
from fastbk.stream.segment_contents import contents_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastbk.meta.api import MetadataStore
    from fastbk.meta.records import VersionedRecord
    from fastbk.model.ledger import LedgerMetadata
    from fastbk.stream.client import Client
    from fastbk.stream.stream import Stream

DEPTH_MAX = 64
"""Of namespaces, also where damaged records form a ring."""
NUMBER_MAX = 2**31
"""Of segments that are believed."""
_STREAM_ID = re.compile(r"[0-9a-f]{2,32}")


@dataclass(frozen=True, slots=True)
class LostSegment:
    """A ledger that says it is a stream's; `number` None: no writer of the stream made it."""

    ledger_id: int
    number: int | None


@dataclass(slots=True)
class LostStream:
    """A stream whose chain does not name these. `is_gone`: it has no record; `path` is what the newest ledger says."""

    stream_id: str
    path: str
    is_gone: bool
    segments: list[LostSegment]


@dataclass
class UnlistedSegments:
    """Ledgers by stream, by rising id.

    Attributes:
        gone: stream id -> all ledgers of a stream that has no record.
        unlisted: path of a stream (its id, if the path is not known) -> ledgers that its chain does not name.
        streams: all of them. damage: by stream id, of records that cannot be read.
    """

    gone: dict[str, list[int]] = field(default_factory=dict)
    unlisted: dict[str, list[int]] = field(default_factory=dict)
    streams: list[LostStream] = field(default_factory=list)
    damage: dict[str, str] = field(default_factory=dict)


@dataclass
class PutBack:
    """What was done with one stream.

    Attributes:
        attached: its ledgers, in order. is_made: the stream had no record, and has one now.
        left: by ledger id, why one was not attached. notes: what is not as it was.
    """

    stream: str
    is_made: bool = False
    attached: list[int] = field(default_factory=list)
    left: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


# --- finding ------------------------------------------------------------------------------------------------------


def unlisted_segments(store: MetadataStore) -> UnlistedSegments:
    """Return them; reads all ledgers. Raises MetadataUnavailable; a damaged record is named and passed over."""
    segments: dict[str, list[LostSegment]] = {}
    newest: dict[str, LedgerMetadata] = {}
    for ledger_id, read in all_ledgers(store):
        if isinstance(read, BadRecord):
            continue
        custom = read.metadata.custom
        owner = custom.get(STREAM_KEY, b"").decode("utf-8", "replace")
        if CURSOR_KEY in custom or not _STREAM_ID.fullmatch(owner):
            continue
        segments.setdefault(owner, []).append(LostSegment(ledger_id, _number(custom)))
        newest[owner] = read.metadata
    found = UnlistedSegments()
    for stream_id, some in segments.items():
        try:
            _compare(store, stream_id, some, newest[stream_id], found)
        except (ConfigError, StorageError) as error:
            found.damage[stream_id] = str(error)
    # Of two streams that had one name the newer one gets it: the older one was deleted.
    found.streams.sort(key=lambda one: one.segments[-1].ledger_id, reverse=True)
    return found


def _compare(
    store: MetadataStore,
    stream_id: str,
    segments: list[LostSegment],
    newest: LedgerMetadata,
    found: UnlistedSegments,
) -> None:
    record = _read(store, stream_path(stream_id))
    if record is None:
        found.gone[stream_id] = [segment.ledger_id for segment in segments]
        found.streams.append(LostStream(stream_id, _said_path(stream_id, newest), True, segments))
        return
    named = _named(store, stream_id)
    stream = get(StreamRecord, record.value, stream_path(stream_id))
    rest = [segment for segment in segments if segment.ledger_id not in named]
    if rest and not stream.deleting:
        path = _path(store, stream)
        found.unlisted[path or stream_id] = [one.ledger_id for one in rest]
        if path:
            found.streams.append(LostStream(stream_id, path, False, rest))


def _number(custom: Mapping[str, bytes]) -> int | None:
    """Return the number that a writer gave to a segment; one that cannot be is none."""
    text = custom.get(SEGMENT_KEY, b"")
    number = int(text) if text.isdigit() and len(text) <= 10 else 0
    return number if 1 <= number < NUMBER_MAX else None


def _said_path(stream_id: str, newest: LedgerMetadata) -> str:
    """Return the namespace and name that a ledger says; where it says none that can be, the root and the id."""
    namespace, name = newest.namespace, newest.custom.get(NAME_KEY, b"").decode("utf-8", "replace")
    try:
        parts = split_path(namespace)
    except ConfigError:
        parts = ()
    try:
        check_name(name)
    except ConfigError:
        name = stream_id
    return "/".join((*parts[:DEPTH_MAX], name))


def _named(store: MetadataStore, stream_id: str) -> set[int]:
    """Return the ledgers that a stream's chain, its pages and its drafts name."""
    raw = _read(store, chain_path(stream_id))
    if raw is None:
        return set()
    chain = get_chain(raw.value)
    named = {row.ledger_id for row in chain.rows} | set(chain.doomed) | {chain.reserved}
    for page in chain.pages:
        if (kept := _read(store, page_path(stream_id, page))) is not None:
            named |= {one.ledger_id for one in get_page(kept.value)}
    folder = drafts_path(stream_id)
    for name in store.records.children(folder):
        if (draft := _read(store, f"{folder}/{name}")) is not None:
            named |= set(ledgers_named(draft.value))
    return named


def _read(store: MetadataStore, path: str) -> VersionedRecord | None:
    (found,) = store.records.read([path])
    return found


def _path(store: MetadataStore, stream: StreamRecord) -> str:
    """Return a stream's namespaces and name; empty where one of them has no record."""
    parts, namespace_id = [stream.name], stream.namespace
    while namespace_id != ROOT_ID and len(parts) <= DEPTH_MAX:
        where = namespace_path(namespace_id)
        raw = _read(store, where)
        if raw is None:
            return ""
        namespace = get(NamespaceRecord, raw.value, where)
        parts.append(namespace.name)
        namespace_id = namespace.parent
    return "/".join(reversed(parts))


# --- putting back -------------------------------------------------------------------------------------------------


async def put_back(client: Client, lost: LostStream) -> PutBack:
    """Attach a stream's segments in the order of their numbers, behind all that its chain has; make a lost stream anew.

    The stream is taken over first, and ledgers that are open are recovered and closed: whoever writes is fenced.
    Positions, sequence numbers, transaction ids and times are those that the records had, or `notes` says otherwise.

    Raises ConfigError where ledgers contradict each other, and what recovery, reads and metadata raise; calling it
    again then goes on.
    """
    out = PutBack(lost.path)
    stream = await _made(client, lost, out) if lost.is_gone else _stream_of(client, lost.path)
    context = await stream.context()
    async with slots_of(context.client):
        known = await open_stream(context.client, context.store, new_owner())
    kept = [segment for segment in lost.segments if await _has_records(client, segment, out)]
    ordered = _in_order(known.chain, kept, out)
    if known.chain.next_number == 1 and ordered and (first := ordered[0].number or 1) > 1:
        await context.store.change(lambda chain: _begun_at(chain, first), known)
    ids = [one.ledger_id for one in ordered]
    for at in range(0, len(ids), LEDGERS_MAX):
        some = ids[at : at + LEDGERS_MAX]
        await stream.attach(some, key_of(some), 0)
        out.attached += some
    return out


def key_of(ledger_ids: Sequence[int]) -> str:
    """Return the key of an attachment by hand: it stands for these ledgers, so that a repeat is known as one."""
    return f"by-hand-{zlib.crc32(repr(list(ledger_ids)).encode()):08x}"


def _stream_of(client: Client, path: str) -> Stream:
    namespace, name = split_stream_path(path)
    return client.namespace(namespace).stream(name)


async def _made(client: Client, lost: LostStream, out: PutBack) -> Stream:
    namespace, name = split_stream_path(lost.path)
    place = client.namespace(namespace)
    if namespace:
        await place.create(exist_ok=True)
    try:
        stream = await restore_stream(place, name, lost.stream_id)
    except StreamExists:
        stream = await restore_stream(place, f"{name}.{lost.stream_id}", lost.stream_id)
    out.stream, out.is_made = stream.path, True
    out.notes.append("its policy and cursors are lost, and where it was truncated")
    return stream


async def _has_records(client: Client, one: LostSegment, out: PutBack) -> bool:
    """Close a ledger if it is open; return whether there is something to attach."""
    async with await client.open_ledger(one.ledger_id, recovery=True) as reader:
        try:
            has_some = (await contents_of(reader, 0)).records > 0
        except StorageError as error:
            if error.ledger_id is None:  # it could not be read; what it holds is not known
                raise
            out.left[one.ledger_id] = str(error)
            return False
    if not has_some:
        out.left[one.ledger_id] = "it has no records"
    return has_some


def _in_order(chain: Chain, segments: Sequence[LostSegment], out: PutBack) -> list[LostSegment]:
    """Return the segments to attach. Those without numbers fill the holes between the others, if they do exactly."""
    numbered: dict[int, LostSegment] = {}
    plain: list[LostSegment] = []
    for segment in segments:
        if segment.number is None:
            plain.append(segment)
        elif segment.number < chain.next_number:
            last = chain.next_number - 1
            out.left[segment.ledger_id] = (
                f"its number is {segment.number}, and the stream has segments up to {last}"
            )
        elif segment.number in numbered:
            raise ConfigError(
                f"stream {out.stream}: ledgers {numbered[segment.number].ledger_id} and {segment.ledger_id} both"
                f" say that they are segment {segment.number}: attach the right one by"
                " `fastbk stream attach`, then run this again"
            )
        else:
            numbered[segment.number] = segment
    first = chain.next_number if chain.next_number > 1 else min(numbered, default=1)
    count = max(numbered, default=first - 1) + 1 - first
    holes = count - len(numbered)
    if 0 < holes == len(plain):
        rest = iter(plain)
        return [numbered.get(number) or next(rest) for number in range(first, first + count)]
    unknown = "it has no number: attach it by `fastbk stream attach` if it is a segment"
    out.left |= {one.ledger_id: unknown for one in plain}
    if holes:
        out.notes.append(
            f"{holes} of its segments are missing: segments behind them have lower numbers than before"
        )
    if first > 1 and chain.next_number == 1:
        out.notes.append(
            f"segments below {first} were deleted: its sequence numbers begin with 0 again"
        )
    return [numbered[number] for number in sorted(numbered)]


def _begun_at(chain: Chain, number: int) -> Chain:
    """Return the chain of a stream whose segments below this number are gone."""
    if chain.next_number != 1:
        return chain
    trim = max(chain.trim, DLSN(number, 0, 0))
    return replace(chain, head=number, deleting=number, next_number=number, trim=trim)
