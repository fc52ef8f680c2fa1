"""What a change of a ledger needs, for every pair of small metadata. INV-W1, INV-W2."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import pytest

from fastbk.errors import Unauthorized
from fastbk.gateway.rules import (
    ForbiddenChange,
    needs_of_creation,
    needs_of_deletion,
    needs_of_update,
)
from fastbk.model.entry import DigestType
from fastbk.model.ledger import Fragment, LedgerMetadata, LedgerState
from fastbk.security.rights import ROLES, Right

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
