"""Repairs of bookies hold each ledger's lock while they work on it: AutoRecovery and they leave one another alone.

INV-H2: whatever becomes of a run, it leaves no lock behind, and removes none of another process.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing
from dataclasses import replace

import pytest

import fastbk
from fastbk.admin.healing import BookieRecovery, BookieRepair, RecoveryPlan, RepairPlan
from fastbk.client import Client, metadata_calls
from fastbk.errors import MetadataUnavailable
from fastbk.meta import MetadataStore, open_store
from fastbk.meta.records import Change
from fastbk.meta.sqlite.coordination import RecordCoordination
from fastbk.model.ledger import Fragment
from fastbk.model.missing_replica import MissingReplica
from fastbk.replication.repair_options import RepairOptions
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.registrations import until_down
from tests.fixtures.shared_cluster import renewed_cluster
from tests.fixtures.wait import wait_until_async

SHORT = RepairOptions(patience_s=0.2)
OTHER = "another-host"


BOOKIES = 5
cluster = renewed_cluster


async def fill(client: Client, copies: int = 3) -> int:
    async with await client.create_ledger(copies, copies, copies // 2 + 1) as writer:
        await writer.append_many([b"x" * 10] * 20)
    return writer.ledger_id


def end_session(store: MetadataStore) -> None:
    assert isinstance(store.coordination, RecordCoordination)
    store.coordination.sessions.close()


def left_locks(store: MetadataStore) -> list[tuple[int, str]]:
    return list(store.coordination.locks())


async def test_a_locked_ledger_is_done_behind_the_others_or_parked(cluster: LocalCluster) -> None:
    uri = cluster.metadata_uri
    with closing(open_store(uri)) as store:
        async with fastbk.connect(uri) as client:
            ids = [await fill(client) for _ in range(4)]
            lost = (await client.ledger_info(ids[0])).metadata.fragments[0].ensemble[0]
            await cluster.stop_bookie_async([one.name for one in cluster.bookies].index(lost))
            await until_down(client, lost)
            lock = store.coordination.lock(ids[0], OTHER)
            assert lock is not None

            plan = RecoveryPlan(repair=SHORT)
            progress = await BookieRecovery(client, lost, plan).run()
            assert list(progress.parked) == [ids[0]]
            assert f"{OTHER} holds its lock" in progress.parked[ids[0]]
            assert progress.ledgers_done == progress.ledgers - 1
            assert left_locks(store) == [(ids[0], OTHER)]

            code, answer, said = await Cli(uri).answer_async(
                "bookie", "decommission", lost, "--yes", "--patience", "0.2"
            )
            assert (code, answer["decommissioned"]) == (75, False)
            assert f"{OTHER} holds its lock" in said

            # Within its patience the second turn gets the lock.
            run = BookieRecovery(client, lost, RecoveryPlan())
            task = asyncio.create_task(run.run())
            await wait_until_async(lambda: run._locks._tried, "its first turn ended")
            lock.release()
            progress = await task
            assert progress.is_whole, progress.parked
            assert left_locks(store) == []


async def test_a_ledger_that_the_holder_has_done_is_no_failure(cluster: LocalCluster) -> None:
    """Apache's worker has a ledger's lock and names another bookie: then nothing is left to wait for."""
    uri = cluster.metadata_uri
    with closing(open_store(uri)) as store:
        async with fastbk.connect(uri) as client:
            ledger_id = await fill(client)
            bookie_id = (await client.ledger_info(ledger_id)).metadata.fragments[0].ensemble[0]
            lock = store.coordination.lock(ledger_id, OTHER)
            assert lock is not None
            plan = RecoveryPlan(even_if_alive=True, repair=RepairOptions(patience_s=1.0))
            run = BookieRecovery(client, bookie_id, plan)
            task = asyncio.create_task(run.run())
            await wait_until_async(lambda: run._locks._tried, "its first turn ended")
            found = store.read_ledger(ledger_id)
            (fragment,) = found.metadata.fragments
            spare, _ = {one.name for one in cluster.bookies}.difference(fragment.ensemble)
            ensemble = tuple(spare if one == bookie_id else one for one in fragment.ensemble)
            renamed = Fragment(fragment.first_entry_id, ensemble)
            changed = replace(found.metadata, fragments=(renamed,))
            store.update_ledger(ledger_id, changed, found.version)
            progress = await task
            assert (progress.is_whole, progress.parked_count) == (True, 0)
            assert lock.is_held()


async def test_a_repair_of_a_running_bookie_takes_locks_too(cluster: LocalCluster) -> None:
    uri = cluster.metadata_uri
    with closing(open_store(uri)) as store:
        async with fastbk.connect(uri) as client:
            ids = [await fill(client, 5) for _ in range(2)]
            lock = store.coordination.lock(ids[0], OTHER)
            assert lock is not None
            progress = await BookieRepair(client, "bookie-1", RepairPlan(repair=SHORT)).run()
            assert (progress.ledgers_done, list(progress.parked)) == (1, [ids[0]])
            lock.release()
            assert (await BookieRepair(client, "bookie-1", RepairPlan()).run()).is_whole
            assert left_locks(store) == []


async def test_a_run_that_fails_or_is_cancelled_leaves_no_lock(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache's recovery left its locks in place (#576), and nobody else repaired those ledgers."""
    uri = cluster.metadata_uri
    with closing(open_store(uri)) as store:
        async with fastbk.connect(uri) as client:
            ledger_id = await fill(client)
            bookie_id = (await client.ledger_info(ledger_id)).metadata.fragments[0].ensemble[0]
            plan = RecoveryPlan(even_if_alive=True, repair=SHORT)
            locked = asyncio.Event()

            async def fails(run: BookieRecovery, one: int, *_: object) -> None:
                assert left_locks(store) == [(one, socket.gethostname())]
                raise MetadataUnavailable("it is away")

            async def hangs(run: BookieRecovery, one: int, *_: object) -> None:
                locked.set()
                await asyncio.Event().wait()

            monkeypatch.setattr(BookieRecovery, "_repaired", fails)
            progress = await BookieRecovery(client, bookie_id, plan).run()
            assert list(progress.parked.values()) == ["it is away"]
            assert left_locks(store) == []

            monkeypatch.setattr(BookieRecovery, "_repaired", hangs)
            task = asyncio.create_task(BookieRecovery(client, bookie_id, plan).run())
            await locked.wait()
            assert len(left_locks(store)) == 1
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert left_locks(store) == []


async def test_a_run_leaves_a_ledger_whose_lock_it_lost(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session ended in the middle: another process may be copying that ledger now."""
    async with fastbk.connect(cluster.metadata_uri) as client:
        ledger_id = await fill(client)
        bookie_id = (await client.ledger_info(ledger_id)).metadata.fragments[0].ensemble[0]
        ended: list[int] = []

        async def copies(run: BookieRecovery, one: int, *_: object) -> None:
            await client.call_store(end_session)
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(one)

        monkeypatch.setattr(metadata_calls, "CHECK_INTERVAL_S", 0.01)
        monkeypatch.setattr(BookieRecovery, "_repaired", copies)
        plan = RecoveryPlan(even_if_alive=True, repair=SHORT)
        progress = await BookieRecovery(client, bookie_id, plan).run()
        assert list(progress.parked) == [ledger_id]
        assert "has ended" in progress.parked[ledger_id]
        assert ended == [ledger_id] * 2


async def test_decommission_ends_though_unrelated_ledgers_cannot_be_repaired(
    cluster: LocalCluster,
) -> None:
    uri = cluster.metadata_uri
    cli = Cli(uri)
    names = [one.name for one in cluster.bookies]
    with closing(open_store(uri)) as store:
        async with fastbk.connect(uri) as client:
            mine = await fill(client)
            lost = (await client.ledger_info(mine)).metadata.fragments[0].ensemble[0]
            # One that does not name it, of which no copy is left, and which somebody else has locked.
            while True:
                async with await client.create_ledger(2, 2, 2) as writer:
                    await writer.append(b"x")
                members = (
                    (await client.ledger_info(writer.ledger_id)).metadata.fragments[0].ensemble
                )
                if lost not in members and not set(members) & set(
                    (await client.ledger_info(mine)).metadata.fragments[0].ensemble[1:2]
                ):
                    break
                await client.delete_ledger(writer.ledger_id)
            store.coordination.lock(writer.ledger_id, OTHER)
            store.marks.update(writer.ledger_id, add=[MissingReplica(members[0], 0, 0)])
            # And a mark of yet another one that nobody can read.
            store.records.change([Change("under_replicated/07/0000000000000f07", b"damaged")])
            gone = [lost, members[1]]
            for one in gone:
                await cluster.stop_bookie_async(names.index(one))
                await until_down(client, one)
        code, answer, said = await cli.answer_async("bookie", "decommission", lost, "--yes")
        assert (code, answer["failed"], answer["decommissioned"]) == (0, 0, True), said
