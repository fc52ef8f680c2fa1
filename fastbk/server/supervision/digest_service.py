"""Tells workers and indexes which digest the entries of a ledger have, from the ledger's metadata.

A child asks `{"type": "digests_wanted", "ledgers": [...]}` and is told `{"type": "digests_known", "digests": [[ledger,
type], ...]}`, in one message or several: the number of a digest type (`DigestType`; those of FBK_DIGEST_*), or null
for a ledger that metadata does not have, or has without one. An index, which checks what is stored, is told the key of
an HMAC instead of its number, in hex, where metadata has the ledger's password; workers have no use for it. What
metadata can't say now is not answered, nor is what is too much at once: who still wants it asks again.

A ledger's digest never changes, but its id may be another ledger's one day: Apache's clients choose ids as they like.
So an answer is good for a minute here, and whoever keeps one longer asks again now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from fastbk.errors import Error, StorageError
from fastbk.model.entry import DigestType, mac_key
from fastbk.model.ids import ID_MAX, LedgerId
from fastbk.observe import logs
from fastbk.retry import jittered
from fastbk.storage.digest_check import KnownDigest

if TYPE_CHECKING:
    from fastbk.meta.api import VersionedLedger
    from fastbk.model.ledger import LedgerMetadata
    from fastbk.server.process_table import Process
    from fastbk.server.supervision.spawn import Boot

Read = Callable[[Sequence[LedgerId]], "list[VersionedLedger | None]"]
"""Blocks; from any thread. Raises Error."""

LEDGERS_ASKED_MAX = 1024
"""Of one message; what it names behind them is not heard."""
WAITING_MAX = 16_384
"""Ledgers that are asked for and not read yet, of all children together."""
READ_AT_ONCE_MAX = 64
READ_PAUSE_S = 0.05
"""Between two reads: at most 1,280 ledgers a second are read."""
AWAY_PAUSE_S = 5.0
"""After metadata did not answer."""
ANSWERS_MAX = 16_384
ANSWER_AGE_S_MAX = 60.0


class DigestService:
    """One bookie's, over all its boots. Metadata is read in a thread of its own, one read at a time."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._boot: Boot | None = None
        self._waiting: OrderedDict[LedgerId, set[Process]] = OrderedDict()
        self._answers: OrderedDict[LedgerId, tuple[KnownDigest | None, float]] = OrderedDict()
        self._thread: ThreadPoolExecutor | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_away = False

    def attach(self, boot: Boot) -> None:
        """Answer the children of a new boot."""
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
        """Answer what is known, and have the rest read."""
        ledgers = message.get("ledgers")
        if not isinstance(ledgers, list):
            return
        known: list[tuple[LedgerId, KnownDigest | None]] = []
        now_s = time.monotonic()
        for ledger_id in ledgers[:LEDGERS_ASKED_MAX]:
            if not isinstance(ledger_id, int) or not 0 <= ledger_id <= ID_MAX:
                continue
            answer = self._answers.get(ledger_id)
            if answer is not None and now_s - answer[1] < ANSWER_AGE_S_MAX:
                known.append((ledger_id, answer[0]))
            elif ledger_id in self._waiting:
                self._waiting[ledger_id].add(process)
            elif len(self._waiting) < WAITING_MAX:
                self._waiting[ledger_id] = {process}
        if known:
            self._tell(process, known)
        if self._waiting and self._task is None:
            self._task = asyncio.create_task(self._work())
            self._task.add_done_callback(self._done)

    async def _work(self) -> None:
        """Read until nobody waits."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="digests")
        loop = asyncio.get_running_loop()
        while self._waiting:
            count = min(READ_AT_ONCE_MAX, len(self._waiting))
            asked = dict(self._waiting.popitem(last=False) for _ in range(count))
            try:
                found = await loop.run_in_executor(
                    self._thread, read_digests, self._read, list(asked)
                )
            except Error as error:
                self._note_away(error)
                self._waiting.clear()
                await asyncio.sleep(jittered(AWAY_PAUSE_S))
                continue
            self._note_away(None)
            self._take(asked, found)
            await asyncio.sleep(READ_PAUSE_S)

    def _done(self, task: asyncio.Task[None]) -> None:
        if task is self._task:
            self._task = None
        if not task.cancelled():
            task.result()  # a defect of ours is the loop's to report

    def _take(
        self, asked: dict[LedgerId, set[Process]], found: dict[LedgerId, KnownDigest | None]
    ) -> None:
        now_s = time.monotonic()
        answers: dict[Process, list[tuple[LedgerId, KnownDigest | None]]] = {}
        for ledger_id, one in found.items():
            self._answers[ledger_id] = one, now_s
            self._answers.move_to_end(ledger_id)
            for process in asked[ledger_id]:
                answers.setdefault(process, []).append((ledger_id, one))
        while len(self._answers) > ANSWERS_MAX:
            self._answers.popitem(last=False)
        for process, known in answers.items():
            self._tell(process, known)

    def _tell(self, process: Process, known: list[tuple[LedgerId, KnownDigest | None]]) -> None:
        """A child that does not read, or is gone, does without: it may ask again."""
        child = None if self._boot is None else self._boot.children.get(process)
        if child is not None:
            told = [(ledger_id, _said(one, process)) for ledger_id, one in known]
            child.send({"type": "digests_known", "digests": told})

    def _note_away(self, error: Error | None) -> None:
        if error is not None and not self._is_away:
            logs.warning("digests.not_to_be_had", reason=str(error))
        self._is_away = error is not None


def _said(known: KnownDigest | None, process: Process) -> int | str | None:
    if not isinstance(known, bytes):
        return known
    return known.hex() if process.role == "index" else int(DigestType.HMAC)


def read_digests(read: Read, ledger_ids: Sequence[LedgerId]) -> dict[LedgerId, KnownDigest | None]:
    """Return the digest types or keys of ledgers, without those whose metadata is damaged. Raises Error: it is away.

    One damaged ledger keeps nobody from hearing of the others.
    """
    try:
        return _types(ledger_ids, read(ledger_ids))
    except StorageError:
        found: dict[LedgerId, KnownDigest | None] = {}
        for ledger_id in ledger_ids:
            with contextlib.suppress(StorageError):
                found.update(_types([ledger_id], read([ledger_id])))
        return found


def _types(
    ledger_ids: Sequence[LedgerId], ledgers: Sequence[VersionedLedger | None]
) -> dict[LedgerId, KnownDigest | None]:
    return {
        ledger_id: None if ledger is None else _known(ledger.metadata)
        for ledger_id, ledger in zip(ledger_ids, ledgers, strict=True)
    }


def _known(metadata: LedgerMetadata) -> KnownDigest | None:
    kind, password = metadata.digest_type, metadata.password
    if kind is DigestType.HMAC and password is not None:
        return mac_key(password)
    return None if kind is None else int(kind)
