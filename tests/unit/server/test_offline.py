"""A stopped bookie gets another id: all or, cut off anywhere, nothing that a second try does not end (INV-D1)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastbk.errors import MetadataConflict
from fastbk.meta.api import BookieIdentity, BookieService
from fastbk.meta.rollback import read_hold
from fastbk.meta.sqlite.store import MemoryStore
from fastbk.model.ids import BookieId
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.native.disk import Disk
from fastbk.server import offline
from fastbk.server.configuration.bookie_config import BookieConfig
from fastbk.server.configuration.settings import JournalSettings, LedgerSettings
from fastbk.server.identity import settle
from fastbk.server.offline import rename
from fastbk.storage.cookie_file import read_cookie
from fastbk.storage.identity import read_identity
from fastbk.storage.identity_check import IdentityError

OLD, NEW, OTHER = BookieId("10.0.0.1:3181"), BookieId("host:3181"), BookieId("other")


class Harness:
    """A bookie with two pairs that was started once as OLD."""

    def __init__(self, folder: Path) -> None:
        self.store = MemoryStore(str(folder))
        self.folders = {
            kind: [str(folder / f"{kind}-{n}") for n in (1, 2)] for kind in ("journal", "ledgers")
        }
        self.config = BookieConfig(
            journal=JournalSettings(directories=tuple(self.folders["journal"])),
            ledgers=LedgerSettings(directories=tuple(self.folders["ledgers"])),
        )
        for path in self.paths:
            Path(path).mkdir()
        settle(self.config, self.store, OLD)
        self.incarnation = settle(self.config, self.store, OLD)

    @property
    def paths(self) -> list[str]:
        return [path for kind in ("journal", "ledgers") for path in self.folders[kind]]

    def ids(self) -> set[str]:
        """Whom the directories belong to, by their identities and cookies."""
        found = set()
        for path in self.paths:
            disk = Disk(Path(path), "plain")
            identity, cookie = read_identity(disk, path), read_cookie(disk, path)
            disk.destroy()
            assert identity is not None
            assert cookie is not None
            found |= {identity.bookie_id, cookie.bookie_id}
        return found

    def known(self) -> list[str]:
        return [one.bookie_id for one in self.store.list_identities()]

    def ledger(self, ledger_id: int, bookie: BookieId) -> None:
        metadata = LedgerMetadata(
            ensemble_size=1, write_quorum=1, ack_quorum=1, fragments=(Fragment(0, (bookie,)),)
        )
        self.store.create_ledger(ledger_id, metadata)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    made = Harness(tmp_path)
    yield made
    made.store.close()


def test_a_renamed_bookie_starts_under_its_new_id_only(harness: Harness) -> None:
    harness.ledger(1, OLD)
    assert rename(harness.config, harness.store, OLD, NEW)
    assert (harness.ids(), harness.known()) == ({NEW}, [NEW])
    assert settle(harness.config, harness.store, NEW) == harness.incarnation
    with pytest.raises(IdentityError, match="the cookie"):
        settle(harness.config, harness.store, OLD)
    assert not rename(harness.config, harness.store, OLD, NEW)
    harness.store.delete_ledger(1)  # or written with the new id
    assert rename(harness.config, harness.store, NEW, OLD)
    assert settle(harness.config, harness.store, OLD) == harness.incarnation
    assert read_hold(harness.store) is None, "its starts are counted on"


class CutOffError(Exception):
    """The process ended here."""


@pytest.mark.parametrize("writes", range(11))
def test_cut_off_anywhere_it_is_ended_by_a_second_try(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """One write to metadata, an identity and a cookie for each of four directories, one deletion."""
    left = writes

    def counted(target: object, name: str) -> None:
        real = getattr(target, name)

        def write(*arguments: object) -> object:
            nonlocal left
            if not left:
                raise CutOffError
            left -= 1
            return real(*arguments)

        monkeypatch.setattr(target, name, write)

    for target, name in (
        (harness.store, "write_identity"),
        (harness.store, "delete_identity"),
        (offline, "write_identity"),
        (offline, "write_cookie"),
    ):
        counted(target, name)
    if writes < 10:
        with pytest.raises(CutOffError):
            rename(harness.config, harness.store, OLD, NEW)
    else:
        assert rename(harness.config, harness.store, OLD, NEW)
    monkeypatch.undo()
    starts_as = {1: OLD, 9: NEW}.get(writes)
    if starts_as is not None:  # in good order on either side of the directories' change
        assert settle(harness.config, harness.store, starts_as) == harness.incarnation
    elif 1 < writes < 9:
        for one in (OLD, NEW):
            with pytest.raises(IdentityError):
                settle(harness.config, harness.store, one)
    rename(harness.config, harness.store, OLD, NEW)
    assert (harness.ids(), harness.known()) == ({NEW}, [NEW])
    assert settle(harness.config, harness.store, NEW) == harness.incarnation


def test_an_id_of_another_bookie_is_refused(harness: Harness) -> None:
    harness.store.write_identity(BookieIdentity(NEW, 7, ()), None)
    with pytest.raises(IdentityError, match="another bookie 'host:3181'"):
        rename(harness.config, harness.store, OLD, NEW)
    assert (harness.ids(), harness.known()) == ({OLD}, [OLD, NEW])


def test_an_id_that_ledgers_name_is_refused(harness: Harness) -> None:
    """Of what another bookie held under that id ours would say that it never was."""
    harness.ledger(5, NEW)
    with pytest.raises(IdentityError, match="ledger 5"):
        rename(harness.config, harness.store, OLD, NEW)
    assert (harness.ids(), harness.known()) == ({OLD}, [OLD])


@pytest.mark.parametrize("running", [OLD, NEW])
def test_a_bookie_that_runs_is_not_renamed(harness: Harness, running: BookieId) -> None:
    lease = harness.store.register_bookie(BookieService(running, 7, ()), writable=True)
    with pytest.raises(MetadataConflict, match="stop it first"):
        rename(harness.config, harness.store, OLD, NEW)
    lease.close()
    assert (harness.ids(), harness.known()) == ({OLD}, [OLD])


def test_directories_that_are_not_that_bookies_are_refused(harness: Harness) -> None:
    with pytest.raises(IdentityError, match="knows neither"):
        rename(harness.config, harness.store, OTHER, NEW)
    shutil.rmtree(harness.paths[0])
    Path(harness.paths[0]).mkdir()
    with pytest.raises(IdentityError):
        rename(harness.config, harness.store, OLD, NEW)
    assert harness.known() == [OLD]


def test_a_start_makes_durable_what_its_directories_show_before_it_reads_any_of_their_files(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-X7: also where no move was cut off, as in nearly every start."""
    synced: list[str] = []
    read_move = offline.read_move

    def sync(disk: Disk, path: str) -> None:
        synced.append(path)

    def read(disk: Disk, path: str) -> object:
        assert synced == harness.paths, "in this order"
        return read_move(disk, path)

    monkeypatch.setattr(offline, "settle_names", sync)
    monkeypatch.setattr(offline, "read_move", read)
    assert offline.end_move(harness.config) == ""
    assert synced == harness.paths
