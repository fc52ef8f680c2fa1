"""Memory for frames that are not whole yet, with the worker's C alone: what a loop does to it is decided here."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from fastbk.native.worker import BUFFER, COLD, Worker
from tests.fixtures import frames
from tests.fixtures.frames import entry_bytes
from tests.fixtures.worker_harness import MIB, WorkerHarness

DATA = bytes(range(250)) * 4000


def receive(worker: Worker, slot: int, data: bytes, todo: int = 0) -> int:
    """Hand bytes over as a loop does that has read them already when it is told to pause; return the last bits."""
    while data:
        buffer = worker.own_buffer(slot) if todo & BUFFER else worker.receive_buffer
        piece = data[: len(buffer)]
        buffer[: len(piece)] = piece
        data = data[len(piece) :]
        todo = worker.receive(slot, len(piece))
        if todo & COLD:
            todo = worker.proceed(slot)
    return todo


def collect(worker: Worker) -> None:
    """What one ring of the bell leads to."""
    while worker.collect()[1]:
        pass


def test_a_frame_that_came_in_without_its_turn_is_taken_as_soon_as_there_is_room() -> None:
    with WorkerHarness() as worker_harness, ExitStack() as stack:
        worker_harness.grant(0)
        worker = Worker(worker_harness.options(partial_frames_bytes_max=2 * MIB + 8192))
        stack.callback(worker.close)
        slots: dict[int, int] = {}
        for request_id in range(4):
            near, far = (stack.enter_context(one) for one in socket.socketpair())
            near.setblocking(False)
            far.setblocking(False)
            slot = worker.connect(near.fileno())
            assert slot is not None
            receive(worker, slot, frames.hello())
            first = frames.add(2 + request_id, request_id, DATA)[:10_000]
            slots[slot] = receive(worker, slot, first)
        for request_id, (slot, todo) in enumerate(slots.items()):
            receive(worker, slot, frames.add(2 + request_id, request_id, DATA)[10_000:], todo)
        collect(worker)
        assert worker_harness.take_all() == []
        worker_harness.grant(64 * MIB)
        collect(worker)
        taken = {record.request_id: record.payload for record in worker_harness.take_all()}
        assert taken == {2 + i: entry_bytes(i, DATA) for i in range(4)}
