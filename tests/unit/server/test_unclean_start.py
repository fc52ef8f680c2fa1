"""The mark of an unclean stop, and which ledgers are put into limbo by it (F9, P23, INV-X4)."""

from __future__ import annotations

import contextlib
import errno
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fastbk.errors import IdentityChanged, MetadataOnHold, StorageError
from fastbk.meta.api import BookieIdentity, IdentityVersion
from fastbk.meta.rollback import confirm_hold, new_hold, place_hold
from fastbk.meta.sqlite.store import MemoryStore
from fastbk.model.ids import BookieId
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.native.disk import Disk
from fastbk.native.ffi import CorruptDataError, FormatTooNewError
from fastbk.server.identity import ledgers_of
from fastbk.server.supervision import unclean_start as server_unclean
from fastbk.server.supervision.unclean_start import LifeBegun, begin_life, end_life
from fastbk.storage.limbo import read_limbo, write_limbo
from fastbk.storage.manifest import Damage, Manifest, ManifestMissing, ManifestSlots
from fastbk.storage.small_files import encode
from fastbk.storage.unclean import NAME, Unclean, decode, mark_lost

if TYPE_CHECKING:
    from collections.abc import Iterator

INCARNATION = 5


@dataclass
class Harness:
    directory: str
    store: MemoryStore

    def begin(self, sync: str, ledgers_max: int = 100) -> int:
        return begin_life(
            [self.directory], self.store, "me", INCARNATION, sync=sync, ledgers_max=ledgers_max
        ).ledgers_in_limbo

    def put_on_record(self, *whats: str) -> None:
        """Commit a manifest with this damage."""
        with Disk(self.directory, "plain") as disk:
            slots = ManifestSlots(disk, self.directory)
            with contextlib.suppress(ManifestMissing):
                slots.load()
            numbers = {"file_id": 1, "first_sequence": 1, "last_sequence": 2, "found_s": 3}
            damage = tuple(Damage(what=what, **numbers) for what in whats)
            slots.commit(Manifest(generation=slots.next_generation(), damage=damage))

    def limbo(self) -> list[int]:
        return list(read_limbo(Disk(self.directory, "plain"), self.directory, INCARNATION))


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    store = MemoryStore(f"{tmp_path}")
    for ledger_id, bookie in ((1, "me"), (2, "other"), (3, "me")):
        fragments = (Fragment(0, (BookieId(bookie),)),)
        metadata = LedgerMetadata(
            ensemble_size=1, write_quorum=1, ack_quorum=1, fragments=fragments
        )
        store.create_ledger(ledger_id, metadata)
    harness = Harness(str(tmp_path), store)
    harness.put_on_record()
    yield harness
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
    harness: Harness, lives: list[str], limbo: list[int]
) -> None:
    for life in lives:
        if life == "clean":
            end_life([harness.directory])
        else:
            harness.begin(life)
    assert harness.limbo() == limbo


def test_a_start_that_was_cut_short_is_done_again(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.begin("never")

    def fail(*_: object) -> None:
        raise OSError("power")

    for cut in ("write_limbo", "write_unclean"):
        with monkeypatch.context() as patch, pytest.raises(OSError, match="power"):
            patch.setattr(server_unclean, cut, fail)
            harness.begin("always")
    assert harness.begin("always") == 2
    assert harness.limbo() == [1, 3]
    assert harness.begin("always") == 0, "said once; the ledger states have it"


def test_no_repair_names_a_bookie_for_copies_that_its_journal_may_have_lost(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-E3: a boot of the same start puts ledgers into limbo, too. One that is named meanwhile would be missed."""
    store, me = harness.store, BookieId("me")
    copied_to = IdentityVersion(me, store.write_identity(BookieIdentity(me, INCARNATION, ()), None))
    read = store.read_ledger(2)
    named = replace(read.metadata, fragments=(Fragment(0, (me,)),))
    harness.begin("never")
    lists: list[list[int]] = []

    def list_and_name(
        store: MemoryStore, bookie_id: BookieId, *, or_in_recovery: bool
    ) -> list[int]:
        lists.append(ledgers_of(store, bookie_id, or_in_recovery=or_in_recovery))
        with pytest.raises(IdentityChanged):
            store.update_ledger(2, named, read.version, copied_to)
        return lists[-1]

    monkeypatch.setattr(server_unclean, "ledgers_of", list_and_name)
    assert harness.begin("never") == 2
    assert lists == [[1, 3]]


def test_ledgers_of_a_rebirth_stay_in_limbo(harness: Harness) -> None:
    harness.begin("never")
    write_limbo(Disk(harness.directory, "plain"), harness.directory, [9], INCARNATION)
    harness.begin("never")
    assert harness.limbo() == [1, 3, 9]


def test_a_damaged_mark_is_taken_for_the_worse(harness: Harness) -> None:
    harness.begin("always")
    path = Path(harness.directory) / NAME
    raw = bytearray(path.read_bytes())
    raw[10] ^= 1
    path.write_bytes(raw)
    assert harness.begin("always") == 2


def test_more_ledgers_than_there_is_room_for(harness: Harness) -> None:
    harness.begin("never")
    with pytest.raises(StorageError, match="ledgers_max"):
        harness.begin("never", ledgers_max=1)
    assert harness.begin("never") == 2


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
    harness: Harness, monkeypatch: pytest.MonkeyPatch, sync: str
) -> None:
    """Where syncs vouch for everything it is no reason not to start; without them nothing starts unmarked."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(server_unclean, "write_unclean", full)
    if sync == "always":
        assert harness.begin(sync) == 0
    else:
        with pytest.raises(OSError, match="No space left"):
            harness.begin(sync)


def test_damage_that_the_last_boot_has_met_counts_at_once(harness: Harness) -> None:
    harness.begin("always")
    disk = Disk(harness.directory, "plain")

    def boot() -> int:
        return begin_life(
            [harness.directory],
            harness.store,
            "me",
            INCARNATION,
            sync="always",
            ledgers_max=9,
            is_first_boot=False,
        ).ledgers_in_limbo

    assert boot() == 0
    assert harness.limbo() == []
    mark_lost(disk, harness.directory, INCARNATION)
    assert boot() == 2
    assert harness.limbo() == [1, 3]
    assert boot() == 0
    disk.destroy()


def test_an_unsynced_boot_s_children_may_die_without_that(harness: Harness) -> None:
    harness.begin("never")
    life = begin_life(
        [harness.directory],
        harness.store,
        "me",
        INCARNATION,
        sync="never",
        ledgers_max=9,
        is_first_boot=False,
    )
    assert (life, harness.limbo()) == (LifeBegun(), [])


@pytest.mark.parametrize("point", ["unclean.after_limbo", "unclean.after_mark"])
def test_killed_at_its_points_nothing_is_forgotten(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    def killed(name: str) -> None:
        if name == point:
            raise OSError(name)

    harness.begin("never")
    with monkeypatch.context() as patch, pytest.raises(OSError, match=point):
        patch.setattr(server_unclean, "kill_point", killed)
        harness.begin("always")
    harness.begin("always")
    assert harness.limbo() == [1, 3]


def test_which_ledgers_are_in_doubt_is_not_decided_by_metadata_on_hold(harness: Harness) -> None:
    """INV-X4: restored metadata may not list a ledger that this bookie has lost a part of."""
    harness.begin("never")
    hold = place_hold(harness.store, new_hold("rolled back"))
    with pytest.raises(MetadataOnHold, match="rolled back"):
        harness.begin("never")
    assert harness.limbo() == []
    assert confirm_hold(harness.store, hold.hold_id)
    harness.begin("never")
    assert harness.limbo() == [1, 3]


@pytest.mark.parametrize("is_first_boot", [True, False])
def test_damage_on_record_has_the_ledgers_listed_whoever_put_it_there(
    harness: Harness, *, is_first_boot: bool
) -> None:
    """INV-X6: a list that is newer than the record lets replay end it."""

    def boot() -> LifeBegun:
        return begin_life(
            [harness.directory],
            harness.store,
            "me",
            INCARNATION,
            sync="always",
            ledgers_max=9,
            is_first_boot=is_first_boot,
        )

    assert boot() == LifeBegun()
    harness.put_on_record("batch 7 of journal file 1 is damaged")
    assert boot() == LifeBegun(2, is_listed=True)
    assert harness.limbo() == [1, 3]
    assert boot() == LifeBegun(2, is_listed=True), "until the record has ended"
    harness.put_on_record()
    assert boot() == LifeBegun()


def test_damage_on_record_outlives_a_hold(harness: Harness) -> None:
    """Metadata on hold may not know all ledgers; a bookie that has served with the record serves on with it."""
    harness.put_on_record("batch 7 of journal file 1 is damaged")
    hold = place_hold(harness.store, new_hold("rolled back"))
    assert harness.begin("always") == 0
    assert harness.limbo() == []
    assert confirm_hold(harness.store, hold.hold_id)
    assert harness.begin("always") == 2
