"""An Apache bookie's data in directories of ours."""

from __future__ import annotations

import os
import random
import shutil
import struct
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fastbk.apache.importer import bookie_files, import_bookie, index
from fastbk.apache.importer.bookie_files import FENCE
from fastbk.apache.importer.index import IndexUse
from fastbk.errors import Error, StorageError
from fastbk.meta.api import BookieService
from fastbk.model import cookie as cookies
from fastbk.model.cookie import Cookie
from fastbk.model.entry import DigestType, make_lac_body, master_key
from fastbk.model.ids import BookieId
from fastbk.model.ledger import LedgerState
from fastbk.native.ledger_state import FENCED, HAS_KEY
from fastbk.native.process import FILE_VARIABLE, POINT_VARIABLE, arm_from_environment
from fastbk.storage.identity_check import IdentityError
from tests.fixtures import apache_disk, hostile_files
from tests.fixtures.apache_disk import entry, record, special
from tests.fixtures.apache_imports import BOOKIE_ID, Import, closed
from tests.fixtures.apache_indexes import (
    index_file,
    ledger_data,
    location,
    put_databases,
    put_index_file,
)
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


# What indexes add to an import: which copy counts, what is missing, fences and keys; and what
# they must not stop.


KEY = master_key(b"")
OLD, NEW = (make_entry(7, 0, lac, 5, b"data", DigestType.CRC32C) for lac in (-1, 0))
FIRST = 1024
KINDS = ("db", "files")


def put_index(
    made: Import,
    kind: str,
    places: dict[int, int],
    *,
    ledger_id: int = 7,
    is_fenced: bool = False,
    key: bytes = KEY,
    lac: bytes = b"",
) -> None:
    """Give the bookie an index with one ledger."""
    folder = made.folder / "apache" / "ledgers"
    if kind == "db":
        data = ledger_data(is_fenced=is_fenced, key=key, lac=lac)
        locations = {(ledger_id, entry_id): at for entry_id, at in places.items()}
        put_databases(folder, {ledger_id: data}, locations)
    else:
        content = index_file(places, is_fenced=is_fenced, key=key, lac=lac)
        put_index_file(folder, ledger_id, content)


def run(made: Import, use: IndexUse = IndexUse.USE) -> import_bookie.Imported:
    return import_bookie.run(
        made.config, made.store, replace(made.plan, index_use=use), lambda _: None
    )


@pytest.fixture
def indexed_bookie(tmp_path: Path) -> Import:
    """A bookie with ledger 7, closed, whose entry 0 lies in two logs in two versions."""
    made = Import(tmp_path)
    made.store.create_ledger(7, closed(0))
    made.put("ledgers/0.log", apache_disk.entry_log(record(OLD)))
    made.put("ledgers/1.log", apache_disk.entry_log(record(NEW)))
    return made


@pytest.mark.parametrize(("log", "expected"), [(0, OLD), (1, NEW)])
@pytest.mark.parametrize("kind", KINDS)
def test_of_several_copies_in_logs_the_one_that_the_index_names_counts(
    indexed_bookie: Import, kind: str, log: int, expected: bytes
) -> None:
    put_index(indexed_bookie, kind, {0: location(log, FIRST)})
    done = run(indexed_bookie)
    assert indexed_bookie.content()[0] == {7: {0: expected}}
    index = done.counts.index
    assert (index.in_place, index.elsewhere, index.missing_entries) == (1, 1, 0)
    assert (done.counts.is_damaged, done.in_limbo) == (False, 0)


def test_without_its_index_the_last_copy_counts(indexed_bookie: Import) -> None:
    put_index(indexed_bookie, "files", {0: location(0, FIRST)})
    done = run(indexed_bookie, IndexUse.IGNORE)
    assert indexed_bookie.content()[0] == {7: {0: NEW}}
    assert (done.counts.index.read, done.counts.index.not_checked) == ([], 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("log", [0, 1])
def test_a_whole_copy_elsewhere_counts_for_a_damaged_one_that_the_index_names(
    indexed_bookie: Import, log: int, kind: str
) -> None:
    indexed_bookie.put(f"ledgers/{log}.log", apache_disk.entry_log(record(OLD[:-1] + b"x")))
    put_index(indexed_bookie, kind, {0: location(log, FIRST)})
    done = run(indexed_bookie)
    assert indexed_bookie.content()[0] == {7: {0: NEW if log == 0 else OLD}}
    assert (done.counts.damaged_entries, done.counts.index.missing_entries) == (1, 0)


def test_what_the_journal_has_counts_for_more_than_the_index(indexed_bookie: Import) -> None:
    newest = make_entry(7, 0, -1, 5, b"newest", DigestType.CRC32C)
    indexed_bookie.put("journal/1.txn", apache_disk.journal(record(newest)))
    put_index(indexed_bookie, "files", {0: location(0, FIRST)})
    assert run(indexed_bookie).counts.journal_entries == 1
    assert indexed_bookie.content()[0] == {7: {0: newest}}


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_index_names_and_no_file_holds_is_told_and_in_limbo(
    indexed_bookie: Import, kind: str
) -> None:
    """Metadata alone would miss nothing: entries 1, 2 and 5 lie behind the end of the ledger."""
    places = {0: location(1, FIRST)} | {one: location(2, 5000 + one) for one in (1, 2, 5)}
    put_index(indexed_bookie, kind, places)
    found = import_bookie.survey(indexed_bookie.plan, indexed_bookie.store, lambda _: None)
    done = run(indexed_bookie)
    assert indexed_bookie.in_limbo() == [7]
    for counts in (found.counts, done.counts):
        assert counts.is_damaged
        assert (counts.index.entries, counts.index.missing_entries) == (4, 3)
        assert ["entries 1 to 2 of ledger 7" in one for one in counts.index.told] == [True, False]
        assert "entry 5 of ledger 7 should be here" in counts.index.told[1]


def test_what_the_index_names_and_only_the_journal_holds_is_not_missing(
    indexed_bookie: Import,
) -> None:
    indexed_bookie.put("journal/1.txn", apache_disk.journal(record(entry(7, 1))))
    put_index(indexed_bookie, "files", {0: location(1, FIRST), 1: location(2, FIRST)})
    assert run(indexed_bookie).counts.index.missing_entries == 0


@pytest.mark.parametrize("kind", KINDS)
def test_fence_lac_and_limbo_come_from_the_index(indexed_bookie: Import, kind: str) -> None:
    body = make_lac_body(7, 5, DigestType.CRC32C, b"")
    put_index(indexed_bookie, kind, {0: location(1, FIRST)}, is_fenced=True, lac=body)
    run(indexed_bookie)
    assert indexed_bookie.content()[1][7] & FENCED
    assert indexed_bookie.lacs() == {7: 5}
    other = Import(indexed_bookie.folder / "other")
    other.store.create_ledger(7, closed(-1, "somebody"))
    put_databases(other.folder / "apache/ledgers", {7: ledger_data(is_in_limbo=True)}, {})
    run(other)
    assert other.in_limbo() == [7]


@pytest.mark.parametrize("kind", KINDS)
def test_keys_are_compared_and_taken_where_metadata_has_none(tmp_path: Path, kind: str) -> None:
    for number, password in enumerate((b"secret", None)):
        made = Import(tmp_path / str(number))
        made.store.create_ledger(7, replace(closed(0), password=password))
        made.put("ledgers/0.log", apache_disk.entry_log(record(OLD)))
        put_index(made, kind, {0: location(0, FIRST)}, key=bytes(range(20)))
        counts = run(made).counts
        assert made.content()[1][7] == HAS_KEY
        right = bytes(range(20)) if password is None else master_key(password)
        assert made.keys() == {7: right}
        assert counts.index.other_keys == len(counts.index.told) == (password is not None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_ledger_that_metadata_does_not_list_stays_deleted(
    indexed_bookie: Import, kind: str
) -> None:
    indexed_bookie.put(
        "ledgers/2.log", apache_disk.entry_log(record(entry(8, 0)), record(entry(9, 0)))
    )
    put_index(indexed_bookie, kind, {0: location(2, FIRST), 1: 5000}, ledger_id=8)
    done = run(indexed_bookie)
    assert set(indexed_bookie.content()[0]) == {7}
    assert done.counts.left_out_ledgers == {8, 9}
    index = done.counts.index
    assert (index.ledgers, index.unlisted_ledgers, index.missing_entries) == (1, 1, 0)
    assert indexed_bookie.in_limbo() == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_index_is_told_and_stops_an_import_only_if_it_is_required(
    indexed_bookie: Import, kind: str
) -> None:
    put_index(indexed_bookie, kind, {0: location(1, FIRST), 1: 17})
    with pytest.raises(StorageError, match=r"damaged in 1 places.*--index use"):
        run(indexed_bookie, IndexUse.REQUIRE)
    done = run(indexed_bookie)
    assert indexed_bookie.content()[0] == {7: {0: NEW}}
    assert (done.counts.is_damaged, done.counts.index.damaged_places) == (True, 1)


def test_databases_that_cannot_be_opened_are_told(indexed_bookie: Import) -> None:
    put_index(indexed_bookie, "db", {0: location(1, FIRST)})
    (indexed_bookie.folder / "apache/ledgers/current/ledgers/CURRENT").write_bytes(b"nothing\n")
    with pytest.raises(StorageError, match="an index is to be read and cannot be: RocksDB in"):
        run(indexed_bookie, IndexUse.REQUIRE)
    done = run(indexed_bookie)
    assert indexed_bookie.content()[0] == {7: {0: NEW}}
    assert (done.counts.index.damaged_places, len(done.counts.index.not_read)) == (1, 1)


def test_without_the_package_an_import_goes_on_and_says_so(
    indexed_bookie: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_index(indexed_bookie, "db", {0: location(1, FIRST)})
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(StorageError, match="pip install"):
        run(indexed_bookie, IndexUse.REQUIRE)
    done = run(indexed_bookie)
    assert "pip install" in done.counts.index.not_read[0]
    assert not done.counts.is_damaged


def test_a_bookie_without_any_index_is_told_of_unless_one_is_required(
    indexed_bookie: Import,
) -> None:
    with pytest.raises(StorageError, match="indexDirectories"):
        run(indexed_bookie, IndexUse.REQUIRE)
    assert "indexDirectories" in run(indexed_bookie).counts.index.not_read[0]


def test_a_bookie_that_has_flushed_nothing_needs_no_index(indexed_bookie: Import) -> None:
    """Its entry log was made, and not written to, or only its header was."""
    indexed_bookie.put("ledgers/0.log", b"")
    indexed_bookie.put("ledgers/1.log", apache_disk.entry_log())
    indexed_bookie.put("journal/1.txn", apache_disk.journal(record(NEW)))
    done = run(indexed_bookie, IndexUse.REQUIRE)
    assert indexed_bookie.content()[0] == {7: {0: NEW}}
    assert done.counts.index.not_read == []


def test_each_ledger_directory_has_a_database_for_its_own_logs(tmp_path: Path) -> None:
    """Both have a log 0, and what an index says of it holds for its own directory only."""
    made = Import(tmp_path)
    names = []
    for ledger_id, folder in ((7, "a"), (8, "b")):
        made.store.create_ledger(ledger_id, closed(0))
        current = tmp_path / "apache" / folder / "current"
        current.mkdir(parents=True)
        (tmp_path / "apache" / f"{folder}-index" / "current").mkdir(parents=True)
        (current / "0.log").write_bytes(apache_disk.entry_log(record(entry(ledger_id, 0))))
        put_databases(
            tmp_path / "apache" / f"{folder}-index",
            {ledger_id: ledger_data(key=KEY)},
            {(ledger_id, 0): location(0, FIRST)},
        )
        names.append(str(tmp_path / "apache" / folder))
    journal = str(tmp_path / "apache/journal")
    found = bookie_files.find_directories([journal], names, [f"{name}-index" for name in names])
    plan = import_bookie.ImportPlan(BOOKIE_ID, found)
    counts = import_bookie.run(made.config, made.store, plan, lambda _: None).counts
    assert (counts.index.in_place, counts.index.not_named, len(counts.index.read)) == (2, 0, 2)


# An import of directories from anybody: an error that names the file, or damage; nothing is
# waited for or written.


MESSAGE_MAX = 2000
CIRCLING = (
    "052b284300000156f9b8f81c0001011a6c6576656c64622e4279746577697365436f6d70617261746f72f4030c5a0400052b"
    "284300000156ffffffffffffff3f6c6576656c64622e4279746577697365436f6d70617261746f72f4030c5a040001020004"
    "0013fa9e050600010900030a010500000000000002050505c2f58bd8060601000d010107000807556e6b6e6f6c6576656c64"
    "622e4279746577697365436f6d70617261746f72f4030c5a0400052b2843"
)
"""A MANIFEST that a fuzzer found."""
CASES = int(os.environ.get("FUZZ", "15"))


def bookie_of(folder: Path, storage: str) -> Import:
    folder.mkdir(exist_ok=True)
    recorded = apache_disk.recorded(storage)
    made = Import(folder, 1, BookieId(recorded.bookie_id))
    made.take_recorded(recorded)
    return made


@pytest.mark.timeout(600 + 2 * CASES)
def test_changed_files_are_imported_or_refused(tmp_path: Path, seed: int) -> None:
    """FUZZ=100000 makes it a long run; RocksDB's own files are changed, too."""
    for number in range(CASES):
        dice = random.Random(f"{seed} {number}")
        made = bookie_of(tmp_path / f"{number}", dice.choice(apache_disk.STORAGES))
        files = sorted(path for path in (made.folder / "apache").rglob("*") if path.is_file())
        for path in dice.sample(files, dice.choice((1, 1, 2, 5))):
            path.write_bytes(hostile_files.changed(path.read_bytes(), dice) or dice.randbytes(100))
        refused = ""
        try:
            if dice.random() < 0.5:
                import_bookie.survey(made.plan, made.store, lambda _: None)
            else:
                made.run()
        except Error as error:
            refused = str(error)
        assert len(refused) < MESSAGE_MAX, number
        made.store.close()
        shutil.rmtree(made.folder)


LINKS = {
    "sorted": ("0/0/0.idx",),
    "db": ("locations/CURRENT", "locations/000008.sst", "locations/LOCK"),
}


@pytest.mark.parametrize("what", ["pipe", "link"])
@pytest.mark.parametrize(
    "name", ["lastMark", "VERSION", "0.log", *LINKS["sorted"], *LINKS["db"], "journal"]
)
def test_what_is_no_file_is_told_and_not_waited_for(tmp_path: Path, name: str, what: str) -> None:
    made = bookie_of(tmp_path, "sorted" if name in LINKS["sorted"] else "db")
    path = made.folder / "apache/ledgers/current" / name
    if name == "journal":
        (path, _) = sorted((made.folder / "apache/journal/current").glob("*.txn"))
    path.unlink(missing_ok=True)
    if what == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    try:
        done = import_bookie.survey(made.plan, made.store, lambda _: None)
        told = f"{done.counts.damage} {done.counts.index.not_read}"
    except Error as error:
        told = str(error)
    assert path.name in told
    assert "is a symbolic link" in told or "is a device, a pipe" in told


def test_what_rocksdict_would_write_through_a_link_is_not_written(tmp_path: Path) -> None:
    """Its settings lie beside a database; a link of that name led it to any file of the user."""
    made = bookie_of(tmp_path, "db")
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine")
    for folder in ("locations", "ledgers"):
        for name in ("rocksdict-config.json", "LOG", "IDENTITY.tmp", "OPTIONS-000099.dbtmp"):
            (made.folder / "apache/ledgers/current" / folder / name).symlink_to(outside)
    done = made.run()
    assert outside.read_bytes() == b"mine"
    assert done.counts.index.read and not done.counts.damage


def test_a_database_that_rocksdb_opens_without_end_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB ran in circles at a changed MANIFEST."""
    monkeypatch.setattr(index, "OPEN_S", 1.0)
    made = bookie_of(tmp_path, "db")
    manifest = made.folder / "apache/ledgers/current/ledgers/MANIFEST-000010"
    manifest.write_bytes(bytes.fromhex(CIRCLING))
    done = import_bookie.survey(made.plan, made.store, lambda _: None)
    assert "did not open it within 1 s" in str(done.counts.index.not_read)
    assert done.counts.entries > 0


def test_holes_of_any_size_take_no_time(tmp_path: Path) -> None:
    made = bookie_of(tmp_path, "sorted")
    (_, journal) = sorted((made.folder / "apache/journal/current").glob("*.txn"))
    entry_log = made.folder / "apache/ledgers/current/0.log"
    index = made.folder / "apache/ledgers/current/0/0/0.idx"
    for path in (journal, entry_log, index):
        os.truncate(path, 1 << 43)
    done = import_bookie.survey(made.plan, made.store, lambda _: None)
    assert done.counts.entries > 0
    with entry_log.open("r+b") as file:
        file.seek(20_000)
        file.write(b"\xff")
        file.seek((1 << 43) - 100)
        file.write(b"\xff")
    assert import_bookie.survey(made.plan, made.store, lambda _: None).counts.cut_off_ends > 0


def test_a_cookie_of_a_megabyte_is_told_in_one_short_line(tmp_path: Path) -> None:
    made = bookie_of(tmp_path, "sorted")
    name = "\x1b]0;x\x07" + "b" * 900_000
    made.put("journal/VERSION", cookies.encode(Cookie(name, ("j",), ("l",), "i")))
    with pytest.raises(StorageError) as caught:
        made.run()
    assert len(str(caught.value)) < MESSAGE_MAX
    assert str(caught.value).isprintable()
    pieces = b"bookieHost: " + b'"a"\n' * 250_000
    made.put("journal/VERSION", b"5\n" + pieces + b'journalDir: "j"\nledgerDirs: "1\tl"\n')
    with pytest.raises(StorageError):
        made.run()


def test_lengths_and_ids_of_all_kinds_are_damage_and_the_rest_counts(tmp_path: Path) -> None:
    made = Import(tmp_path)
    made.store.create_ledger(7, closed(2))
    wrong = [struct.pack(">i", size) for size in ((1 << 31) - 1, -(1 << 31), -0x101, 15)]
    ids = ((-5, 3), (7, -(1 << 63)), (1 << 62, 0))
    wrong += [record(struct.pack(">qqqq", *both, 1, 1)) for both in ids]
    good = [record(entry(7, one)) for one in range(3)]
    for bad in wrong:
        made.put("journal/1.txn", apache_disk.journal(good[0], bad, good[1]))
        made.put("ledgers/0.log", apache_disk.entry_log(good[0], bad, good[2]))
        done = import_bookie.survey(made.plan, made.store, lambda _: None)
        assert done.counts.entries == 4, bad
    made.run()
    assert sorted(made.content()[0][7]) == [0, 1, 2]


def test_an_entry_with_the_highest_id_is_taken(tmp_path: Path) -> None:
    made = Import(tmp_path)
    made.store.create_ledger(7, closed((1 << 63) - 1))
    made.put(
        "ledgers/0.log",
        apache_disk.entry_log(*(record(entry(7, one, b"x")) for one in (0, (1 << 63) - 1))),
    )
    made.run()
    assert sorted(made.content()[0][7]) == [0, (1 << 63) - 1]
    assert made.in_limbo() == [7]


def test_of_ledgers_that_metadata_does_not_list_a_bounded_number_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_bookie, "LEFT_OUT_KEPT_MAX", 10)
    made = Import(tmp_path)
    made.put(
        "ledgers/0.log", apache_disk.entry_log(*(record(entry(one, 0, b"x")) for one in range(50)))
    )
    counts = import_bookie.survey(made.plan, made.store, lambda _: None).counts
    assert (len(counts.left_out_ledgers), counts.left_out_entries) == (10, 50)
