"""Serves requests of authenticated clients: who it is, what it may do, what the audit log gets, and then the store."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from fastbk.errors import (
    ConfigError,
    Error,
    InvariantError,
    MetadataConflict,
    MetadataOnHold,
    MetadataUnavailable,
    NoSuchLedger,
    QuotaExceeded,
    StorageError,
    Unauthorized,
)
from fastbk.gateway.access import Access, NamespaceTree
from fastbk.gateway.operations import Plan, result_of
from fastbk.gateway.shares import Budgets, Scale, Shares, Turns, Waits, as_it_is
from fastbk.meta.gateway import messages
from fastbk.meta.gateway.messages import decode_request, encode, failure_of
from fastbk.observe.logs import LimitLog
from fastbk.printable_text import printable
from fastbk.security.admission import Client, Refused
from fastbk.security.rights import NOBODY

if TYPE_CHECKING:
    from fastbk.client.metadata_calls import MetadataCalls
    from fastbk.meta.api import MetadataStore
    from fastbk.security.admission import Admission
    from fastbk.security.audit_log import AuditLog

REQUESTS_MAX = 256
"""That the store works on, or that wait for it; beyond it a client is sent away to try again."""
REQUESTS_OF_ONE_MAX = 64
"""The same of one principal, so that one leaves room for others."""
STORE_TIMEOUT_S = 10.0
_STATUSES: tuple[tuple[type[Error], int], ...] = (
    (ConfigError, 400),
    (Unauthorized, 403),
    (QuotaExceeded, 403),
    (NoSuchLedger, 404),
    (MetadataConflict, 409),
    (MetadataOnHold, 423),
    (MetadataUnavailable, 503),
)
_WRITES = (
    messages.ChangeRecords,
    messages.DrawId,
    messages.CreateLedger,
    messages.UpdateLedger,
    messages.DeleteLedger,
    messages.UpdateMark,
)
Answer = tuple[int, bytes]
"""Status and body."""


@dataclass(slots=True)
class Peer:
    """The client of one connection, and the token that it was last accepted with; b"": with none."""

    client: Client
    certificate: bytes | None = None
    """What the connection showed."""
    token: bytes = b""
    waited_s: float = 0.0
    """How long its last request waited for a change."""


class Service:
    """One gateway's.

    Attributes:
        requests: how many were answered, by operation and status.
        seconds: how long they took, by operation, without waiting for changes.
        waits: those that wait for changes.
        limits: how often a limit refused one, or had it answered at once.
    """

    def __init__(
        self,
        calls: MetadataCalls,
        admission: Admission,
        audit: AuditLog,
        scale: Scale = as_it_is,
        budgets: Budgets | None = None,
    ) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.seconds: Counter[str] = Counter()
        self.limits = LimitLog("gateway.limit_reached")
        self._turns = Turns(calls)
        self.waits = Waits(self._turns, self.limits.note, scale)
        self._admission = admission
        self._audit = audit
        self._tree: NamespaceTree | None = None
        self._budgets = budgets or Budgets(0, 0)
        self._active = Shares(scale(REQUESTS_MAX), scale(REQUESTS_OF_ONE_MAX))
        self._refusals = LimitLog("gateway.client_refused")
        self._faults = LimitLog("gateway.request_failed", level="error")

    async def answer(self, peer: Peer, name: str, token: bytes, body: bytes) -> Answer:
        """Return the answer to one request; `token`: what it was shown with, b"": nothing."""
        began_s, peer.waited_s = time.monotonic(), 0.0
        status, answer = await self._answer(peer, name, token, body)
        known = name if name in messages.OPERATIONS else "unknown"
        self.requests[known, status] += 1
        self.seconds[known] += time.monotonic() - began_s - peer.waited_s  # type: ignore[assignment]
        return status, answer

    async def _answer(self, peer: Peer, name: str, token: bytes, body: bytes) -> Answer:
        if reason := self._authenticate(peer, token):
            return 401, encode(failure_of(Unauthorized(reason)))
        try:
            request = decode_request(name, body)
            self._check_budget(peer.client.principal.name, request, len(body))
            result = await self._placed(peer, name, request)
            # It may have waited for so long that its client is not served any more.
            if isinstance(request, messages.ReadStates) and (
                reason := self._authenticate(peer, token)
            ):
                return 401, encode(failure_of(Unauthorized(reason)))
            return 200, encode(result)
        except Unauthorized as error:
            self._note(
                peer,
                "request.denied",
                operation=name,
                ledger=error.ledger_id,
                reason=str(error)[:500],
            )
            return _failed(error)
        except Error as error:
            return _failed(error)
        except (Exception, InvariantError) as error:  # noqa: BLE001 -- one request's fault must not end the gateway
            trace = "".join(traceback.format_exception(error, limit=-12))
            self._faults.note(
                type(error).__name__, operation=printable(name), reason=repr(error), trace=trace
            )
            fault = StorageError(
                f"a fault of the gateway's: {error!r}; see its log", outcome="unknown"
            )
            return _failed(fault)

    def _check_budget(self, principal: str, request: messages.Request, size_bytes: int) -> None:
        if isinstance(request, _WRITES) and (used_up := self._budgets.take(principal, size_bytes)):
            self.limits.note(used_up)
            raise MetadataUnavailable(
                f"{principal} has used up its {used_up} of ten seconds: try again, or have the"
                f" gateway's {used_up}_rate raised",
                outcome="not_written",
            )

    async def _placed(self, peer: Peer, name: str, request: messages.Request) -> object:
        """Return the result of a request, which has a place among those of its kind meanwhile (INV-B1)."""
        principal = peer.client.principal.name
        if isinstance(request, messages.ReadStates) and request.wait_ms > 0:
            count = len(request.subjects)
            if self.waits.enter(principal, count):
                try:
                    return await self._states(peer, request)
                finally:
                    self.waits.leave(principal, count)
        if not self._active.take(principal):
            busy = "this gateway has too many requests: try again"
            raise MetadataUnavailable(busy, outcome="not_written")
        try:
            return await self._result(peer, name, request)
        finally:
            self._active.give_back(principal)

    # --- who it is ------------------------------------------------------------------------------------------------

    def _authenticate(self, peer: Peer, token: bytes) -> str:
        """Return why a client is not served; "": it is."""
        before = peer.client.principal.name
        if not token and before.startswith("token:"):
            # Behind a proxy that shares connections it would be another client's request.
            shown = "each request needs a token: this one has none, though its connection has shown one before"
            return self._refuse(peer, shown, shown)
        try:
            if token and self._admission.takes("token") and token != peer.token:
                # Another client's, perhaps, behind a proxy: nothing of the one before is the new one's.
                client = Client(is_secure=peer.client.is_secure, address=peer.client.address)
                self._admission.meet(client, peer.certificate)
                peer.client, peer.token = client, token
                self._admission.by_token(client, token)
        except Refused as refused:
            peer.token = b""
            return self._refuse(peer, str(refused), refused.detail)
        if peer.client.principal is NOBODY:
            return self._refuse(peer, peer.client.refusal, peer.client.refusal)
        if ended := self._admission.why_ended(peer.client, time.time()):
            self._note(peer, "client.ended", reason=ended)
            peer.client.principal, peer.client.refusal, peer.token = NOBODY, ended, b""
            return ended
        if peer.client.principal.name != before:
            self._note(peer, "client.authenticated", method="token")
        return ""

    def _refuse(self, peer: Peer, reason: str, detail: str) -> str:
        self._refusals.note("refused", reason=detail, address=peer.client.address)
        self._note(peer, "client.refused", reason=detail)
        return reason

    def _note(self, peer: Peer, event: str, **values: object) -> None:
        self._audit.note(
            event, address=peer.client.address, principal=peer.client.principal.name, **values
        )

    # --- what it wants --------------------------------------------------------------------------------------------

    async def _result(self, peer: Peer, name: str, request: messages.Request) -> object:
        limit_s = min(STORE_TIMEOUT_S, max(0.1, request.timeout_ms / 1e3))
        end_s = time.monotonic() + limit_s
        client = peer.client.principal.name
        plan = await self._turns.call(
            client, partial(self._planned, peer.client, request, end_s), limit_s
        )
        if not isinstance(plan, Plan):
            return plan
        # The log has a change before it is made: one that is made and not logged there is none.
        for event in plan.events:
            self._note(peer, "request.allowed", request=name, **event)
        return await self._turns.call(
            client, lambda _: plan.act(), max(0.1, end_s - time.monotonic())
        )

    async def _states(self, peer: Peer, request: messages.ReadStates) -> object:
        """Return what a client watches, when it has changed or the client's wait is over."""
        read_s = 0.0

        async def read() -> list[str]:
            nonlocal read_s
            began_s = time.monotonic()
            client = peer.client.principal.name
            work = partial(self._planned, peer.client, request, began_s + STORE_TIMEOUT_S)
            found = await self._turns.call(client, work, STORE_TIMEOUT_S)
            read_s += time.monotonic() - began_s
            assert isinstance(found, list)
            return found

        began_s = time.monotonic()
        found = await self.waits.states(peer.client.principal.name, request, read)
        peer.waited_s = time.monotonic() - began_s - read_s
        return found

    def _planned(
        self, client: Client, request: messages.Request, end_s: float, store: MetadataStore
    ) -> object:
        """Return the result of a request; of one that the audit log gets first, its plan. In a store's thread."""
        tree = self._tree
        if tree is None:
            tree = self._tree = NamespaceTree(store.records)
        result = result_of(store, tree, Access(client.principal, tree, end_s), request)
        if isinstance(result, Plan) and not (result.events and self._audit.is_on):
            return result.act()
        return result


def _failed(error: Error) -> Answer:
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
    return status, encode(failure_of(error))
