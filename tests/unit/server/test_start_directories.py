"""What a bookie finds in its directories at start, on real folders: each case of lost, foreign and mixed-up disks.

INV-D1. The rules alone are in tests/unit/storage/test_identity_check.py, rebirths in test_rebirth.py.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fastbk.errors import MetadataConflict, StorageError
from fastbk.meta import open_store
from fastbk.meta.api import MetadataStore
from fastbk.meta.sqlite.store import MemoryStore, SqliteStore
from fastbk.model import cookie
from fastbk.model.cookie import Cookie, decode
from fastbk.model.ids import BookieId
from fastbk.server import identity
from fastbk.server.configuration.bookie_config import BookieConfig
from fastbk.server.configuration.settings import JournalSettings, LedgerSettings
from fastbk.server.identity import settle
from fastbk.storage.identity import NAME as IDENTITY_NAME
from fastbk.storage.identity_check import IdentityError
from fastbk.storage.manifest import SLOTS
from tests.fixtures.zookeeper import ZooKeeperPlace

ME = "me"


@dataclass
class Bookie:
    """One bookie's folders, and the metadata that it is configured for."""

    folder: Path
    store: MetadataStore
    bookie_id: str = ME

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
    read = store.read_identity(BookieId(ME))
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
    path.write_bytes(cookie.encode(replace(whole, ledgers=())))
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
