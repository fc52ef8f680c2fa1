"""Objects as a file system of fsspec: `fastbk://NAMESPACE/NAME`, for Arrow, pandas, Polars, DuckDB and Dask.

    with fsspec.open("fastbk://backups/checkpoints/17", "wb") as file:
        file.write(data)

The first part is the namespace, a nested one as `tenant%2Fapp`; all behind it is the object's name. The cluster is that
of the option `metadata`, or of the variable FASTBK_METADATA. It needs the extra `fsspec`.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any
from urllib.parse import quote, unquote

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

import fastbk.sync
from fastbk.errors import Error, ObjectNotFound, StreamNotFound
from fastbk.objects.manifest import CHUNK_BYTES
from fastbk.objects.objects import ObjectInfo
from fastbk.objects.sync_objects import SyncObjectReader, SyncObjects, SyncObjectWriter


@contextmanager
def _missing_files() -> Iterator[None]:
    """Raise what is said of a namespace that is not there as callers of files expect it."""
    try:
        yield
    except StreamNotFound as error:
        raise ObjectNotFound(str(error)) from error


class FastbkFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The objects of a cluster, read and written as files. Files are written once: no append, no rename."""

    protocol = "fastbk"
    root_marker = ""
    cachable = True

    def __init__(
        self,
        metadata: str | None = None,
        *,
        replace: bool = False,
        **options: Any,  # noqa: ANN401 -- fsspec's own
    ) -> None:
        """`replace`: a file that is written takes the name of one that is there; else FileExistsError."""
        super().__init__(metadata=metadata, replace=replace, **options)
        self._metadata = metadata
        self._replace = replace
        self._client: fastbk.sync.Client | None = None
        self._connecting = threading.Lock()

    def _at(self, path: str) -> tuple[SyncObjects, str]:
        """Return the objects of a path's namespace, and the name behind it."""
        namespace, _, name = str(self._strip_protocol(path)).partition("/")
        with self._connecting:
            if self._client is None:
                self._client = fastbk.sync.connect(self._metadata)
        return SyncObjects(self._client.namespace(unquote(namespace))), name

    @staticmethod
    def _path(objects: SyncObjects, name: str) -> str:
        return f"{quote(objects.namespace.path, safe='')}/{name}"

    def _facts(self, objects: SyncObjects, info: ObjectInfo) -> dict[str, Any]:
        return {
            "name": self._path(objects, info.name),
            "size": info.size_bytes,
            "type": "file",
            "sha256": info.sha256,
            "created": info.created,
            "metadata": info.metadata,
        }

    def _folder(self, path: str) -> dict[str, Any]:
        return {"name": path, "size": 0, "type": "directory"}

    def ls(self, path: str, detail: bool = True, **_: object) -> list[Any]:
        """Return what is directly below a path, as if slashes in names made folders; the namespaces for ""."""
        objects, name = self._at(path)
        listed: dict[str, dict[str, Any]] = {}
        with _missing_files():
            if not self._strip_protocol(path):
                assert self._client is not None
                for namespace in self._client.namespace().namespaces():
                    folder = quote(namespace.path, safe="")
                    listed[folder] = self._folder(folder)
            else:
                for info in objects.list(name):
                    rest = info.name[len(name) :].removeprefix("/") if name else info.name
                    if name and info.name != name and not info.name.startswith(f"{name}/"):
                        continue
                    if "/" in rest:
                        child = info.name[: len(info.name) - len(rest)] + rest.partition("/")[0]
                        folder = self._path(objects, child)
                        listed.setdefault(folder, self._folder(folder))
                    else:
                        facts = self._facts(objects, info)
                        listed[facts["name"]] = facts
        if not listed and name:
            raise ObjectNotFound(f"there is no object {name}, and none below it")
        return list(listed.values()) if detail else list(listed)

    def info(self, path: str, **_: object) -> dict[str, Any]:
        """Return what is known of an object, or of a folder that names of objects make."""
        objects, name = self._at(path)
        with _missing_files():
            if not name:
                if self._strip_protocol(path) and not objects.namespace.exists():
                    raise ObjectNotFound(f"there is no namespace {objects.namespace.path}")
                return self._folder(str(self._strip_protocol(path)))
            try:
                return self._facts(objects, objects.info(name))
            except ObjectNotFound:
                if next(objects.list(f"{name}/"), None) is None:
                    raise
            return self._folder(self._path(objects, name))

    def checksum(self, path: str) -> str:
        """Return the SHA-256 of an object."""
        return str(self.info(path)["sha256"])

    def created(self, path: str) -> object:
        """Return when an object was stored."""
        return self.info(path)["created"]

    modified = created

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **options: Any,  # noqa: ANN401 -- fsspec's own
    ) -> io.IOBase:
        del autocommit
        objects, name = self._at(path)
        if mode == "rb":
            with _missing_files():
                reader = objects.open(name)
                reader.open()
            return ReadFile(
                self, path, reader, block_size or 4 * CHUNK_BYTES, cache_options or {}, **options
            )
        if mode not in ("wb", "xb"):
            raise ValueError(f"mode {mode}: objects are read (rb) or written once (wb, xb)")
        with _missing_files():
            writer = objects.writer(name, if_absent=mode == "xb" or not self._replace)
            writer.open()
        return WriteFile(writer)

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: object
    ) -> bytes:
        """Return the bytes of an object, or some of them."""
        objects, name = self._at(path)
        with _missing_files(), objects.open(name) as reader:
            wanted = range(reader.size_bytes)[start:end]
            return reader.read(wanted.start, max(wanted.start, wanted.stop))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: object) -> None:
        """Store an object. FileExistsError where the name is taken, unless the file system was made to replace."""
        objects, name = self._at(path)
        with _missing_files():
            objects.put(name, value, if_absent=mode == "create" or not self._replace)

    def rm_file(self, path: str) -> None:
        """Delete an object."""
        objects, name = self._at(path)
        with _missing_files():
            objects.delete(name)

    _rm = rm_file

    def rm(
        self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None
    ) -> None:
        """Delete objects; with `recursive` also all whose names begin with a path and a slash."""
        for folder_path in self.expand_path(path):
            if recursive and self.isdir(folder_path):
                for below in self.find(folder_path, maxdepth=maxdepth):
                    self.rm_file(below)
            else:
                self.rm_file(folder_path)

    def cp_file(self, path1: str, path2: str, **_: object) -> None:
        """Copy an object by reading and writing it."""
        objects, name = self._at(path1)
        with _missing_files(), objects.open(name) as reader:
            target, new_name = self._at(path2)
            with target.writer(new_name, if_absent=not self._replace) as writer:
                for piece in reader.chunks():
                    writer.write(piece)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Create the namespace of a path; folders behind it are only parts of names."""
        objects, name = self._at(path)
        if objects.namespace.path:
            objects.namespace.create(exist_ok=exist_ok or bool(name))

    def mkdir(self, path: str, create_parents: bool = True, **_: object) -> None:
        """Create the namespace of a path."""
        del create_parents
        self.makedirs(path, exist_ok=True)


class ReadFile(AbstractBufferedFile):  # type: ignore[misc]
    """An object that is open for reading; fsspec's caches read ranges of it ahead."""

    def __init__(
        self,
        fs: FastbkFileSystem,
        path: str,
        reader: SyncObjectReader,
        block_size: int,
        cache_options: dict[str, Any],
        **options: Any,  # noqa: ANN401 -- fsspec's own
    ) -> None:
        self._reader = reader
        super().__init__(
            fs,
            path,
            "rb",
            block_size,
            cache_options=cache_options,
            size=reader.size_bytes,
            **options,
        )

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self._reader.read(start, end)

    def close(self) -> None:
        """Let go of the object."""
        if not self.closed:
            self._reader.close()
        super().close()

    def __del__(self) -> None:
        """Do nothing: garbage is collected in any thread, and a reader holds nothing but memory."""


class WriteFile(io.RawIOBase):
    """An object that is written: `close` stores it, unless an exception is on its way.

    `fsspec.open` closes a file at the end of its block, and says nothing of an exception that ends it. So `close` looks
    itself: while an exception is handled that was not when the file was opened, nothing is stored, and that exception
    is raised again. A file that nobody closes stores nothing.
    """

    def __init__(self, writer: SyncObjectWriter) -> None:
        super().__init__()
        self._writer = writer
        self._waiting = bytearray()
        self._former = sys.exc_info()[1]
        self._size_bytes = 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self._size_bytes

    def write(self, data: Any) -> int:  # noqa: ANN401 -- any buffer
        """Take bytes; small ones go on their way together."""
        if self.closed:
            raise ValueError("the file is closed")
        view = memoryview(data).cast("B")
        self._size_bytes += len(view)
        self._waiting += view
        if len(self._waiting) >= CHUNK_BYTES:
            some, self._waiting = self._waiting, bytearray()
            self._writer.write(some)
        return len(view)

    def close(self) -> None:
        """Store the object, or nothing where an exception is handled that is newer than the file."""
        if self.closed:
            return
        handled = sys.exc_info()[1]
        if handled is not None and handled is not self._former:
            self.discard()
            handled.add_note(
                f"{self._writer!r}: nothing was stored, since this came before its end"
            )
            raise handled
        try:
            if self._waiting:
                self._writer.write(self._waiting)
            self._writer.close()
        finally:
            super().close()

    def discard(self) -> None:
        """Store nothing."""
        try:
            with suppress(Error):
                self._writer.abort()
        finally:
            super().close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        """Store nothing. Garbage is collected in any thread, the client's too: nothing is waited for."""
        if not self.closed:
            self._writer.abandon()
            super().close()
