"""Leases between processes, with sqlite, ZooKeeper and a gateway: holders that are killed, frozen and woken.

INV-K1, INV-K3, INV-K4.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

import fastbk.sync
from fastbk.coordination.guarded_writer import HEADER_OF_TOKENS
from fastbk.stream.policy import PolicyPatch
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.gateways import GatewayProcess
from tests.fixtures.wait import wait_until
from tests.fixtures.zookeeper import ZooKeeperPlace

ONE = PolicyPatch(ensemble=1, write_quorum=1, ack_quorum=1)
HOLDER = """
import sys
import fastbk.sync

uri, name = sys.argv[1:]
with fastbk.sync.connect(uri) as client:
    space = client.namespace("shop")
    with fastbk.sync.Election(space, "leader", holder=name, duration=1.0) as leadership:
        with fastbk.sync.GuardedWriter(space.stream("log"), leadership) as writer:
            print("token", leadership.token, flush=True)
            while True:
                writer.append(name.encode())
"""
"""A leader that appends its name until it leads no more."""


@dataclass
class Place:
    """A cluster, and what its clients reach its metadata by."""

    uri: str
    own: str


@pytest.fixture(params=["sqlite", "zookeeper", "gateway"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    own: str | None = None
    with ExitStack() as stack:
        if request.param == "zookeeper":
            zookeeper: ZooKeeperPlace = request.getfixturevalue("zookeeper")
            own = zookeeper.uri()
        cluster = stack.enter_context(LocalCluster(1, metadata_uri=own, write_services=0))
        uri = cluster.metadata_uri
        if request.param == "gateway":
            gateway = GatewayProcess(tmp_path / "gateway", uri, None)
            gateway.start()
            stack.callback(gateway.stop)
            uri = gateway.uri
        yield Place(uri, cluster.metadata_uri)


class Candidate:
    """A process that wants to lead."""

    def __init__(self, uri: str, name: str) -> None:
        self.name = name
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, uri, name],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None and self._process.stderr is not None
        while line := self._process.stdout.readline():
            self.lines.append(line)
        self.errors += self._process.stderr.readlines()

    def leads(self) -> int:
        """Wait until it leads; return its token."""
        wait_until(lambda: bool(self.lines), f"{self.name} leads")
        return int(self.lines[0].split()[1])

    def send(self, what: signal.Signals) -> None:
        self._process.send_signal(what)

    def ended(self) -> str:
        """Wait for its end by itself; return its last words."""
        code = self._process.wait(60)
        self._reader.join()
        assert code == 1, self.errors
        return self.errors[-1].strip()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def candidates(place: Place) -> Iterator[list[Candidate]]:
    with fastbk.sync.connect(place.own) as client:
        space = client.namespace("shop")
        space.create(ONE)
        space.create_stream("log")
    made: list[Candidate] = []
    yield made
    for candidate in made:
        candidate.kill()


def records_of(uri: str) -> list[tuple[str, int]]:
    """Return who appended each record, and with which token."""
    with (
        fastbk.sync.connect(uri) as client,
        client.namespace("shop").stream("log").reader(tail=False) as reader,
    ):
        return [
            (record.value.decode(), int(dict(record.headers)[HEADER_OF_TOKENS]))
            for record in reader
        ]


def test_a_frozen_leader_is_followed_and_appends_nothing_when_it_wakes(
    place: Place, candidates: list[Candidate]
) -> None:
    """INV-K4: whatever it believed when it was frozen."""
    for name in "ab":
        candidates.append(Candidate(place.uri, name))
        if name == "a":
            assert candidates[0].leads() == 1
    first, second = candidates
    wait_until(lambda: len(records_of(place.own)) > 0, "the first leader appends")
    first.send(signal.SIGSTOP)
    assert second.leads() == 2
    wait_until(lambda: records_of(place.own)[-1][0] == "b", "the second leader appends")
    first.send(signal.SIGCONT)
    told = first.ended()
    assert any(error in told for error in ("LeaseLost", "WriterFenced", "TokenOutdated")), told
    second.kill()
    third = Candidate(place.uri, "c")
    candidates.append(third)
    assert third.leads() == 3
    wait_until(lambda: records_of(place.own)[-1][0] == "c", "the third leader appends")
    found = records_of(place.own)
    assert [token for _, token in found] == sorted(token for _, token in found)
    assert {*found} == {("a", 1), ("b", 2), ("c", 3)}


def test_a_lease_that_is_released_by_hand_goes_to_the_next(
    place: Place, candidates: list[Candidate]
) -> None:
    cli = Cli(place.uri)
    candidates.append(Candidate(place.uri, "a"))
    assert candidates[0].leads() == 1
    listed = json.loads(cli("coordination", "list", "shop", "--json"))["names"]
    assert [(one["name"], one["holder"], one["number"]) for one in listed] == [("leader", "a", 1)]
    assert cli("coordination", "list", "shop") == "lease    leader  token 1, a\n"
    assert "holder       a\n" in cli("coordination", "show", "shop", "leader")
    assert cli("coordination", "release", "shop", "leader", "--yes") == "released: a had it\n"
    assert "LeaseLost" in candidates[0].ended()
    assert cli("coordination", "list", "shop") == "lease    leader  token 1, free\n"
    cli("coordination", "delete", "shop", "leader", "--yes")
    candidates.append(Candidate(place.uri, "b"))
    assert candidates[1].leads() == 2, "INV-K1"


def test_many_threads_count_and_follow(place: Place) -> None:
    with fastbk.sync.connect(place.uri) as client:
        space = client.namespace("shop")
        space.create(ONE)
        counter, made = fastbk.sync.Counter(space, "orders"), list[int]()

        def add() -> None:
            made.extend(counter.add() for _ in range(10))

        threads = [threading.Thread(target=add) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(made) == list(range(1, 41)) and counter.value() == 40
        config = fastbk.sync.Config(space, "flags")
        values = fastbk.sync.Config(space, "flags").follow()
        assert next(values) is None
        revision = config.set(b"on")
        value = next(values)
        assert value is not None and (value.data, value.revision) == (b"on", revision)
        with fastbk.sync.Lock(space, "once") as lock:
            assert lock.check() == lock.token
            with pytest.raises(fastbk.LeaseBusy):
                fastbk.sync.Lock(space, "once").acquire(timeout=0)
        space.delete()
        space.create(ONE)
        assert fastbk.sync.Counter(space, "orders").value() == 0
