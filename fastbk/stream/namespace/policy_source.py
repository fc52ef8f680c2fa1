"""What policy is in force for one stream: read when a segment is made, from memory while metadata is away."""

from __future__ import annotations

from fastbk.client.record_calls import RecordCalls
from fastbk.errors import (
    Error,
    MetadataUnavailable,
    PolicyInvalid,
    QuotaExceeded,
    StorageError,
    StreamNotFound,
)
from fastbk.observe.library_log import LibraryLog
from fastbk.stream.namespace.tree_records import (
    NamespaceRecord,
    StoredRecord,
    StreamRecord,
    get,
    get_or,
)
from fastbk.stream.paths import namespace_path, stored_path, stream_path
from fastbk.stream.policy import StreamPolicy, effective

_log = LibraryLog("fastbk.stream")


class PolicySource:
    """One stream's; awaiting a call is one request to metadata.

    The patches of all namespaces above it are read together with the stream's own, each time: a segment costs several
    requests anyway, and a watch on thousands of streams would cost more than it saves. A namespace never moves to
    another one, so the way up is known for good.
    """

    def __init__(
        self, records: RecordCalls, stream_id: str, name: str, namespace_ids: tuple[str, ...]
    ) -> None:
        """`namespace_ids`: of the namespaces that it is in, the root first."""
        self._records = records
        self._name = name
        self._paths = [*map(namespace_path, namespace_ids), stream_path(stream_id)]
        self._ids = namespace_ids
        self._bounds: list[tuple[str, int, str]] = []
        self._refusal: QuotaExceeded | None = None
        self._last: StreamPolicy | None = None
        self._versions: list[int | None] = []
        self._kept_for: type[Error] | None = None

    async def __call__(self) -> StreamPolicy:
        """Return what holds for the next segment.

        While metadata is away, or policies of several namespaces cannot be read or do not go together, what held last.
        Raises MetadataUnavailable, StorageError and PolicyInvalid if nothing did yet, StreamNotFound when the stream
        was deleted.
        """
        try:
            policy = await self._read()
        except (MetadataUnavailable, PolicyInvalid, StorageError) as error:
            if self._last is None:
                raise
            if (
                type(error) is not self._kept_for
            ):  # once: each try comes here, of thousands of streams
                self._kept_for = type(error)
                _log.warning("stream.policy_kept", stream=self._name, reason=str(error))
            return self._last
        self._kept_for = None
        return policy

    def check_room(self) -> None:
        """Raise QuotaExceeded if at the last call a namespace had as many bytes as it may: no new segment then."""
        if self._refusal is not None:
            raise self._refusal.copy()

    async def _check_quota(self) -> None:
        """Compare what the janitor has counted with the quotas: a request only where a namespace above has one."""
        refusal: QuotaExceeded | None = None
        paths = [stored_path(one_id) for one_id, _, _ in self._bounds]
        found = await self._records.read_all(paths) if paths else []
        for (_, allowed, space), where, raw in zip(self._bounds, paths, found, strict=True):
            there = (
                0
                if raw is None
                else get_or(StoredRecord, raw.value, where, StoredRecord()).size_bytes
            )
            if there >= allowed:
                refusal = QuotaExceeded(
                    f"{self._name}: namespace {space or '(the root)'} has {there:,} bytes of {allowed:,}: truncate or"
                    " delete streams, or raise bytes_max"
                )
        self._refusal = refusal

    async def _read(self) -> StreamPolicy:
        found = await self._records.read_all(self._paths)
        versions = [None if one is None else one.version for one in found]
        if self._last is not None and versions == self._versions:
            await self._check_quota()
            return self._last
        own = None if found[-1] is None else get(StreamRecord, found[-1].value, self._paths[-1])
        if own is None or own.deleting:
            raise StreamNotFound(f"there is no stream {self._name}: it was deleted")
        above = [
            NamespaceRecord() if one is None else get(NamespaceRecord, one.value, where)
            for one, where in zip(found[:-1], self._paths, strict=False)
        ]
        self._last = effective([*(one.policy for one in above), own.policy])
        names = [one.name for one in above]
        self._bounds = [
            (one_id, one.policy.bytes_max, "/".join(names[1 : at + 1]))
            for at, (one_id, one) in enumerate(zip(self._ids, above, strict=True))
            if one.policy.bytes_max
        ]
        self._versions = versions
        await self._check_quota()
        return self._last
