"""Taking secrets out of text and JSON that leaves the cluster. Pure, but for `known_secrets`, which reads files.

Two ways beside each other. What is known as a secret, because a file of secrets or a variable holds it, is removed
wherever it stands. What looks like one (a private key, a signed token, the value of a `password=`) is removed without
being known. Settings do not go through here alone: `allowed_settings` names those that may leave.
"""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING

import msgspec

from fastbk.server.configuration.bookie_config import BookieConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

REMOVED = "(removed)"
LEFT_OUT = "(left out)"
SECRET_BYTES_MAX = 1 << 20
SECRET_CHARACTERS_MIN = 4
"""A shorter content of a file is too common in text to be removed from it."""
PIECE_CHARACTERS_MIN = 12
QUOTED_CHARACTERS_MIN = 8

_NAMES = r"pass(?:word|wd|phrase)?|secret|token|credentials?|authorization|api_?key|private_?key"
_SENSITIVE = re.compile(rf"(?:^|[_\-.])(?:{_NAMES})s?$|masterKey$", re.IGNORECASE)
_PATTERNS = (
    (
        re.compile(
            r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)",
            re.DOTALL,
        ),
        "",
    ),
    (re.compile(r"\beyJ[\w-]{4,}\.[\w-]{4,}(?:\.[\w-]*)?"), ""),
    (re.compile(r"(?<=://)[^\s/@:]+:[^\s/@]+(?=@)"), ""),
    (re.compile(r"(?i)(\bBearer\s+)[\w.~+/=-]{8,}"), r"\1"),
    (
        # What stands before a "_" is looked for from the beginning of a word only: a line may be one long word.
        re.compile(
            rf"(?i)((?:(?<!\w)\w*_|(?<![A-Za-z]))(?:{_NAMES})\\?[\"']?\s*[=:]\s*\\?[\"']?)[^\s,;\"'\\&)}}]+"
        ),
        r"\1",
    ),
    (re.compile(r"(\bdigest:[^:\s]+:)[A-Za-z0-9+/]{27}="), r"\1"),
)
"""What looks like a secret, and what stays of it."""


class Redactor:
    """Removes secrets. `known`: contents of files of secrets, whole or in parts."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        found = sorted(
            {one for one in known if len(one) >= SECRET_CHARACTERS_MIN}, key=len, reverse=True
        )
        self._known = re.compile("|".join(map(re.escape, found))) if found else None

    def text(self, text: str) -> str:
        """Return text without secrets."""
        if self._known is not None:
            text = self._known.sub(REMOVED, text)
        for pattern, kept in _PATTERNS:
            text = pattern.sub(kept + REMOVED, text)
        return text

    def value(self, value: object) -> object:
        """Return what JSON holds without secrets: also not in the names of an object, nor under telling names."""
        if isinstance(value, dict):
            return {
                self.text(str(name)): REMOVED
                if one and self._is_hidden(str(name), one)
                else self.value(one)
                for name, one in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.value(one) for one in value]
        return self.text(value) if isinstance(value, str) else value

    @staticmethod
    def _is_hidden(name: str, value: object) -> bool:
        return is_sensitive(name) and not isinstance(value, bool | int | float)

    def line(self, line: str) -> str:
        """Return one line of a log, which may be JSON, without secrets."""
        if line.startswith("{"):
            try:
                return msgspec.json.encode(self.value(msgspec.json.decode(line))).decode()
            except (ValueError, RecursionError):
                pass
        return self.text(line)


def is_sensitive(name: str) -> bool:
    """Return whether a value under this name may be a secret; `token_file`, a path, is none."""
    return bool(_SENSITIVE.search(name))


def known_secrets(environment: Mapping[str, str], files: Iterable[str]) -> set[str]:
    """Return the secrets in variables, and in files of secrets; one that cannot be read is left out.

    Of a file the whole content counts, and its long pieces: keys have several lines, and passwords stand in quotes.
    """
    found = {value for name, value in environment.items() if value and is_sensitive(name)}
    for path in files:
        try:
            with open(path, "rb") as file:
                content = file.read(SECRET_BYTES_MAX).decode("utf-8", "replace").strip()
        except OSError:
            continue
        found.add(content)
        found |= {
            part
            for part in re.split(r"[\s\"',:;{}\[\]]+", content)
            if len(part) >= PIECE_CHARACTERS_MIN
        }
        found |= {
            one
            for one in re.findall(r"[\"']([^\"'\n]+)[\"']", content)
            if len(one) >= QUOTED_CHARACTERS_MIN
        }
    # Paths and names of settings stand in files of secrets as well; they are needed to understand the rest.
    return {
        one
        for one in found
        if not one.startswith("/") and "PRIVATE KEY" not in one and one not in _KNOWN_NAMES
    }


_STRINGS = frozenset((
    "bookie.listen", "bookie.id", "bookie.advertised", "bookie.location", "bookie.labels", "bookie.processors",
    "metadata.uri", "metadata.zookeeper_file", "http.listen", "http.changing_roles", "http.allowed_hosts",
    "audit.file", "tls.certificate_file", "tls.key_file", "tls.key_password_file", "tls.ca_file",
    "tls.ca_password_file", "tls.authorized_roles", "authentication.methods", "authentication.users_file",
    "authentication.users_section", "authentication.token_keys_file", "authentication.tag_keys_file",
    "authentication.tag_key_file", "authentication.token_audience", "authentication.revoked_file",
    "authorization.readers", "authorization.writers", "authorization.healers", "authorization.admins",
    "journal.directory", "journal.directories", "journal.backend", "journal.sync", "ledgers.directory",
    "ledgers.directories",
))  # fmt: skip
"""Settings whose text may leave. A new one may not, until it stands here."""


def allowed_settings(config: BookieConfig) -> dict[str, object]:
    """Return a bookie's settings by `section.name`: numbers, choices and texts that may leave; others are named."""
    found: dict[str, object] = {}
    for section, fields in msgspec.to_builtins(config).items():
        for name, value in fields.items():
            found[f"{section}.{name}"] = allowed_setting(f"{section}.{name}", value)
    return found


def allowed_setting(name: str, value: object) -> object:
    """Return a setting's value if it may leave, by its name in the form `section.name`."""
    return (
        value
        if isinstance(value, bool | int | float) or not value or name in _STRINGS
        else LEFT_OUT
    )


_KNOWN_NAMES = frozenset(
    field.name
    for section in msgspec.structs.fields(BookieConfig)
    for field in msgspec.structs.fields(section.type)
)


def files_in(path: str) -> list[str]:
    """Return the files of secrets that a TOML file names, as ZooKeeper's does, itself included."""
    try:
        with open(path, "rb") as file:
            given = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        given = {}
    return [
        path,
        *(
            str(given[name])
            for name in ("password_file", "key_file", "key_password_file")
            if given.get(name)
        ),
    ]


def secret_files(config: BookieConfig) -> list[str]:
    """Return the paths of the files with secrets that a bookie's settings name."""
    tls, authentication = config.tls, config.authentication
    names = (
        tls.key_file, tls.key_password_file, tls.ca_password_file, authentication.users_file,
        authentication.tag_key_file,
    )  # fmt: skip
    zookeeper = config.metadata.zookeeper_file
    return [*(name for name in names if name), *(files_in(zookeeper) if zookeeper else ())]
