"""What a gateway knows of the tree of namespaces: the paths of ids, remembered for seconds. Threads may share it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from fastbk.errors import StorageError, StreamNotFound
from fastbk.stream.chain.chain import PageRef, Segment, get_page
from fastbk.stream.chain.store import page_path
from fastbk.stream.namespace.tree_records import ROOT_ID, NamespaceRecord, StreamRecord, get
from fastbk.stream.paths import namespace_path, stream_path

if TYPE_CHECKING:
    from fastbk.meta.records import RecordStore

KEPT_S = 5.0
"""A namespace that is renamed has its old name for so long."""
KEPT_MAX = 20_000
LEVELS_MAX = 1000
V = TypeVar("V")
_GLOBS = "*?["


class NamespaceTree:
    """The namespaces of one cluster. Blocking; errors are those of the store."""

    def __init__(self, records: RecordStore, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._records = records
        self._clock_s = clock_s
        self._namespaces: dict[str, tuple[float, NamespaceRecord]] = {}
        self._streams: dict[str, str] = {}

    def levels(self, namespace_id: str) -> tuple[tuple[str, NamespaceRecord], ...]:
        """Return a namespace and all above it, from the root down, by id. Raises StreamNotFound."""
        found: list[tuple[str, NamespaceRecord]] = []
        at = namespace_id
        while len(found) < LEVELS_MAX:
            record = self._namespace(at)
            found.append((at, record))
            if at == ROOT_ID:
                return tuple(reversed(found))
            at = record.parent
        raise StorageError(f"namespace {namespace_id} lies in itself: its record is damaged")

    def path(self, namespace_id: str) -> str:
        """Return a namespace's path, "" for the root. Raises StreamNotFound."""
        return "/".join(record.name for _, record in self.levels(namespace_id)[1:])

    def namespace_of(self, stream_id: str) -> str:
        """Return the id of a stream's namespace, which never changes. Raises StreamNotFound."""
        known = self._streams.get(stream_id)
        if known is None:
            where = stream_path(stream_id)
            (raw,) = self._records.read([where])
            if raw is None:
                raise StreamNotFound(f"there is no stream {stream_id}")
            known = get(StreamRecord, raw.value, where).namespace
            _keep(self._streams, stream_id, known)
        return known

    def page(self, stream_id: str, page: PageRef) -> tuple[Segment, ...]:
        """Return the rows of a page of a chain. Raises StorageError."""
        (raw,) = self._records.read([page_path(stream_id, page)])
        if raw is None:
            raise StorageError(f"stream {stream_id}: page {page.page} of its chain is not there")
        return get_page(raw.value)

    def _namespace(self, namespace_id: str) -> NamespaceRecord:
        known = self._namespaces.get(namespace_id)
        now_s = self._clock_s()
        if known is not None and now_s - known[0] < KEPT_S:
            return known[1]
        where = namespace_path(namespace_id)
        (raw,) = self._records.read([where])
        if raw is None and namespace_id != ROOT_ID:
            raise StreamNotFound(f"there is no namespace {namespace_id}")
        record = NamespaceRecord() if raw is None else get(NamespaceRecord, raw.value, where)
        _keep(self._namespaces, namespace_id, (now_s, record))
        return record


def is_above(patterns: Sequence[str], path: str) -> bool:
    """Return whether a namespace that one of these patterns matches may lie below this path.

    A pattern is exact up to its first wildcard; what it may match behind that is not worked out.
    """
    for pattern in patterns:
        exact = next((pattern[:at] for at, one in enumerate(pattern) if one in _GLOBS), pattern)
        if (
            not path
            or exact.startswith(f"{path}/")
            or (exact != pattern and f"{path}/".startswith(exact))
        ):
            return True
    return False


def _keep(kept: dict[str, V], key: str, value: V) -> None:
    if len(kept) >= KEPT_MAX:
        kept.clear()
    kept[key] = value
