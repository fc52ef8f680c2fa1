"""The offline check looks at entries' own digests by what metadata says, and says what it could not look at."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence

import pytest

from fastbk.cli.bookie.digests import READ_AT_ONCE_MAX, MetadataTypes
from fastbk.errors import MetadataUnavailable, StorageError
from fastbk.meta.api import VersionedLedger
from fastbk.meta.sqlite import MemoryStore
from fastbk.model.entry import DigestType
from fastbk.model.ids import BookieId, LedgerId
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.native.hashes import DIGEST_CRC32, DIGEST_CRC32C, DIGEST_HMAC
from fastbk.storage.check import DirectoryCheck
from fastbk.storage.check_findings import Checked, TypesOf
from fastbk.storage.digest_check import NO_TYPE
from fastbk.storage.directories import log_path
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.storage_harness import (
    INCARNATION,
    JOURNAL,
    LEDGERS,
    Book,
    Life,
    digested,
    format_disk,
)

pytestmark = pytest.mark.fast

ENTRIES = 10
KINDS = {1: DIGEST_CRC32C, 2: DIGEST_CRC32, 3: DIGEST_CRC32C, 4: DIGEST_CRC32C}
BAD = {(1, 3), (1, 4), (2, 9), (3, 0)}


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


def check(fake: FakeDisk, types_of: TypesOf | None) -> Checked:
    before = fake.operations("write")
    directory = (fake.disk(), LEDGERS, fake.disk(), JOURNAL, INCARNATION)
    checked = DirectoryCheck(*directory, types_of=types_of).run()
    assert fake.operations("write") == before, "it changes nothing"
    return checked


def by(types: dict[int, int]) -> TypesOf:
    def types_of(ledger_ids: Collection[int]) -> dict[int, int]:
        return {one: types[one] for one in ledger_ids if one in types}

    return types_of


def damage(checked: Checked) -> list[str]:
    return [one.text for one in checked.findings if one.severity == "damage"]


def test_without_metadata_they_are_not_looked_at(stopped: FakeDisk) -> None:
    checked = check(stopped, None)
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


NUMBERS = itertools.count()


class Metadata:
    """A store with an outage, or damaged ledgers, when asked for."""

    def __init__(self, digests: dict[LedgerId, DigestType | None]) -> None:
        self.store = MemoryStore(f"digests {next(NUMBERS)}")
        for ledger_id, digest_type in digests.items():
            fragments = (Fragment(0, (BookieId("a"),)),)
            metadata = LedgerMetadata(
                ensemble_size=1,
                write_quorum=1,
                ack_quorum=1,
                fragments=fragments,
                digest_type=digest_type,
            )
            self.store.create_ledger(ledger_id, metadata)
        self.asked: list[list[LedgerId]] = []
        self.damaged: set[LedgerId] = set()
        self.is_away = False

    def read(self, ledger_ids: Sequence[LedgerId]) -> list[VersionedLedger | None]:
        self.asked.append(list(ledger_ids))
        if self.is_away:
            raise MetadataUnavailable("away")
        if self.damaged & set(ledger_ids):
            raise StorageError("damaged")
        return self.store.read_ledgers(ledger_ids)


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
