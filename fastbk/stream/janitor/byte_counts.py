"""How many bytes namespaces with a quota have: counted by each pass of a janitor, looked at by writers.

A count is written when a pass has met every stream, by compare-and-set, and only over one that began earlier. No record
is written by a roll: what has been appended since the last pass is not in it, nor what open segments hold.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

from fastbk.client.client import Client
from fastbk.errors import MetadataConflict
from fastbk.meta.records import Change
from fastbk.stream.chain.chain import Chain
from fastbk.stream.chain.store import ChainStore
from fastbk.stream.context import clock_us
from fastbk.stream.janitor.all_streams import StreamSnapshot, ids_below
from fastbk.stream.janitor.retention import items_of
from fastbk.stream.janitor.segment_deletion import HeldSizes
from fastbk.stream.namespace.catalog import Versioned, records_at
from fastbk.stream.namespace.listing import kept_bytes
from fastbk.stream.namespace.tree_records import NamespaceRecord, StoredRecord, get_or, put
from fastbk.stream.paths import STORED, namespace_path, stored_path

COUNTS_AT_ONCE = 200


class ByteCounts:
    """What one pass has counted so far, by the ids of namespaces."""

    def __init__(self, client: Client, sizes: HeldSizes) -> None:
        self._client = client
        self._records = client.records
        self._sizes = sizes
        self._began_us = clock_us()
        self._counts: Counter[str] = Counter()

    async def add(self, found: StreamSnapshot, chain: Chain | None) -> None:
        """Count a stream as it is now; None: it is gone. Raises MetadataUnavailable."""
        size_bytes = 0
        if found.counted_in and chain is not None:
            (size_bytes,) = await kept_bytes(self._records, [chain])
            # What a stream's writers say of its size must not use up the quota of others.
            store = ChainStore(self._records, found.stream_id, self._client.config.metadata_timeout)
            items = items_of(chain)
            held = await self._sizes.prove_new(store, items)
            size_bytes -= sum(one.size_bytes for one in items) - sum(one.size_bytes for one in held)
        for namespace_id in found.counted_in:
            self._counts[namespace_id] += size_bytes

    async def write(self) -> None:
        """Write all counts, those of namespaces too that have no stream any more; all streams must have been met."""
        async for known in ids_below(self._records, STORED):
            missing = [one for one in known if one not in self._counts]
            for at in range(0, len(missing), COUNTS_AT_ONCE):
                await self._without_streams(missing[at : at + COUNTS_AT_ONCE])
        counted = list(self._counts)
        for at in range(0, len(counted), COUNTS_AT_ONCE):
            some = counted[at : at + COUNTS_AT_ONCE]
            paths = {one: stored_path(one) for one in some}
            found = await records_at(self._records, StoredRecord, paths, lambda _: StoredRecord())
            for namespace_id, where in paths.items():
                before = found.get(namespace_id, Versioned(StoredRecord(), None))
                size_bytes = self._counts[namespace_id]
                is_same = before.version is not None and before.value.size_bytes == size_bytes
                if not is_same and before.value.counted_us < self._began_us:
                    value = put(StoredRecord(size_bytes, self._began_us))
                    with suppress(MetadataConflict):  # another janitor has counted, too
                        await self._records.change(Change(where, value, before.version))

    async def _without_streams(self, namespace_ids: list[str]) -> None:
        """Count 0 for namespaces without streams; the record goes where there is no quota any more."""
        spaces = await self._records.read_all([*map(namespace_path, namespace_ids)])
        found = await self._records.read_all([*map(stored_path, namespace_ids)])
        for namespace_id, space, raw in zip(namespace_ids, spaces, found, strict=True):
            where = namespace_path(namespace_id)
            record = None if space is None else get_or(NamespaceRecord, space.value, where, None)
            if record is not None and record.policy.bytes_max:
                self._counts[namespace_id] += 0
            elif space is not None and record is None:
                continue  # whether it has a quota nobody can tell
            elif raw is not None:
                with suppress(MetadataConflict):
                    await self._records.change(Change(stored_path(namespace_id), None, raw.version))
