"""What is open after an iteration came to its end: the same with and without `await`."""

from __future__ import annotations

import pytest

from fastbk.errors import ClientClosed
from tests.fixtures.sync_cluster import sync_cluster
from tests.unit.client.fake_cluster import fake_cluster

PAYLOADS = [b"%d" % at for at in range(10)]


async def test_an_asyncio_cursor_and_reader_stay_open() -> None:
    async with fake_cluster() as (client, _, _):
        namespace = client.namespace("shop")
        await namespace.create()
        stream = await namespace.create_stream("orders")
        async with stream.writer() as writer:
            await writer.append_many(PAYLOADS)
            await writer.publish()
            async with stream.cursor("billing", tail=False) as cursor:
                records = [one async for one in cursor]
                cursor.ack(records[-1])
                assert (await cursor.backlog()).records == 0
                assert [one async for one in cursor] == []
                await cursor.reset("earliest")
                assert len([one async for one in cursor]) == 10
            async with stream.reader("earliest", tail=False) as reader:
                assert len([one async for one in reader]) == 10
                assert [one async for one in reader] == []
                await reader.seek("earliest")
                assert len([one async for one in reader]) == 10


def test_a_blocking_cursor_and_reader_that_were_opened_stay_open() -> None:
    with sync_cluster() as (client, _, _):
        namespace = client.namespace("shop")
        namespace.create()
        stream = namespace.create_stream("orders")
        with stream.writer() as writer:
            writer.append_many(PAYLOADS)
            writer.publish()
            with stream.cursor("billing", tail=False) as cursor:
                records = list(cursor)
                cursor.ack(records[-1]).result()
                assert cursor.backlog().records == 0
                assert list(cursor) == []
                cursor.reset("earliest")
                assert len(list(cursor)) == 10
            with stream.reader("earliest", tail=False) as reader:
                assert len(list(reader)) == 10
                assert list(reader) == []
                reader.seek("earliest")
                assert len(list(reader)) == 10
            opened = stream.cursor("by hand", tail=False)
            opened.open()
            opened.ack(list(opened)[-1])
            opened.close()
            with stream.cursor("by hand", tail=False) as cursor:
                assert list(cursor) == []


def test_a_blocking_reader_that_its_iteration_opened_is_closed_with_it() -> None:
    with sync_cluster() as (client, _, _):
        namespace = client.namespace("shop")
        namespace.create()
        stream = namespace.create_stream("orders")
        with stream.writer() as writer:
            writer.append_many(PAYLOADS)
        by_records = stream.reader("earliest", tail=False)
        next(iter(by_records))
        assert len(list(by_records)) == 9
        by_chunks = stream.reader("earliest", tail=False)
        assert sum(len(chunk) for chunk in by_chunks.chunks()) == 10
        for reader in (by_records, by_chunks):
            with pytest.raises(ClientClosed):
                _ = reader.position
