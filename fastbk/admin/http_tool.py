"""`python -m fastbk.admin.http_tool`: answers one question of a bookie's HTTP server that needs a client.

The question is JSON on standard input, {"tool": "read" | "delete" | "infos" | "sanity", "uri", ...}; the answer is
JSON on standard output, {"answer": ...} or {"error": text}. The sanity test writes entries and reads them back, on one
bookie alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import warnings
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

import msgspec

import fastbk
from fastbk.admin.cluster import bookie_states
from fastbk.client import Client
from fastbk.client.config import ClientConfig
from fastbk.errors import ConfigError, Error, NoSuchLedger, StorageError
from fastbk.meta import open_store
from fastbk.security.rights import is_allowed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastbk.meta.api import BookieRegistration, MetadataStore
    from fastbk.model.ids import BookieId, LedgerId

# The sanity test: whether entries can be written and read back, of a ledger, and of one bookie alone.


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


ENTRIES_MAX = 10_000
BYTES_MAX = 32 << 20
"""Maximum bytes of entries in one answer of `read`."""
SANITY_ENTRIES = 10
SANITY_TIMEOUT_S = 5.0


async def read(
    uri: str, ledger_id: int, first: int, last: int, namespaces: list[str] | None
) -> dict[str, str] | None:
    """Return id -> data as ASCII text, of entries first..last as far as they are acknowledged; -1: all there are.

    None: the ledger is of no namespace that one of the patterns in `namespaces` matches.
    """
    record: dict[str, str] = {}
    size_bytes = 0
    async with fastbk.connect(uri) as client:
        info = await client.ledger_info(ledger_id)
        if not is_allowed(
            None if namespaces is None else tuple(namespaces), info.metadata.namespace
        ):
            return None
        password = info.metadata.password or b""
        reader = await client.open_ledger(ledger_id, recovery=False, password=password)
        async with reader:
            end = await reader.last_add_confirmed()
            end = end if last < 0 else min(last, end)
            if end - first >= ENTRIES_MAX:
                raise ConfigError(
                    f"more than {ENTRIES_MAX:,} entries: ask for pages, page=1, 2 ..."
                )
            if end < first:
                return record
            async for entry in reader.read(first, end):
                size_bytes += len(entry.data)
                if size_bytes > BYTES_MAX:
                    raise ConfigError(f"more than {BYTES_MAX >> 20} MiB: ask for fewer entries")
                record[str(entry.entry_id)] = bytes(entry.data).decode("ascii", "replace")
    return record


async def delete(uri: str, ledger_id: int) -> bool:
    """Delete a ledger; one that is open is fenced. False: it was gone, which is no error to Apache's client either.

    So whoever asks again after a lost answer gets the same one.
    """
    async with fastbk.connect(uri) as client:
        try:
            await client.delete_ledger(ledger_id)
        except NoSuchLedger:
            return False
    return True


async def infos(uri: str) -> dict[str, tuple[int, int]]:
    """Return id -> free and total bytes of each bookie that takes adds and answers."""
    async with fastbk.connect(uri) as client:
        states = await bookie_states(client, [])
    return {
        state.bookie_id: (state.info.disk_free_bytes, state.info.disk_total_bytes)
        for state in states
        if state.info is not None and state.state == "up"
    }


async def sanity(uri: str, bookie_id: str) -> str:
    """Return why entries cannot be written to that bookie alone, and read back; "": they can."""
    with closing(open_store(uri, may_make=False)) as store:
        try:
            await check_one_bookie(store, bookie_id, SANITY_ENTRIES, SANITY_TIMEOUT_S)
        except Error as error:
            return str(error) or type(error).__name__
    return ""


_TOOLS = {"read": read, "delete": delete, "infos": infos, "sanity": sanity}


def main() -> int:
    """Answer the one question."""
    asked: dict[str, Any] = msgspec.json.decode(sys.stdin.buffer.read(), type=dict)
    tool = _TOOLS[asked.pop("tool")]
    try:
        said: dict[str, object] = {"answer": asyncio.run(tool(**asked))}  # type: ignore[operator]
    except (Error, OSError) as error:
        said = {"error": str(error)}
    sys.stdout.buffer.write(msgspec.json.encode(said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
