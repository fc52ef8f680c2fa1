"""The files of [authentication]: keys of tokens and tags, users with their passwords, and who is revoked.

`AuthFiles` has their content, and reads them anew when they change. The readers of the single formats stand below it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fastbk.errors import ConfigError
from fastbk.observe import logs
from fastbk.safe_files import read_public, read_secret
from fastbk.security.digest_md5 import check_name
from fastbk.security.rights import can_be_revoked
from fastbk.security.tls import stamp_of
from fastbk.security.tokens import TokenKey, TokenKeys

if TYPE_CHECKING:
    from fastbk.security.rights import Principal
    from fastbk.security.settings import AuthenticationSettings


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


def check_files(settings: AuthenticationSettings) -> None:
    """Refuse files that are not good. Raises ConfigError."""
    if settings.token_keys_file:
        TokenKeys.load(settings.token_keys_file)
    if settings.tag_keys_file:
        tag_keys = TokenKeys.load(settings.tag_keys_file)
        if TokenKey.load(settings.tag_key_file).key_id not in tag_keys:
            raise ConfigError(
                f"{settings.tag_keys_file} does not have the key of {settings.tag_key_file}"
            )
    if settings.users_file:
        load_users(settings.users_file, settings.users_section)
    if settings.revoked_file:
        load_revocations(settings.revoked_file)


_USER_PREFIX = "user_"
_SKIPPED = re.compile(r"(?:\s+|//[^\n]*|#[^\n]*|/\*.*?\*/)+", re.DOTALL)
_TOKEN = re.compile(r'"((?:[^"\\\n]|\\["\\])*)"|([{};=])|([^\s{};="]+)')


def load_users(path: str, section: str) -> dict[str, str]:
    """Return the password of each user of a section. Raises ConfigError, without any password in it.

    The file is a login configuration of Java (JAAS), as Apache's bookies read it:

        Bookie {
            org.apache.zookeeper.server.auth.DigestLoginModule required
                user_alice="secret"
                user_bob="other";
        };
    """
    return users_of(read_secret(path).decode("utf-8", "replace"), section, path)


def users_of(text: str, section: str, path: str) -> dict[str, str]:
    """Return the password of each user of a section of a login configuration. Raises ConfigError."""
    tokens = _Tokens(text, path)
    found: dict[str, str] | None = None
    while (name := tokens.word()) is not None:
        options = _section(tokens)
        if name == section:
            found = options
    if found is None:
        raise ConfigError(f"{path} has no section {section}")
    users = {
        name.removeprefix(_USER_PREFIX): value
        for name, value in found.items()
        if name.startswith(_USER_PREFIX)
    }
    if not users:
        raise ConfigError(f'{path}: section {section} names no user, such as user_alice="password"')
    for user in users:
        check_name(user)
    return users


def _section(tokens: _Tokens) -> dict[str, str]:
    options: dict[str, str] = {}
    tokens.expect("{")
    while not tokens.takes("}"):
        tokens.need_word("a login module's class")
        tokens.need_word("a flag such as `required`")
        while not tokens.takes(";"):
            name = tokens.need_word("an option or `;`")
            tokens.expect("=")
            options[name] = tokens.need_value()
    tokens.expect(";")
    return options


class _Tokens:
    """What a login configuration consists of: words, quoted values, and `{ } ; =`."""

    def __init__(self, text: str, path: str) -> None:
        self._text, self._path, self._at = text, path, 0

    def _next(self) -> re.Match[str] | None:
        if skipped := _SKIPPED.match(self._text, self._at):
            self._at = skipped.end()
        if self._at == len(self._text):
            return None
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            raise self._error("a word, a quoted value or one of `{ } ; =`")
        return found

    def word(self) -> str | None:
        """Take the next token, a word; None: there is none left."""
        found = self._next()
        if found is None:
            return None
        if found[3] is None:
            raise self._error("a word")
        self._at = found.end()
        return found[3]

    def need_word(self, what: str) -> str:
        """Take a word."""
        found = self._next()
        if found is None or found[3] is None:
            raise self._error(what)
        self._at = found.end()
        return found[3]

    def need_value(self) -> str:
        """Take a word or a quoted value."""
        found = self._next()
        if found is None or found[2] is not None:
            raise self._error("a value")
        self._at = found.end()
        return found[3] if found[3] is not None else re.sub(r"\\(.)", r"\1", found[1])

    def takes(self, sign: str) -> bool:
        """Take this sign if it is the next token."""
        found = self._next()
        if found is None or found[2] != sign:
            return False
        self._at = found.end()
        return True

    def expect(self, sign: str) -> None:
        """Take this sign."""
        if not self.takes(sign):
            raise self._error(f"`{sign}`")

    def _error(self, expected: str) -> ConfigError:
        # What stands there may be a password.
        line = self._text.count("\n", 0, self._at) + 1
        return ConfigError(f"{self._path}:{line}: expected {expected}")


REVOCABLE_KINDS = ("user", "token", "certificate", "id", "key")
_COMMENT = re.compile(r"(?:^|\s)#.*")


def read_revocations(path: str) -> tuple[frozenset[str], str]:
    """Return the good lines of a file of who is revoked, and what is wrong with the first other one; "": nothing.

    A line is `token:NAME`, and so on. `#` begins a comment at a line's start, or behind a blank: `token:team#1` is
    whole. So a name that begins or ends with a blank, has " #" in it, or what is not printable, could not be revoked.

    Raises ConfigError: it cannot be read.
    """
    found, wrong = set(), ""
    for number, line in enumerate(read_public(path).decode("utf-8", "replace").splitlines(), 1):
        entry = _COMMENT.sub("", line).strip()
        kind, separator, name = entry.partition(":")
        if kind in REVOCABLE_KINDS and separator and name and can_be_revoked(name):
            found.add(entry)
        elif entry:
            wrong = (
                wrong
                or f"{path}:{number}: must be {', '.join(f'{one}:NAME' for one in REVOCABLE_KINDS)}"
            )
    return frozenset(found), wrong


def load_revocations(path: str) -> frozenset[str]:
    """Return the lines of a file that has to be good. Raises ConfigError."""
    revocations, wrong = read_revocations(path)
    if wrong:
        raise ConfigError(wrong)
    return revocations
