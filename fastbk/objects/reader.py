"""Reading an object: only the chunks of a range, each checked against the manifest (INV-O4)."""

from __future__ import annotations

import asyncio
import hashlib
from array import array
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from fastbk.client.async_tools import raised_again
from fastbk.errors import (
    ClientClosed,
    ConfigError,
    DigestMismatch,
    NoSuchEntry,
    NoSuchLedger,
    ObjectDamaged,
    ObjectNotFound,
    StorageError,
)
from fastbk.native.hashes import crc32c
from fastbk.objects.manifest import Manifest, get_manifest, table_of
from fastbk.stream.object_records import ObjectRecord, read_object

if TYPE_CHECKING:
    from fastbk.client.ledger_reader import LedgerReader
    from fastbk.stream.namespace.namespace import Namespace


class ObjectReader:
    """Reads one object; made by `Objects.open`, opened by `async with`. Any number of tasks may read at once.

    It stays with the object that it has opened: when that is deleted or replaced, reads raise ObjectNotFound soon.

    Attributes:
        name: the object's.
    """

    def __init__(self, namespace: Namespace, name: str) -> None:
        self.name = name
        self._namespace = namespace
        self._record: ObjectRecord | None = None
        self._manifest: Manifest | None = None
        self._ledger: LedgerReader | None = None
        self._crcs = array("I")

    def __repr__(self) -> str:
        return f"<ObjectReader of {self.name}{'' if self._ledger is not None else ', not open'}>"

    @property
    def record(self) -> ObjectRecord:
        """What the name stood for when it was opened."""
        if self._record is None:
            raise ClientClosed(f"the reader of object {self.name} is not open: use `async with`")
        return self._record

    async def open(self) -> None:
        """Find the object and read its manifest; `async with` does it.

        Raises ObjectNotFound, StreamNotFound, ObjectDamaged: its manifest is not what was written.
        """
        catalog, path = self._namespace._catalog, self._namespace._path
        self._record = await read_object(catalog, path, self.name)
        try:
            await self._open()
        except NoSuchLedger:
            gone = self._record
            self._record = await read_object(catalog, path, self.name)
            if gone == self._record:
                raise ObjectDamaged(
                    f"object {self.name}: its ledger {gone.ledger} is gone", ledger_id=gone.ledger
                ) from None
            await self._open()  # it was replaced meanwhile

    async def _open(self) -> None:
        record = self.record
        client = self._namespace._catalog.client
        ledger = self._ledger = await client.open_ledger(record.ledger, recovery=False)
        try:
            self._manifest, rest = get_manifest(await self._entry(record.manifest))
            manifest = self._manifest
            if (manifest.sha256, manifest.size_bytes) != (record.sha256, record.size_bytes):
                raise StorageError("it is another object's")
            pages = [
                await self._entry(record.manifest - manifest.page_count + page)
                for page in range(manifest.page_count)
            ]
            self._crcs = table_of(pages, rest)
        except (StorageError, NoSuchEntry, DigestMismatch) as error:
            await ledger.close()
            raise ObjectDamaged(
                f"object {self.name}: its manifest, entry {record.manifest} of ledger {record.ledger}: {error}",
                ledger_id=record.ledger,
                entry_id=record.manifest,
            ) from error

    async def _entry(self, entry_id: int) -> memoryview:
        assert self._ledger is not None
        async with aclosing(self._ledger.read(entry_id, entry_id)) as entries:
            async for entry in entries:
                return memoryview(entry.data)
        raise NoSuchEntry(f"entry {entry_id} is missing")

    @raised_again
    async def chunks(
        self, start: int = 0, end: int | None = None
    ) -> AsyncGenerator[memoryview, None]:
        """Yield the bytes start..end (not included) in pieces; only their chunks are read, and each is checked.

        Raises ObjectDamaged with chunk, ledger and entry (INV-O4), ObjectNotFound: it was deleted meanwhile.
        """
        record, manifest, ledger = self.record, self._manifest, self._ledger
        assert manifest is not None and ledger is not None
        stop = record.size_bytes if end is None else min(end, record.size_bytes)
        if start < 0 or (end is not None and end < start):
            raise ConfigError(f"bytes {start}..{end}: must be 0 or above and ascend")
        if start >= stop:
            return
        size = manifest.chunk_bytes
        chunk, last = start // size, (stop - 1) // size
        base = record.manifest - manifest.page_count - manifest.chunk_count
        try:
            async with aclosing(ledger.read(base + chunk, base + last)) as entries:
                async for entry in entries:
                    data = memoryview(entry.data)
                    if len(data) != manifest.size_of(chunk) or crc32c(data) != self._crcs[chunk]:
                        raise self._damaged(chunk, "it is not what was written")
                    offset = chunk * size
                    yield data[max(0, start - offset) : min(size, stop - offset)]
                    chunk += 1
        except (NoSuchEntry, DigestMismatch) as error:
            raise self._damaged(chunk, str(error)) from error
        except NoSuchLedger as error:
            raise ObjectNotFound(f"object {self.name} was deleted or replaced meanwhile") from error

    def _damaged(self, chunk: int, why: str) -> ObjectDamaged:
        record, manifest = self.record, self._manifest
        assert manifest is not None
        entry_id = record.manifest - manifest.page_count - manifest.chunk_count + chunk
        first = chunk * manifest.chunk_bytes
        return ObjectDamaged(
            f"object {self.name}: chunk {chunk} (bytes {first}..{first + manifest.size_of(chunk)}), entry {entry_id} of"
            f" ledger {record.ledger}: {why}",
            ledger_id=record.ledger,
            entry_id=entry_id,
        )

    async def read(self, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes start..end (not included), less at the object's end; raises as `chunks`."""
        return b"".join([piece async for piece in self.chunks(start, end)])

    async def damages(self) -> list[ObjectDamaged]:
        """Read all of it; return what is damaged, by chunk. Raises what keeps this from being known."""
        manifest, damages = self._manifest, list[ObjectDamaged]()
        assert manifest is not None
        sha256, offset = hashlib.sha256(), 0
        while offset < manifest.size_bytes:
            try:
                async for piece in self.chunks(offset):
                    await asyncio.to_thread(sha256.update, piece)
                    offset += len(piece)
            except ObjectDamaged as damage:
                damages.append(damage)
                offset = (offset // manifest.chunk_bytes + 1) * manifest.chunk_bytes
        if not damages and sha256.hexdigest() != manifest.sha256:
            damages.append(
                ObjectDamaged(
                    f"object {self.name}: all chunks are as their checksums say, and it has another SHA-256",
                    ledger_id=self.record.ledger,
                )
            )
        return damages

    async def close(self) -> None:
        """End."""
        if self._ledger is not None:
            await self._ledger.close()

    async def __aenter__(self) -> ObjectReader:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
