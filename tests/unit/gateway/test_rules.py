"""What a change of a chain needs: changes that writers and janitors make, and changes that nobody makes honestly.

INV-W3, INV-W4.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import msgspec
import pytest
from msgspec.structs import replace as with_fields

from fastbk.errors import Unauthorized
from fastbk.gateway.ledger_rules import needs_of_creation, needs_of_deletion, needs_of_update
from fastbk.gateway.rules import (
    WRITE,
    ChangeNeeds,
    ForbiddenChange,
    change_of,
)
from fastbk.model.entry import DigestType
from fastbk.model.ledger import Fragment, LedgerMetadata, LedgerState
from fastbk.replication.ack_domains import ACK_DOMAINS_KEY
from fastbk.security.rights import ROLES, Right
from fastbk.stream import chain as chains
from fastbk.stream.chain import NONE, Chain, Contents, PageRef, Segment, SegmentState
from fastbk.stream.positions import DLSN

if TYPE_CHECKING:
    from collections.abc import Callable

WRITER = ROLES["writer"]


def contents(chain: Chain, number: int, records: int) -> Contents:
    first = max(chain.last_txid, 0)
    last = DLSN(number, records // 3, records % 3) if records else None
    return Contents(records, first, first + records, 10, 20, last, -1, 100 * records)


def ended(chain: Chain, records: int) -> Chain:
    row = chain.open_rows[0]
    return chains.close_segment(chain, row.ledger_id, contents(chain, row.number, records))


@cache
def chain_with(closed: int, opened: int = 0) -> Chain:
    """Return a chain of so many closed segments, and open ones behind them; ledgers are numbered from 101."""
    chain = chains.open_for_append(Chain("a"), "w")
    for number in range(closed + opened):
        chain = chains.reserve(chain, chain.epoch, 101 + number)
        chain = chains.add_segment(chain, chain.epoch, 101 + number, 5)
        if number < closed:
            chain = ended(chain, 10)
    return chain


def judged(
    old: Chain, new: Chain | None, pages: dict[PageRef, tuple[Segment, ...]] | None = None
) -> ChangeNeeds:
    return change_of("a", old, new, pages or {}, 10**15)


def allowed(change: ChangeNeeds, rights: Right) -> bool:
    return all(rights & need.rights for need in change.needs)


class Life:
    """A chain under changes that are made, one at a time, as writers and janitors make them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.chain = Chain("a")
        self.ledger_id = 0

    def steps(self) -> list[tuple[str, Callable[[], Chain]]]:
        chain, rng = self.chain, self.rng
        found: list[tuple[str, Callable[[], Chain]]] = []
        if not chain.open_rows:
            found.append(("write", lambda: chains.open_for_append(chain, f"w{rng.random()}")))
        if chain.epoch and chain.reserved == NONE and len(chain.open_rows) < 2:
            found.append(("write", lambda: chains.reserve(chain, chain.epoch, self._drawn())))
        if chain.reserved != NONE and len(chain.open_rows) < 2:
            found.append(
                ("write", lambda: chains.add_segment(chain, chain.epoch, chain.reserved, 5))
            )
        if chain.open_rows:
            found.append(("write", lambda: ended(chain, rng.choice((0, 1, 50)))))
        if chain.doomed:
            found.append(("write", lambda: chains.forget_deleted(chain, chain.doomed[:1])))
        if chain.rows and not chain.rows[0].is_open:
            at = rng.choice([row for row in chain.rows if not row.is_open]).number
            found.append(("truncate", lambda: chains.truncate(chain, DLSN(at, 1, 0))))
            found.append(("truncate", lambda: chains.mark_deleting(chain, at)))
        if chain.head < chain.deleting:
            row = chain.row(chain.deleting - 1)
            assert row is not None
            found.append(
                ("delete", lambda: chains.drop_deleted(chain, row.number + 1, row.end_seq))
            )
        return found

    def _drawn(self) -> int:
        self.ledger_id += 1
        return self.ledger_id


@pytest.mark.parametrize("seed", range(20))
def test_what_writers_do_needs_no_more_than_to_add(seed: int) -> None:
    life = Life(random.Random(seed))
    seen = set()
    for _ in range(200):
        kind, step = life.rng.choice(life.steps())
        after = step()
        if after != life.chain:
            change = judged(life.chain, after)
            assert allowed(change, WRITER) == (kind == "write"), (kind, change, life.chain, after)
            assert allowed(change, WRITER | Right.TRUNCATE | Right.DELETE)
            assert allowed(change, WRITER | Right.TRUNCATE) == (kind != "delete")
            seen.add(kind)
        life.chain = after
    assert seen >= {"write", "truncate"}


def readable(chain: Chain) -> set[tuple[object, ...]]:
    """Return what readers can read in closed segments: of each its rows' facts, and where it begins."""
    return {(row, max(chain.trim, DLSN(row.number, 0, 0)))
            for row in chain.rows if not row.is_open and row.number >= chain.trim.segment}  # fmt: skip


def mutated(rng: random.Random, chain: Chain) -> Chain:
    """Return a chain with one to three of its values changed to others of their kind."""
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(Chain.__struct_fields__)
        value = getattr(chain, name)
        new: object = value
        if name == "rows" and chain.rows:
            rows = list(chain.rows)
            at = rng.randrange(len(rows))
            which = rng.choice(("drop", "change", "swap", "double"))
            if which == "drop":
                del rows[at]
            elif which == "change":
                field = rng.choice(("ledger_id", "records", "last_entry_id", "number", "epoch"))
                rows[at] = with_fields(
                    rows[at], **{field: getattr(rows[at], field) + rng.choice((-1, 1, 7))}
                )
            elif which == "swap":
                rows[at] = with_fields(rows[at], state=rng.choice(list(SegmentState)))
            else:
                rows.append(with_fields(rows[at], number=chain.next_number))
            new = tuple(rows)
        elif name == "doomed":
            new = (*value, rng.randint(100, 110))
        elif isinstance(value, bool):
            new = not value
        elif isinstance(value, int):
            new = value + rng.choice((-2, -1, 1, 2, 100))
        elif name in ("trim", "last_dlsn"):
            new = DLSN(rng.randint(1, 6), rng.randint(0, 4), 0)
        chain = with_fields(chain, **{name: new})
    return chain


def test_no_change_of_a_writer_takes_anything_from_readers() -> None:
    """20,000 chains with random values: INV-W3, INV-W4."""
    rng = random.Random(7)
    refused = accepted = 0
    for _ in range(20_000):
        old = chain_with(rng.randint(0, 3), rng.randint(0, 2))
        new = mutated(rng, old)
        try:
            change = judged(old, new)
        except ForbiddenChange:
            refused += 1
            continue
        if not allowed(change, WRITER):
            continue
        accepted += 1
        lost = readable(old) - readable(new)
        assert not lost, (old, new)
        segments = {row.ledger_id for row in old.rows if not row.is_open}
        assert not segments & set(new.doomed), (old, new)
        named = set(new.doomed) - set(old.doomed)
        assert named <= {old.reserved, *(row.ledger_id for row in old.open_rows)}, (old, new)
        for row in new.rows:
            assert row in old.rows or row.ledger_id in (*change.attached, old.reserved, *(
                one.ledger_id for one in old.open_rows)), (old, new)  # fmt: skip
    assert refused > 5000 and accepted > 500


def test_a_record_names_a_ledger_for_deletion_only_if_it_named_it_before() -> None:
    """INV-W4: the janitor would delete another's ledger."""
    old = chain_with(2, 1)
    with pytest.raises(ForbiddenChange, match="was not the stream's to delete"):
        judged(old, with_fields(old, doomed=(999,)))
    with pytest.raises(ForbiddenChange, match="was not the stream's to delete"):
        judged(old, with_fields(old, doomed=(101,)))
    # By way of a reservation, it has to be an id that no ledger has.
    assert judged(old, with_fields(old, reserved=999)).fresh == (999,)
    taken = judged(with_fields(old, reserved=999), with_fields(old, doomed=(999,)))
    assert taken.deleted == (999,)


def test_a_ledger_that_is_attached_has_to_be_the_streams() -> None:
    old = chain_with(1)
    new = chains.attach(old, ((555, contents(old, 2, 10)),), "key", 0, 5)
    assert judged(old, new).attached == (555,)


def test_what_an_ended_segment_has_is_compared_with_its_ledger() -> None:
    old = chain_with(1, 1)
    assert judged(old, ended(old, 10)).ended == ((102, 3),)
    assert judged(old, ended(old, 0)).ended == ((102, NONE),)


def test_pages_have_the_rows_that_they_are_named_for() -> None:
    old = chain_with(4)
    new, page, rows = chains.spill(old, 2, 77)
    assert allowed(judged(old, new, {page: rows}), WRITER)
    other = (with_fields(rows[0], ledger_id=999), rows[1])
    with pytest.raises(ForbiddenChange):
        judged(old, new, {page: other})
    with pytest.raises(ForbiddenChange):
        judged(
            old,
            with_fields(new, pages=(with_fields(page, size_bytes=1),)),
            {with_fields(page, size_bytes=1): rows},
        )
    with pytest.raises(ForbiddenChange):
        judged(new, with_fields(new, pages=()))
    assert not allowed(judged(new, with_fields(new, pages=(), head=3, deleting=3)), WRITER)


def test_a_stream_that_is_deleted_is_deleted_by_those_who_may() -> None:
    old = chain_with(2, 1)
    condemned = chains.condemn(old)
    change = judged(old, condemned)
    assert not allowed(change, WRITER | Right.TRUNCATE)
    assert allowed(change, Right.DELETE)
    assert not allowed(judged(old, None), WRITER | Right.TRUNCATE)
    gone = chains.drop_condemned(condemned, condemned.next_number)
    assert allowed(judged(condemned, gone), Right.DELETE)
    with pytest.raises(ForbiddenChange):
        judged(condemned, old)


# What a change of a ledger needs, for every pair of small metadata. INV-W1, INV-W2.


A, B, C = "a:1", "b:1", "c:1"
BASE = LedgerMetadata(
    ensemble_size=2, write_quorum=2, ack_quorum=2, fragments=(Fragment(0, (A, B)),), password=b"secret",
    creation_token=7, created_ms=1,
)  # fmt: skip
FRAGMENTS = (
    (Fragment(0, (A, B)),),
    (Fragment(0, (A, C)),),
    (Fragment(0, (A, B)), Fragment(5, (A, C))),
    (Fragment(0, (B, C)), Fragment(5, (A, C))),
    (Fragment(0, (A, B)), Fragment(2, (A, C))),
    (Fragment(3, (A, B)),),
)
ENDS = ((LedgerState.OPEN, -1, 0), (LedgerState.IN_RECOVERY, -1, 0), (LedgerState.CLOSED, -1, 0),
        (LedgerState.CLOSED, 9, 90), (LedgerState.CLOSED, 4, 40), (LedgerState.CLOSED, 3, 30))  # fmt: skip
CUSTOM: tuple[dict[str, bytes], ...] = ({}, {"app": b"1"}, {"fastbk.namespace": b"shop"}, {"fastbk.stream": b"s1"},
          {"fastbk.stream": b"s2"}, {"fastbk.stream": b"s1", "fastbk.namespace": b"shop"},
          {"fastbk.cursor": b"c"})  # fmt: skip
ALL = [
    replace(
        BASE, fragments=fragments, state=state, last_entry_id=last, length=length, custom=custom
    )
    for fragments, (state, last, length), custom in itertools.product(FRAGMENTS, ENDS, CUSTOM)
]


def is_sound(old: LedgerMetadata, new: LedgerMetadata) -> bool:
    """Whether anybody may make a change: said again, in other words than the rules."""
    if old.is_closed:
        same_end = (new.state, new.last_entry_id, new.length) == (
            old.state,
            old.last_entry_id,
            old.length,
        )
    else:
        same_end = new.state >= old.state
    if not old.is_closed and new.is_closed:
        same_end = new.last_entry_id + 1 >= old.fragments[-1].first_entry_id
    return same_end and old.fragments[0].first_entry_id == new.fragments[0].first_entry_id


def needed(old: LedgerMetadata, new: LedgerMetadata) -> list[Right]:
    """Each of what one bit is enough for."""
    found = []
    if old.state is LedgerState.OPEN and new.state is LedgerState.IN_RECOVERY:
        found.append(Right.RECOVER)
    if new.is_closed and not old.is_closed:
        found.append(Right.ADD | Right.RECOVER)
    if old.fragments != new.fragments:
        *earlier, last = old.fragments
        moves_copies = old.is_closed or not (
            [*new.fragments][: len(earlier)] == earlier
            and all(
                one.first_entry_id >= last.first_entry_id for one in new.fragments[len(earlier) :]
            )
        )
        found.append(Right.ADMIN if moves_copies else Right.ADD | Right.RECOVER)
    if old.custom.get("app") != new.custom.get("app"):
        found.append(Right.ADD)
    attaches = "fastbk.stream" not in old.custom and "fastbk.stream" in new.custom
    for key in ("fastbk.namespace", "fastbk.cursor", "fastbk.stream"):
        before, after = old.custom.get(key), new.custom.get(key)
        if before != after:
            is_mark = attaches and key != "fastbk.cursor" and before is None
            found.append(Right.DELETE if is_mark else Right.ADMIN)
    return found


CHANGES = Right.ADD | Right.RECOVER | Right.ADMIN | Right.DELETE


@cache
def too_weak(needs: tuple[Right, ...], wanted: tuple[Right, ...]) -> list[Right]:
    """Return the sets of rights that satisfy the needs, and are not enough or change nothing at all."""
    return [
        rights
        for rights in map(Right, range(128))
        if all(rights & need for need in needs)
        and not (rights & CHANGES and all(rights & one for one in wanted))
    ]


def test_no_change_needs_less_than_its_difference_does() -> None:
    """Every pair of 252 small values: 63,504 changes, with all sets of rights. INV-W1"""
    refused = allowed = 0
    for old, new in itertools.product(ALL, ALL):
        try:
            needs = needs_of_update(old, new)
        except ForbiddenChange:
            assert not is_sound(old, new), (old, new)
            refused += 1
            continue
        assert is_sound(old, new), (old, new)
        allowed += 1
        weak = too_weak(tuple(need.rights for need in needs), tuple(needed(old, new)))
        assert not weak, (old, new, weak)
    assert refused > 1000 and allowed > 1000


@pytest.mark.parametrize(
    "changed",
    [
        replace(BASE, password=b"other"),
        replace(BASE, password=None),
        replace(BASE, digest_type=DigestType.DUMMY),
        replace(BASE, ack_quorum=1),
        replace(BASE, write_quorum=1, ack_quorum=1),
        replace(BASE, creation_token=8),
        replace(BASE, created_ms=2),
        replace(BASE, unknown_fields=b"\x7a\x01x"),
        replace(BASE, ensemble_size=3, fragments=(Fragment(0, (A, B, C)),)),
    ],
    ids=[
        "password",
        "no password",
        "digest",
        "ack quorum",
        "write quorum",
        "token",
        "created",
        "unknown",
        "ensemble",
    ],
)
def test_what_never_changes_nobody_changes(changed: LedgerMetadata) -> None:
    """INV-W2"""
    for old, new in ((BASE, changed), (BASE, changed.closed(9, 90))):
        with pytest.raises(ForbiddenChange):
            needs_of_update(old, new)


def test_a_writer_says_where_the_members_are_that_it_names() -> None:
    """And nothing else of what an append waits for: recoveries believe it (INV-P5)."""

    def domains(racks: int, **of: str) -> dict[str, bytes]:
        return {ACK_DOMAINS_KEY: msgspec.json.encode({"racks": racks, "of": of})}

    here = replace(BASE, custom=domains(2, a="/r1", b="/r2"))
    changed = (Fragment(0, (A, B)), Fragment(5, (A, C)))
    for custom, fragments, right in (
        (domains(2, a="/r1", c="/r3"), changed, WRITE),
        (domains(3, a="/r1", c="/r3"), changed, Right.ADMIN),
        (domains(2, a="/r3", b="/r2"), here.fragments, Right.ADMIN),
        ({}, changed, Right.ADMIN),
    ):
        needs = needs_of_update(here, replace(here, custom=custom, fragments=fragments))
        assert [need.rights for need in needs][-1] == right
    added = replace(BASE, custom=domains(2, a="/r1", c="/r3"), fragments=changed)
    assert needs_of_update(BASE, added)[-1].rights == Right.ADMIN


def test_a_refusal_is_one_of_rights_for_clients() -> None:
    assert issubclass(ForbiddenChange, Unauthorized)


def test_a_ledger_is_created_open_or_as_one_without_entries() -> None:
    for new in ALL:
        if new.state is LedgerState.OPEN or (new.is_closed and new.last_entry_id == -1):
            assert [need.rights for need in needs_of_creation(new)] == [Right.ADD]
        else:
            with pytest.raises(ForbiddenChange):
                needs_of_creation(new)


def test_only_what_holds_nothing_for_readers_is_deleted_without_the_right_to() -> None:
    writer = ROLES["writer"]
    for old in ALL:
        (need,) = needs_of_deletion(old)
        assert need.rights & Right.DELETE
        is_empty = old.is_closed and old.last_entry_id == -1
        assert bool(need.rights & writer) == is_empty
    cursor = replace(BASE, custom={"fastbk.stream": b"s", "fastbk.cursor": b"c"})
    assert needs_of_deletion(cursor)[0].rights & writer
