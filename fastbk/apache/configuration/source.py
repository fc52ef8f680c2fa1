"""Where Apache's keys come from: a `.conf` file, and `BK_` environment variables that go before it.

Apache's container scripts write `BK_key` over the line of that key before the bookie starts, so its value is read by
the file's own rules: lists, escapes and variables. They drop keys that the file does not mention; here those count,
too.

A `.conf` file holds Java properties. Apache reads them with commons-configuration, not with java.util.Properties, and
that shows: lines are trimmed before anything else, comments and empty lines within a continued line are passed over, a
value is a list split at commas, a key that comes twice has all values in order (whoever wants one gets the first),
`${other}` stands for another key's value, and a last line that ends in a backslash is lost. The rules were recorded
from the library itself (`tests/unit/apache/test_properties.py`). `parse` does no I/O: files are the caller's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.errors import ConfigError, os_errors_as

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

INCLUDES_MAX = 16
"""Files that may include one another, one within the other."""
DEPTH_MAX = 32
"""Variables that may stand for one another."""
TEXT_MAX = 1 << 20
"""Characters that a value may have once its variables are replaced."""

_TRIMMED = "".join(map(chr, range(0x21)))
_PROPERTY = re.compile(
    r"((?:[^ \t\n\x0b\f\r\\=:]|\\.)*)(?:[ \t\n\x0b\f\r]*(?:[ \t\n\x0b\f\r]|[=:])[ \t\n\x0b\f\r]*)?(.*)",
    re.DOTALL,
)
_CONTROL = {"r": "\r", "f": "\f", "t": "\t", "n": "\n", "b": "\b"}
_KEY_ESCAPE = re.compile(r"\\([0-3][0-7]{2}|[0-7]{1,2}|u+\+?.{0,4}|.|$)", re.DOTALL)
_ESCAPED = ":#=!\\'\""
_DELIMITER, _ESCAPE = ",", "\\"


@dataclass(frozen=True, slots=True)
class Property:
    """One key's values, in the file's order; variables are still in them."""

    values: tuple[str, ...]
    line: int
    """The line of the key's first value, from 1."""


@dataclass(slots=True)
class Properties:
    """What a file says, its included files in place."""

    found: dict[str, Property] = field(default_factory=dict)
    unfinished: list[int] = field(default_factory=list)
    """Lines at which a continued last line begins, which counts for nothing."""

    def __contains__(self, key: str) -> bool:
        return key in self.found

    def values(self, key: str, environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """Return a key's values, variables replaced; empty when it is not there.

        Raises ConfigError for variables that stand for nothing, or for one another in a circle.
        """
        if key not in self.found:
            return ()
        resolver = _Resolver(self, environment or {})
        resolved: list[str] = []
        for value in self.found[key].values:
            resolved += resolver.resolve(key, value)
        return tuple(resolved)


def parse(text: str, read_file: Callable[[str], str | None] | None = None) -> Properties:
    """Return what `text` says. It is to be decoded as ISO 8859-1, as Apache does.

    Args:
        text: of the whole file.
        read_file: returns the text of an included file, None where there is none; without it including is refused.

    Raises ConfigError with the line.
    """
    properties = Properties()
    _parse_into(properties, text, read_file, 0)
    return properties


def value_list(raw: str) -> tuple[str, ...]:
    """Return the values of what stands behind the `=` of a line, its continuation lines joined."""
    return tuple(again for once in _split(_unescape_value(raw)) for again in _split(once))


def _parse_into(
    properties: Properties, text: str, read_file: Callable[[str], str | None] | None, depth: int
) -> None:
    for number, line in _logical_lines(text):
        if line is None:
            properties.unfinished.append(number)
            continue
        match = _PROPERTY.fullmatch(line)
        if match is None:  # a backslash that escapes nothing, in the key
            raise ConfigError(f"line {number}: not a property: {line[:80]!r}")
        try:
            key, values = _unescape_key(match[1].strip(_TRIMMED)), value_list(match[2])
        except ValueError as error:
            raise ConfigError(f"line {number}: {error}") from None
        if key.lower() in ("include", "includeoptional"):
            for name in values:
                _include(properties, name, key.lower() == "include", read_file, depth, number)
            continue
        was = properties.found.get(key)
        if was is None:
            properties.found[key] = Property(values, number)
        else:
            properties.found[key] = Property(was.values + values, was.line)


def _include(
    properties: Properties,
    name: str,
    is_needed: bool,
    read_file: Callable[[str], str | None] | None,
    depth: int,
    number: int,
) -> None:
    if depth >= INCLUDES_MAX:
        raise ConfigError(f"line {number}: files include one another more than {INCLUDES_MAX} deep")
    text = read_file(name) if read_file is not None else None
    if text is not None:
        _parse_into(properties, text, read_file, depth + 1)
    elif is_needed:
        raise ConfigError(f"line {number}: cannot read the included file {name}")


def _logical_lines(text: str) -> Iterator[tuple[int, str | None]]:
    """Yield each line with its number, continued ones joined; None for one that the file's end cuts off."""
    joined: list[str] = []
    first = 0
    for number, raw in enumerate(re.split("\r\n|\r|\n", text), 1):
        line = raw.strip(_TRIMMED)
        if not line or line[0] in "#!":
            continue
        if not joined:
            first = number
        backslashes = len(line) - len(line.rstrip(_ESCAPE))
        if backslashes % 2:
            joined.append(line[:-1])
            continue
        yield first, "".join([*joined, line])
        joined = []
    if joined:
        yield first, None


def _unescape_value(text: str) -> str:
    """Return `text` with its escapes replaced; a backslash before any other character stays. Raises ValueError."""
    out: list[str] = []
    offset = 0
    while (slash := text.find(_ESCAPE, offset)) >= 0 and slash + 1 < len(text):
        out.append(text[offset:slash])
        char = text[slash + 1]
        offset = slash + 2
        if char == "u":
            digits = text[offset : offset + 4]
            if len(digits) == 4:
                out.append(chr(_hexadecimal(digits)))
            offset += 4
        elif char in _CONTROL:
            out.append(_CONTROL[char])
        else:
            out.append(char if char in _ESCAPED else _ESCAPE + char)
    return "".join([*out, text[offset:]])


def _unescape_key(text: str) -> str:
    """Return a key with its escapes replaced, as in Java's own strings. Raises ValueError."""
    return _KEY_ESCAPE.sub(_key_character, text)


def _key_character(match: re.Match[str]) -> str:
    escape = match[1]
    if escape.startswith("u"):
        return chr(_hexadecimal(escape.lstrip("u").removeprefix("+")))
    if escape[:1].isdigit():
        return chr(int(escape, 8))
    return _CONTROL.get(escape, escape)


def _hexadecimal(digits: str) -> int:
    if not re.fullmatch("[0-9A-Fa-f]{4}", digits):
        raise ValueError(rf"\u{digits}: four hexadecimal digits were expected")
    return int(digits, 16)


def _split(text: str) -> list[str]:
    """Return the items of a list; a backslash takes a comma or a backslash into an item."""
    items: list[str] = []
    item: list[str] = []
    is_escaped = False
    for char in text:
        if is_escaped:
            if char not in (_DELIMITER, _ESCAPE):
                item.append(_ESCAPE)
            item.append(char)
            is_escaped = False
        elif char == _DELIMITER:
            items.append("".join(item).strip(_TRIMMED))
            item = []
        elif char == _ESCAPE:
            is_escaped = True
        else:
            item.append(char)
    if is_escaped:
        item.append(_ESCAPE)
    items.append("".join(item).strip(_TRIMMED))
    return items


class _Resolver:
    """Replaces variables: `${key}`, `${key:-default}`, `${env:NAME}`."""

    def __init__(self, properties: Properties, environment: Mapping[str, str]) -> None:
        self._properties = properties
        self._environment = environment

    def resolve(self, key: str, text: str) -> list[str]:
        """Return what `text`, a value of `key`, comes to: several values where it is one variable that has several."""
        if text.startswith("${") and text.find("}") == len(text) - 1:
            named = self._properties.found.get(text[2:-1])
            if named is not None and len(named.values) > 1:
                if len(self._properties.found[key].values) > 1:
                    raise ConfigError(
                        f"{key}: {text} stands for a list within a list: write its values out"
                    )
                return [self._replaced(key, value, (text[2:-1],)) for value in named.values]
        return [self._replaced(key, text, ())]

    def _replaced(self, key: str, text: str, within: tuple[str, ...]) -> str:
        if len(within) > DEPTH_MAX:
            raise ConfigError(f"{key}: variables stand for one another more than {DEPTH_MAX} deep")
        out: list[str] = []
        offset = 0
        while (begin := text.find("${", offset)) >= 0:
            end = text.find("}", begin)
            if end < 0:
                break
            out.append(text[offset:begin])
            if out[-1].endswith("$"):  # Apache reads a lone value twice and one of a list once
                raise ConfigError(
                    f"{key}: a variable behind $$ means different things in different places"
                )
            out.append(self._value(key, text[begin + 2 : end], within))
            offset = end + 1
            if sum(map(len, out)) > TEXT_MAX:
                raise ConfigError(
                    f"{key}: longer than {TEXT_MAX} characters with its variables replaced"
                )
        return "".join([*out, text[offset:]])

    def _value(self, key: str, variable: str, within: tuple[str, ...]) -> str:
        name, has_default, default = variable.partition(":-")
        if "${" in name:  # variables within variables are none
            name, has_default = variable, ""
        if name in within:
            raise ConfigError(f"{key}: ${{{name}}} stands for itself")
        if name.startswith("env:") and (value := self._environment.get(name[4:])) is not None:
            return self._replaced(key, value, (*within, name))
        if (named := self._properties.found.get(name)) is not None:
            return self._replaced(key, named.values[0], (*within, name))
        if has_default:
            return self._replaced(key, default, (*within, name))
        raise ConfigError(
            f"{key}: ${{{variable}}} stands for nothing: give the value itself, or a key or ${{env:NAME}} that is set"
        )


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
        found = parse(path.read_text("iso-8859-1"), lambda _: None).found
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
        found = parse(text, included)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    variables = {
        name.removeprefix(PREFIX): value
        for name, value in sorted(environment.items())
        if name.startswith(PREFIX) and len(name) > len(PREFIX)
    }
    for key, value in variables.items():
        try:
            found.found[key] = Property(value_list(value), 0)
        except ValueError as error:
            raise ConfigError(f"{PREFIX}{key}: {error}") from None
    return KeySource(path, found, environment)


@dataclass(frozen=True, slots=True)
class KeySource:
    """All keys and their values."""

    path: Path
    properties: Properties
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
