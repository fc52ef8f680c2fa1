"""Draws ledger ids as Apache does: the numbers that ZooKeeper gives to sequential nodes.

Ids of 31 bits come from `idgen/ID-` (in the flat layout from `ID-` beside the ledgers). When those are used up, ids
of 63 bits come from `idgen-long/HOB-<high half>/ID-`; once `idgen-long` is there it is always used, whoever made it.
No number is given twice as long as the parent of the nodes exists.
"""

from __future__ import annotations

from contextlib import suppress

from fastbk.errors import StorageError
from fastbk.meta.rollback_mark import MOVED_ID_END
from fastbk.meta.zookeeper_calls import Call, NodeExists, NoNode, Op, ResultUnknown
from fastbk.meta.zookeeper_paths import SHORT_ID_END, Layout, Paths
from fastbk.model.ids import LedgerId

_PREFIX = "ID-"
_HIGH_PREFIX = "HOB-"
_HIGH_KEPT = 3
_HIGH_MAX = 2**31 - 1
NEAR_MOVE_IDS = 10_000
"""Ids that a move draws one by one; a far one costs two requests."""
SKIPPED_AT_ONCE = 250


def draw(call: Call, paths: Paths, layout: Layout) -> LedgerId:
    """Return an id that no caller got before."""
    if layout.draws_long_ids and call.exists(paths.idgen_long) is not None:
        return _draw_long(call, paths)
    number = _sequence(call, _short_parent(paths, layout))
    if 0 <= number < SHORT_ID_END:
        return number
    if not layout.draws_long_ids:
        raise StorageError(
            f"all ledger ids of the layout {layout.value} are used up: choose ids yourself, or begin a"
            " new cluster"
        )
    call.ensure(paths.idgen_long)
    return _draw_long(call, paths)


def highest_drawn(call: Call, paths: Paths, layout: Layout) -> LedgerId:
    """Return the highest id that anybody has drawn, -1 if nobody has; in the flat layout it may be an id too high."""
    if layout.draws_long_ids and call.exists(paths.idgen_long) is not None:
        highs = _highs(call, paths)
        if highs:
            return (highs[-1] << 32 | _next_number(call, _high_path(paths, highs[-1]))) - 1
    return _next_number(call, _short_parent(paths, layout)) - 1


def move_above(call: Call, paths: Paths, layout: Layout, floor: LedgerId) -> None:
    """Have ids be drawn above `floor` only.

    A near move draws the ids up to there. A far one begins to draw from `idgen-long`, or from its next high half, which
    Apache's clients do as well. Raises StorageError where the layout has 31 bits and the move is far.
    """
    if floor >= MOVED_ID_END:
        raise StorageError(f"ledger ids cannot be moved above {floor}: choose ids yourself")
    if layout.draws_long_ids and (
        floor >= SHORT_ID_END or call.exists(paths.idgen_long) is not None
    ):
        _move_long(call, paths, floor)
        return
    parent = _short_parent(paths, layout)
    missing = floor + 1 - _next_number(call, parent)
    if missing <= NEAR_MOVE_IDS:
        _skip(call, parent, missing)
    elif layout.draws_long_ids:
        _move_long(call, paths, floor)
    else:
        raise StorageError(
            f"the layout {layout.value} draws ledger ids one by one, and the next {missing} may be of ledgers that"
            " metadata has lost. Restore the newer metadata, or choose ids yourself above"
            f" {floor}"
        )


def _move_long(call: Call, paths: Paths, floor: LedgerId) -> None:
    call.ensure(paths.idgen_long)
    high, number = floor >> 32, floor & 0xFFFFFFFF
    highs = _highs(call, paths)
    if highs and highs[-1] > high:
        return
    if high == 0:
        _ensure_high(call, paths, 1)
        return
    if high in highs:
        missing = number + 1 - _next_number(call, _high_path(paths, high))
        if missing <= NEAR_MOVE_IDS and number < SHORT_ID_END:
            _skip(call, _high_path(paths, high), missing)
            return
    _ensure_high(call, paths, high + 1)


def _skip(call: Call, parent: str, count: int) -> None:
    """Draw so many numbers for nobody.

    Their nodes go in transactions, too: each one is synced to the servers' disks, and a damaged list of deleted
    ledgers takes thousands of numbers. Those that an error leaves go with our session.
    """
    call.ensure(parent)
    made: list[str] = []
    while count > 0 or made:
        some = min(count, SKIPPED_AT_ONCE)
        create = Op.create(f"{parent}/{_PREFIX}", ephemeral=True, sequence=True)
        deletions, made = [Op.delete(path) for path in made], []
        try:
            made = [str(path) for path in call.multi([create] * some + deletions)[:some]]
        except ResultUnknown:
            continue  # perhaps some more are skipped
        except NoNode:
            call.ensure(parent)  # or the nodes went with a session that was lost
            continue
        count -= some


def _next_number(call: Call, parent: str) -> int:
    """Return the number that the next sequential node gets, without drawing it."""
    node = call.exists(parent)
    return 0 if node is None else node.children_created


def _short_parent(paths: Paths, layout: Layout) -> str:
    return paths.root if layout is Layout.FLAT else paths.idgen


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
