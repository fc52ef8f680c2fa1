"""A proxy between clients and one bookie that works on frames: delays, holds, cuts, duplicates, reorders, corrupts.

It damages only the last bytes of large frames, where the entry is: an envelope has no checksum but TCP's, which a
proxy stands above.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass

_MAGIC_BYTES = 8
_CORRUPT_FRAME_BYTES_MIN = 160
_CORRUPT_TAIL_BYTES = 16


@dataclass
class Direction:
    """What happens to frames of one direction; chances are 0..1 a frame."""

    delay_s: float = 0.0
    hold: bool = False
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    cut: float = 0.0


class FrameProxy:
    """Listens on a port of its own and forwards to `target()`, the bookie's port of the moment."""

    def __init__(self, target: Callable[[], int], rng: random.Random) -> None:
        self.port = 0
        self.refuse = False
        self.to_bookie = Direction()
        self.to_client = Direction()
        self.frames = 0
        self._target = target
        self._rng = rng
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """Listen on any free loopback port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close everything."""
        if self._server is not None:
            self._server.close()
        self.cut()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def cut(self) -> None:
        """Reset all connections that are open now."""
        for writer in list(self._writers):
            writer.transport.abort()

    def set(self, to_bookie: Direction, to_client: Direction, *, refuse: bool = False) -> None:
        """Behave like this from now on; what was held goes on if it is held no more."""
        self.to_bookie, self.to_client, self.refuse = to_bookie, to_client, refuse
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        if refuse:
            self.cut()

    def heal(self) -> None:
        """Forward everything as it comes."""
        self.set(Direction(), Direction())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        far: asyncio.StreamWriter | None = None
        try:
            if self.refuse:
                return
            far_reader, far = await asyncio.open_connection("127.0.0.1", self._target())
            self._writers.add(far)
            far.write(await reader.readexactly(_MAGIC_BYTES))
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, far, is_to_bookie=True))
                group.create_task(self._pump(far_reader, writer, is_to_bookie=False))
        except (OSError, asyncio.IncompleteReadError, ExceptionGroup, asyncio.CancelledError):
            pass
        finally:
            for one in (writer, far):
                if one is not None:
                    one.transport.abort()
                    self._writers.discard(one)
            self._tasks.discard(task)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_to_bookie: bool
    ) -> None:
        while True:
            head = await reader.readexactly(4)
            frame = head + await reader.readexactly(struct.unpack("<I", head)[0])
            self.frames += 1
            direction = self.to_bookie if is_to_bookie else self.to_client
            while direction.hold:
                await self._changed.wait()
                direction = self.to_bookie if is_to_bookie else self.to_client
            if direction.delay_s:
                await asyncio.sleep(direction.delay_s * self._rng.uniform(0.5, 1.5))
            if direction.cut and self._rng.random() < direction.cut:
                raise ConnectionResetError
            frame = self._damaged(frame, direction)
            if direction.reorder and self._rng.random() < direction.reorder:
                # Behind the next frame; when none comes in a moment it goes by itself.
                following = await self._next_frame(reader)
                frame = following + frame
            if direction.duplicate and self._rng.random() < direction.duplicate:
                frame += frame
            writer.write(frame)
            await writer.drain()

    @staticmethod
    async def _next_frame(reader: asyncio.StreamReader) -> bytes:
        try:
            # A read of the length is all or nothing: a cancelled one leaves its bytes in the buffer.
            async with asyncio.timeout(0.02):
                head = await reader.readexactly(4)
        except TimeoutError:
            return b""
        return head + await reader.readexactly(struct.unpack("<I", head)[0])

    def _damaged(self, frame: bytes, direction: Direction) -> bytes:
        if (
            not direction.corrupt
            or len(frame) < _CORRUPT_FRAME_BYTES_MIN
            or self._rng.random() >= direction.corrupt
        ):
            return frame
        at = len(frame) - 1 - self._rng.randrange(_CORRUPT_TAIL_BYTES)
        return frame[:at] + bytes([frame[at] ^ (1 << self._rng.randrange(8))]) + frame[at + 1 :]
