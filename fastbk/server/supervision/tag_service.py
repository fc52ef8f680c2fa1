"""Signs tags: what namespace a ledger is of, by its metadata (`auth/ledger_tags.py`).

A worker asks `{"type": "tag_wanted", "ledger": id}` and is told `{"type": "tag_known", "ledger": id, "namespace": name,
"tag": text}`, or instead of both `"reason": text`, with `"is_missing": true` for a ledger that metadata does not have.

The private key is the supervisor's alone: no client reaches it, and a worker that was taken over signs nothing.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from fastbk.errors import ConfigError, Error, MetadataUnavailable
from fastbk.model.ids import ID_MAX
from fastbk.tls.files import Stamp, stamp_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastbk.auth.tokens import TokenKey
    from fastbk.meta.api import VersionedLedger
    from fastbk.model.ids import LedgerId
    from fastbk.server.process_table import Process
    from fastbk.server.supervision.spawn import Boot

WAITING_MAX = 16_384
"""Ledgers that are asked for and not read yet, of all workers together."""
READ_AT_ONCE_MAX = 64


class TagService:
    """One bookie's, over all its boots. Metadata is read in a thread of its own, one read at a time."""

    def __init__(
        self,
        read: Callable[[Sequence[LedgerId]], list[VersionedLedger | None]],
        key_file: str,
        audience: Callable[[], str],
    ) -> None:
        """`read`: blocks, from any thread; raises Error."""
        self._read = read
        self._key_file = key_file
        self._audience = audience
        self._key: TokenKey | None = None
        self._stamp: Stamp = ()
        self._boot: Boot | None = None
        self._waiting: OrderedDict[LedgerId, set[Process]] = OrderedDict()
        self._thread: ThreadPoolExecutor | None = None
        self._task: asyncio.Task[None] | None = None

    def attach(self, boot: Boot) -> None:
        """Answer the workers of a new boot."""
        self._boot = boot

    def detach(self) -> None:
        """The boot is over: nobody waits for an answer any more."""
        self._boot = None
        self._waiting.clear()

    async def close(self) -> None:
        """Stop reading. A read under way ends by itself, its answer is nobody's."""
        self.detach()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._thread is not None:
            self._thread.shutdown(wait=False)

    def request(self, process: Process, message: dict[str, Any]) -> None:
        """Have a ledger's metadata read. One too many is not heard: its worker asks again."""
        ledger_id = message.get("ledger")
        if isinstance(ledger_id, bool) or not isinstance(ledger_id, int) or not 0 <= ledger_id <= ID_MAX:
            return
        if ledger_id in self._waiting:
            self._waiting[ledger_id].add(process)
        elif len(self._waiting) < WAITING_MAX:
            self._waiting[ledger_id] = {process}
        if self._task is None:
            self._begin()

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._work(), name="fastbk tags")
        self._task.add_done_callback(self._done)

    async def _work(self) -> None:
        """Read until nobody waits."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tags")
        loop = asyncio.get_running_loop()
        while self._waiting:
            count = min(READ_AT_ONCE_MAX, len(self._waiting))
            asked = dict(self._waiting.popitem(last=False) for _ in range(count))
            for message in await loop.run_in_executor(self._thread, self._answers, list(asked)):
                for process in asked[message["ledger"]]:
                    self._tell(process, message)

    def _done(self, task: asyncio.Task[None]) -> None:
        if task is self._task:
            self._task = None
            if self._waiting:  # somebody asked between its last look and now
                self._begin()
        if not task.cancelled():
            task.result()  # a defect of ours is the loop's to report

    def _answers(self, ledger_ids: list[LedgerId]) -> list[dict[str, Any]]:
        """Read and sign; in the thread."""
        try:
            self._look_at_key()
            found = self._read(ledger_ids)
        except Error as error:
            is_away = isinstance(error, MetadataUnavailable)  # each further read would wait for it as long
            if len(ledger_ids) > 1 and not is_away:  # one that is damaged keeps nobody from hearing of the others
                return [message for one in ledger_ids for message in self._answers([one])]
            return [{"type": "tag_known", "ledger": one, "reason": str(error)} for one in ledger_ids]
        return [self._answer(one, ledger) for one, ledger in zip(ledger_ids, found, strict=True)]

    def _answer(self, ledger_id: LedgerId, ledger: VersionedLedger | None) -> dict[str, Any]:
        from fastbk.auth.ledger_tags import sign_tag
        from fastbk.auth.tokens import TokenError

        told: dict[str, Any] = {"type": "tag_known", "ledger": ledger_id}
        if ledger is None:
            return {**told, "is_missing": True, "reason": "metadata does not have it"}
        assert self._key is not None
        namespace = ledger.metadata.namespace
        try:
            tag = sign_tag(self._key, ledger_id, namespace, self._audience())
        except TokenError as error:
            return {**told, "reason": str(error)}
        return {**told, "namespace": namespace, "tag": tag.decode()}

    def _look_at_key(self) -> None:
        """Read the key anew when its file has changed; one that is not good leaves things as they are."""
        from fastbk.auth.tokens import TokenKey

        stamp = stamp_of([self._key_file])
        if self._key is not None and stamp == self._stamp:
            return
        try:
            self._key = TokenKey.load(self._key_file)
        except ConfigError:
            if self._key is None:
                raise
        self._stamp = stamp

    def _tell(self, process: Process, message: dict[str, Any]) -> None:
        child = None if self._boot is None else self._boot.children.get(process)
        if child is not None:
            child.send(message)
