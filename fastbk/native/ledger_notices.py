"""Which ledgers an index has, and what metadata says of them: gc's part of `fastbk.native.index`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.native._bookie import ffi, lib
from fastbk.native.ffi import NativeObject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fastbk.native.ledger_state import Listed

PAGE_IDS = 4096
"""Ledger ids fetched by one call."""


class LedgerNotices(NativeObject):
    """The base of `Index` with these calls. What they change is changed in the journal, too."""

    def list_ledgers(self, cursor: int, count_max: int = PAGE_IDS) -> tuple[list[int], int]:
        """Return ids of some ledgers that are not deleted, and the cursor to go on with; no ids: the end.

        Args:
            cursor: 0 at first. A ledger that comes in between two calls may hide others: a listing is
                complete for nobody, which is all that gc needs (INV-G1).
            count_max: most ids returned.
        """
        return self._page(lib.fbk_index_list_ledgers, cursor, count_max)

    def list_limbo(self, cursor: int, count_max: int = PAGE_IDS) -> tuple[list[int], int]:
        """Return ids of some ledgers that are in limbo and not deleted, like `list_ledgers`."""
        return self._page(lib.fbk_index_list_limbo, cursor, count_max)

    def _page(
        self, list_some: Callable[..., int], cursor: int, count_max: int
    ) -> tuple[list[int], int]:
        at = ffi.new("uint64_t *", cursor)
        ids = ffi.new("int64_t[]", count_max)
        count = list_some(self.handle, at, ids, count_max)
        found: list[int] = ffi.unpack(ids, count) if count else []
        return found, int(at[0])

    def delete_ledgers(self, ledger_ids: Iterable[int], now_s: int) -> tuple[int, int]:
        """Mark ledgers deleted, here and in the journal, which takes no adds to them from then on.

        Returns how many were known and not deleted before, and how many of the ids were handled: not all while the
        journal has yet to take note of earlier ones.
        """
        ids = ffi.new("int64_t[]", list(ledger_ids))
        taken = ffi.new("int32_t *")
        count = int(lib.fbk_index_delete_ledgers(self.handle, ids, len(ids), now_s, taken))
        return count, int(taken[0])

    def list_unconfirmed(
        self, cursor: int, count_max: int = PAGE_IDS
    ) -> tuple[list[int], list[int], int]:
        """Return ids of some unconfirmed ledgers, for each whether the journal takes nothing to it, and the cursor.

        Neither deleted ones nor those in limbo. Like `list_ledgers`.
        """
        at = ffi.new("uint64_t *", cursor)
        ids = ffi.new("int64_t[]", count_max)
        expiring = ffi.new("uint32_t[]", count_max)
        count = lib.fbk_index_list_unconfirmed(self.handle, at, ids, expiring, count_max)
        if not count:
            return [], [], int(at[0])
        return ffi.unpack(ids, count), ffi.unpack(expiring, count), int(at[0])

    def confirm(self, listed: Sequence[Listed]) -> list[int]:
        """Confirm ledgers that metadata lists; return those that have another key or creation here."""
        rows = ffi.new("struct fbk_listed[]", len(listed))
        for row, one in zip(rows, listed, strict=True):
            row.ledger_id, row.creation_mark = one.ledger_id, one.creation_mark
            row.has_key = one.master_key is not None
            if one.master_key is not None:
                ffi.memmove(row.master_key, one.master_key, len(row.master_key))
        foreign = ffi.new("int64_t[]", max(1, len(listed)))
        count = lib.fbk_index_confirm(self.handle, rows, len(listed), foreign)
        return ffi.unpack(foreign, count) if count else []

    def admit(self, ledger_ids: Sequence[int]) -> int:
        """Make room for ledgers that metadata lists and that are not here yet; return for how many."""
        return self._notice(lib.fbk_index_admit, ledger_ids)[0]

    def begin_expiry(self, ledger_ids: Sequence[int]) -> int:
        """Have the journal take nothing to unconfirmed ledgers from now on; return to how many more."""
        return self._notice(lib.fbk_index_begin_expiry, ledger_ids)[0]

    def expire(self, ledger_ids: Sequence[int], fenced_deleted_s: int = 0) -> tuple[int, int]:
        """Delete ledgers whose expiry has begun; return how many were, and how many of the ids were handled.

        `fenced_deleted_s`: not 0 where metadata is proven to have deleted them: the time of deletion of those that were
        fenced, which are kept as a deleted ledger is (INV-G8). The others are forgotten by the next merge of
        everything.
        """
        ids = ffi.new("int64_t[]", ledger_ids)
        taken = ffi.new("int32_t *")
        count = int(lib.fbk_index_expire(self.handle, ids, len(ids), fenced_deleted_s, taken))
        return count, int(taken[0])

    def _notice(self, give: Callable[..., int], ledger_ids: Sequence[int]) -> tuple[int, int]:
        ids = ffi.new("int64_t[]", ledger_ids)
        taken = ffi.new("int32_t *")
        count = int(give(self.handle, ids, len(ids), taken))
        return count, int(taken[0])

    def limbo_over(self, ledger_ids: Sequence[int], *, fenced: bool) -> tuple[int, int]:
        """Take ledgers out of limbo: whatever this bookie held of them lies elsewhere, and metadata says so.

        `fenced`: somebody may have fenced them, so normal adds stay refused. Returns like `delete_ledgers`.
        """
        ids = ffi.new("int64_t[]", ledger_ids)
        taken = ffi.new("int32_t *")
        count = lib.fbk_index_limbo_over(self.handle, ids, len(ids), int(fenced), taken)
        return int(count), int(taken[0])
