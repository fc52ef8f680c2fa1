"""The owner's table: what bounds it, and what it says where no world looks. Worlds judge all else, INV-S26 among it."""

from __future__ import annotations

import pytest

from fastbk.errors import ProducerExpired, TooManyProducers
from fastbk.producers.table import (
    NO_NUMBER,
    Frame,
    NotNext,
    OwnerTable,
    TableOptions,
)
from fastbk.stream.provenance import Provenance, Row, read_table

DAY_US = 24 * 3600 * 1_000_000


def test_a_full_table_refuses_an_opening_until_a_name_is_old() -> None:
    """INV-S27. The name that is left out is in no whole table any more."""
    table = OwnerTable({}, 1, TableOptions(names_max=2, age_us=DAY_US))
    for name in (b"a", b"b"):
        table.open(name, 0)
    table.entry(0, 0)
    table.take(Frame(b"b", 1 << 32 | 2, NO_NUMBER, (0,)), DAY_US)
    with pytest.raises(TooManyProducers):
        table.open(b"c", DAY_US)
    table.open(b"c", DAY_US + 1)
    provenance = table.entry(0, DAY_US + 1)
    assert [row.name for row in provenance.rows] == [b"b", b"c"]
    assert provenance.distance == 0


def test_a_takeover_reads_no_more_than_its_bound() -> None:
    """INV-S23: in entries, and in bytes with those of the entry that has the whole table."""
    table = OwnerTable({}, 1, TableOptions(entries_max=5, bytes_max=1000))
    row = table.open(b"a", 0)
    entries: list[tuple[int, Provenance]] = []
    for number in range(200):
        table.take(Frame(b"a", row.incarnation, number - 1, (number,)), 0)
        entry_bytes = 10 if number < 100 else 400
        entries.append((entry_bytes, table.entry(entry_bytes, 0)))
        distance = entries[-1][1].distance
        back = entries[len(entries) - 1 - distance :]
        assert len(back) <= 5
        assert sum(size for size, _ in back) <= 1000
        rows = read_table(back[-1][1], lambda before: entries[-1 - before][1])
        assert rows == {b"a": Row(b"a", row.incarnation, number, 0)}
    assert {provenance.distance for _, provenance in entries[:100]} == set(range(5))
    assert max(provenance.distance for _, provenance in entries[101:]) == 1


def test_a_frame_that_was_stored_in_part_is_completed() -> None:
    """INV-S24, INV-S25."""
    table = OwnerTable({b"a": Row(b"a", 7, 12, 0)}, 1)
    assert table.take(Frame(b"a", 7, 9, (10, 11, 12, 15)), 0) == 3
    assert table.take(Frame(b"a", 7, 9, (10, 11, 12, 15)), 0) == 4
    with pytest.raises(NotNext):
        table.take(Frame(b"a", 7, 16, (17,)), 0)


def test_a_random_name_leaves_the_table_when_its_producer_is_closed() -> None:
    """INV-S27: what comes late of it is not stored, and no other name goes that way."""
    table = OwnerTable({}, 1)
    drawn, named = table.open(b"~drawn", 0), table.open(b"named", 0)
    table.close(b"~drawn", drawn.incarnation)
    assert b"~drawn" in table.rows, "its opening is in no entry yet"
    table.entry(0, 0)
    table.close(b"~drawn", drawn.incarnation - 1)
    assert b"~drawn" in table.rows, "another one opened it"
    table.close(b"~drawn", drawn.incarnation)
    table.close(b"named", named.incarnation)
    assert set(table.rows) == {b"named"}
    with pytest.raises(ProducerExpired):
        table.take(Frame(b"~drawn", drawn.incarnation, NO_NUMBER, (0,)), 0)


def test_a_random_name_is_old_after_an_hour() -> None:
    table = OwnerTable({}, 1)
    table.open(b"~drawn", 0)
    table.open(b"named", 0)
    table.entry(0, 0)
    table.begin_segment()
    provenance = table.entry(0, 3601 * 1_000_000)
    assert [row.name for row in provenance.rows] == [b"named"]
