"""What a client knows of bookies: what their registrations tell placement, places, incarnations, quarantine."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import stat
from pathlib import Path

import pytest

from fastbk.client.bookie_pool import BookiePool
from fastbk.client.config import ClientConfig
from fastbk.client.ensembles import new_ensemble, partial_ensemble, replacements
from fastbk.client.known_bookies import (
    SUSPECT_S,
    BookieLocations,
    KnownBookies,
    TopologyScript,
    is_local_host,
    own_hosts,
    view_of,
)
from fastbk.errors import ConfigError, NotEnoughBookies
from fastbk.meta.api import BookieIdentity, BookieRegistration, BookieService, Endpoint
from fastbk.placement.choose_ensemble import ChosenEnsemble
from fastbk.placement.config import (
    DEFAULT_LOCATION,
    BookieView,
    Distance,
    PlacementConfig,
    Topology,
)
from fastbk.placement.pulsar_racks import decode_racks
from fastbk.placement.rules import ClusterPlaces, ClusterRules
from fastbk.replication.procedure import Choose
from tests.fixtures.wait import wait_until


def registered(
    bookie_id: str = "b1",
    *,
    writable: bool = True,
    incarnation: int = 1,
    host: str = "192.0.2.1",
    port: int = 3181,
    **properties: str,
) -> BookieRegistration:
    service = BookieService(bookie_id, incarnation, (Endpoint(host, port),), properties)
    return BookieRegistration(service, writable)


def test_a_bookie_that_left_is_still_known_where_it_was() -> None:
    known = KnownBookies(ClientConfig())
    assert known.age_s(5.0) == float("inf")
    assert known.update([registered("a", port=7), registered("b")], 1.0)
    assert known.age_s(5.0) == 4.0
    assert known.update([registered("b")], 2.0), "one fewer takes adds"
    assert not known.update([registered("b")], 3.0)
    endpoint = known.endpoint("a")
    assert endpoint is not None
    assert endpoint.port == 7
    assert not known.is_registered("a")
    assert [one.bookie_id for one in known.views(3.0)] == ["b"]
    assert known.endpoint("c") is None


def test_another_incarnation_is_refused_and_known_to_be_gone() -> None:
    known = KnownBookies(ClientConfig())
    known.update([registered("a", incarnation=4)], 0.0)
    assert known.check_incarnation("a", 4) is None
    assert not known.is_gone("a")
    known.update([registered("a", incarnation=5)], 1.0)
    assert known.is_gone("a")
    assert known.check_incarnation("a", 5, {1}) is not None
    assert known.is_gone("a")
    assert not known.is_gone("b")


def test_another_incarnation_is_taken_when_no_writer_from_before_is_left() -> None:
    known = KnownBookies(ClientConfig())
    known.update([registered("a", incarnation=4)], 0.0)
    assert known.check_incarnation("a", 4, {1, 2}) is None
    known.update([registered("a", incarnation=5)], 1.0)
    assert known.check_incarnation("a", 5, {1, 2}) is not None
    assert known.check_incarnation("a", 5, {2, 3}) is not None, "one is left that was open before"
    assert known.check_incarnation("a", 4, {2, 3}) is None, "the old data was found again"
    assert known.check_incarnation("a", 5, {2, 3}) is not None
    assert known.check_incarnation("a", 5, {3}) is None, "which never counted on the old data"
    assert not known.is_gone("a")
    assert known.check_incarnation("a", 4, {3}) is not None


def test_no_incarnation_says_nothing_unless_there_was_one() -> None:
    known = KnownBookies(ClientConfig())
    known.update([registered("a", incarnation=0), registered("b", incarnation=4)], 0.0)
    assert known.check_incarnation("a", 0, {1}) is None
    assert not known.is_gone("a")
    assert known.check_incarnation("a", 4, {1}) is None, "another system's bookie took the name"
    assert known.check_incarnation("b", 4, {1}) is None
    assert known.check_incarnation("b", 0, {1}) is not None


def test_errors_over_the_threshold_mean_quarantine_for_a_time() -> None:
    config = ClientConfig(quarantine_errors_max=3, quarantine_interval=10.0, quarantine_time=30.0)
    known = KnownBookies(config)
    known.update([registered("a"), registered("b")], 0.0)
    for at_s in (0.0, 6.0, 11.0):
        known.failed("a", at_s)
        assert known.quarantined(at_s) == [], "three, but not within ten seconds"
    known.failed("a", 12.0)
    assert known.quarantined(12.0) == ["a"]
    assert {one.bookie_id: one.quarantined for one in known.views(41.0)} == {"a": True, "b": False}
    assert known.quarantined(42.0) == []
    known.failed("a", 43.0)
    assert known.quarantined(43.0) == [], "it begins anew"
    known.quarantine("b", 50.0)
    assert known.quarantined(79.0) == ["b"]


def test_without_a_threshold_nobody_is_put_in_quarantine() -> None:
    known = KnownBookies(ClientConfig(quarantine_errors_max=0))
    for _ in range(100):
        known.failed("a", 1.0)
    known.quarantine("a", 1.0)
    assert known.quarantined(1.0) == []
    assert known.is_suspect("a", 1.0 + SUSPECT_S / 2), "reads still ask others first"
    assert not known.is_suspect("a", 1.0 + SUSPECT_S)
    assert not known.is_suspect("b", 1.0)


def views(count: int) -> list[BookieView]:
    return [BookieView(f"b{number}") for number in range(count)]


def test_those_that_do_not_answer_are_left_out_of_the_next_choice() -> None:
    choosing = new_ensemble(lambda: views(5), 3, 3, 2, PlacementConfig(), random.Random(1))
    first = next(choosing)
    second = choosing.send({first[0]: "refused"})
    assert first[0] not in second
    with pytest.raises(StopIteration) as chosen:
        choosing.send({})
    locations = dict.fromkeys(second, DEFAULT_LOCATION)
    assert chosen.value.value == ChosenEnsemble(second, locations=locations)


def test_too_few_that_answer_is_an_error_with_what_was_wrong_with_each() -> None:
    choosing = new_ensemble(lambda: views(3), 3, 3, 2, PlacementConfig(), random.Random(1))
    next(choosing)
    with pytest.raises(NotEnoughBookies) as caught:
        choosing.send({"b1": "it is on fire"})
    assert caught.value.replicas["b1"] == "it is on fire"
    assert set(caught.value.replicas) == {"b0", "b1", "b2"}


def test_those_that_do_not_answer_are_named_as_away_before_those_that_are_not_registered() -> None:
    missed = {"b1": "it is on fire"}
    away = [BookieView("x"), BookieView("y")]
    choosing = partial_ensemble(
        lambda: views(3), lambda: away, 5, 5, 2, PlacementConfig(), random.Random(1), missed
    )
    assert set(next(choosing)) == {"b0", "b2"}
    with pytest.raises(StopIteration) as chosen:
        choosing.send({})
    found = chosen.value.value
    assert (len(found.bookies), found.away) == (5, {"b1", "x", "y"})
    choosing = partial_ensemble(
        lambda: views(3), list, 3, 3, 2, PlacementConfig(), random.Random(1), missed
    )
    next(choosing)
    with pytest.raises(NotEnoughBookies) as caught:
        choosing.send({"b0": "it drowned"})
    assert (caught.value.replicas["b0"], caught.value.replicas["b1"]) == (
        "it drowned",
        "it is on fire",
    )


def test_an_away_bookie_that_comes_back_without_its_data_is_not_used() -> None:
    """It holds the ledger in limbo, so a normal add would be refused as if the ledger was fenced."""
    known = KnownBookies(ClientConfig())
    identities = [BookieIdentity("a", 7, ()), BookieIdentity("b", 8, ())]
    known.update([registered("b", incarnation=8)], 1.0)
    known.update([], 2.0)
    assert [view.bookie_id for view in known.away_views(identities)] == ["b", "a"]
    known.expect(identities)
    assert known.check_incarnation("a", 7, [1]) is None
    assert "without its data" in str(known.check_incarnation("b", 9, [1]))


def test_replacements_cover_what_can_be_had_and_say_why_not_more() -> None:
    action = Choose(("b0", "b1", "b2"), frozenset({0, 2}), frozenset())
    choosing = replacements(lambda: views(5), action, 3, 2, PlacementConfig(), random.Random(1))
    asked = next(choosing)
    assert set(asked) == {"b3", "b4"}
    assert choosing.send({"b3": "refused"}) == ("b4",)
    with pytest.raises(StopIteration) as end:
        choosing.send({})
    replaced = end.value.value
    assert list(replaced.chosen.values()) == ["b4"]
    assert set(replaced.chosen) <= {0, 2}
    assert replaced.left_out["b3"] == "refused"


def test_a_member_that_nobody_sees_is_where_its_ledger_recorded_it() -> None:
    """INV-P5: by the table of now alone the replacement would be in the rack of the member that stays."""
    rule = PlacementConfig(policy="rack", min_racks_per_ack_quorum=2)
    here = [BookieView("b2", location="/r1"), BookieView("b3", location="/r2")]
    recorded = {"b0": "/r1", "b1": "/r2"}
    action = Choose(("b0", "b1"), frozenset({1}), frozenset(), recorded)
    choosing = replacements(lambda: here, action, 2, 2, rule, random.Random(1))
    assert next(choosing) == ("b3",)
    with pytest.raises(StopIteration) as end:
        choosing.send({})
    assert end.value.value.locations == {"b0": "/r1", "b1": "/r2", "b3": "/r2"}


def test_a_bookie_that_says_nothing_is_at_the_default_location() -> None:
    assert view_of(registered()) == BookieView("b1", location=DEFAULT_LOCATION)


def test_a_bookie_says_where_it_is_what_it_is_and_how_full() -> None:
    found = view_of(
        registered(writable=False, location="/eu/r1", labels="gold,ssd", free_bytes="123"),
        quarantined=True,
    )
    assert found == BookieView(
        "b1",
        writable=False,
        quarantined=True,
        free_bytes=123,
        location="/eu/r1",
        labels=frozenset({"gold", "ssd"}),
    )


def test_nonsense_counts_as_not_said() -> None:
    found = view_of(registered(location="eu r1", labels=", ,", free_bytes="-1"))
    assert found == BookieView("b1")
    assert view_of(registered(free_bytes="9" * 30)).free_bytes is None
    assert view_of(registered(free_bytes="²")).free_bytes is None


def test_the_clients_own_topology_goes_before_what_the_bookie_says() -> None:
    said = BookieLocations.of({"b1": "/us/r9"})
    assert view_of(registered(location="/eu/r1"), places=said).location == "/us/r9"
    said = BookieLocations()
    assert view_of(registered(location="/eu/r1"), places=said).location == "/eu/r1"


def test_groups_that_operators_name_are_added_to_what_the_bookie_says() -> None:
    said = BookieLocations()
    racks = decode_racks(b'{"gold":{"b1":{"rack":"/r2"}},"old":{"away":{"rack":"/r3"}}}')
    said.cluster = ClusterPlaces(ClusterRules(pulsar=racks))
    view = view_of(registered(location="/eu/r1", labels="ssd"), places=said)
    assert (view.location, view.labels) == ("/r2", {"gold", "ssd"})
    known = KnownBookies(ClientConfig())
    known.locations = said
    (away,) = known.away_views([BookieIdentity("away", 1, ())])
    assert (away.location, away.labels) == ("/r3", {"old"})


def test_a_bookie_that_does_not_speak_our_protocol_has_a_view_too() -> None:
    theirs = Endpoint("127.0.0.1", 3181, protocol="bookie-rpc")
    found = view_of(BookieRegistration(BookieService("b1", 1, (theirs,)), True))
    assert found == BookieView("b1", is_local=True)
    nowhere = view_of(BookieRegistration(BookieService("b1", 1, ()), True))
    assert nowhere == BookieView("b1")


def test_who_says_where_a_client_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "app-1")
    script = tmp_path / "where"
    script.write_text("#!/bin/sh\nfor one; do echo /of/script; done\n")
    script.chmod(0o755)

    def distances(config: ClientConfig, table: dict[str, str], **local: str) -> list[Distance]:
        known = KnownBookies(config)
        known.take_places(ClusterPlaces(ClusterRules(locations=table)))
        near, far = (registered(name, location=f"/{name}/r1") for name in ("near", "far"))
        known.update([near, far, registered("beside", host="127.0.0.1", **local)], 0.0)
        asyncio.run(known.learn_locations())
        return [known.distance(name) for name in ("near", "far")]

    nowhere = [Distance.UNKNOWN, Distance.UNKNOWN]
    at_near, at_far = (
        [Distance.RACK, Distance.OTHER],
        [Distance.OTHER, Distance.RACK],
    )
    plain = ClientConfig()
    assert distances(plain, {}) == nowhere
    assert distances(plain, {}, location="/near/r1") == at_near, "a bookie runs on this host"
    table = {"app-*": "/far/r1"}
    assert distances(plain, table, location="/near/r1") == at_far, "the table knows better"
    own = {"app-1": "/near/r1"}
    assert distances(ClientConfig(topology=own), table) == at_near
    scripted = ClientConfig(topology_script=str(script))
    assert distances(scripted, table) == [Distance.RACK] * 2, "all are where the script says"
    monkeypatch.setenv("FASTBK_LOCATION", "/far/r2/")
    assert distances(ClientConfig(topology=own), {}) == [Distance.OTHER, Distance.REGION]
    assert distances(ClientConfig(location="/near/r2"), {}) == [Distance.REGION, Distance.OTHER]
    with pytest.raises(ConfigError, match="location"):
        ClientConfig(location="eu")


def test_own_addresses_are_found_without_a_name_service() -> None:
    assert own_hosts([]) == own_hosts(["127.0.0.1", "a-name"]) == [socket.gethostname()]
    for host in own_hosts(["192.0.2.1"])[1:]:
        assert is_local_host(host)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.0.0.9", True),
        ("::1", True),
        ("localhost", True),
        (socket.gethostname(), True),
        ("192.0.2.1", False),
        ("2001:db8::1", False),
        ("0.0.0.0", False),
        ("elsewhere.invalid", False),
    ],
)
def test_which_hosts_are_this_one(host: str, expected: bool) -> None:
    assert is_local_host(host) is expected
    assert view_of(registered(host=host)).is_local is expected


# The topology script: batches, kept answers, deadlines, and failures that cost nothing but the
# locations.


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
