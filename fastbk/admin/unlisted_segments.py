"""Ledgers of streams that no chain names, after metadata was rebuilt: `fastbk stream attach` puts them back.

A segment's metadata names its stream, but the order of segments is in the stream's chain only, and a backup has the
chain as it was then. Blocking calls on a store; no bookie has to run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastbk.meta.api import all_ledgers
from fastbk.model.ledger import STREAM_KEY
from fastbk.stream.chain.chain import get_chain, get_page
from fastbk.stream.chain.drafts import ledgers_named
from fastbk.stream.chain.store import page_path
from fastbk.stream.namespace.tree_records import ROOT_ID, NamespaceRecord, StreamRecord, get
from fastbk.stream.paths import chain_path, drafts_path, namespace_path, stream_path

if TYPE_CHECKING:
    from fastbk.meta.api import MetadataStore
    from fastbk.meta.records import VersionedRecord

DEPTH_MAX = 64
"""Of namespaces, also where damaged records form a ring."""


@dataclass
class UnlistedSegments:
    """Ledgers by stream, by rising id.

    Attributes:
        gone: stream id -> all ledgers of a stream that has no record.
        unlisted: path of a stream (its id, if the path is not known) -> ledgers that its chain does not name.
    """

    gone: dict[str, list[int]] = field(default_factory=dict)
    unlisted: dict[str, list[int]] = field(default_factory=dict)


def unlisted_segments(store: MetadataStore) -> UnlistedSegments:
    """Return them; reads all ledgers. Raises MetadataUnavailable, StorageError (a damaged record)."""
    by_stream: dict[str, list[int]] = {}
    for ledger_id, read in all_ledgers(store):
        owner = read.metadata.custom.get(STREAM_KEY)
        if owner is not None:
            by_stream.setdefault(owner.decode("utf-8", "replace"), []).append(ledger_id)
    found = UnlistedSegments()
    for stream_id, ledger_ids in by_stream.items():
        record = _read(store, stream_path(stream_id))
        if record is None:
            found.gone[stream_id] = ledger_ids
            continue
        named = _named(store, stream_id)
        stream = get(StreamRecord, record.value, stream_path(stream_id))
        rest = [one for one in ledger_ids if one not in named]
        if rest and not stream.deleting:
            found.unlisted[_path(store, stream) or stream_id] = rest
    return found


def _named(store: MetadataStore, stream_id: str) -> set[int]:
    """Return the ledgers that a stream's chain, its pages and its drafts name."""
    raw = _read(store, chain_path(stream_id))
    if raw is None:
        return set()
    chain = get_chain(raw.value)
    named = {one.ledger_id for one in chain.rows} | set(chain.doomed) | {chain.reserved}
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
