"""`fastbk cluster placement` on real bookies: a rule is set, clients go by it, and what was made before is found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastbk.sync
from fastbk.devcluster import DevService
from fastbk.placement.config import PlacementConfig
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.exposition import scraped_at
from tests.fixtures.pages import json_page, page_at
from tests.fixtures.wait import wait_until
from tests.fixtures.zookeeper import ZooKeeperPlace
from tests.integration.test_autorecovery import fill, healing, is_without, set_delay, until


@pytest.fixture(scope="module")
def four() -> Iterator[LocalCluster]:
    """Four bookies, of which nobody says where they are."""
    with LocalCluster(4) as made:
        yield made


def make_ledger(uri: str, rule: PlacementConfig | None = None) -> int:
    """Make a ledger with a client that has read the cluster's rule just now."""
    with (
        fastbk.sync.connect(uri) as client,
        client.create_ledger(2, 2, 2, placement=rule) as writer,
    ):
        writer.append(b"one")
        return writer.ledger_id


def bookies_of(cli: Cli, ledger_id: int) -> list[str]:
    answer = cli.answer("cluster", "placement", "check", "--explain", str(ledger_id))[1]
    return [member["bookie_id"] for member in answer["fragments"][0]["members"]]


def test_what_was_made_before_the_rule_is_found(four: LocalCluster) -> None:
    cli = Cli(four.metadata_uri)
    place = ("cluster", "placement")
    before = make_ledger(four.metadata_uri)
    assert "nothing is misplaced" in cli(*place, "check")
    first, second = bookies_of(cli, before)
    others = sorted({f"bookie-{number}" for number in range(1, 5)} - {first, second})
    where = {first: "/eu/r1", second: "/eu/r1", others[0]: "/eu/r2", others[1]: "/eu/r3"}
    rows = [word for name, rack in where.items() for word in ("--location", f"{name}={rack}")]
    cli(*place, "set", "--enforce", *rows)
    assert {one["location"] for one in cli.json(*place, "show")["bookies"]} == set(where.values())  # type: ignore[attr-defined]

    made = [make_ledger(four.metadata_uri) for _ in range(8)]
    made.append(make_ledger(four.metadata_uri, PlacementConfig()))
    code, report, _ = cli.answer(*place, "check")
    assert code == 1
    assert report["ledgers"] == len(made) + 1
    (found,) = report["enforced"]["first"]
    assert found["ledger_id"] == before and report["soft"]["ledgers"] == 0
    (reason,) = found["reasons"]
    assert reason.endswith("spans 1 rack (/eu/r1), the minimum is 2")
    text = cli(*place, "check", "--explain", str(before), code=1)
    assert f"problem: {reason} (enforced)" in text
    assert (
        f"{others[0]} (/eu/r2): it could take the place of {first} or {second}: that leaves no fault"
        in text
    )
    assert "it is its own" in cli(*place, "check", "--explain", str(made[0])), "its rule is stored"

    # A bookie that is away is where the table says; without that, nothing is sure.
    four.stop_bookie(int(first.removeprefix("bookie-")) - 1)
    assert cli.answer(*place, "check")[1]["enforced"]["ledgers"] == 1
    cli(*place, "set", "--location", f"{first}=")
    code, report, _ = cli.answer(*place, "check")
    assert (code, report["unsure"] > 0) == (0, True)


@pytest.mark.waits
def test_the_auditor_tells_what_lies_otherwise_and_a_choice_that_keeps_less_is_told_at_once() -> (
    None
):
    """In the verdict, on the page of metrics, and among the events."""
    place = ("cluster", "placement")
    with LocalCluster(3) as cluster:
        cli = Cli(cluster.metadata_uri)

        def reasons() -> dict[str, dict[str, str]]:
            answer = cli.answer("cluster", "status")[1]
            return {one["name"]: one for one in answer["reasons"]}

        ledger_id = make_ledger(cluster.metadata_uri)
        first, second = bookies_of(cli, ledger_id)
        (third,) = {"bookie-1", "bookie-2", "bookie-3"} - {first, second}
        where = {first: "/r1", second: "/r1", third: "/r2"}
        rows = [word for name, rack in where.items() for word in ("--location", f"{name}={rack}")]
        cli(*place, "set", "--enforce", *rows)
        assert "placement_enforced" not in reasons(), "nobody has checked it yet"
        cli("cluster", "heal", "placement", "off")  # it is to be found, and left there
        words = ("--placement-interval", "1s")
        healer = DevService("autorecovery", cluster.data, cluster.metadata_uri, *words)
        healer.start()
        try:
            wait_until(lambda: "placement_enforced" in reasons(), "the auditor has found it", 60)
            found = reasons()["placement_enforced"]
            assert (found["verdict"], found["subject"]) == ("degraded", "placement")
            assert found["text"].startswith(f"ledger {ledger_id} lies against an enforced rule")
            metrics = scraped_at(healer.http_port)
            assert metrics.value("fastbk_misplaced_ledgers", kind="enforced") == 1
            assert metrics.value("auditor_NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY") == 1
            status, events = page_at(healer.http_port, "/events?kind=placement")
            assert (status, "autorecovery.ledgers_misplaced" in events) == (200, True)
            # What is well again by its metadata is not told of, also before the next round.
            cli(*place, "set", "--no-enforce", "--policy", "spread")
            assert "placement_enforced" not in reasons()
        finally:
            healer.stop()

        cli(*place, "set", "--policy", "rack", "--racks", "3", "--enforce", "--yes")
        refused = reasons()["placement_refused"]
        assert refused["verdict"] == "degraded" and "the minimum is 3 racks" in refused["text"]
        cli(*place, "set", "--policy", "rack", "--racks", "2", "--no-enforce")
        assert "placement_refused" not in reasons()
        cluster.stop_bookie(int(third.removeprefix("bookie-")) - 1)
        with fastbk.sync.connect(cluster.metadata_uri) as client:
            with client.create_ledger(2, 2, 2) as writer:
                writer.append(b"one")
            assert client.stats()["placements_short"] == 1
        alive = [one for one in cluster.bookies if one.name != third]

        def told() -> list[int]:
            pages = [json_page(one, "/events?kind=ledger.placed_short") for one in alive]
            return [event["values"]["ledger_id"] for page in pages for event in page["events"]]

        wait_until(lambda: told() == [writer.ledger_id], "a bookie has the event")


@pytest.mark.waits
async def test_autorecovery_keeps_to_the_racks_of_pulsars_node(
    zookeeper: ZooKeeperPlace, tmp_path: Path
) -> None:
    """Ledgers as Pulsar's broker makes them, without a rule of their own; the racks are where `pulsar-admin` says."""
    racks = {"bookie-1": "/one", "bookie-2": "/one", "bookie-3": "/two", "bookie-4": "/two"}
    stored = {"default": {name: {"rack": rack} for name, rack in racks.items()}}
    looker = zookeeper.client()
    uri = zookeeper.uri()
    looker.create(zookeeper.path(root="/bookies"), json.dumps(stored).encode(), makepath=True)
    looker.stop()
    looker.close()
    async with (
        LocalCluster(4, data=tmp_path / "data", metadata_uri=uri) as cluster,
        fastbk.connect(uri) as client,
    ):
        ledgers = [await fill(client, 2, 2) for _ in range(12)]
        shown = await Cli(uri).answer_async("cluster", "placement", "show")
        assert {row["location"]: row["source"] for row in shown[1]["bookies"]} == {
            "/one": "pulsar",
            "/two": "pulsar",
        }
        await set_delay(client, 1)
        async with healing(client, "healer-1"):
            await cluster.kill_async(0)
            for ledger_id in ledgers:
                await until(lambda: is_without(client, ledger_id, "bookie-1"), "it is healed")  # noqa: B023
                metadata = (await client.ledger_info(ledger_id)).metadata
                assert "fastbk.placement" not in metadata.custom
                assert {racks[name] for name in metadata.fragments[-1].ensemble} == {"/one", "/two"}
