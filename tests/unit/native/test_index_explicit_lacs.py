"""Explicit LACs out of the index's table and back into another one."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from fastbk.native import explicit_lacs
from tests.fixtures.index_harness import OK, IndexRig


@pytest.fixture
def rig() -> Iterator[IndexRig]:
    made = IndexRig()
    yield made
    made.close()


def body(ledger_id: int, lac: int) -> bytes:
    return struct.pack(">qq", ledger_id, lac) + b"dig!"


def test_the_table_gives_what_writers_signed(rig: IndexRig) -> None:
    for ledger_id in (1, 2):
        rig.add(ledger_id, 0, b"data")
    rig.publish()
    assert explicit_lacs.bodies(rig.index) == []
    before = explicit_lacs.count(rig.index)
    for ledger_id in (1, 2):
        assert rig.ask_one(rig.write_lac(ledger_id, 7)).status == OK
    assert sorted(explicit_lacs.bodies(rig.index)) == [body(1, 7), body(2, 7)]
    assert explicit_lacs.count(rig.index) == before + 2


def test_what_is_put_back_is_answered_again(rig: IndexRig) -> None:
    for entry_id in (0, 1):
        rig.add(1, entry_id, b"data")
    rig.publish()
    assert rig.ask_one(rig.read_lac(1)).body == b""
    assert explicit_lacs.put(rig.index, [body(1, 1)]) == 1
    answer = rig.ask_one(rig.read_lac(1))
    assert (answer.lac, answer.body) == (1, body(1, 1))


@pytest.mark.parametrize(
    "found",
    [body(2, 1), body(1, -1), body(-1, 1), b"", body(1, 1)[:15], body(1, 1) + bytes(100)],
    ids=["not here", "no LAC", "no ledger", "empty", "short", "long"],
)
def test_what_makes_no_sense_is_not_put_back(rig: IndexRig, found: bytes) -> None:
    rig.add(1, 0, b"data")
    rig.publish()
    rig.settle()
    assert explicit_lacs.put(rig.index, [found]) == 0
    assert explicit_lacs.bodies(rig.index) == []


def test_limbo_takes_none_back(rig: IndexRig) -> None:
    """INV-X4: a LAC below one that was lost would be taken for the whole truth."""
    rig.add(1, 0, b"data")
    rig.publish()
    rig.settle()
    rig.index.put_in_limbo([1])
    assert explicit_lacs.put(rig.index, [body(1, 1)]) == 0
