"""`fastbk cluster rebalance` on real bookies. Behind each run every copy is read from the bookies that are named."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

import fastbk
import fastbk.sync
from fastbk.autorecovery.auditor import AuditorOptions
from fastbk.autorecovery.healer import Healer
from fastbk.autorecovery.worker import WorkerOptions
from fastbk.client import LedgerInfo
from fastbk.meta import MetadataStore
from fastbk.meta.placement_record import change_rules
from fastbk.model.ids import BookieId
from fastbk.placement.config import PlacementConfig
from fastbk.placement.rules import ClusterRules
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.wait import wait_until, wait_until_async

ENTRIES = 50
RUN = ("cluster", "rebalance", "--yes")
PLAN = ("cluster", "rebalance", "--dry-run")
TWO_RACKS = ("bookie-1", "bookie-4", "bookie-2", "bookie-5")
EMPTY_TWO_RACKS = [word for name in TWO_RACKS for word in ("--empty", name)]


BOOKIES = 6


@pytest.fixture
def cluster(renewed_cluster: LocalCluster) -> LocalCluster:
    """Six bookies that run, no ledger, and nobody says where bookies are."""
    with fastbk.sync.connect(renewed_cluster.metadata_uri) as client:
        client.call_store(lambda store: change_rules(store, lambda _: ClusterRules()))
    return renewed_cluster


@pytest.fixture
def cli(cluster: LocalCluster) -> Iterator[Cli]:
    cli = Cli(cluster.metadata_uri)
    yield cli
    cli.end()


def fill(cluster: LocalCluster, count: int, ensemble: int, write_quorum: int) -> list[int]:
    """Write closed ledgers."""
    made = []
    with fastbk.sync.connect(cluster.metadata_uri) as client:
        for _ in range(count):
            with client.create_ledger(ensemble, write_quorum, 2) as writer:
                data = [b"%d/%d/" % (writer.ledger_id, one) * 100 for one in range(ENTRIES)]
                writer.append_many(data)
            made.append(writer.ledger_id)
    return made


def fill_three(cluster: LocalCluster, count: int) -> list[int]:
    """Write closed ledgers on three bookies; the others come then."""
    for number in range(3, 6):
        cluster.stop_bookie(number)
    made = fill(cluster, count, 3, 3)
    for number in range(3, 6):
        cluster.start_bookie(number)
    return made


def set_racks(cluster: LocalCluster) -> None:
    """Say that bookies are in three racks, and that write sets have to span two."""
    table = {f"bookie-{number + 1}": f"/r{number % 3}" for number in range(6)}
    rules = ClusterRules(PlacementConfig(policy="rack", enforce=True), table)
    with fastbk.sync.connect(cluster.metadata_uri) as client:
        client.call_store(lambda store: change_rules(store, lambda _: rules))


def copies(cluster: LocalCluster) -> Counter[str]:
    """Return how many copies of ledgers each bookie has, by metadata."""
    with fastbk.sync.connect(cluster.metadata_uri) as client:
        return Counter(
            member
            for info in client.list_ledgers()
            for fragment in info.metadata.fragments
            for member in fragment.ensemble
        )


def on_new_ones(cluster: LocalCluster) -> int:
    """Return how many copies have moved to the bookies that came later."""
    found = copies(cluster)
    return found["bookie-4"] + found["bookie-5"] + found["bookie-6"]


def until_moved(cluster: LocalCluster, count: int) -> None:
    wait_until(lambda: on_new_ones(cluster) >= count, f"{count} copies have moved")


def check_whole(cli: Cli) -> None:
    """Read every copy from the bookies that metadata names."""
    assert cli.answer("ledger", "audit")[1]["is_whole"], cli("ledger", "audit", code=1)


def test_added_bookies_get_their_part(cluster: LocalCluster, cli: Cli) -> None:
    fill_three(cluster, 40)
    code, plan, _ = cli.answer(*PLAN)
    assert (code, plan["dry_run"], plan["ledgers"]) == (0, True, 40)
    assert plan["bytes"] <= 1.05 * plan["least_bytes"]
    assert sum(each["copies"] for each in plan["flows"]) == plan["copies"]
    assert 57 <= plan["copies"] <= 63
    assert set(copies(cluster)) == {"bookie-1", "bookie-2", "bookie-3"}, "a dry run moves nothing"

    text = cli(*PLAN)
    assert (
        f"{plan['copies']} copies of" in text
        and "bookie-1" in text
        and " at 64.0 MiB a second" in text
    )
    assert "give --yes" in cli.fails("cluster", "rebalance", "--json", code=2)

    done = cli.json(*RUN)
    assert (done["done"], done["parked"], done["failed"]) == (plan["moving"], 0, 0)
    assert done["bytes_copied"] == plan["bytes"]
    found = copies(cluster)
    assert len(found) == 6 and max(found.values()) - min(found.values()) <= 4, "by whole ledgers"
    check_whole(cli)
    assert cli.answer(*PLAN)[1]["copies"] <= 4, "it ends: what moved stays"


def test_faults_are_mended_and_disks_left_as_they_are(cluster: LocalCluster, cli: Cli) -> None:
    fill(cluster, 40, 3, 2)
    set_racks(cluster)
    before = cli.answer("cluster", "placement", "check")[1]["enforced"]["ledgers"]
    assert before, "racks were given to bookies when ledgers were there"
    done = cli.json(*RUN, "--faults-only")
    assert (done["done"], done["mended"], done["unmended"]) == (before, before, 0)
    assert "nothing is misplaced" in cli("cluster", "placement", "check")
    check_whole(cli)


def test_bookies_that_are_to_go_are_emptied_while_they_run(cluster: LocalCluster, cli: Cli) -> None:
    set_racks(cluster)
    fill(cluster, 20, 3, 2)
    leaving = [word for name in ("bookie-1", "bookie-5") for word in ("--empty", name)]
    cli.json(*RUN, *leaving)
    assert not copies(cluster).keys() & {"bookie-1", "bookie-5"}
    check_whole(cli)
    assert "nothing is misplaced" in cli("cluster", "placement", "check")
    assert "does not answer" in cli.fails(*PLAN, "--empty", "nobody", code=2)
    code, answer, said = cli.answer(*PLAN, *EMPTY_TWO_RACKS)
    assert code == 0, said
    assert any(row["after"] for row in answer["bookies"] if row["bookie_id"] in EMPTY_TWO_RACKS)
    assert "cannot be emptied" in cli(*PLAN, *EMPTY_TWO_RACKS)
    code, _, said = cli.answer(*RUN, *EMPTY_TWO_RACKS)
    assert (code, "not emptied: " in said) == (1, True), said


def test_a_run_that_is_killed_or_stopped_is_made_again(cluster: LocalCluster, cli: Cli) -> None:
    fill_three(cluster, 60)
    rng = random.Random(1)
    moved = 0
    for number in (signal.SIGKILL, signal.SIGINT, signal.SIGKILL):
        process = cli.start(*RUN, "--rate", "300KiB", "--ledgers-at-once", "2")
        until_moved(cluster, moved + rng.randint(2, 6))
        process.send_signal(number)
        process.communicate()
        assert process.returncode == (130 if number is signal.SIGINT else -signal.SIGKILL)
        check_whole(cli)
        moved = on_new_ones(cluster)
    with fastbk.sync.connect(cluster.metadata_uri) as client:

        def are_free(store: MetadataStore) -> bool:
            return not list(store.coordination.locks())

        # A killed process holds its locks until its session ends.
        wait_until(lambda: client.call_store(are_free), "its locks are free", 60)
    assert cli.json(*RUN)["parked"] == 0
    found = copies(cluster)
    assert max(found.values()) - min(found.values()) <= 4
    check_whole(cli)


def test_two_runs_at_once_do_no_harm(cluster: LocalCluster, cli: Cli) -> None:
    fill_three(cluster, 40)
    several = [cli.start(*RUN, "--json", "--seed", str(seed)) for seed in (1, 2)]
    answers = [json.loads(process.communicate()[0]) for process in several]
    assert sum(answer["done"] for answer in answers) >= 30
    check_whole(cli)
    cli(*RUN)
    found = copies(cluster)
    assert max(found.values()) - min(found.values()) <= 4
    check_whole(cli)


def test_a_bookie_that_dies_gets_no_more_and_takes_nothing_with_it(
    cluster: LocalCluster, cli: Cli
) -> None:
    fill_three(cluster, 40)
    process = cli.start(*RUN, "--json", "--rate", "300KiB")
    wait_until(lambda: copies(cluster)["bookie-4"] >= 2, "it got copies")
    cluster.kill(3)
    answer = json.loads(process.communicate()[0])
    assert process.returncode == 75 and answer["parked"] > 0
    assert answer["done"] > 0, "the others got their part"
    cluster.start_bookie(3)
    check_whole(cli)


@asynccontextmanager
async def healing(cluster: LocalCluster) -> AsyncIterator[Healer]:
    """Run AutoRecovery, quick to look, while the block runs."""
    options = AuditorOptions(bookie_interval_s=0.2, placement_interval_s=0.5)
    async with fastbk.connect(cluster.metadata_uri) as client:
        await client.call_store(lambda store: store.coordination.set_lost_bookie_delay(1))
        healer = Healer(client, "healer", options, WorkerOptions(refresh_interval_s=0.2))
        stop = asyncio.Event()
        running = asyncio.create_task(healer.run(stop))
        try:
            yield healer
        finally:
            stop.set()
            await running


async def test_autorecovery_moves_what_is_misplaced_unless_it_is_told_not_to(
    cluster: LocalCluster, cli: Cli
) -> None:
    await asyncio.to_thread(fill, cluster, 20, 3, 2)
    await asyncio.to_thread(set_racks, cluster)
    check = ("cluster", "placement", "check")
    code, before, _ = await cli.answer_async(*check)
    assert code == 1
    await asyncio.to_thread(cli, "cluster", "heal", "placement", "off")
    async with healing(cluster) as healer:
        await wait_until_async(
            lambda: healer.auditor is not None and healer.auditor.placement.misplaced,
            "the auditor has found them",
        )
        assert (await cli.answer_async(*check))[1]["enforced"] == before["enforced"]
        await asyncio.to_thread(cli, "cluster", "heal", "placement", "on")

        async def is_well() -> bool:
            return (await cli.answer_async(*check))[0] == 0

        await wait_until_async(is_well, "copies were moved")
        assert healer.worker.counts.copies_moved >= before["enforced"]["ledgers"]
    await asyncio.to_thread(check_whole, cli)


async def test_a_lost_copy_without_a_place_is_made_once_another_one_moved(
    cluster: LocalCluster, cli: Cli
) -> None:
    """Both racks that are left are its neighbours in the ring: such a ledger was parked."""
    await asyncio.to_thread(set_racks, cluster)
    async with fastbk.connect(cluster.metadata_uri) as client:
        while True:
            async with await client.create_ledger(4, 2, 2) as writer:
                await writer.append_many([b"%d" % one for one in range(ENTRIES)])
            ensemble = writer.metadata.fragments[0].ensemble
            racks = [int(name[-1]) % 3 for name in ensemble]
            if racks[1] == racks[3] and racks[0] != racks[2]:
                break
    lost = int(ensemble[1][-1]) - 1
    async with healing(cluster) as healer:
        await cluster.kill_async(lost)

        async def is_named() -> bool:
            metadata = (await client_info(cluster, writer.ledger_id)).metadata
            return ensemble[1] in metadata.fragments[0].ensemble

        async def is_whole() -> bool:
            return not await is_named()

        await wait_until_async(is_whole, "its copies were made anew", 60)
        assert healer.worker.counts.copies_moved > 0
    assert (await cli.answer_async("cluster", "placement", "check"))[0] == 0
    assert (await cli.answer_async("ledger", "audit", str(writer.ledger_id)))[1]["is_whole"]
    await cluster.start_bookie_async(lost)


async def client_info(cluster: LocalCluster, ledger_id: int) -> LedgerInfo:
    async with fastbk.connect(cluster.metadata_uri) as client:
        return await client.ledger_info(ledger_id)


def test_bookies_that_are_emptied_together_get_nothing_of_each_other(
    cluster: LocalCluster, cli: Cli
) -> None:
    fill(cluster, 30, 2, 2)
    several = [BookieId("bookie-1"), BookieId("bookie-3")]
    cli("bookie", "recover", *several, "--even-if-alive")
    assert not copies(cluster).keys() & set(several)
    check_whole(cli)


def test_several_bookies_are_decommissioned_together() -> None:
    """In a cluster of its own: their ids are gone then."""
    with LocalCluster(6) as cluster:
        _decommission_two(cluster, Cli(cluster.metadata_uri))


def _decommission_two(cluster: LocalCluster, cli: Cli) -> None:
    set_racks(cluster)
    fill(cluster, 30, 3, 3)
    gone = ["bookie-2", "bookie-6"]
    for number in (1, 5):
        cluster.stop_bookie(number)
    done = cli.json("bookie", "decommission", *gone, "--yes")
    assert (done["decommissioned"], done["failed"], done["parked"]) == (True, 0, 0)
    assert not copies(cluster).keys() & set(gone)
    check_whole(cli)
    assert "nothing is misplaced" in cli("cluster", "placement", "check")
    cookies = cli("cluster", "cookies")
    assert not any(name in cookies for name in gone)
