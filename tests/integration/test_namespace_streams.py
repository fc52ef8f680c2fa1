"""Streams by name on real bookies: what one client writes another reads."""

from __future__ import annotations

import pytest

import fastbk
from fastbk.errors import StreamNotFound
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.positions import DLSN, AtSeq
from fastbk.testing import LocalCluster


async def test_what_is_written_by_name_is_read_by_name(cluster: LocalCluster) -> None:
    uri = cluster.metadata_uri
    async with fastbk.connect(uri) as client, fastbk.connect(uri) as other:
        space = client.namespace("shop/eu")
        await space.create(PolicyPatch(compression="zstd"))
        async with space.stream("orders").writer(create=True, batch_bytes=1000) as writer:
            for number in range(300):
                writer.append(b"order %d" % number, txid=number * 2)
            await writer.flush()
            await space.set_policy(PolicyPatch(ensemble=2, write_quorum=2, compression="none"))
            await space.rename_stream("orders", "sales")
            await writer.roll()
            await writer.append(b"last")
        stream = other.namespace("shop/eu").stream("sales")
        async with stream.reader(tail=False) as reader:
            payloads = [bytes(one.payload) async for one in reader]
        assert payloads == [b"order %d" % number for number in range(300)] + [b"last"]
        assert await stream.find(txid=7) == (await stream.get(AtSeq(4))).dlsn
        first, last = await stream.first(), await stream.last_position()
        assert first is not None and first.dlsn == DLSN(1, 0, 0)
        assert last is not None and last.seq == 300
        info = await stream.info()
        assert (info.path, info.segments, info.records, info.last_txid) == (
            "shop/eu/sales",
            2,
            301,
            599,
        )
        assert info.size_bytes > 0 and info.last_dlsn == last.dlsn
        rows = (await (await stream.context()).store.read()).chain.rows
        ensembles = [
            (await client.ledger_info(row.ledger_id)).metadata.ensemble_size for row in rows
        ]
        assert ensembles == [3, 2], "the policy of the next segment"
        with pytest.raises(StreamNotFound):
            async with other.namespace("shop/eu").stream("orders").reader() as reader:
                await anext(reader)
