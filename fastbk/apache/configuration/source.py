"""Where Apache's keys come from: a `.conf` file, and `BK_` environment variables that go before it.

Apache's container scripts write `BK_key` over the line of that key before the bookie starts, so its value is read by
the file's own rules: lists, escapes and variables. They drop keys that the file does not mention;
here those count, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.apache.configuration import properties
from fastbk.errors import ConfigError, os_errors_as

if TYPE_CHECKING:
    from collections.abc import Mapping

SUFFIXES = (".conf", ".properties")
PREFIX = "BK_"

_INTEGER = re.compile("0[xX][0-9A-Fa-f]+|0[bB][01]+|[+-]?[0-9]+")
_RATIO = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[fFdD]?")
_WORDS = {
    **dict.fromkeys(("true", "t", "yes", "y", "on", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "off", "0"), False),
}


def is_apache(path: Path) -> bool:
    """Return whether the file's name says that it is in Apache's format."""
    return path.suffix in SUFFIXES


def is_apache_file(path: Path) -> bool:
    """Return whether a file under another name says something that Apache's files say."""
    try:
        found = properties.parse(path.read_text("iso-8859-1"), lambda _: None).found
    except (OSError, ConfigError):
        return False
    return not {"ledgerDirectories", "bookiePort", "metadataServiceUri", "zkServers"}.isdisjoint(
        found
    )


def read(path: Path, environment: Mapping[str, str]) -> KeySource:
    """Return what the file at `path` and the environment say. Raises ConfigError, which names the file."""

    def included(name: str) -> str | None:
        try:
            return (path.parent / name).read_text("iso-8859-1")
        except OSError:
            return None

    with os_errors_as(ConfigError, f"{path}: cannot read it"):
        text = path.read_bytes().decode("iso-8859-1")
    try:
        found = properties.parse(text, included)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    variables = {
        name.removeprefix(PREFIX): value
        for name, value in sorted(environment.items())
        if name.startswith(PREFIX) and len(name) > len(PREFIX)
    }
    for key, value in variables.items():
        try:
            found.found[key] = properties.Property(properties.value_list(value), 0)
        except ValueError as error:
            raise ConfigError(f"{PREFIX}{key}: {error}") from None
    return KeySource(path, found, environment)


@dataclass(frozen=True, slots=True)
class KeySource:
    """All keys and their values."""

    path: Path
    properties: properties.Properties
    environment: Mapping[str, str]

    def names(self) -> list[str]:
        """Return all keys, in the order in which they were met."""
        return list(self.properties.found)

    def origin(self, key: str) -> str:
        """Return where a key that is there comes from: a line of the file or a variable."""
        line = self.properties.found[key].line
        return f"line {line}" if line else f"{PREFIX}{key}"

    def shown(self, key: str) -> str:
        """Return a key's value as it was written, for people."""
        return ",".join(self.properties.found[key].values)

    def items(self, key: str) -> tuple[str, ...]:
        """Return a key's values that are not empty, variables replaced. Raises ConfigError."""
        try:
            values = self.properties.values(key, self.environment)
        except ConfigError as error:
            raise ConfigError(f"{self.origin(key)}: {error}") from None
        return tuple(value for value in values if value)

    def text(self, key: str) -> str | None:
        """Return a key's value, the first where there are several; None when it is not there or empty."""
        items = self.items(key)
        return items[0] if items else None

    def integer(self, key: str) -> int | None:
        """Return the same as an integer, which may be hexadecimal. Raises ConfigError."""
        text = self.text(key)
        if text is None:
            return None
        if not _INTEGER.fullmatch(text):
            raise self.fault(key, f"{text!r} is not an integer")
        is_prefixed = text[:2].lower() in ("0x", "0b")
        value = int(text, 0) if is_prefixed else int(text)
        if not -(1 << 63) <= value < 1 << 63:
            raise self.fault(key, f"{text} is out of range")
        return value

    def boolean(self, key: str) -> bool | None:
        """Return the same as a truth value. Raises ConfigError."""
        text = self.text(key)
        if text is None:
            return None
        if (value := _WORDS.get(text.lower())) is None:
            raise self.fault(key, f"{text!r} is neither true nor false")
        return value

    def ratio(self, key: str) -> float | None:
        """Return the same as a number. Raises ConfigError."""
        text = self.text(key)
        if text is None:
            return None
        if not _RATIO.fullmatch(text):
            raise self.fault(key, f"{text!r} is not a number")
        return float(text.rstrip("fFdD"))

    def fault(self, key: str, reason: str) -> ConfigError:
        """Return the error that says what is wrong with a key's value."""
        return ConfigError(f"{self.origin(key)}: {key}: {reason}")
