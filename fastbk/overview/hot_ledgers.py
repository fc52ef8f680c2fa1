"""The ledgers and streams with the most adds: all bookies' sketches, merged, with what metadata has of the ledgers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fastbk.errors import Error
from fastbk.meta.api import VersionedLedger
from fastbk.meta.records import VersionedRecord
from fastbk.model.ids import LedgerId
from fastbk.model.ledger import STREAM_KEY
from fastbk.overview.values import HotLedger, HotStream
from fastbk.stream.client import Client
from fastbk.stream.janitor.all_streams import Namespaces
from fastbk.stream.namespace.tree_records import StreamRecord, get
from fastbk.stream.paths import stream_path

SHOWN_MAX = 20
CANDIDATES_MAX = 100
"""Ledgers of a round whose metadata is read: copies on several bookies decide only once their quorum is known."""
FACTS_MAX = 4096


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """What metadata says of a ledger. `stream`: path; "" for none."""

    write_quorum: int
    stream: str = ""


def added_up(pages: Iterable[Mapping[str, Any]]) -> dict[LedgerId, tuple[float, float, int]]:
    """Return ledger -> adds a second, bytes a second, bookies: the answers of `/hot`, added up over bookies."""
    found: dict[LedgerId, tuple[float, float, int]] = {}
    for page in pages:
        for one in page.get("ledgers", ()):
            ledger_id = int(one["ledger_id"])
            adds, size_bytes, bookies = found.get(ledger_id, (0.0, 0.0, 0))
            adds += float(one["adds_per_second"])
            found[ledger_id] = adds, size_bytes + float(one["bytes_per_second"]), bookies + 1
    return found


def hottest(
    sums: Mapping[LedgerId, tuple[float, float, int]], facts: Mapping[LedgerId, LedgerFacts]
) -> tuple[HotLedger, ...]:
    """Return the ledgers with most adds; copies are divided by the write quorum, where it is known."""
    found = []
    for ledger_id, (adds, size_bytes, bookies) in sums.items():
        known = facts.get(ledger_id)
        copies = known.write_quorum if known is not None else 1
        stream = known.stream if known is not None else ""
        found.append(HotLedger(ledger_id, adds / copies, size_bytes / copies, stream, bookies))
    found.sort(key=lambda one: (-one.adds_per_s, one.ledger_id))
    return tuple(found)


def by_stream(ledgers: Iterable[HotLedger]) -> tuple[HotStream, ...]:
    """Return the streams of these ledgers, most adds first; at most SHOWN_MAX."""
    sums: dict[str, tuple[float, float]] = {}
    for one in ledgers:
        if one.stream:
            adds, size_bytes = sums.get(one.stream, (0.0, 0.0))
            sums[one.stream] = adds + one.adds_per_s, size_bytes + one.bytes_per_s
    found = [HotStream(path, *both) for path, both in sums.items()]
    return tuple(sorted(found, key=lambda one: (-one.adds_per_s, one.path))[:SHOWN_MAX])


class LedgerFactsCache:
    """What metadata says of the ledgers that were used last; at most FACTS_MAX of them."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: OrderedDict[LedgerId, LedgerFacts] = OrderedDict()
        self._wanted: list[LedgerId] = []

    @property
    def known(self) -> Mapping[LedgerId, LedgerFacts]:
        """What is known now."""
        return self._known

    def want(self, ledger_ids: Iterable[LedgerId]) -> None:
        """Have the next `read` read those that are not known; of more than CANDIDATES_MAX the first."""
        self._wanted = [one for one in ledger_ids if one not in self._known][:CANDIDATES_MAX]

    async def read(self) -> None:
        """Read what is wanted. Raises MetadataUnavailable, StorageError."""
        wanted, self._wanted = self._wanted, []
        if not wanted:
            return
        found = await self._client.call_store(lambda store: store.read_ledgers(wanted))
        ledgers = {
            one: each.metadata
            for one, each in zip(wanted, found, strict=True)
            if isinstance(each, VersionedLedger)
        }
        streams = {
            one.custom[STREAM_KEY].decode(errors="replace")
            for one in ledgers.values()
            if STREAM_KEY in one.custom
        }
        paths = await self._paths(sorted(streams))
        for ledger_id, metadata in ledgers.items():
            stream = paths.get(metadata.custom.get(STREAM_KEY, b"").decode(errors="replace"), "")
            self._known[ledger_id] = LedgerFacts(metadata.write_quorum, stream)
            self._known.move_to_end(ledger_id)
        while len(self._known) > FACTS_MAX:
            self._known.popitem(last=False)

    async def _paths(self, stream_ids: list[str]) -> dict[str, str]:
        """Return stream id -> its path; streams without a readable record are left out."""
        # A ledger's creator can name anything as its stream: what is no id has no path.
        stream_ids = [one for one in stream_ids if one.isascii() and one.isalnum()]
        records = await self._client.records.read_all([stream_path(one) for one in stream_ids])
        namespaces = Namespaces(self._client.records)
        found = {}
        for stream_id, raw in zip(stream_ids, records, strict=True):
            path = None if raw is None else await self._path(namespaces, stream_id, raw)
            if path:
                found[stream_id] = path
        return found

    async def _path(self, namespaces: Namespaces, stream_id: str, raw: VersionedRecord) -> str:
        try:
            record = get(StreamRecord, raw.value, stream_path(stream_id))
            return "/".join([*(await namespaces.of(record.namespace)).path, record.name])
        except Error:
            return ""
