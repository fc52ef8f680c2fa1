"""Marks of missing copies that our client makes, beside Apache's shell and AutoRecovery."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator, Sequence

import fastbk
from fastbk.admin.cluster import MissingCopies, under_replicated
from fastbk.devcluster.processes import wait_for
from fastbk.meta.replica_marks import LedgerMark
from fastbk.model.ledger import LedgerMetadata
from fastbk.model.missing_replica import MissingReplica
from tests.compat.autorecovery import daemon, marked_ledgers
from tests.compat.members import STORAGES, Member
from tests.compat.python_side import PASSWORD, payload
from tests.compat.results import Result, is_wanted, run_cell
from tests.compat.rig import Cluster, Rig
from tests.fixtures.wait import wait_until_async

COLUMN = "fastbk > mixed"
HALF = 20
S_MAX = 60.0


def mark_cells(rig: Rig, only: list[str]) -> Iterator[Result]:
    """Two bookies of each kind. One is away while ledgers are written, as often as a cell says."""
    # Lists of entries, by which the cells verify copies, are not to be had from DbLedgerStorage.
    settings: dict[str, object] = {"ledgerStorageClass": STORAGES["sorted"]}
    with rig.cluster(ours=2, apache=2, apache_settings=settings, is_made_by_apache=True) as cluster:
        for name, cell in CELLS.items():
            if is_wanted(name, only):
                result = run_cell(COLUMN, name, lambda cell=cell: asyncio.run(cell(cluster)))  # type: ignore[misc]
                for member in cluster.members:
                    cluster.restore(member.bookie_id)
                yield result


async def repaired_by_autorecovery(cluster: Cluster) -> None:
    """Apache's shell lists the ledger, and its worker copies. `bookie repair` removes our mark."""
    victim, spare = cluster.members[1], cluster.members[3]
    await _away(cluster, spare)
    async with fastbk.connect(cluster.metadata_uri) as client:
        ledger_id = await _closed_without(client, victim)
    await _away(cluster, victim)
    printed = await asyncio.to_thread(cluster.shell, "listunderreplicated", "-printmissingreplica")
    assert f"MissingReplica : {victim.bookie_id}" in printed, printed
    await _back(cluster, victim, spare)
    assert {one.ledger_id for one in await _missing(cluster)} == {ledger_id}
    await _autorecovery(cluster)
    assert await _missing(cluster) == []
    await asyncio.to_thread(_repair, cluster, victim.bookie_id)
    assert await _marks(cluster) == []


async def middle_stays_marked(cluster: Cluster) -> None:
    """Apache's worker checks a fragment's first and last entry: our mark outlasts its node."""
    async with fastbk.connect(cluster.metadata_uri) as client:
        async with await client.create_ledger(3, 3, 2, password=PASSWORD) as writer:
            await writer.append_many([payload(writer.ledger_id, n) for n in range(HALF)])
        bookie_id = writer.metadata.fragments[0].ensemble[0]
        await client.marks.update(writer.ledger_id, add=[MissingReplica(bookie_id, 5, 7)])
    assert _marked(cluster) == 1
    await _autorecovery(cluster)
    found = [(one.ledger_id, one.bookie_id, one.count) for one in await _missing(cluster)]
    assert found == [(writer.ledger_id, bookie_id, 3)], found
    await asyncio.to_thread(_repair, cluster, bookie_id)
    assert await _marks(cluster) == []


async def repaired_by_the_writer(cluster: Cluster) -> None:
    """The client that closed a ledger without a bookie copies to it, and removes mark and node."""
    victim, spare = cluster.members[2], cluster.members[3]
    await _away(cluster, spare)
    async with fastbk.connect(cluster.metadata_uri) as client:
        ledger_id = await _closed_without(client, victim)
        assert [one.ledger_id for one in await client.marks.list()] == [ledger_id]
        assert _marked(cluster) == 1
        await _back(cluster, victim, spare)
        await wait_until_async(lambda: client.repairs.waiting == 0, "the copies to be made", S_MAX)
    assert await _missing(cluster) == []
    assert (await _marks(cluster), _marked(cluster)) == ([], 0)


async def owed_to_a_replacement(cluster: Cluster) -> None:
    """A replacement gets what the replaced bookie lacked, and metadata names it for them."""
    async with fastbk.connect(cluster.metadata_uri) as client:
        writer = await client.create_ledger(3, 3, 2, password=PASSWORD)
        await writer.append_many([payload(writer.ledger_id, n) for n in range(HALF)])
        victim = cluster.member(writer.metadata.fragments[0].ensemble[1])
        await asyncio.to_thread(victim.signal, signal.SIGSTOP)
        await writer.append_many([payload(writer.ledger_id, n) for n in range(HALF, 2 * HALF)])
        await asyncio.to_thread(victim.kill)
        written = await _append_until(
            writer,
            2 * HALF,
            lambda: writer.stats().ensemble_changes == 1 and not writer.stats().is_under_replicated,
        )
        await writer.close()
        fragments = (await client.ledger_info(writer.ledger_id)).metadata.fragments
        named = [one.first_entry_id for one in fragments if victim.bookie_id in one.ensemble]
        assert named == [0], fragments
        assert len(fragments) == 3, fragments
        await _back(cluster, victim)
        await _check_entries(client, writer.ledger_id, written)
    assert await _missing(cluster) == []
    assert (await _marks(cluster), _marked(cluster)) == ([], 0)


async def writer_beside_autorecovery(cluster: Cluster) -> None:
    """Apache's worker sets the creation token of an open ledger to 0, and the writer goes on."""
    async with fastbk.connect(cluster.metadata_uri) as client:
        writer = await client.create_ledger(3, 3, 3, password=PASSWORD)
        assert (await _metadata(client, writer)).creation_token != 0
        await writer.append_many([payload(writer.ledger_id, n) for n in range(HALF)])
        victim = cluster.member(writer.metadata.fragments[0].ensemble[1])
        await asyncio.to_thread(victim.kill)
        written = await _append_until(writer, HALF, lambda: writer.stats().ensemble_changes == 1)
        await _away(cluster, victim)
        with daemon(cluster):
            async with asyncio.timeout(S_MAX):
                while (await _metadata(client, writer)).creation_token != 0:
                    await writer.append(payload(writer.ledger_id, written))
                    written += 1
        await _back(cluster, victim)
        second = cluster.member((await _metadata(client, writer)).fragments[-1].ensemble[2])
        await asyncio.to_thread(second.kill)
        written = await _append_until(writer, written, lambda: writer.stats().ensemble_changes == 2)
        await writer.close()
        await _back(cluster, second)
        await _check_entries(client, writer.ledger_id, written)


CELLS: dict[str, Callable[[Cluster], Coroutine[None, None, None]]] = {
    "marks-repaired-by-autorecovery": repaired_by_autorecovery,
    "marks-middle-stays": middle_stays_marked,
    "marks-repaired-by-writer": repaired_by_the_writer,
    "marks-owed-to-replacement": owed_to_a_replacement,
    "marks-writer-beside-autorecovery": writer_beside_autorecovery,
}


async def _closed_without(client: fastbk.Client, victim: Member) -> int:
    """Write a ledger on all registered bookies, kill one half-way, and close it."""
    writer = await client.create_ledger(3, 3, 2, password=PASSWORD)
    await writer.append_many([payload(writer.ledger_id, n) for n in range(HALF)])
    await asyncio.to_thread(victim.kill)
    await writer.append_many([payload(writer.ledger_id, n) for n in range(HALF, 2 * HALF)])
    await writer.close()
    return writer.ledger_id


async def _append_until(
    writer: fastbk.LedgerWriter, written: int, is_done: Callable[[], bool]
) -> int:
    """Append one entry after the other, at least one; return how many there are then."""
    async with asyncio.timeout(S_MAX):
        while True:
            await writer.append(payload(writer.ledger_id, written))
            written += 1
            if is_done():
                return written


async def _check_entries(client: fastbk.Client, ledger_id: int, count: int) -> None:
    reader = await client.open_ledger(ledger_id, password=PASSWORD)
    found = [bytes(one.data) async for one in reader.read(0, count - 1)]
    assert found == [payload(ledger_id, n) for n in range(count)]


async def _metadata(client: fastbk.Client, writer: fastbk.LedgerWriter) -> LedgerMetadata:
    return (await client.ledger_info(writer.ledger_id)).metadata


async def _away(cluster: Cluster, member: Member) -> None:
    await asyncio.to_thread(member.kill)
    await asyncio.to_thread(cluster.wait_unregistered, member.bookie_id)


async def _back(cluster: Cluster, *members: Member) -> None:
    for member in members:
        await asyncio.to_thread(cluster.restore, member.bookie_id)


async def _missing(cluster: Cluster) -> Sequence[MissingCopies]:
    async with fastbk.connect(cluster.metadata_uri) as client:
        return [one async for one in under_replicated(client)]


async def _marks(cluster: Cluster) -> list[LedgerMark]:
    async with fastbk.connect(cluster.metadata_uri) as client:
        return await client.marks.list()


def _marked(cluster: Cluster) -> int:
    return marked_ledgers(cluster, f"{cluster.location.root}/underreplication/ledgers")


async def _autorecovery(cluster: Cluster) -> None:
    """Run Apache's daemon until no node is left."""
    with daemon(cluster):
        await asyncio.to_thread(wait_for, lambda: _marked(cluster) == 0, S_MAX, "AutoRecovery")


def _repair(cluster: Cluster, bookie_id: str) -> None:
    cluster.fastbk("bookie", "repair", bookie_id, "--metadata", cluster.metadata_uri)
