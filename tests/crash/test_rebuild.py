"""Locations files that are lost, whole or in part, are made anew from entry logs: what was stored is served again,
nothing wrong is, and where fences or entries may be lost nothing is denied, no old writer served (INV-X1, INV-X4)."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from fastbk.errors import Error
from fastbk.storage.directories import locations_path
from fastbk.storage.limbo import read_limbo
from fastbk.storage.manifest import SLOTS, ManifestSlots
from fastbk.storage.rebuild import Rebuild, Rebuilt
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.index_harness import CANNOT_TELL, FENCED, OK
from tests.fixtures.storage_harness import (
    INCARNATION,
    JOURNAL,
    LEDGERS,
    AdoptingLife,
    Book,
    Life,
    format_disk,
)

pytestmark = pytest.mark.no_service

FENCED_LEDGER, EMPTY_FENCED_LEDGER = 2, 900


def lived(fake: FakeDisk, seed: int, kind: type[Life] = Life) -> Book:
    """A bookie's life: some flushes, a fence of what it knows and of what it does not, a kill."""
    format_disk(fake)
    book, rng = Book(), random.Random(seed)
    life = kind(fake, book)
    batch_entries = 3 if kind.adopts else 1
    for n in range(30):
        for ledger_id in (1, 2, 3):
            for entry_id in range(n * batch_entries, (n + 1) * batch_entries):
                life.add(ledger_id, entry_id, rng.randbytes(rng.choice([20, 900, 5000])))
        if n == 25:
            life.fence(FENCED_LEDGER)
            life.fence(EMPTY_FENCED_LEDGER)
            life.settle()
            break
        life.settle()
        if n % 8 == 7:
            life.flush()
    life.flush()
    life.add(1, 499, b"only in the journal")
    life.settle()
    life.close()
    return book


def rebuild(fake: FakeDisk, named: tuple[int, ...] = (1, 2, 3, EMPTY_FENCED_LEDGER)) -> Rebuilt:
    run = Rebuild(fake.disk(), LEDGERS, fake.disk(), JOURNAL, INCARNATION)
    run.survey()
    return run.run(lambda: named)


def all_locations(fake: FakeDisk) -> list[str]:
    disk = fake.disk()
    manifest = ManifestSlots(disk, LEDGERS).load()
    return [locations_path(LEDGERS, entry.file_id) for entry in manifest.locations]


def lose_all(fake: FakeDisk) -> None:
    for path in all_locations(fake):
        fake.disk().unlink(path)


def lose_the_newest(fake: FakeDisk) -> None:
    fake.disk().unlink(all_locations(fake)[-1])


def damage_location_blocks(fake: FakeDisk) -> None:
    for path in all_locations(fake):
        fake.corrupt(path, 4096 + 100)


def damage_state_blocks(fake: FakeDisk) -> None:
    for path in all_locations(fake):
        fake.corrupt(path, len(fake.disk().read_file(path)) - 4000)


def lose_manifest_too(fake: FakeDisk) -> None:
    lose_all(fake)
    for name in SLOTS:
        fake.corrupt(f"{LEDGERS}/{name}", 100)


def remove_manifest(fake: FakeDisk) -> None:
    for name in SLOTS:
        fake.disk().unlink(f"{LEDGERS}/{name}")


def nothing(_: FakeDisk) -> None:
    return


def assert_served(life: Life) -> None:
    """All that was acknowledged is read."""
    for key, raw in life.book.acked.items():
        answer = life.ask(life.harness.read(*key))
        assert (answer.status, answer.entry) == (OK, raw), key


HARMS: dict[str, tuple[Callable[[FakeDisk], None], bool]] = {
    "lose_all": (lose_all, True),
    "lose_the_newest": (lose_the_newest, True),
    "damage_location_blocks": (damage_location_blocks, True),
    "damage_state_blocks": (damage_state_blocks, True),
    "lose_manifest_too": (lose_manifest_too, True),
    "remove_manifest": (remove_manifest, True),
    "nothing": (nothing, False),
}


@pytest.mark.parametrize("kind", [Life, AdoptingLife])
@pytest.mark.parametrize("harm", HARMS)
def test_what_was_stored_is_served_again(harm: str, kind: type[Life]) -> None:
    do_harm, is_doubtful = HARMS[harm]
    with FakeDisk(seed=4) as fake:
        book = lived(fake, 4, kind)
        listed = ManifestSlots(fake.disk(), LEDGERS).load().logs
        assert any(log.is_journal_file and log.sealed for log in listed) == kind.adopts
        do_harm(fake)
        report = rebuild(fake)
        assert bool(report.doubts) == is_doubtful, report.doubts
        assert not report.damaged_runs
        assert not report.damaged_entries
        if is_doubtful:
            limbo = read_limbo(fake.disk(), LEDGERS, INCARNATION)
            assert set(limbo) == {1, 2, 3, EMPTY_FENCED_LEDGER}
        life = kind(fake, book, limbo=limbo if is_doubtful else ())
        assert_served(life)
        life.flush()
        assert_served(life)
        denial = life.ask(life.harness.read(1, 500))
        assert (denial.status == CANNOT_TELL) == is_doubtful
        for ledger_id in (FENCED_LEDGER, EMPTY_FENCED_LEDGER):
            life.add(ledger_id, 500, b"old writer's")
            (sent,) = life.waiting
            life.settle()
            assert sent.verdict == FENCED
        life.add(77, 0, b"a new ledger")
        life.settle()
        assert (77, 0) in book.acked
        assert not life.index.status.limbo, "the doubt is in ledgers, not in all that will ever be"
        life.close()


def test_again_gives_the_same_and_old_files_are_kept() -> None:
    with FakeDisk(seed=5) as fake:
        lived(fake, 5)
        before = all_locations(fake)
        first = rebuild(fake)
        assert first.aside
        kept = fake.disk().list(first.aside)
        assert sorted(kept) == sorted(path.rpartition("/")[2] for path in before)
        second = rebuild(fake)
        assert (second.runs, second.entries, second.ledgers, second.states_kept) == (
            first.runs,
            first.entries,
            first.ledgers,
            first.ledgers,
        )
        assert not second.doubts


@pytest.mark.parametrize(
    ("mode", "kind"), [("lose", Life), ("keep", Life), ("random", Life), ("random", AdoptingLife)]
)
def test_cut_off_anywhere_it_is_done_again(mode: str, kind: type[Life]) -> None:
    """`keep`: the process was killed, and the machine went on."""
    with FakeDisk(seed=6) as base:
        book = lived(base, 6, kind)
        lose_all(base)
        base.disk().sync_directory(f"{LEDGERS}/locations")
        with base.copy() as fake:
            before = fake.operations()
            rebuild(fake)
            operations = fake.operations() - before
        assert operations > 15
        for nth in range(1, operations, 2):
            with base.copy() as fake:
                fake.fault("cut", "any", nth=nth)
                with pytest.raises((OSError, Error)):
                    rebuild(fake)
                    fake.disk().list("/")  # cut off in its last steps
                fake.restart(mode, nth)
                rebuild(fake)
                limbo = read_limbo(fake.disk(), LEDGERS, INCARNATION)
                assert set(limbo) == {1, 2, 3, EMPTY_FENCED_LEDGER}
                life = kind(fake, book, limbo=limbo)
                assert_served(life)
                life.close()


def test_damaged_entries_stay_unsaid_and_do_not_stop_it() -> None:
    with FakeDisk(seed=7) as fake:
        book = lived(fake, 7)
        lose_all(fake)
        log = f"{LEDGERS}/logs/{fake.disk().list(f'{LEDGERS}/logs')[0]}"
        raw = fake.disk().read_file(log)
        victim = next(key for key, entry in book.acked.items() if len(entry) > 900)
        fake.corrupt(log, raw.index(book.acked[victim]) + 500)
        header = raw.index(b"KRUN", 4096 * 2)
        fake.corrupt(log, header + 20)
        report = rebuild(fake)
        assert report.damaged_entries == 1 or report.skipped_bytes
        assert report.skipped_bytes > 0, "a run without its header is of nobody"
        life = Life(fake, book, limbo=read_limbo(fake.disk(), LEDGERS, INCARNATION))
        told = 0
        for key, entry in book.acked.items():
            answer = life.ask(life.harness.read(*key))
            assert answer.status in (OK, CANNOT_TELL), key
            assert answer.status != OK or answer.entry == entry
            told += answer.status == OK
        assert 0 < told < len(book.acked)
        life.close()
