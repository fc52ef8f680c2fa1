"""Who a user of the console is: the holder of a signed token, or anybody on this machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastbk.errors import ConfigError
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
    """The rules of one console.

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
