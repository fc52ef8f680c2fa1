"""Appends to a stream by one holder of a lease after the other, and appends on the condition that nothing came since.

A stream's writer fences the one before it, so a stream is a resource that keeps out former holders by itself: an epoch
of the stream is to its bookies what a token is to others. What an epoch cannot tell is who ought to open the stream: a
holder that was paused before it opened the stream would fence its successor. So the lease is checked again once the
stream is open.

INV-K4: a holder appends only after its lease was renewed, by compare-and-set, while the stream was open for it alone.
So a later holder, whose lease was granted after that, opens the stream later and fences it. Tokens in a stream never
fall.
INV-K6: a record that is appended on a condition comes right behind the record that the condition names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from fastbk.errors import BufferFull, ConfigError, Error, LeaseLost, StreamAdvanced, TokenOutdated
from fastbk.stream.options import StreamWriterOptions

if TYPE_CHECKING:
    from fastbk.coordination.lease import Lease
    from fastbk.stream.positions import DLSN
    from fastbk.stream.records import HeadersLike
    from fastbk.stream.stream import Stream
    from fastbk.stream.writer.stream_writer import Data, StreamWriter

HEADER_OF_TOKENS = "fastbk.token"
"""Header of each record that was appended under a lease: its token, as decimal digits."""


class GuardedWriter:
    """The writer of a stream for the holder of a lease, and for appends on a condition; `async with` opens it.

    A paused holder can still open the stream when it wakes: then the new holder's writer is fenced once, and has to be
    opened again, but nothing of the paused one is appended. Of one that had the stream open, bookies refuse what it
    appends after the new holder has opened it. Without a lease, whoever opened it last appends.
    """

    def __init__(
        self,
        stream: Stream,
        lease: Lease | None = None,
        *,
        create: bool = False,
        **options: Unpack[StreamWriterOptions],
    ) -> None:
        """No I/O. `create` and `options`: those of the stream's writer. Raises ConfigError."""
        self._stream = stream
        self._lease = lease
        self._writer: StreamWriter = stream.writer(create=create, **options)
        self._turn = asyncio.Lock()
        self.token = 0
        """The lease's token, which each record has in its header; 0: there is no lease."""

    def __repr__(self) -> str:
        return f"<GuardedWriter of {self._stream.path}, token {self.token}>"

    @property
    def last_dlsn(self) -> DLSN | None:
        """The position of the stream's last record that is acknowledged; None in an empty stream."""
        return self._writer.last_dlsn

    @property
    def epoch(self) -> int:
        """Epoch of this opening of the stream."""
        return self._writer.epoch

    async def open(self) -> None:
        """Take the stream over; `async with` does it.

        Raises TokenOutdated where the lease was another's by then: nothing is appended. LeaseLost: it was lost before,
        and nobody was fenced. Otherwise as the stream's writer does.
        """
        lease = self._lease
        if lease is None:
            await self._writer.open()
            return
        token = await lease.renew()
        await self._writer.open()
        try:
            if await lease.renew() != token:
                raise LeaseLost(f"{lease!r} was taken again meanwhile")
        except LeaseLost as error:
            await self._give_up()
            raise TokenOutdated(
                f"{self._stream.path}: the lease with token {token} was lost while the stream was opened: {error}"
            ) from error
        except BaseException:
            await self._give_up()
            raise
        self.token = token

    async def _give_up(self) -> None:
        with suppress(Error):
            await self._writer.close()

    async def append(
        self, payload: Data, *, key: bytes | None = None, headers: HeadersLike = ()
    ) -> DLSN:
        """Append a record; return its position once the ack quorum has it.

        Raises LeaseLost, and nothing was taken; WriterFenced, and what else the stream's writer raises.
        """
        async with self._turn:
            await self._writer.ready()
            try:
                appended = self._take(payload, key, headers)
            except BufferFull:  # larger than the room that is left: alone it fits
                await self._writer.flush()
                appended = self._take(payload, key, headers)
        return await appended

    async def append_if_last(
        self,
        payload: Data,
        *,
        expected: DLSN | None,
        key: bytes | None = None,
        headers: HeadersLike = (),
    ) -> DLSN:
        """Append a record only if the stream's last one is at `expected` (None: the stream has none) (INV-K6).

        Raises StreamAdvanced, and nothing was appended: another came since. WriterFenced with `outcome` "unknown": it
        may be there, and then it is right behind `expected`.
        """
        async with self._turn:
            last = await self._writer.flush()
            if last != expected:
                error = StreamAdvanced(
                    f"{self._stream.path}: the last record is at {last}, not at {expected}: read what came since"
                )
                error.last = "" if last is None else str(last)
                raise error
            appended = self._take(payload, key, headers)
        return await appended

    def _take(self, payload: Data, key: bytes | None, headers: HeadersLike) -> asyncio.Future[DLSN]:
        lease = self._lease
        if lease is None:
            return self._writer.append_nowait(payload, key=key, headers=headers)
        if lease.check() != self.token:
            raise LeaseLost(f"{lease!r} was taken again: open a writer for the new token")
        pairs = tuple(headers.items() if isinstance(headers, Mapping) else headers)
        if any(name == HEADER_OF_TOKENS for name, _ in pairs):
            raise ConfigError(f"the header {HEADER_OF_TOKENS} is the lease's")
        token = (HEADER_OF_TOKENS, str(self.token).encode())
        return self._writer.append_nowait(payload, key=key, headers=(*pairs, token))

    async def flush(self) -> DLSN | None:
        """Wait until all appends so far are acknowledged; return the last record's position."""
        return await self._writer.flush()

    async def close(self) -> None:
        """Flush and close the stream's writer; the lease stays."""
        await self._writer.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._writer.__aexit__(kind, error, trace)
