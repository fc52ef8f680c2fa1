"""What a worker says to a connection: good, bad, broken in pieces, and not of this protocol."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING

import flatbuffers
import pytest

from fastbk.model.entry import DigestType
from fastbk.native.client_codec import LedgerCodec, put_produce
from fastbk.native.worker import BAD_VERSION
from fastbk.wire.generated import AddBatch, MasterKey
from fastbk.wire.generated.RequestBody import RequestBody
from fastbk.wire.messages import (
    MAGIC,
    CloseProducer,
    ErrorReply,
    Hello,
    HelloReply,
    InfoReply,
    OpenProducer,
    decode_reply,
    encode_close_producer,
    encode_hello,
    encode_info,
    encode_open_producer,
)
from tests.fixtures import frames
from tests.fixtures.frames import KEY, LEDGER, Layout, answer_of, entry_bytes
from tests.fixtures.hashes import (
    DIGEST_CRC32,
    DIGEST_CRC32C,
    DIGEST_DUMMY,
    DIGEST_HMAC,
    DIGEST_NONE,
)
from tests.fixtures.worker_harness import (
    ADD,
    ADD_BATCH,
    CHECK,
    FENCE,
    FORCE,
    FRAME_SIZE_BYTES_MAX,
    LIST,
    MIB,
    READ,
    READ_BATCH,
    READ_LAC,
    WRITE_LAC,
    Client,
    WorkerHarness,
    greeted,
    one_client,
    one_worker,
    served,
    until,
)

if TYPE_CHECKING:
    import random

OK, BAD_REQUEST, UNSUPPORTED = 0, 1, 2
FENCED, UNAUTHORIZED, BAD_DIGEST, TOO_LARGE = 20, 21, 23, 26


@pytest.mark.uvloop_too
async def test_hello_says_limits_and_who_it_is() -> None:
    async with one_client() as (_, _, client):
        client.send(frames.hello(9, client_name="test"))
        request_id, status, reply = decode_reply(await client.frame())
        assert (request_id, status) == (9, OK)
        assert isinstance(reply, HelloReply)
        assert (reply.version, reply.incarnation, reply.bookie_id) == (1, 77, "127.0.0.1:3181")
        assert reply.frame_size_bytes_max == FRAME_SIZE_BYTES_MAX
        client.send(encode_info(10))
        request_id, status, info = decode_reply(await client.frame())
        assert isinstance(info, InfoReply)
        assert info.writable
        assert info.disk_total_bytes > 0


@pytest.mark.uvloop_too
async def test_adds_are_placed_and_answered_as_decided() -> None:
    async with one_client(is_greeted=True) as (worker_harness, bookie, client):
        client.send(b"".join(frames.add(100 + i, i, b"d" * i) for i in range(200)))
        records = await bookie.take(200)
        for i, record in enumerate(records):
            assert (record.kind, record.entry_count, record.ledger_id, record.entry_id) == (
                ADD,
                1,
                LEDGER,
                i,
            )
            assert (record.request_id, record.master_key) == (100 + i, KEY)
            assert record.payload == entry_bytes(i, b"d" * i)
        worker_harness.verdict(records[7], FENCED)
        worker_harness.verdict(records[9], CHECK)
        worker_harness.publish()
        answers = [answer_of(await client.frame()) for _ in range(199)]
        assert answers == [(100 + i, FENCED if i == 7 else OK) for i in range(200) if i != 9]
        worker_harness.reply(frames.read_reply(109, 9, b""), records[9].connection_id, ADD)
        assert answer_of(await client.frame()) == (109, OK)


@pytest.mark.parametrize("digest_type", [DIGEST_NONE, DIGEST_CRC32, DIGEST_CRC32C, DIGEST_DUMMY])
async def test_digest_types(digest_type: int) -> None:
    async with one_client(is_greeted=True) as (_, bookie, client):
        client.send(frames.add(2, 7, digest_type=digest_type))
        (record,) = await bookie.take(1)
        assert record.payload == entry_bytes(7, digest_type=digest_type)
        assert record.digest_type == digest_type


async def test_hmac_is_stored_unseen_but_must_have_room() -> None:
    async with one_client(is_greeted=True) as (_, bookie, client):
        header = struct.pack(">qqqq", LEDGER, 7, 6, 0)
        client.send(frames.add(2, 7, digest_type=DIGEST_HMAC, entry=header + b"x" * 19))
        assert answer_of(await client.frame()) == (2, BAD_REQUEST)
        client.send(frames.add(3, 7, digest_type=DIGEST_HMAC, entry=header + b"x" * 20))
        (record,) = await bookie.take(1)
        assert record.request_id == 3


async def test_any_valid_layout_is_accepted(rng: random.Random) -> None:
    async with one_client(is_greeted=True) as (worker_harness, bookie, client):
        layout = Layout(rng)
        for request_id in range(2, 150):
            data = rng.randbytes(rng.randrange(200))
            entry_id = rng.choice([0, 7, 2**63 - 1])
            flags = rng.choice([0, 1, 2, 3])
            if rng.random() < 0.5:
                client.send(frames.add(request_id, entry_id, data, flags=flags, layout=layout))
                (record,) = await bookie.take(1)
                assert record.payload == entry_bytes(entry_id, data)
            else:
                entries = [entry_bytes(i, data) for i in range(rng.randrange(1, 20))]
                client.send(frames.add_batch(request_id, 0, entries, flags=flags, layout=layout))
                (record,) = await bookie.take(1)
                assert record.kind == ADD_BATCH
                assert record.payload[8 * len(entries) :] == b"".join(entries)
            assert (record.request_id, record.flags) == (request_id, flags)
            worker_harness.publish()
            assert answer_of(await client.frame()) == (request_id, OK)
            worker_harness.index()


@pytest.mark.uvloop_too
async def test_a_byte_at_a_time() -> None:
    async with one_client() as (worker_harness, bookie, client):
        everything = frames.hello() + frames.add(2, 0, b"x" * 40) + frames.ping(3) + encode_info(4)
        for byte in everything:
            client.send(bytes([byte]))
            await client.writer.drain()
        (record,) = await bookie.take(1)
        worker_harness.publish()
        answers = {answer_of(await client.frame()) for _ in range(4)}
        assert answers == {(1, OK), (2, OK), (3, OK), (4, OK)}
        assert record.payload == entry_bytes(0, b"x" * 40)


@pytest.mark.uvloop_too
async def test_large_frames_among_small_ones(rng: random.Random) -> None:
    async with one_client(is_greeted=True) as (worker_harness, bookie, client):
        largest = FRAME_SIZE_BYTES_MAX - 1000
        sizes = [10, 65_400, 65_500, 65_536, 70_000, 3, 300_000, largest, 0, 200_000]
        bodies = [rng.randbytes(size) for size in sizes]
        for i, body in enumerate(bodies):
            client.send(frames.add(100 + i, i, body))
        for i, body in enumerate(bodies):
            (record,) = await bookie.take(1)
            assert record.payload == entry_bytes(i, body)
            worker_harness.publish()
            worker_harness.index()
            assert answer_of(await client.frame()) == (100 + i, OK)


async def test_requests_of_every_kind_reach_the_ring() -> None:
    async with one_client(is_greeted=True) as (worker_harness, bookie, client):
        client.send(frames.read(2, -1))
        record = await bookie.take_request()
        assert (record.kind, record.entry_id, record.request_id) == (READ, -1, 2)
        client.send(frames.read_batch(3, 4, 9, 6, 1000))
        record = await bookie.take_request()
        assert (record.kind, record.entry_id) == (READ_BATCH, 4)
        assert struct.unpack("<qII", record.payload) == (9, 6, 1000)
        client.send(frames.read_lac(4, 8, 500, 1))
        record = await bookie.take_request()
        assert (record.kind, record.entry_id) == (READ_LAC, 8)
        assert struct.unpack("<qII", record.payload) == (8, 500, 1)
        body = struct.pack(">qq", LEDGER, 6) + b"dgst"
        client.send(frames.write_lac(5, 6, body))
        record = await bookie.take_request()
        assert (record.kind, record.entry_id, record.payload, record.master_key) == (
            WRITE_LAC,
            6,
            body,
            KEY,
        )
        client.send(frames.list_entries(6, 3, 50))
        record = await bookie.take_request()
        assert (record.kind, record.entry_id, record.entry_count) == (LIST, 3, 50)
        client.send(frames.read(7, 3, flags=1, key=KEY) + frames.force(8))
        fence, force = await bookie.take(2)
        assert (fence.kind, fence.entry_id, fence.master_key) == (FENCE, 3, KEY)
        assert force.kind == FORCE
        worker_harness.publish()
        assert answer_of(await client.frame()) == (8, OK)  # the fence is the index's to answer
        worker_harness.reply(frames.read_reply(7, 3, b"e"), fence.connection_id, FENCE)
        assert answer_of(await client.frame()) == (7, OK)


BAD = {
    "another entry id inside": (frames.add(2, 7, entry=entry_bytes(8)), BAD_REQUEST),
    "another ledger inside": (frames.add(2, 7, entry=entry_bytes(7, ledger_id=6)), BAD_REQUEST),
    "negative ledger": (frames.add(2, 7, ledger_id=-1), BAD_REQUEST),
    "negative entry": (frames.add(2, -1), BAD_REQUEST),
    "unknown flag": (frames.add(2, 7, flags=4), BAD_REQUEST),
    "unknown digest": (frames.add(2, 7, digest_type=9, entry=entry_bytes(7)), BAD_REQUEST),
    "short entry": (frames.add(2, 7, entry=entry_bytes(7)[:35]), BAD_REQUEST),
    "no entry bytes": (frames.add(2, 7, entry=b""), BAD_REQUEST),
    "no key": (frames.add(2, 7, key=None), UNAUTHORIZED),
    "digest of other bytes": (frames.add(2, 7, entry=entry_bytes(7)[:-1] + b"?"), BAD_DIGEST),
    "batch of none": (frames.add_batch(2, 7, []), BAD_REQUEST),
    "batch past the last id": (
        frames.add_batch(2, 2**63 - 1, [entry_bytes(2**63 - 1), entry_bytes(2**63 - 1)]),
        BAD_REQUEST,
    ),
    "batch with a gap": (frames.add_batch(2, 7, [entry_bytes(7), entry_bytes(9)]), BAD_REQUEST),
    "batch whose sizes lie": (
        frames.add_batch(2, 7, [entry_bytes(7), entry_bytes(8)], sizes=[41, 40]),
        BAD_REQUEST,
    ),
    "batch sizes that overflow": (
        frames.add_batch(2, 7, [entry_bytes(7)], sizes=[2**32 - 1, 42]),
        BAD_REQUEST,
    ),
    "batch of too many": (
        frames.add_batch(2, 0, [entry_bytes(i, b"") for i in range(1025)]),
        BAD_REQUEST,
    ),
    "batch with one bad digest": (
        frames.add_batch(2, 7, [entry_bytes(7), entry_bytes(8)[:-1] + b"?"]),
        BAD_DIGEST,
    ),
    "read below -1": (frames.read(2, -2), BAD_REQUEST),
    "fence without key": (frames.read(2, -1, flags=1), UNAUTHORIZED),
    "backward batch read": (frames.read_batch(2, 9, 8), BAD_REQUEST),
    "batch read of none": (frames.read_batch(2, 0, 8, 0), BAD_REQUEST),
    "a poll of hours": (frames.read_lac(2, 0, 60_001), BAD_REQUEST),
    "LAC body of another ledger": (frames.write_lac(2, 6, struct.pack(">qq", 9, 6)), BAD_REQUEST),
    "LAC body too long": (
        frames.write_lac(2, 6, struct.pack(">qq", LEDGER, 6) + b"x" * 49),
        BAD_REQUEST,
    ),
    "LAC without key": (
        frames.write_lac(2, 6, struct.pack(">qq", LEDGER, 6), key=None),
        UNAUTHORIZED,
    ),
    "list of none": (frames.list_entries(2, 0, 0), BAD_REQUEST),
    "a second hello": (encode_hello(2, Hello()), BAD_REQUEST),
    "unknown operation": (frames.unknown(2), UNSUPPORTED),
    "no operation": (frames.unknown(2, 0), UNSUPPORTED),
    "an opening of a producer": (
        encode_open_producer(2, OpenProducer(stream="shop/orders", name=b"till-1")),
        UNSUPPORTED,
    ),
    "records of a producer": (
        bytes(put_produce(2, 1, -1, 0, 1, b"\0\1\0\0a")),
        UNSUPPORTED,
    ),
    "the end of a producer": (encode_close_producer(2, CloseProducer(producer=1)), UNSUPPORTED),
}


@pytest.mark.parametrize("case", BAD)
async def test_a_wrong_field_is_answered_and_the_connection_lives(case: str) -> None:
    frame, status = BAD[case]
    async with one_client(is_greeted=True) as (worker_harness, _, client):
        client.send(frame + frames.ping(3))
        assert answer_of(await client.frame()) == (2, status)
        assert answer_of(await client.frame()) == (3, OK)
        assert worker_harness.take_all() == []
        assert worker_harness.next_request() is None


async def test_a_batch_too_large_for_a_record_is_refused() -> None:
    async with one_client(batch_entries_max=30_000, is_greeted=True) as (_, _, client):
        # 8 bytes of table each come on top
        entries = [entry_bytes(i, b"") for i in range(26_000)]
        client.send(frames.add_batch(2, 0, entries))
        assert answer_of(await client.frame()) == (2, TOO_LARGE)


@pytest.mark.uvloop_too
@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        pytest.param(MAGIC + frames.ping(5), (5, BAD_REQUEST), id="not hello first"),
        pytest.param(
            MAGIC + (7).to_bytes(4, "little") + b"x" * 7, (0, BAD_REQUEST), id="length too small"
        ),
        pytest.param(MAGIC + b"\xff\xff\xff\xff", (0, TOO_LARGE), id="4 GiB"),
        pytest.param(MAGIC + (20_000).to_bytes(4, "little"), (0, TOO_LARGE), id="hello of 20 kB"),
        pytest.param(frames.hello() + b"\xff\xff\xff\x7f", (0, TOO_LARGE), id="2 GiB after hello"),
        pytest.param(
            frames.hello() + (40).to_bytes(4, "little") + b"\0" * 40, (0, BAD_REQUEST), id="zeros"
        ),
        pytest.param(
            frames.hello() + (40).to_bytes(4, "little") + b"\xff" * 40, (0, BAD_REQUEST), id="ones"
        ),
    ],
)
async def test_what_is_no_frame_gets_a_last_word(sent: bytes, answer: tuple[int, int]) -> None:
    async with one_worker() as (_, bookie):
        client = await bookie.connect()
        client.send(sent)
        got = answer_of(await client.frame())
        if got == (1, OK) and answer != (1, OK):
            got = answer_of(await client.frame())
        assert got == answer
        client.send(frames.ping(9) * 1000)  # thrown away, however much it is
        assert await client.is_closed() == b""
        await client.close()
        assert bookie.worker.pending == 0


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", b"\x01\x00\x00\x41", b"\x16\x03\x01", MAGIC[:7] + b"\x02"],
)
async def test_other_protocols_are_closed_without_a_word(garbage: bytes) -> None:
    async with one_client() as (_, _, client):
        client.send(garbage)
        assert await client.is_closed() == b""


@pytest.mark.parametrize(
    ("hello", "is_about"),
    [
        (Hello(version_min=2, version_max=9), "versions 1 to 1"),
        (Hello(version_min=0, version_max=0), "versions 1 to 1"),
    ],
)
async def test_hello_that_cannot_be_accepted(hello: Hello, is_about: str) -> None:
    async with one_client() as (worker_harness, _, client):
        client.send(MAGIC + encode_hello(4, hello) + frames.ping(5))
        request_id, status, reply = decode_reply(await client.frame())
        assert (request_id, status) == (4, UNSUPPORTED)
        assert isinstance(reply, ErrorReply)
        assert is_about in reply.message
        assert (reply.version_min, reply.version_max) == (1, 1)
        assert await client.is_closed() == b""
        assert worker_harness.counter(BAD_VERSION) == 1


async def test_flipped_bytes_never_reach_a_ring_wrong(rng: random.Random) -> None:
    """A flipped bit is refused, or makes another valid request: what is placed always is what its digest covers."""
    good = frames.add(2, 7, b"payload")
    async with one_worker(connections_max=500) as (worker_harness, bookie):
        for _ in range(150):
            client = await greeted(bookie)
            spoilt = bytearray(good)
            spoilt[rng.randrange(4, len(spoilt))] ^= 1 << rng.randrange(8)
            client.send(bytes(spoilt) + frames.ping(3))
            request_id, status = answer_of(await client.frame())
            for record in worker_harness.take_all():
                assert record.payload == entry_bytes(7, b"payload")
                worker_harness.publish()
            assert status in (OK, BAD_REQUEST, BAD_DIGEST, UNAUTHORIZED, UNSUPPORTED), request_id
            await client.close()


# The largest entry: what client and bookie think of it, at the boundary and one byte behind.


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


# The end of a worker: what is under way is answered, nothing new is taken, and it does not wait
# for ever.


async def answered(client: Client, request_ids: range) -> None:
    got = [answer_of(await client.frame()) for _ in request_ids]
    assert got == [(request_id, OK) for request_id in request_ids]


async def test_drain_answers_what_is_under_way_and_closes() -> None:
    async with one_client(is_greeted=True) as (worker_harness, bookie, client):
        client.send(frames.add(2, 0) + frames.read_lac(3, 9, 60_000))
        await bookie.take(1)
        await bookie.take_request()
        drained = asyncio.ensure_future(bookie.network.drain(5.0))
        await until(lambda: not bookie.network.connections[0]._transport.is_reading())
        client.send(frames.add(4, 1))  # too late: never placed
        worker_harness.publish()
        assert answer_of(await client.frame()) == (2, OK)
        assert await drained == 0
        assert await client.is_closed() == b""
        assert worker_harness.next() is None
        with pytest.raises(OSError, match=r"refused|Connect"):
            await bookie.connect()


@pytest.mark.slow
async def test_drain_writes_what_a_slow_client_has_not_read_yet() -> None:
    async with one_client(reply_backlog_bytes_max=64 * MIB, is_greeted=True) as (
        worker_harness,
        bookie,
        client,
    ):
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        client.send(b"".join(frames.read(100 + i, 0) for i in range(40)))
        for i in range(40):
            record = await bookie.take_request()
            pending = bookie.worker.pending
            worker_harness.reply(
                frames.read_reply(100 + i, 0, bytes(1_000_000)), record.connection_id, READ
            )
            await until(lambda before=pending: bookie.worker.pending < before)  # type: ignore[misc]
        connection = next(iter(bookie.network.connections.values()))
        drained = asyncio.ensure_future(bookie.network.drain(5.0))
        await until(connection._transport.is_closing)
        client.reader._transport.resume_reading()  # type: ignore[attr-defined]
        await answered(client, range(100, 140))
        assert await drained == 0


async def test_drain_ends_at_its_deadline() -> None:
    async with one_client(is_greeted=True) as (_, bookie, client):
        client.send(frames.add(2, 0))
        await bookie.take(1)
        assert await bookie.network.drain(0.01) == 1
        assert await client.is_closed() == b""
