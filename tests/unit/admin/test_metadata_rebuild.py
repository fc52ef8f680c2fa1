"""A collected file is believed whole or not at all, and files that do not belong together are refused."""

from __future__ import annotations

import os
import random
import shutil
import struct
from typing import TYPE_CHECKING

import msgspec
import pytest

from fastbk.admin.metadata_rebuild import (
    MAGIC,
    CollectedLedger,
    Collection,
    collect,
    encode,
    instance_of,
    read_collection,
    rebuild,
)
from fastbk.errors import ConfigError, Error, MetadataConflict, StorageError
from fastbk.inspect import journal
from fastbk.inspect.items import FileReader
from fastbk.inspect.journal import read_journal
from fastbk.meta.rollback import read_hold
from fastbk.meta.sqlite.store import MemoryStore
from fastbk.native.disk import Disk
from fastbk.native.hashes import crc32c
from fastbk.storage import last_metadata
from fastbk.storage.identity import new_identity, write_identity
from fastbk.storage.last_metadata import read_last_metadata
from fastbk.storage.metadata_mark import MetadataMark
from tests.fixtures import hostile_files
from tests.fixtures.bookie_image import Image, make_image
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.journal_logs import INCARNATION, RUN_ENTRIES, JournalLogs
from tests.fixtures.metadata import metadata, service

if TYPE_CHECKING:
    from pathlib import Path


def collection(bookie_id: str, instance_id: str = "", *ledgers: CollectedLedger) -> Collection:
    return Collection(
        bookie_id=bookie_id,
        incarnation=7,
        instance_id=instance_id,
        starts=3,
        directories=[("j", "journal", 0), ("l", "ledger", 0)],
        mark=MetadataMark(age=4, highest_id=9),
        ledgers=list(ledgers),
        deleted=[(5, 6)],
        damage=[],
    )


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    wanted = collection("a", "x", CollectedLedger(1, seen=metadata(3).to_bytes()))
    raw = encode(wanted)
    path.write_bytes(raw)
    assert read_collection(path) == wanted
    path.write_bytes(raw[:-1])
    with pytest.raises(StorageError, match="collect again"):
        read_collection(path)


def test_bookies_of_two_clusters_and_one_bookie_twice_are_refused() -> None:
    assert instance_of([collection("a", "x"), collection("b")]) == "x"
    with pytest.raises(ConfigError, match="several clusters"):
        instance_of([collection("a", "x"), collection("b", "y")])
    with pytest.raises(ConfigError, match="twice"):
        instance_of([collection("a", "x"), collection("a", "x")])


def test_a_ledger_that_one_bookie_saw_deleted_stays_away_and_metadata_is_held() -> None:
    """INV-M9, INV-M10."""
    store = MemoryStore("rebuild")
    seen = metadata(3).to_bytes()
    ledgers = [CollectedLedger(one, seen=seen, is_here=True) for one in (4, 5)]
    done = rebuild(store, [collection("a:1"), collection("b:2", "", *ledgers)])
    assert (done.created, done.kept_deleted) == (1, 1)
    assert store.list_ledgers() == [4]
    assert read_hold(store) is not None
    assert store.next_ledger_id() > 9
    assert [one.bookie_id for one in store.list_identities()] == ["a:1", "b:2"]


def test_nothing_is_written_while_a_bookie_runs() -> None:
    store = MemoryStore("rebuild while one runs")
    lease = store.register_bookie(service(), writable=True)
    with pytest.raises(MetadataConflict, match="Stop all"):
        rebuild(store, [collection("a")])
    assert read_hold(store) is None
    lease.close()


# Bookies' directories and collected files from anybody: what cannot be is named, and the rest
# counts.


MESSAGE_MAX = 2000
CASES = int(os.environ.get("FUZZ", "25"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bookie")
    make_image(folder)
    return folder


@pytest.fixture
def image(made: Path, tmp_path: Path) -> Image:
    folder = tmp_path / "bookie"
    shutil.copytree(made, folder)
    return Image(folder / "journal", folder / "ledgers", {}, set())


def files_of(folder: Path) -> list[Path]:
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def changed(path: Path, dice: random.Random) -> bytes:
    raw = path.read_bytes()
    if path.suffix in hostile_files.SEALS and path.name != "audit.log":
        return hostile_files.SEALS[path.suffix](hostile_files.changed(raw, dice))
    if path.name.startswith("manifest"):
        return hostile_files.odd_manifest(raw, dice)
    if path.name == "identity.json":
        return hostile_files.odd_sealed_json(raw, dice)
    return hostile_files.changed(raw, dice)


@pytest.mark.timeout(600 + 2 * CASES)
def test_changed_directories_are_collected_or_refused(
    made: Path, tmp_path: Path, seed: int
) -> None:
    """FUZZ=100000 makes it a long run. What is collected can be read where metadata is rebuilt."""
    for number in range(CASES):
        dice = random.Random(f"{seed} {number}")
        folder = tmp_path / f"{number}"
        shutil.copytree(made, folder)
        for name in dice.sample(files_of(folder), dice.choice((1, 1, 2, 3))):
            (folder / name).write_bytes(changed(folder / name, dice))
        refused = ""
        try:
            found = collect([folder])
            (folder / "collected").write_bytes(encode(found))
            assert read_collection(folder / "collected").ledgers == found.ledgers
        except Error as error:
            refused = str(error)
        assert len(refused) < MESSAGE_MAX, number
        shutil.rmtree(folder)


def test_collected_files_that_were_changed_are_refused_or_read(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "collected"
    dice = random.Random(seed)
    raw = encode(collection("a", "x"))
    for _ in range(int(os.environ.get("FUZZ", "1000"))):
        body = hostile_files.changed(raw[12:], dice)
        path.write_bytes(raw[:8] + crc32c(body).to_bytes(4, "little") + body)
        refused = ""
        try:
            assert isinstance(read_collection(path), Collection)
        except StorageError as error:
            refused = str(error)
        assert len(refused) < MESSAGE_MAX


def test_a_store_is_rebuilt_of_odd_collections_or_they_are_refused(
    tmp_path: Path, seed: int
) -> None:
    """FUZZ=100000 makes it a long run. One odd ledger or directory ends no rebuild with a fault of ours."""
    path = tmp_path / "collected"
    ledgers = [
        CollectedLedger(one, seen=metadata(3).to_bytes(), version=1, is_here=True) for one in (1, 2)
    ]
    plain = msgspec.to_builtins(collection("a:1", "", *ledgers), builtin_types=(bytes,))
    for number in range(int(os.environ.get("FUZZ", "300"))):
        dice = random.Random(f"{seed} {number}")
        found = hostile_files.odd(plain, dice)
        if dice.random() < 0.3:
            found = {
                **plain,
                "ledgers": [
                    [1, 0, 5, 5, b"", 0, hostile_files.changed(ledgers[0].seen, dice), 1, True]
                ],
            }
        refused = ""
        try:
            body = msgspec.msgpack.encode(found)
        except (ValueError, OverflowError):
            continue  # what MessagePack cannot say
        path.write_bytes(MAGIC + crc32c(body).to_bytes(4, "little") + body)
        try:
            done = rebuild(MemoryStore(f"odd {number}"), [read_collection(path)])
            refused = " ".join(note for notes in done.notes.values() for note in notes)
        except Error as error:
            refused = str(error)
        assert len(refused) < MESSAGE_MAX, number


def test_a_link_to_another_directory_is_not_followed_and_nothing_is_written_there(
    image: Image, tmp_path: Path
) -> None:
    """A small file was written to whatever a link led to, as root, to try the disk."""
    outside = tmp_path / "outside"
    outside.mkdir()
    before = outside.stat().st_mtime_ns
    (image.journal.parent / "x").symlink_to(outside)
    assert collect([image.journal.parent]).bookie_id == "b:1"
    assert outside.stat().st_mtime_ns == before
    image.journal.rename(outside / "journal")
    image.journal.symlink_to(outside / "journal")
    with pytest.raises(ConfigError, match="name it by another --data"):
        collect([image.journal.parent])
    assert collect([image.journal, image.ledgers]).bookie_id == "b:1"


@pytest.mark.parametrize(
    "name",
    [
        "identity.json",
        "current/VERSION",
        "metadata.last",
        "manifest.0",
        "0000000000000003.journal",
        "lock",
    ],
)
@pytest.mark.parametrize("what", ["pipe", "link", "directory"])
def test_what_is_no_file_is_told_and_not_waited_for(image: Image, name: str, what: str) -> None:
    """INV-D4."""
    directory = image.journal if name.endswith((".journal", "lock", "VERSION")) else image.ledgers
    path = directory / name
    path.unlink(missing_ok=True)
    if what == "pipe":
        os.mkfifo(path)
    elif what == "link":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    try:
        told = str(collect([image.journal.parent]).damage)
    except Error as error:
        told = str(error)
    assert name == "manifest.0" or path.name in told  # of the other slot everything is known


def test_ids_that_no_ledger_has_are_damage_and_the_rest_counts(image: Image) -> None:
    """One such record had the whole collected file refused where metadata is rebuilt."""
    (path, _) = image.files("*.journal")
    raw = bytearray(path.read_bytes())
    with FileReader(path) as source:
        at = next(
            one.offset_bytes
            for one in read_journal(source)
            if one.entry and one.facts["ledger_id"] == 3
        )
    struct.pack_into("<q", raw, at - journal._RECORD.size + 16, -5)
    raw[at : at + 8] = struct.pack(">q", -5)
    path.write_bytes(hostile_files.sealed_journal(bytes(raw)))
    found = collect([image.journal.parent])
    assert "ledger -5, an id that no ledger has" in str(found.damage)
    (path.parent / "collected").write_bytes(encode(found))
    assert {3, 5} <= {one.ledger_id for one in read_collection(path.parent / "collected").ledgers}


def test_of_much_damage_the_first_lines_are_kept(
    tmp_path: Path, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastbk.admin.metadata_rebuild.DAMAGE_MAX", 1)
    for path in image.files("*.journal"):
        path.write_bytes(b"rubbish" * 10_000)
    found = collect([image.journal.parent])
    assert len(found.damage) == 2 and found.damage[1].startswith("and ")
    monkeypatch.undo()
    found.damage = ["x" * 2000] * 1500
    (tmp_path / "collected").write_bytes(encode(found))
    damage = read_collection(tmp_path / "collected").damage
    assert len(damage) == 1001 and max(map(len, damage)) < 1000


def test_last_metadata_with_many_deletions_takes_no_longer_than_they_are_many(
    tmp_path: Path,
) -> None:
    """Each range that was wide was compared with all ledgers: minutes for some megabytes."""
    many = 20_000
    parts = [last_metadata._header()]
    parts += [last_metadata.pack(one, 1, b"m") for one in range(many)]
    parts += [last_metadata.pack(1 << 40, 1 << 60)] * many
    parts += [
        last_metadata.pack(7, 9),
        last_metadata.pack(8, 8),
        last_metadata.pack(8, 2, b"again"),
    ]
    (tmp_path / last_metadata.NAME).write_bytes(b"".join(parts))
    seen, deleted = read_last_metadata(tmp_path)
    assert sorted(set(range(many)) - set(seen)) == [7, 9]
    assert seen[8] == (2, b"again")
    assert list(deleted) == [(7, 7), (9, 9), (1 << 40, 1 << 60)]


@pytest.mark.parametrize(
    ("ledger_id", "number", "body"), [(-1, 5, b""), (9, 3, b""), (-9, 1, b"x")]
)
def test_last_metadata_ends_at_a_record_that_cannot_be(
    tmp_path: Path, ledger_id: int, number: int, body: bytes
) -> None:
    good, record = (
        last_metadata._header() + last_metadata.pack(4, 1, b"m"),
        last_metadata.pack(ledger_id, number, body),
    )
    (tmp_path / last_metadata.NAME).write_bytes(good + record + last_metadata.pack(5, 1, b"m"))
    seen, deleted = read_last_metadata(tmp_path)
    assert (list(seen), list(deleted)) == ([4], [])


def harm(path: Path, offset_bytes: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset_bytes] ^= 0xFF
    path.write_bytes(raw)


def test_runs_of_journal_files_are_found_by_locations_and_passed_files_are_not_read_again(
    tmp_path: Path,
) -> None:
    """A file that stays as a log holds loose entries of ledgers that may be deleted since."""
    disks: list[Disk] = []

    def new_disk() -> Disk:
        disks.append(Disk(tmp_path, "plain"))
        return disks[-1]

    with FakeDisk() as fake:
        logs = JournalLogs(fake, str(tmp_path), new_disk)
        for _ in range(2):
            logs.begin_file()
            logs.batch(1, 2)
        manifest = logs.publish(sealed=False)
        passed = [msgspec.structs.replace(manifest.logs[0], sealed=True), manifest.logs[1]]
        logs.slots.commit(
            msgspec.structs.replace(
                manifest, generation=manifest.generation + 1, logs=tuple(passed)
            )
        )
        for role, path in (("journal", logs.journal), ("ledger", logs.ledgers)):
            write_identity(logs.disk, path, new_identity("b:1", INCARNATION, role, 1))
        harm(tmp_path / "journal" / "0000000000000001.journal", logs.ends[1] - 4096)
        found = collect([tmp_path / "journal", tmp_path / "ledgers"])
        assert {one.ledger_id: one.highest_entry_id for one in found.ledgers} == {
            1: 2 * RUN_ENTRIES - 1,
            2: 2 * RUN_ENTRIES - 1,
            98: 1,  # loose, in the second file
        }
        assert found.damage == []
        logs.close()
    for disk in disks:
        disk.destroy()
