"""Readers of a bookie's files: all that is there, nothing that is not, and on behind damage (no traceback, ever)."""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fastbk.errors import StorageError
from fastbk.inspect import index_files, small_files
from fastbk.inspect.index_files import read_entry_log, read_locations
from fastbk.inspect.items import Counter, FileReader, Item
from fastbk.inspect.journal import read_journal
from fastbk.native.disk import Disk
from fastbk.storage.directories import locations_path
from fastbk.storage.limbo import NAME as LIMBO_NAME
from fastbk.storage.limbo import write_limbo
from fastbk.storage.scrub_state import NAME as SCRUB_NAME
from fastbk.storage.scrub_state import Quarantined, ScrubState, write_scrub_state
from fastbk.storage.unclean import NAME as UNCLEAN_NAME
from fastbk.storage.unclean import Unclean, write_unclean
from tests.fixtures import hostile_files
from tests.fixtures.bookie_image import COOKIE, FENCED, Image, make_image
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.journal_logs import LEDGERS, LOG, LOG_PATH, RUN_ENTRIES, JournalLogs, stored

READERS: dict[str, Callable[[FileReader], Iterator[Item]]] = {
    "*.journal": read_journal,
    "*.log": read_entry_log,
    "*.loc": read_locations,
}
SMALL: dict[str, Callable[[str], Iterator[Item]]] = {
    "manifest.0": small_files.read_manifest,
    "identity.json": small_files.read_identity,
    "VERSION": small_files.read_cookie,
    "audit.log": small_files.read_audit,
}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return make_image(tmp_path_factory.mktemp("bookie"))


def read(path: Path, reader: Callable[[FileReader], Iterator[Item]]) -> list[Item]:
    with FileReader(path) as source:
        return list(reader(source))


def entries_of(items: list[Item]) -> dict[tuple[object, object], bytes]:
    return {
        (item.facts["ledger_id"], item.facts["entry_id"]): item.entry
        for item in items
        if item.entry is not None
    }


def log_of(image: Image) -> Path:
    return next(path for path in image.files("*.log") if path.name != "audit.log")


def durable_bytes_of(path: Path) -> int:
    logs = small_files.logs_listed_for(str(path))
    assert logs is not None
    return logs[int(path.stem, 16)]


def changed(path: Path, to: Path, at: int, mask: int = 0xFF) -> Path:
    raw = bytearray(path.read_bytes())
    raw[at] ^= mask
    to.mkdir(parents=True, exist_ok=True)
    (to / path.name).write_bytes(raw)
    return to / path.name


# --- what is there -----------------------------------------------------------------------------------------------


def test_a_journal_holds_every_acknowledged_entry(image: Image) -> None:
    items = [item for path in image.files("*.journal") for item in read(path, read_journal)]
    assert not [item for item in items if item.is_damage]
    assert entries_of(items) == image.entries
    assert {item.facts["ledger_id"] for item in items if item.what == "fence"} == {FENCED}
    sequences = sorted(item.facts["sequence"] for item in items if item.what == "batch")  # type: ignore[type-var]
    assert sequences == list(range(1, len(sequences) + 1))
    headers = [item for item in items if item.what == "header"]
    assert {item.facts["bookie_id"] for item in headers} == {"b:1"}


def test_entry_logs_hold_what_was_flushed(image: Image) -> None:
    paths = [path for path in image.files("*.log") if path.name != "audit.log"]
    assert len(paths) == 2
    items = []
    for path in paths:
        durable_bytes = durable_bytes_of(path)
        with FileReader(path) as source:
            items += list(read_entry_log(source, durable_bytes))
    assert not [item for item in items if item.is_damage]
    found = entries_of(items)
    assert image.flushed <= set(found) <= set(image.entries)
    assert all(image.entries[key] == raw for key, raw in found.items())


def test_locations_name_every_run(image: Image) -> None:
    """Of each log the same runs as the log itself holds."""
    named = set()
    for path in image.files("*.loc"):
        items = read(path, read_locations)
        assert not [item for item in items if item.is_damage]
        named |= {
            (item.facts["log_id"], item.facts["log_offset_bytes"], item.facts["ledger_id"])
            for item in items
            if item.what == "location"
        }
        states = {item.facts["ledger_id"]: item for item in items if item.what == "state"}
        if FENCED in states:
            assert "fenced" in states[FENCED].facts["flags"]
    held = set()
    for path in image.files("0*.log"):
        header, *rest = read(path, read_entry_log)
        held |= {
            (header.facts["log_id"], item.offset_bytes, item.facts["ledger_id"])
            for item in rest
            if item.what == "run"
        }
    assert named == held != set()


def test_locations_in_logs_that_no_manifest_lists_are_void(image: Image) -> None:
    """INV-X5."""
    for path in image.files("*.loc"):
        with FileReader(path) as source:
            items = [item for item in read_locations(source, [2]) if item.what == "location"]
        assert [bool(item.facts.get("void")) for item in items] == [
            item.facts["log_id"] != 2 for item in items
        ]
    assert small_files.logs_listed_for(str(image.files("*.loc")[0])) is not None


@pytest.fixture
def adopted(tmp_path: Path) -> Iterator[tuple[Path, Path, JournalLogs]]:
    """A journal file with four runs and loose entries, and the locations file that names the runs."""
    with FakeDisk() as fake:
        logs = JournalLogs(fake)
        logs.begin_file()
        for loose in (0, 3):
            logs.batch(1, 2, loose=loose)
        (entry,) = logs.publish().locations
        paths = []
        for source in (LOG_PATH, locations_path(LEDGERS, entry.file_id)):
            paths.append(tmp_path / Path(source).name)
            paths[-1].write_bytes(fake.disk().read_file(source))
        yield paths[0], paths[1], logs
        logs.close()


def test_runs_of_a_journal_file_are_shown_with_their_entries(
    adopted: tuple[Path, Path, JournalLogs],
) -> None:
    journal, locations, logs = adopted
    items = read(journal, read_journal)
    assert not [item for item in items if item.is_damage]
    assert items[0].facts["adopts"] is True
    runs = [item for item in items if item.what == "run"]
    assert [run.offset_bytes for run in runs] == [run.offset_bytes for run in logs.runs()]
    with journal.open("r+b") as file:
        file.truncate(logs.ends[1])
    cut = read(journal, read_journal)
    assert cut[:-1] == items[:-1]
    assert cut[-1].facts["why"] == "the file was cut here"
    assert [run.facts["first_entry_id"] for run in runs] == [0, 0, RUN_ENTRIES, RUN_ENTRIES]
    entries = entries_of(items)
    for ledger_id in (1, 2):
        for entry_id in range(2 * RUN_ENTRIES):
            assert entries[ledger_id, entry_id] == stored(ledger_id, entry_id)
    assert (99, 2) in entries
    found = [item for item in read(locations, read_locations) if item.what == "location"]
    assert [item.facts["journal_file_id"] for item in found] == [1] * 4
    assert {item.facts["log_id"] for item in found} == {LOG}


@pytest.mark.parametrize("at", [10, 100])
def test_a_run_whose_header_or_table_is_damaged_gives_the_entries_that_are_whole(
    adopted: tuple[Path, Path, JournalLogs], tmp_path: Path, at: int
) -> None:
    journal, _, logs = adopted
    victim = logs.runs()[1]
    harmed = changed(journal, tmp_path / "harmed", victim.offset_bytes + at)
    items = read(harmed, read_journal)
    assert [item.offset_bytes for item in items if item.is_damage][:1] == [victim.offset_bytes]
    entries = entries_of(items)
    lost = {1} if at == 100 else set()  # its item has another id now
    assert len(entries) == 4 * RUN_ENTRIES + 3 + 2 - len(lost)
    for entry_id in set(range(RUN_ENTRIES)) - lost:
        assert entries[2, entry_id] == stored(2, entry_id)


def test_limbo_scrub_and_the_mark_of_an_unclean_stop(tmp_path: Path) -> None:
    with Disk(tmp_path, "plain") as disk:
        write_limbo(disk, str(tmp_path), [3, 7], 255)
        write_unclean(disk, str(tmp_path), Unclean(incarnation="ff", sync="never", started_s=1))
        bad = Quarantined(ledger_id=7, first=3, last=4, reason="checksum", found_s=1)
        state = ScrubState(incarnation="ff", quarantined=(bad,)).with_bad_digests([(8, 1, 2)], 1)
        write_scrub_state(disk, str(tmp_path), state)
    (limbo,) = small_files.read_limbo(str(tmp_path))
    assert limbo.facts["ledgers"] == [3, 7]
    (flag,) = small_files.read_unclean(str(tmp_path))
    assert flag.facts["sync"] == "never"
    scrub, quarantined, bad_digests = small_files.read_scrub(str(tmp_path))
    assert (scrub.facts["quarantined"], scrub.facts["bad_digests"]) == (1, 1)
    assert quarantined.facts["ledger_id"] == 7
    assert bad_digests.facts["ledger_id"] == 8
    for name, reader in (
        (LIMBO_NAME, small_files.read_limbo),
        (UNCLEAN_NAME, small_files.read_unclean),
        (SCRUB_NAME, small_files.read_scrub),
    ):
        raw = (tmp_path / name).read_bytes()
        for at in range(len(raw)):
            assert list(reader(str(changed(tmp_path / name, tmp_path / "bad", at, 1))))


def test_the_small_files(image: Image) -> None:
    slots = list(small_files.read_manifest(str(image.ledgers)))
    assert [slot.what for slot in slots] == ["manifest", "manifest"]
    (mark,) = small_files.read_mark(str(image.ledgers))
    assert mark.facts["mark"] == slots[0].facts["mark"] != 0
    (identity,) = small_files.read_identity(str(image.journal))
    assert identity.facts["role"] == "journal"
    (cookie,) = small_files.read_cookie(str(image.ledgers))
    assert cookie.facts["ledgers"] == list(COOKIE.ledgers)
    with pytest.raises(StorageError, match="nothing was deleted"):
        list(small_files.read_audit(str(image.journal)))
    events = [item.facts["event"] for item in small_files.read_audit(str(image.ledgers))]
    assert events[:2] == [{"ledgers": [4], "reason": "test"}, {"deleted": 1}]


def test_totals(image: Image) -> None:
    with FileReader(image.files("*.journal")[0]) as source:
        *_, total = Counter().through(read_journal(source))
    assert total.what == "total"
    assert isinstance(total.facts["entries"], int)
    assert "damaged" not in total.facts


def test_reading_changes_nothing_and_needs_no_right_to_write(image: Image) -> None:
    before = {path: path.stat() for path in image.files("*")}
    for path in image.files("*.journal"):
        path.chmod(0o400)
        assert read(path, read_journal)
        path.chmod(0o644)
    after = {path: path.stat() for path in image.files("*")}
    assert {path: each.st_mtime_ns for path, each in before.items()} == {
        path: each.st_mtime_ns for path, each in after.items()
    }


# --- damage ------------------------------------------------------------------------------------------------------


def offsets_of(path: Path, count: int, seed: int) -> list[int]:
    """All of a small file; of a larger one those around what is there, and some more."""
    size = path.stat().st_size
    raw = path.read_bytes()
    rng = random.Random(seed)
    filled = [at for at in range(size) if raw[at]]
    return sorted(
        {*rng.sample(filled, min(count, len(filled))), *rng.sample(range(size), count // 4)}
    )


@pytest.mark.parametrize("pattern", READERS)
def test_any_changed_byte_of_a_large_file(image: Image, tmp_path: Path, pattern: str) -> None:
    """Told of or harmless: no exception, no entry that was never written, and all others still there."""
    for path in [one for one in image.files(pattern) if one.name != "audit.log"]:
        whole = entries_of(read(path, READERS[pattern]))
        for at in offsets_of(path, 120, seed=1):
            bad = changed(path, tmp_path, at, 1 << at % 8)
            items = read(bad, READERS[pattern])
            found = entries_of(items)
            assert all(image.entries[key] == raw for key, raw in found.items()), at
            if len(found) < len(whole):
                told = any(item.is_damage or "torn" in str(item.facts.get("why")) for item in items)
                assert told, f"{path.name}: byte {at} lost {set(whole) - set(found)} in silence"


@pytest.mark.parametrize("name", SMALL)
def test_any_changed_byte_of_a_small_file(image: Image, tmp_path: Path, name: str) -> None:
    path = image.files(name)[0]
    for at in range(min(path.stat().st_size, 1200)):
        bad = changed(path, tmp_path, at, 1 << at % 8)
        try:
            assert list(SMALL[name](str(bad))) or name == "audit.log"
        except StorageError:
            continue


@pytest.mark.parametrize("pattern", READERS)
@pytest.mark.parametrize("size", [0, 1, 50, 4095, 4096, 4100, 8192, 8200, 9000])
def test_any_length(image: Image, tmp_path: Path, pattern: str, size: int) -> None:
    for path in [one for one in image.files(pattern) if one.name != "audit.log"]:
        cut = tmp_path / path.name
        cut.write_bytes(path.read_bytes()[:size])
        found = entries_of(read(cut, READERS[pattern]))
        assert all(image.entries[key] == raw for key, raw in found.items())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("pattern", READERS)
def test_rubbish_of_any_kind(image: Image, tmp_path: Path, pattern: str, seed: int) -> None:
    """Holes, pages of other files, pages in the wrong order."""
    rng = random.Random(seed)
    paths = [one for one in image.files(pattern) if one.name != "audit.log"]
    others = [path.read_bytes() for path in image.files("0*")]
    raw = bytearray(rng.choice(paths).read_bytes())
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(0, max(1, len(raw) // 512)) * 512
        other = rng.choice(others)
        start = rng.randrange(0, max(1, len(other) // 512)) * 512
        piece = rng.choice([bytes(512), rng.randbytes(4096), other[start : start + 4096]])
        raw[at : at + len(piece)] = piece
    bad = tmp_path / "bad"
    bad.write_bytes(raw)
    found = entries_of(read(bad, READERS[pattern]))
    assert all(image.entries[key] == entry for key, entry in found.items())


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_many_bits_anywhere(image: Image, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(500):
        pattern = rng.choice(list(READERS))
        path = rng.choice([one for one in image.files(pattern) if one.name != "audit.log"])
        raw = bytearray(path.read_bytes())
        filled = [at for at, byte in enumerate(raw[:40_000]) if byte]
        for _ in range(rng.choice([1, 2, 5, 30])):
            raw[rng.choice(filled) if rng.random() < 0.8 else rng.randrange(len(raw))] ^= (
                1 << rng.randrange(8)
            )
        bad = tmp_path / path.name
        bad.write_bytes(raw)
        found = entries_of(read(bad, READERS[pattern]))
        assert all(image.entries[key] == entry for key, entry in found.items())


def test_a_journal_is_read_on_behind_a_damaged_batch(image: Image, tmp_path: Path) -> None:
    path = image.files("*.journal")[0]
    batches = [item for item in read(path, read_journal) if item.what == "batch"]
    second = batches[1]
    bad = changed(path, tmp_path, second.offset_bytes + 8)
    items = read(bad, read_journal)
    holes = [item for item in items if item.is_damage]
    assert holes[0].offset_bytes == second.offset_bytes
    assert holes[0].facts["next_sequence"] == batches[2].facts["sequence"]
    missing = second.facts["sequence"]
    assert f"batches {missing} to {missing} are missing" in str(holes[1].facts["reason"])
    assert [item.facts["sequence"] for item in items if item.what == "batch"] == [
        item.facts["sequence"] for item in batches if item is not second
    ]


def test_a_journal_without_headers_is_read_all_the_same(image: Image, tmp_path: Path) -> None:
    path = image.files("*.journal")[0]
    whole = entries_of(read(path, read_journal))
    bad = changed(changed(path, tmp_path / "a", 9), tmp_path / "b", 4096 + 9)
    assert entries_of(read(bad, read_journal)) == whole
    hole = tmp_path / "hole"
    hole.write_bytes(bytes(8192) + path.read_bytes()[8192:])
    items = read(hole, read_journal)
    assert items[0].facts["reason"] == "both headers are gone"
    assert entries_of(items) == whole


def test_what_an_earlier_use_left_is_no_part_of_a_journal(image: Image, tmp_path: Path) -> None:
    old, new = (path.read_bytes() for path in image.files("*.journal")[:2])
    (end,) = (
        item for item in read(image.files("*.journal")[1], read_journal) if item.what == "end"
    )
    recycled = tmp_path / "recycled"
    recycled.write_bytes(new[: end.offset_bytes] + old[end.offset_bytes :])
    items = read(recycled, read_journal)
    assert not [item for item in items if item.is_damage]
    assert items[-1].what == "end"
    assert entries_of(items) == entries_of(read(image.files("*.journal")[1], read_journal))


def test_an_entry_log_is_read_on_behind_a_damaged_run(image: Image, tmp_path: Path) -> None:
    path = log_of(image)
    runs = [item for item in read(path, read_entry_log) if item.what == "run"]
    assert len(runs) > 1
    bad = changed(path, tmp_path, runs[0].offset_bytes + 20)
    items = read(bad, read_entry_log)
    assert [(item.offset_bytes, item.what) for item in items[1:3]] == [
        (runs[0].offset_bytes, "damage"),
        (runs[1].offset_bytes, "run"),
    ]


def test_one_bad_entry_costs_one_entry(image: Image, tmp_path: Path) -> None:
    path = log_of(image)
    entries = [item for item in read(path, read_entry_log) if item.entry is not None]
    victim = entries[3]
    items = read(changed(path, tmp_path, victim.offset_bytes + 30), read_entry_log)
    lost = set(entries_of(entries)) - set(entries_of(items))
    assert lost == {(victim.facts["ledger_id"], victim.facts["entry_id"])}
    (bad,) = (item for item in items if item.is_damage)
    assert bad.facts["entry_id"] == victim.facts["entry_id"]


def test_a_log_that_is_shorter_than_the_manifest_says(image: Image, tmp_path: Path) -> None:
    shutil.copytree(image.ledgers, tmp_path / "ledgers")
    path = tmp_path / "ledgers" / "logs" / log_of(image).name
    durable_bytes = durable_bytes_of(path)
    path.write_bytes(path.read_bytes()[: durable_bytes - 4096])
    with FileReader(path) as source:
        items = list(read_entry_log(source, durable_bytes))
    assert any(item.is_damage for item in items)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no-such"):
        FileReader(tmp_path / "no-such")


# --- what an attacker leaves there --------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", READERS)
def test_changed_files_with_right_checksums(
    image: Image, tmp_path: Path, pattern: str, seed: int
) -> None:
    """FUZZ=100000 makes it a long run. Whatever is said is said in items; nothing else is raised."""
    paths = [one for one in image.files(pattern) if one.name != "audit.log"]
    for number in range(int(os.environ.get("FUZZ", "40"))):
        dice = random.Random(f"{seed} {number}")
        path = dice.choice(paths)
        bad = tmp_path / path.name
        bad.write_bytes(
            hostile_files.SEALS[path.suffix](hostile_files.changed(path.read_bytes(), dice))
        )
        for item in read(bad, READERS[pattern]):
            assert len(str(item.facts.get("reason", ""))) < 1000, number


def test_changed_small_files_with_right_checksums(image: Image, tmp_path: Path, seed: int) -> None:
    """FUZZ=100000 makes it a long run."""
    for number in range(int(os.environ.get("FUZZ", "300"))):
        dice = random.Random(f"{seed} {number}")
        name = dice.choice(sorted(SMALL))
        raw, bad = image.files(name)[0].read_bytes(), tmp_path / name
        if name == "identity.json":
            bad.write_bytes(hostile_files.odd_sealed_json(raw, dice))
        else:
            bad.write_bytes(
                (hostile_files.odd_manifest if name == "manifest.0" else hostile_files.changed)(
                    raw, dice
                )
            )
        assert list(SMALL[name](str(bad))) is not None


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
@pytest.mark.parametrize(
    "name", ["0000000000000009.journal", "identity.json", "current/VERSION", "manifest.1"]
)
def test_what_is_no_file_is_told_and_not_waited_for(
    image: Image, tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    folder = tmp_path / "journal"
    shutil.copytree(image.journal, folder)
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    kind = {
        "0000000000000009.journal": "journal",
        "identity.json": "identity",
        "current/VERSION": "cookie",
    }
    with pytest.raises(StorageError, match=re.escape(name)):
        _run(kind.get(name, "manifest"), folder)


def _run(kind: str, folder: Path) -> None:
    from fastbk.cli import inspect

    parser = argparse.ArgumentParser()
    inspect.add_arguments(parser)
    inspect.run(parser.parse_args([kind, str(folder)]))


def test_a_link_that_was_named_is_followed(image: Image, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(image.journal / "identity.json")
    (identity,) = small_files.read_identity(str(tmp_path / "link"))
    assert identity.facts["bookie_id"] == "b:1"


@pytest.mark.parametrize("pattern", READERS)
@pytest.mark.parametrize("keeps_header", [True, False])
def test_a_hole_of_any_size_takes_no_time(
    image: Image, tmp_path: Path, pattern: str, keeps_header: bool
) -> None:
    """Terabytes of zeros were read, and each block of them was reported."""
    path = next(one for one in image.files(pattern) if one.name != "audit.log")
    raw = path.read_bytes()
    bad = tmp_path / path.name
    bad.write_bytes(raw if keeps_header else bytes(8192) + raw[8192:])
    with bad.open("r+b") as file:
        file.seek(1 << 42)
        file.write(b"\xff" * 5000)
    assert len(read(bad, READERS[pattern])) < 1000


def test_items_of_a_run_that_name_the_same_bytes_are_not_all_read(
    image: Image, tmp_path: Path
) -> None:
    """Each item was read and checked anew: of a run of 64 MiB terabytes."""
    path = log_of(image)
    raw = bytearray(path.read_bytes())
    at = raw.index(index_files.RUN_MAGIC)
    (count,) = struct.unpack_from("<I", raw, at + 4)
    assert count > 1
    (size,) = struct.unpack_from("<I", raw, at + index_files._RUN.size - 16)
    for nth in range(count):
        place = at + index_files._RUN.size + nth * index_files._ITEM.size
        struct.pack_into("<II", raw, place + 8, 0, size)
    bad = tmp_path / path.name
    bad.write_bytes(hostile_files.sealed_log(bytes(raw)))
    told = [str(one.facts.get("reason")) for one in read(bad, read_entry_log) if one.is_damage]
    assert len([one for one in told if "more than the run has left" in one]) == count - 1


def test_a_line_and_a_file_that_are_larger_than_any_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "identity.json").write_bytes(b"{" * (small_files.SMALL_BYTES_MAX + 1))
    with pytest.raises(StorageError, match="not a file of this kind"):
        list(small_files.read_identity(str(tmp_path)))
    monkeypatch.setattr(small_files, "LINE_BYTES_MAX", 100)
    (tmp_path / "audit.log").write_bytes(b"[" * 101 + b'\n{"event": 1}\n')
    first, second = small_files.read_audit(str(tmp_path))
    assert (first.is_damage, second.facts["event"]) == (True, {"event": 1})
