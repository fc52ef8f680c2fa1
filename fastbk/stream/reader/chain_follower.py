"""The chain as a reader knows it: followed in the background, read anew on demand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from fastbk.errors import Error, MetadataUnavailable, StreamNotFound
from fastbk.retry import Retry
from fastbk.stream.chain.chain import Chain
from fastbk.stream.chain.store import ChainStore
from fastbk.stream.context import as_error

AGAIN_S = 0.1
AGAIN_S_MAX = 5.0


class ChainFollower:
    """One reader's.

    Attributes:
        chain: the newest known.
        failure: that the stream is gone, or what nobody can mend; None while it is followed.
    """

    def __init__(
        self,
        store: ChainStore,
        chain: Chain,
        told: asyncio.Event,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        """`told` is set whenever either attribute has changed; `failed()` is called when `failure` has."""
        self.chain = chain
        self.failure: Error | None = None
        self._store = store
        self._told = told
        self._failed = failed
        self._changed = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def _update(self, chain: Chain) -> None:
        known = self.chain
        if chain.epoch < known.epoch or chain.trim < known.trim or chain.end_seq < known.end_seq:
            return  # none of these ever falls: an answer that was longer under way than what is known
        if chain != known:
            self.chain = chain
            self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._told.set()
        if self.failure is not None:
            self._failed()

    async def _run(self) -> None:
        retry = Retry(AGAIN_S, AGAIN_S_MAX)
        while self.failure is None:
            try:
                async with contextlib.aclosing(self._store.follow()) as changes:
                    async for known in changes:
                        retry.restart()
                        self._update(known.chain)
            except MetadataUnavailable:
                # What is known goes on being read.
                await asyncio.sleep(retry.pause_s())
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                self.failure = as_error(error, "following the stream's chain")
                self._notify()
                if not isinstance(error, Error):
                    raise

    async def refresh(self) -> Chain:
        """Read the chain now, and return it. Raises MetadataUnavailable, StreamNotFound."""
        try:
            self._update((await self._store.read()).chain)
        except StreamNotFound as error:
            self.failure = error
            self._notify()
            raise
        return self.chain

    async def other_than(self, chain: Chain) -> None:
        """Return when the chain is not that object any more."""
        while self.chain is chain and self.failure is None:
            self._changed.clear()
            await self._changed.wait()
        if self.failure is not None:
            raise self.failure.copy()

    async def stop(self) -> None:
        """Follow no more."""
        self._task.cancel()
        await asyncio.wait([self._task])
