"""The records of objects (`fastbk/objects`): names, uploads, counts, and who may delete a ledger.

A ledger of an object is named by an upload's record before it exists, then by the object's record, and at last by an
upload's record again, which is marked: whoever finds that one may delete the ledger (INV-O2, INV-O3). The change that
gives or takes a name also writes the counts of its namespace. So a namespace that is being deleted gets no object, and
the counts are exact (INV-O5).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec
from msgspec.structs import replace

from fastbk.client.client import Client
from fastbk.client.metadata_calls import RecordCalls
from fastbk.errors import (
    ConfigError,
    DraftGone,
    Error,
    MetadataConflict,
    ObjectExists,
    ObjectNotFound,
    QuotaExceeded,
    StorageError,
    StreamNotFound,
)
from fastbk.formats import OBJECT, level_of
from fastbk.meta.records import REASON_CHARACTERS_MAX, Change, VersionedRecord, bad_record
from fastbk.model.ids import LedgerId
from fastbk.model.ledger import OBJECT_KEY
from fastbk.observe.library_log import LibraryLog
from fastbk.stream.context import clock_us, gathered
from fastbk.stream.namespace.catalog import Catalog, Tries
from fastbk.stream.namespace.listing import ids_below
from fastbk.stream.namespace.tree import Id, Name, Place, StoredRecord, get_or, label, touched
from fastbk.stream.paths import (
    OBJECTS,
    OBJECTS_MAX,
    UPLOADS,
    decode,
    object_counts_path,
    object_part_path,
    object_path,
    stored_path,
    upload_path,
    uploads_path,
)
from fastbk.stream.positions import Count, TimeUs

_log = LibraryLog("fastbk.objects")

VERSION = 1
METADATA_BYTES_MAX = 8192
"""Maximum bytes of an object's metadata as JSON: it stands in the object's record."""
UPLOAD_KEPT_S = 24 * 3600.0
"""A janitor ends an upload that was not renewed for so long; `RENEW_S` is how often an upload that lives is."""
RENEW_S = 3600.0
FENCE_S = 5.0
"""How long fencing the ledger of an upload that is given up may take; it is deleted in any case."""
TRIES_MAX = 20
TOGETHER = 16
LISTED_AT_ONCE = 256
_Ledger = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class ObjectRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a name of an object stands for. It is written once; another object of the name has another record."""

    ledger: _Ledger
    upload: Id
    """Id of the upload that made it, also in the ledger's custom metadata. No other object has it."""
    manifest: Count
    """Entry that has the manifest; the chunks lie before it."""
    size_bytes: Count
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    created_us: TimeUs
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    """The user's."""
    is_shared: bool = False
    """Other objects are in the ledger, too: the upload's record stays, and counts them."""
    version: Annotated[int, msgspec.Meta(ge=1, le=VERSION)] = VERSION


class UploadRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A ledger of an object that has no name; or one that objects share."""

    ledger: _Ledger
    name: Name
    """The object's, for people."""
    renewed_us: TimeUs
    is_given_up: bool = False
    """It will not get a name any more, and its ledger may be deleted."""
    is_closed: bool = False
    """Its object had a name: nobody writes to the ledger."""
    names: Count = 0
    """Objects with names that share the ledger: as long as there is one, it stays."""


class ObjectCounts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is counted of a namespace's objects, those of namespaces below it not."""

    objects: Count = 0
    size_bytes: Count = 0


AnyRecord = TypeVar("AnyRecord", ObjectRecord, UploadRecord, ObjectCounts)


def put(record: ObjectRecord | UploadRecord | ObjectCounts) -> bytes:
    """Return a record's bytes. Raises StorageError for what `get` would refuse (INV-S14)."""
    raw = msgspec.json.encode(record)
    try:
        msgspec.json.decode(raw, type=type(record))
    except ValueError as error:
        raise StorageError(f"a record would be one that nobody reads: {error}") from error
    return raw


def get(kind: type[AnyRecord], raw: bytes, path: str) -> AnyRecord:
    """Return what `put` wrote. Raises StorageError."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (ValueError, RecursionError) as error:
        reason = f"record {path} is damaged, or of a newer fastbk: {error}"
        raise StorageError(reason[:REASON_CHARACTERS_MAX]) from error


def checked_metadata(metadata: dict[str, str]) -> dict[str, str]:
    """Return metadata that an object may have. Raises ConfigError."""
    if not all(isinstance(part, str) for item in metadata.items() for part in item):
        raise ConfigError("metadata: keys and values are text")
    if len(msgspec.json.encode(metadata)) > METADATA_BYTES_MAX:
        raise ConfigError(f"metadata has at most {METADATA_BYTES_MAX} bytes, as JSON")
    return metadata


def _decoded(kind: type[AnyRecord], raw: VersionedRecord | None, path: str) -> AnyRecord | None:
    return None if raw is None else get(kind, raw.value, path)


# --- uploads --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Upload:
    """One attempt at an object: its ledger, and the record that names it."""

    namespace_id: str
    id: str
    name: str
    ledger_id: LedgerId
    version: int
    """Version of its record."""
    renewed_us: int

    @property
    def path(self) -> str:
        """Where its record is."""
        return upload_path(self.namespace_id, self.id)


async def begin_upload(catalog: Catalog, path: tuple[str, ...], name: str) -> Upload:
    """Name a ledger that the caller may create now.

    Raises ConfigError while the cluster's format level has no objects, StreamNotFound, QuotaExceeded.
    """
    records, needed = catalog.records, level_of(OBJECT)
    if (level := await records.format_level()) < needed:
        raise ConfigError(
            f"objects need format level {needed}, and the cluster has {level}. Janitors of versions without that level"
            " do not end uploads. Upgrade them, then run `fastbk cluster finalize`"
        )
    place = await catalog.place(path)
    await check_room(records, place)
    namespace_id, upload_id, now_us = place.here.id, secrets.token_hex(8), clock_us()

    def named(ledger_id: LedgerId) -> Change:
        record = UploadRecord(ledger_id, name, now_us)
        return Change(upload_path(namespace_id, upload_id), put(record))

    ledger_id, version = await records.draw_and_change(named)
    return Upload(namespace_id, upload_id, name, ledger_id, version, now_us)


async def renew(client: Client, upload: Upload) -> None:
    """Keep janitors from ending an upload that lives. Raises MetadataConflict: it was ended."""
    now_us = clock_us()
    if now_us - upload.renewed_us < RENEW_S * 1e6:
        return
    record = UploadRecord(upload.ledger_id, upload.name, now_us)
    (upload.version,) = await client.records.change(
        Change(upload.path, put(record), upload.version)
    )
    upload.renewed_us = now_us


async def check_room(records: RecordCalls, place: Place) -> None:
    """Raise QuotaExceeded if a namespace has as many bytes as it may, as a janitor has counted last."""
    bounds = [
        (stored_path(level.id), level.record.value.policy.bytes_max, place.path[:depth])
        for depth, level in enumerate(place.levels)
        if level.record.value.policy.bytes_max
    ]
    stored = await records.read_all([path for path, _, _ in bounds]) if bounds else []
    for (path, allowed, space), raw in zip(bounds, stored, strict=True):
        there = 0
        if raw is not None:
            there = get_or(StoredRecord, raw.value, path, StoredRecord()).size_bytes
        if allowed is not None and there >= allowed:
            raise QuotaExceeded(
                f"namespace {label(space)} has {there:,} bytes of {allowed:,}: delete objects or streams, or raise"
                " bytes_max"
            )


async def give_up(client: Client, namespace_id: str, upload_id: str) -> bool:
    """Delete the ledger of an upload that has no name and will have none, then its record; return whether it did.

    May be called again by anybody after a failure. False: it has a name, or is gone. Raises MetadataUnavailable and
    what deleting raises.
    """
    path = upload_path(namespace_id, upload_id)
    marked = await _marked(client.records, path)
    if marked is None:
        return False
    upload, version = marked
    ledger_id = LedgerId(upload.ledger)
    if not upload.is_closed:
        with suppress(Error, TimeoutError):
            async with asyncio.timeout(FENCE_S):
                await (await client.open_ledger(ledger_id, recovery=True)).close()
    await client.records.retire_ledger_id(ledger_id, upload_id, {}, owner_key=OBJECT_KEY)
    with suppress(MetadataConflict):  # somebody else has deleted it
        await client.records.change(Change(path, None, version))
    return True


async def _marked(records: RecordCalls, path: str) -> tuple[UploadRecord, int] | None:
    """Mark an upload, so that it gets no name any more (INV-O3); None: it is gone, or has names."""
    for _ in range(TRIES_MAX):
        raw = await records.read(path)
        if raw is None:
            return None
        upload = get(UploadRecord, raw.value, path)
        if upload.names:
            return None
        if upload.is_given_up:
            return upload, raw.version
        with suppress(MetadataConflict):  # it was renewed, or got its name
            marked = replace(upload, is_given_up=True)
            (version,) = await records.change(Change(path, put(marked), raw.version))
            return marked, version
    raise MetadataConflict(f"upload {path} changes again and again", retryable=True)


async def old_uploads(
    client: Client, kept_s: float | None = None
) -> AsyncGenerator[tuple[str, str, UploadRecord], None]:
    """Yield the uploads of all namespaces that are given up, or were not renewed: namespace's id, own id, record."""
    records, limit_s = client.records, UPLOAD_KEPT_S if kept_s is None else kept_s
    renewed_from_us = clock_us() - int(limit_s * 1e6)
    async for namespace_ids in ids_below(records, UPLOADS):
        listed = await records.children_of([*map(uploads_path, namespace_ids)])
        for namespace_id, upload_ids in zip(namespace_ids, listed, strict=True):
            paths = [upload_path(namespace_id, upload_id) for upload_id in upload_ids]
            read_records = records.each(paths)
            for path, upload_id in zip(paths, upload_ids, strict=True):
                raw = await anext(read_records)
                if raw is None:
                    continue
                try:
                    upload = get(UploadRecord, raw.value, path)
                except StorageError as error:
                    bad_record(path, error)
                    continue
                if not upload.names and (upload.is_given_up or upload.renewed_us < renewed_from_us):
                    yield namespace_id, upload_id, upload


# --- names ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Name:
    """A namespace, its counts, and what one name in it stands for."""

    place: Place
    counts: ObjectCounts
    counts_version: int | None
    object: ObjectRecord | None
    version: int | None

    def counted(self, objects: int, size_bytes: int) -> list[Change]:
        """Return the changes of the counts. Raises QuotaExceeded."""
        if objects > 0 and self.counts.objects + objects > OBJECTS_MAX:
            raise QuotaExceeded(
                f"{label(self.place.path)} has {self.counts.objects:,} objects, of {OBJECTS_MAX:,} that a namespace may"
                " have directly in it: make namespaces below it for more"
            )
        # Counts that nobody could read began anew: they are too low then, and never below 0.
        after = ObjectCounts(
            max(0, self.counts.objects + objects), max(0, self.counts.size_bytes + size_bytes)
        )
        path = object_counts_path(self.place.here.id)
        # The first object makes the counts, and has to find the namespace there in the same change.
        above = touched(self.place) if self.counts_version is None else []
        return [*above, Change(path, put(after), self.counts_version)]


async def counts_of(records: RecordCalls, namespace_id: str) -> tuple[ObjectCounts, int | None]:
    """Return the counts of a namespace's objects, and the version of their record; None: there never was an object."""
    path = object_counts_path(namespace_id)
    raw = await records.read(path)
    return (ObjectCounts(), None) if raw is None else (_counts(raw, path), raw.version)


async def all_object_counts(records: RecordCalls) -> AsyncGenerator[tuple[str, ObjectCounts], None]:
    """Yield the counts of all namespaces that have, or had, objects, by their ids."""
    async for namespace_ids in ids_below(records, OBJECTS):
        read_records = records.each([*map(object_counts_path, namespace_ids)])
        for namespace_id in namespace_ids:
            raw = await anext(read_records)
            if raw is not None:
                yield namespace_id, _counts(raw, object_counts_path(namespace_id))


def _counts(raw: VersionedRecord, path: str) -> ObjectCounts:
    try:
        return get(ObjectCounts, raw.value, path)
    except StorageError as error:
        bad_record(path, error)
        return ObjectCounts()


async def _name_at(catalog: Catalog, path: tuple[str, ...], name: str) -> _Name:
    place = await catalog.place(path)
    where = object_path(place.here.id, name)
    counts, raw = await catalog.records.read_all([object_counts_path(place.here.id), where])
    return _Name(
        place,
        ObjectCounts() if counts is None else _counts(counts, object_counts_path(place.here.id)),
        None if counts is None else counts.version,
        _decoded(ObjectRecord, raw, where),
        None if raw is None else raw.version,
    )


async def publish(
    catalog: Catalog,
    path: tuple[str, ...],
    upload: Upload,
    record: ObjectRecord,
    *,
    if_absent: bool,
) -> None:
    """Give an upload its name, in the change that takes its record away (INV-O1, INV-O3).

    With `if_absent` one of several uploads of a name wins (INV-O6); else the object before it loses its name in the
    same change, and its ledger is named for deletion. Raises ObjectExists, DraftGone: a janitor has ended the upload,
    or (its outcome is "unknown") somebody has deleted the object again; StreamNotFound, QuotaExceeded.
    """
    tries, upload_at = Tries(catalog), upload.path
    replaced: ObjectRecord | None = None

    async def attempt() -> None:
        nonlocal replaced
        known = await _name_at(catalog, path, upload.name)
        before, namespace_id = known.object, known.place.here.id
        if before is not None and before.upload == upload.id:
            return  # by an attempt whose answer was lost
        if namespace_id != upload.namespace_id:
            raise StreamNotFound(f"there is no namespace {label(path)} any more: it was deleted")
        raw = await catalog.records.read(upload_at)
        if raw is None or get(UploadRecord, raw.value, upload_at).is_given_up:
            raise DraftGone(
                f"the upload of {upload.name} was ended by a janitor, or deleted: begin it again",
                outcome="unknown" if tries.may_have_done_it and raw is None else None,
            )
        if before is not None and if_absent:
            raise ObjectExists(f"there is an object {upload.name} in {label(path)} already")
        replaced = before
        bytes_more = record.size_bytes - (0 if before is None else before.size_bytes)
        changes = known.counted(int(before is None), bytes_more)
        changes += [
            Change(object_path(namespace_id, upload.name), put(record), known.version),
            Change(upload_at, None, raw.version),
        ]
        if before is not None:
            changes.append(await _released(catalog.records, namespace_id, upload.name, before))
        await tries.change(changes)

    await catalog.until_decided(attempt)
    if replaced is not None:
        await _delete_soon(catalog.client, upload.namespace_id, replaced.upload)


async def _released(
    records: RecordCalls, namespace_id: str, name: str, record: ObjectRecord
) -> Change:
    """Return the change that names the ledger of an object that loses its name, for deletion if it is the last one."""
    path = upload_path(namespace_id, record.upload)
    if not record.is_shared:
        upload = UploadRecord(record.ledger, name, clock_us(), is_given_up=True, is_closed=True)
        return Change(path, put(upload))
    raw = await records.read(path)
    if raw is None:
        raise StorageError(f"object {name}: record {path} of the ledger that it shares is gone")
    shared = get(UploadRecord, raw.value, path)
    left = max(0, shared.names - 1)
    return Change(path, put(replace(shared, names=left, is_given_up=left == 0)), raw.version)


async def publish_together(
    catalog: Catalog, path: tuple[str, ...], upload: Upload, objects: Mapping[str, ObjectRecord]
) -> None:
    """Give names to objects that share a ledger, all or none; the upload's record counts them from then on (INV-O2).

    Raises ObjectExists, DraftGone, StreamNotFound, QuotaExceeded, as `publish`.
    """
    tries = Tries(catalog)

    async def attempt() -> None:
        place = await catalog.place(path)
        namespace_id = place.here.id
        if namespace_id != upload.namespace_id:
            raise StreamNotFound(f"there is no namespace {label(path)} any more: it was deleted")
        names = {name: object_path(namespace_id, name) for name in objects}
        counts_at = object_counts_path(namespace_id)
        counts, raw, *taken = await catalog.records.read_all(
            [counts_at, upload.path, *names.values()]
        )
        known = {
            name: _decoded(ObjectRecord, one_raw, where)
            for (name, where), one_raw in zip(names.items(), taken, strict=True)
        }
        if any(known[name] == record for name, record in objects.items()):
            return  # by an attempt whose answer was lost
        shared = _decoded(UploadRecord, raw, upload.path)
        if raw is None or shared is None or shared.is_given_up:
            raise DraftGone(
                "the upload was ended by a janitor, or deleted: begin it again",
                outcome="unknown" if tries.may_have_done_it and raw is None else None,
            )
        exists = [name for name, record in known.items() if record is not None]
        if exists:
            raise ObjectExists(f"there is an object {exists[0]} in {label(path)} already")
        after = replace(shared, names=shared.names + len(objects), is_closed=True)
        here = _Name(
            place,
            ObjectCounts() if counts is None else _counts(counts, counts_at),
            None if counts is None else counts.version,
            None,
            None,
        )
        await tries.change(
            [
                *here.counted(len(objects), sum(record.size_bytes for record in objects.values())),
                Change(upload.path, put(after), raw.version),
                *(Change(names[name], put(record)) for name, record in objects.items()),
            ]
        )

    await catalog.until_decided(attempt)


async def _delete_soon(client: Client, namespace_id: str, upload_id: str) -> None:
    """Delete a ledger now; what cannot be done now is left to the janitor."""
    try:
        await give_up(client, namespace_id, upload_id)
    except Error as error:
        _log.info("objects.deletion_waits", upload=upload_id, reason=str(error))


async def read_object(catalog: Catalog, path: tuple[str, ...], name: str) -> ObjectRecord:
    """Return what a name stands for. Raises ObjectNotFound, StreamNotFound, StorageError."""
    record = (await _name_at(catalog, path, name)).object
    if record is None:
        raise _no_object(path, name)
    return record


async def has_object(catalog: Catalog, path: tuple[str, ...], name: str) -> bool:
    """Return whether a name stands for an object. Raises StreamNotFound, StorageError."""
    return (await _name_at(catalog, path, name)).object is not None


def _no_object(path: tuple[str, ...], name: str) -> ObjectNotFound:
    return ObjectNotFound(
        f"there is no object {name} in {label(path)}: see `fastbk object list {'/'.join(path)}`".rstrip()
    )


async def unname_object(catalog: Catalog, path: tuple[str, ...], name: str) -> None:
    """Take an object's name away, and delete its ledger now or by the janitor.

    Raises ObjectNotFound, MetadataOnHold.
    """
    await catalog.records.check_not_held()
    tries = Tries(catalog)
    former: tuple[str, str] | None = None

    async def attempt() -> tuple[str, str]:
        nonlocal former
        known = await _name_at(catalog, path, name)
        before, namespace_id = known.object, known.place.here.id
        is_gone = former is not None and (before is None or before.upload != former[1])
        if former is not None and is_gone and tries.may_have_done_it:
            return former  # by an attempt whose answer was lost, or by somebody else, which is the same
        if before is None:
            raise _no_object(path, name)
        former = namespace_id, before.upload
        await tries.change(
            [
                *known.counted(-1, -before.size_bytes),
                Change(object_path(namespace_id, name), None, known.version),
                await _released(catalog.records, namespace_id, name, before),
            ]
        )
        return former

    await _delete_soon(catalog.client, *await catalog.until_decided(attempt))


async def list_objects(
    records: RecordCalls, namespace_id: str, prefix: str = "", behind: str = ""
) -> AsyncGenerator[list[tuple[str, ObjectRecord]], None]:
    """Yield the objects whose names begin with `prefix` and sort behind `behind`, by name, some hundreds at a time.

    The names of all parts are in memory meanwhile. One whose record cannot be read is named, and passed over.
    """
    parts = await records.children(object_counts_path(namespace_id))
    listed = (
        await records.children_of([object_part_path(namespace_id, part) for part in parts])
        if parts
        else []
    )
    names = sorted(
        name
        for some_names in listed
        for part in some_names
        if (name := decode(part)).startswith(prefix) and name > behind
    )
    for offset in range(0, len(names), LISTED_AT_ONCE):
        some = names[offset : offset + LISTED_AT_ONCE]
        paths = [object_path(namespace_id, name) for name in some]
        read_records = records.each(paths)
        read: list[tuple[str, ObjectRecord]] = []
        for path, name in zip(paths, some, strict=True):
            raw = await anext(read_records)
            try:
                record = _decoded(ObjectRecord, raw, path)
            except StorageError as error:
                bad_record(path, error)
                continue
            if record is not None:
                read.append((name, record))
        yield read


async def delete_objects(catalog: Catalog, path: tuple[str, ...]) -> None:
    """Delete all objects of a namespace that is being deleted."""
    namespace_id = (await catalog.place(path)).here.id

    async def delete(name: str) -> None:
        with suppress(ObjectNotFound):
            await unname_object(catalog, path, name)

    async for some in list_objects(catalog.records, namespace_id):
        await gathered(delete, [name for name, _ in some], TOGETHER)


def names_deleted(namespace_id: str, version: int | None) -> Sequence[Change]:
    """Return the change that takes the counts of a namespace away, which has no object and gets none."""
    return () if version is None else (Change(object_counts_path(namespace_id), None, version),)
