"""The owner's table: what bounds it, and what it says where no world looks. Worlds judge all else, INV-S26 among it."""

from __future__ import annotations

import pytest

from fastbk.errors import ProducerExpired, TooManyProducers
from fastbk.producers.table import (
    CLOSED_MAX,
    NAMES_KEPT,
    NAMES_MAX,
    NO_NUMBER,
    Frame,
    NotNext,
    OwnerTable,
    TableOptions,
)
from fastbk.stream.provenance import Provenance, Row, put_rows, read_table

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


def test_openings_that_are_refused_look_at_the_names_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of them are packed in one turn of the service's loop."""
    table = OwnerTable({}, 1, TableOptions(names_max=100))
    for number in range(100):
        table.open(b"%d" % number, number)
    table.entry(0, 100)
    looks: list[int] = []
    forget = OwnerTable._forget

    def counted(self: OwnerTable, now_us: int) -> None:
        looks.append(now_us)
        forget(self, now_us)

    monkeypatch.setattr(OwnerTable, "_forget", counted)
    for now_us in range(200, 300):
        with pytest.raises(TooManyProducers):
            table.open(b"new", now_us)
    assert len(looks) <= 1
    hours = range(1, 169)
    for hour in hours:
        with pytest.raises(TooManyProducers):
            table.open(b"new", hour * 3600 * 1_000_000)
    table.open(b"new", 7 * DAY_US + 1)
    assert len(looks) <= 1 + len(hours)


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


def test_rows_count_in_what_a_takeover_reads() -> None:
    """INV-S23: many producers with little records have more bytes of rows than of records."""
    table, size_bytes = OwnerTable({}, 1, TableOptions(bytes_max=10_000)), 0
    opened = [table.open(b"till-%d" % number, 0) for number in range(20)]
    table.entry(0, 0)
    for number in range(200):
        for row in opened:
            table.take(Frame(row.name, row.incarnation, number - 1, (number,)), 0)
        provenance = table.entry(100, 0)
        size_bytes = 100 + (
            0 if provenance.is_whole else size_bytes + len(put_rows(provenance.rows))
        )
        assert size_bytes <= 10_000


@pytest.mark.parametrize("names", [0, NAMES_MAX - 100])
def test_names_that_were_closed_do_not_come_back_by_thousands(names: int) -> None:
    """INV-S27: a takeover finds those again that left since the newest whole table, and has to have room for others."""
    rows = {b"%d" % number: Row(b"%d" % number, 1, 0, 0) for number in range(names)}
    table, entries = OwnerTable(rows, 1), []
    for number in range(3000):
        drawn = [table.open(b"~%d-%d" % (number, index), 0) for index in range(5)]
        entries.append(table.entry(0, 0))
        for row in drawn:
            table.close(row.name, row.incarnation)
    back = entries[len(entries) - 1 - entries[-1].distance :]
    found = read_table(back[-1], lambda before: back[-1 - before])
    assert len(found) <= min(NAMES_MAX, names + CLOSED_MAX + 5)
    assert len(table.rows) == names


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


def test_a_wrong_clock_forgets_nobody_of_a_few() -> None:
    """INV-S27: who is forgotten begins without a last number, and may store again what is there."""
    rows = {b"%d" % number: Row(b"%d" % number, 1, 5, 0) for number in range(NAMES_KEPT)}
    assert OwnerTable(dict(rows), 1).entry(0, 30 * DAY_US).rows == tuple(rows.values())
    rows[b"one more"] = Row(b"one more", 1, 5, 0)
    assert OwnerTable(dict(rows), 1).entry(0, 30 * DAY_US).rows == ()


def test_a_random_name_is_old_after_an_hour() -> None:
    table = OwnerTable({}, 1, TableOptions(names_kept=0))
    table.open(b"~drawn", 0)
    table.open(b"named", 0)
    table.entry(0, 0)
    table.begin_segment()
    provenance = table.entry(0, 3601 * 1_000_000)
    assert [row.name for row in provenance.rows] == [b"named"]
