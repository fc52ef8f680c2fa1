"""Writing an object: chunks in a pipeline, the manifest behind them, and the name last (INV-O1)."""

from __future__ import annotations

import asyncio
import hashlib
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias

from msgspec.structs import replace

from fastbk.errors import (
    BufferFull,
    ClientClosed,
    DraftGone,
    Error,
    LedgerFenced,
    NoSuchLedger,
    ObjectExists,
)
from fastbk.model.ledger import NAME_KEY, OBJECT_KEY
from fastbk.native.hashes import crc32c
from fastbk.objects.manifest import CHUNK_BYTES, Manifest, put_manifest, put_pages
from fastbk.stream.context import clock_us
from fastbk.stream.namespace.namespace import Namespace
from fastbk.stream.object_records import (
    ObjectRecord,
    Upload,
    begin_upload,
    give_up,
    has_object,
    publish,
    publish_together,
    renew,
)

if TYPE_CHECKING:
    from fastbk.client.ledger_writer import LedgerWriter

Data: TypeAlias = bytes | bytearray | memoryview
SHARED = "(several objects)"
NAMES_AT_ONCE = 100
"""Objects that get their names in one change."""


class ObjectWriter:
    """Writes one object; made by `Objects.writer`, opened by `async with`. One task at a time writes.

    The block's end publishes the object: until then nobody sees anything of it. A block that ends by an exception
    publishes nothing, and what was written is deleted (by a janitor, where that fails).

    Attributes:
        record: what its name stands for, once it has one.
    """

    def __init__(
        self, namespace: Namespace, name: str, metadata: dict[str, str], *, if_absent: bool
    ) -> None:
        self.name = name
        self.record: ObjectRecord | None = None
        self._namespace = namespace
        self._catalog = namespace._catalog
        self._path = namespace._path
        self._metadata = metadata
        self._if_absent = if_absent
        self._upload: Upload | None = None
        self._ledger: LedgerWriter | None = None
        self._is_over = False
        self._rest = bytearray()
        self._size_bytes = 0
        self._crcs = array("I")
        self._sha256 = hashlib.sha256()
        self._hashing: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<ObjectWriter of {self.name}, {self._size_bytes} bytes>"

    @property
    def size_bytes(self) -> int:
        """Bytes that were written so far."""
        return self._size_bytes

    async def open(self) -> None:
        """Begin the upload; `async with` does it.

        Raises ObjectExists where the name is taken already and that is refused, StreamNotFound, QuotaExceeded,
        ConfigError, and what creating a ledger raises.
        """
        if self._if_absent and await has_object(self._catalog, self._path, self.name):
            raise ObjectExists(f"there is an object {self.name} in {self._namespace.path} already")
        # The ledger is named before it exists (INV-O2).
        upload = self._upload = await begin_upload(self._catalog, self._path, self.name)
        custom = {OBJECT_KEY: upload.id.encode(), NAME_KEY: self.name.encode()}
        try:
            self._ledger = await self._namespace.create_ledger(
                metadata=custom, ledger_id=upload.ledger_id
            )
        except BaseException:
            await self.abort()
            raise

    async def write(self, data: Data) -> None:
        """Take the next bytes. Waits while too much is on its way. Raises what ended the upload."""
        self._opened()
        view = memoryview(data).cast("B")
        self._size_bytes += len(view)
        if self._rest:
            missing = CHUNK_BYTES - len(self._rest)
            self._rest += view[:missing]
            view = view[missing:]
            if len(self._rest) < CHUNK_BYTES:
                return
            chunk, self._rest = bytes(self._rest), bytearray()
            await self._send(chunk)
        whole = len(view) - len(view) % CHUNK_BYTES
        for first in range(0, whole, CHUNK_BYTES):
            await self._send(bytes(view[first : first + CHUNK_BYTES]))
        self._rest += view[whole:]

    def _opened(self) -> tuple[Upload, LedgerWriter]:
        if self._is_over or self._upload is None or self._ledger is None:
            raise ClientClosed(
                f"the writer of object {self.name} is not open: use `async with`, and make another for each object"
            )
        return self._upload, self._ledger

    async def _send(self, chunk: bytes) -> None:
        upload, _ = self._opened()
        self._crcs.append(crc32c(chunk))
        await self._append(chunk)
        if self._hashing is not None:
            await self._hashing
        self._hashing = asyncio.ensure_future(asyncio.to_thread(self._sha256.update, chunk))
        await renew(self._catalog.client, upload)

    async def _append(self, entry: bytes) -> None:
        _, ledger = self._opened()
        with self._ended_by_janitor():
            while True:
                try:
                    ledger.append_nowait(entry).add_done_callback(_retrieve)
                except BufferFull:
                    await ledger.ready()
                else:
                    return

    @contextmanager
    def _ended_by_janitor(self) -> Iterator[None]:
        """Say what it means that the ledger is fenced or gone: nobody else does that to an upload."""
        try:
            yield
        except (LedgerFenced, NoSuchLedger) as error:
            raise DraftGone(
                f"the upload of {self.name} was ended by a janitor, since it was not renewed: begin it again"
            ) from error

    async def close(self) -> ObjectRecord:
        """Publish the object; `async with` does it. Again: returns the same.

        Raises ObjectExists where somebody else was faster and that is refused, and what ended the upload: then nothing
        is published, unless the error's `outcome` is "unknown".
        """
        if self.record is not None:
            return self.record
        try:
            self.record = await self._publish()
        except BaseException:
            await self.abort()
            raise
        self._is_over = True
        return self.record

    async def _publish(self) -> ObjectRecord:
        upload, _ = self._opened()
        record = await self._end_object(0)
        await self._end_ledger()
        await publish(self._catalog, self._path, upload, record, if_absent=self._if_absent)
        return record

    async def _end_object(self, first: int) -> ObjectRecord:
        """Write the manifest behind the chunks of an object, whose first one is this entry."""
        upload, ledger = self._opened()
        if self._rest:
            await self._send(bytes(self._rest))
        if self._hashing is not None:
            await self._hashing
        sha256, now_us = self._sha256.hexdigest(), clock_us()
        manifest = Manifest(
            self._namespace.path,
            self.name,
            self._size_bytes,
            CHUNK_BYTES,
            sha256,
            now_us,
            self._metadata,
        )
        for page in put_pages(self._crcs):
            await self._append(page)
        last = first + manifest.chunk_count + manifest.page_count
        await self._append(put_manifest(manifest, self._crcs))
        return ObjectRecord(
            ledger.ledger_id, upload.id, last, self._size_bytes, sha256, now_us, self._metadata
        )

    async def _end_ledger(self) -> None:
        _, ledger = self._opened()
        with self._ended_by_janitor():
            await ledger.flush()
            await ledger.close()

    async def abort(self) -> None:
        """Publish nothing, and delete what was written. What cannot be deleted now is left to a janitor."""
        if self._is_over:
            return
        self._is_over = True
        if self._ledger is not None:
            self._ledger.abandon(ClientClosed(f"the upload of {self.name} was given up"))
        if self._upload is not None:
            with suppress(Error):
                await give_up(self._catalog.client, self._upload.namespace_id, self._upload.id)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
        else:
            await self.abort()


class SharedWriter(ObjectWriter):
    """Writes objects that share a ledger; `Objects.put_many` makes it. The block's end gives all their names."""

    def __init__(self, namespace: Namespace) -> None:
        super().__init__(namespace, SHARED, {}, if_absent=False)
        self.objects: dict[str, ObjectRecord] = {}
        self._entries = 0

    async def add(self, name: str, data: Data) -> None:
        """Write another object, from a buffer."""
        self.name, self._size_bytes, self._sha256 = name, 0, hashlib.sha256()
        self._rest, self._crcs, self._hashing = bytearray(), array("I"), None
        await self.write(data)
        record = await self._end_object(self._entries)
        self._entries = record.manifest + 1
        self.objects[name] = replace(record, is_shared=True)

    async def _publish(self) -> ObjectRecord:
        upload, _ = self._opened()
        await self._end_ledger()
        items = list(self.objects.items())
        for first in range(0, len(items), NAMES_AT_ONCE):
            some = dict(items[first : first + NAMES_AT_ONCE])
            await publish_together(self._catalog, self._path, upload, some)
        return items[-1][1]


def _retrieve(future: asyncio.Future[int]) -> None:
    """The ledger's `flush` raises what has failed."""
    if not future.cancelled():
        future.exception()


Report: TypeAlias = Callable[[int], None]
"""Gets how many bytes more were written or read."""
