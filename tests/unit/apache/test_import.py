"""An Apache bookie's data in directories of ours."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from fastbk.apache.importer import import_bookie
from fastbk.apache.importer.bookie_files import FENCE
from fastbk.errors import StorageError
from fastbk.meta.api import BookieService
from fastbk.model.entry import DigestType, master_key
from fastbk.model.ids import BookieId
from fastbk.model.ledger import LedgerState
from fastbk.native.ledger_state import FENCED, HAS_KEY
from fastbk.native.process import FILE_VARIABLE, POINT_VARIABLE, arm_from_environment
from fastbk.storage.identity_check import IdentityError
from tests.fixtures import apache_disk
from tests.fixtures.apache_disk import entry, record, special
from tests.fixtures.apache_imports import BOOKIE_ID, Import, closed
from tests.fixtures.entries import make_entry
from tests.fixtures.fork import exit_code_of_fork

SIGKILLED = -9
POINTS = (
    "import.after_marks",
    "import.after_part",
    "import.after_entries",
    "import.before_metadata",
    "import.after_metadata",
)


@pytest.fixture
def bookie(tmp_path: Path) -> Import:
    """A bookie with one closed ledger, 7: entries 0 and 1 in a log, 1 and 2 in the journal."""
    made = Import(tmp_path)
    made.store.create_ledger(7, closed(2))
    made.put("ledgers/0.log", apache_disk.entry_log(record(entry(7, 0)), record(entry(7, 1))))
    made.put("journal/1.txn", apache_disk.journal(record(entry(7, 1)), record(entry(7, 2))))
    return made


@pytest.mark.parametrize("pairs", [1, 3])
@pytest.mark.parametrize("storage", apache_disk.STORAGES)
def test_what_a_real_bookie_acknowledged_is_here_with_its_keys(
    tmp_path: Path, storage: str, pairs: int
) -> None:
    recorded = apache_disk.recorded(storage)
    made = Import(tmp_path, pairs, BookieId(recorded.bookie_id))
    made.take_recorded(recorded)
    done = made.run()
    entries, flags = made.content()
    expected = {
        ledger_id: {n: apache_disk.payload(ledger_id, n) for n in range(count)}
        for ledger_id, count in recorded.entries.items()
    }
    assert {
        ledger_id: {n: recorded.data(ledger_id, raw) for n, raw in mine.items()}
        for ledger_id, mine in entries.items()
    } == expected
    for ledger_id, metadata in recorded.ledgers.items():
        # 0 and 6 were closed by a recovery. Of 0 only the index knows: the journal counts from its mark on.
        is_fenced = not metadata.is_closed or ledger_id in (0, 6)
        assert flags[ledger_id] == HAS_KEY | (FENCED if is_fenced else 0)
    open_ones = [one for one, metadata in recorded.ledgers.items() if not metadata.is_closed]
    assert made.in_limbo() == open_ones == [5]
    assert done.counts.left_out_ledgers == {apache_disk.DELETED}
    assert (done.counts.left_out_entries, done.counts.damaged_entries) == (5, 0)
    assert not done.counts.damage
    assert made.start() > 0


def test_of_several_copies_the_newest_one_that_is_whole_counts(bookie: Import) -> None:
    newer = make_entry(7, 1, 1, 5, b"newer", DigestType.CRC32C)
    torn = bytearray(entry(7, 0))
    torn[-1] ^= 1
    bookie.put(
        "journal/1.txn", apache_disk.journal(*map(record, (newer, bytes(torn), entry(7, 2))))
    )
    done = bookie.run()
    assert bookie.content()[0] == {7: {0: entry(7, 0), 1: newer, 2: entry(7, 2)}}
    assert (done.counts.damaged_entries, done.in_limbo) == (1, 0)
    assert "entry 0 of ledger 7 fails its digest" in str(done.counts.damage[0])


def test_a_closed_ledger_of_which_something_is_missing_is_in_limbo(bookie: Import) -> None:
    bookie.put("journal/1.txn", apache_disk.journal(record(entry(7, 2)[:-1] + b"x")))
    bookie.run()
    assert bookie.in_limbo() == [7]


def test_ledgers_that_count_on_the_bookie_and_are_not_there_are_in_limbo(bookie: Import) -> None:
    bookie.store.create_ledger(8, closed(0))
    bookie.store.create_ledger(9, closed(0, "127.0.0.1:1"))
    recovering = replace(closed(0, "127.0.0.1:1"), state=LedgerState.IN_RECOVERY)
    bookie.store.create_ledger(10, replace(recovering, last_entry_id=-1, length=0))
    bookie.run()
    assert bookie.in_limbo() == [8, 10]


def test_an_open_ledger_is_fenced_with_the_key_of_its_password(bookie: Import) -> None:
    metadata = replace(
        closed(-1), state=LedgerState.OPEN, last_entry_id=-1, length=0, password=b"secret"
    )
    bookie.store.create_ledger(8, metadata)
    bookie.put("journal/2.txn", apache_disk.journal(special(8, FENCE)))
    done = bookie.run()
    assert bookie.content()[1][8] == FENCED | HAS_KEY
    assert bookie.in_limbo() == [8]
    assert done.open_ledgers == 1
    assert master_key(b"secret") != master_key(b"")


def test_a_survey_counts_the_same_and_writes_nothing(bookie: Import) -> None:
    found = import_bookie.survey(bookie.plan, bookie.store, lambda _: None)
    written = [path for path in (bookie.folder / "ours").rglob("*") if path.is_file()]
    assert (found.counts.entries, found.ledgers, written) == (4, 1, [])
    assert bookie.run().counts.entries == 4


def test_a_bookie_that_is_registered_is_not_imported(bookie: Import) -> None:
    bookie.store.register_bookie(BookieService(BOOKIE_ID, 1, ()), writable=True)
    with pytest.raises(StorageError, match="is registered"):
        bookie.run()


def test_the_data_of_another_bookie_or_cluster_is_refused(bookie: Import) -> None:
    bookie.put_cookie("somebody", "")
    with pytest.raises(StorageError, match=r"VERSION is that of bookie 'somebody'"):
        bookie.run()
    bookie.put_cookie(BOOKIE_ID, "another cluster")
    with pytest.raises(StorageError, match="instance id another cluster"):
        bookie.run()
    bookie.put_cookie(BOOKIE_ID, bookie.store.instance_id())
    assert bookie.run().ledgers == 1


def test_directories_that_hold_something_are_left_alone(bookie: Import) -> None:
    bookie.run()
    with pytest.raises(StorageError, match="nothing to import for it any more"):
        bookie.run()
    other = Import(bookie.folder / "other")
    other.store.create_ledger(7, closed(2))
    path = Path(other.config.ledgers.all_directories[0]) / "logs" / f"{0:016x}.log"
    path.parent.mkdir()
    path.write_bytes(b"something")
    with pytest.raises(StorageError, match="is not empty"):
        other.run()
    assert path.read_bytes() == b"something"


@pytest.mark.parametrize("point", POINTS)
def test_an_import_that_was_cut_off_starts_no_bookie_and_is_done_again(
    bookie: Import, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(POINT_VARIABLE, f"{point}:1")
    monkeypatch.setenv(FILE_VARIABLE, str(bookie.folder / "died"))

    def child() -> int:
        arm_from_environment()
        bookie.open_store()
        bookie.run()
        return 0

    assert exit_code_of_fork(child) == SIGKILLED
    assert os.path.exists(bookie.folder / "died")
    with pytest.raises(IdentityError, match=r"import of bookie .* has not ended"):
        bookie.start()
    assert bookie.run().was_finished == (point == "import.after_metadata")
    assert bookie.content()[0] == {7: {n: entry(7, n) for n in range(3)}}
    assert bookie.start() > 0
