"""All ledgers that metadata lists, page by page, with pauses.

Bookies elsewhere have deleted live ledgers after a listing that left some out. So the pages are looked at: one
that is empty, and nothing else, ends the listing, and one that does not ascend ends it with an error.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from fastbk.errors import Error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastbk.gc.pacing import Pace
    from fastbk.meta.api import MetadataStore

PAGE_IDS = 10_000
"""As many ledgers as ZooKeeper's hierarchical layouts have under one parent: a page reads one or two parents, and a
smaller one would read the same parent again and again."""


class BadListing(Error):
    """The metadata store listed ledgers out of order: nothing may be concluded from what is not in its list."""


def listed_ledgers(store: MetadataStore, pace: Pace) -> Iterator[list[int]]:
    """Yield pages of ids, ascending over all pages; none is empty. Raises what the store does, and BadListing."""
    after = -1
    while page := store.list_ledgers(after, PAGE_IDS):
        if page[0] <= after or any(one >= other for one, other in pairwise(page)):
            raise BadListing(f"the listing behind ledger {after} does not ascend")
        yield page
        after = page[-1]
        pace.spend(len(page))
