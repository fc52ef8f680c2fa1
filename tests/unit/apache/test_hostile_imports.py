"""An import of directories from anybody: an error that names the file, or damage; nothing is waited for or written."""

from __future__ import annotations

import os
import random
import shutil
import struct
from pathlib import Path

import pytest

from fastbk.apache.importer import import_bookie, index
from fastbk.errors import Error, StorageError
from fastbk.model import cookie as cookies
from fastbk.model.cookie import Cookie
from fastbk.model.ids import BookieId
from tests.fixtures import apache_disk, hostile_files
from tests.fixtures.apache_disk import entry, record
from tests.fixtures.apache_imports import Import, closed

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
