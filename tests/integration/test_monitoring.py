"""The files in `monitoring/` on real services: every name is on a page, and every alert fires for its fault.

Prometheus comes from Debian, in the ALL tier only. Rules run sixty times faster there: `rules_test.yml` has the true
times.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest

import fastbk
from fastbk.devcluster import Bookie, DevCluster, DevService, DevTls, dev_services
from fastbk.devcluster.processes import free_port
from fastbk.errors import Error
from fastbk.meta import health_records, open_store
from fastbk.meta.records import Change
from fastbk.observe.names import NAMES
from fastbk.security.authority import Authority
from fastbk.stream.writer import engine
from fastbk.testing import LocalCluster
from fastbk.units import MIB
from tests.fixtures.cli import Cli
from tests.fixtures.exposition import parsed, scraped_at
from tests.fixtures.gateways import WatchedGateway
from tests.fixtures.monitoring import (
    DASHBOARDS,
    FOLDER,
    RULES,
    alerts,
    knock,
    metrics_used,
    queries,
    scrape_config,
    shake_hands,
)
from tests.fixtures.mounts import SmallDisk, run, small_disk
from tests.fixtures.pages import page_at
from tests.fixtures.prometheus import Prometheus, faster, program
from tests.fixtures.wait import wait_until
from tests.fixtures.write_services import ServiceProcess
from tests.rigs import mounts

WAIT_S = 120.0
DELAY_S = 0.030
"""Of each flush of the slow journal's disk."""
PAYLOAD = b"watched by Prometheus " * 40
SMALL: dict[str, dict[str, object]] = {
    "limits": {"frame_size_max": "1MiB", "add_ring_size": "4MiB", "reply_ring_size": "4MiB"},
    "journal": {"limit": "32MiB", "file_size": "16MiB", "first_file_size": "16MiB"},
    "ledgers": {"write_cache_size": "8MiB", "flush_interval": "200ms", "entry_log_size": "16MiB"},
    "network": {"connections_max": 40},
    "scrub": {"cycle": "1s"},
}
PLAIN, DAMAGED, LOST, SLOW, FULL = range(5)
"""The bookies, by what happens to them."""


def test_every_name_that_is_used_is_on_a_page(tmp_path: Path) -> None:
    tls = DevTls(tmp_path / "tls").sections()["tls"]
    settings: dict[str, dict[str, object]] = {
        "tls": {**tls, "mode": "prefer", "client_certificates": "none"},
        "audit": {"file": str(tmp_path / "audit.log")},
        "disk": {"free_min": "1000TiB"},  # a condition of readiness
    }
    with LocalCluster(1, settings=settings) as cluster:
        cluster.kill(0)  # some names are there only after an unclean stop
        cluster.start_bookie(0)
        bookie, services = cluster.bookies[0], dev_services(tmp_path, cluster.metadata_uri)
        gateway = WatchedGateway(tmp_path / "gateway", cluster.metadata_uri, None)
        write_service = ServiceProcess(tmp_path / "serve", cluster.metadata_uri, "one")
        try:
            for service in services:
                service.start()
            write_service.start()
            gateway.start()
            gateway.request()
            assert bookie.http_port is not None
            ports = [bookie.http_port, gateway.page_port, write_service.http_port]
            ports += [one.http_port for one in services]
            text = "fastbk_supervisor_condition{"
            wait_until(lambda: text in page_at(ports[0], "/metrics")[1], "the condition", WAIT_S)
            wait_until(lambda: all(map(answers, ports)), "all pages", WAIT_S)
            types = {name: kind for port in ports for name, kind in scraped_at(port).types.items()}
        finally:
            for service in services:
                service.stop()
            write_service.kill()
            gateway.stop()
    types |= {name.metric: name.kind for name in NAMES if name.is_own and name.is_limit}
    endings = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count")}
    there = {name + end for name, kind in types.items() for end in endings.get(kind, ("",))}
    assert {name: where for name, where in metrics_used().items() if name not in there} == {}


def answers(port: int) -> bool:
    with suppress(OSError):
        return bool(parsed(page_at(port, "/metrics")[1]).types)
    return False


@pytest.mark.no_service
@pytest.mark.parametrize(
    "words",
    [
        "check config prometheus.yml",
        "check rules rules.yml",
        *(
            pytest.param(f"test rules {one}", marks=pytest.mark.long)
            for one in ("rules_test.yml", "rules_hours_test.yml")
        ),
    ],
)
def test_promtool_accepts_the_files(words: str) -> None:
    command = [program("promtool"), *words.split()]
    done = subprocess.run(
        command, cwd=FOLDER / "prometheus", capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "GOGC": "400"},  # memory is there, and half of the time went into collecting it
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def slow_disk(folder: Path) -> Iterator[Path]:
    """Mount a disk whose flushes take 30 ms longer."""
    if reason := mounts.why_not_fuse():
        pytest.skip(reason)
    image = folder / "slow.image"
    mounts.make_file_system(image, "ext4", 128 * MIB)
    recorder = mounts.Recorder(image, folder / "recorder", DELAY_S)
    try:
        (folder / "slow").mkdir()
        mounts.mount(recorder.device, folder / "slow", "ext4")
        try:
            yield folder / "slow"
        finally:
            mounts.unmount(folder / "slow", lazily=True)
    finally:
        recorder.close()


class World:
    """Five bookies, AutoRecovery, a janitor, a Prometheus, and a client that writes to all writable bookies."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.began_s = time.time()
        self.fired_s: dict[str, tuple[str, float]] = {}
        """Alert -> its fault, and how long after it the alert fired."""
        self.slow = stack.enter_context(slow_disk(folder))
        self.small: SmallDisk = stack.enter_context(small_disk(folder, "small", 400 * MIB))
        self.tls = DevTls(folder / "tls")
        self.cluster = DevCluster(folder / "data", 5, settings=SMALL, tls=self.tls)
        self._give_each_its_own(folder)
        stack.callback(self.cluster.stop)
        self.cluster.start()
        uri = self.cluster.metadata_uri
        self.janitor = DevService("janitor", folder, uri, "--interval", "1", tls=self.tls)
        self.healer = DevService("autorecovery", folder, uri, tls=self.tls)
        self.gateway = WatchedGateway(folder / "gateway", uri, self.tls)
        for service in (self.janitor, self.healer, self.gateway):
            stack.callback(service.stop)
            service.start()
        # A quarter of an hour is a minute: three deaths of a process take some seconds.
        rules = faster(RULES.read_text().replace("[15m]", "[60m]"))
        rules = rules.replace("> 600", "> 10").replace('le="3600"', 'le="60"')
        self.prometheus = stack.enter_context(
            Prometheus(folder / "prometheus", self._scrapes(), rules)
        )
        self._stops = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._write()))
        self._thread.start()
        stack.callback(self._thread.join)
        stack.callback(self._stops.set)
        self.cli = Cli(uri)
        self.cli("metadata", "backup", "--to", str(folder / "metadata.backup"))

    def _give_each_its_own(self, folder: Path) -> None:
        sections = [bookie.sections for bookie in self.cluster.bookies]
        for one in sections:  # a copy of each: settings are shared
            for name, keys in one.items():
                one[name] = dict(keys)
            one["http"]["listen"] = f"127.0.0.1:{free_port()}"
        sections[SLOW]["journal"]["directory"] = str(self.slow / "journal")
        authority = Authority.load(folder / "tls" / "ca")
        assert authority is not None
        ending = authority.issue(
            folder / "ending", ("127.0.0.1",), common_name="bookie", valid_for=timedelta(days=13)
        )
        sections[SLOW]["tls"]["certificate_file"] = str(ending.certificate_file)
        sections[SLOW]["tls"]["key_file"] = str(ending.key_file)
        sections[FULL]["ledgers"]["directory"] = str(self.small.path / "ledgers")
        sections[FULL]["audit"] = {"file": str(self.small.path / "audit.log")}
        sections[FULL]["disk"] |= {
            "warn_ratio": 0.5, "check_interval": "200ms", "near_check_interval": "50ms",
        }  # fmt: skip

    def _scrapes(self) -> str:
        """Return the example of a configuration, with our targets, at once, over TLS."""
        options = self.tls.options
        secure = (
            "    scheme: https\n"
            f"    tls_config: {{ca_file: {options.ca_file}, cert_file: {options.certificate_file},"
            f" key_file: {options.key_file}}}\n"
        )
        listened = [str(one.sections["http"]["listen"]) for one in self.cluster.bookies]
        ports = (self.healer.http_port, self.janitor.http_port, self.gateway.page_port)
        healer, janitor, gateway = (f"127.0.0.1:{port}" for port in ports)
        return scrape_config(listened, [healer], [janitor], [gateway], secure)

    def connect(self) -> fastbk.client.Client:
        return fastbk.connect(self.cluster.metadata_uri, tls=self.tls.options, append_timeout=5.0)

    async def _write(self) -> None:
        """Append to ledgers on all bookies that take entries, until the end; and leave a cursor behind."""
        async with self.connect() as client:
            await client.call_store(lambda store: store.coordination.set_lost_bookie_delay(1))
            space = client.namespace("shop")
            await space.create()
            stream = await space.create_stream("orders")
            async with stream.writer() as writer:
                await writer.append(PAYLOAD)
            async with stream.cursor("billing", start="earliest"):
                pass
            while not self._stops.is_set():
                await asyncio.sleep(0.05)
                with suppress(Error, TimeoutError):
                    count = sum(one.writable for one in await client.list_bookies())
                    async with await client.create_ledger(count, count, count) as ledger:
                        end_s = time.monotonic() + 2.0
                        while time.monotonic() < end_s and not self._stops.is_set():
                            await ledger.append(PAYLOAD)

    def expect(
        self,
        names: str,
        number: int | str | None,
        fault: str,
        again: Callable[[], object] | None = None,
    ) -> None:
        """Wait until these alerts fire for what was just done to a bookie, another target, or (None) something else.

        `again` is done until they do.
        """
        at = number or ""
        if isinstance(number, int):
            at = str(self.cluster.bookies[number].sections["http"]["listen"])
        left = {(name, at) for name in names.split()}
        assert not left & self.prometheus.firing(), "before the fault"
        began_s = time.monotonic()

        def fire() -> bool:
            if again is not None:
                again()
            for one in left & self.prometheus.firing():
                left.remove(one)
                self.fired_s[one[0]] = fault, time.monotonic() - began_s
            return not left

        wait_until(fire, f"{left}: {fault}", WAIT_S)

    def bookie(self, number: int) -> Bookie:
        self.cluster.refresh()
        return self.cluster.bookies[number]

    def restart(self, number: int) -> None:
        bookie = self.bookie(number)
        boots = bookie.boots
        bookie.spawn()
        self.cluster.wait_ready([bookie], WAIT_S, boots + 1)


def harm(bookie: Bookie) -> None:
    """Flip a bit of each entry in its entry logs; it does not run."""
    for path in (bookie.directory / "ledgers" / "logs").iterdir():
        raw = path.read_bytes()
        path.write_bytes(raw.replace(PAYLOAD, b"W" + PAYLOAD[1:]))


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_every_alert_fires_for_its_fault_and_every_panel_has_data(tmp_path: Path) -> None:
    program("prometheus")
    with ExitStack() as stack:
        world = World(tmp_path, stack)
        wait_until(lambda: world.prometheus.targets_up() == 8, "all targets are up", WAIT_S)
        world.expect("FastbkCommitsSlow", SLOW, "flushes of the journal's disk take 30 ms longer")
        world.expect("FastbkCertificateEnds", SLOW, "a certificate for 13 days")
        world.expect("FastbkCursorLagging", None, "a cursor that nobody reads")
        assert {name for name, _ in world.prometheus.firing()} == set(world.fired_s), "no others"
        harm_clients(world)
        harm_processes(world)
        harm_disks(world)
        harm_services(world)
        harm_metadata(world)  # last: without it there is no auditor, either
        for alert, (fault, took_s) in world.fired_s.items():
            print(f"{alert}: {took_s:.1f} s after: {fault}")
        assert set(world.fired_s) == set(alerts()) == set(world.prometheus.expressions())
        check_panels(world)


def harm_clients(world: World) -> None:
    plain = world.bookie(PLAIN)
    world.expect(
        "FastbkClientsRefused", PLAIN, "clients without a certificate", lambda: shake_hands(plain)
    )
    world.expect(
        "FastbkLimitsReached", PLAIN, "more connections than there may be", lambda: knock(plain)
    )


def harm_processes(world: World) -> None:
    frozen = world.bookie(PLAIN).pids["gc"]
    os.kill(frozen, signal.SIGSTOP)
    world.expect("FastbkProcessFrozen", PLAIN, "gc is stopped by a signal")
    os.kill(frozen, signal.SIGCONT)
    deaths = iter(range(3))

    def die() -> None:
        if next(deaths, None) is not None:
            boots = world.bookie(PLAIN).boots
            world.bookie(PLAIN).kill("journal")
            world.cluster.wait_ready([world.cluster.bookies[PLAIN]], WAIT_S, boots + 1)

    world.expect("FastbkCrashLoop", PLAIN, "three deaths of a journal", die)
    world.bookie(LOST).kill()
    world.expect("FastbkTargetDown", LOST, "a bookie is killed")
    names = "FastbkLedgersParked FastbkUnderReplicated"  # the second one after a minute
    world.expect(names, None, "no bookie can take the copies of the lost one")
    damaged = world.bookie(DAMAGED)
    damaged.request_stop()
    assert damaged.wait_gone(WAIT_S) == 0
    harm(damaged)
    world.restart(DAMAGED)
    world.expect("FastbkDamageFound", DAMAGED, "a bit of each entry is flipped")


def harm_disks(world: World) -> None:
    world.small.fill(150 * MIB)
    world.expect("FastbkDiskNearlyFull", FULL, "a disk is filled above its warning ratio")
    world.small.fill()
    full = world.bookie(FULL)
    world.expect("FastbkDiskRefuses FastbkBookieReadOnly", FULL, "a disk is filled")
    world.expect(
        "FastbkAuditRecordsDropped", FULL, "the audit log is on it", lambda: shake_hands(full)
    )
    full.kill()
    full.wait_gone(WAIT_S)
    full.spawn()
    world.expect("FastbkBookieNotReady", FULL, "it starts again, without room to replay")
    world.small.empty()
    run("fsfreeze", "--freeze", str(world.slow))
    try:
        world.expect("FastbkDiskSlow", SLOW, "a journal's disk hangs")
    finally:
        run("fsfreeze", "--unfreeze", str(world.slow))


def harm_services(world: World) -> None:
    world.cli("cluster", "placement", "set", "--enforce", "--yes")
    world.expect("FastbkLedgersMisplaced", None, "two racks are enforced, and there is one")
    world.cli("cluster", "placement", "set", "--reset")
    with closing(open_store(world.cluster.metadata_uri)) as store:
        (noted,) = store.records.read([health_records.BACKUP_PATH])
        assert noted is not None
        store.records.change([Change(health_records.BACKUP_PATH, None, noted.version)])
    world.expect("FastbkBackupOld", None, "nobody knows of a backup")
    asyncio.run(append_ahead(world))
    world.expect("FastbkTimesAhead", None, "a stream's writer has a clock an hour ahead")
    world.healer.stop()
    world.expect("FastbkNoAuditor", None, "AutoRecovery is stopped")
    world.janitor.stop()
    world.expect("FastbkJanitorLate", None, "the janitor is stopped")


async def append_ahead(world: World) -> None:
    """Append a record by a writer whose clock is an hour ahead."""
    clock = SimpleNamespace(
        monotonic=time.monotonic, time_ns=lambda: time.time_ns() + 3_600_000_000_000
    )
    async with world.connect() as client:
        with patch.object(engine, "time", clock):
            async with (await client.namespace("shop").create_stream("ahead")).writer() as writer:
                await writer.append(PAYLOAD)


def harm_metadata(world: World) -> None:
    world.cli("metadata", "hold", "--reason", "a test")
    world.expect("FastbkMetadataOnHold", PLAIN, "an operator's hold")
    world.cli("metadata", "confirm", "--yes")
    path = world.cluster.metadata_uri.removeprefix("sqlite:")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        world.expect("FastbkMetadataAway", PLAIN, "another process locks the file")
        gateway = f"127.0.0.1:{world.gateway.page_port}"
        world.expect(
            "FastbkGatewayFails", gateway, "another process locks the file", world.gateway.request
        )
        other.execute("ROLLBACK")


def check_panels(world: World) -> None:
    without = [
        f"{path.name}: {title}: {expression}"
        for path in DASHBOARDS
        for title, expression in queries(json.loads(path.read_text())).items()
        if not title.startswith("$")
        and not world.prometheus.has_data(
            re.sub(r"\$(cluster|instance|stream)", ".*", expression).replace(
                "$__rate_interval", "5s"
            ),
            world.began_s,
        )
    ]
    assert without == []
