"""Rebuilds lost metadata from what the bookies' directories say.

`collect` reads one stopped bookie's directories into a file, which is taken to where metadata is
rebuilt. It writes nothing to the directories, and locks them, so that no bookie changes them
meanwhile. What lies there, and a file that `collect` has written, may be from anybody. What cannot
be is named as damage, and the rest counts. No link is followed out of a directory.

Decision 109.
"""

from __future__ import annotations

import re
import zlib
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from fastbk.admin.metadata_backup import Ledger, Ledgers, items_of, raise_if_half_restored
from fastbk.errors import ConfigError, MetadataConflict, StorageError, StreamExists, os_errors_as
from fastbk.inspect.items import FileReader
from fastbk.inspect.journal import read_journal
from fastbk.meta.api import BookieIdentity, DirectoryIdentity, VersionedLedger, all_ids, all_ledgers
from fastbk.meta.records import BadRecord
from fastbk.meta.rollback import (
    COUNTED_ID_END,
    RESERVE_IDS,
    Mark,
    confirm_hold,
    new_hold,
    place_hold,
    raise_mark,
    read_record,
)
from fastbk.meta.uri import is_zookeeper, open_store, parse_zookeeper
from fastbk.model.entry import DIGEST_BYTES, HEADER_BYTES, DigestType, digest, master_key
from fastbk.model.ids import ID_MAX, BookieId, IdRanges, LedgerId, check_bookie_id, check_ledger_id
from fastbk.model.ledger import CURSOR_KEY, NAME_KEY, SEGMENT_KEY, STREAM_KEY, LedgerMetadata
from fastbk.native.disk import Disk
from fastbk.native.ffi import CorruptDataError
from fastbk.native.hashes import crc32c
from fastbk.native.ledger_state import DELETED, FENCED, HAS_KEY, LIMBO, LedgerState
from fastbk.native.segment import PAIRS_MAX
from fastbk.native.store import Store, StoreOptions
from fastbk.printable_text import printable
from fastbk.replication.metadata_merge import Held, Merged, merge_ledger
from fastbk.safe_files import read_found
from fastbk.server.directories import lock_all
from fastbk.storage.cookie_file import read_cookie
from fastbk.storage.directories import JOURNAL_LOG, JOURNALS
from fastbk.storage.identity import NAME as IDENTITY_NAME
from fastbk.storage.identity import ROLES, Identity
from fastbk.storage.identity import decode as decode_identity
from fastbk.storage.last_metadata import BODY_BYTES_MAX, read_last_metadata
from fastbk.storage.manifest import ManifestSlots
from fastbk.storage.metadata_mark import MetadataMark, read_newest
from fastbk.stream.chain import Chain, StreamKind, change_kind, get_chain, get_page
from fastbk.stream.chain_store import page_path
from fastbk.stream.drafts import LEDGERS_MAX, ledgers_named
from fastbk.stream.kind import set_kind
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
from fastbk.stream.provenance import table_of_log
from fastbk.stream.segment_contents import contents_of

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from fastbk.inspect.items import Item
    from fastbk.meta.api import MetadataStore
    from fastbk.meta.records import VersionedRecord
    from fastbk.model.ledger import LedgerMetadata
    from fastbk.stream.client import Client
    from fastbk.stream.context import StreamContext
    from fastbk.stream.stream import Stream

# Segments of streams that no chain names, after metadata was lost: found in ledgers' metadata, and
# put back.
#

DEPTH_MAX = 64
"""Maximum depth of namespaces, also where damaged records form a ring."""
NUMBER_MAX = 2**31
"""Segment numbers from here on are not believed."""
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
    found.streams.sort(key=lambda stream: stream.segments[-1].ledger_id, reverse=True)
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
    (record,) = store.records.read([path])
    return record


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
    Positions, sequence numbers, transaction ids and times are those that the records had, or `notes` says otherwise. A
    stream whose newest segment has a table of producers is theirs behind it.

    Raises ConfigError where ledgers contradict each other, and what recovery, reads and metadata raise; calling it
    again then goes on.
    """
    out = PutBack(lost.path)
    stream = await _made(client, lost, out) if lost.is_gone else _stream_of(client, lost.path)
    context = await stream.context()
    async with slots_of(context.client):
        known = await open_stream(context.client, context.store, new_owner(), None)
    epoch, pages = known.chain.epoch, known.chain.producer_pages
    known = await context.store.change(  # what is attached has no table of producers, as a rule
        lambda chain: change_kind(chain, epoch, StreamKind.WRITER, pages), known
    )
    kept = [segment for segment in lost.segments if await _has_records(client, segment, out)]
    ordered = _in_order(known.chain, kept, out)
    if known.chain.next_number == 1 and ordered and (first := ordered[0].number or 1) > 1:
        await context.store.change(lambda chain: _begun_at(chain, first), known)
    ids = [one.ledger_id for one in ordered]
    for start in range(0, len(ids), LEDGERS_MAX):
        some = ids[start : start + LEDGERS_MAX]
        await stream.attach(some, key_of(some), 0)
        out.attached += some
    await _give_back_to_producers(context, out)
    return out


async def _give_back_to_producers(context: StreamContext, out: PutBack) -> None:
    """Make the stream a producers' one if its newest segment is theirs."""
    try:
        if await table_of_log(context, (await context.store.read()).chain) is not None:
            await set_kind(context, StreamKind.PRODUCERS)
    except (ConfigError, StorageError) as error:
        out.notes.append(
            f"its producers cannot go on: {error}. Then run `fastbk stream kind {out.stream} producers`"
        )


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
            has_some = not (await contents_of(reader, 0)).is_empty
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


HOLD_REASON = "metadata was rebuilt from bookies"


@dataclass
class Rebuilt:
    """What a rebuild did, and what it could not.

    Attributes:
        created, updated, unchanged: ledgers. deleted: those that the store had and a bookie saw deleted.
        kept_deleted: those that bookies hold, and that were deleted.
        guessed: of the ledgers, those whose quorums are not what they once were.
        notes: by ledger, what could not be reconstructed. streams: segments by stream whose record is not there.
        unlisted: segments by path of a stream whose record is there, and does not name them.
        absent_bookies: named by ledgers, and not collected. damage: by bookie.
        highest_id: no ledger gets this id or a lower one.
    """

    hold_id: str = ""
    created: int = 0
    updated: int = 0
    unchanged: int = 0
    deleted: int = 0
    kept_deleted: int = 0
    guessed: list[int] = field(default_factory=list)
    notes: dict[int, tuple[str, ...]] = field(default_factory=dict)
    streams: dict[str, list[int]] = field(default_factory=dict)
    unlisted: dict[str, list[int]] = field(default_factory=dict)
    bookies: list[str] = field(default_factory=list)
    absent_bookies: list[str] = field(default_factory=list)
    damage: dict[str, list[str]] = field(default_factory=dict)
    highest_id: int = -1


def instance_of(collections: Sequence[Collection]) -> str:
    """Return the id of the cluster that all are of; empty where no cookie says it. Raises ConfigError."""
    ids = {collection.instance_id for collection in collections if collection.instance_id}
    if len(ids) > 1:
        raise ConfigError(f"these bookies are of several clusters: {', '.join(sorted(ids))}")
    names = [collection.bookie_id for collection in collections]
    if len(set(names)) < len(names):
        raise ConfigError("a bookie was collected twice: give its newest file only")
    return next(iter(ids), "")


def remade_store(uri: str, instance_id: str) -> MetadataStore:
    """Open the store at `uri`; where there is none, make one with this instance id (empty: a new one).

    Bookies start only on the cluster that their cookies name (INV-D1). Raises as `open_store`.
    """
    if is_zookeeper(uri):
        from fastbk.meta.zookeeper import admin as zookeeper_admin

        location = parse_zookeeper(uri)
        if not zookeeper_admin.exists(location):
            zookeeper_admin.init(location, instance_id=instance_id or None)
    return open_store(uri, new_instance_id=instance_id)


def rebuild(
    store: MetadataStore, collections: Sequence[Collection], backup: Path | None = None
) -> Rebuilt:
    """Merge what was collected into a store; return what came of it.

    `backup`: the archive that the store was restored from. Its ledgers count as of the versions that they had.

    Raises ConfigError for collections that do not belong together or to this store, MetadataConflict while bookies
    run, MetadataUnavailable, StorageError.
    """
    raise_if_half_restored(store)
    instance_id = instance_of(collections)
    if instance_id and store.instance_id() != instance_id:
        raise ConfigError(
            f"the bookies are of the cluster {instance_id}, the store is of {store.instance_id()}: make the store by"
            " this command (it takes the bookies' id), or restore a backup of their cluster"
        )
    if alive := store.list_bookies():
        names = ", ".join(one.service.bookie_id for one in alive)
        raise MetadataConflict(f"bookies run: {names}. Stop all of them, and collect again")
    out = Rebuilt(bookies=sorted(one.bookie_id for one in collections))
    # Before the first ledger is written: bookies delete what is not in half a store (INV-M10).
    hold = place_hold(store, new_hold(HOLD_REASON))
    out.hold_id = hold.hold_id
    _move_ids(store, collections, out)
    deleted = IdRanges()
    for collection in collections:
        for first, last in collection.deleted:
            deleted.add(first, last)
    _write_ledgers(store, collections, deleted, _Versions(backup), out)
    _write_identities(store, collections, out)
    # Streams are put together again once bookies run, since their entries have to be read for it.
    found = unlisted_segments(store)
    out.streams, out.unlisted = found.gone, found.unlisted
    _delete(store, deleted, out)
    return out


class _Versions:
    """The versions that ledgers had in a backup: a restored store begins anew with low ones."""

    def __init__(self, backup: Path | None) -> None:
        self._ledgers = iter(()) if backup is None else items_of(backup, Ledgers, Ledger)
        self._at: Ledger | None = next(self._ledgers, None)

    def of(self, ledger_id: int) -> int:
        """Return a ledger's version, -1 if the backup has none. Call with rising ids only."""
        while self._at is not None and self._at.ledger_id < ledger_id:
            self._at = next(self._ledgers, None)
        return self._at.version if self._at is not None and self._at.ledger_id == ledger_id else -1


def held_of(one: CollectedLedger) -> Held:
    """Return what the merge needs. Raises StorageError for metadata that is damaged."""
    is_empty_limbo = bool(one.flags & LIMBO) and one.highest_entry_id < 0
    return Held(
        highest_entry_id=one.highest_entry_id,
        lac=one.lac,
        digest=DigestType(one.digest) if one.digest else None,
        has_empty_password=one.master_key == EMPTY_KEY if one.flags & HAS_KEY else None,
        is_here=one.is_here and not is_empty_limbo,
        seen=(LedgerMetadata.from_bytes(one.seen), one.version) if one.seen else None,
    )


def _move_ids(store: MetadataStore, collections: Sequence[Collection], out: Rebuilt) -> None:
    """Have no id be drawn that any ledger had (INV-M3), and metadata know what bookies have stored of it (INV-M2)."""
    ids = [ledger.ledger_id for each in collections for ledger in each.ledgers]
    ids += [last for each in collections for _, last in each.deleted]
    listed = [each.mark.highest_id for each in collections]
    highest = max((one for one in (*ids, *listed) if one < COUNTED_ID_END), default=-1)
    if highest < 0:
        return
    out.highest_id = highest + RESERVE_IDS
    store.move_ids_above(LedgerId(out.highest_id))
    age = max(each.mark.age for each in collections)
    raise_mark(store, Mark(age=age, highest_id=max(listed), floor=out.highest_id))


def _write_ledgers(
    store: MetadataStore,
    collections: Sequence[Collection],
    deleted: IdRanges,
    versions: _Versions,
    out: Rebuilt,
) -> None:
    by_ledger: dict[int, dict[BookieId, CollectedLedger]] = {}
    for each in collections:
        if each.damage:
            out.damage[each.bookie_id] = each.damage
        for ledger in each.ledgers:
            by_ledger.setdefault(ledger.ledger_id, {})[BookieId(each.bookie_id)] = ledger
    named: set[str] = set()
    for ledger_id in sorted(by_ledger):
        if ledger_id in deleted:
            out.kept_deleted += 1
            continue
        (stored,) = store.read_ledgers([LedgerId(ledger_id)])
        try:
            held = {name: held_of(one) for name, one in by_ledger[ledger_id].items()}
            known = max(versions.of(ledger_id), -1 if stored is None else stored.version)
            # One that nobody can read is written anew by what bookies have seen.
            there = (stored.metadata, known) if isinstance(stored, VersionedLedger) else None
            merged = merge_ledger(held, there)
        except (StorageError, ConfigError) as error:
            out.notes[ledger_id] = (f"not rebuilt: {error}",)
            continue
        if merged is None:
            continue
        named.update(bookie_id for each in merged.metadata.fragments for bookie_id in each.ensemble)
        version = None if stored is None else stored.version
        _write(store, ledger_id, merged, there, version, out)
    out.absent_bookies = sorted(named - set(out.bookies))


def _write(
    store: MetadataStore,
    ledger_id: int,
    merged: Merged,
    there: tuple[LedgerMetadata, int] | None,
    version: int | None,
    out: Rebuilt,
) -> None:
    if there is not None and there[0] == merged.metadata:
        out.unchanged += 1
    elif version is not None:
        store.update_ledger(LedgerId(ledger_id), merged.metadata, version)
        out.updated += 1
    else:
        try:
            store.create_ledger(LedgerId(ledger_id), merged.metadata)
        except MetadataConflict:  # the store, from a backup, knows that it was deleted (INV-M9)
            out.kept_deleted += 1
            return
        out.created += 1
    if merged.notes:
        out.notes[ledger_id] = merged.notes
    if merged.is_guessed:
        out.guessed.append(ledger_id)


def _write_identities(
    store: MetadataStore, collections: Sequence[Collection], out: Rebuilt
) -> None:
    """Write what each bookie's directories say, which is what it compares at its start (INV-D1)."""
    for each in collections:
        identity = BookieIdentity(
            BookieId(each.bookie_id),
            each.incarnation,
            tuple(DirectoryIdentity(*directory) for directory in each.directories),
            each.starts,
        )
        read = store.read_identity(identity.bookie_id)
        if read is not None and read.identity.incarnation != identity.incarnation:
            out.damage.setdefault(each.bookie_id, []).append(
                "the store knows another incarnation of this bookie: its identity stays as it is"
            )
        elif read is None or read.identity.starts < identity.starts:
            store.write_identity(identity, None if read is None else read.version)


def _delete(store: MetadataStore, deleted: IdRanges, out: Rebuilt) -> None:
    """Delete what a backup brought back and a bookie saw deleted (INV-M9).

    A store deletes nothing while it is on hold. No bookie runs and everything else is written, so the hold ends for
    this and is placed again.
    """
    gone = [ledger_id for ledger_id in all_ids(store) if ledger_id in deleted]
    if not gone:
        return
    hold = read_record(store).hold
    if hold is not None:
        confirm_hold(store, hold.hold_id)
    try:
        for ledger_id in gone:
            store.delete_ledger(LedgerId(ledger_id))
            out.deleted += 1
    finally:
        reasons = (HOLD_REASON,) if hold is None else hold.reasons
        again = msgspec.structs.replace(new_hold(HOLD_REASON), reasons=reasons)
        out.hold_id = place_hold(store, again).hold_id


FORMAT = 1
EMPTY_KEY = master_key(b"")
ENTRY_ID_MAX = 2**63 - 1
MAGIC = b"FBKCOLL1"
FILE_BYTES_MAX = 4 << 30
"""Some 300 bytes a ledger, of 10 million."""
IDENTITY_BYTES_MAX = 1 << 20
DAMAGE_MAX, DAMAGE_CHARACTERS_MAX = 1000, 500
DIRECTORIES_MAX, TEXT_MAX = 4096, 255
"""Maximum directories of a bookie, and maximum length of a directory's or a cluster's id."""


class CollectedLedger(msgspec.Struct, array_like=True):
    """One ledger of one bookie. `seen`: Apache's bytes of its last metadata, and the store's version of them."""

    ledger_id: int
    flags: int = 0
    highest_entry_id: int = -1
    lac: int = -1
    master_key: bytes = b""
    digest: int = 0
    seen: bytes = b""
    version: int = 0
    is_here: bool = False


class Collection(msgspec.Struct, kw_only=True):
    """All that one bookie has. `damage`: what could not be read."""

    bookie_id: str
    incarnation: int
    instance_id: str
    starts: int
    directories: list[tuple[str, str, int]]
    """Id, role and pair."""
    mark: MetadataMark
    ledgers: list[CollectedLedger]
    deleted: list[tuple[int, int]]
    """Ranges of ids that this bookie saw deleted."""
    damage: list[str]
    format: int = FORMAT


def encode(collection: Collection) -> bytes:
    """Return the file's bytes: magic, CRC32C of the rest, MessagePack."""
    body = msgspec.msgpack.encode(collection)
    return MAGIC + crc32c(body).to_bytes(4, "little") + body


def read_collection(path: Path) -> Collection:
    """Return what `collect` has written. Raises StorageError."""
    try:
        if (size_bytes := path.stat().st_size) > FILE_BYTES_MAX:
            raise StorageError(
                f"{path} has {size_bytes:,} bytes: `fastbk metadata collect` writes {FILE_BYTES_MAX:,} at most"
            )
        raw = read_found(path.resolve(), FILE_BYTES_MAX)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from error
    if raw[:8] != MAGIC or crc32c(raw[12:]) != int.from_bytes(raw[8:12], "little"):
        raise StorageError(
            f"{path} is not what `fastbk metadata collect` wrote, or is damaged: collect again"
        )
    try:
        collection = msgspec.msgpack.decode(raw[12:], type=Collection)
        _check(collection)
    except (ValueError, RecursionError) as error:
        raise StorageError(
            f"{path}: {printable(str(error))}: collect again with this version"
        ) from error
    collection.damage = _shortened(collection.damage)
    return collection


def _shortened(damage: Sequence[str]) -> list[str]:
    """Return the first lines, each of a bounded length, and how many more there are."""
    kept = [printable(one, DAMAGE_CHARACTERS_MAX) for one in damage[:DAMAGE_MAX]]
    return [*kept, f"and {len(damage) - DAMAGE_MAX} more"] if len(damage) > DAMAGE_MAX else kept


def _check(found: Collection) -> None:
    """Raise ConfigError or ValueError for what no bookie says: the file may come from anybody."""
    check_bookie_id(BookieId(found.bookie_id))
    if found.format != FORMAT:
        raise ConfigError(f"its format is {found.format}, and this fastbk reads format {FORMAT}")
    last_id = -1
    for ledger in found.ledgers:
        check_ledger_id(ledger.ledger_id)
        if ledger.ledger_id <= last_id:
            raise ConfigError(f"ledger {ledger.ledger_id} is there twice, or out of order")
        last_id = ledger.ledger_id
        if ledger.digest:
            DigestType(ledger.digest)
        if len(ledger.seen) > BODY_BYTES_MAX or len(ledger.master_key) > TEXT_MAX:
            raise ConfigError(f"ledger {ledger.ledger_id} has more metadata than a ledger has")
        if (
            min(ledger.highest_entry_id, ledger.lac) < -1
            or max(ledger.highest_entry_id, ledger.lac) > ENTRY_ID_MAX
        ):
            raise ConfigError(f"ledger {ledger.ledger_id} has entries that no ledger has")
    for first, last in found.deleted:
        if not 0 <= first <= last <= ID_MAX:
            raise ConfigError(f"{first}-{last} is no range of ledger ids")
    if len(found.instance_id) > TEXT_MAX or not found.instance_id.isprintable():
        raise ConfigError("its cluster's id is none")
    if len(found.directories) > DIRECTORIES_MAX:
        raise ConfigError(f"it has {len(found.directories)} directories")
    for one_id, role, pair in found.directories:
        if len(one_id) > TEXT_MAX or role not in ROLES or not 0 <= pair < PAIRS_MAX:
            raise ConfigError("it has a directory that no bookie has")
    mark = found.mark
    numbers = (mark.age, mark.highest_id, mark.starts, found.starts)
    if min(numbers) < -1 or max(numbers) > ID_MAX or not 0 <= found.incarnation < 1 << 64:
        raise ConfigError("its identity or mark has numbers that none has")


def collect(data: Sequence[Path]) -> Collection:
    """Read a stopped bookie's directories: `data` are these, or folders in which they lie.

    Raises ConfigError where a directory is missing or of another bookie, StorageError (also while the bookie runs).
    """
    with ExitStack() as stack:
        directories = _directories(data, stack)
        first = directories[0][2]
        if len({(one.bookie_id, one.incarnation) for _, _, one in directories}) > 1:
            raise ConfigError(
                "these directories are of several bookies: collect each bookie by itself"
            )
        for role in ("journal", "ledger"):
            pairs = {one.pair for _, _, one in directories if one.role == role}
            if pairs != set(range(first.pairs)):
                raise ConfigError(
                    f"{first.bookie_id} has {first.pairs} {role} directories, {len(pairs)} were found: give all"
                    " of them by --data"
                )
        for lock in lock_all([path for _, path, _ in directories]):
            stack.callback(lock.close)
        stores = [(disk, path) for disk, path, one in directories if one.role == "ledger"]
        work = _Work()
        instance_id = next(
            filter(None, (work.instance_id_in(disk, path) for disk, path, _ in directories)), ""
        )
        journals = {one.pair: path for _, path, one in directories if one.role == "journal"}
        for disk, path, identity in directories:
            if identity.role == "ledger":
                journal = journals[identity.pair]
                with os_errors_as(StorageError, path):
                    passed = work.take_stored(disk, path, journal, identity, stack)
                work.take_journal(journal, passed)
        for _, path in stores:
            work.take_last_metadata(path)
        mark = work.mark_of(stores)
        made = Collection(
            bookie_id=first.bookie_id,
            incarnation=first.incarnation_number,
            instance_id=instance_id,
            starts=_starts([one for _, _, one in directories], mark),
            directories=[(one.directory_id, one.role, one.pair) for _, _, one in directories],
            mark=mark,
            ledgers=[work.ledgers[ledger] for ledger in sorted(work.ledgers)],
            deleted=list(work.deleted),
            damage=work.all_damage(),
        )
    _check(made)  # what a rebuild would refuse is told where it can be looked at
    return made


def _starts(found: Sequence[Identity], mark: MetadataMark) -> int:
    """Return how many starts metadata may have counted: those that every directory counted, for it counts them last.

    A start that was cut short between two directories makes none of them an old copy (INV-D1). What the mark says that
    metadata had counted makes one of them.
    """
    known = mark.starts if mark.incarnation == found[0].incarnation_number else 0
    return max(known, min(one.starts for one in found))


def _directories(data: Sequence[Path], stack: ExitStack) -> list[tuple[Disk, str, Identity]]:
    found = []
    for given in data:
        if not given.is_dir():
            raise ConfigError(f"{given} is no directory")
        with os_errors_as(StorageError, given):
            inside = sorted(one for one in given.iterdir() if one.is_dir())
        for path in (given, *inside):
            identity = _identity_in(path)
            if identity is None:
                continue
            if path is not given and path.is_symlink():
                raise ConfigError(
                    f"{path} is a symbolic link to {path.resolve()}, which is not followed: if that is a directory of"
                    " this bookie, name it by another --data"
                )
            disk = stack.enter_context(Disk(path, "plain"))
            found.append((disk, str(path), identity))
    if not found:
        raise ConfigError(f"{', '.join(map(str, data))}: no directory of a bookie is there")
    return sorted(found, key=lambda one: (one[2].role, one[2].pair))


def _identity_in(path: Path) -> Identity | None:
    """Return what a directory's `identity.json` says, None where it has none. Nothing is written there."""
    name = str(path / IDENTITY_NAME)
    try:
        raw = read_found(name, IDENTITY_BYTES_MAX)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{name}: {error.strerror}") from error
    return decode_identity(raw, name)


class _Work:
    def __init__(self) -> None:
        self.ledgers: dict[int, CollectedLedger] = {}
        self.deleted = IdRanges()
        self.damage: list[str] = []
        self.damage_count = 0

    def instance_id_in(self, disk: Disk, path: str) -> str:
        """Return the cluster's id that a directory's cookie names; empty where none does."""
        try:
            cookie = read_cookie(disk, path)
        except (StorageError, OSError) as error:
            self.note(f"{path}: {error}")
            return ""
        instance_id = "" if cookie is None else cookie.instance_id
        if len(instance_id) <= TEXT_MAX and instance_id.isprintable():
            return instance_id
        self.note(f"{path}: its cookie names a cluster by an id that none has")
        return ""

    def take_stored(
        self, disk: Disk, path: str, journal: str, identity: Identity, stack: ExitStack
    ) -> set[int]:
        """Take what the manifest names; return the ids of journal files that the mark has passed and that are logs."""
        reader = stack.enter_context(Disk(Path(path), "plain"))
        options = StoreOptions(
            incarnation=identity.incarnation_number, pair=identity.pair, journal_directory=journal
        )
        store = Store(path, disk, reader, options)
        stack.callback(store.destroy)
        manifest = ManifestSlots(disk, path).load()
        states: dict[int, LedgerState] = {}
        for entry in manifest.locations:  # of equal ledgers the newest file's counts
            if store.add(entry.file_id):
                self.note(f"{path}: locations file {entry.file_id} is damaged")
                continue
            states.update((one.ledger_id, one) for one in store.states(entry.file_id))
        store.set_logs(sorted({log.log_id for log in manifest.logs}))
        for ledger_id, state in states.items():
            if state.flags & DELETED:
                continue
            one = self._ledger(ledger_id, path)
            if one is None:
                continue
            one.is_here = True
            one.flags |= state.flags & (FENCED | LIMBO | HAS_KEY)
            one.highest_entry_id = max(one.highest_entry_id, state.highest_entry_id)
            one.lac = max(one.lac, state.lac)
            if state.flags & HAS_KEY:
                one.master_key = state.master_key
            read = store.read(ledger_id, 0, ENTRY_ID_MAX)
            if read.entry is not None:
                self._take_entry(one, read.entry)
        return {
            log.log_id ^ JOURNAL_LOG for log in manifest.logs if log.sealed and log.is_journal_file
        }

    def take_journal(self, path: str, passed: Container[int]) -> None:
        """Take the journal, also what is in the files of the ledger directory already, but for these files."""
        for file in sorted(Path(path).iterdir()):
            file_id = JOURNALS.id_of(file.name)
            if file_id is None or file_id in passed:
                continue
            try:
                with FileReader(str(file)) as source:
                    for item in read_journal(source):
                        self._take_item(item, str(file))
            except StorageError as error:
                self.note(str(error))

    def _take_item(self, item: Item, file: str) -> None:
        if item.is_damage:
            self.note(f"{file} at {item.offset_bytes}: {item.facts.get('reason')}")
        elif item.what == "fence":
            if (fenced := self._ledger(item.number("ledger_id"), file)) is not None:
                fenced.flags |= FENCED
        elif item.entry is not None and item.number("entry_id") >= 0:
            one = self._ledger(item.number("ledger_id"), file)
            if one is not None:
                one.is_here = True
                one.highest_entry_id = max(one.highest_entry_id, item.number("entry_id"))
                self._take_entry(one, item.entry)

    def take_last_metadata(self, path: str) -> None:
        """Take `metadata.last`."""
        try:
            seen, deleted = read_last_metadata(path)
        except (StorageError, OSError) as error:
            self.note(f"{path}: {error}")
            return
        for ledger_id, (version, raw) in seen.items():
            one = self._ledger(ledger_id, path)
            if one is not None:
                one.seen, one.version = raw, version
        for first, last in deleted:
            self.deleted.add(first, last)

    def mark_of(self, stores: Sequence[tuple[Disk, str]]) -> MetadataMark:
        """Return what was stored of metadata; nothing where that is damaged, for ids of ledgers are known otherwise."""
        try:
            return read_newest(stores) or MetadataMark()
        except (CorruptDataError, OSError) as error:
            self.note(str(error))
            return MetadataMark()

    def note(self, text: str) -> None:
        """Keep it for people; of many the first ones."""
        self.damage_count += 1
        if len(self.damage) < DAMAGE_MAX:
            self.damage.append(printable(text, DAMAGE_CHARACTERS_MAX))

    def all_damage(self) -> list[str]:
        """Return what was noted, and how much more there is."""
        more = self.damage_count - len(self.damage)
        return [*self.damage, f"and {more} more"] if more else self.damage

    def _ledger(self, ledger_id: int, where: str) -> CollectedLedger | None:
        """Return what is known of a ledger so far; None for an id that none has, which is noted."""
        if not 0 <= ledger_id <= ID_MAX:
            self.note(f"{where}: ledger {ledger_id}, an id that no ledger has")
            return None
        return self.ledgers.setdefault(ledger_id, CollectedLedger(ledger_id))

    @staticmethod
    def _take_entry(one: CollectedLedger, entry: bytes) -> None:
        one.lac = max(one.lac, int.from_bytes(entry[16:24], "big", signed=True))
        if one.digest:
            return
        header = entry[:HEADER_BYTES]
        for kind in (DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC):
            end = HEADER_BYTES + DIGEST_BYTES[kind]
            if entry[HEADER_BYTES:end] != _digest(kind, header, entry[end:]):
                continue
            one.digest = int(kind)
            return


def _digest(kind: DigestType, header: bytes, data: bytes) -> bytes:
    """Return a digest that needs no password, or has the empty one."""
    if kind is DigestType.CRC32C:
        return crc32c(data, crc32c(header)).to_bytes(4, "big")
    return digest(kind, header, data)
