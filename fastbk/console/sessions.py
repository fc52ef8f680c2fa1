"""Users of the console: who they are and what they may do, their sessions, and how often somebody may try to sign in.

A session is a random name in a cookie. The token stays in this process's memory: a page never gets it, and a console
that ends forgets all. A session ends with its token, when the token is revoked, after `IDLE_S` without a request, and
when the user signs out.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.errors import ConfigError
from fastbk.limits import RateLimit
from fastbk.security.auth_files import AuthFiles
from fastbk.security.rights import ALL_RIGHTS, Principal, Right, names_of
from fastbk.security.settings import AuthenticationSettings
from fastbk.security.tokens import PAGES, TokenError

if TYPE_CHECKING:
    from collections.abc import Callable

LOCAL = Principal(name="local", rights=ALL_RIGHTS)
"""Everybody, where the console has no keys of tokens. It then listens on loopback only."""
REFRESH_S = 10.0
"""How often files of keys and revocations are checked for changes."""


class Access:
    """Who a user of one console is: the holder of a signed token, or anybody on this machine.

    Attributes:
        is_open: nobody signs in.
    """

    def __init__(
        self,
        audience: str = "",
        token_keys_file: str = "",
        revoked_file: str = "",
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        """Read the files. `audience`: the cluster's id, which tokens name. Raises ConfigError."""
        if revoked_file and not token_keys_file:
            raise ConfigError("--revoked needs --token-keys: nobody has a name without them")
        self.is_open = not token_keys_file
        self._audience = audience
        self._clock_s = clock_s
        self._files: AuthFiles | None = None
        if token_keys_file:
            settings = AuthenticationSettings(
                methods=("token",), token_keys_file=token_keys_file, revoked_file=revoked_file
            )
            self._files = AuthFiles(settings)
        self._refreshed_s = clock_s()

    def sign_in(self, token: bytes) -> Principal:
        """Return whose token it is. Raises TokenError, whose text does not have the token."""
        self._refresh()
        if self._files is None or self._files.keys is None:
            raise TokenError("this console has no keys of tokens")
        principal = self._files.keys.verify(token, self._audience, self._clock_s, PAGES)
        if reason := self._files.why_revoked(principal):
            raise TokenError(reason)
        return principal

    def why_ended(self, principal: Principal) -> str:
        """Return why a session of this user ends now; "": it goes on."""
        self._refresh()
        if principal.ends_at_s is not None and principal.ends_at_s <= self._clock_s():
            return "your token has expired"
        return "" if self._files is None else self._files.why_revoked(principal)

    def _refresh(self) -> None:
        now_s = self._clock_s()
        if self._files is not None and now_s - self._refreshed_s >= REFRESH_S:
            self._refreshed_s = now_s
            self._files.has_changed()


def may_read(principal: Principal, namespace: str) -> bool:
    """Return whether a user may read records of a namespace; "": entries of ledgers without one."""
    return bool(principal.rights & Right.READ) and principal.is_allowed(namespace)


def why_not_change(principal: Principal, namespace: str | None, right: Right = Right.ADMIN) -> str:
    """Return why a user may not change something; "": allowed. `namespace`: it is in; None: it is the whole cluster's.

    A limit to namespaces excludes what belongs to all: bookies, and healing.
    """
    if not principal.rights & right:
        return f"{principal.name} has no right to do that: it needs a token with the operation `{names_of(right)}`"
    if namespace is None:
        if principal.namespaces is None:
            return ""
        return f"the token of {principal.name} is limited to namespaces, and this concerns the whole cluster"
    if not principal.is_allowed(namespace):
        return f"the token of {principal.name} is not for the namespace {namespace or '(the root)'}"
    return ""


if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.security.rights import Principal

SESSIONS_MAX = 1000
"""Beyond it the one that was used longest ago ends."""
IDLE_S = 3600.0
LOGINS_PER_S = 5.0
"""Rate for all addresses together; a token takes 0.2 ms to verify."""
LOGINS_PER_S_OF_ONE = 0.5
LOGIN_BURST_S = 10.0
ADDRESSES_MAX = 1000
"""Whose tries are counted; beyond it the one that tried longest ago is forgotten."""
_KEY_CHARACTERS = 43
"""Length of what `secrets.token_urlsafe(32)` returns."""


@dataclass(slots=True)
class Session:
    """What one browser's requests are done as.

    Attributes:
        key: what its cookie holds.
        token: of the user, for the bookies' pages; empty on a console without keys.
        used_s: when its last request came.
    """

    key: str
    principal: Principal
    token: bytes = b""
    used_s: float = 0.0


class Sessions:
    """All sessions of one console. Nothing of it is kept on a disk."""

    def __init__(self, access: Access, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._access = access
        self._clock_s = clock_s
        self._secret = secrets.token_bytes(32)
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, principal: Principal, token: bytes) -> Session:
        """Begin the session of a user who has just shown this token."""
        if len(self._sessions) >= SESSIONS_MAX:
            self._sessions.popitem(last=False)
        session = Session(secrets.token_urlsafe(32), principal, token, self._clock_s())
        self._sessions[session.key] = session
        return session

    def find(self, key: str) -> tuple[Session | None, str]:
        """Return the session of a cookie, else why there is none; "": none was known.

        A console without keys stores none: each browser gets a name, and all are LOCAL.
        """
        if self._access.is_open:
            return Session(
                key if len(key) == _KEY_CHARACTERS else secrets.token_urlsafe(32), LOCAL
            ), ""
        session = self._sessions.get(key)
        if session is None:
            return None, ""
        now_s = self._clock_s()
        reason = self._access.why_ended(session.principal)
        if now_s - session.used_s > IDLE_S:
            reason = "you did nothing for an hour"
        if reason:
            self.end(key)
            return None, f"{reason}: sign in again"
        session.used_s = now_s
        self._sessions.move_to_end(key)
        return session, ""

    def end(self, key: str) -> None:
        """End a session, if there is one of this name."""
        self._sessions.pop(key, None)

    def form_key(self, session: Session) -> str:
        """Return what each form of a session has to bring: no other site can know it."""
        return hmac.new(self._secret, session.key.encode(), hashlib.sha256).hexdigest()

    def is_form_key(self, session: Session, given: str) -> bool:
        """Return whether a form is of this session."""
        return hmac.compare_digest(self.form_key(session).encode(), given.encode())


class LoginLimit:
    """Bounds tries to sign in: by address, and in all."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._all = _limit(LOGINS_PER_S, clock_s)
        self._of: OrderedDict[str, RateLimit] = OrderedDict()

    def wait_s(self, address: str) -> float:
        """Count a try from an address; return 0, or the seconds until another is allowed: then it does not count."""
        one = self._of.get(address)
        if one is None:
            if len(self._of) >= ADDRESSES_MAX:
                self._of.popitem(last=False)
            one = self._of[address] = _limit(LOGINS_PER_S_OF_ONE, self._clock_s)
        self._of.move_to_end(address)
        wait_s = max(self._all.wait_s(), one.wait_s())
        if wait_s > 0:
            return wait_s
        self._all.take(1.0)
        one.take(1.0)
        return 0.0


def _limit(per_s: float, clock_s: Callable[[], float]) -> RateLimit:
    """Return a limit that begins with its whole burst."""
    limit = RateLimit(per_s, clock_s=clock_s, burst_s=LOGIN_BURST_S)
    limit.take(-LOGIN_BURST_S * per_s)
    return limit
