"""What files say of tokens' keys, of users and of who is revoked; read anew when they change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.auth.revocations import load_revocations, read_revocations
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
        paths = (
            settings.users_file,
            settings.token_keys_file,
            settings.tag_keys_file,
            settings.revoked_file,
        )
        self._paths = [path for path in paths if path]
        self.keys: TokenKeys | None = None
        self.tag_keys: TokenKeys | None = None
        self.users: dict[str, str] = {}
        self._revoked: frozenset[str] = frozenset()
        self._stamp = stamp_of(self._paths)
        self._read_keys()
        self._read_tag_keys()
        self._read_users()
        if settings.revoked_file:
            self._revoked = load_revocations(settings.revoked_file)

    def has_changed(self) -> bool:
        """Read files that have changed; return whether any has.

        Each counts by itself: a file that is not good leaves what it said before, and no other file waits for it.
        """
        stamp = stamp_of(self._paths)
        if stamp == self._stamp:
            return False
        wrong = []
        for read in (self._read_keys, self._read_tag_keys, self._read_users, self._read_revoked):
            try:
                read()
            except Exception as error:  # noqa: BLE001 - whatever half a file leads to: it ends no worker
                wrong.append(
                    str(error) if isinstance(error, ConfigError) else f"{read.__name__}: {error!r}"
                )
        if wrong:
            logs.warning(
                "authentication.files_not_taken",
                reason="; ".join(wrong),
                kept="what was read before",
            )
        else:
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

    def _read_keys(self) -> None:
        if self._settings.token_keys_file:
            self.keys = TokenKeys.load(self._settings.token_keys_file)

    def _read_tag_keys(self) -> None:
        if self._settings.tag_keys_file:
            self.tag_keys = TokenKeys.load(self._settings.tag_keys_file)

    def _read_users(self) -> None:
        if self._settings.users_file:
            self.users = load_users(self._settings.users_file, self._settings.users_section)

    def _read_revoked(self) -> None:
        """Take a file's good lines. While one is wrong, nobody who was revoked before comes back."""
        if not self._settings.revoked_file:
            return
        found, wrong = read_revocations(self._settings.revoked_file)
        self._revoked = found | self._revoked if wrong else found
        if wrong:
            raise ConfigError(f"{wrong}; its other lines count")
