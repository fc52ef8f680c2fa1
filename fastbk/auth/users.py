"""The file of SASL's users and passwords: a login configuration of Java (JAAS), as Apache's bookies read it.

Bookie {
    org.apache.zookeeper.server.auth.DigestLoginModule required
        user_alice="secret"
        user_bob="other";
};
"""

from __future__ import annotations

import re

from fastbk.auth.digest_md5 import check_name
from fastbk.errors import ConfigError
from fastbk.private_files import read_secret

PREFIX = "user_"
_SKIPPED = re.compile(r"(?:\s+|//[^\n]*|#[^\n]*|/\*.*?\*/)+", re.DOTALL)
_TOKEN = re.compile(r'"((?:[^"\\\n]|\\["\\])*)"|([{};=])|([^\s{};="]+)')


def load_users(path: str, section: str) -> dict[str, str]:
    """Return the password of each user of a section. Raises ConfigError, without any password in it."""
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
        name.removeprefix(PREFIX): value for name, value in found.items() if name.startswith(PREFIX)
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
