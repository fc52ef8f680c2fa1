"""The offline check: whole is whole, every kind of damage is found and named, and nothing is changed by looking."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fastbk.storage.check import DirectoryCheck
from fastbk.storage.check_findings import Checked
from fastbk.storage.directories import locations_path, log_path
from fastbk.storage.manifest import SLOTS
from fastbk.storage.rebuild import Rebuild
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.index_harness import CANNOT_TELL, OK
from tests.fixtures.storage_harness import INCARNATION, JOURNAL, LEDGERS, Book, Life, format_disk

pytestmark = pytest.mark.fast


@pytest.fixture
def lived() -> Iterator[tuple[FakeDisk, Book]]:
    with FakeDisk(seed=8) as fake:
        format_disk(fake)
        book = Book()
        life = Life(fake, book)
        for n in range(20):
            for ledger_id in (1, 2):
                life.add(ledger_id, n, bytes([n, ledger_id]) * 700)
            life.settle()
            if n in (5, 12):
                life.flush()
        life.close()
        yield fake, book


def check(fake: FakeDisk) -> Checked:
    before = fake.operations("write")
    checked = DirectoryCheck(fake.disk(), LEDGERS, fake.disk(), JOURNAL, INCARNATION).run()
    assert fake.operations("write") == before, "it changes nothing"
    return checked


def texts(checked: Checked, severity: str = "damage") -> str:
    return "; ".join(
        f"{one.path}: {one.text}" for one in checked.findings if one.severity == severity
    )


def test_what_is_whole_is_said_to_be(lived: tuple[FakeDisk, Book]) -> None:
    checked = check(lived[0])
    assert checked.is_whole, texts(checked)
    assert (checked.entries, checked.runs, checked.logs) == (26, 4, 1)
    assert checked.journal_batches == 7
    assert checked.live_bytes > 26 * 1400
    assert checked.read_bytes >= checked.live_bytes
    assert "without a clean stop" in texts(checked, "note")


def test_a_damaged_entry_is_named_until_it_is_healed(lived: tuple[FakeDisk, Book]) -> None:
    """INV-A5: a recovery add over a copy that fails its checksum is taken, beside it."""
    fake, book = lived
    path = log_path(LEDGERS, 1)
    raw = fake.disk().read_file(path)
    fake.corrupt(path, raw.index(book.acked[1, 3]) + 100)
    checked = check(fake)
    assert checked.damaged_entries == 1
    assert "ledger 1" in texts(checked)
    assert "entries 3 can't be read" in texts(checked)
    life = Life(fake, book)
    assert life.ask(life.harness.read(1, 3)).status == CANNOT_TELL
    life.add(1, 3, bytes([3, 1]) * 700)
    answers = life.settle()
    assert not any(answer.status == OK for answer in answers), "a normal add is no repair"
    life.waiting.clear()
    life.recovery_add(1, 3, bytes([3, 1]) * 700)
    life.settle()
    for _ in range(2):
        answer = life.ask(life.harness.read(1, 3))
        assert (answer.status, answer.entry) == (OK, book.acked[1, 3])
        life.flush()
    life.close()
    checked = check(fake)
    assert checked.is_whole, texts(checked)
    assert "whole copies of its entries lie elsewhere" in texts(checked, "note")


def test_lost_and_cut_files(lived: tuple[FakeDisk, Book]) -> None:
    fake, _ = lived
    with fake.copy() as copy:
        copy.disk().unlink(log_path(LEDGERS, 1))
        assert "can't be opened" in texts(check(copy))
    with fake.copy() as copy:
        copy.disk().unlink(locations_path(LEDGERS, 1))
        checked = check(copy)
        assert "can't be read" in texts(checked)
        assert "rebuild-locations" in texts(checked, "note")
    with fake.copy() as copy:
        for slot in SLOTS:
            copy.corrupt(f"{LEDGERS}/{slot}", 70)
        assert "no readable manifest" in texts(check(copy))
    with fake.copy() as copy:
        copy.corrupt(f"{LEDGERS}/{SLOTS[0]}", 70)
        checked = check(copy)
        assert checked.is_whole
        assert SLOTS[0] in texts(checked, "note")


def test_locations_blocks(lived: tuple[FakeDisk, Book]) -> None:
    fake, _ = lived
    fake.corrupt(locations_path(LEDGERS, 1), 4096 + 20)
    fake.corrupt(locations_path(LEDGERS, 2), 8192 + 20)
    checked = check(fake)
    assert checked.damage_count == 2
    assert "1 blocks of locations and 0 of ledger states" in texts(checked)
    assert "0 blocks of locations and 1 of ledger states" in texts(checked)


def test_a_hole_in_the_journal(lived: tuple[FakeDisk, Book]) -> None:
    fake, book = lived
    name = next(name for name in fake.disk().list(JOURNAL) if name.endswith(".journal"))
    path = f"{JOURNAL}/{name}"
    raw = fake.disk().read_file(path)
    for key, is_damage in (((1, 15), True), ((1, 2), False), ((2, 19), False)):
        with fake.copy() as copy:
            copy.corrupt(path, raw.index(book.acked[key]) + 50)
            checked = check(copy)
            assert checked.is_whole != is_damage, (key, texts(checked))
            # Behind the mark it is harmless; the very last batch can't be told from a torn one.


def test_what_no_manifest_names(lived: tuple[FakeDisk, Book]) -> None:
    fake, _ = lived
    disk = fake.disk()
    file = disk.open(log_path(LEDGERS, 99), create=True)
    disk.write_all(file, bytes(5000))
    disk.close(file)
    checked = check(fake)
    assert checked.is_whole
    assert checked.orphan_bytes == 5000
    assert "no manifest names it" in texts(checked, "note")


def test_what_a_compaction_found_damaged_stays_named(lived: tuple[FakeDisk, Book]) -> None:
    """The damaged bytes are gone with their log; the locations say it, over a rebuild, until it is repaired."""
    fake, book = lived
    path = log_path(LEDGERS, 1)
    fake.corrupt(path, fake.disk().read_file(path).index(book.acked[2, 4]) + 100)
    life = Life(fake, book)
    assert life.flusher.upkeep.compact([1], 1 << 30, 0)
    for _ in range(6):
        life.flusher.poll()
    assert 1 not in [log.log_id for log in life.checkpoint.manifest.logs]
    assert life.ask(life.harness.read(2, 4)).status == CANNOT_TELL
    life.close()
    assert "entries of ledger 2 that a compaction found damaged: 4" in texts(check(fake))
    run = Rebuild(fake.disk(), LEDGERS, INCARNATION)
    assert not run.survey()
    run.run(0, lambda: ())
    assert "a compaction found damaged: 4" in texts(check(fake))
    life = Life(fake, book)
    assert life.ask(life.harness.read(2, 4)).status == CANNOT_TELL
    life.recovery_add(2, 4, bytes([4, 2]) * 700)
    life.settle()
    life.flush()
    assert life.ask(life.harness.read(2, 4)).entry == book.acked[2, 4]
    life.close()
    checked = check(fake)
    assert checked.is_whole, texts(checked)
