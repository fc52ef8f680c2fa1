"""Explicit LACs out of the index's table and back into another one."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from tests.fixtures.index_harness import OK, IndexHarness


@pytest.fixture
def harness() -> Iterator[IndexHarness]:
    made = IndexHarness()
    yield made
    made.close()


def body(ledger_id: int, lac: int) -> bytes:
    return struct.pack(">qq", ledger_id, lac) + b"dig!"


def test_the_table_gives_what_writers_signed(harness: IndexHarness) -> None:
    for ledger_id in (1, 2):
        harness.add(ledger_id, 0, b"data")
    harness.publish()
    assert harness.index.explicit_lacs() == []
    before = harness.index.explicit_lacs_kept()
    for ledger_id in (1, 2):
        assert harness.ask_one(harness.write_lac(ledger_id, 7)).status == OK
    assert sorted(harness.index.explicit_lacs()) == [body(1, 7), body(2, 7)]
    assert harness.index.explicit_lacs_kept() == before + 2


def test_what_is_put_back_is_answered_again(harness: IndexHarness) -> None:
    for entry_id in (0, 1):
        harness.add(1, entry_id, b"data")
    harness.publish()
    assert harness.ask_one(harness.read_lac(1)).body == b""
    assert harness.index.put_explicit_lacs([body(1, 1)]) == 1
    answer = harness.ask_one(harness.read_lac(1))
    assert (answer.lac, answer.body) == (1, body(1, 1))


@pytest.mark.parametrize(
    "found",
    [body(2, 1), body(1, -1), body(-1, 1), b"", body(1, 1)[:15], body(1, 1) + bytes(100)],
    ids=["not here", "no LAC", "no ledger", "empty", "short", "long"],
)
def test_what_makes_no_sense_is_not_put_back(harness: IndexHarness, found: bytes) -> None:
    harness.add(1, 0, b"data")
    harness.publish()
    harness.settle()
    assert harness.index.put_explicit_lacs([found]) == 0
    assert harness.index.explicit_lacs() == []


def test_limbo_takes_none_back(harness: IndexHarness) -> None:
    """INV-X4: a LAC below one that was lost would be taken for the whole truth."""
    harness.add(1, 0, b"data")
    harness.publish()
    harness.settle()
    harness.index.put_in_limbo([1])
    assert harness.index.put_explicit_lacs([body(1, 1)]) == 0
