"""A bookie that lost its data: refused, or on a person's word born again with all it held in limbo (INV-X4, INV-D1)."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fastbk.errors import IdentityChanged, MetadataOnHold
from fastbk.meta.api import BookieService, Endpoint, IdentityVersion
from fastbk.meta.rollback import confirm_hold, new_hold, place_hold
from fastbk.meta.sqlite.store import MemoryStore
from fastbk.model.ids import BookieId
from fastbk.model.ledger import Fragment, LedgerMetadata, LedgerState
from fastbk.native.disk import Disk
from fastbk.server import identity
from fastbk.server.configuration.bookie_config import BookieConfig
from fastbk.server.configuration.settings import JournalSettings, LedgerSettings, LimitSettings
from fastbk.server.identity import ledgers_of, settle
from fastbk.storage.identity_check import IdentityError
from fastbk.storage.limbo import read_limbo

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
