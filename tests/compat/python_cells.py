"""The Python client on a cluster of Apache's bookies, or of both kinds: the list that Java's client has on ours.

Cells are coroutines of a `PythonWorld`; what they raise is the reason of a failure.
"""

from __future__ import annotations

import asyncio
import signal
import time
import warnings
from collections.abc import Iterator

import fastbk
import fastbk.errors
import fastbk.sync
from fastbk.errors import (
    DuplicateEntryId,
    LedgerClosed,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    NotEnoughBookies,
    Unauthorized,
)
from tests.compat.python_side import PASSWORD, payload
from tests.compat.python_world import Cell, PythonWorld, append, check, refused
from tests.compat.results import Result, is_wanted, run_cell
from tests.compat.rig import Cluster, Rig
from tests.fixtures.wait import wait_until_async

ENTRIES = 120
CELL_S_MAX = 90.0
KNOWN_S_MAX = 20.0
"""Within it the client knows of a read-only bookie."""
DIGESTS = ("crc32", "crc32c", "hmac", "none")
QUORUMS = ((1, 1, 1), (2, 2, 1), (3, 2, 2), (3, 3, 2), (3, 3, 3), (4, 3, 2))


async def append_and_read(world: PythonWorld) -> None:
    ledger_id = await world.written(ENTRIES)
    async with await world.open(ledger_id) as reader:
        assert await reader.last_add_confirmed() == ENTRIES - 1
        await check(reader, ledger_id, 0, ENTRIES - 1)
        await check(reader, ledger_id, 17, 17)


def digest(name: str) -> Cell:
    async def cell(world: PythonWorld) -> None:
        writer = await world.client.create_ledger(3, 3, 2, name, PASSWORD)
        await append(writer, 0, ENTRIES)
        async with await world.open(writer.ledger_id) as reader:
            await check(reader, writer.ledger_id, 0, ENTRIES - 1)

    return cell


def quorum(*sizes: int) -> Cell:
    async def cell(world: PythonWorld) -> None:
        ledger_id = await world.written(ENTRIES, *sizes)
        async with await world.open(ledger_id) as reader:
            await check(reader, ledger_id, 0, ENTRIES - 1)
        left = await world.create(*sizes)
        await append(left, 0, ENTRIES)
        async with await world.open(left.ledger_id) as reader:
            await check(reader, left.ledger_id, 0, ENTRIES - 1)
        await refused(left.append(b"late"), LedgerFenced, LedgerClosed)

    return cell


async def window(world: PythonWorld) -> None:
    async with await world.create() as writer:
        adds = [writer.append_nowait(payload(writer.ledger_id, n)) for n in range(5000)]
        assert await asyncio.gather(*adds) == list(range(5000))
    async with await world.open(writer.ledger_id) as reader:
        await check(reader, writer.ledger_id, 0, 4999)


async def entry_sizes(world: PythonWorld) -> None:
    sizes = (0, 1, 31, 65_537, 1 << 20, 4 << 20)
    async with await world.create() as writer:
        for size in sizes:
            await writer.append(bytes([size % 251]) * size)
    async with await world.open(writer.ledger_id) as reader:
        found = [bytes(entry.data) async for entry in reader.read(0, len(sizes) - 1)]
    assert found == [bytes([size % 251]) * size for size in sizes], "bytes"


async def explicit_ids(world: PythonWorld) -> None:
    writer = await world.client.create_ledger(3, 3, 2, password=PASSWORD, explicit_ids=True)
    order = (3, 1, 2, 0, 4)
    await asyncio.gather(*(writer.append(payload(writer.ledger_id, n), entry_id=n) for n in order))
    await refused(writer.append(b"again", entry_id=2), DuplicateEntryId)
    await writer.close()
    async with await world.open(writer.ledger_id) as reader:
        await check(reader, writer.ledger_id, 0, 4)


async def deferred_sync(world: PythonWorld) -> None:
    writer = await world.client.create_ledger(3, 3, 2, password=PASSWORD, deferred_sync=True)
    await append(writer, 0, 30)
    assert writer.last_add_confirmed == -1, f"before the force: {writer.last_add_confirmed}"
    await writer.force()
    assert writer.last_add_confirmed == 29, f"after it: {writer.last_add_confirmed}"
    await writer.close()
    async with await world.open(writer.ledger_id) as reader:
        await check(reader, writer.ledger_id, 0, 29)


async def read_kinds(world: PythonWorld) -> None:
    writer = await world.create(3, 3, 3)
    await append(writer, 0, 20)
    async with await world.open(writer.ledger_id, recovery=False) as reader:
        found = [entry.entry_id for entry in await reader.read_unconfirmed(0, 19)]
        assert found == list(range(20)), f"unconfirmed: {found}"
    await writer.close()
    async with await world.open(writer.ledger_id) as reader:
        assert (await reader.read_last()).entry_id == 19
        await refused(check(reader, writer.ledger_id, 20, 20), NoSuchEntry)


async def last_add_confirmed(world: PythonWorld) -> None:
    async with (
        await world.create(3, 2, 2) as writer,
        await world.open(writer.ledger_id, recovery=False) as reader,
    ):
        found = [await reader.last_add_confirmed()]
        for first in range(0, 10, 5):
            await append(writer, first, 5)
        found.append(await reader.last_add_confirmed())
        found.append(await reader.try_last_add_confirmed())
        await writer.write_last_add_confirmed()
        found.append(await reader.last_add_confirmed())
    # The second batch said that the first one was confirmed; the writer may have told the rest since.
    assert found[0] == -1 and found[1] >= 4 and found[2] >= 4 and found[3] == 9, f"{found}"


async def tail(world: PythonWorld) -> None:
    async with (
        await world.create(3, 2, 2) as writer,
        await world.open(writer.ledger_id, recovery=False) as reader,
    ):

        async def write() -> None:
            for n in range(200):
                await writer.append(payload(writer.ledger_id, n))
            await writer.close()

        task = asyncio.create_task(write())
        next_id = 0
        async for entry in reader.tail():
            assert entry.entry_id == next_id and bytes(entry.data) == payload(
                writer.ledger_id, next_id
            )
            next_id += 1
        await task
        assert next_id == 200, f"the tail ended at {next_id}"


async def recovery(world: PythonWorld) -> None:
    writer = await world.create()
    await append(writer, 0, 50)
    readers = await asyncio.gather(*(world.open(writer.ledger_id) for _ in range(3)))
    for reader in readers:
        assert await reader.last_add_confirmed() == 49
        await check(reader, writer.ledger_id, 0, 49)
        await reader.close()
    await refused(writer.append(b"late"), LedgerFenced, LedgerClosed)


async def recovery_bookie_down(world: PythonWorld) -> None:
    writer = await world.create()
    await append(writer, 0, 50)
    await world.kill(writer.metadata.fragments[-1].ensemble[0])
    async with await world.open(writer.ledger_id) as reader:
        await check(reader, writer.ledger_id, 0, 49)


async def change_after_kill(world: PythonWorld) -> None:
    writer = await world.create()
    await append(writer, 0, 100)
    victim = writer.metadata.fragments[-1].ensemble[1]
    await world.kill(victim)
    for first in range(100, 400, 20):
        await append(writer, first, 20)
    await writer.close()
    async with await world.open(writer.ledger_id) as reader:
        await check(reader, writer.ledger_id, 0, 399)


async def change_after_silence(world: PythonWorld) -> None:
    writer = await world.create(3, 3, 3)
    await append(writer, 0, 20)
    victim = world.cluster.member(writer.metadata.fragments[-1].ensemble[0])
    victim.signal(signal.SIGSTOP)
    try:
        await append(writer, 20, 20)
    finally:
        victim.signal(signal.SIGCONT)
    assert victim.bookie_id not in writer.metadata.fragments[-1].ensemble, (
        "the silent bookie was not replaced"
    )
    await writer.close()
    async with await world.open(writer.ledger_id) as reader:
        await check(reader, writer.ledger_id, 0, 39)


async def speculative(world: PythonWorld) -> None:
    ledger_id = await world.written(ENTRIES)
    async with await world.open(ledger_id) as reader:
        victim = world.cluster.member(
            (await world.client.ledger_info(ledger_id)).metadata.fragments[0].ensemble[0]
        )
        victim.signal(signal.SIGSTOP)
        started_s = time.monotonic()
        try:
            await check(reader, ledger_id, 0, ENTRIES - 1)
        finally:
            victim.signal(signal.SIGCONT)
        assert time.monotonic() - started_s < 8, "reads beside a silent bookie were slow"


async def metadata(world: PythonWorld) -> None:
    custom = {"application": b"compat", "empty": b""}
    writer = await world.client.create_ledger(3, 3, 2, password=PASSWORD, metadata=custom)
    await append(writer, 0, 3)
    await writer.close()
    info = await world.client.ledger_info(writer.ledger_id)
    assert {name: info.metadata.custom[name] for name in custom} == custom
    assert writer.ledger_id in [one.ledger_id async for one in world.client.list_ledgers()]
    await refused(world.client.open_ledger(writer.ledger_id, password=b"other"), Unauthorized)
    await world.client.delete_ledger(writer.ledger_id)
    await refused(world.open(writer.ledger_id), NoSuchLedger)


async def blocking(world: PythonWorld) -> None:
    await asyncio.to_thread(_blocking, world.cluster.metadata_uri, world.options)


def _blocking(uri: str, options: dict[str, object]) -> None:
    with fastbk.sync.connect(uri, **options) as client:
        writer = client.create_ledger(3, 2, 2, password=PASSWORD)
        writer.append_many([payload(writer.ledger_id, n) for n in range(ENTRIES)])
        with client.open_ledger(writer.ledger_id, password=PASSWORD) as reader:
            found = [(entry.entry_id, bytes(entry.data)) for entry in reader.read(0, ENTRIES - 1)]
        assert found == [(n, payload(writer.ledger_id, n)) for n in range(ENTRIES)]
        try:
            writer.append(b"late")
        except (LedgerFenced, LedgerClosed):
            return
        raise AssertionError("a fenced writer went on")


async def read_only_writer_moves(world: PythonWorld) -> None:
    writer = await world.create()
    await append(writer, 0, 100)
    victim = writer.metadata.fragments[-1].ensemble[1]
    await world.set_read_only(victim)
    for first in range(100, 400, 20):
        await append(writer, first, 20)

    async def is_replaced() -> bool:
        return victim not in writer.metadata.fragments[-1].ensemble

    await wait_until_async(is_replaced, "the read-only bookie to be replaced", KNOWN_S_MAX)
    assert victim in writer.metadata.fragments[0].ensemble, "it keeps what it has"
    await writer.close()
    async with await world.open(writer.ledger_id) as reader:
        await check(reader, writer.ledger_id, 0, 399)


async def read_only_serves_reads(world: PythonWorld) -> None:
    """All that there is of this ledger is on one bookie."""
    writer = await world.create(1, 1, 1)
    await append(writer, 0, 100)
    await world.set_read_only(writer.metadata.fragments[0].ensemble[0])
    async with await world.open(writer.ledger_id) as reader:
        assert await reader.last_add_confirmed() == 99
        await check(reader, writer.ledger_id, 0, 99)
    await refused(writer.append(b"late"), LedgerFenced, LedgerClosed)


async def read_only_recovery(world: PythonWorld) -> None:
    writer = await world.create(2, 2, 2)
    await append(writer, 0, 100)
    for bookie_id in writer.metadata.fragments[0].ensemble:
        await world.set_read_only(bookie_id)
    async with await world.open(writer.ledger_id) as reader:
        await check(reader, writer.ledger_id, 0, 99)
    await refused(writer.append(b"late"), LedgerFenced, LedgerClosed)


async def read_only_not_chosen(world: PythonWorld) -> None:
    bookies = await world.client.list_bookies()
    victim = bookies[0].service.bookie_id
    await world.set_read_only(victim)

    async def is_out() -> bool:
        try:
            await world.create(len(bookies), 1, 1)
        except NotEnoughBookies:
            return True
        return False

    await wait_until_async(is_out, "the client to know of the read-only bookie", KNOWN_S_MAX)
    for _ in range(10):
        writer = await world.create(len(bookies) - 1, 1, 1)
        assert victim not in writer.metadata.fragments[0].ensemble, "a read-only bookie was chosen"
        await writer.close()
    await world.set_read_only(victim, is_read_only=False)

    async def is_back() -> bool:
        return not await is_out()

    await wait_until_async(is_back, "the client to choose it again", KNOWN_S_MAX)


CELLS: dict[str, Cell] = {
    "python-append": append_and_read,
    **{f"python-digest-{name}": digest(name) for name in DIGESTS},
    **{f"python-quorum-{'-'.join(map(str, sizes))}": quorum(*sizes) for sizes in QUORUMS},
    "python-append-window": window,
    "python-entry-sizes": entry_sizes,
    "python-explicit-ids": explicit_ids,
    "python-deferred-sync": deferred_sync,
    "python-read-kinds": read_kinds,
    "python-lac": last_add_confirmed,
    "python-tail": tail,
    "python-recovery": recovery,
    "python-recovery-bookie-down": recovery_bookie_down,
    "python-change-after-kill": change_after_kill,
    "python-change-after-silence": change_after_silence,
    "python-speculative": speculative,
    "python-metadata": metadata,
    "python-blocking-client": blocking,
    "python-read-only-writer-moves": read_only_writer_moves,
    "python-read-only-serves-reads": read_only_serves_reads,
    "python-read-only-recovery": read_only_recovery,
    "python-read-only-not-chosen": read_only_not_chosen,
}


def python_cells(rig: Rig, only: list[str], *, kind: str) -> Iterator[Result]:
    """Our client in both of Apache's protocols on four bookies: Apache's, or two of each kind.

    On ours, in our own protocol, to see that the cells are right.
    """
    wanted = {name: cell for name, cell in CELLS.items() if is_wanted(name, only)}
    if not wanted:
        return
    ours, apache = {"apache": (0, 4), "mixed": (2, 2), "ours": (4, 0)}[kind]
    protocols: tuple[str, ...] = ("own",) if kind == "ours" else ("v3", "v2")
    with rig.cluster(ours=ours, apache=apache) as cluster:
        for protocol in protocols:
            options: dict[str, object] = {} if protocol == "own" else {"apache_protocol": protocol}
            yield from run_python(f"python {protocol} > {kind}", cluster, wanted, options)


def run_python(
    column: str, cluster: Cluster, cells: dict[str, Cell], options: dict[str, object]
) -> Iterator[Result]:
    """Run cells, each with a client that has these options."""
    for name, cell in cells.items():
        with warnings.catch_warnings(action="ignore", category=fastbk.errors.WeakQuorumWarning):
            yield run_cell(
                column, name, lambda cell=cell: asyncio.run(_with_client(cluster, cell, options))
            )


async def _with_client(cluster: Cluster, cell: Cell, options: dict[str, object]) -> None:
    async with fastbk.connect(cluster.metadata_uri, **options) as client:
        world = PythonWorld(cluster, client, options)
        try:
            async with asyncio.timeout(CELL_S_MAX):
                await cell(world)
        finally:
            await world.restore()
