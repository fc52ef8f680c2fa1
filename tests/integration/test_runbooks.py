"""Every runbook is walked through: its own commands, on real bookies, under load. Nothing acknowledged is lost."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from fastbk.devcluster import DevService
from fastbk.devcluster.cluster import ZooKeeperServer
from fastbk.meta.uri import parse_zookeeper
from fastbk.meta.zookeeper import admin as zookeeper_admin
from fastbk.placement.config import PlacementConfig
from fastbk.security.authority import Authority
from fastbk.storage.last_metadata import read_last_metadata
from fastbk.testing import LocalCluster
from fastbk.units import MIB
from tests.fixtures.cli import Cli
from tests.fixtures.mounts import KIND, small_disk
from tests.fixtures.runbook import FOLDER, Action, Walk
from tests.fixtures.steady_load import SteadyLoad
from tests.fixtures.wait import wait_until
from tests.fixtures.zookeeper import QuorumServer
from tests.rigs import mounts

pytestmark = [pytest.mark.soak, pytest.mark.timeout(400)]

QUICK: dict[str, dict[str, object]] = {
    "gc": {"interval": "500ms"},
    "ledgers": {"flush_interval": "500ms"},
}
SMALL: dict[str, dict[str, object]] = {
    "limits": {"frame_size_max": "1MiB", "add_ring_size": "4MiB", "reply_ring_size": "4MiB"},
    "journal": {"limit": "32MiB", "file_size": "16MiB", "first_file_size": "16MiB"},
    "ledgers": {"write_cache_size": "8MiB", "flush_interval": "500ms", "entry_log_size": "16MiB"},
    "gc": {"interval": "500ms"},
    "disk": {"check_interval": "200ms", "near_check_interval": "50ms"},
}
"""For disks of DISK_BYTES."""
DISK_BYTES = 320 * MIB


class Machines:
    """A cluster's machines, as an operator handles them: units to start and stop, files, addresses."""

    def __init__(
        self, cluster: LocalCluster, folder: Path, zookeeper: ZooKeeperServer | None = None
    ) -> None:
        self.cluster = cluster
        self.folder = folder
        self._zookeeper = zookeeper
        self.healer = DevService(
            "autorecovery", cluster.data, cluster.metadata_uri, tls=cluster._tls
        )

    def number(self, name: str) -> int:
        return [one.name for one in self.cluster.bookies].index(name)

    def walk(
        self,
        page: str,
        more: dict[str, str] | None = None,
        environment: dict[str, str] | None = None,
    ) -> Walk:
        """Begin a page. `more`: what else of the page lies elsewhere here."""
        configurations = self.folder / "etc"
        configurations.mkdir()
        for one in self.cluster.bookies:
            shutil.copy(one.directory / "bookie.toml", configurations / f"{one.name}.toml")
        places = {
            "/etc/fastbk/bookie": f"{configurations}/bookie",
            "/var/lib/fastbk": str(self.cluster.data),
            "bookie-1:8000": f"127.0.0.1:{self.cluster.bookies[0].http_port}",
            **(more or {}),
        }
        actions: dict[str, Action] = {"systemctl": self.systemctl}
        return Walk(
            page, self.folder / "work", self.cluster.metadata_uri, places, actions, environment
        )

    def systemctl(self, words: list[str]) -> None:
        """Start or stop a unit, as its page says: with systemd both return when it is done."""
        verb, unit = words
        is_start = verb == "start"
        assert is_start or verb == "stop", words
        if unit == "zookeeper":
            assert self._zookeeper is not None
            self._zookeeper.start() if is_start else self._zookeeper.stop()
        elif unit == "fastbk-autorecovery":
            self.healer.start() if is_start else self.healer.stop()
        else:
            number = self.number(unit.removeprefix("fastbk-bookie@"))
            self.cluster.start_bookie(number) if is_start else self.cluster.stop_bookie(number)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Callable[..., Machines]]:
    """Makes a cluster; AutoRecovery runs beside it."""
    with ExitStack() as stack:

        def make(
            bookies: int, *, zookeeper: ZooKeeperServer | None = None, **options: object
        ) -> Machines:
            data = tmp_path / "data"
            # A write service's beats would be news that a copy of the metadata lacks.
            given = {"data": data, "write_services": 0, **options}
            cluster = stack.enter_context(LocalCluster(bookies, **given))  # type: ignore[arg-type]
            made = Machines(cluster, tmp_path, zookeeper)
            stack.callback(made.healer.stop)
            made.healer.start()
            return made

        yield make


def test_replace_a_disk(tmp_path: Path, machines: Callable[..., Machines]) -> None:
    with ExitStack() as stack:
        old, new, last = (
            stack.enter_context(small_disk(tmp_path, one, DISK_BYTES)) for one in ("a", "b", "c")
        )
        mounted = tmp_path / "data" / "bookie-2"
        mounted.mkdir(parents=True)
        old.unmount()
        mounts.mount(old.device, mounted, KIND)
        stack.callback(mounts.unmount, mounted, lazily=True)
        of = machines(4, settings=SMALL)
        places = {"/mnt/new": str(new.path), "/dev/sdc1": new.device, "/dev/sdd1": last.device}
        walk = of.walk("replace-a-disk.md", {**places, "runuser -u fastbk -- ": ""})
        with SteadyLoad(of.cluster.metadata_uri, replace_after=1.0) as load:
            for heading in (
                "Take the bookie out",
                "Copy the old disk to the new one",
                "Bring the bookie back",
            ):
                walk.step(heading)
            load.wait_written()
            last.unmount()
            for heading in (
                "Mount an empty disk",
                "Start it once with the permission to be empty",
                "Fetch the copies",
            ):
                walk.step(heading)
            load.wait_written()
        walk.step("See that all is back")
        walk.check_walked()
        # What the disk holds counts: without it no ledger would survive the next loss.
        of.cluster.kill(0)
        load.check(of.cluster.metadata_uri)
        of.cluster.start_bookie(0)
        of.cluster.stop()


def test_lose_a_bookie(machines: Callable[..., Machines]) -> None:
    of = machines(4, settings=QUICK)
    walk = of.walk("lose-a-bookie.md")
    with SteadyLoad(of.cluster.metadata_uri, replace_after=1.0) as load:
        of.cluster.kill(2)
        shutil.rmtree(of.cluster.bookies[2].directory)
        for heading in ("See what is lost", "Copy and forget it", "See that it is done"):
            walk.step(heading)
        load.wait_written()
    walk.check_walked()
    of.cluster.kill(0)
    load.check(of.cluster.metadata_uri)


def test_retire_a_bookie(machines: Callable[..., Machines]) -> None:
    of = machines(4, settings=QUICK)
    walk = of.walk("retire-a-bookie.md")
    with SteadyLoad(of.cluster.metadata_uri, replace_after=1.0) as load:
        for heading in (
            "Let no new entries come", "See how much there is to copy", "Copy what it holds",
            "Stop it, and free its id", "See that it is done",
        ):  # fmt: skip
            walk.step(heading)
        shutil.rmtree(of.cluster.bookies[2].directory)
        load.wait_written()
    walk.check_walked()
    of.cluster.kill(0)
    load.check(of.cluster.metadata_uri)


def test_lose_a_zone(machines: Callable[..., Machines]) -> None:
    of = machines(6, settings=QUICK)
    for number, bookie in enumerate(of.cluster.bookies):
        of.cluster.stop_bookie(number)
        bookie.sections["bookie"]["location"] = f"/zone-{number // 2 + 1}/{number % 2}"
        of.cluster.start_bookie(number)
    wish = PlacementConfig(
        policy="zone", min_zones_per_write_quorum=2, desired_zones_per_write_quorum=3
    )
    walk, cli = of.walk("lose-a-zone.md"), Cli(of.cluster.metadata_uri)
    with SteadyLoad(of.cluster.metadata_uri, replace_after=1.0, placement=wish) as load:
        for heading in ("If the zone comes back", "If it is lost for good"):
            for number in (4, 5):
                of.cluster.kill(number)
            if heading == "If the zone comes back":
                walk.step("See what is away")
                walk.step("Hold the copying")
            else:
                wait_until(lambda: b"2 down" in cli.run("cluster", "status")[1], "both are down")
                for number in (4, 5):
                    shutil.rmtree(of.cluster.bookies[number].directory)
            load.wait_written()
            walk.step(heading)
    walk.check_walked()
    print(f"worst append: {load.worst_append_s:.1f} s")
    of.cluster.kill(0)
    load.check(of.cluster.metadata_uri)


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    server = QuorumServer(tmp_path / "zookeeper")
    server.start()
    yield server
    server.stop()


def test_lose_the_metadata_store(
    tmp_path: Path, zookeeper: ZooKeeperServer, machines: Callable[..., Machines]
) -> None:
    uri = f"zk+hierarchical://{zookeeper.address}/ledgers"
    zookeeper_admin.init(parse_zookeeper(uri))
    of = machines(4, zookeeper=zookeeper, settings=QUICK, metadata_uri=uri)
    cli = Cli(uri)
    walk = of.walk("lose-the-metadata-store.md")
    lines = b"".join(b"%d\n" % one for one in range(1000))
    cli("namespace", "create", "shop")
    cli("stream", "append", "shop/orders", "--create", stdin=lines)
    cli("metadata", "backup", "--to", str(tmp_path / "work" / "metadata.backup"))
    with SteadyLoad(uri) as load:
        zookeeper.kill()
        load.wait_appended()
        walk.step("See that it is the store")
        load.wait_appended()
        walk.step("Start it")
        load.wait_written()
        cli("stream", "append", "shop/orders", stdin=lines)
    segment = max(map(int, cli("ledger", "list").split()))
    folders = [one.directory / "ledgers" for one in of.cluster.bookies]
    wait_until(
        lambda: any(segment in read_last_metadata(one)[0] for one in folders),
        "a bookie has seen the segment",
    )
    zookeeper.kill()
    shutil.rmtree(tmp_path / "zookeeper" / "data")
    for heading in ("Stop everything", "Collect what the bookies know", "Rebuild"):
        walk.step(heading)
    walk.step("Start the bookies, and put the streams' ends back")
    walk.step("Check, and confirm")
    walk.check_walked()
    load.check(uri)
    read = cli.raw("stream", "read", "shop/orders")
    assert re.findall(rb"\t(.*)\n", read) == 2 * lines.split()


def test_drill_a_restore(tmp_path: Path, machines: Callable[..., Machines]) -> None:
    of = machines(3, settings=QUICK)
    uri = of.cluster.metadata_uri
    cli = Cli(uri)
    cli("namespace", "create", "shop")
    cli("stream", "append", "shop/orders", "--create", stdin=b"one\n")
    walk = of.walk("restore-drill.md", {"/tmp/drill": str(tmp_path / "drill")})
    with SteadyLoad(uri) as load:
        walk.step("Take a backup and check it")
        load.wait_written()
        walk.step("Restore it beside the cluster")
        walk.step("See how old it would be")
        walk.step("Remove the drill")
    walk.check_walked()
    load.check(uri)


def test_full_disks(tmp_path: Path, machines: Callable[..., Machines]) -> None:
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(tmp_path, "a", DISK_BYTES))
        mounted = tmp_path / "data" / "bookie-2"
        mounted.mkdir(parents=True)
        disk.unmount()
        mounts.mount(disk.device, mounted, KIND)
        stack.callback(mounts.unmount, mounted, lazily=True)
        disk.path = mounted
        of = machines(4, settings=SMALL)
        uri = of.cluster.metadata_uri
        walk = of.walk("full-disks.md")
        cli = Cli(uri)
        with SteadyLoad(uri, replace_after=1.0) as load:
            disk.fill(but_bytes=130 * MIB)
            walk.step("See which disk, and what is left")
            load.wait_written()
            closed = min(one for one in load.acknowledged if one != load.long_ledger)
            wait_until(
                lambda: "CLOSED" in cli("ledger", "show", str(closed)), f"ledger {closed} is closed"
            )
            walk.replace("ledger delete 1 ", f"ledger delete {closed} ")
            walk.step("Free space, in this order")
            disk.empty()
            walk.step("See that it takes entries again")
            load.wait_written()
        walk.check_walked()
        load.check(uri, gone=frozenset({closed}))
        of.cluster.stop()


def test_certificates(tmp_path: Path, machines: Callable[..., Machines]) -> None:
    of = machines(3, settings={**QUICK, "tls": {"refresh_interval": "1s"}}, tls=True)
    files = of.cluster.data / "tls"
    options = of.cluster.tls_options
    assert options is not None
    places = {
        "/etc/fastbk/tls": f"{files}/bookie/tls",
        "/etc/fastbk/me": f"{files}/client/tls",
        "/etc/fastbk/ca.crt": options.ca_file or "",
    }
    walk = of.walk("certificates.md", places, options.environment())
    shutil.copy(files / "ca" / "ca.key", tmp_path / "work" / "ca.key")
    authority = Authority.load(files / "ca")
    assert authority is not None
    fresh = Authority.make(tmp_path / "new-ca", "fastbk second authority")
    for one in ("crt", "key"):
        os.link(fresh.ca_file.with_suffix(f".{one}"), tmp_path / "work" / f"new-ca.{one}")
    with SteadyLoad(of.cluster.metadata_uri, tls=options) as load:
        walk.step("See when they end")
        names = ("localhost", "127.0.0.1")
        authority.issue(files / "bookie", names, common_name="bookie", valid_for=timedelta(days=-1))
        cli = Cli(of.cluster.metadata_uri)
        cli._environment.update(options.environment())
        wait_until(
            lambda: b"has expired" in cli.run("cluster", "status")[1],
            "new connections see that it has expired",
        )
        load.wait_appended()
        walk.step("Renew a certificate, also an expired one")
        load.wait_written()
        for heading in ("Trust both", "Change the certificates", "Remove the old authority"):
            walk.step(heading)
            load.wait_written()
    walk.check_walked()
    load.check(of.cluster.metadata_uri)


def test_every_runbook_is_walked() -> None:
    source = Path(__file__).read_text()
    assert [one.name for one in sorted(FOLDER.glob("*.md")) if f'"{one.name}"' not in source] == []
