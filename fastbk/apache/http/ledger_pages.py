"""Apache's endpoints about ledgers' metadata: list, metadata. Bounded by what one answer may hold."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from fastbk.apache.http.answers import NOT_GET, answer, integer, text
from fastbk.errors import ConfigError
from fastbk.meta.api import VersionedLedger, all_ids
from fastbk.model.ledger import FORMAT_VERSION

if TYPE_CHECKING:
    from fastbk.apache.http.bookie_facts import StoreThreads
    from fastbk.meta.api import MetadataStore
    from fastbk.model.ledger import LedgerMetadata
    from fastbk.web.page_server import Page, Request, Response

PAGE_COUNT = 100
"""Ledgers a page of `list?print_metadata=true&page=N`; the first page has one fewer, as Apache's."""
IDS_LISTED_MAX = 500_000
METADATA_LISTED_MAX = 5_000


class LedgerPages:
    """Those of one metadata store."""

    def __init__(self, metadata: StoreThreads) -> None:
        self._metadata = metadata

    def pages(self) -> dict[str, Page]:
        """Return the pages by the ends of their paths."""
        return {"list": self._list, "metadata": self._show}

    async def _list(self, request: Request) -> Response:
        if request.method != "GET":
            return text(404, NOT_GET)
        if request.query.get("print_metadata") != "true":
            return answer(await self._metadata.call(_ids))
        page = integer(request, "page", -1)
        decode = request.query.get("decode_meta") == "true"
        return answer(
            await self._metadata.call(lambda store: _described(store, page, decode=decode))
        )

    async def _show(self, request: Request) -> Response:
        if request.method != "GET" or "ledger_id" not in request.query:
            return text(404, NOT_GET)
        ledger_id = integer(request, "ledger_id", 0, low=0)
        found = await self._metadata.call(lambda store: store.read_ledger(ledger_id))
        return answer({str(ledger_id): shown(ledger_id, found.metadata)})


def _ids(store: MetadataStore) -> dict[str, None]:
    listed: dict[str, None] = {}
    for ledger_id in all_ids(store):
        listed[str(ledger_id)] = None
        if len(listed) > IDS_LISTED_MAX:
            raise ConfigError(
                f"more than {IDS_LISTED_MAX:,} ledgers: `fastbk ledger list` lists them"
            )
    return listed


def _described(store: MetadataStore, page: int, *, decode: bool) -> dict[str, Any]:
    """Return id -> metadata of a page, counted from 1 as Apache does: ledgers 1-99, 100-199, ...; 0 or less: of all."""
    first, last = ((page - 1) * PAGE_COUNT, page * PAGE_COUNT - 1) if page > 0 else (0, None)
    chosen = []
    for number, ledger_id in enumerate(all_ids(store), 1):
        if last is not None and number > last:
            break
        if number >= first:
            chosen.append(ledger_id)
        if len(chosen) > METADATA_LISTED_MAX:
            raise ConfigError(
                f"more than {METADATA_LISTED_MAX:,} ledgers: ask for pages, page=1, 2 ..."
            )
    described: dict[str, Any] = {}
    for at in range(0, len(chosen), PAGE_COUNT):
        ids = chosen[at : at + PAGE_COUNT]
        for ledger_id, found in zip(ids, store.read_ledgers(ids), strict=True):
            if isinstance(found, VersionedLedger):
                metadata = found.metadata
                raw = metadata.to_bytes().decode("utf-8", "replace")
                described[str(ledger_id)] = shown(ledger_id, metadata) if decode else raw
    return described


def shown(ledger_id: int, metadata: LedgerMetadata) -> dict[str, Any]:
    """Return metadata by the names that Apache's JSON has. The password is never told."""
    digest = metadata.digest_type
    return {
        "ledgerId": ledger_id,
        "metadataFormatVersion": FORMAT_VERSION,
        "ensembleSize": metadata.ensemble_size,
        "writeQuorumSize": metadata.write_quorum,
        "ackQuorumSize": metadata.ack_quorum,
        "state": metadata.state.name,
        "length": metadata.length,
        "lastEntryId": metadata.last_entry_id,
        "ctime": -1 if metadata.created_ms is None else metadata.created_ms,
        "digestType": None if digest is None else _DIGESTS[digest.name],
        "password": "",
        "customMetadata": {
            key: base64.b64encode(value).decode() for key, value in metadata.custom.items()
        },
        "closed": metadata.is_closed,
        "allEnsembles": {
            str(one.first_entry_id): [{"id": bookie_id} for bookie_id in one.ensemble]
            for one in metadata.fragments
        },
        "ctoken": metadata.creation_token,
    }


_DIGESTS = {"CRC32": "CRC32", "HMAC": "MAC", "CRC32C": "CRC32C", "DUMMY": "DUMMY"}
