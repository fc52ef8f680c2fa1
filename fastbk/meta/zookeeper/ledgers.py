"""Ledgers in ZooKeeper: Apache's nodes, changed by compare-and-set on the node's version (INV-M1).

A result that got lost is looked up, never assumed: a creator knows its ledger by the creation token, a changer its
bytes by the version behind the one it named. Before a ledger is said not to be there the server is made to catch up:
an answer from behind would have bookies free what is alive.

Deleted ids are remembered in nodes of ours, one for 4,096 neighbours, written in the same transaction as the deletion;
a creation checks in its transaction that the node it read is still the same. Apache's own clients do neither.

Decisions 32 and 34.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import NamedTuple

from fastbk.errors import ConfigError, MetadataConflict, NoSuchLedger, StorageError
from fastbk.meta.api import (
    IdentityVersion,
    LedgerRead,
    VersionedLedger,
    deleted_before,
    ledger_read,
    one_ledger,
)
from fastbk.meta.records import bad_record
from fastbk.meta.rollback import MOVED_ID_END, RESERVE_IDS, decode_mark, raise_if_held
from fastbk.meta.zookeeper.paths import (
    DELETED_BUCKET_IDS,
    SHORT_ID_END,
    Layout,
    Paths,
    flat_ledger_id,
    forms_of,
    is_part,
    ledger_path,
    parts_of,
)
from fastbk.meta.zookeeper.session import (
    BadVersion,
    Call,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    ResultUnknown,
)
from fastbk.model.ids import LedgerId, check_ledger_id
from fastbk.model.ledger import LedgerMetadata

FIRST_VERSION = 0
METADATA_SIZE_MAX_BYTES = 1_000_000
"""ZooKeeper ends the connection of who sends it a packet above 1 MiB, without a word (jute.maxbuffer)."""
_READ_AT_ONCE = 500
_PARENTS_AT_ONCE = 64
"""Nodes whose children are asked for at once in a listing of ids."""
_NAMES_AT_ONCE = 20_000
"""Where so many children come at once, fewer nodes are asked next: one may have 10,000."""


class Ledgers:
    """The ledgers of one cluster."""

    def __init__(self, paths: Paths, layout: Layout) -> None:
        self._paths = paths
        self._layout = layout
        self._highest_drawn: LedgerId = -1
        # The id that was drawn last, and the deleted ids around it: its creation need not read them again.
        self._drawn: tuple[LedgerId, Node | None] = (-1, None)

    def path(self, ledger_id: LedgerId) -> str:
        """Return the path of a ledger's node. Raises ConfigError for an id that has none."""
        check_ledger_id(ledger_id)
        if ledger_id >= self._layout.id_end:
            raise ConfigError(f"ledger id {ledger_id}: the layout {self._layout.value} has 31 bits")
        return ledger_path(self._paths.root, self._layout, ledger_id)

    def next_id(self, call: Call) -> LedgerId:
        """Draw an id that no caller got before and no ledger, deleted ones included, ever had."""
        while True:
            call.again()
            before = self._highest_drawn
            drawn = draw(call, self._paths, self._layout)
            paths = [self.path(drawn), self._paths.deleted_bucket(drawn), self._paths.mark]
            taken, bucket, mark = call.get_all(paths)
            self._drawn = (drawn, bucket)
            floor = decode_mark(None if mark is None else mark.data or None).floor
            if drawn <= before:
                # The counter went back under our feet: what we drew since may be ledgers that bookies hold (INV-M3).
                floor = max(floor, before + RESERVE_IDS)
            if drawn <= floor:
                move_above(call, self._paths, self._layout, floor)
                continue
            self._highest_drawn = max(self._highest_drawn, drawn)
            if bucket is not None and not is_bucket(bucket.data):
                path = self._paths.deleted_bucket(drawn)
                bad_record(
                    path,
                    "a list of deleted ledgers is damaged; ids behind it are drawn: no id is used twice",
                )
                move_above(call, self._paths, self._layout, drawn | (DELETED_BUCKET_IDS - 1))
                continue
            # Somebody may have chosen this number himself before.
            if taken is None and not _is_deleted(bucket, drawn):
                return drawn

    def highest_drawn_id(self, call: Call) -> LedgerId:
        """Return the highest id that was drawn, by whatever server it was."""
        call.sync(self._paths.root)
        return highest_drawn(call, self._paths, self._layout)

    def move_ids_above(self, call: Call, ledger_id: LedgerId) -> None:
        """Have ids be drawn above this one only."""
        move_above(call, self._paths, self._layout, ledger_id)

    # --- one ledger --------------------------------------------------------------------------------------------

    def create(self, call: Call, ledger_id: LedgerId, metadata: LedgerMetadata) -> int:
        """Store a new ledger; return its version."""
        path, bucket_path = self.path(ledger_id), self._paths.deleted_bucket(ledger_id)
        raw = _checked_bytes(ledger_id, metadata)
        drawn, bucket = self._drawn
        if drawn != ledger_id:
            bucket = None
        while True:
            call.again()
            bucket = bucket or call.get(bucket_path)
            if bucket is None:
                call.ensure(bucket_path)
                continue
            if _is_deleted(bucket, ledger_id):
                raise deleted_before(ledger_id)
            try:
                call.multi([Op.check(bucket_path, bucket.version), Op.create(path, raw)])
            except NoNode:
                call.ensure(path.rpartition("/")[0])
                bucket = None
            except BadVersion:
                bucket = None  # a neighbour was deleted meanwhile
            except (NodeExists, ResultUnknown):
                call.sync(path)
                found = call.get(path)
                if found is None:
                    continue
                there = ledger_read(ledger_id, found.data, found.version)
                token = there.metadata.creation_token if isinstance(there, VersionedLedger) else 0
                if token == 0 or token != metadata.creation_token:
                    raise MetadataConflict(
                        f"ledger {ledger_id} exists already: choose another id", ledger_id=ledger_id
                    ) from None
                return FIRST_VERSION
            else:
                return FIRST_VERSION

    def read(self, call: Call, ledger_id: LedgerId) -> VersionedLedger:
        """Return a ledger's metadata and version."""
        found = self._find(call, ledger_id)
        return one_ledger(ledger_id, ledger_read(ledger_id, found.data, found.version))

    def read_all(self, call: Call, ledger_ids: Sequence[LedgerId]) -> list[LedgerRead]:
        """Return several ledgers' metadata, in their order; None for those that are not there."""
        paths = [self.path(ledger_id) for ledger_id in ledger_ids]
        nodes: dict[str, Node | None] = {}
        for start in range(0, len(paths), _READ_AT_ONCE):
            some = paths[start : start + _READ_AT_ONCE]
            nodes.update(zip(some, call.get_all(some), strict=True))
        missing = [path for path in paths if nodes[path] is None]
        if missing:
            # As for a single one: what a server that is behind does not know may well be there.
            call.sync(self._paths.root)
            nodes.update(zip(missing, call.get_all(missing), strict=True))
        return [
            None if node is None else ledger_read(ledger_id, node.data, node.version)
            for ledger_id, node in zip(ledger_ids, (nodes[path] for path in paths), strict=True)
        ]

    def _find(self, call: Call, ledger_id: LedgerId) -> Node:
        path = self.path(ledger_id)
        found = call.get(path)
        if found is None:
            call.sync(path)
            found = call.get(path)
        if found is None:
            raise NoSuchLedger(f"there is no ledger {ledger_id}", ledger_id=ledger_id)
        return found

    def update(
        self,
        call: Call,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        version: int,
        if_identity: IdentityVersion | None = None,
    ) -> int:
        """Replace a ledger's metadata if it still has `version`; return the new version (INV-M1).

        `if_identity`: of a bookie that must not have been started, or have lost its data, since it was read.
        """
        path, raw = self.path(ledger_id), _checked_bytes(ledger_id, metadata)
        is_unknown = False
        while True:
            call.again()
            try:
                if if_identity is None:
                    call.set(path, raw, version)
                else:
                    identity_path = self._paths.identity(if_identity.bookie_id)
                    check = Op.check(identity_path, if_identity.version)
                    call.multi([check, Op.set(path, raw, version)])
            except ResultUnknown:
                is_unknown = True
                call.sync(path)
            except (NoNode, BadVersion):
                pass
            else:
                return version + 1
            found = self._find(call, ledger_id)
            if is_unknown and found.version == version + 1 and found.data == raw:
                return version + 1
            if found.version != version:
                # Once more than one change lies between, nobody knows whether ours was the first of them.
                ours_is_possible = is_unknown and found.version > version + 1
                raise MetadataConflict(
                    f"ledger {ledger_id} was changed by somebody else: read it again",
                    ledger_id=ledger_id,
                    outcome="unknown" if ours_is_possible else "not_written",
                )
            if if_identity is not None:
                identity = call.get(self._paths.identity(if_identity.bookie_id))
                if identity is None or identity.version != if_identity.version:
                    raise if_identity.changed()

    def delete(self, call: Call, ledger_id: LedgerId, version: int | None) -> None:
        """Remove a ledger (if it still has `version`), remember its id, and take away parents that are empty.

        Raises MetadataOnHold while metadata is on hold (INV-M4).
        """
        path, bucket_path = self.path(ledger_id), self._paths.deleted_bucket(ledger_id)
        offset = ledger_id % DELETED_BUCKET_IDS
        is_unknown = False
        while True:
            call.again()
            found, bucket, hold = call.get_all([path, bucket_path, self._paths.hold])
            if is_unknown and found is None and _is_deleted(bucket, ledger_id):
                break
            raise_if_held(None if hold is None else hold.data or None)
            if found is None:
                self._find(call, ledger_id)  # raises unless the server was behind
                continue
            if version is not None and found.version != version:
                raise MetadataConflict(
                    f"ledger {ledger_id} was changed by somebody else: read it again",
                    ledger_id=ledger_id,
                )
            if bucket is None:
                call.ensure(bucket_path)
                continue
            ops = [
                Op.delete(path, found.version),
                Op.set(bucket_path, with_offset(bucket.data, offset), bucket.version),
            ]
            if hold is not None:
                ops.append(Op.check(self._paths.hold, hold.version))
            try:
                call.multi(ops)
                break
            except (NoNode, BadVersion):
                continue  # a neighbour was deleted, or this one changed: look again
            except ResultUnknown:
                is_unknown = True
                call.sync(path)
        self._remove_empty_parents(call, path)

    def _remove_empty_parents(self, call: Call, path: str) -> None:
        """Best effort: a parent left behind costs a little memory, and the next deletion there tries again."""
        with suppress(NotEmpty, NoNode, BadVersion, ResultUnknown):
            while (path := path.rpartition("/")[0]) != self._paths.root:
                call.delete(path)

    # --- all ledgers -------------------------------------------------------------------------------------------

    def page(self, call: Call, after: LedgerId, count_max: int) -> list[LedgerId]:
        """Return up to `count_max` ids above `after`, ascending; fewer only at the end."""
        # What was created before this call must be seen, whichever server it was told.
        call.sync(self._paths.root)
        found: list[LedgerId] = []
        for some in self._walk(call, after):
            found += some
            if len(found) >= count_max:
                break
        return found[:count_max]

    def _walk(self, call: Call, after: LedgerId) -> Iterator[list[LedgerId]]:
        """Yield all ids above `after`, ascending, some at a time."""
        names = call.children(self._paths.root) or []
        if self._layout is Layout.FLAT:
            known = (flat_ledger_id(name) for name in names)
            yield sorted(one for one in known if one is not None and one > after)
            return
        for form in forms_of(self._layout):
            if after < 10 ** sum(form):
                root = _Parent(self._paths.root, "", parts_of(form, after + 1))
                for some in self._walk_below(call, _parents_in(root, names, form[0]), form[1:]):
                    yield [one for one in some if one > after]

    def _walk_below(
        self, call: Call, parents: Iterator[_Parent], form: tuple[int, ...], count: int = 1
    ) -> Iterator[list[LedgerId]]:
        """Yield the ids below these nodes of one level, which are in order; `form`: of the levels below.

        The children of `count` nodes are asked for at once, then of more: a short page needs those of one.
        """
        while some := list(islice(parents, count)):
            # A parent that is gone by now held nothing that is there all the time.
            listed = [names or [] for names in call.children_all([one.path for one in some])]
            if len(form) == 1:
                for one, names in zip(some, listed, strict=True):
                    leaves = (name for name in names if is_part(name, form[0], is_leaf=True))
                    yield sorted(int(one.digits + name[1:]) for name in leaves)
            else:
                pairs = zip(some, listed, strict=True)
                below = chain.from_iterable(
                    _parents_in(one, names, form[0]) for one, names in pairs
                )
                yield from self._walk_below(call, below, form[1:], count)
            is_small = sum(map(len, listed)) < _NAMES_AT_ONCE
            count = min(2 * count, _PARENTS_AT_ONCE) if is_small else max(count // 2, 1)


class _Parent(NamedTuple):
    """A node above ledgers.

    Attributes:
        path: of the node.
        digits: of the ids below it, as its path has them.
        floor: names of the levels below, before which no id is wanted; empty: all are.
    """

    path: str
    digits: str
    floor: list[str]


def _parents_in(parent: _Parent, names: Iterable[str], digits: int) -> Iterator[_Parent]:
    """Yield the nodes directly below a node that ledgers may be below, in order. `digits`: of their names."""
    floor = parent.floor
    for name in sorted(one for one in names if is_part(one, digits, is_leaf=False)):
        if floor and name < floor[0]:
            continue
        rest = floor[1:] if floor and name == floor[0] else []
        yield _Parent(f"{parent.path}/{name}", parent.digits + name, rest)


def _checked_bytes(ledger_id: LedgerId, metadata: LedgerMetadata) -> bytes:
    raw = metadata.to_bytes()
    if len(raw) > METADATA_SIZE_MAX_BYTES:
        raise ConfigError(
            f"the metadata of ledger {ledger_id} has {len(raw)} bytes, ZooKeeper takes"
            f" {METADATA_SIZE_MAX_BYTES}: keep large values in a ledger, not in its custom metadata"
        )
    return raw


def _is_deleted(bucket: Node | None, ledger_id: LedgerId) -> bool:
    return bucket is not None and has_offset(bucket.data, ledger_id % DELETED_BUCKET_IDS)


# --- ids ---------------------------------------------------------------------------------------------------------
#
# Draws ledger ids as Apache does: the numbers that ZooKeeper gives to sequential nodes.
#
# Ids of 31 bits come from `idgen/ID-` (in the flat layout from `ID-` beside the ledgers). When
# those are used up, ids of 63 bits come from `idgen-long/HOB-<high half>/ID-`; once `idgen-long` is
# there it is always used, whoever made it. No number is given twice as long as the parent of the
# nodes exists.


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


_RANGE = re.compile(rb"(\d{1,4})(?:-(\d{1,4}))?")


# --- deleted ids -------------------------------------------------------------------------------------------------


def is_bucket(raw: bytes) -> bool:
    """Return whether a bucket's text can be read."""
    return _ranges(raw) is not None


def has_offset(raw: bytes, offset: int) -> bool:
    """Return whether a bucket's text names `offset`. One that nobody can read names all: no id is used twice."""
    ranges = _ranges(raw)
    return ranges is None or any(first <= offset <= last for first, last in ranges)


def with_offset(raw: bytes, offset: int) -> bytes:
    """Return a bucket's text with `offset` added; one that nobody can read is replaced by all of them."""
    ranges = _ranges(raw)
    if ranges is None:
        return b"0-%d" % (DELETED_BUCKET_IDS - 1)
    merged: list[tuple[int, int]] = []
    for first, last in sorted([*ranges, (offset, offset)]):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return ",".join(f"{a}-{b}" if a != b else f"{a}" for a, b in merged).encode()


def _ranges(raw: bytes) -> list[tuple[int, int]] | None:
    """Return the ranges of a bucket's text; None: nobody can read it."""
    ranges = []
    for part in filter(None, raw.split(b",")):
        match = _RANGE.fullmatch(part)
        if match is None:
            return None
        first = int(match[1])
        last = int(match[2] or first)
        if not first <= last < DELETED_BUCKET_IDS:
            return None
        ranges.append((first, last))
    return ranges
