"""Objects on ledgers in memory: half objects, lost names, killed uploads, damage. INV-O1 to INV-O6."""

from __future__ import annotations

import asyncio
import hashlib
import io
import random
from collections.abc import AsyncGenerator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastbk
from fastbk.errors import (
    ClientClosed,
    ConfigError,
    DraftGone,
    Error,
    NamespaceNotEmpty,
    ObjectDamaged,
    ObjectExists,
    ObjectNotFound,
    QuotaExceeded,
    StreamNotFound,
    WrongType,
)
from fastbk.meta.format_level import LEVEL_PATH
from fastbk.meta.records import VersionedRecord
from fastbk.model.ledger import NAME_KEY, NAMESPACE_KEY, OBJECT_KEY
from fastbk.objects import Objects
from fastbk.objects.manifest import CHUNK_BYTES
from fastbk.stream.janitor import Janitor
from fastbk.stream.namespace.catalog import Catalog
from fastbk.stream.namespace.namespace import Namespace
from fastbk.stream.object_records import give_up, old_uploads
from fastbk.stream.policy import PolicyPatch
from tests.fixtures.fake_kills import run_and_kill
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan, RandomPlan
from tests.fixtures.streams import as_client

ALL = 100
"""More calls than an upload makes."""
BIG = bytes(random.Random(1).randbytes(2 * CHUNK_BYTES + 12_345))


def namespace_of(client: FakeClient, path: str = "backups") -> Namespace:
    return Namespace(Catalog(as_client(client)), path)


def objects_of(client: FakeClient, path: str = "backups") -> Objects:
    return Objects(namespace_of(client, path))


async def cluster_with_namespace() -> Cluster:
    cluster = Cluster()
    await namespace_of(cluster.client()).create()
    return cluster


async def names(objects: Objects, prefix: str = "") -> list[str]:
    return [info.name async for info in objects.list(prefix)]


def uploads(cluster: Cluster) -> list[str]:
    return [path for path in cluster.records.values if path.startswith("uploads/")]


async def end_uploads(cluster: Cluster) -> None:
    """As a janitor does, a day later."""
    client = as_client(cluster.client("janitor"))
    async for namespace_id, upload_id, _ in old_uploads(client, kept_s=-1.0):
        await give_up(client, namespace_id, upload_id)


async def check_whole(cluster: Cluster, wanted: dict[str, bytes]) -> None:
    """Check that all names stand for whole objects of these, and that no ledger is without a name."""
    objects = objects_of(cluster.client("checker"))
    found = {info.name: info async for info in objects.list()}
    for name, info in found.items():
        assert await objects.get(name) == wanted[name]
        assert not await objects.verify(name)
        assert info.sha256 == hashlib.sha256(wanted[name]).hexdigest()
    assert await objects.usage() == (
        len(found),
        sum(info.size_bytes for info in found.values()),
    )
    named = {info.ledger_id for info in found.values()}
    assert named <= cluster.ledgers.keys()
    async for _, _, upload in old_uploads(as_client(cluster.client("checker")), kept_s=-1.0):
        assert upload.ledger not in named, "a ledger of an object is to be deleted"
        named.add(upload.ledger)
    assert cluster.ledgers.keys() <= named


def test_an_object_comes_back_by_ranges() -> None:
    async def run() -> None:
        cluster = await cluster_with_namespace()
        objects = objects_of(cluster.client())
        info = await objects.put("checkpoints/17", BIG, metadata={"step": "17"})
        assert info == await objects.info("checkpoints/17")
        assert (info.size_bytes, info.metadata) == (len(BIG), {"step": "17"})
        custom = cluster.ledger(info.ledger_id).metadata.custom
        assert custom[NAME_KEY] == b"checkpoints/17" and custom[NAMESPACE_KEY] == b"backups"
        assert OBJECT_KEY in custom and cluster.ledger(info.ledger_id).metadata.is_closed
        async with objects.open("checkpoints/17") as reader:
            for start, end in ((0, None), (5, 5), (CHUNK_BYTES - 1, CHUNK_BYTES + 1), (7, 9**9)):
                assert await reader.read(start, end) == BIG[start:end]
            with pytest.raises(ConfigError):
                await reader.read(9, 3)
        assert uploads(cluster) == []
        await check_whole(cluster, {"checkpoints/17": BIG})

    asyncio.run(run())


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_range_of_any_size(data: st.DataObject) -> None:
    edges = [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES]
    size = data.draw(st.sampled_from(edges))
    cuts = data.draw(st.lists(st.integers(0, size), max_size=3).map(sorted))
    start = data.draw(st.integers(0, size + 1))
    end = data.draw(st.none() | st.integers(start, size + 2))

    async def pieces() -> AsyncGenerator[bytes, None]:
        for first, last in zip([0, *cuts], [*cuts, size], strict=True):
            yield BIG[first:last]

    async def run() -> None:
        objects = objects_of((await cluster_with_namespace()).client())
        await objects.put("x", pieces())
        async with objects.open("x") as reader:
            assert await reader.read(start, end) == BIG[:size][start:end]

    asyncio.run(run())


def test_a_range_reads_only_its_chunks() -> None:
    async def run() -> None:
        cluster = await cluster_with_namespace()
        objects = objects_of(cluster.client())
        info = await objects.put("x", BIG)
        cluster.ledger(info.ledger_id).lost.update({0, 2})
        async with objects.open("x") as reader:
            assert (
                await reader.read(CHUNK_BYTES + 3, 2 * CHUNK_BYTES)
                == BIG[CHUNK_BYTES + 3 : 2 * CHUNK_BYTES]
            )

    asyncio.run(run())


def test_sources() -> None:
    async def run() -> None:
        objects = objects_of((await cluster_with_namespace()).client())
        taken: list[int] = []
        await objects.put("file", io.BytesIO(BIG), on_bytes=taken.append)
        await objects.put("pieces", iter([b"a", bytearray(b"b"), memoryview(b"c")]))
        assert sum(taken) == len(BIG)
        assert await objects.get("file") == BIG and await objects.get("pieces") == b"abc"
        for wrong in ("text", 5):
            with pytest.raises(WrongType):
                await objects.put("wrong", wrong)  # type: ignore[arg-type]
        assert await names(objects) == ["file", "pieces"]

    asyncio.run(run())


def test_a_block_that_ends_by_an_exception_publishes_nothing() -> None:
    """INV-O1."""

    async def run() -> None:
        cluster = await cluster_with_namespace()
        objects = objects_of(cluster.client())
        with pytest.raises(ZeroDivisionError):
            async with objects.writer("x") as writer:
                await writer.write(BIG)
                raise ZeroDivisionError
        with pytest.raises(ClientClosed):
            await writer.write(b"more")
        assert await names(objects) == [] and not cluster.ledgers and not uploads(cluster)
        with pytest.raises(ObjectNotFound):
            await objects.get("x")

    asyncio.run(run())


def test_a_cancelled_upload_publishes_nothing() -> None:
    async def run() -> None:
        cluster = await cluster_with_namespace()
        objects, begun = objects_of(cluster.client()), asyncio.Event()

        async def endless() -> AsyncGenerator[bytes, None]:
            yield BIG
            begun.set()
            await asyncio.get_running_loop().create_future()

        task = asyncio.create_task(objects.put("x", endless()))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await names(objects) == [] and not cluster.ledgers and not uploads(cluster)

    asyncio.run(run())


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("if_absent", [False, True])
def test_a_kill_at_any_step_of_an_upload_shows_no_half_object(
    is_after: bool, if_absent: bool
) -> None:
    """INV-O1, INV-O2, INV-O3: all or nothing, and the janitor finds every ledger that has no object."""

    async def run() -> None:
        seen = set[tuple[str, ...]]()
        for number in range(ALL):
            cluster = await cluster_with_namespace()
            wanted = {"x": BIG}
            if not if_absent:
                await objects_of(cluster.client()).put("x", b"before")

            async def upload(client: FakeClient) -> None:
                await objects_of(client).put("x", BIG, if_absent=if_absent)

            killed = await run_and_kill(cluster, upload, number, is_after=is_after)
            objects = objects_of(cluster.client())
            there = await names(objects)
            if not if_absent and await objects.get("x") == b"before":
                wanted = {"x": b"before"}
            seen.add((*there, str(len(wanted["x"]))))
            await check_whole(cluster, wanted)
            await end_uploads(cluster)
            await check_whole(cluster, wanted)
            assert len(cluster.ledgers) == len(there) and not uploads(cluster)
            if not killed:
                assert number > 8 and there == ["x"] and len(seen) == 2
                return
        raise AssertionError("the upload never ended")

    asyncio.run(run())


@pytest.mark.parametrize("is_after", [False, True])
def test_a_kill_at_any_step_of_a_deletion(is_after: bool) -> None:
    async def run() -> None:
        for number in range(ALL):
            cluster = await cluster_with_namespace()
            await objects_of(cluster.client()).put("x", BIG)

            async def delete(client: FakeClient) -> None:
                await objects_of(client).delete("x")

            killed = await run_and_kill(cluster, delete, number, is_after=is_after)
            await check_whole(cluster, {"x": BIG})
            await end_uploads(cluster)
            there = await names(objects_of(cluster.client()))
            assert len(cluster.ledgers) == len(there) and not uploads(cluster)
            if not killed:
                assert there == []
                return
        raise AssertionError("the deletion never ended")

    asyncio.run(run())


MANY = {f"small/{number:03d}": b"%d" % number * number for number in range(150)}


def test_objects_that_share_a_ledger() -> None:
    async def run() -> None:
        cluster = await cluster_with_namespace()
        objects = objects_of(cluster.client())
        await objects.put_many(MANY)
        await objects.put_many({})
        assert len(cluster.ledgers) == 1
        await check_whole(cluster, MANY)
        await end_uploads(cluster)
        await check_whole(cluster, MANY)
        with pytest.raises(ObjectExists):
            await objects.put_many({"new": b"", "small/007": b""})
        assert len(await names(objects)) == len(MANY) and len(cluster.ledgers) == 1
        await objects.put("small/007", b"replaced", if_absent=False)
        for name in list(MANY)[:-1]:
            await objects.delete(name)
        last = list(MANY)[-1]
        assert await objects.get(last) == MANY[last] and len(cluster.ledgers) == 1
        await objects.delete(last)
        assert not cluster.ledgers and not uploads(cluster)

    asyncio.run(run())


@pytest.mark.parametrize("is_after", [False, True])
def test_a_kill_at_any_step_of_many_uploads(is_after: bool) -> None:
    """INV-O1 to INV-O3: of each hundred all or none, and no ledger that an object is in is deleted."""
    few = dict(list(MANY.items())[:101])

    async def run() -> None:
        counts = set[int]()
        for number in range(4 * ALL):
            cluster = await cluster_with_namespace()

            async def upload(client: FakeClient) -> None:
                await objects_of(client).put_many(few)

            killed = await run_and_kill(cluster, upload, number, is_after=is_after)
            await check_whole(cluster, few)
            await end_uploads(cluster)
            await check_whole(cluster, few)
            there = await names(objects_of(cluster.client()))
            counts.add(len(there))
            assert len(cluster.ledgers) == len(uploads(cluster)) == bool(there)
            if not killed:
                assert counts == {0, 100, 101}
                return
        raise AssertionError("the uploads never ended")

    asyncio.run(run())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 32))
def test_a_shared_ledger_goes_with_its_last_object(seed: int) -> None:
    """INV-O2, with lost answers of metadata, several who delete, and a janitor."""

    async def run() -> None:
        cluster = await cluster_with_namespace()
        few = dict(list(MANY.items())[:5])
        await objects_of(cluster.client()).put_many(few)
        cluster.plan = RandomPlan(random.Random(seed), away=0.05, lost=0.2)

        async def delete(name: str) -> None:
            with suppress(Error):
                await objects_of(cluster.client()).delete(name)

        async def sweep() -> None:
            for _ in range(3):
                with suppress(Error):
                    await end_uploads(cluster)

        await asyncio.gather(*map(delete, list(few)[random.Random(seed).randrange(2) :]), sweep())
        cluster.plan = Plan()
        await check_whole(cluster, few)
        await end_uploads(cluster)
        await check_whole(cluster, few)
        assert len(cluster.ledgers) == bool(await names(objects_of(cluster.client())))

    asyncio.run(run())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32), st.booleans())
def test_of_several_writers_of_a_name_one_wins(seed: int, if_absent: bool) -> None:
    """INV-O6, INV-O5, with lost answers of metadata, and a janitor that ends uploads all the while."""

    async def run() -> None:
        cluster = await cluster_with_namespace()
        cluster.plan = RandomPlan(random.Random(seed), away=0.05, lost=0.2)
        ends: list[object] = []

        async def write(number: int) -> None:
            objects = objects_of(cluster.client(f"writer {number}"))
            try:
                await objects.put("x", b"%d" % number, if_absent=if_absent)
                ends.append(number)
            except Error as error:
                ends.append(error)

        async def sweep() -> None:
            for _ in range(3):
                try:
                    await end_uploads(cluster)
                except Error:
                    continue

        await asyncio.gather(*map(write, range(3)), sweep())
        cluster.plan = Plan()
        winners = [end for end in ends if isinstance(end, int)]
        objects = objects_of(cluster.client())
        there = {name: await objects.get(name) for name in await names(objects)}
        unknown = any(isinstance(end, Error) and end.outcome == "unknown" for end in ends)
        if if_absent:
            assert len(winners) <= 1
            if winners:
                assert there == {"x": b"%d" % winners[0]}
            for end in ends:
                assert isinstance(end, int | ObjectExists | DraftGone | Error)
        if winners:
            assert there
        elif not unknown:
            assert there == {}
        await check_whole(cluster, there)
        await end_uploads(cluster)
        assert len(cluster.ledgers) == len(there)

    asyncio.run(run())


def test_a_taken_name_is_refused_before_anything_is_written() -> None:
    async def run() -> None:
        cluster = await cluster_with_namespace()
        objects = objects_of(cluster.client())
        await objects.put("x", b"first")
        with pytest.raises(FileExistsError) as refused:
            await objects.put("x", b"second")
        assert isinstance(refused.value, fastbk.ObjectExists)
        assert await objects.get("x") == b"first" and len(cluster.ledgers) == 1
        await objects.put("x", b"third", if_absent=False)
        assert await objects.get("x") == b"third" and len(cluster.ledgers) == 1

    asyncio.run(run())


@pytest.mark.parametrize("damage", ["changed", "lost", "cut"])
def test_damage_is_found_and_named(damage: str) -> None:
    """INV-O4."""

    async def run() -> None:
        cluster = await cluster_with_namespace()
        objects = objects_of(cluster.client())
        info = await objects.put("x", BIG)
        ledger = cluster.ledger(info.ledger_id)
        chunk = bytearray(ledger.entries[1])
        chunk[77] ^= 1
        if damage == "lost":
            ledger.lost.add(1)
        else:
            ledger.entries[1] = bytes(chunk) if damage == "changed" else bytes(chunk[:-1])
        with pytest.raises(ObjectDamaged) as raised:
            await objects.get("x")
        where = (
            f"chunk 1 (bytes {CHUNK_BYTES}..{2 * CHUNK_BYTES}), entry 1 of ledger {info.ledger_id}"
        )
        assert where in str(raised.value)
        assert (raised.value.ledger_id, raised.value.entry_id) == (info.ledger_id, 1)
        (found,) = await objects.verify("x")
        assert where in found
        async with objects.open("x") as reader:
            assert await reader.read(0, CHUNK_BYTES) == BIG[:CHUNK_BYTES]

    asyncio.run(run())


def test_a_damaged_manifest_opens_nothing() -> None:
    async def run() -> None:
        cluster = await cluster_with_namespace()
        objects = objects_of(cluster.client())
        info = await objects.put("x", b"data")
        other = await objects.put("y", b"atad")
        entries = cluster.ledger(info.ledger_id).entries
        for entry in (b"", entries[-1][:-1] + b"x", cluster.ledger(other.ledger_id).entries[-1]):
            entries[-1] = entry
            with pytest.raises(ObjectDamaged, match="manifest"):
                await objects.get("x")
        del cluster.ledgers[info.ledger_id]
        with pytest.raises(ObjectDamaged, match="gone"):
            await objects.get("x")

    asyncio.run(run())


def test_listing_and_names() -> None:
    async def run() -> None:
        objects = objects_of((await cluster_with_namespace()).client())
        for name in ("a/1", "a/2", "b", "ü/x y%"):
            await objects.put(name, name.encode())
        assert await names(objects) == ["a/1", "a/2", "b", "ü/x y%"]
        assert await names(objects, "a/") == ["a/1", "a/2"]
        for name in ("", "/a", "a/", "a//b", "a/../b", ".", "a\n", "a" * 256):
            with pytest.raises(ConfigError):
                objects.writer(name)
        with pytest.raises(ConfigError, match="metadata"):
            objects.writer("x", metadata={"key": "v" * 9000})
        with pytest.raises(ObjectNotFound):
            await objects.delete("c")
        with pytest.raises(StreamNotFound):
            await objects_of(objects.namespace._catalog.client, "nowhere").put("x", b"")  # type: ignore[arg-type]

    asyncio.run(run())


def test_a_namespace_with_objects_stays_unless_all_of_it_goes() -> None:
    """INV-O5."""

    async def run() -> None:
        cluster = await cluster_with_namespace()
        space = namespace_of(cluster.client())
        await Objects(space).put("x", b"data")
        with pytest.raises(NamespaceNotEmpty, match="1 objects"):
            await space.delete()
        await space.delete(recursive=True)
        assert not cluster.ledgers and not uploads(cluster)
        assert not [path for path in cluster.records.values if path.startswith("objects/")]

    asyncio.run(run())


class DeleteAt(Plan):
    """Has the namespace deleted right behind the n-th call of a client."""

    def __init__(self, client: FakeClient, number: int, space: Namespace) -> None:
        self._client, self._left, self._space = client, number, space
        self.refused: Error | None = None
        self.is_over = False

    async def after(self, client: FakeClient, what: str) -> None:
        if client is self._client:
            self._left -= 1
            if self._left == -1:
                try:
                    await self._space.delete()
                except Error as error:
                    self.refused = error
                self.is_over = True


@pytest.mark.parametrize("is_first", [False, True])
def test_no_object_gets_a_name_in_a_namespace_that_is_gone(is_first: bool) -> None:
    """INV-O5: whoever is told that it is stored has it, and its namespace was not deleted."""

    async def run() -> None:
        ends = set[bool]()
        for number in range(ALL):
            cluster = await cluster_with_namespace()
            if not is_first:
                await objects_of(cluster.client()).put("y", b"")
                await objects_of(cluster.client()).delete("y")
            client = cluster.client("uploader")
            plan = DeleteAt(client, number, namespace_of(cluster.client("other")))
            cluster.plan = plan
            try:
                await objects_of(client).put("x", b"data")
                is_stored = True
            except StreamNotFound:
                is_stored = False
            cluster.plan = Plan()
            if not plan.is_over:
                assert ends == {False, True} and number > 8
                return
            ends.add(is_stored)
            assert isinstance(plan.refused, NamespaceNotEmpty) == is_stored
            if is_stored:
                await check_whole(cluster, {"x": b"data"})
            else:
                await end_uploads(cluster)
                assert not cluster.ledgers and not uploads(cluster)
                assert not [path for path in cluster.records.values if path.startswith("objects/")]
        raise AssertionError("the upload never ended")

    asyncio.run(run())


def test_the_janitor_ends_only_old_uploads() -> None:
    """INV-O3: an upload that a janitor has ended gets no name."""

    async def run() -> None:
        cluster = await cluster_with_namespace()
        objects = objects_of(cluster.client())
        janitor = Janitor(as_client(cluster.client("janitor")))
        with pytest.raises(DraftGone):
            async with objects.writer("x") as writer:
                await writer.write(BIG)
                assert (await janitor.pass_once()).uploads_ended == 0
                (path,) = uploads(cluster)
                old = cluster.records.values[path]
                value = old.value.replace(b'"renewed_us":', b'"renewed_us":1,"was":')
                cluster.records.values[path] = VersionedRecord(value, old.version)
                assert (await janitor.pass_once()).uploads_ended == 1
        assert await names(objects) == [] and not cluster.ledgers and not uploads(cluster)

    asyncio.run(run())


def test_a_full_namespace_and_an_old_cluster_take_no_objects() -> None:
    async def run() -> None:
        cluster = await cluster_with_namespace()
        space = namespace_of(cluster.client())
        await space.set_policy(PolicyPatch(bytes_max=3))
        await Objects(space).put("x", b"data")
        await Janitor(as_client(cluster.client("janitor"))).pass_once()
        with pytest.raises(QuotaExceeded):
            await Objects(space).put("y", b"data")
        await Objects(space).delete("x")
        await Janitor(as_client(cluster.client("janitor"))).pass_once()
        await Objects(space).put("y", b"data")
        level = cluster.records.values[LEVEL_PATH]
        cluster.records.values[LEVEL_PATH] = VersionedRecord(b'{"level": 3}', level.version)
        with pytest.raises(ConfigError, match="finalize"):
            await Objects(space).put("z", b"data")

    asyncio.run(run())
