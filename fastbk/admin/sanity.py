"""Whether entries can be written and read back: of a ledger, and of one bookie alone."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any, cast

from fastbk.client import Client
from fastbk.client.config import ClientConfig
from fastbk.errors import NoSuchLedger, StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastbk.meta.api import BookieRegistration, MetadataStore
    from fastbk.model.ids import BookieId, LedgerId


async def compare(client: Client, ledger_id: LedgerId, expected: Sequence[bytes]) -> None:
    """Raise StorageError unless the ledger holds just these entries."""
    reader = await client.open_ledger(ledger_id)
    async with reader:
        found = [bytes(entry.data) async for entry in reader.read()]
    if found != list(expected):
        raise StorageError(
            f"ledger {ledger_id}: {len(found)} entries were read, {len(expected)} were written, or their data differs"
        )


class _OnlyOneBookie:
    """A metadata store that lists one bookie: whatever is written goes there."""

    def __init__(self, store: MetadataStore, bookie_id: BookieId) -> None:
        self._store = store
        self._bookie_id = bookie_id

    def list_bookies(self) -> list[BookieRegistration]:
        return [
            bookie
            for bookie in self._store.list_bookies()
            if bookie.service.bookie_id == self._bookie_id
        ]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- whatever the store has
        return getattr(self._store, name)


async def check_one_bookie(
    store: MetadataStore, bookie_id: BookieId, count: int, timeout_s: float
) -> LedgerId:
    """Write entries to a ledger on that bookie only, read them, delete it; return its id. Raises Error."""
    only = cast("MetadataStore", _OnlyOneBookie(store, bookie_id))
    config = ClientConfig(append_timeout=timeout_s, read_timeout=timeout_s)
    expected = [b"entry-%d" % number for number in range(count)]
    async with Client(only, config) as client:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one copy is what is wanted
            writer = await client.create_ledger(
                ensemble=1, write_quorum=1, ack_quorum=1, digest="hmac"
            )
        try:
            async with writer:
                await writer.append_many(expected)
            await compare(client, writer.ledger_id, expected)
        finally:
            with contextlib.suppress(NoSuchLedger):
                await client.delete_ledger(writer.ledger_id)
    return writer.ledger_id
