"""The offline check: whole is whole, every kind of damage is found and named, and nothing is changed by looking.

It looks at entries' own digests by what metadata says, and says what it could not look at.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import pytest

from fastbk.cli.bookie.stopped import READ_AT_ONCE_MAX, MetadataTypes
from fastbk.errors import MetadataUnavailable
from fastbk.meta.api import VersionedLedger
from fastbk.meta.records import BadRecord
from fastbk.meta.sqlite.store import MemoryStore
from fastbk.model.entry import DigestType
from fastbk.model.ids import LedgerId
from fastbk.storage.check import Checked, DirectoryCheck, TypesOf
from fastbk.storage.digest_check import NO_TYPE
from fastbk.storage.directories import locations_path, log_path
from fastbk.storage.manifest import SLOTS
from fastbk.storage.rebuild import Rebuild
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.hashes import DIGEST_CRC32, DIGEST_CRC32C, DIGEST_HMAC
from tests.fixtures.index_harness import CANNOT_TELL, OK
from tests.fixtures.metadata import metadata as ledger_metadata
from tests.fixtures.storage_harness import (
    INCARNATION,
    JOURNAL,
    LEDGERS,
    AdoptingLife,
    Book,
    Life,
    digested,
    format_disk,
)

pytestmark = pytest.mark.no_service


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


def check(fake: FakeDisk, types_of: TypesOf | None = None) -> Checked:
    before = fake.operations("write")
    directory = (fake.disk(), LEDGERS, fake.disk(), JOURNAL, INCARNATION)
    checked = DirectoryCheck(*directory, types_of=types_of).run()
    assert fake.operations("write") == before, "it changes nothing"
    return checked


def texts(checked: Checked, severity: str = "damage") -> str:
    return "; ".join(
        f"{one.path}: {one.text}" for one in checked.findings if one.severity == severity
    )


def test_what_is_whole_is_said_to_be(lived: tuple[FakeDisk, Book]) -> None:
    checked = check(lived[0])
    assert checked.is_whole, texts(checked)
    assert (checked.entries, checked.runs, checked.logs) == (26, 5, 1)  # one of them is a chunk's
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
    run = Rebuild(fake.disk(), LEDGERS, fake.disk(), JOURNAL, INCARNATION)
    assert not run.survey()
    run.run(lambda: ())
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


def test_journal_files_that_are_logs_are_checked_compacted_and_healed_as_others() -> None:
    with FakeDisk(seed=8) as fake:
        format_disk(fake)
        book = Book()
        life = AdoptingLife(fake, book)
        for n in range(60):
            for ledger_id in (1, 2):
                for entry_id in range(3 * n, 3 * n + 3):
                    life.add(ledger_id, entry_id, bytes([n, ledger_id]) * 700)
            life.add(3, n, b"too small for a run")
            life.settle()
            if n % 9 == 8:
                life.flush()
        life.flush()
        logs = life.checkpoint.manifest.logs
        sealed = [log for log in logs if log.is_journal_file and log.sealed]
        assert sealed
        life.close()
        checked = check(fake)
        assert checked.is_whole, texts(checked)
        assert checked.logs == len(logs)
        assert checked.live_bytes > 2 * 180 * 1400
        path = log_path(LEDGERS, sealed[0].log_id, JOURNAL)
        raw = fake.disk().read_file(path)
        victim = next(key for key in book.acked if raw.find(book.acked[key]) >= 0 and key[0] == 1)
        fake.corrupt(path, raw.index(book.acked[victim]) + 100)
        checked = check(fake)
        assert checked.damaged_entries == 1
        assert f"{path}: a damaged run of ledger 1" in texts(checked)

        life = AdoptingLife(fake, book)
        assert life.flusher.upkeep.compact([log.log_id for log in sealed], 1 << 30, 0)
        for _ in range(6):
            life.flusher.poll()
        left = {log.log_id for log in life.checkpoint.manifest.logs}
        assert not left.intersection(log.log_id for log in sealed)
        for key, entry in book.acked.items():
            answer = life.ask(life.harness.read(*key))
            assert (answer.status, answer.entry) == (
                (OK, entry) if key != victim else (CANNOT_TELL, None)
            )
        life.recovery_add(*victim, book.acked[victim][32:])
        life.settle()
        life.flush()
        assert life.ask(life.harness.read(*victim)).entry == book.acked[victim]
        life.close()
        checked = check(fake)
        assert checked.is_whole, texts(checked)


# --- digests, by what metadata says ------------------------------------------------------------

ENTRIES = 10
KINDS = {1: DIGEST_CRC32C, 2: DIGEST_CRC32, 3: DIGEST_CRC32C, 4: DIGEST_CRC32C}
BAD = {(1, 3), (1, 4), (2, 9), (3, 0)}
NUMBERS = itertools.count()


def data_of(ledger_id: int, entry_id: int) -> bytes:
    text = b"%d of %d." % (entry_id, ledger_id) * 50
    is_bad = (ledger_id, entry_id) in BAD
    return digested(ledger_id, entry_id, text, KINDS[ledger_id], is_bad=is_bad)


@pytest.fixture
def stopped() -> Iterator[FakeDisk]:
    with FakeDisk(seed=8) as fake:
        format_disk(fake)
        life = Life(fake, Book())
        for n in range(ENTRIES):
            for ledger_id in KINDS:
                life.add(ledger_id, n, data_of(ledger_id, n))
            life.settle()
        life.stop()
        yield fake


def by(types: dict[int, int]) -> TypesOf:
    def types_of(ledger_ids: Collection[int]) -> dict[int, int]:
        return {one: types[one] for one in ledger_ids if one in types}

    return types_of


def damage(checked: Checked) -> list[str]:
    return [one.text for one in checked.findings if one.severity == "damage"]


def test_without_metadata_they_are_not_looked_at(stopped: FakeDisk) -> None:
    checked = check(stopped)
    assert checked.is_whole
    assert checked.digests is None


def test_what_came_with_a_wrong_digest_is_named(stopped: FakeDisk) -> None:
    checked = check(stopped, by({1: DIGEST_CRC32C, 2: DIGEST_CRC32, 3: DIGEST_HMAC, 4: NO_TYPE}))
    assert damage(checked) == [
        "entries 3-4 of ledger 1 came with a wrong CRC32C digest",
        "entry 9 of ledger 2 came with a wrong CRC32 digest",
    ]
    assert (checked.damage_count, checked.bad_digest_ranges, checked.damaged_entries) == (2, 2, 0)
    count = checked.digests
    assert count is not None
    assert (count.checked, count.bad, count.keyed, count.unknown) == (20, 3, 10, 10)
    assert count.unanswered == 0
    count = check(stopped, by({})).digests
    assert count is not None
    assert (count.checked, count.unknown, count.unanswered) == (0, 40, 40)


def test_a_mac_is_checked_by_the_password_in_metadata(stopped: FakeDisk) -> None:
    metadata = Metadata({3: DigestType.HMAC})
    checked = check(stopped, MetadataTypes(metadata.read))
    assert damage(checked) == ["entries 0-9 of ledger 3 came with a wrong HMAC digest"]
    assert checked.digests is not None
    assert (checked.digests.checked, checked.digests.keyed) == (ENTRIES, 0)
    metadata.store.close()


def test_damage_is_told_from_what_came_so(stopped: FakeDisk) -> None:
    path = log_path(LEDGERS, 1)
    stopped.corrupt(path, stopped.disk().read_file(path).index(data_of(1, 3)) + 100)
    checked = check(stopped, by({1: DIGEST_CRC32C}))
    assert sorted("came" in one for one in damage(checked)) == [False, True]
    assert "entry 4 of ledger 1 came" in " ".join(damage(checked))
    assert (checked.damaged_entries, checked.bad_digest_ranges) == (1, 1)


class Metadata:
    """A store with an outage, or damaged ledgers, when asked for."""

    def __init__(self, digests: dict[LedgerId, DigestType | None]) -> None:
        self.store = MemoryStore(f"digests {next(NUMBERS)}")
        for ledger_id, digest_type in digests.items():
            made = replace(ledger_metadata(bookies=("a",)), digest_type=digest_type)
            self.store.create_ledger(ledger_id, made)
        self.asked: list[list[LedgerId]] = []
        self.damaged: set[LedgerId] = set()
        self.is_away = False

    def read(self, ledger_ids: Sequence[LedgerId]) -> list[VersionedLedger | BadRecord | None]:
        self.asked.append(list(ledger_ids))
        if self.is_away:
            raise MetadataUnavailable("away")
        read = self.store.read_ledgers(ledger_ids)
        damaged = [
            BadRecord(f"ledger {one}", "damaged") if one in self.damaged else None
            for one in ledger_ids
        ]
        return [bad or one for bad, one in zip(damaged, read, strict=True)]


def test_types_are_read_once_and_memory_is_bounded() -> None:
    ids = range(READ_AT_ONCE_MAX + 10)
    metadata = Metadata(dict.fromkeys(ids, DigestType.CRC32) | {3: None})
    types = MetadataTypes(metadata.read, ledgers_max=50)
    found = types([*ids, 7000])
    assert found == dict.fromkeys(ids, DIGEST_CRC32) | {3: NO_TYPE, 7000: NO_TYPE}
    assert [len(one) for one in metadata.asked] == [READ_AT_ONCE_MAX, 11]
    assert types([7000, ids[-1]]) == {7000: NO_TYPE, ids[-1]: DIGEST_CRC32}
    assert len(metadata.asked) == 2, "kept"
    assert types([0]) == {0: DIGEST_CRC32}
    assert metadata.asked[2:] == [[0]], "forgotten, and read again"
    metadata.store.close()


def test_metadata_that_cannot_tell_of_one_or_of_any(stopped: FakeDisk) -> None:
    metadata = Metadata(dict.fromkeys(KINDS, DigestType.CRC32C))
    metadata.damaged = {1}
    checked = check(stopped, MetadataTypes(metadata.read))
    assert checked.digests is not None
    assert checked.digests.unanswered == ENTRIES
    assert "entry 0 of ledger 3 came with a wrong CRC32C digest" in damage(checked)
    metadata.is_away = True
    with pytest.raises(MetadataUnavailable):
        check(stopped, MetadataTypes(metadata.read))
    metadata.store.close()
