"""Shards are moved between pairs, and pairs added, with the process killed at every point: afterwards every ledger
lives in exactly one pair, whole (INV-D3), and what was cut off goes on or is undone.
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from fastbk.errors import ConfigError, StorageError
from fastbk.native.disk import Disk
from fastbk.native.ffi import CorruptDataError, FormatTooNewError
from fastbk.native.segment import shard_of
from fastbk.server.identity import read_shards, settle
from fastbk.server.offline import (
    COPYING,
    MOVE_NAME,
    MOVED,
    Move,
    decode_move,
    end_move,
    expand,
    move_evenly,
    move_shards,
    write_move,
)
from fastbk.storage import offline_store, small_files
from fastbk.storage.identity import even_shards
from fastbk.storage.identity_check import IdentityError
from fastbk.storage.limbo import read_limbo
from fastbk.storage.manifest import Damage, ManifestSlots
from tests.fixtures.metadata import metadata
from tests.fixtures.stopped_bookie import ME, StoppedBookie, killed_at, same

pytestmark = pytest.mark.no_service

SHARDS = (2, 4, 20, 24, 26, 36, 42, 58)
"""In the first of two pairs at birth; those with most of the first forty ledgers."""
MOVE_POINTS = [
    "move.after_record",
    "move.after_announcement",
    "move.after_entries",
    "move.after_states",
    "move.before_moved",
    "move.after_moved",
    "move.after_identity",
    "move.after_drop",
    "move.after_end",
]
WRITE_POINTS = [
    "index.manifest_before_commit",
    "index.manifest_before_mirror",
    "index.flush_after_runs",
]


def quietly(_: int) -> None:
    return None


@pytest.fixture
def bookie(tmp_path: Path) -> StoppedBookie:
    made = StoppedBookie(tmp_path, 2)
    made.settle()
    return made


def test_moved_shards_live_in_the_other_pair_alone(bookie: StoppedBookie) -> None:
    """INV-D3: entries, keys, fences, limbo and deletions go along."""
    before = bookie.fill()
    (moved,) = move_shards(bookie.config, SHARDS, 1, quietly)
    shards = read_shards(bookie.config)
    assert {shard for shard in range(64) if shards[shard] == 1} == {*SHARDS, *range(1, 64, 2)}
    assert moved.ledgers == len([one for one in before if shard_of(one) in SHARDS and one % 4 != 2])
    assert same(bookie.content(), before)
    assert not bookie.leftovers()
    bookie.settle()
    deletions = Path(bookie.config.ledgers.directories[0], "audit.log").read_text().splitlines()
    assert "moved to pair 1" in json.loads(deletions[-1])["reason"]


def test_shards_can_come_back(bookie: StoppedBookie) -> None:
    before = bookie.fill()
    for target in (1, 0, 1, 0):
        move_shards(bookie.config, range(64), target, quietly)
        assert same(bookie.content(), before)
        assert not bookie.leftovers()
    assert not move_shards(bookie.config, range(64), 0, quietly), "they are there"


@pytest.mark.parametrize("point", [*MOVE_POINTS, *WRITE_POINTS])
@pytest.mark.parametrize("number", [1, 3])
def test_a_move_cut_off_anywhere_is_undone_or_finished(
    bookie: StoppedBookie, tmp_path: Path, point: str, number: int
) -> None:
    """INV-D3, and the end of a move cut off as well."""
    before = bookie.fill()
    act = lambda: move_shards(bookie.config, SHARDS, 1, quietly)  # noqa: E731
    was_killed = killed_at(point, number, tmp_path / "died", act)
    assert was_killed or number > 1
    for again, later in enumerate(("move.after_undo", "move.after_identity", "move.after_drop")):
        killed_at(later, 1, tmp_path / f"died again {again}", lambda: end_move(bookie.config))
    done = end_move(bookie.config)
    assert not end_move(bookie.config)
    assert done or not (bookie.folder / "ledgers.0" / MOVE_NAME).exists()
    assert same(bookie.content(), before)
    assert not bookie.leftovers()
    bookie.settle()  # all identities agree
    move_shards(bookie.config, SHARDS, 1, quietly)
    assert read_shards(bookie.config)[SHARDS[0]] == 1
    assert same(bookie.content(), before)
    assert not bookie.leftovers()


def test_what_cannot_be_read_stops_the_move_and_undoes_it(bookie: StoppedBookie) -> None:
    before = bookie.fill()
    for log in (bookie.folder / "ledgers.0" / "logs").iterdir():
        raw = bytearray(log.read_bytes())
        raw[4096 + 200 :] = bytes(len(raw) - 4096 - 200)
        whole = log.read_bytes()
        log.write_bytes(raw)
        with pytest.raises(StorageError, match="Nothing was moved"):
            move_shards(bookie.config, SHARDS, 1, quietly)
        log.write_bytes(whole)
    assert read_shards(bookie.config) == even_shards(2)
    assert not (bookie.folder / "ledgers.0" / MOVE_NAME).exists()
    assert same(bookie.content(), before)
    assert not bookie.leftovers()


def test_a_target_without_room_gets_nothing(
    bookie: StoppedBookie, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The move ends before the disk is full, so that it can be undone there."""
    before = bookie.fill()
    monkeypatch.setattr(offline_store, "free_bytes", lambda _: offline_store.KEPT_FREE_BYTES)
    with pytest.raises(StorageError, match="too little for the copies"):
        move_shards(bookie.config, SHARDS, 1, quietly)
    assert read_shards(bookie.config) == even_shards(2)
    assert not end_move(bookie.config), "it was undone at once"
    assert same(bookie.content(), before)
    assert not bookie.leftovers()


def test_an_unflushed_journal_or_damage_on_record_stops_the_move(bookie: StoppedBookie) -> None:
    bookie.fill()
    journal = bookie.folder / "journal.0" / f"{1:016x}.journal"
    journal.write_bytes(bytes(8192))
    with pytest.raises(StorageError, match="SIGTERM"):
        move_shards(bookie.config, SHARDS, 1, quietly)
    with pytest.raises(StorageError, match="SIGTERM"):
        move_shards(bookie.config, (1, 3), 0, quietly)
    journal.unlink()
    directory = bookie.config.ledgers.directories[0]
    with Disk(Path(directory), "plain") as disk:
        slots = ManifestSlots(disk, directory)
        damage = Damage(what="x", file_id=1, first_sequence=1, last_sequence=2, found_s=3)
        manifest = slots.load()
        slots.commit(
            msgspec.structs.replace(manifest, generation=slots.next_generation(), damage=(damage,))
        )
    with pytest.raises(StorageError, match="damage on record"):
        move_shards(bookie.config, SHARDS, 1, quietly)
    with pytest.raises(ConfigError, match="no pair 2"):
        move_shards(bookie.config, SHARDS, 2, quietly)


def test_a_move_is_not_ended_in_directories_that_are_not_its_own(bookie: StoppedBookie) -> None:
    """A target that is not mounted must not be taken for one that holds nothing (INV-D1)."""
    bookie.fill()
    with Disk(bookie.folder / "ledgers.0", "plain") as disk:
        write_move(
            disk,
            str(bookie.folder / "ledgers.0"),
            Move(incarnation="00000000000000ff", source=0, target=1, shards=SHARDS, phase=MOVED),
        )
    assert not end_move(bookie.config)
    assert read_shards(bookie.config) == even_shards(2)


def test_a_record_is_read_as_written_and_nothing_else() -> None:
    move = Move(incarnation="00000000000000ff", source=0, target=1, shards=(3, 7), phase=COPYING)
    raw = small_files.encode(move)
    assert decode_move(raw) == move
    for at in range(len(raw) - 1):
        damaged = bytearray(raw)
        damaged[at] ^= 1
        with suppress(CorruptDataError, FormatTooNewError):
            assert decode_move(bytes(damaged)) == move, "only white space"
    for changed in ({"source": 1}, {"target": 8}, {"shards": (64,)}, {"phase": "x"}):
        with pytest.raises(CorruptDataError):
            decode_move(small_files.encode(msgspec.structs.replace(move, **changed)))


# --- expansion -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "point",
    [
        "expand.after_identity",
        "expand.before_metadata",
        "expand.after_metadata",
        "expand.after_count",
    ],
)
def test_an_expansion_cut_off_anywhere_is_done_again(
    tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bookie = StoppedBookie(tmp_path, 1)
    bookie.settle()
    before = bookie.fill()
    bookie.pairs = 3
    bookie.mount()
    with pytest.raises(IdentityError, match="bookie expand"):
        bookie.settle()

    class Cut(BaseException):
        """The end of the process: metadata in memory would not outlive a real one."""

    def cut(name: str) -> None:
        if name == point:
            raise Cut

    with monkeypatch.context() as patch:
        patch.setattr("fastbk.server.offline.kill_point", cut)
        with pytest.raises(Cut):
            expand(bookie.config, bookie.store, ME)
    with pytest.raises(IdentityError, match="bookie expand"):
        bookie.settle()
    expand(bookie.config, bookie.store, ME)
    assert not expand(bookie.config, bookie.store, ME), "there is nothing left to add"
    bookie.settle()
    assert read_shards(bookie.config) == even_shards(1), "no shard moves by itself"
    assert len(move_evenly(bookie.config, quietly)) == 2
    counts = [read_shards(bookie.config).count(pair) for pair in range(3)]
    assert sorted(counts) == [21, 21, 22]
    assert same(bookie.content(), before)
    assert not bookie.leftovers()
    bookie.settle()


def test_a_pair_s_wiped_missing_or_swapped_directory_ends_the_start(bookie: StoppedBookie) -> None:
    """P20, INV-D1: one directory of four."""
    bookie.fill()
    folder = bookie.folder
    for name in ("journal.1", "ledgers.1", "journal.0", "ledgers.0"):
        (folder / name).rename(folder / "aside")
        (folder / name).mkdir()
        with pytest.raises(IdentityError, match="is empty"):
            bookie.settle()
        (folder / name).rmdir()
        (folder / "aside").rename(folder / name)
    for name in ("journal", "ledgers"):
        (folder / f"{name}.0").rename(folder / "aside")
        (folder / f"{name}.1").rename(folder / f"{name}.0")
        (folder / "aside").rename(folder / f"{name}.1")
        with pytest.raises(IdentityError, match="but is configured as"):
            bookie.settle()
        (folder / f"{name}.0").rename(folder / "aside")
        (folder / f"{name}.1").rename(folder / f"{name}.0")
        (folder / "aside").rename(folder / f"{name}.1")
    bookie.settle()
    bookie.pairs = 1
    with pytest.raises(IdentityError, match="more directories than are configured"):
        bookie.settle()


def test_a_bookie_of_pairs_that_lost_all_is_born_again_in_limbo(bookie: StoppedBookie) -> None:
    """INV-X4: each pair is told of all; its index keeps those that live there."""
    for ledger_id in range(5):
        bookie.store.create_ledger(ledger_id, metadata(bookies=(ME,)))
    for directory in (*bookie.config.journal.directories, *bookie.config.ledgers.directories):
        shutil.rmtree(directory)
    bookie.mount()
    with pytest.raises(IdentityError, match="--accept-data-loss"):
        bookie.settle()
    incarnation = settle(bookie.config, bookie.store, ME, accept_data_loss=True)
    assert read_shards(bookie.config) == even_shards(2)
    for directory in bookie.config.ledgers.directories:
        with Disk(Path(directory), "plain") as disk:
            assert list(read_limbo(disk, directory, incarnation)) == [0, 1, 2, 3, 4]
