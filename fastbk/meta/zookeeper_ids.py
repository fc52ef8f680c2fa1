"""Draws ledger ids as Apache does: the numbers that ZooKeeper gives to sequential nodes.

Ids of 31 bits come from `idgen/ID-` (in the flat layout from `ID-` beside the ledgers). When those are used up, ids
of 63 bits come from `idgen-long/HOB-<high half>/ID-`; once `idgen-long` is there it is always used, whoever made it.
No number is given twice as long as the parent of the nodes exists.
"""

from __future__ import annotations

from contextlib import suppress

from fastbk.errors import StorageError
from fastbk.meta.zookeeper_calls import Call, NodeExists, NoNode, ResultUnknown
from fastbk.meta.zookeeper_paths import SHORT_ID_END, Layout, Paths
from fastbk.model.ids import LedgerId

_PREFIX = "ID-"
_HIGH_PREFIX = "HOB-"
_HIGH_KEPT = 3
_HIGH_MAX = 2**31 - 1


def draw(call: Call, paths: Paths, layout: Layout) -> LedgerId:
    """Return an id that no caller got before."""
    if layout.draws_long_ids and call.exists(paths.idgen_long) is not None:
        return _draw_long(call, paths)
    parent = paths.root if layout is Layout.FLAT else paths.idgen
    number = _sequence(call, parent)
    if 0 <= number < SHORT_ID_END:
        return number
    if not layout.draws_long_ids:
        raise StorageError(
            f"all ledger ids of the layout {layout.value} are used up: choose ids yourself, or begin a"
            " new cluster"
        )
    call.ensure(paths.idgen_long)
    return _draw_long(call, paths)


def _draw_long(call: Call, paths: Paths) -> LedgerId:
    while True:
        highs = _highs(call, paths)
        high = highs[-1] if highs else 1
        if not highs:
            _ensure_high(call, paths, high)
        number = _sequence(call, _high_path(paths, high))
        if 0 <= number < SHORT_ID_END:
            # Only the newest are kept: one that is gone must not begin again at 0.
            for old in highs[:-_HIGH_KEPT]:
                call.delete_later(_high_path(paths, old))
            return high << 32 | number
        if high == _HIGH_MAX:
            raise StorageError("all ledger ids of 63 bits are used up: begin a new cluster")
        _ensure_high(call, paths, high + 1)


def _highs(call: Call, paths: Paths) -> list[int]:
    names = call.children(paths.idgen_long) or []
    digits = [name.removeprefix(_HIGH_PREFIX) for name in names if name.startswith(_HIGH_PREFIX)]
    return sorted(int(text) for text in digits if text.isdigit())


def _high_path(paths: Paths, high: int) -> str:
    return f"{paths.idgen_long}/{_HIGH_PREFIX}{high:010d}"


def _ensure_high(call: Call, paths: Paths, high: int) -> None:
    with suppress(NodeExists, ResultUnknown):
        call.create(_high_path(paths, high))


def _sequence(call: Call, parent: str) -> int:
    """Return the number that ZooKeeper gives to a new node; beyond 31 bits it is negative."""
    while True:
        call.again()
        try:
            path = call.create(f"{parent}/{_PREFIX}", ephemeral=True, sequence=True)
        except ResultUnknown:
            continue  # a number is lost, and its node goes with our session
        except NoNode:
            call.ensure(parent)
            continue
        call.delete_later(path)
        return int(path.rpartition(_PREFIX)[2])
