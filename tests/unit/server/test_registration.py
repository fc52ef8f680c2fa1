from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import msgspec
import pytest

import fastbk
from fastbk.config import MetadataSettings
from fastbk.errors import ConfigError, Error, MetadataConflict, MetadataUnavailable, StorageError
from fastbk.formats import LEVEL_MAX
from fastbk.meta import format_level
from fastbk.meta.api import BookieRegistration, BookieService, Endpoint, Lease
from fastbk.meta.format_level import raise_level
from fastbk.meta.records import Change
from fastbk.meta.sqlite.store import MemoryStore
from fastbk.native.disk import Disk
from fastbk.security.settings import TlsSettings
from fastbk.server import directories
from fastbk.server.configuration.bookie_config import BookieConfig
from fastbk.server.configuration.settings import BookieSettings, JournalSettings, LedgerSettings
from fastbk.server.directories import lock_all
from fastbk.server.supervision import registration
from fastbk.server.supervision.registration import Membership
from tests.fixtures.metadata import forget_level
from tests.fixtures.wait import wait_until_async


class Flaky(MemoryStore):
    """A memory store that fails when told to."""

    failure: Error | None = None

    def register_bookie(self, service: BookieService, *, writable: bool) -> Lease:
        if self.failure is not None:
            raise self.failure
        return super().register_bookie(service, writable=writable)


class Harness:
    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # of this test alone: one that fails leaves nothing to the next
        self.store = Flaky(str(tmp_path))
        self.reasons: list[str | None] = []
        monkeypatch.setattr(registration, "open_store", self.open_store)
        monkeypatch.setattr(registration, "_RETRY_S", 0.01)
        self.config = BookieConfig(
            metadata=MetadataSettings(uri="memory:"),
            journal=JournalSettings(directory=str(tmp_path / "journal")),
            ledgers=LedgerSettings(directory=str(tmp_path / "ledgers")),
        )
        for lock in lock_all([self.config.journal.directory, self.config.ledgers.directory]):
            lock.close()

    def open_store(self, uri: str, *, session_timeout_s: float) -> MemoryStore:
        assert (uri, session_timeout_s) == (
            self.config.metadata.uri,
            self.config.metadata.session_timeout_ms / 1e3,
        )
        return self.store

    def membership(self) -> Membership:
        return Membership(self.config, (Endpoint("127.0.0.1", 3181),), self.reasons.append)

    def listed(self) -> list[BookieRegistration]:
        return self.store.list_bookies()


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Harness:
    return Harness(tmp_path, monkeypatch)


def test_endpoints_on_the_data_port_say_whether_it_has_tls(harness: Harness) -> None:
    """As Apache's bookies: the extension "tls", and none on the HTTP server."""

    def extensions(mode: Literal["off", "prefer", "require"]) -> dict[str, tuple[str, ...]]:
        config = msgspec.structs.replace(harness.config, tls=TlsSettings(mode=mode))
        found = registration.endpoints(config, "127.0.0.1", 3181, 8000)
        return {one.protocol: one.extensions for one in found}

    assert extensions("off") == {"fastbk": (), "bookie-rpc": (), "http": ()}
    for mode in ("prefer", "require"):
        assert extensions(mode) == {"fastbk": ("tls",), "bookie-rpc": ("tls",), "http": ()}


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "0", "[::0]", "[::ffff:0.0.0.0]"])
def test_a_page_on_all_addresses_is_registered_by_the_bookies_own(
    harness: Harness, host: str
) -> None:
    bookie = msgspec.structs.replace(harness.config.bookie, advertised="bookie-1")
    http = msgspec.structs.replace(harness.config.http, listen=f"{host}:8000")
    config = msgspec.structs.replace(harness.config, bookie=bookie, http=http)
    assert {one.host for one in registration.endpoints(config, "10.0.0.1", 3181, 8000)} == {
        "bookie-1"
    }


async def test_a_new_bookie_is_born_once_and_known_ever_after(harness: Harness) -> None:
    first = harness.membership()
    born = await first.join("b1")
    second = harness.membership()
    again = await second.join("b1")
    assert again.incarnation == born.incarnation > 0
    await first.close()
    await second.close()


async def test_a_start_tries_no_disk_of_small_files(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index waits for it: how direct writes work in a directory is for those to find out who make any."""

    def tried(*_: object) -> None:
        raise AssertionError("a disk was tried")

    monkeypatch.setattr(Disk, "__init__", tried)
    for _ in ("is born", "is known"):
        membership = harness.membership()
        await membership.join("b1")
        await membership.join("b1")  # the next boot
    await membership.close()


async def test_data_under_another_id_is_refused(harness: Harness) -> None:
    """INV-D1."""
    first = harness.membership()
    await first.join("b1")
    second = harness.membership()
    with pytest.raises(StorageError, match="bookie 'b1', this one is 'b2'"):
        await second.join("b2")
    await first.close()
    await second.close()


async def test_a_bookie_is_listed_from_announcement_to_withdrawal(harness: Harness) -> None:
    member = harness.membership()
    await member.join("b1")
    assert harness.listed() == []
    await member.announce(writable=True, properties={"journal_backend": "plain"})
    (found,) = harness.listed()
    assert found.writable
    assert found.service.properties["journal_backend"] == "plain"
    assert found.service.endpoint() == Endpoint("127.0.0.1", 3181)
    await member.announce(writable=False, reads_only_reason="the disk is full")
    (found,) = harness.listed()
    assert not found.writable and found.service.properties["reads_only"] == "the disk is full"
    assert found.service.properties["journal_backend"] == "plain"
    await member.announce(writable=True)
    (found,) = harness.listed()
    assert found.writable and "reads_only" not in found.service.properties
    await member.withdraw()
    assert harness.listed() == []
    await member.close()


async def test_a_bookie_registers_its_version_and_the_level_that_it_has(harness: Harness) -> None:
    member = harness.membership()
    await member.join("b1")
    await member.announce(writable=True, properties={})
    (found,) = harness.listed()
    assert found.service.properties["version"] == fastbk.__version__
    assert found.service.properties["format_level"] == str(LEVEL_MAX)
    await member.close()


async def test_a_bookie_without_the_clusters_level_does_not_start(harness: Harness) -> None:
    """INV-U2."""
    raise_level(harness.store, LEVEL_MAX + 1)
    member = harness.membership()
    with pytest.raises(ConfigError, match=f"format level {LEVEL_MAX + 1}"):
        await member.join("b1")
    assert harness.store.list_identities() == [], "nothing was made"
    await member.close()


async def test_a_damaged_level_keeps_a_running_bookie_in_its_cluster(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(format_level, "POLL_INTERVAL_S", 0.0)
    member = harness.membership()
    await member.join("b1")
    await member.announce(writable=True, properties={})
    assert member._lease is not None
    member._lease.renew_interval_s = 0.02
    (found,) = harness.store.records.read([format_level.LEVEL_PATH])
    assert found is not None
    harness.store.records.change([Change(format_level.LEVEL_PATH, b"no json", found.version)])
    await wait_until_async(lambda: member._is_level_damaged, "the damage is found")
    (found,) = harness.store.records.read([format_level.LEVEL_PATH])
    assert found is not None
    new = msgspec.json.encode(format_level.LevelRecord(level=LEVEL_MAX))
    harness.store.records.change([Change(format_level.LEVEL_PATH, new, found.version)])
    await wait_until_async(lambda: member.formats.level == LEVEL_MAX, "the level, mended")
    assert len(harness.listed()) == 1 and not any(harness.reasons)
    assert capfd.readouterr().err.count("formats.level_not_known") == 1
    await member.close()


async def test_a_bookie_leaves_a_cluster_whose_level_it_lacks(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-U2: it was away while the level rose; and INV-U1: it follows a level that it has."""
    forget_level(harness.store)
    monkeypatch.setattr(format_level, "POLL_INTERVAL_S", 0.0)
    member = harness.membership()
    await member.join("b1")
    await member.announce(writable=True, properties={})
    assert member._lease is not None
    member._lease.renew_interval_s = 0.02
    raise_level(harness.store, LEVEL_MAX)
    await wait_until_async(lambda: member.formats.level == LEVEL_MAX, "the new level")
    raise_level(harness.store, LEVEL_MAX + 1)
    why = "Start a version that has the level"
    await wait_until_async(lambda: why in str(harness.reasons[-1:]), "its leaving")
    assert harness.listed() == []
    await member.close()


async def test_a_first_announcement_that_fails_is_an_error(harness: Harness) -> None:
    member = harness.membership()
    await member.join("b1")
    harness.store.failure = MetadataConflict("taken")
    with pytest.raises(MetadataConflict):
        await member.announce(writable=True)
    harness.store.failure = None
    await member.close()


async def test_a_later_outage_is_told_of_and_healed(harness: Harness) -> None:
    member = harness.membership()
    await member.join("b1")
    await member.announce(writable=True, properties={"boot": "1"})
    harness.store.failure = MetadataUnavailable("gone")
    await member.announce(writable=True, properties={"boot": "2"})
    assert harness.reasons
    assert "gone" in str(harness.reasons[-1])
    harness.store.failure = None
    await wait_until_async(lambda: harness.reasons[-1] is None, "the problem's end")
    assert harness.listed()[0].service.properties["boot"] == "2"
    await member.close()


async def test_a_broken_boot_takes_no_writes_until_the_next_one(harness: Harness) -> None:
    member = harness.membership()
    await member.join("b1")
    await member.announce(writable=True)
    member.mark_not_writable()
    await wait_until_async(lambda: not harness.listed()[0].writable, "read-only in metadata")
    await member.announce(writable=True)
    assert harness.listed()[0].writable
    await member.close()


async def test_place_labels_and_free_space_are_told(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a client's `view_of` reads of them: tests/unit/client/test_known_bookies.py."""
    disk = SimpleNamespace(f_bavail=900, f_bfree=900, f_blocks=1000, f_frsize=4096)
    monkeypatch.setattr(directories.os, "statvfs", lambda _path: disk)
    monkeypatch.setattr(registration, "INTERVAL_S", 0.0)
    bookie = BookieSettings(location="/eu/r1", labels=("ssd", "gold"))
    harness.config = msgspec.structs.replace(harness.config, bookie=bookie)
    member = harness.membership()
    await member.join("b1")
    await member.announce(writable=True, properties={"boot": "1"})
    told = {"boot": "1", "location": "/eu/r1", "labels": "gold,ssd", "free_bytes": str(900 * 4096)}
    told |= {"version": fastbk.__version__, "format_level": str(LEVEL_MAX)}
    assert harness.listed()[0].service.properties == told
    # Told anew only when it moved by a twentieth of the disk.
    disk.f_bavail = disk.f_bfree = 851
    await member.announce(writable=False)
    assert harness.listed()[0].service.properties == told
    disk.f_bavail = disk.f_bfree = 850
    await wait_until_async(
        lambda: harness.listed()[0].service.properties["free_bytes"] == str(850 * 4096),
        "the new figure is told",
    )
    assert not harness.listed()[0].writable
    assert harness.listed()[0].service.properties["boot"] == "1"
    await member.close()
