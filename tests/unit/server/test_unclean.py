"""The mark of an unclean stop, and which ledgers are put into limbo by it (F9, P23, INV-X4)."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fastbk.errors import MetadataOnHold, StorageError
from fastbk.meta.hold import confirm_hold, new_hold, place_hold
from fastbk.meta.memory import MemoryStore
from fastbk.model.ids import BookieId
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.native.disk import Disk
from fastbk.native.ffi import CorruptDataError, FormatTooNewError
from fastbk.server.supervision import unclean_start as server_unclean
from fastbk.server.supervision.unclean_start import begin_life, end_life
from fastbk.storage.limbo import read_limbo, write_limbo
from fastbk.storage.unclean import NAME, Unclean, decode, encode, mark_lost

pytestmark = pytest.mark.fast

INCARNATION = 5


@dataclass
class World:
    directory: str
    store: MemoryStore

    def begin(self, sync: str, ledgers_max: int = 100) -> int:
        return begin_life(
            [self.directory], self.store, "me", INCARNATION, sync=sync, ledgers_max=ledgers_max
        )

    def limbo(self) -> list[int]:
        return list(read_limbo(Disk(self.directory, "plain"), self.directory, INCARNATION))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    store = MemoryStore(f"{tmp_path}")
    for ledger_id, bookie in ((1, "me"), (2, "other"), (3, "me")):
        fragments = (Fragment(0, (BookieId(bookie),)),)
        metadata = LedgerMetadata(
            ensemble_size=1, write_quorum=1, ack_quorum=1, fragments=fragments
        )
        store.create_ledger(ledger_id, metadata)
    yield World(str(tmp_path), store)
    store.close()


@pytest.mark.parametrize(
    ("lives", "limbo"),
    [
        (["never", "never"], [1, 3]),
        (["never", "always"], [1, 3]),  # it is the dead life's way that counts
        (["always", "never"], []),
        (["always", "always"], []),
        (["never", "clean", "never"], []),
        (["clean", "never"], []),
    ],
)
def test_what_the_last_life_acknowledged_unsynced(
    world: World, lives: list[str], limbo: list[int]
) -> None:
    for life in lives:
        if life == "clean":
            end_life([world.directory])
        else:
            world.begin(life)
    assert world.limbo() == limbo


def test_a_start_that_was_cut_short_is_done_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.begin("never")

    def fail(*_: object) -> None:
        raise OSError("power")

    for cut in ("write_limbo", "write_unclean"):
        with monkeypatch.context() as patch, pytest.raises(OSError, match="power"):
            patch.setattr(server_unclean, cut, fail)
            world.begin("always")
    assert world.begin("always") == 2
    assert world.limbo() == [1, 3]
    assert world.begin("always") == 0, "said once; the ledger states have it"


def test_ledgers_of_a_rebirth_stay_in_limbo(world: World) -> None:
    world.begin("never")
    write_limbo(Disk(world.directory, "plain"), world.directory, [9], INCARNATION)
    world.begin("never")
    assert world.limbo() == [1, 3, 9]


def test_a_damaged_mark_is_taken_for_the_worse(world: World) -> None:
    world.begin("always")
    path = Path(world.directory) / NAME
    raw = bytearray(path.read_bytes())
    raw[10] ^= 1
    path.write_bytes(raw)
    assert world.begin("always") == 2


def test_more_ledgers_than_there_is_room_for(world: World) -> None:
    world.begin("never")
    with pytest.raises(StorageError, match="ledgers_max"):
        world.begin("never", ledgers_max=1)
    assert world.begin("never") == 2


def test_the_file_says_what_it_is_or_is_refused() -> None:
    flag = Unclean(incarnation="05", sync="never", started_s=7)
    raw = encode(flag)
    assert decode(raw) == flag
    for at in range(len(raw)):
        for bit in range(8):
            changed = bytearray(raw)
            changed[at] ^= 1 << bit
            try:
                assert decode(bytes(changed)) == flag, (at, bit)  # a space for another
            except (CorruptDataError, FormatTooNewError):
                continue
    for raw in (b"", b"{}", b"[]", b'{"crc": 1}', encode(flag)[:-20]):
        with pytest.raises(CorruptDataError):
            decode(raw)
    with pytest.raises(FormatTooNewError):
        decode(encode(Unclean(incarnation="05", sync="never", started_s=7, format=2)))


@pytest.mark.parametrize("sync", ["always", "never"])
def test_a_disk_without_room_for_the_mark(
    world: World, monkeypatch: pytest.MonkeyPatch, sync: str
) -> None:
    """Where syncs vouch for everything it is no reason not to start; without them nothing starts unmarked."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(server_unclean, "write_unclean", full)
    if sync == "always":
        assert world.begin(sync) == 0
    else:
        with pytest.raises(OSError, match="No space left"):
            world.begin(sync)


def test_damage_that_the_last_boot_has_met_counts_at_once(world: World) -> None:
    world.begin("always")
    disk = Disk(world.directory, "plain")

    def boot() -> int:
        return begin_life(
            [world.directory],
            world.store,
            "me",
            INCARNATION,
            sync="always",
            ledgers_max=9,
            is_first_boot=False,
        )

    assert boot() == 0
    assert world.limbo() == []
    mark_lost(disk, world.directory, INCARNATION)
    assert boot() == 2
    assert world.limbo() == [1, 3]
    assert boot() == 0
    disk.destroy()


def test_an_unsynced_boot_s_children_may_die_without_that(world: World) -> None:
    world.begin("never")
    count = begin_life(
        [world.directory],
        world.store,
        "me",
        INCARNATION,
        sync="never",
        ledgers_max=9,
        is_first_boot=False,
    )
    assert (count, world.limbo()) == (0, [])


@pytest.mark.parametrize("point", ["unclean.after_limbo", "unclean.after_mark"])
def test_killed_at_its_points_nothing_is_forgotten(
    world: World, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    def killed(name: str) -> None:
        if name == point:
            raise OSError(name)

    world.begin("never")
    with monkeypatch.context() as patch, pytest.raises(OSError, match=point):
        patch.setattr(server_unclean, "kill_point", killed)
        world.begin("always")
    world.begin("always")
    assert world.limbo() == [1, 3]


def test_which_ledgers_are_in_doubt_is_not_decided_by_metadata_on_hold(world: World) -> None:
    """INV-X4: restored metadata may not list a ledger that this bookie has lost a part of."""
    world.begin("never")
    hold = place_hold(world.store, new_hold("rolled back"))
    with pytest.raises(MetadataOnHold, match="rolled back"):
        world.begin("never")
    assert world.limbo() == []
    assert confirm_hold(world.store, hold.hold_id)
    world.begin("never")
    assert world.limbo() == [1, 3]
