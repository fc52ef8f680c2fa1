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

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from fastbk.errors import Error
from fastbk.meta.records import BadRecord
from fastbk.model.entry import DigestType, mac_key
from fastbk.model.ids import ID_MAX, LedgerId
from fastbk.observe import logs
from fastbk.retry import jittered
from fastbk.server.supervision.metadata_reader import MetadataReader, Waiting
from fastbk.storage.digest_check import KnownDigest

if TYPE_CHECKING:
    from fastbk.meta.api import LedgerRead
    from fastbk.model.ledger import LedgerMetadata
    from fastbk.server.process_table import Process

Read = Callable[[Sequence[LedgerId]], "list[LedgerRead]"]
"""Blocks; from any thread. Raises Error."""
DigestsRead: TypeAlias = "dict[LedgerId, KnownDigest | None] | Error"
"""What a read found; Error: metadata is away."""

LEDGERS_ASKED_MAX = 1024
"""Of one message; what it names behind them is not heard."""
READ_PAUSE_S = 0.05
"""Between two reads: at most 1,280 ledgers a second are read."""
AWAY_PAUSE_S = 5.0
"""After metadata did not answer."""
ANSWERS_MAX = 16_384
ANSWER_AGE_S_MAX = 60.0


class DigestService(MetadataReader[DigestsRead]):
    """Answers what children want to know from the last minute's answers, or from metadata."""

    def __init__(self, read: Read) -> None:
        super().__init__("digests")
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


def read_digests(read: Read, ledger_ids: Sequence[LedgerId]) -> dict[LedgerId, KnownDigest | None]:
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
