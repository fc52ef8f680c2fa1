"""Clusters of Apache's bookies, ours, or both, in one ZooKeeper."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from fastbk.devcluster import DevCluster
from fastbk.devcluster.cluster import ZooKeeperServer
from fastbk.devcluster.processes import wait_for
from fastbk.meta.uri import ZooKeeperLocation
from fastbk.meta.zookeeper import admin as zookeeper_admin
from fastbk.meta.zookeeper.paths import Layout
from tests.compat.jars import Programs
from tests.compat.members import (
    FASTBK,
    ApacheMember,
    ConfMember,
    FastbkMember,
    Member,
    free_port,
    http_text,
    loopback_settings,
    make_conf,
    write_conf,
)

OUR_SETTINGS: dict[str, dict[str, object]] = {"gc": {"interval": "20s"}}
REGISTER_S_MAX = 60.0
COMMAND_S_MAX = 120.0
READ_ONLY_PATH = "/api/v1/bookie/state/readonly"
SHELL_MAIN = "org.apache.bookkeeper.bookie.BookieShell"
Maker = Callable[[Path, ZooKeeperLocation], None]
"""Makes a cluster's metadata; the folder is for what it has to write."""


class Cluster:
    """Bookies with one place in ZooKeeper."""

    def __init__(
        self, folder: Path, location: ZooKeeperLocation, kazoo: KazooClient, programs: Programs
    ) -> None:
        self.folder = folder
        self.location = location
        self.members: list[Member] = []
        self.ours: DevCluster | None = None
        self.kazoo = kazoo
        self.programs = programs
        self._read_only: set[str] = set()
        self._numbers = itertools.count(1)

    @property
    def metadata_uri(self) -> str:
        """Where the metadata is, in words that both sides understand."""
        return self.location.uri

    def member(self, bookie_id: str) -> Member:
        return next(one for one in self.members if one.bookie_id == bookie_id)

    def restore(self, bookie_id: str) -> None:
        member = self.member(bookie_id)
        member.signal(signal.SIGCONT)
        if not member.is_running:
            self._read_only.discard(bookie_id)
            member.spawn()
            member.wait_ready()
        if bookie_id in self._read_only:
            self.set_read_only(bookie_id, is_read_only=False)
        # One that stood still for long has to register anew.
        wait_for(
            lambda: self.registered_by(bookie_id) != 0,
            REGISTER_S_MAX,
            f"{bookie_id} to be registered",
        )

    def set_read_only(self, bookie_id: str, *, is_read_only: bool) -> None:
        """Have a bookie refuse adds, or take them again, by the HTTP endpoint that both kinds have."""
        body = json.dumps({"readOnly": is_read_only})
        http_text(self.member(bookie_id).http_port, READ_ONLY_PATH, body)
        (self._read_only.add if is_read_only else self._read_only.discard)(bookie_id)

    def add_ours(self, count: int, settings: dict[str, dict[str, object]] | None = None) -> None:
        """Make bookies of ours; `start` starts them."""
        if count:
            chosen = {section: dict(keys) for section, keys in OUR_SETTINGS.items()}
            for section, keys in (settings or {}).items():
                chosen.setdefault(section, {}).update(keys)
            self.ours = DevCluster(
                self.folder / "ours", count, settings=chosen, metadata_uri=self.metadata_uri
            )
            for number, bookie in enumerate(self.ours.bookies):
                if number % 2 == 0:
                    # As Apache's bookies are called by default; the others have names, which clients have to look up.
                    address = f"127.0.0.1:{free_port()}"
                    bookie.sections["bookie"] |= {"id": address, "listen": address}
                self.members.append(FastbkMember(self.ours, bookie))

    def add_apache(
        self,
        count: int,
        settings: dict[str, object] | None = None,
        java_options: tuple[str, ...] = (),
    ) -> None:
        """Make bookies of Apache's; `start` starts them."""
        for _ in range(count):
            folder = self.folder / f"apache-{next(self._numbers)}"
            uri = self.metadata_uri
            self.members.append(
                ApacheMember(
                    folder,
                    self.programs,
                    uri,
                    self.registered_by,
                    settings=settings,
                    java_options=java_options,
                )
            )

    def add_by_conf(
        self,
        count: int,
        settings: Mapping[str, object] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Make bookies of ours with Apache's configuration files; `start` starts them.

        settings: of the files; variables: BK_…, of the environments.
        """
        for _ in range(count):
            folder = self.folder / f"by-conf-{next(self._numbers)}"
            conf = make_conf(folder, self.metadata_uri, settings or {})
            self.members.append(ConfMember(folder, conf, self.registered_by, variables=variables))

    def start(self) -> None:
        """Start all bookies and wait until they take writes."""
        starting = [member for member in self.members if not member.is_running]
        for member in starting:
            member.spawn()
        for member in starting:
            member.wait_ready()

    def stop(self) -> None:
        for member in self.members:
            member.signal(signal.SIGCONT)
            if isinstance(member, ApacheMember):
                member.kill()
            else:
                member.stop()

    def registered_by(self, bookie_id: str) -> int:
        """Return which session has a bookie among those that take writes; 0: none."""
        try:
            found = self.kazoo.exists(f"{self.location.root}/available/{bookie_id}")
        except NoNodeError:
            return 0
        return int(found.ephemeralOwner) if found is not None else 0

    def wait_unregistered(self, bookie_id: str) -> None:
        """Wait until a bookie that was stopped is not among those that take writes any more."""
        wait_for(
            lambda: self.registered_by(bookie_id) == 0,
            REGISTER_S_MAX,
            f"the end of {bookie_id}'s registration",
        )

    def fastbk(
        self, *words: str, variables: Mapping[str, str] | None = None, codes: tuple[int, ...] = (0,)
    ) -> str:
        """Return what a command of ours writes to stdout."""
        return self._run([*FASTBK, *words], variables, codes, COMMAND_S_MAX).stdout

    def shell(self, *words: str, seconds_max: float = COMMAND_S_MAX) -> str:
        """Return what a verb of Apache's shell prints, for which the first bookie is its own (`bookiesanity`)."""
        conf = self.folder / "shell.conf"
        port = self.members[0].bookie_id.rpartition(":")[2]
        write_conf(conf, {"bookiePort": port, **loopback_settings(self.metadata_uri)})
        command = self.programs.command(SHELL_MAIN, "-conf", str(conf), *words)
        done = self._run(command, None, (0,), seconds_max)
        return done.stdout + done.stderr

    def _run(
        self,
        command: list[str],
        variables: Mapping[str, str] | None,
        codes: tuple[int, ...],
        seconds_max: float,
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(variables or {})},
            timeout=seconds_max,
        )
        with open(self.folder / "commands.log", "a") as log:
            log.write(f"{' '.join(command)}\n{done.stdout}{done.stderr}-> {done.returncode}\n\n")
        if done.returncode not in codes:
            tail = " | ".join((done.stdout + done.stderr).splitlines()[-3:])
            raise AssertionError(f"{' '.join(command[-8:])}: exit code {done.returncode}: {tail}")
        return done


class Rig:
    """A ZooKeeper, the jars and a folder for everything that sections need."""

    def __init__(self, folder: Path, programs: Programs) -> None:
        self.folder = folder
        self.programs = programs
        self._zookeeper = ZooKeeperServer(
            folder / "zookeeper", tick_ms=200, session_timeout_max_s=10.0, is_durable=False
        )
        self._numbers = itertools.count(1)
        self.kazoo: KazooClient | None = None

    @property
    def zookeeper_address(self) -> str:
        return self._zookeeper.address

    @contextmanager
    def cluster(
        self,
        *,
        ours: int = 0,
        apache: int = 0,
        our_settings: dict[str, dict[str, object]] | None = None,
        apache_settings: dict[str, object] | None = None,
        java_options: tuple[str, ...] = (),
        is_made_by_apache: bool = False,
        make: Maker | None = None,
        is_started: bool = True,
    ) -> Iterator[Cluster]:
        """Give a cluster of its own; its metadata are made by us, by Apache's shell, or by `make`.

        is_started: else its bookies are not there or do not run yet: `add_…`, `start`.
        """
        assert self.kazoo is not None
        name = f"cluster-{next(self._numbers)}"
        location = ZooKeeperLocation(
            (self.zookeeper_address,), f"/{name}/ledgers", Layout.HIERARCHICAL
        )
        folder = self.folder / name
        folder.mkdir()
        if make is not None:
            make(folder, location)
        elif is_made_by_apache:
            self._make_by_apache(folder, location)
        else:
            zookeeper_admin.init(location)
        cluster = Cluster(folder, location, self.kazoo, self.programs)
        try:
            cluster.add_ours(ours, our_settings)
            cluster.add_apache(apache, apache_settings, java_options)
            if is_started:
                cluster.start()
            yield cluster
        finally:
            cluster.stop()

    def _make_by_apache(self, folder: Path, location: ZooKeeperLocation) -> None:
        assert self.kazoo is not None
        self.kazoo.ensure_path(location.root.rpartition("/")[0])
        conf = folder / "initnewcluster.conf"
        conf.write_text(
            f"metadataServiceUri={location.uri}\nadvertisedAddress=127.0.0.1\nallowLoopback=true\n"
        )
        command = self.programs.command(SHELL_MAIN, "-conf", str(conf), "initnewcluster")
        with open(folder / "initnewcluster.log", "wb") as log:
            subprocess.run(
                command, check=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=120
            )

    def __enter__(self) -> Rig:
        self._zookeeper.start()
        self.kazoo = KazooClient(hosts=self.zookeeper_address)
        self.kazoo.start(timeout=20)
        return self

    def __exit__(self, *_: object) -> None:
        if self.kazoo is not None:
            self.kazoo.stop()
            self.kazoo.close()
        self._zookeeper.kill()
