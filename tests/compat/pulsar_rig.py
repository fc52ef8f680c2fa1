"""Pulsar's broker on a cluster of bookies, driven by Pulsar's clients in Python and Java: the parts `pulsar…`.

The broker has a Java of its own, with a broker.conf as an operator writes one. Pulsar's set-up makes the metadata. The
cells are in `pulsar_cells.py`, which runs in an environment that has Pulsar's client, and in `TransactionCells.java`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import urllib.error
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

import fastbk
import fastbk.sync
from fastbk.devcluster.processes import cpu_seconds, wait_for
from fastbk.meta.uri import ZooKeeperLocation
from tests.compat import full_disk
from tests.compat.autorecovery import daemon
from tests.compat.jars import NotAvailable, Programs, programs
from tests.compat.java_cells import Answer, piped, run_cells, serve
from tests.compat.members import FASTBK, FileMember, free_port, http_text, write_conf
from tests.compat.results import Result, is_wanted
from tests.compat.rig import Cluster, Rig
from tests.compat.suite import OPENED
from tests.fixtures.mounts import SmallDisk, small_disk
from tests.style.tree import ROOT
from tools.environments import ensure_environment

ENVIRONMENT, REQUIREMENTS = ".venv-pulsar", ROOT / "requirements" / "pulsar.txt"
BROKER_MAIN = "fastbk.compat.PulsarBroker"
SETUP_MAIN = "org.apache.pulsar.PulsarClusterMetadataSetup"
TRANSACTIONS_MAIN = "fastbk.compat.TransactionCells"
TRANSACTIONS = tuple(
    f"pulsar-transaction-{name}" for name in ("commit", "abort", "acks", "broker-killed")
)
FULL_CELL = "pulsar-bookie-full"
KINDS = {"ours": (4, 0), "apache": (0, 4), "mixed": (2, 2)}
START_S_MAX = 120.0
SETUP_S_MAX = 60.0
GC_S_MAX = 60.0
LOST_AFTER_S = 2
HEALER_STOP_S_MAX = 30.0
RUN_S_MAX = 2400.0
ROUND_S_MAX = 90.0
BROKER_NEEDS = (
    "-Dio.netty.leakDetection.level=disabled",
    *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in OPENED),
    "--add-opens=java.management/sun.management=ALL-UNNAMED",
    "--add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED",
)
BROKER_OPTIONS = (
    "-Xmx768m",
    "-XX:MaxDirectMemorySize=512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    *BROKER_NEEDS,
)
OUR_SETTINGS: dict[str, dict[str, object]] = {"ledgers": {"entry_log_size": "16MiB"}}
APACHE_SETTINGS: dict[str, object] = {
    "logSizeLimit": 16 << 20,
    # As Pulsar's own bookkeeper.conf has it: its largest message is a frame.
    "nettyMaxFrameSizeBytes": 5253120,
}
"""Small entry logs, so that a few megabytes of deleted ledgers free some."""
FULL_APACHE_SETTINGS: dict[str, object] = {
    "diskUsageThreshold": 0.9,
    "diskUsageWarnThreshold": 0.85,
    "diskCheckInterval": 200,
    "dbStorage_writeCacheMaxSizeMb": 8,
    "isForceGCAllowWhenNoSpace": "true",
}
FULL_LEFT_BYTES = {"ours": full_disk.LEFT_BYTES, "apache": 12 << 20}


@dataclass(frozen=True, slots=True)
class Clients:
    """What drives a broker: the Java programs, and the Python that has Pulsar's client."""

    java: Programs
    python: Path


class Broker:
    """Pulsar's broker in a process of its own; it ends with us."""

    def __init__(
        self,
        folder: Path,
        java: Programs,
        metadata: str,
        protocol: str,
        *,
        java_options: Sequence[str] = BROKER_OPTIONS,
        more_settings: Mapping[str, object] | None = None,
    ) -> None:
        self._folder = folder
        self._java = java
        self._java_options = java_options
        self._port, self._web_port = free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.offloaded = folder / "offloaded"
        ports = {"brokerServicePort": self._port, "webServicePort": self._web_port}
        settings = broker_settings(metadata, self.offloaded, is_v2=protocol == "v2")
        write_conf(folder / "broker.conf", ports | settings | dict(more_settings or {}))

    @property
    def service_url(self) -> str:
        return f"pulsar://127.0.0.1:{self._port}"

    @property
    def web_url(self) -> str:
        return f"http://127.0.0.1:{self._web_port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def cpu_s(self) -> float:
        """Return the processor time that it has used since its start."""
        assert self._process is not None
        return sum(cpu_seconds({"broker": self._process.pid}).values())

    def start(self) -> None:
        """Start it, if it does not run, and wait until it serves. Raises TimeoutError, RuntimeError."""
        if not self.is_running:
            command = self._java.command(
                BROKER_MAIN, str(self._folder / "broker.conf"), options=self._java_options
            )
            with open(self._folder / "broker.log", "ab") as log:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=log, stderr=log, process_group=0
                )
        wait_for(self._is_ready, START_S_MAX, "the broker to be ready")

    def _is_ready(self) -> bool:
        if not self.is_running:
            raise RuntimeError(f"the broker ended; see {self._folder / 'broker.log'}")
        try:
            return http_text(self._web_port, "/admin/v2/brokers/ready").strip() == "ok"
        except (OSError, urllib.error.URLError):
            return False

    def kill(self) -> None:
        """SIGKILL it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdin is not None
            self._process.stdin.close()


def broker_settings(metadata: str, offloaded: Path, *, is_v2: bool) -> dict[str, object]:
    """Return a broker.conf: ensembles of three, small caches, short waits, all features that the cells use."""
    return {
        "clusterName": "compat",
        "metadataStoreUrl": metadata,
        "configurationMetadataStoreUrl": metadata,
        "metadataStoreSessionTimeoutMillis": 5000,
        "bindAddress": "127.0.0.1",
        "advertisedAddress": "127.0.0.1",
        "numIOThreads": 2,
        "numHttpServerThreads": 8,
        "numOrderedExecutorThreads": 2,
        "loadBalancerEnabled": "false",
        "managedLedgerDefaultEnsembleSize": 3,
        "managedLedgerDefaultWriteQuorum": 3,
        "managedLedgerDefaultAckQuorum": 2,
        "managedLedgerCacheSizeMB": 16,
        "managedLedgerMaxEntriesPerLedger": 1000,
        "managedLedgerMinLedgerRolloverTimeMinutes": 0,
        # BookKeeper's client forgets entries when a bookie is replaced twice while it comes back. The broker then
        # goes on with another ledger.
        "managedLedgerAddEntryTimeoutSeconds": 15,
        "managedLedgerOffloadDriver": "filesystem",
        "fileSystemURI": f"file://{offloaded}",
        "bookkeeperUseV2WireProtocol": "true" if is_v2 else "false",
        "bookkeeperClientTimeoutInSeconds": 10,
        "bookkeeperNumberOfChannelsPerBookie": 2,
        "acknowledgmentAtBatchIndexLevelEnabled": "true",
        "transactionCoordinatorEnabled": "true",
        "delayedDeliveryTickTimeMillis": 100,
        "brokerDeleteInactiveTopicsEnabled": "false",
    }


@contextlib.contextmanager
def pulsar_cluster(
    rig: Rig,
    clients: Clients,
    protocol: str,
    add: Callable[[Cluster], None],
    *,
    java_options: Sequence[str] = BROKER_OPTIONS,
    more_settings: Mapping[str, object] | None = None,
) -> Iterator[tuple[Cluster, Broker]]:
    """Give bookies that `add` makes, in metadata that Pulsar made, and a running broker on them.

    java_options: of the broker. more_settings: of its broker.conf, before those of `broker_settings`.
    """
    brokers: list[Broker] = []

    def make(folder: Path, location: ZooKeeperLocation) -> None:
        metadata = f"zk:{rig.zookeeper_address}{location.root.removesuffix('/ledgers')}"
        broker = Broker(
            folder,
            clients.java,
            metadata,
            protocol,
            java_options=java_options,
            more_settings=more_settings,
        )
        brokers.append(broker)
        words = [
            *("--cluster", "compat", "--initial-num-transaction-coordinators", "1"),
            *("--metadata-store", metadata, "--configuration-metadata-store", metadata),
            *("--web-service-url", broker.web_url, "--broker-service-url", broker.service_url),
        ]
        with open(folder / "setup.log", "wb") as log:
            subprocess.run(
                clients.java.command(SETUP_MAIN, *words),
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=SETUP_S_MAX,
            )

    with rig.cluster(make=make, is_started=False) as cluster:
        (broker,) = brokers
        add(cluster)
        try:
            cluster.start()
            broker.start()
            yield cluster, broker
        finally:
            broker.kill()


def pulsar_cells(rig: Rig, only: list[str], *, kind: str, protocol: str = "v2") -> Iterator[Result]:
    """All cells but the rounds; protocol: between broker and bookies."""
    column = f"pulsar {protocol} > {kind}"
    clients = pulsar_clients(rig)
    if isinstance(clients, str):
        yield Result(column, "pulsar", "skip", 0.0, clients)
        return
    ours, apache = KINDS[kind]

    def add(cluster: Cluster) -> None:
        cluster.add_ours(ours, OUR_SETTINGS)
        cluster.add_apache(apache, APACHE_SETTINGS)

    if set(only) != {FULL_CELL}:
        with pulsar_cluster(rig, clients, protocol, add) as (cluster, broker):
            answers = _answers(cluster, broker)
            yield from _run(column, clients, cluster, broker, answers, ["plain", *only])
            if any(is_wanted(name, only) for name in TRANSACTIONS):
                yield from _transactions(column, clients, cluster, broker, protocol, only)
            yield from _run(column, clients, cluster, broker, answers, ["fault", *only])
    if is_wanted(FULL_CELL, only):
        yield from _full(rig, clients, column, kind, protocol)


def pulsar_kills(rig: Rig, rounds: int, seed: int, *, kind: str) -> Iterator[Result]:
    """So many rounds of random kills and freezes of bookies, and of kills of the broker in three of twenty."""
    column = f"pulsar v2 > {kind}, kills"
    clients = pulsar_clients(rig)
    if isinstance(clients, str):
        yield Result(column, "pulsar-kill-rounds", "skip", 0.0, clients)
        return
    ours, apache = KINDS[kind]

    def add(cluster: Cluster) -> None:
        cluster.add_ours(ours, OUR_SETTINGS)
        cluster.add_apache(apache, APACHE_SETTINGS)

    with pulsar_cluster(rig, clients, "v2", add) as (cluster, broker):
        variables = {"ROUNDS": str(rounds), "SEED": str(seed)}
        yield from _run(
            column,
            clients,
            cluster,
            broker,
            _answers(cluster, broker),
            ["rounds"],
            variables=variables,
            run_s_max=rounds * ROUND_S_MAX + 300.0,
        )


def pulsar_move(rig: Rig) -> Iterator[Result]:
    """A cluster in use gets bookies of ours one by one in the place of Apache's, and then the other way round."""
    column = "pulsar v2 > apache to ours, and back"
    clients = pulsar_clients(rig)
    if isinstance(clients, str):
        yield Result(column, "pulsar-bookies-replaced", "skip", 0.0, clients)
        return

    def add(cluster: Cluster) -> None:
        cluster.add_apache(4, APACHE_SETTINGS)

    with pulsar_cluster(rig, clients, "v2", add) as (cluster, broker):
        answers = _answers(cluster, broker) | {
            "add-bookie": lambda kind: _add_bookie(cluster, kind),
            "retire": lambda bookie_id: _retire(cluster, bookie_id),
        }
        yield from _run(column, clients, cluster, broker, answers, ["move"])


def pulsar_heal(rig: Rig, *, kind: str) -> Iterator[Result]:
    """One of five bookies is lost for good under a load, and AutoRecovery of its kind heals what it had."""
    column = f"pulsar v2 > {kind}, AutoRecovery"
    clients = pulsar_clients(rig)
    if isinstance(clients, str):
        yield Result(column, "pulsar-bookie-lost", "skip", 0.0, clients)
        return
    ours, apache = {"ours": (5, 0), "apache": (0, 5)}[kind]

    def add(cluster: Cluster) -> None:
        cluster.add_ours(ours, OUR_SETTINGS)
        cluster.add_apache(apache, APACHE_SETTINGS)

    with (
        pulsar_cluster(rig, clients, "v2", add) as (cluster, broker),
        daemon(cluster) if kind == "apache" else _healer(cluster),
    ):
        answers = _answers(cluster, broker) | {
            "still-named": lambda bookie_id: _word(bool(_named(cluster, bookie_id)))
        }
        yield from _run(column, clients, cluster, broker, answers, ["heal"])


@contextlib.contextmanager
def _healer(cluster: Cluster) -> Iterator[None]:
    """Run `fastbk autorecovery`, which takes a bookie that is away for some seconds as lost."""

    async def set_delay() -> None:
        async with fastbk.connect(cluster.metadata_uri) as client:
            await client.call_store(
                lambda store: store.coordination.set_lost_bookie_delay(LOST_AFTER_S)
            )

    asyncio.run(set_delay())
    command = [*FASTBK, "autorecovery", "--metadata", cluster.metadata_uri]
    with open(cluster.folder / "healer.log", "wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(HEALER_STOP_S_MAX)


def _word(value: bool) -> str:
    return "true" if value else ""


def _add_bookie(cluster: Cluster, kind: str) -> None:
    """Start another bookie, with the same file for either kind but for its ports and folders."""
    add = cluster.add_by_conf if kind == "ours" else cluster.add_apache
    add(1, APACHE_SETTINGS)
    cluster.start()


def _retire(cluster: Cluster, bookie_id: str) -> None:
    """Stop a bookie, have what it holds copied to others, and forget it. Raises AssertionError if a ledger names it."""
    member = cluster.member(bookie_id)
    assert isinstance(member, FileMember)
    member.stop()
    cluster.wait_unregistered(bookie_id)
    cluster.fastbk("bookie", "decommission", bookie_id, "--yes", "--metadata", cluster.metadata_uri)
    cluster.members.remove(member)
    if named := _named(cluster, bookie_id):
        raise AssertionError(f"ledgers {named} still name {bookie_id}")


def _named(cluster: Cluster, bookie_id: str) -> list[int]:
    """Return the ledgers, open ones included, that have a bookie in an ensemble."""
    with fastbk.sync.connect(cluster.metadata_uri) as client:
        return [
            info.ledger_id
            for info in client.list_ledgers()
            if any(bookie_id in one.ensemble for one in info.metadata.fragments)
        ]


def pulsar_clients(rig: Rig) -> Clients | str:
    """Return what drives a broker, or why it cannot be had here."""
    try:
        # The module of Pulsar's build with the names of its figures is not released as a jar.
        java = programs(
            "pulsar-broker-pom.xml",
            "java-suite-pulsar/org/apache/pulsar/opentelemetry",
            "java-pulsar-broker",
            beside=rig.programs,
        )
    except NotAvailable as error:
        return f"its jars cannot be had: {error}"
    try:
        return Clients(java, ensure_environment(ENVIRONMENT, REQUIREMENTS))
    except subprocess.CalledProcessError as error:
        return f"Pulsar's Python client cannot be installed: {error}"


def _run(
    column: str,
    clients: Clients,
    cluster: Cluster,
    broker: Broker,
    answers: dict[str, Answer],
    words: Sequence[str],
    *,
    variables: Mapping[str, str] | None = None,
    run_s_max: float = RUN_S_MAX,
) -> Iterator[Result]:
    """Run a group of the Python client's cells."""
    broker.start()
    client_log = cluster.folder / "pulsar-client.log"
    command = [str(clients.python), "-m", "tests.compat.pulsar_cells"]
    command += [broker.service_url, broker.web_url, str(client_log), *words]
    environment = {**os.environ, **(variables or {}), "PYTHONPATH": str(ROOT)}
    log_path = cluster.folder / "pulsar-cells.log"
    with (
        open(log_path, "ab") as log,
        piped(command, log, run_s_max, environment=environment) as process,
    ):
        yield from serve(column, process, answers)
    if process.returncode not in (0, 1):
        reason = f"the program ended with {process.returncode}; see {log_path}"
        yield Result(column, f"pulsar, {words[0]}", "fail", 0.0, reason)


def _transactions(
    column: str,
    clients: Clients,
    cluster: Cluster,
    broker: Broker,
    protocol: str,
    only: Sequence[str],
) -> Iterator[Result]:
    yield from run_cells(
        column,
        cluster,
        clients.java,
        [cluster.metadata_uri, protocol, "pulsar", *only],
        main_class=TRANSACTIONS_MAIN,
        options=[f"-Dfastbk.compat.pulsar={broker.service_url}", "-Dfastbk.compat.seconds=180"],
        more_answers=_broker_answers(broker),
    )


def _full(rig: Rig, clients: Clients, column: str, kind: str, protocol: str) -> Iterator[Result]:
    """A cluster of its own, whose first bookie has its ledgers on a small disk."""
    ours, apache = KINDS[kind]
    try:
        with small_disk(rig.folder, "pulsar-small", full_disk.DISK_SIZE_BYTES) as disk:

            def add(cluster: Cluster) -> None:
                cluster.add_ours(ours, full_disk.SETTINGS if ours else None)
                if cluster.ours is not None:
                    sections = cluster.ours.bookies[0].sections
                    sections["ledgers"]["directory"] = str(disk.path / "ledgers")
                else:
                    ledgers = disk.path / "ledgers"
                    folders = {"ledgerDirectories": ledgers, "indexDirectories": ledgers}
                    cluster.add_apache(1, APACHE_SETTINGS | FULL_APACHE_SETTINGS | folders)
                cluster.add_apache(apache - (0 if ours else 1), APACHE_SETTINGS)

            with pulsar_cluster(rig, clients, protocol, add) as (cluster, broker):
                left_bytes = FULL_LEFT_BYTES["ours" if ours else "apache"]
                answers = _answers(cluster, broker) | _disk_answers(cluster, disk, left_bytes)
                yield from _run(column, clients, cluster, broker, answers, ["full"])
                cluster.stop()
    except pytest.skip.Exception as reason:
        yield Result(column, FULL_CELL, "skip", 0.0, str(reason))


def _broker_answers(broker: Broker) -> dict[str, Answer]:
    return {"broker-kill": broker.kill, "broker-start": broker.start}


def _disk_answers(cluster: Cluster, disk: SmallDisk, left_bytes: int) -> dict[str, Answer]:
    bookie_id = cluster.members[0].bookie_id
    return {
        "disk-fill": lambda: disk.fill(left_bytes),
        "disk-empty": disk.empty,
        "is-full-read-only": lambda: "" if cluster.registered_by(bookie_id) else "true",
    }


def _answers(cluster: Cluster, broker: Broker) -> dict[str, Answer]:
    def send(number: signal.Signals) -> Answer:
        return lambda bookie_id: cluster.member(bookie_id).signal(number)

    def set_read_only(is_read_only: bool) -> Answer:
        return lambda bookie_id: cluster.set_read_only(bookie_id, is_read_only=is_read_only)

    def ids() -> list[str]:
        return [member.bookie_id for member in cluster.members]

    def of_all(act: Callable[[str], None]) -> None:
        with ThreadPoolExecutor(len(cluster.members)) as pool:
            list(pool.map(act, ids()))

    def put_back() -> None:
        of_all(cluster.restore)
        broker.start()

    return {
        "bookies": lambda: ",".join(ids()),
        "kill": lambda bookie_id: cluster.member(bookie_id).kill(),
        "kill-all": lambda: of_all(lambda bookie_id: cluster.member(bookie_id).kill()),
        "restore": cluster.restore,
        "restore-all": lambda: of_all(cluster.restore),
        "put-back": put_back,
        "pause": send(signal.SIGSTOP),
        "resume": send(signal.SIGCONT),
        "read-only": set_read_only(True),
        "writable": set_read_only(False),
        "collect-garbage": lambda: of_all(lambda bookie_id: _collect_garbage(cluster, bookie_id)),
        "disk-bytes": lambda: str(
            disk_bytes([member.folder / "ledgers" for member in cluster.members])
        ),
        "ledgers-left": lambda words: _ledgers_left(cluster, words),
        "offloaded-bytes": lambda: str(disk_bytes([broker.offloaded])),
        **_broker_answers(broker),
    }


def _collect_garbage(cluster: Cluster, bookie_id: str) -> None:
    """Have a bookie look for deleted ledgers over Apache's HTTP endpoint, and wait until it has."""
    port = cluster.member(bookie_id).http_port
    http_text(port, "/api/v1/bookie/gc", "{}")
    wait_for(
        lambda: "true" not in http_text(port, "/api/v1/bookie/gc").lower(),
        GC_S_MAX,
        f"garbage collection of {bookie_id}",
    )


def disk_bytes(folders: Sequence[Path]) -> int:
    """Return what the files below these folders take on the disk."""
    total = 0
    for folder in folders:
        for path in folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                total += path.lstat().st_blocks * 512
    return total


def _ledgers_left(cluster: Cluster, words: str) -> str:
    """Return which of these ledgers the metadata still has."""
    with fastbk.sync.connect(cluster.metadata_uri) as client:
        there = {info.ledger_id for info in client.list_ledgers()}
    return ",".join(one for one in words.split(",") if int(one) in there)
