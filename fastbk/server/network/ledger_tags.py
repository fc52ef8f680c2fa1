"""Clients that are limited to namespaces: the tags of ledgers that they show (INV-N4), and those that they ask for.

INV-N4: of a client that is limited to namespaces C serves only requests for ledgers that it has shown a tag for on that
connection, signed by a key of `tag_keys_file`, for this cluster, with a namespace that the client may work with.

No add waits for metadata: a client shows a tag in front of its first request for a ledger, and that is checked here.
Only who has no tag yet waits: the supervisor (`supervision/metadata_services.py`) reads the metadata and signs one.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from fastbk.model.ids import ID_MAX
from fastbk.native.worker import REFUSED_RIGHTS
from fastbk.security.tokens import TokenError, verify_tag
from fastbk.wire.messages import TAG, ErrorReply, Hello, encode_reply
from fastbk.wire.statuses import Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.native.worker import Worker
    from fastbk.security.admission import Admission, Client
    from fastbk.server.child import Offer
    from fastbk.server.network.audit_trail import AuditTrail

LEDGERS_MAX = 1024
"""Whose tags the supervisor was asked for and has not sent yet."""
CLIENTS_MAX = 1024
"""That wait for one of them."""
WANTED_MAX = LEDGERS_MAX // 2
"""That one connection waits for: it keeps no other from asking, and what its answers cost is bounded."""
DIGITS_MAX = 19
ANSWER_S_MAX = 5.0
"""A request without answer is sent again after so long, if somebody asks again."""


class _Asked(msgspec.Struct):
    """A tag that the supervisor was asked for, and who waits for it: clients and the ids of their requests."""

    at_s: float
    waiting: list[tuple[Client, int]] = msgspec.field(default_factory=list)


class LedgerTags:
    """One worker's."""

    def __init__(
        self,
        worker: Worker,
        admission: Admission,
        audit: AuditTrail,
        send: Offer,
        reply: Callable[[Client, Callable[[], bytes]], None],
        accept: Callable[[int, bytes], bytes],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask for nothing yet.

        Args:
            send: reaches the supervisor.
            reply: has an answer made and sent to a client, if it still has its connection.
            accept: returns the reply to a hello, given the request's id and what it gives the client.
        """
        self._worker = worker
        self._admission = admission
        self._audit = audit
        self._send = send
        self._reply = reply
        self._accept = accept
        self._clock_s = clock_s
        self._asked: dict[int, _Asked] = {}

    def answer(self, request_id: int, hello: Hello, client: Client) -> bytes:
        """Return the answer to a tag that is shown or asked for; b"": it comes later, by `reply`."""
        if client.principal.namespaces is None:
            return self._accept(request_id, b"")  # it needs none
        if hello.auth_method == TAG:
            return self._take(request_id, hello.auth_payload, client)
        return self._ask(request_id, hello.auth_payload, client)

    def known(self, message: dict[str, Any]) -> None:
        """Answer those who wait for a ledger's tag with what the supervisor said."""
        ledger_id = int(message["ledger"])
        for client, request_id in self._take_waiting(ledger_id):
            self._reply(client, partial(self._answer_late, request_id, client, ledger_id, message))

    def _answer_late(
        self, request_id: int, client: Client, ledger_id: int, message: dict[str, Any]
    ) -> bytes:
        if "tag" not in message:
            status = Status.NO_LEDGER if message.get("is_missing") else Status.NOT_READY
            return _error(request_id, status, f"ledger {ledger_id}: {message.get('reason')}")
        if not client.principal.is_allowed(message["namespace"]):
            return self._refuse(request_id, client, ledger_id)
        return self._accept(request_id, message["tag"].encode())

    def _take(self, request_id: int, payload: bytes, client: Client) -> bytes:
        """Have C serve a ledger whose tag is good."""
        keys = self._admission.files.tag_keys
        if keys is None:
            return _error(request_id, Status.UNSUPPORTED, "this bookie has no keys of tags")
        try:
            tag = verify_tag(keys, payload, self._admission.audience)
        except TokenError as error:
            return self._refuse(
                request_id, client, None, f"the tag of a ledger is not accepted: {error}"
            )
        if not client.principal.is_allowed(tag.namespace):
            return self._refuse(request_id, client, tag.ledger_id)
        client.tag_key_ids.add(tag.key_id)
        self._worker.grant(client.slot, tag.ledger_id)
        return self._accept(request_id, b"")

    def _ask(self, request_id: int, payload: bytes, client: Client) -> bytes:
        if not self._admission.signs_tags:
            return _error(
                request_id,
                Status.UNSUPPORTED,
                "this bookie signs no tags ([authentication] tag_key_file)",
            )
        if (
            not payload.isdigit()
            or len(payload) > DIGITS_MAX
            or (ledger_id := int(payload)) > ID_MAX
        ):
            return _error(
                request_id, Status.BAD_REQUEST, "a tag is asked for by the ledger's id, in digits"
            )
        if client.tags_wanted >= WANTED_MAX:
            reason = f"this connection waits for {WANTED_MAX} tags: try again"
            return _error(request_id, Status.TOO_MANY_REQUESTS, reason)
        now_s = self._clock_s()
        asked = self._asked.get(ledger_id)
        if asked is None or now_s - asked.at_s > ANSWER_S_MAX:
            if not self._has_room(now_s) or not self._send(
                {"type": "tag_wanted", "ledger": ledger_id}
            ):
                return _error(
                    request_id, Status.TOO_MANY_REQUESTS, "too many clients ask for tags: try again"
                )
            self._take_waiting(ledger_id)  # those who asked before have given up
            asked = self._asked[ledger_id] = _Asked(now_s)
        if len(asked.waiting) >= CLIENTS_MAX:
            return _error(
                request_id, Status.TOO_MANY_REQUESTS, "too many clients ask for this tag: try again"
            )
        asked.waiting.append((client, request_id))
        client.tags_wanted += 1
        return b""

    def _take_waiting(self, ledger_id: int) -> list[tuple[Client, int]]:
        asked = self._asked.pop(ledger_id, None)
        waiting = [] if asked is None else asked.waiting
        for client, _ in waiting:
            client.tags_wanted -= 1
        return waiting

    def _has_room(self, now_s: float) -> bool:
        if len(self._asked) >= LEDGERS_MAX:
            for late in [
                key for key, one in self._asked.items() if now_s - one.at_s > ANSWER_S_MAX
            ]:
                self._take_waiting(late)
        return len(self._asked) < LEDGERS_MAX

    def _refuse(
        self, request_id: int, client: Client, ledger_id: int | None, reason: str = ""
    ) -> bytes:
        reason = (
            reason or f"ledger {ledger_id} is of none of the namespaces of {client.principal.name}"
        )
        self._worker.count(REFUSED_RIGHTS)
        self._audit.note(
            "request.denied", client.address, client.principal.name, operation="tag", ledger=ledger_id,
            verdict="no right", reason=reason,
        )  # fmt: skip
        return _error(request_id, Status.FORBIDDEN, reason)


def _error(request_id: int, status: Status, message: str) -> bytes:
    return encode_reply(request_id, status, ErrorReply(message=message))
