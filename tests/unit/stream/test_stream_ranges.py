"""Where many streams begin and end: as one by one is found, and what has not changed is not asked for again."""

from __future__ import annotations

import random

from fastbk.stream.namespace.catalog import Catalog
from fastbk.stream.namespace.namespace import Namespace
from fastbk.stream.namespace.stream_ranges import StreamRange, StreamRanges
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.positions import AtSeq
from fastbk.stream.stream import Stream
from fastbk.stream.writer.stream_writer import StreamWriter
from tests.fixtures.fake_ledgers import Cluster, Counting
from tests.fixtures.streams import as_client


class Harness:
    """Streams in memory, and a client that looks at them."""

    def __init__(self) -> None:
        self.plan = Counting()
        self.cluster = Cluster(self.plan)
        self.root = Namespace(Catalog(as_client(self.cluster.client())), "")
        self.catalog = Catalog(as_client(self.cluster.client()))
        self.spans = StreamRanges(self.catalog)

    async def made(self, *paths: str) -> list[Stream]:
        found = []
        for path in paths:
            space, _, name = path.rpartition("/")
            await self.root.namespace(space).create(PolicyPatch(roll_bytes=1000), exist_ok=True)
            found.append(await self.root.namespace(space).create_stream(name))
        return found

    async def all(self) -> dict[str, StreamRange]:
        return await self.spans.below("", lambda path: True)


async def write(stream: Stream, count: int) -> None:
    async with stream.writer() as writer:
        for at in range(count):
            await writer.append(b"%03d" % at * 40)


async def check(stream: Stream, span: StreamRange) -> None:
    """Compare with what is found by asking for this stream alone."""
    info, tail, first = await stream.info(), await stream.last_position(), await stream.first()
    end = info.trim if tail is None else max(info.trim, tail.next)
    assert (span.stream_id, span.end) == (info.id, end)
    assert span.end_seq == (0 if tail is None else tail.seq + 1)
    expected = (end, span.end_seq) if first is None else (first.dlsn, first.seq)
    assert (span.first, span.first_seq) == expected


async def test_what_is_found_is_what_each_alone_says_whatever_happens_between() -> None:
    for seed in range(12):
        rng, harness = random.Random(seed), Harness()
        streams = await harness.made(*(f"shop/{at}" for at in range(6)))
        writers: dict[Stream, StreamWriter] = {}
        for _ in range(25):
            stream = rng.choice(streams)
            act = rng.choice(["append", "append", "append", "close", "truncate", "look"])
            if act == "append":
                if stream not in writers:
                    writers[stream] = await stream.writer().__aenter__()
                for _ in range(rng.randint(1, 12)):
                    await writers[stream].append(rng.randbytes(rng.randint(1, 400)))
                await writers[stream].publish()
            elif act == "close" and stream in writers:
                await writers.pop(stream).close()
            elif act == "truncate" and (tail := await stream.last_position()) is not None:
                await stream.truncate(AtSeq(rng.randint(0, tail.seq)))
            elif act == "look":
                found = await harness.all()
                assert list(found) == sorted(found) and len(found) == 6
                for one in streams:
                    await check(one, found[one.path])
        for writer in writers.values():
            await writer.close()
        found = await harness.all()
        for one in streams:
            await check(one, found[one.path])
        assert await harness.spans.of(found) == found


async def test_closed_streams_that_have_not_changed_ask_nothing_of_bookies() -> None:
    harness = Harness()
    streams = await harness.made(*(f"shop/{at:03d}" for at in range(300)))
    for stream in streams[::10]:
        await write(stream, 3)
    await streams[0].truncate(AtSeq(1))
    harness.plan.taken()
    first = await harness.all()
    calls = harness.plan.taken()
    # One stream begins within a segment, which has to be looked at once.
    assert (calls["open"], first["shop/000"].first_seq) == (1, 1)
    assert await harness.all() == first
    calls = harness.plan.taken()
    assert not calls["open"] and not calls["read"] and not calls["metadata.children_of"]
    assert sum(calls.values()) < 8, calls
    await write(streams[7], 2)
    harness.plan.taken()
    found = await harness.all()
    assert not harness.plan.taken()["read"]
    assert {path for path in found if found[path] != first[path]} == {"shop/007"}


async def test_an_open_segment_is_asked_for_its_end_and_read_only_when_that_moved() -> None:
    harness = Harness()
    (stream,) = await harness.made("shop/orders")
    async with stream.writer() as writer:
        for at in range(3):
            await writer.append(b"x" * 100)
            await writer.publish()
            assert (await harness.all())["shop/orders"].end_seq == at + 1
            harness.plan.taken()
            again = (await harness.all())["shop/orders"]
            assert (again.end_seq, again.record_bytes > 90) == (at + 1, True)
            # It is open since the first look; of its two segments each is asked for what it has.
            calls = harness.plan.taken()
            assert (calls["open"], calls["read"] <= 2) == (0, True)
    harness.plan.taken()
    assert (await harness.all())["shop/orders"].end_seq == 3
    assert not harness.plan.taken()["read"]
    await harness.spans.close()


async def test_names_that_come_go_and_change_hands() -> None:
    harness = Harness()
    a, b = await harness.made("shop/a", "shop/deep/b")
    await write(a, 1)
    await write(b, 2)
    wanted = await harness.spans.below("shop", lambda path: path.endswith("b"))
    assert list(wanted) == ["shop/deep/b"]
    assert await harness.spans.below("nowhere", lambda path: True) == {}
    shop = harness.root.namespace("shop")
    await shop.delete_stream("a")
    assert await harness.spans.of(["shop/a", "no/such", "shop/deep", "shop/deep/b"]) == wanted
    await shop.namespace("deep").rename_stream("b", "c")
    (anew,) = await harness.made("shop/deep/b")
    found = await harness.all()
    assert found["shop/deep/c"].stream_id == wanted["shop/deep/b"].stream_id
    assert (found["shop/deep/c"].end_seq, found["shop/deep/b"].end_seq) == (2, 0)
    await write(anew, 1)
    assert (await harness.spans.of(["shop/deep/b"]))["shop/deep/b"].end_seq == 1


async def test_two_who_look_at_different_namespaces_by_one_object() -> None:
    harness = Harness()
    await harness.made("shop/a", "shop/deep/b", "other/c")
    for _ in range(2):
        assert sorted(await harness.spans.below("shop", lambda path: True)) == [
            "shop/a",
            "shop/deep/b",
        ]
        assert sorted(await harness.spans.below("other", lambda path: True)) == ["other/c"]
        assert len(await harness.all()) == 3
    shop = harness.root.namespace("shop")
    await shop.namespace("deep").rename("deeper")
    assert sorted(await harness.all()) == ["other/c", "shop/a", "shop/deeper/b"]
    await shop.namespace("deeper").delete(recursive=True)
    assert sorted(await harness.all()) == ["other/c", "shop/a"]


async def test_a_segment_that_is_dropped_between_two_looks_is_no_end() -> None:
    harness = Harness()
    (stream,) = await harness.made("shop/orders")
    await write(stream, 2)
    writer = await stream.writer().__aenter__()
    await writer.append(b"x")
    await writer.publish()
    assert (await harness.all())["shop/orders"].end_seq == 3
    # Its ledger goes while the chain that names it has been read.
    held = harness.spans._held[(await stream.info()).id]
    await writer.close()
    before = held.version
    chain = await (await stream.context()).store.read()
    for row in held.open_rows:
        harness.cluster.ledgers.pop(row.ledger_id, None)
    harness.spans._held[chain.chain.stream_id].version = chain.version
    assert before != chain.version
    assert (await harness.all())["shop/orders"].end_seq == 3
