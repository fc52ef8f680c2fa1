"""The chain in metadata: read, changed by compare-and-set, followed; and its pages. One object a stream and client."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from fastbk.client.metadata_calls import RecordCalls
from fastbk.errors import MetadataConflict, MetadataUnavailable, StorageError, StreamNotFound
from fastbk.meta.records import Change, VersionedRecord
from fastbk.retry import Retry
from fastbk.stream.chain import (
    CONDEMNED,
    PAGE_ROWS,
    ROWS_MAX,
    Chain,
    PageRef,
    Segment,
    get_chain,
    get_page,
    put_chain,
    put_page,
    spill,
)
from fastbk.stream.paths import chain_path, page_part, pages_path

PAGES_KEPT = 8
"""Pages that a store remembers; each is about 500 KB as rows."""
AGAIN_S = 0.005
"""First pause before a change is tried again; doubled up to half a second."""
AGAIN_S_MAX = 0.5


@dataclass(frozen=True, slots=True)
class VersionedChain:
    """A chain as it was read, and the version that a change of it has to name."""

    chain: Chain
    version: int


def page_name(page: PageRef) -> str:
    """Return the name of a page's record.

    One whose number is below the chain's `next_page` and that no chain names was written for nothing, for good.
    """
    return page_part(page.page, page.token)


def page_path(stream_id: str, page: PageRef) -> str:
    """Return where a page's record is."""
    return f"{pages_path(stream_id)}/{page_name(page)}"


class ChainStore:
    """One stream's chain."""

    def __init__(
        self,
        records: RecordCalls,
        stream_id: str,
        timeout_s: float,
        name: str = "",
        *,
        is_deleter: bool = False,
    ) -> None:
        """`timeout_s`: how long a change is tried anew when others are faster, or metadata does not answer.

        `name`: namespace and name, for errors. `is_deleter`: reads also the chain of a stream that is being deleted,
        which is not there any more for all others.
        """
        self.stream_id = stream_id
        self.name = name
        self._is_deleter = is_deleter
        self._records = records
        self._timeout_s = timeout_s
        self.path = chain_path(stream_id)
        self._pages: OrderedDict[int, tuple[Segment, ...]] = OrderedDict()

    async def read(self) -> VersionedChain:
        """Return the chain. Raises StreamNotFound, MetadataUnavailable."""
        return self._known(await self._records.read(self.path))

    def _known(self, found: VersionedRecord | None) -> VersionedChain:
        if found is None:
            raise self._gone()
        chain = get_chain(found.value)
        if chain.owner == CONDEMNED and not self._is_deleter:
            raise self._gone()
        return VersionedChain(chain, found.version)

    def _gone(self) -> StreamNotFound:
        # Name and chain are made together, so whoever knows the id has seen a stream.
        return StreamNotFound(
            f"there is no stream {self.name or self.stream_id} any more: it was deleted"
        )

    async def change(
        self,
        decide: Callable[[Chain], Chain],
        known: VersionedChain | None = None,
        timeout_s: float | None = None,
        also: Sequence[Change] = (),
    ) -> VersionedChain:
        """Write what `decide` makes of the chain; return what holds then. `known`: as it was last seen.

        `also`: what is changed together with it, or not at all; MetadataConflict where that cannot be any more.

        `decide` is called again with what is there when somebody was faster, or when it is not known whether it was
        written: what it wants may then be there already. What it raises ends this. Raises MetadataUnavailable when
        the deadline passes (it may have been written), StreamNotFound.
        """
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        retry = Retry(AGAIN_S, AGAIN_S_MAX, limit_s)
        while True:
            try:
                if known is None:
                    known = await self.read()
                wanted = decide(known.chain)
                if wanted == known.chain:
                    return known
                wanted = await self._spilled(wanted)
                change = Change(self.path, put_chain(wanted), known.version)
                version, *_ = await self._records.change(change, *also)
                return VersionedChain(wanted, version)
            except MetadataConflict as error:
                failed: MetadataConflict | MetadataUnavailable = error
            except MetadataUnavailable as error:
                failed = error
            if isinstance(failed, MetadataConflict) and known is not None:
                # A refusal by `decide` is final; a compare-and-set that lost is tried again.
                try:
                    again = await self.read()
                except MetadataUnavailable as error:
                    failed = error
                else:
                    if again.version == known.version:
                        raise failed
            known = None
            await asyncio.sleep(retry.pause_s(failed))

    async def name_ledger(
        self, decide: Callable[[Chain, int], Chain], known: VersionedChain
    ) -> tuple[int, VersionedChain]:
        """Draw a ledger id and name it in the chain; return it, and what holds then. Raises as `change` does.

        One call of metadata, unless somebody was faster.
        """

        def named(ledger_id: int) -> Change:
            return Change(self.path, put_chain(decide(known.chain, ledger_id)), known.version)

        if len(known.chain.rows) <= ROWS_MAX:
            try:
                ledger_id, version = await self._records.draw_and_change(named)
            except MetadataConflict:
                pass
            else:
                return ledger_id, VersionedChain(decide(known.chain, ledger_id), version)
        ledger_id = await self._records.draw_ledger_id()
        return ledger_id, await self.change(lambda chain: decide(chain, ledger_id), known)

    async def _spilled(self, chain: Chain) -> Chain:
        """Move old rows to pages where there are too many (INV-S4: the page is there before the chain names it)."""
        while len(chain.rows) > ROWS_MAX:
            chain, page, rows = spill(chain, PAGE_ROWS, secrets.randbits(62))
            await self._records.change(Change(self._page_path(page), put_page(rows)))
            self._keep(page, rows)
        return chain

    # --- rows ---------------------------------------------------------------------------------------------------

    async def row(self, chain: Chain, number: int) -> Segment | None:
        """Return a segment's row, wherever it lies; None if the chain has none of that number."""
        row = chain.row(number)
        if row is not None or number < chain.head:
            return row
        page = chain.page_of(number)
        return None if page is None else (await self.page(page))[number - page.first]

    async def page(self, page: PageRef) -> tuple[Segment, ...]:
        """Return a page's rows. Raises StorageError if it is gone, or damaged."""
        rows = self._pages.get(page.token)
        if rows is None:
            record = await self._records.read(self._page_path(page))
            if record is None:
                raise StorageError(
                    f"stream {self.stream_id}: page {page.page} of its segments {page.first} to {page.last} is gone"
                )
            rows = get_page(record.value)
            if (rows[0].number, rows[-1].number) != (page.first, page.last):
                raise StorageError(f"stream {self.stream_id}: page {page.page} has other segments")
            self._keep(page, rows)
        self._pages.move_to_end(page.token)
        return rows

    def _keep(self, page: PageRef, rows: tuple[Segment, ...]) -> None:
        self._pages[page.token] = rows
        self._pages.move_to_end(page.token)
        while len(self._pages) > PAGES_KEPT:
            self._pages.popitem(last=False)

    def _page_path(self, page: PageRef) -> str:
        return page_path(self.stream_id, page)

    async def rows_from(self, chain: Chain, number: int) -> AsyncGenerator[Segment, None]:
        """Yield the chain's rows from this segment on, those in pages, too."""
        for page in chain.pages:
            if page.last >= number:
                for row in await self.page(page):
                    if row.number >= max(number, chain.head):
                        yield row
        for row in chain.rows:
            if row.number >= number:
                yield row

    async def follow(self) -> AsyncGenerator[VersionedChain, None]:
        """Yield the chain now and after changes, of which several may be told as one. Raises StreamNotFound."""
        async for found in self._records.follow(self.path):
            yield self._known(found)
