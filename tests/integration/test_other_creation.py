"""One ledger's bytes never answer for another that was given the same id after a rollback (INV-T1, INV-T2)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import fastbk
import fastbk.sync
from fastbk.cli.__main__ import main
from fastbk.errors import Error
from fastbk.meta import open_store
from fastbk.model.entry import DigestType, make_lac_body, master_key
from fastbk.model.ledger import LedgerState
from fastbk.native import client_codec as codec
from fastbk.testing import LocalCluster
from fastbk.wire.statuses import Status
from tests.fixtures.metadata import new_cluster
from tests.fixtures.raw_bookie import raw_bookie
from tests.fixtures.wait import wait_until_async

THREE = {"ensemble": 3, "write_quorum": 3, "ack_quorum": 2}
OLD = [b"old %d" % n for n in range(5)]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Return the URI of a cluster's metadata."""
    return new_cluster(tmp_path / "metadata.sqlite")


def copy_of_metadata(uri: str, folder: Path) -> str:
    """Return the URI of a copy, as somebody takes one before a restore."""
    path = Path(uri.removeprefix("sqlite:"))
    for one in path.parent.glob(f"{path.name}*"):
        shutil.copy(one, folder / one.name)
    return f"sqlite:{folder / path.name}"


async def write_old(client: fastbk.Client) -> int:
    async with await client.create_ledger(**THREE) as writer:
        for data in OLD:
            await writer.append(data)
    return writer.ledger_id


async def given_twice(cluster: LocalCluster, folder: Path) -> tuple[str, int]:
    """Return metadata in which the id of a ledger that was written is free, and that id."""
    async with fastbk.connect(cluster.metadata_uri) as client:
        await write_old(client)
        folder.mkdir()
        older = copy_of_metadata(cluster.metadata_uri, folder)
        return older, await write_old(client)


async def test_a_ledger_given_an_old_id_never_shows_the_old_one_s_records(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before: adds ended in CONFLICT, the ledger closed, and reading it gave the old records with exit code 0."""
    async with LocalCluster(3, metadata_uri=uri) as cluster:
        older, old_id = await given_twice(cluster, tmp_path / "older")
        async with fastbk.connect(older, append_timeout=5.0, read_timeout=5.0) as client:
            writer = await client.create_ledger(**THREE)
            assert writer.ledger_id == old_id, "the id is given once more"
            with pytest.raises(Error, match="OTHER_CREATION"):
                await writer.append(b"new")
            with pytest.raises(Error):
                await client.open_ledger(old_id)
            reader = await client.open_ledger(old_id, recovery=False)
            with pytest.raises(Error):
                await reader.read_unconfirmed(0, 0)
        words = ["ledger", "read", str(old_id), "--raw", "--metadata", older]
        code = await asyncio.to_thread(main, words)
        assert (code != 0, "old" in capsys.readouterr().out) == (True, False)

        def blocking() -> None:
            with fastbk.sync.connect(older, read_timeout=5.0) as client, pytest.raises(Error):
                client.open_ledger(old_id)

        await asyncio.to_thread(blocking)
        async with fastbk.connect(cluster.metadata_uri) as client:
            reader = await client.open_ledger(old_id)
            assert [bytes(one.data) async for one in reader.read(0, len(OLD) - 1)] == OLD


async def test_a_ledger_goes_around_the_bookies_that_hold_another_creation(
    uri: str, tmp_path: Path
) -> None:
    async with LocalCluster(2, metadata_uri=uri) as cluster:
        async with fastbk.connect(cluster.metadata_uri) as client:
            (tmp_path / "older").mkdir()
            older = copy_of_metadata(cluster.metadata_uri, tmp_path / "older")
            async with await client.create_ledger(1, 1, 1) as writer:
                await writer.append(b"old")
            holder = writer.ledger_id
        async with fastbk.connect(older) as client:
            writer = await client.create_ledger(1, 1, 1)
            assert writer.ledger_id == holder
            await writer.append(b"new")
            await writer.close()
            reader = await client.open_ledger(holder)
            assert [bytes(one.data) async for one in reader.read(0, 0)] == [b"new"]


async def test_requests_without_a_creation_are_served_as_ever(uri: str) -> None:
    """Apache's clients and older ones of ours name none; a ledger that they made has none."""
    async with (
        LocalCluster(1, metadata_uri=uri) as cluster,
        fastbk.connect(cluster.metadata_uri) as client,
    ):
        async with await client.create_ledger(1, 1, 1) as writer:
            await writer.append(b"marked")
        bookie = await raw_bookie(cluster.bookies[0])
        assert (
            await bookie.add(writer.ledger_id, 0, b"marked", recovery=True, length=0) == Status.OK
        )
        ledger_id = writer.ledger_id + 50
        assert await bookie.add(ledger_id, 0, b"unmarked") == Status.OK
        store = open_store(cluster.metadata_uri)
        found = store.read_ledger(writer.ledger_id).metadata
        made = replace(found, state=LedgerState.OPEN, last_entry_id=-1, length=0)
        store.create_ledger(ledger_id, made)
        store.close()
        reader = await client.open_ledger(ledger_id)
        assert [bytes(one.data) async for one in reader.read(0, 0)] == [b"unmarked"]


def fence(number: int) -> bytes:
    return codec.put_read(number, 5, 0, codec.FLAG_FENCE, master_key(b""))


def write_lac(number: int) -> bytes:
    body = make_lac_body(5, 0, DigestType.CRC32C, b"")
    return codec.put_write_lac(number, 5, 0, master_key(b""), body)


REQUESTS: tuple[Callable[[int], bytes], ...] = (
    fence,
    write_lac,
    lambda number: codec.put_read(number, 5, 0),
    lambda number: codec.put_read_batch(number, 5, 0, 9, 10, 1000),
    lambda number: codec.put_read_lac(number, 5, -1, 0, 0),
    lambda number: codec.put_list_entries(number, 5, 0, 10),
)
"""About ledger 5."""


async def test_every_request_of_another_creation_is_refused_also_after_a_restart() -> None:
    """INV-T2: adds, fences, reads, lists, LACs and forces; a fence that is refused fences nothing."""
    async with LocalCluster(1, settings={"gc": {"interval": "1h"}}) as cluster:
        for boots in (1, 2):
            bookie = await raw_bookie(cluster.bookies[0])
            again = await bookie.add(5, 0, b"x", creation_mark=7)
            assert again == Status.OK
            for put in REQUESTS:
                for mark, expected in ((8, Status.OTHER_CREATION), (0, Status.OK), (7, Status.OK)):
                    if mark != 8 and put is fence:
                        continue  # it would fence the ledger

                    def marked(number: int, put=put, mark=mark) -> bytes:
                        return codec.with_creation(put(number), mark)

                    assert await bookie.status(marked) == expected
            assert await bookie.add(5, 1, b"y", creation_mark=8) == Status.OTHER_CREATION
            assert await bookie.add(5, boots, b"y", creation_mark=7) == Status.OK, "not fenced"
            if boots == 1:
                cluster.kill(0, "journal")
                await wait_until_async(
                    lambda: cluster.bookies[0].boots == 2, "the bookie is back", 30.0
                )
