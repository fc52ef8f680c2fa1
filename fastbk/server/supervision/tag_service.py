"""Signs tags: what namespace a ledger is of, by its metadata (`security/tokens.py`).

A worker asks `{"type": "tag_wanted", "ledger": id}` and is told `{"type": "tag_known", "ledger": id, "namespace": name,
"tag": text}`, or instead of both `"reason": text`, with `"is_missing": true` for a ledger that metadata does not have.

The private key is the supervisor's alone: no client reaches it, and a worker that was taken over signs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastbk.errors import ConfigError, Error
from fastbk.meta.records import BadRecord
from fastbk.model.ids import ID_MAX
from fastbk.security.tls import Stamp, stamp_of
from fastbk.server.supervision.metadata_reader import MetadataReader, Waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastbk.meta.api import LedgerRead
    from fastbk.model.ids import LedgerId
    from fastbk.security.tokens import TokenKey
    from fastbk.server.process_table import Process


class TagService(MetadataReader[list[dict[str, Any]]]):
    """Signs the tags that workers wait for."""

    def __init__(
        self,
        read: Callable[[Sequence[LedgerId]], list[LedgerRead]],
        key_file: str,
        audience: Callable[[], str],
    ) -> None:
        """`read`: blocks, from any thread; raises Error."""
        super().__init__("tags")
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
            found = self._read_ledgers(ledger_ids)
        except Error as error:
            return [
                {"type": "tag_known", "ledger": one, "reason": str(error)} for one in ledger_ids
            ]
        return [self._signed(one, ledger) for one, ledger in zip(ledger_ids, found, strict=True)]

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
