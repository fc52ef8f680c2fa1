"""What a bookie's children ask about ledgers, answered from metadata: digests, and tags where there is a key.

`MetadataReader` reads ledgers' metadata: a queue, a thread, and one read at a time. Children that wait for one ledger
share its read. The queue is bounded: a ledger too many is dropped, and its child requests it again.

**Digests.** A child asks `{"type": "digests_wanted", "ledgers": [...]}` and is told `{"type": "digests_known",
"digests": [[ledger, type], ...]}`, in one message or several: the number of a digest type (`DigestType`; those of
FBK_DIGEST_*), or null for a ledger that metadata does not have, or has without one. An index, which checks what is
stored, is told the key of an HMAC instead of its number, in hex, where metadata has the ledger's password; workers have
no use for it. What metadata can't say now is not answered, nor is what is too much at once: who still wants it asks
again. A ledger's digest never changes, but its id may be another ledger's one day: Apache's clients choose ids as they
like. So an answer is good for a minute here, and whoever keeps one longer asks again now and then.

**Tags** (`fastbk/security/tokens.py`). A worker asks `{"type": "tag_wanted", "ledger": id}` and is told `{"type":
"tag_known", "ledger": id, "namespace": name, "tag": text}`, or instead of both `"reason": text`, with `"is_missing":
true` for a ledger that metadata does not have. The private key is the supervisor's alone: no client reaches it, and a
worker that was taken over signs nothing.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from fastbk.errors import ConfigError, Error
from fastbk.meta.records import BadRecord
from fastbk.model.entry import DigestType, mac_key
from fastbk.model.ids import ID_MAX, LedgerId
from fastbk.observe import logs
from fastbk.retry import jittered
from fastbk.security.tls import Stamp, stamp_of
from fastbk.storage.digest_check import KnownDigest

if TYPE_CHECKING:
    from fastbk.meta.api import LedgerRead
    from fastbk.model.ledger import LedgerMetadata
    from fastbk.security.settings import AuthenticationSettings
    from fastbk.security.tokens import TokenKey
    from fastbk.server.process_table import Process
    from fastbk.server.supervision.registration import Membership
    from fastbk.server.supervision.spawn import Boot


Found = TypeVar("Found")
Waiting: TypeAlias = "dict[LedgerId, set[Process]]"

WAITING_MAX = 16_384
"""Ledgers that are requested and not read yet, of all children together."""
READ_AT_ONCE_MAX = 64


class MetadataReader(ABC, Generic[Found]):
    """One bookie's, over all its boots. All but `_read` is called on the loop."""

    def __init__(self, name: str, boot: Callable[[], Boot | None]) -> None:
        """`name`: of its thread and its task. `boot`: returns the boot whose children ask, if there is one."""
        self._name = name
        self._boot = boot
        self._waiting: OrderedDict[LedgerId, set[Process]] = OrderedDict()
        self._thread: ThreadPoolExecutor | None = None
        self._task: asyncio.Task[None] | None = None

    def boot_is_over(self) -> None:
        """No child waits for an answer any more."""
        self._waiting.clear()

    async def close(self) -> None:
        """Stop reading. A read under way ends by itself, and its answer is dropped."""
        self.boot_is_over()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._thread is not None:
            self._thread.shutdown(wait=False)

    # --- for subclasses ----------------------------------------------------------------------------------------

    @abstractmethod
    def _read(self, ledger_ids: list[LedgerId]) -> Found:
        """Read up to READ_AT_ONCE_MAX ledgers, in the thread. What it raises is a defect."""

    @abstractmethod
    def _answer(self, waiting: Waiting, found: Found) -> float:
        """Send what was read to the children that waited for it; return the pause before the next read, in seconds."""

    def _want(self, ledger_id: LedgerId, process: Process) -> None:
        """Have a ledger read for a child; one too many is dropped."""
        if ledger_id in self._waiting:
            self._waiting[ledger_id].add(process)
        elif len(self._waiting) < WAITING_MAX:
            self._waiting[ledger_id] = {process}
        if self._task is None:
            self._begin()

    def _send(self, process: Process, message: dict[str, Any]) -> None:
        """A child that does not read, or is gone, does without: it may request it again."""
        boot = self._boot()
        child = None if boot is None else boot.children.get(process)
        if child is not None:
            child.send(message)

    # --- inside ------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._work(), name=f"fastbk {self._name}")
        self._task.add_done_callback(self._done)

    async def _work(self) -> None:
        """Read until no child waits."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=self._name)
        loop = asyncio.get_running_loop()
        while self._waiting:
            count = min(READ_AT_ONCE_MAX, len(self._waiting))
            waiting = dict(self._waiting.popitem(last=False) for _ in range(count))
            found = await loop.run_in_executor(self._thread, self._read, list(waiting))
            pause_s = self._answer(waiting, found)
            if pause_s:
                await asyncio.sleep(pause_s)

    def _done(self, task: asyncio.Task[None]) -> None:
        if task is self._task:
            self._task = None
            if self._waiting:  # requested after the task's last check, and before this
                self._begin()
        if not task.cancelled():
            task.result()  # a defect of ours is the loop's to report


ReadLedgers = Callable[[Sequence[LedgerId]], "list[LedgerRead]"]
"""Blocks; from any thread. Raises Error."""
DigestsRead: TypeAlias = "dict[LedgerId, KnownDigest | None] | Error"
"""What a read found; Error: metadata is away."""

LEDGERS_ASKED_MAX = 1024
"""Maximum ledgers that one message names; the rest is dropped."""
READ_PAUSE_S = 0.05
"""Pause between two reads: at most 1,280 ledgers a second are read."""
AWAY_PAUSE_S = 5.0
"""Pause after metadata did not answer."""
ANSWERS_MAX = 16_384
ANSWER_AGE_S_MAX = 60.0


class DigestService(MetadataReader[DigestsRead]):
    """Answers what children want to know from the last minute's answers, or from metadata."""

    def __init__(self, read: ReadLedgers, boot: Callable[[], Boot | None]) -> None:
        super().__init__("digests", boot)
        self._read_ledgers = read
        self._answers: OrderedDict[LedgerId, tuple[KnownDigest | None, float]] = OrderedDict()
        self._is_away = False

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
            else:
                self._want(ledger_id, process)
        if known:
            self._send_known(process, known)

    def _read(self, ledger_ids: list[LedgerId]) -> DigestsRead:
        try:
            return read_digests(self._read_ledgers, ledger_ids)
        except Error as error:
            return error

    def _answer(self, waiting: Waiting, found: DigestsRead) -> float:
        self._note_away(found if isinstance(found, Error) else None)
        if isinstance(found, Error):
            self._waiting.clear()
            return jittered(AWAY_PAUSE_S)
        now_s = time.monotonic()
        answers: dict[Process, list[tuple[LedgerId, KnownDigest | None]]] = {}
        for ledger_id, one in found.items():
            self._answers[ledger_id] = one, now_s
            self._answers.move_to_end(ledger_id)
            for process in waiting[ledger_id]:
                answers.setdefault(process, []).append((ledger_id, one))
        while len(self._answers) > ANSWERS_MAX:
            self._answers.popitem(last=False)
        for process, known in answers.items():
            self._send_known(process, known)
        return READ_PAUSE_S

    def _send_known(
        self, process: Process, known: list[tuple[LedgerId, KnownDigest | None]]
    ) -> None:
        digests = [(ledger_id, _said(one, process)) for ledger_id, one in known]
        self._send(process, {"type": "digests_known", "digests": digests})

    def _note_away(self, error: Error | None) -> None:
        if error is not None and not self._is_away:
            logs.warning("digests.not_to_be_had", reason=str(error))
        self._is_away = error is not None


def _said(known: KnownDigest | None, process: Process) -> int | str | None:
    if not isinstance(known, bytes):
        return known
    return known.hex() if process.role == "index" else int(DigestType.HMAC)


def read_digests(
    read: ReadLedgers, ledger_ids: Sequence[LedgerId]
) -> dict[LedgerId, KnownDigest | None]:
    """Return the digest types or keys of ledgers, without those whose metadata is damaged. Raises Error: it is away."""
    return {
        ledger_id: None if ledger is None else _known(ledger.metadata)
        for ledger_id, ledger in zip(ledger_ids, read(ledger_ids), strict=True)
        if not isinstance(ledger, BadRecord)
    }


def _known(metadata: LedgerMetadata) -> KnownDigest | None:
    kind, password = metadata.digest_type, metadata.password
    if kind is DigestType.HMAC and password is not None:
        return mac_key(password)
    return None if kind is None else int(kind)


class TagService(MetadataReader[list[dict[str, Any]]]):
    """Signs the tags that workers wait for."""

    def __init__(
        self,
        read: ReadLedgers,
        boot: Callable[[], Boot | None],
        key_file: str,
        audience: Callable[[], str],
    ) -> None:
        super().__init__("tags", boot)
        self._read_ledgers = read
        self._key_file = key_file
        self._audience = audience
        self._key: TokenKey | None = None
        self._stamp: Stamp = ()

    def request(self, process: Process, message: dict[str, Any]) -> None:
        """Have a ledger's metadata read. One too many is dropped: its worker requests it again."""
        ledger_id = message.get("ledger")
        if (
            isinstance(ledger_id, bool)
            or not isinstance(ledger_id, int)
            or not 0 <= ledger_id <= ID_MAX
        ):
            return
        self._want(ledger_id, process)

    def _answer(self, waiting: Waiting, found: list[dict[str, Any]]) -> float:
        for message in found:
            for process in waiting[message["ledger"]]:
                self._send(process, message)
        return 0.0

    def _read(self, ledger_ids: list[LedgerId]) -> list[dict[str, Any]]:
        """Read and sign; in the thread."""
        try:
            self._look_at_key()
            ledgers = self._read_ledgers(ledger_ids)
        except Error as error:
            return [
                {"type": "tag_known", "ledger": ledger_id, "reason": str(error)}
                for ledger_id in ledger_ids
            ]
        return [
            self._signed(ledger_id, ledger)
            for ledger_id, ledger in zip(ledger_ids, ledgers, strict=True)
        ]

    def _signed(self, ledger_id: LedgerId, ledger: LedgerRead) -> dict[str, Any]:
        from fastbk.security.tokens import TokenError, sign_tag

        message: dict[str, Any] = {"type": "tag_known", "ledger": ledger_id}
        if ledger is None:
            return {**message, "is_missing": True, "reason": "metadata does not have it"}
        if isinstance(ledger, BadRecord):
            return {**message, "reason": str(ledger)}
        assert self._key is not None
        namespace = ledger.metadata.namespace
        try:
            tag = sign_tag(self._key, ledger_id, namespace, self._audience())
        except TokenError as error:
            return {**message, "reason": str(error)}
        return {**message, "namespace": namespace, "tag": tag.decode()}

    def _look_at_key(self) -> None:
        """Read the key anew when its file has changed; one that is not good leaves things as they are."""
        from fastbk.security.tokens import TokenKey

        stamp = stamp_of([self._key_file])
        if self._key is not None and stamp == self._stamp:
            return
        try:
            self._key = TokenKey.load(self._key_file)
        except ConfigError:
            if self._key is None:
                raise
        self._stamp = stamp


class MetadataServices:
    """One bookie's, over all its boots."""

    def __init__(
        self,
        membership: Membership,
        settings: AuthenticationSettings,
        boot: Callable[[], Boot | None],
    ) -> None:
        """`boot`: returns the boot whose children ask, if there is one."""
        read = membership.read_ledgers
        self._digests = DigestService(read, boot)
        self._tags = TagService(
            read,
            boot,
            settings.tag_key_file,
            lambda: settings.token_audience or membership.cluster_id,
        )

    @property
    def handlers(self) -> dict[str, Callable[[Process, dict[str, Any]], None]]:
        """What takes the children's messages, by type."""
        return {"digests_wanted": self._digests.request, "tag_wanted": self._tags.request}

    def boot_is_over(self) -> None:
        """Nobody waits for an answer any more."""
        self._digests.boot_is_over()
        self._tags.boot_is_over()

    async def close(self) -> None:
        """Stop reading."""
        await self._digests.close()
        await self._tags.close()
