"""What a bookie finds in its directories at start, on real folders: each case of lost, foreign and mixed-up disks.

INV-D1. The rules alone are in tests/unit/storage/test_identity_check.py, rebirths in test_identity.py.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from fastbk.errors import IdentityChanged, MetadataConflict, MetadataOnHold, StorageError
from fastbk.meta import open_store
from fastbk.meta.api import BookieService, Endpoint, IdentityVersion, MetadataStore
from fastbk.meta.rollback import confirm_hold, new_hold, place_hold
from fastbk.meta.sqlite.store import MemoryStore, SqliteStore
from fastbk.model import cookie
from fastbk.model.cookie import Cookie, decode
from fastbk.model.ids import BookieId
from fastbk.model.ledger import Fragment, LedgerMetadata, LedgerState
from fastbk.native.disk import Disk
from fastbk.server import identity
from fastbk.server.configuration.bookie_config import BookieConfig
from fastbk.server.configuration.settings import JournalSettings, LedgerSettings, LimitSettings
from fastbk.server.identity import ledgers_of, settle
from fastbk.storage.identity import NAME as IDENTITY_NAME
from fastbk.storage.identity_check import IdentityError
from fastbk.storage.limbo import read_limbo
from fastbk.storage.manifest import SLOTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fixtures.zookeeper import ZooKeeperPlace

BOOKIE = "me"


@dataclass
class Bookie:
    """One bookie's folders, and the metadata that it is configured for."""

    folder: Path
    store: MetadataStore
    bookie_id: str = BOOKIE

    def __post_init__(self) -> None:
        self.journal, self.ledgers = self.folder / "journal", self.folder / "ledgers"
        for directory in (self.journal, self.ledgers):
            directory.mkdir(parents=True, exist_ok=True)

    def settle(self) -> int:
        config = BookieConfig(
            journal=JournalSettings(directory=str(self.journal)),
            ledgers=LedgerSettings(directory=str(self.ledgers)),
        )
        return settle(config, self.store, self.bookie_id)

    def refusal(self) -> str:
        """What the start ends with; nothing may have been touched."""
        before = self.content()
        with pytest.raises(IdentityError) as caught:
            self.settle()
        assert self.content() == before
        return str(caught.value)

    def content(self) -> dict[str, bytes]:
        paths = [*self.journal.rglob("*"), *self.ledgers.rglob("*")]
        return {str(path): path.read_bytes() for path in paths if path.is_file()}

    def cookie(self, directory: Path) -> Cookie:
        return decode((directory / "current" / "VERSION").read_bytes())

    def starts(self) -> int:
        read = self.store.read_identity(BookieId(self.bookie_id))
        assert read is not None
        return read.identity.starts


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MetadataStore]:
    made: MetadataStore
    if request.param == "memory":
        made = MemoryStore(str(tmp_path))
    else:
        made = SqliteStore(str(tmp_path / "metadata.sqlite"))
    yield made
    made.close()


@pytest.fixture
def bookie(tmp_path: Path, store: MetadataStore) -> Bookie:
    made = Bookie(tmp_path / "a", store)
    made.settle()
    return made


def test_a_birth_stamps_the_cookie_of_the_metadata_everywhere(
    bookie: Bookie, store: MetadataStore
) -> None:
    read = store.read_identity(BookieId(BOOKIE))
    assert read is not None
    expected = read.identity.cookie(store.instance_id())
    assert bookie.cookie(bookie.journal) == bookie.cookie(bookie.ledgers) == expected
    assert expected.instance_id == store.instance_id() != ""
    assert bookie.settle() == read.identity.incarnation


@pytest.mark.slow
def test_file_and_node_are_the_same_bytes(tmp_path: Path, zookeeper: ZooKeeperPlace) -> None:
    """On a real ZooKeeper, whose cookies Apache's tools read; and a formatted cluster is another one."""
    store = open_store(zookeeper.uri())
    bookie = Bookie(tmp_path / "z", store)
    bookie.settle()
    bookie.settle()
    peek = zookeeper.client()
    node = peek.get(zookeeper.path("cookies/me"))[0]
    peek.stop()
    peek.close()
    for directory in (bookie.journal, bookie.ledgers):
        assert (directory / "current" / "VERSION").read_bytes() == node
    assert decode(node).instance_id == store.instance_id()
    assert bookie.starts() == 1
    bookie.store = open_store(zookeeper.uri("/other"))
    assert "another cluster" in bookie.refusal()
    for each in (store, bookie.store):
        each.close()


def test_wiped(bookie: Bookie) -> None:
    shutil.rmtree(bookie.ledgers)
    bookie.ledgers.mkdir()
    says = bookie.refusal()
    assert f"{bookie.ledgers} is empty" in says
    assert "not mounted" in says


def test_foreign(bookie: Bookie, tmp_path: Path) -> None:
    other = Bookie(tmp_path / "b", bookie.store, "other")
    other.settle()
    bookie.ledgers = other.ledgers
    says = bookie.refusal()
    assert "bookie 'other'" in says
    assert "another bookie was configured" in says


def test_two_pairs(bookie: Bookie, tmp_path: Path) -> None:
    folders = [str(tmp_path / name) for name in ("j0", "j1", "l0", "l1")]
    for folder in folders:
        Path(folder).mkdir()

    def start(j0: str, j1: str, l0: str, l1: str) -> int:
        journal, ledgers = (
            JournalSettings(directories=(j0, j1)),
            LedgerSettings(directories=(l0, l1)),
        )
        return settle(BookieConfig(journal=journal, ledgers=ledgers), bookie.store, "two")

    incarnation = start(*folders)
    cookies = {(Path(folder) / "current" / "VERSION").read_bytes() for folder in folders}
    (raw,) = cookies
    assert (len(decode(raw).journals), len(decode(raw).ledgers)) == (2, 2)
    assert start(*folders) == incarnation
    j0, j1, l0, l1 = folders
    for wrong, says in (
        ((j1, j0, l0, l1), "is a journal directory of pair 1"),
        ((j0, j1, l1, l0), "is a ledger directory of pair 1"),
        ((j0, l0, j1, l1), "Swap"),
    ):
        with pytest.raises(IdentityError, match=says):
            start(*wrong)
    shutil.rmtree(l1)
    Path(l1).mkdir()
    with pytest.raises(IdentityError, match=r"ledger directory of pair 1 .*l1 is empty"):
        start(*folders)


def test_swapped_between_the_roles(bookie: Bookie) -> None:
    bookie.journal, bookie.ledgers = bookie.ledgers, bookie.journal
    assert "Swap the directories" in bookie.refusal()


def test_moved_to_another_host(bookie: Bookie) -> None:
    """Its id was its address, and that is another one now."""
    bookie.bookie_id = "10.0.0.9:3181"
    says = bookie.refusal()
    assert "moved to another host" in says
    assert "set bookie.id to 'me'" in says


def test_another_cluster_s(bookie: Bookie, tmp_path: Path) -> None:
    bookie.store = SqliteStore(str(tmp_path / "other.sqlite"))
    says = bookie.refusal()
    assert "another cluster" in says
    assert bookie.store.instance_id() in says
    bookie.store.close()


def test_an_apache_bookie_s(tmp_path: Path, store: MetadataStore) -> None:
    bookie = Bookie(tmp_path / "a", store)
    (bookie.ledgers / "current").mkdir()
    raw = b'5\nbookieHost: "me"\njournalDir: "/j"\nledgerDirs: "1\\t/l"\nindexDirs: "1\\t/l"\n'
    (bookie.ledgers / "current" / "VERSION").write_bytes(raw)
    assert "Apache bookie" in bookie.refusal()


def test_an_old_copy_of_everything(bookie: Bookie, tmp_path: Path) -> None:
    """A machine's snapshot put back: all its files agree with each other, and acknowledged entries are missing."""
    for directory in (bookie.journal, bookie.ledgers):
        shutil.copytree(directory, tmp_path / "copy" / directory.name)
    bookie.settle()
    for directory in (bookie.journal, bookie.ledgers):
        shutil.rmtree(directory)
        shutil.copytree(tmp_path / "copy" / directory.name, directory)
    says = bookie.refusal()
    assert "restored from an old copy" in says
    assert "used last" in says


def test_an_old_copy_of_one_directory(bookie: Bookie, tmp_path: Path) -> None:
    shutil.copytree(bookie.journal, tmp_path / "copy")
    bookie.settle()
    shutil.rmtree(bookie.journal)
    shutil.copytree(tmp_path / "copy", bookie.journal)
    assert "restored from an old copy" in bookie.refusal()


def test_clones_that_start_at_the_same_moment(
    bookie: Bookie, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*_: object) -> int:
        raise MetadataConflict("somebody else was first")

    monkeypatch.setattr(bookie.store, "write_identity", lose)
    with pytest.raises(IdentityError, match="cloned"):
        bookie.settle()


def test_starts_are_counted_and_one_that_is_cut_short_does_no_harm(
    bookie: Bookie, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bookie.starts() == 0
    bookie.settle()
    assert bookie.starts() == 1
    real = identity.write_identity
    for written_max in range(3):  # directories that counted before the cut: none, one, both
        calls = iter(range(3))

        def cut(*arguments: object, left: int = written_max, calls: Iterator[int] = calls) -> None:
            if next(calls) == left:
                raise OSError("cut")
            real(*arguments)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(identity, "write_identity", cut)
            if written_max == 2:
                patch.setattr(bookie.store, "write_identity", cut)
            with pytest.raises(OSError, match="cut"):
                bookie.settle()
        bookie.settle()
    assert bookie.starts() == 1 + (0 + 1) + (1 + 1) + (1 + 1)


def test_a_full_disk_keeps_nobody_from_starting(
    bookie: Bookie, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bookie.journal / "current" / "VERSION").unlink()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(identity, "write_identity", full)
        patch.setattr(identity, "write_cookie", full)
        bookie.settle()
    assert bookie.starts() == 0
    bookie.settle()
    assert bookie.starts() == 1


def test_directories_from_before_cookies_get_one(bookie: Bookie) -> None:
    (bookie.ledgers / "current" / "VERSION").unlink()
    bookie.settle()
    assert bookie.cookie(bookie.ledgers) == bookie.cookie(bookie.journal)


def test_a_cookie_with_fewer_directories_than_metadata_is_completed(bookie: Bookie) -> None:
    """The end of an expansion that was cut short: metadata heard of it, this directory did not."""
    whole = bookie.cookie(bookie.journal)
    path = bookie.journal / "current" / "VERSION"
    path.write_bytes(cookie.encode(msgspec.structs.replace(whole, ledgers=())))
    bookie.settle()
    assert bookie.cookie(bookie.journal) == whole


@pytest.mark.slow
@pytest.mark.parametrize("name", ["current/VERSION", IDENTITY_NAME])
def test_any_changed_byte_is_harmless_or_refused(tmp_path: Path, name: str) -> None:
    store = MemoryStore(str(tmp_path))
    bookie = Bookie(tmp_path / "a", store)
    incarnation = bookie.settle()
    path = bookie.ledgers / name
    raw = path.read_bytes()
    refused = 0
    for at in range(0, len(raw), 3):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << at % 8]) + raw[at + 1 :])
        try:
            assert bookie.settle() == incarnation
        except StorageError:
            refused += 1
        path.write_bytes(raw)
    assert refused > len(raw) // 3 // 2
    store.close()


@pytest.mark.parametrize("name", ["current/VERSION", IDENTITY_NAME])
def test_a_damaged_file_is_named(bookie: Bookie, name: str) -> None:
    path = bookie.ledgers / name
    raw = bytearray(path.read_bytes())
    raw[5] ^= 0x40
    path.write_bytes(raw[:-20])
    with pytest.raises(StorageError, match=name):
        bookie.settle()


@pytest.mark.parametrize("what", ["missing", "damaged"])
def test_without_a_manifest_nothing_is_started(bookie: Bookie, what: str) -> None:
    """Nobody knows which files count: a person has to do something, and restarts are of no use."""
    for slot in SLOTS:
        path = bookie.ledgers / slot
        if what == "missing":
            path.unlink()
        else:
            path.write_bytes(b"x" * 4096)
    before = bookie.content()
    with pytest.raises(StorageError, match="rebuild-locations"):
        bookie.settle()
    assert bookie.content() == before


# A bookie that lost its data: refused, or on a person's word born again with all it held in limbo
# (INV-X4, INV-D1).


ME, OTHER = BookieId("me"), BookieId("other")


@dataclass
class Harness:
    folder: Path
    clock: Callable[[], float] = time.monotonic
    ledgers_max: int = 100

    def __post_init__(self) -> None:
        self.store = MemoryStore(f"{self.folder}", clock=self.clock)
        self.config = BookieConfig(
            journal=JournalSettings(directory=str(self.folder / "journal")),
            ledgers=LedgerSettings(directory=str(self.folder / "ledgers")),
            limits=LimitSettings(ledgers_max=self.ledgers_max),
        )
        self.mount()

    def mount(self) -> None:
        for directory in (self.config.journal.directory, self.config.ledgers.directory):
            Path(directory).mkdir(exist_ok=True)

    def wipe(self) -> None:
        for directory in (self.config.journal.directory, self.config.ledgers.directory):
            shutil.rmtree(directory)
        self.mount()

    def settle(self, *, accept: bool = False) -> int:
        return settle(self.config, self.store, ME, accept_data_loss=accept)

    def ledger(self, ledger_id: int, *bookies: BookieId) -> None:
        """A ledger with one fragment a bookie."""
        metadata = LedgerMetadata(
            ensemble_size=1,
            write_quorum=1,
            ack_quorum=1,
            fragments=tuple(Fragment(10 * n, (bookie,)) for n, bookie in enumerate(bookies)),
        )
        self.store.create_ledger(ledger_id, metadata)

    def limbo(self, incarnation: int) -> list[int]:
        directory = self.config.ledgers.directory
        return list(read_limbo(Disk(Path(directory), "plain"), directory, incarnation))


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    made = Harness(tmp_path)
    yield made
    made.store.close()


def test_every_fragment_counts(harness: Harness) -> None:
    harness.ledger(3, ME)
    harness.ledger(1, OTHER)
    harness.ledger(5, OTHER, ME, OTHER)
    harness.ledger(2**62, ME, OTHER)
    assert ledgers_of(harness.store, ME) == [3, 5, 2**62]


def test_lost_data_refuses_to_start(harness: Harness) -> None:
    harness.settle()
    harness.wipe()
    with pytest.raises(IdentityError, match="--accept-data-loss"):
        harness.settle()
    assert not any(Path(harness.config.ledgers.directory).iterdir()), "nothing was touched"


def test_born_again_with_what_it_held_in_limbo(harness: Harness) -> None:
    old = harness.settle()
    harness.ledger(1, ME)
    harness.ledger(2, OTHER)
    assert harness.limbo(old) == []
    harness.wipe()
    new = harness.settle(accept=True)
    assert new != old
    assert harness.limbo(new) == [1]
    assert harness.settle() == new, "the word is given once"
    assert harness.settle(accept=True) == new
    read = harness.store.read_identity(ME)
    assert read is not None
    assert read.identity.incarnation == new


def test_ledgers_in_recovery_count_though_metadata_names_others(harness: Harness) -> None:
    """A recoverer writes copies to bookies that metadata names with the close only (found by simulation)."""
    harness.settle()
    harness.ledger(1, OTHER)
    harness.ledger(2, OTHER)
    read = harness.store.read_ledger(2)
    taken = replace(read.metadata, state=LedgerState.IN_RECOVERY)
    harness.store.update_ledger(2, taken, read.version)
    harness.wipe()
    assert harness.limbo(harness.settle(accept=True)) == [2]


def test_no_repair_names_a_bookie_for_copies_of_a_former_life(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-E3: not once its ledgers are being listed, since that list does not have this one, and not later."""
    harness.settle()
    harness.ledger(2, OTHER)
    known, read = harness.store.read_identity(ME), harness.store.read_ledger(2)
    assert known is not None
    copied_to = IdentityVersion(ME, known.version)
    named = replace(read.metadata, fragments=(Fragment(0, (ME,)),))
    harness.wipe()
    lists: list[list[int]] = []

    def list_and_name(
        store: MemoryStore, bookie_id: BookieId, *, or_in_recovery: bool
    ) -> list[int]:
        lists.append(ledgers_of(store, bookie_id, or_in_recovery=or_in_recovery))
        with pytest.raises(IdentityChanged, match="bookie me was started again, or lost its data"):
            store.update_ledger(2, named, read.version, copied_to)
        return lists[-1]

    monkeypatch.setattr(identity, "ledgers_of", list_and_name)
    harness.settle(accept=True)
    assert lists == [[]]
    with pytest.raises(IdentityChanged):
        harness.store.update_ledger(2, named, read.version, copied_to)
    assert harness.store.read_ledger(2) == read


def test_ledgers_in_recovery_keep_no_new_bookie_from_starting(harness: Harness) -> None:
    harness.ledger(2, OTHER)
    read = harness.store.read_ledger(2)
    taken = replace(read.metadata, state=LedgerState.IN_RECOVERY)
    harness.store.update_ledger(2, taken, read.version)
    assert harness.limbo(harness.settle()) == []


def test_an_id_whose_identity_was_deleted_is_not_new(harness: Harness) -> None:
    """Deleting the identity in the metadata is how operators make a wiped bookie start."""
    harness.settle()
    harness.ledger(1, ME)
    read = harness.store.read_identity(ME)
    assert read is not None
    harness.store.delete_identity(ME, read.version)
    harness.wipe()
    with pytest.raises(
        IdentityError, match=r"knows no identity .* 1 ledgers name it .*--accept-data-loss"
    ):
        harness.settle()
    assert harness.limbo(harness.settle(accept=True)) == [1]


@pytest.mark.parametrize("step", ["write_limbo", "write_identity", "store"])
def test_a_rebirth_that_was_cut_short_is_done_again(
    harness: Harness, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before metadata hears of it nothing is said under the new incarnation; after that the list is there."""
    old = harness.settle()
    harness.ledger(1, ME)
    harness.wipe()

    def fail(*_: object) -> None:
        raise OSError("cut")

    with monkeypatch.context() as patch:
        if step == "store":
            patch.setattr(harness.store, "write_identity", fail)
        else:
            patch.setattr(identity, step, fail)
        with pytest.raises(OSError, match="cut"):
            harness.settle(accept=True)
    with pytest.raises(IdentityError):
        harness.settle()
    harness.ledger(2, ME)
    new = harness.settle(accept=True)
    assert new != old
    assert harness.limbo(new) == [1, 2]


def test_more_ledgers_than_there_is_room_for(tmp_path: Path) -> None:
    harness = Harness(tmp_path, ledgers_max=1)
    harness.settle()
    harness.ledger(1, ME)
    harness.ledger(2, ME)
    harness.wipe()
    with pytest.raises(IdentityError, match=r"raise .* ledgers_max"):
        harness.settle(accept=True)
    harness.store.close()


def test_an_earlier_life_that_is_still_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = Harness(tmp_path, clock=lambda: 0.0)
    old = harness.settle()
    service = BookieService(ME, old, (Endpoint("127.0.0.1", 1),))
    lease = harness.store.register_bookie(service, writable=True)
    harness.wipe()
    monkeypatch.setattr(identity, "OLD_LEASE_WAIT_S", 0.0)
    with pytest.raises(IdentityError, match="alive elsewhere"):
        harness.settle(accept=True)
    lease.close()
    assert harness.settle(accept=True) != old
    harness.store.close()


def test_no_rebirth_goes_by_metadata_on_hold(harness: Harness) -> None:
    """INV-X4: restored metadata may not list a ledger that was lost with the data."""
    old = harness.settle()
    harness.ledger(1, ME)
    harness.wipe()
    hold = place_hold(harness.store, new_hold("rolled back"))
    with pytest.raises(MetadataOnHold, match="rolled back"):
        harness.settle(accept=True)
    assert confirm_hold(harness.store, hold.hold_id)
    assert harness.limbo(harness.settle(accept=True)) == [1]
    assert harness.settle() != old
