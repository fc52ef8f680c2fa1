"""The largest entry: what client and bookie think of it, at the boundary and one byte behind."""

from __future__ import annotations

import flatbuffers

from fastbk.model.entry import DigestType
from fastbk.native.client_codec import LedgerCodec
from fastbk.wire.generated import AddBatch, MasterKey
from fastbk.wire.generated.RequestBody import RequestBody
from tests.fixtures import frames
from tests.fixtures.frames import KEY, LEDGER, answer_of, entry_bytes
from tests.fixtures.hashes import DIGEST_NONE
from tests.fixtures.worker_harness import (
    FRAME_SIZE_BYTES_MAX,
    Client,
    Served,
    WorkerHarness,
    served,
)

OK, TOO_LARGE = 0, 26


async def greeted(bookie: Served) -> Client:
    client = await bookie.connect()
    client.send(frames.hello())
    await client.frame()
    return client


def small_batch(request_id: int, entry: bytes) -> bytes:
    """A batch of one entry of ledger 0 in as few bytes as this schema takes."""
    builder = flatbuffers.Builder(len(entry) + 256)
    AddBatch.StartEntrySizesVector(builder, 1)
    builder.PrependUint32(len(entry))
    sizes = builder.EndVector()
    entries = builder.CreateByteVector(entry)
    AddBatch.Start(builder)
    AddBatch.AddMasterKey(builder, MasterKey.CreateMasterKey(builder, list(KEY)))
    AddBatch.AddEntrySizes(builder, sizes)
    AddBatch.AddEntries(builder, entries)
    return frames.request(builder, request_id, RequestBody.AddBatch, AddBatch.End(builder))


async def test_an_entry_leaves_room_for_any_reply_with_it() -> None:
    """Our client fills a frame with the largest entry; another layout of Add takes less around it."""
    with WorkerHarness() as worker_harness:
        frame_bytes_max = FRAME_SIZE_BYTES_MAX
        codec = LedgerCodec(LEDGER, DigestType.CRC32C, b"")
        largest = frame_bytes_max - codec.add_overhead_bytes
        async with served(worker_harness) as bookie:
            client = await greeted(bookie)
            fits = frames.add(2, 0, bytes(largest))
            client.send(fits)
            (record,) = await bookie.take(1)
            assert record.payload == entry_bytes(0, bytes(largest))
            worker_harness.publish()
            assert answer_of(await client.frame()) == (2, OK)
            assert len(fits) < frame_bytes_max
            client.send(frames.add(3, 0, bytes(largest + 1)))
            assert answer_of(await client.frame()) == (3, TOO_LARGE)
            await client.close()


async def test_so_do_the_entries_of_a_batch() -> None:
    with WorkerHarness() as worker_harness:
        frame_bytes_max = FRAME_SIZE_BYTES_MAX
        empty = entry_bytes(0, b"", ledger_id=0, digest_type=DIGEST_NONE)
        largest = frame_bytes_max - 116
        async with served(worker_harness) as bookie:
            client = await greeted(bookie)
            frame = small_batch(2, empty.ljust(largest + 1, b"x"))
            assert len(frame) <= frame_bytes_max
            client.send(frame)
            assert answer_of(await client.frame()) == (2, TOO_LARGE)
            client.send(small_batch(3, empty.ljust(largest, b"x")))
            (record,) = await bookie.take(1)
            assert record.entry_count == 1
            worker_harness.publish()
            assert answer_of(await client.frame()) == (3, OK)
            await client.close()
