"""Which digests ledgers have, for the scrub: asked of the supervisor, which reads metadata, and kept.

The background thread asks and waits, a little at a time; the main loop only takes the answers. Nobody has to answer:
what metadata cannot tell now is not waited for again for a while, and its entries stay unchecked in this cycle.

    index → supervisor {"type": "digests_wanted", "ledgers": [id, ...]}
    supervisor → index {"type": "digests_known", "digests": [[id, type, HMAC's key in hex, or null], ...]}
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from fastbk.storage.digest_check import NO_TYPE, KnownDigest, KnownTypes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

LEDGERS_MAX = 16_384
"""Whose types are kept: some 2.5 MiB, 1 more where all have HMACs."""
AGE_S_MAX = 3600.0
"""Of what is kept."""
ASKED_MAX = 1024
"""Ledgers in one message."""
VAIN_MAX = 4096
"""Ledgers that are remembered for not having been answered."""
SLICE_S = 0.02
"""Longest wait at once: merges and compactions wait behind it."""
PATIENCE_S = 10.0
"""How long a slice of the scrub waits for the next answer."""
PATIENCE_QUIET_S = 0.1
"""The same where the last wait heard nothing at all, for PAUSE_S or until something is heard."""
PAUSE_S = 60.0
"""How long a ledger that was asked for in vain is not asked for again."""


class DigestTypes:
    """`fastbk.storage.digest_check.DigestSource` of one index process."""

    def __init__(
        self,
        ask: Callable[[dict[str, Any]], bool],
        *,
        ledgers_max: int = LEDGERS_MAX,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ask`: sends a message to the supervisor without waiting; False: not now. Called by the background thread."""
        self._ask = ask
        self._monotonic_s = monotonic_s
        self._change = threading.Condition()
        self._types = KnownTypes(ledgers_max)
        self._heard_s = monotonic_s() - PAUSE_S
        """When the last answer came."""
        self._quiet_until_s = monotonic_s() - PAUSE_S
        # The background thread's own.
        self._since_s = monotonic_s()
        self._began_s: float | None = None
        """When the wait under way began."""
        self._asked: set[int] = set()
        """In it."""
        self._vain_until_s: dict[int, float] = {}

    # ---- main loop

    def put_answers(self, digests: Sequence[Sequence[int | str | None]]) -> None:
        """Take an answer: pairs of ledger and type, or key in hex."""
        with self._change:
            for ledger_id, kind in digests:
                if isinstance(ledger_id, int):
                    self._types.put(ledger_id, _known_of(kind))
            self._heard_s = self._monotonic_s()
            self._quiet_until_s = self._heard_s
            self._change.notify_all()

    # ---- background thread

    def begin_cycle(self) -> None:
        """Begin anew: ids may have got other ledgers."""
        self._began_s = None
        self._forget(self._monotonic_s())

    def want(self, ledger_ids: Iterable[int]) -> bool:
        """Ask for what is not known; return whether an answer may still come in time."""
        now_s = self._monotonic_s()
        if now_s - self._since_s > AGE_S_MAX:
            self._forget(now_s)
        with self._change:
            missing = [one for one in ledger_ids if self._types.get(one) is None]
        missing = [one for one in missing if self._vain_until_s.get(one, now_s) <= now_s]
        if not missing:
            self._began_s = None
            return False
        if self._began_s is None:
            self._began_s = now_s
            self._asked.clear()
        new = [one for one in missing if one not in self._asked][:ASKED_MAX]
        if new and self._ask({"type": "digests_wanted", "ledgers": new}):
            self._asked.update(new)
        return self._has_patience(missing, self._began_s, now_s)

    def wait(self) -> None:
        """Wait for an answer, for one slice."""
        with self._change:
            self._change.wait(SLICE_S)

    def known(self, ledger_ids: Iterable[int]) -> dict[int, KnownDigest]:
        """Return the types of those ledgers that are known."""
        with self._change:
            types = {one: self._types.get(one) for one in ledger_ids}
        return {ledger_id: kind for ledger_id, kind in types.items() if kind is not None}

    def _forget(self, now_s: float) -> None:
        self._since_s = now_s
        with self._change:
            self._types.clear()

    def _has_patience(self, missing: list[int], began_s: float, now_s: float) -> bool:
        with self._change:
            heard_s = max(began_s, self._heard_s)
            patience_s = PATIENCE_QUIET_S if now_s < self._quiet_until_s else PATIENCE_S
            if now_s - heard_s < patience_s:
                return True
            if self._heard_s < began_s:
                self._quiet_until_s = now_s + PAUSE_S
        for ledger_id in missing:
            self._vain_until_s.pop(ledger_id, None)  # to the end
            self._vain_until_s[ledger_id] = now_s + PAUSE_S
        while len(self._vain_until_s) > VAIN_MAX:
            del self._vain_until_s[next(iter(self._vain_until_s))]
        self._began_s = None
        return False


def _known_of(told: int | str | None) -> KnownDigest:
    if told is None:
        return NO_TYPE
    return bytes.fromhex(told) if isinstance(told, str) else told
