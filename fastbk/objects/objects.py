"""The objects of a namespace.

objects = fastbk.objects.Objects(client.namespace("backups"))
await objects.put("checkpoints/17", data)
async with objects.open("checkpoints/17") as reader:
    head = await reader.read(0, 4096)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import IO, TypeAlias

from fastbk.client.async_tools import Generated
from fastbk.errors import WrongType
from fastbk.objects.reader import ObjectReader
from fastbk.objects.writer import Data, ObjectWriter, Report, SharedWriter
from fastbk.option_checks import owned_bytes
from fastbk.stream.namespace.namespace import Namespace
from fastbk.stream.object_records import (
    ObjectRecord,
    checked_metadata,
    counts_of,
    list_objects,
    read_object,
    unname_object,
)
from fastbk.stream.paths import check_object_name
from fastbk.stream.positions import to_time

READ_BYTES = 4 << 20
Source: TypeAlias = Data | IO[bytes] | Iterable[Data] | AsyncIterable[Data]
"""An object's bytes: a buffer, a file that is open for reading, or pieces."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object."""

    name: str
    size_bytes: int
    sha256: str
    """Of all its bytes, as hexadecimal digits."""
    created: datetime
    ledger_id: int
    metadata: dict[str, str] = field(default_factory=dict)


def info_of(name: str, record: ObjectRecord) -> ObjectInfo:
    """Return what a record says."""
    return ObjectInfo(
        name,
        record.size_bytes,
        record.sha256,
        to_time(record.created_us),
        record.ledger,
        record.metadata,
    )


class Objects:
    """The objects of one namespace. Making it does no I/O.

    An object is written once and never changed. Its name stands for nothing until all of it is stored, and then for all
    of it. Calls raise StreamNotFound where there is no such namespace, MetadataUnavailable, ConfigError for a name that
    cannot be one.
    """

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace

    def __repr__(self) -> str:
        return f"<Objects of {self.namespace.path or 'the root namespace'}>"

    def writer(
        self, name: str, *, metadata: Mapping[str, str] | None = None, if_absent: bool = True
    ) -> ObjectWriter:
        """Return a writer; `async with` begins the upload, and publishes it where the block ends without exception.

        `if_absent`: refuse a name that is taken, exactly: of several writers one wins. Else the new object takes the
        name of the one before it, in one step, and that one is deleted. `metadata`: at most 8 KiB of text.
        """
        kept = checked_metadata(dict(metadata or {}))
        return ObjectWriter(self.namespace, check_object_name(name), kept, if_absent=if_absent)

    async def put(
        self,
        name: str,
        source: Source,
        *,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = True,
        on_bytes: Report | None = None,
    ) -> ObjectInfo:
        """Store an object; all of it, or nothing. `on_bytes` gets how many bytes more were taken. See `writer`."""
        async with self.writer(name, metadata=metadata, if_absent=if_absent) as writer:
            async for piece in _pieces(source):
                await writer.write(piece)
                if on_bytes is not None:
                    on_bytes(memoryview(piece).nbytes)
        return info_of(name, await writer.close())

    async def put_many(self, objects: Mapping[str, Data]) -> None:
        """Store many small objects in one ledger, which costs much less than a ledger for each.

        They get their names a hundred at a time; of each hundred all or none. Raises ObjectExists where one of the
        names is taken; those of earlier hundreds are stored then. The ledger is deleted with the last of its objects.
        """
        if not objects:
            return
        owned = {check_object_name(name): owned_bytes(data) for name, data in objects.items()}
        async with SharedWriter(self.namespace) as writer:
            for name, data in owned.items():
                await writer.add(name, data)

    def open(self, name: str) -> ObjectReader:
        """Return a reader; `async with` opens it."""
        return ObjectReader(self.namespace, check_object_name(name))

    async def get(self, name: str) -> bytes:
        """Return all bytes of an object. Raises ObjectNotFound, ObjectDamaged."""
        async with self.open(name) as reader:
            return await reader.read()

    async def info(self, name: str) -> ObjectInfo:
        """Return what is known of an object; no bookie is asked. Raises ObjectNotFound."""
        catalog, path = self.namespace._catalog, self.namespace._path
        return info_of(name, await read_object(catalog, path, check_object_name(name)))

    def list(self, prefix: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Yield the objects whose names begin with `prefix`, by name. Those that come or go meanwhile may be in it."""
        return Generated(self._list(prefix))

    async def _list(self, prefix: str) -> AsyncGenerator[ObjectInfo, None]:
        catalog, path = self.namespace._catalog, self.namespace._path
        namespace_id = (await catalog.place(path)).here.id
        async for some in list_objects(catalog.records, namespace_id, prefix):
            for name, record in some:
                yield info_of(name, record)

    async def usage(self) -> tuple[int, int]:
        """Return how many objects there are directly in the namespace, and their bytes."""
        catalog, path = self.namespace._catalog, self.namespace._path
        counts, _ = await counts_of(catalog.records, (await catalog.place(path)).here.id)
        return counts.objects, counts.size_bytes

    async def verify(self, name: str) -> tuple[str, ...]:
        """Read all of an object and compare all checksums; return a sentence for each damage.

        Raises ObjectNotFound, ObjectDamaged: even the manifest cannot be read.
        """
        async with self.open(name) as reader:
            return tuple(str(damage) for damage in await reader.damages())

    async def delete(self, name: str) -> None:
        """Delete an object: its name at once, its data now or, where that fails, by a janitor.

        Raises ObjectNotFound, MetadataOnHold.
        """
        catalog, path = self.namespace._catalog, self.namespace._path
        await unname_object(catalog, path, check_object_name(name))


async def _pieces(source: Source) -> AsyncGenerator[Data, None]:
    if isinstance(source, bytes | bytearray | memoryview):
        yield source
    elif isinstance(source, AsyncIterable):
        async for piece in source:
            yield piece
    elif hasattr(source, "read"):
        # A file's read may wait for a disk or a pipe.
        while piece := await asyncio.to_thread(source.read, READ_BYTES):
            yield piece
    elif isinstance(source, Iterable):
        for piece in source:
            yield owned_bytes(piece)  # not the letters of a text
    else:
        raise WrongType(f"{type(source).__name__}: an object is made of bytes, a file or pieces")
