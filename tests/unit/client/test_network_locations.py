"""The topology script: batches, kept answers, deadlines, and failures that cost nothing but the locations."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fastbk.client.bookie_pool import BookiePool
from fastbk.client.config import ClientConfig
from fastbk.client.known_bookies import BookieLocations, KnownBookies, TopologyScript
from fastbk.errors import ConfigError
from fastbk.meta.api import BookieRegistration, BookieService, Endpoint
from fastbk.placement.config import Topology
from tests.fixtures.wait import wait_until


class Script:
    """A shell script with a log of its arguments."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "where"
        self.log = folder / "log"
        self.write('for host in "$@"; do echo "/eu/$host"; done')

    def write(self, body: str) -> None:
        self.path.write_text(f'#!/bin/sh\necho "$@" >> {self.log}\n{body}\n')
        self.path.chmod(self.path.stat().st_mode | stat.S_IXUSR)

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


def test_hosts_are_asked_in_batches_and_once(script: Script) -> None:
    topology = TopologyScript(script.path, batch_hosts=2)
    assert topology.location_of("h1") is None
    topology.learn(["h1", "h2", "h3", "h1"])
    topology.learn(["h3", "h2"])
    assert script.calls() == ["h1 h2", "h3"]
    assert [topology.location_of(host) for host in ("h1", "h2", "h3")] == [
        "/eu/h1",
        "/eu/h2",
        "/eu/h3",
    ]
    assert (topology.runs, topology.failures) == (2, 0)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("exit 3", "code 3"),
        ("echo /eu/r1 /eu/r2 /eu/r3", "3 locations for 2 hosts"),
        ("head -c 1100000 /dev/zero", "more than 1048576 bytes"),
    ],
)
def test_a_failure_is_counted_told_once_and_tried_again_later(
    script: Script, caplog: pytest.LogCaptureFixture, body: str, reason: str
) -> None:
    caplog.set_level("INFO", "fastbk.client")
    clock = Clock()
    topology = TopologyScript(script.path, retry_s=60, clock=clock)
    good = script.path.read_text()
    script.write(body)
    topology.learn(["h1", "h2"])
    topology.learn(["h1", "h2"])
    assert len(script.calls()) == topology.failures == 1
    clock.now_s = 60
    topology.learn(["h1", "h2"])
    assert topology.failures == 2
    assert topology.location_of("h1") is None
    (told,) = caplog.messages
    assert reason in told
    script.path.write_text(good)
    clock.now_s = 120
    topology.learn(["h1", "h2"])
    assert topology.location_of("h1") == "/eu/h1"
    assert caplog.records[-1].event == "client.topology_script_recovered"  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_script_that_hangs_is_killed_with_all_it_started(script: Script, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script.write(f"sleep 1000 & echo $! > {pid_file}; wait")
    topology = TopologyScript(script.path, timeout_s=0.5)
    topology.learn(["h1"])
    assert topology.failures == 1
    child = int(pid_file.read_text())

    def is_gone() -> bool:
        try:
            return Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    wait_until(is_gone, "the script's child is gone")


def test_a_location_that_is_none_is_left_to_the_bookie(script: Script) -> None:
    script.write("echo /eu/r1 unknown")
    topology = TopologyScript(script.path)
    topology.learn(["h1", "h2"])
    assert topology.location_of("h1") == "/eu/r1"
    assert topology.location_of("h2") is None
    assert topology.failures == 0


def test_a_host_can_never_be_an_option_of_the_script(script: Script) -> None:
    topology = TopologyScript(script.path)
    topology.learn(["--help", "", "a b", "$(id)", "h1"])
    assert script.calls() == ["h1"]


def test_a_script_that_went_away_is_a_failure(script: Script) -> None:
    topology = TopologyScript(script.path)
    os.unlink(script.path)
    topology.learn(["h1"])
    assert topology.failures == 1


def test_wrong_settings_are_refused(script: Script, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no executable file"):
        TopologyScript(tmp_path / "none")
    with pytest.raises(ConfigError, match="no executable file"):
        TopologyScript(tmp_path)
    for wrong in ({"timeout_s": 0}, {"batch_hosts": 0}, {"batch_hosts": 1001}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            TopologyScript(script.path, **wrong)


async def test_the_table_goes_before_the_script(script: Script) -> None:
    locations = BookieLocations(Topology.of({"b1": "/us/r1"}), TopologyScript(script.path))
    await locations.learn([("b1", "h1"), ("b2", "h2"), ("b3", "")])
    assert script.calls() == ["h2"]
    assert locations.location_of("b1", "h1") == "/us/r1"
    assert locations.location_of("b2", "h2") == "/eu/h2"
    assert locations.location_of("b3", "") is None


async def test_without_a_script_nothing_is_asked() -> None:
    locations = BookieLocations(Topology.of({"b1": "/us/r1"}))
    await locations.learn([("b1", "h1"), ("b2", "h2")])
    locations.learn_blocking([("b2", "h2")])
    assert locations.location_of("b1", "h1") == "/us/r1"
    assert locations.location_of("b2", "h2") is None


async def test_a_client_knows_where_listed_bookies_are_before_it_chooses(script: Script) -> None:
    listed = [
        BookieRegistration(BookieService(bookie_id, 1, (Endpoint(host, 1),), told), True)
        for bookie_id, host, told in (
            ("b1", "h1", {"location": "/own/r1"}),
            ("b2", "h2", {"location": "/own/r2"}),
            ("b3", "-x", {"location": "/own/r3"}),
        )
    ]

    async def list_bookies() -> list[BookieRegistration]:
        return listed

    config = ClientConfig(topology={"b1": "/us/r1"}, topology_script=str(script.path))
    pool = BookiePool(config, list_bookies, lambda error: None)
    await pool.bookies()
    found = {view.bookie_id: view.location for view in pool.known.views(0.0)}
    assert found == {"b1": "/us/r1", "b2": "/eu/h2", "b3": "/own/r3"}


@pytest.mark.parametrize(
    "wrong", [{"topology": {"b1": "r1"}}, {"topology_script": "/nowhere/script"}]
)
def test_a_wrong_topology_is_refused_at_once(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="topology"):
        KnownBookies(ClientConfig(**wrong))  # type: ignore[arg-type]
