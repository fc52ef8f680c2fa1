"""The client's tags: with a token that is limited to namespaces it shows one for each ledger that it works with.

A bookie signs a tag when it is asked, by what metadata says of the ledger. That takes place when the ledger is made or
opened. From then on the client has the tag, and shows it on each connection in front of its first request for the
ledger: so nothing that is appended or read waits for metadata, not on a new connection either.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.errors import Error, NotEnoughBookies, Unauthorized
from fastbk.native import client_codec as codec
from fastbk.observe.library_log import LibraryLog
from fastbk.security.rights import is_allowed
from fastbk.security.tokens import namespaces_of
from fastbk.wire.messages import (
    TAG,
    TAG_WANTED,
    TAGS_MAX,
    Hello,
    decode_hello_reply,
    encode_hello,
    error_text,
)
from fastbk.wire.statuses import Status, status_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from fastbk.client.connection import Answer, Connection
    from fastbk.model.ids import BookieId, LedgerId
    from fastbk.model.ledger import LedgerMetadata
    from fastbk.security.credentials import Credentials

REFRESH_INTERVAL_S = 86_400.0
"""How often tags are renewed, beside with each new token: a bookie takes no old ones (`TAG_AGE_S_MAX`)."""
SIGN_AT_ONCE_MAX = 256
"""Tags that a bookie is asked for at once; it refuses who asks for many more on one connection."""
_log = LibraryLog("fastbk.client")


@dataclass(slots=True, weakref_slot=True, eq=False)
class LedgerTag:
    """A ledger's tag as this client has it."""

    ledger_id: LedgerId
    bookies: tuple[BookieId, ...]
    """That may be asked for it."""
    value: bytes = b""
    """Empty: none of them asks for tags."""

    def add_bookies(self, ensemble: Sequence[BookieId]) -> None:
        """Have it signed anew by these first: those that were replaced may be gone."""
        self.bookies = tuple(dict.fromkeys((*ensemble, *self.bookies)))


def show(connection: Connection, tag: LedgerTag, request_id: int) -> None:
    """Show a bookie a ledger's tag, unless it has seen it on this connection: requests may follow at once."""
    shown = connection.tags_shown
    if tag.ledger_id in shown or not tag.value:
        return
    if len(shown) == TAGS_MAX:  # the bookie forgets the same one
        del shown[next(iter(shown))]
    shown[tag.ledger_id] = request_id

    def on_outcome(outcome: Answer | Error) -> None:
        if isinstance(outcome, Error) or outcome.status == Status.OK:
            return
        if shown.get(tag.ledger_id) == request_id:  # else it was shown again since
            del shown[tag.ledger_id]
        reason = f"{status_name(outcome.status)} {error_text(outcome.frame)}"
        _log.warning(
            "tag.refused", ledger=tag.ledger_id, bookie=connection.bookie_id, reason=reason
        )

    frame = encode_hello(request_id, Hello(auth_method=TAG, auth_payload=tag.value))
    connection.send_request(request_id, frame, on_outcome)


class LedgerTags:
    """The tags of one client; without a token that is limited to namespaces it does nothing."""

    def __init__(
        self,
        credentials: Credentials | None,
        renewed_token: Callable[[], bytes],
        request: Callable[[BookieId, Callable[[int], bytes]], Awaitable[Answer]],
    ) -> None:
        """`renewed_token`: returns the token once it has been renewed. `request`: sends a bookie what is encoded."""
        self._credentials = credentials
        self._renewed_token = renewed_token
        self._request = request
        self._is_closed = False
        self._room: defaultdict[BookieId, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(SIGN_AT_ONCE_MAX)
        )
        self._limit: tuple[bytes, tuple[str, ...] | None] | None = None
        """The renewed token, and what it is limited to."""
        self._used: weakref.WeakSet[LedgerTag] = weakref.WeakSet()
        self._refreshing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def _namespaces(self) -> tuple[str, ...] | None:
        if self._credentials is None or not self._credentials.token_file:
            return None
        renewed = self._renewed_token()
        if self._limit is None or self._limit[0] != renewed:
            self._limit = (renewed, namespaces_of(renewed or self._credentials.token()))
        return self._limit[1]

    def check(self, namespace: str) -> None:
        """Refuse to make a ledger that this client could not work with. Raises Unauthorized."""
        if not is_allowed(self._namespaces, namespace):
            raise Unauthorized(
                f"the token is limited to namespaces ({', '.join(self._namespaces or ())}), and the ledger would be of"
                f" {namespace!r}: set connect(namespace=...), or use a stream of such a namespace"
            )

    async def get(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> LedgerTag | None:
        """Return a ledger's tag; None: this client needs none.

        Raises Unauthorized for a ledger of another namespace, NotEnoughBookies if none of the bookies signs it.
        """
        if self._namespaces is None:
            return None
        bookies = (
            bookie_id
            for fragment in reversed(metadata.fragments)
            for bookie_id in fragment.ensemble
        )
        tag = LedgerTag(ledger_id, tuple(dict.fromkeys(bookies)))
        await self._sign(tag)
        self._used.add(tag)
        if self._timer is None:
            self._look_later()
        return tag

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(REFRESH_INTERVAL_S, self._look)

    def _look(self) -> None:
        self._look_later()
        self.refresh()

    def refresh(self) -> None:
        """Have all tags that are in use signed anew; until then the old ones are shown."""
        if self._refreshing is None and self._used and not self._is_closed:
            self._refreshing = asyncio.get_running_loop().create_task(
                self._refresh(), name="fastbk refresh tags"
            )

    def close(self) -> None:
        """Ask for nothing more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._refreshing is not None:
            self._refreshing.cancel()

    async def _refresh(self) -> None:
        try:
            for tag in list(self._used):
                try:
                    await self._sign(tag)
                except Error as error:
                    _log.warning("tag.not_renewed", ledger=tag.ledger_id, reason=str(error))
        finally:
            self._refreshing = None

    async def _sign(self, tag: LedgerTag) -> None:
        """Ask the bookies in turn; one that is away, or signs no tags, leaves it to the next."""

        def build(request_id: int) -> bytes:
            return encode_hello(
                request_id, Hello(auth_method=TAG_WANTED, auth_payload=b"%d" % tag.ledger_id)
            )

        reasons: dict[BookieId, str] = {}
        is_needed = True
        for bookie_id in tag.bookies:
            try:
                async with self._room[bookie_id]:
                    answer = await self._request(bookie_id, build)
            except Error as error:
                reasons[bookie_id] = str(error)
                continue
            if answer.kind == codec.HELLO_REPLY and answer.status == Status.OK:
                if signed := decode_hello_reply(answer.frame).auth_payload:
                    tag.value = signed
                    return
                is_needed = False  # here; another one may authenticate its clients
                continue
            reasons[bookie_id] = (
                error_text(answer.frame) if answer.kind == codec.ERROR_REPLY else ""
            )
            if answer.status == Status.FORBIDDEN:
                raise Unauthorized(reasons[bookie_id], ledger_id=tag.ledger_id)
        if not is_needed:
            return
        raise NotEnoughBookies(
            f"ledger {tag.ledger_id}: the token is limited to namespaces, and no bookie signs a tag for this ledger",
            ledger_id=tag.ledger_id,
            replicas=reasons,
        )
