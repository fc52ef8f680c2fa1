"""Does the disk here hold all that metadata says of a closed ledger? Asked by gc of ledgers in limbo (INV-X4).

Listing a ledger reads disks, so it is done in a thread of its own, one ledger at a time; gc asks again until it has its
answer. What only lies in the write cache is not seen: the question comes again after the next flush.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from fastbk.errors import Error
from fastbk.model.quorum import share
from fastbk.native.scrub import list_now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from fastbk.native.store import Store
    from fastbk.server.gc_messages import Share


def holds(store: Store, ledger_id: int, shares: Iterable[Share]) -> bool:
    """Return whether every entry of these shares is on disk; False also when that can't be told. Any thread."""
    listing = _Listing(store, ledger_id)
    wanted = (
        run
        for one in shares
        for run in share(one.index, one.ensemble, one.write_quorum, one.first, one.last)
    )
    return all(listing.has(first, last) for first, last in wanted)


class _Listing:
    """A ledger's ids, from the front to the back; asked for by rising ids."""

    def __init__(self, store: Store, ledger_id: int) -> None:
        self._store = store
        self._ledger_id = ledger_id
        self._ranges: Iterator[tuple[int, int]] = iter(())
        self._range = -1, -1
        self._next = 0

    def has(self, first: int, last: int) -> bool:
        """Return whether all ids of first..last are there."""
        while True:
            while self._range[1] < first:
                following = next(self._ranges, None)
                if following is None:
                    if not self._list_more(first):
                        return False
                    continue
                self._range = following
            if self._range[0] > first:
                return False
            if self._range[1] >= last:
                return True
            first = self._range[1] + 1  # it may go on in the next range, listed apart

    def _list_more(self, first: int) -> bool:
        if self._next < 0:
            return False
        listed = list_now(self._store, self._ledger_id, max(self._next, first))
        if listed is None:
            return False
        ranges, self._next = listed
        self._ranges = iter(ranges)
        return True


def _in_thread(job: Callable[[], None]) -> None:
    threading.Thread(target=job, name="held", daemon=True).start()


class HeldCheck:
    """One question at a time, answered in a thread."""

    def __init__(
        self,
        store: Store,
        run: Callable[[Callable[[], None]], None] = _in_thread,
    ) -> None:
        """`run` does a job, now or later."""
        self._store = store
        self._run = run
        self._asked: tuple[int, Sequence[Share]] | None = None
        self._answer: bool | None = None

    def check(self, ledger_id: int, shares: Sequence[Share]) -> bool | None:
        """Return the answer, None while it is being found out: ask again for it, with the same words."""
        asked = (ledger_id, shares)
        if self._asked is None:
            self._asked, self._answer = asked, None
            self._run(self._find_out)
        if self._answer is None:
            return None
        found, was = self._answer, self._asked
        self._asked = None
        return found if was == asked else self.check(ledger_id, shares)

    def _find_out(self) -> None:
        asked = self._asked
        assert asked is not None
        try:
            self._answer = holds(self._store, *asked)
        except (OSError, Error):
            self._answer = False
