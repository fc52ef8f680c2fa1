"""`fastbk cluster placement` on real bookies: a rule is set, clients go by it, and what was made before is found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastbk.sync
from fastbk.placement.config import PlacementConfig
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
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
