"""The kind of a stream on real bookies, with sqlite and ZooKeeper: who is refused, and that no name is forgotten.

INV-S28, INV-S29.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

import fastbk
from fastbk.errors import WrongStreamKind
from fastbk.producers.owner import StreamOwner
from fastbk.stream.paths import producers_path
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.services import owner_name
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.stream_owners import produced
from tests.fixtures.zookeeper import ZooKeeperPlace

ONE = PolicyPatch(ensemble=1, write_quorum=1, ack_quorum=1)


@pytest.fixture(params=["sqlite", "zookeeper"])
def single(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    uri = None
    if request.param == "zookeeper":
        place: ZooKeeperPlace = request.getfixturevalue("zookeeper")
        uri = place.uri()
    with LocalCluster(1, metadata_uri=uri) as made:
        yield made


async def owner_of(stream: fastbk.Stream) -> StreamOwner:
    return await StreamOwner.take_over(await stream.context(), owner_name("s1", "127.0.0.1:1"))


async def pages_of(stream: fastbk.Stream) -> list[str]:
    context = await stream.context()
    return await context.client.records.children(producers_path(context.stream_id))


async def test_a_stream_is_given_to_a_writer_and_back(single: LocalCluster) -> None:
    cli = Cli(single.metadata_uri)
    async with fastbk.connect(single.metadata_uri) as client:
        space = client.namespace("shop")
        await space.create(ONE)
        stream = await space.create_stream("orders")
        owner = await owner_of(stream)
        assert await produced(owner, b"till-1", 5) == (-1, 4)
        with pytest.raises(WrongStreamKind, match="fastbk stream kind shop/orders writer"):
            await stream.writer().open()
        assert await produced(owner, b"till-2", 1) == (-1, 0), "nobody was fenced"
        owner.abandon()  # its process died
        assert await asyncio.to_thread(cli, "stream", "kind", "shop/orders") == "producers\n"
        code, _ = await asyncio.to_thread(
            cli.run, "stream", "append", "shop/orders", stdin=b"a line\n"
        )
        assert code and "fastbk stream kind shop/orders writer" in cli.err
        assert await asyncio.to_thread(cli, "stream", "kind", "shop/orders", "writer") == "writer\n"
        assert len(await pages_of(stream)) == 1
        await asyncio.to_thread(cli, "stream", "append", "shop/orders", stdin=b"a\nb\n")
        with pytest.raises(WrongStreamKind, match="fastbk stream kind shop/orders producers"):
            await owner_of(stream)
        facts = json.loads(await asyncio.to_thread(cli, "stream", "info", "shop/orders", "--json"))
        assert facts["kind"] == "writer" and facts["records"] == 8
        await stream.set_kind("producers")
        assert (await stream.info()).kind == "producers"
        listed = await asyncio.to_thread(cli, "stream", "list", "shop")
        assert listed.splitlines()[1].endswith("producers")
        owner = await owner_of(stream)
        assert await produced(owner, b"till-1", 1) == (4, 5)
        await owner.release()
        info = await stream.info()
        assert (info.owner, info.kind, info.records) == ("", "producers", 9)
        await stream.set_kind("writer")
        assert len(await pages_of(stream)) == 1, "those of before are gone"
        await stream.set_kind("producers")
        owner = await owner_of(stream)
        assert await produced(owner, b"till-2", 0) == (0, 0)
        await asyncio.to_thread(cli, "stream", "seal", "shop/orders", "--yes")
        assert (await stream.info()).is_sealed
        owner.abandon()
        await asyncio.to_thread(cli, "stream", "delete", "shop/orders", "--yes")
        await asyncio.to_thread(cli, "janitor", "--once")
        assert not await pages_of(stream)


def test_without_await(single: LocalCluster) -> None:
    import fastbk.sync

    with fastbk.sync.connect(single.metadata_uri) as client:
        client.namespace("shop").create(ONE)
        stream = client.namespace("shop").create_stream("orders")
        stream.set_kind("producers")
        assert stream.info().kind == "producers"
        with pytest.raises(WrongStreamKind), stream.writer():
            pass
        stream.set_kind("writer")
        with stream.writer() as writer:
            writer.append(b"one")
        assert stream.seal() == writer.last_dlsn
