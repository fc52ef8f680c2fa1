"""What files say of tokens' keys, of users and of who is revoked; read anew when they change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.auth.revocations import load_revocations
from fastbk.auth.tokens import TokenKeys
from fastbk.auth.users import load_users
from fastbk.errors import ConfigError
from fastbk.observe import logs
from fastbk.tls.files import stamp_of

if TYPE_CHECKING:
    from fastbk.auth.rights import Principal
    from fastbk.server.configuration.authentication import AuthenticationSettings


class AuthFiles:
    """The content of the files of [authentication].

    Attributes:
        keys: public keys of tokens; None: there is no such file.
        tag_keys: those of tags of ledgers.
        users: the password of each user.
    """

    def __init__(self, settings: AuthenticationSettings) -> None:
        """Read them. Raises ConfigError."""
        self._settings = settings
        paths = (settings.users_file, settings.token_keys_file, settings.tag_keys_file, settings.revoked_file)
        self._paths = [path for path in paths if path]
        self.keys: TokenKeys | None = None
        self.tag_keys: TokenKeys | None = None
        self.users: dict[str, str] = {}
        self._revoked: frozenset[str] = frozenset()
        self._stamp = stamp_of(self._paths)
        self._read()

    def has_changed(self) -> bool:
        """Read files that have changed; return whether any has. Files that are not good leave things as they are."""
        stamp = stamp_of(self._paths)
        if stamp == self._stamp:
            return False
        try:
            self._read()
        except ConfigError as error:
            logs.warning("authentication.files_not_taken", reason=str(error), kept="what was read before")
            return False
        self._stamp = stamp
        return True

    def why_revoked(self, principal: Principal) -> str:
        """Return why a client is not accepted any more; "": it is."""
        if self._revoked and not self._revoked.isdisjoint(
            (principal.name, f"id:{principal.token_id}", f"key:{principal.key_id}")
        ):
            return f"{principal.name} is revoked"
        if principal.key_id and self.keys is not None and principal.key_id not in self.keys:
            return "the key of its token was removed"
        return ""

    def _read(self) -> None:
        settings = self._settings
        keys = TokenKeys.load(settings.token_keys_file) if settings.token_keys_file else None
        tag_keys = TokenKeys.load(settings.tag_keys_file) if settings.tag_keys_file else None
        users = load_users(settings.users_file, settings.users_section) if settings.users_file else {}
        revoked = load_revocations(settings.revoked_file) if settings.revoked_file else frozenset()
        self.keys, self.tag_keys, self.users, self._revoked = keys, tag_keys, users, revoked
