"""However a stream of requests is cut, the same records come out; whatever is decided, each gets that answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import given
from hypothesis import strategies as st

from fastbk.native.worker import BUFFER, COLD, PAUSE, RESUME, Worker
from fastbk.wire.messages import InfoReply, decode_cold_request, encode_info, encode_reply
from tests.fixtures import frames
from tests.fixtures.frames import answer_of, entry_bytes
from tests.fixtures.worker_harness import WorkerHarness

INFO = InfoReply(software="", bookie_id="", incarnation=1, writable=True)

REQUESTS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 2000)),
        st.tuples(st.just("add"), st.sampled_from([65_000, 65_400, 70_000, 300_000])),
        st.tuples(st.just("batch"), st.integers(1, 30)),
        st.tuples(st.just("ping"), st.just(0)),
        st.tuples(st.just("info"), st.just(0)),
        st.tuples(st.just("bad"), st.just(0)),
    ),
    max_size=30,
)


def encoded(kind: str, size: int, request_id: int) -> bytes:
    match kind:
        case "add":
            return frames.add(request_id, 1, bytes(size))
        case "batch":
            return frames.add_batch(request_id, 0, [entry_bytes(i, b"d" * i) for i in range(size)])
        case "ping":
            return frames.ping(request_id)
        case "info":
            return encode_info(request_id)
        case _:
            return frames.add(request_id, 1, entry=entry_bytes(2))


@contextmanager
def worker_of(worker_harness: WorkerHarness) -> Iterator[tuple[Worker, int, socket.socket]]:
    worker = Worker(
        worker_harness.options(partial_frames_bytes_max=64 << 20, frame_size_bytes_max=1 << 20)
    )
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        slot = worker.connect(near.fileno())
        assert slot is not None
        yield worker, slot, far
        worker.disconnect(slot)
    worker.close()


def feed(worker: Worker, slot: int, stream: bytes, cuts: list[int]) -> None:
    """Give the stream to the worker in pieces that end at `cuts`, and at the end of each buffer."""
    ends = [*sorted({cut % (len(stream) + 1) for cut in cuts}), len(stream)]
    at, todo = 0, 0
    for end in ends:
        while at < end:
            buffer = worker.own_buffer(slot) if todo & BUFFER else worker.receive_buffer
            piece = stream[at : min(end, at + len(buffer))]
            buffer[: len(piece)] = piece
            del buffer
            at += len(piece)
            todo = worker.receive(slot, len(piece))
            while todo & COLD:
                request = decode_cold_request(worker.cold_frame(slot))
                if request.hello is None:
                    worker.send(slot, encode_reply(request.request_id, 0, INFO))
                todo = worker.proceed(slot)
            assert not todo & PAUSE or todo & RESUME


@given(requests=REQUESTS, cuts=st.lists(st.integers(0, 1 << 21), max_size=60))
def test_a_stream_means_the_same_however_it_is_cut(
    requests: list[tuple[str, int]], cuts: list[int]
) -> None:
    stream = frames.hello() + b"".join(
        encoded(kind, size, 10 + i) for i, (kind, size) in enumerate(requests)
    )
    with WorkerHarness() as worker_harness, worker_of(worker_harness) as (worker, slot, far):
        feed(worker, slot, stream, cuts)
        records = worker_harness.take_all()
        placed = [
            (10 + i, kind, size)
            for i, (kind, size) in enumerate(requests)
            if kind in ("add", "batch")
        ]
        assert [record.request_id for record in records] == [
            request_id for request_id, _, _ in placed
        ]
        for record, (_, kind, size) in zip(records, placed, strict=True):
            assert record.entry_count == (size if kind == "batch" else 1)
            if kind == "add":
                assert record.payload == entry_bytes(1, bytes(size))
        worker_harness.publish()
        worker.collect()
        expected = {10 + i: int(kind == "bad") for i, (kind, _) in enumerate(requests)}
        assert dict(answers(far)) == expected
        assert worker.pending == 0


def answers(far: socket.socket) -> Iterator[tuple[int, int]]:
    """The answers that have come; nothing more will."""
    far.setblocking(False)
    data = b""
    while True:
        try:
            data += far.recv(1 << 20)
        except BlockingIOError:
            break
    while data:
        size = 4 + int.from_bytes(data[:4], "little")
        yield answer_of(data[:size])
        data = data[size:]
