"""A verb of the shell, its options, and the words of one call: read as Apache's shell reads them.

An option has a short and a long name, each with one dash or two: `-rw`, `--rw`, `-readwrite` and `--readwrite` are the
same. What is not known is an error that names the verb's options; Apache prints the verb's whole usage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING

from fastbk.errors import ConfigError

if TYPE_CHECKING:
    from fastbk.apache.shell.context import Context

HELP = "help"


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a verb.

    Attributes:
        names: short and long, without dashes; the last one is the key of `CommandLine`.
        value: the name of its value; "" for a flag.
        is_required: the call is refused without it.
    """

    names: tuple[str, ...]
    text: str
    value: str = ""
    is_required: bool = False

    @property
    def key(self) -> str:
        """The name under which `CommandLine` knows it."""
        return self.names[-1]

    def shown(self) -> str:
        """Return the names and the value, for people."""
        names = ", ".join(f"-{name}" for name in self.names)
        return f"{names} {self.value}" if self.value else names


def flag(*names: str, text: str) -> Option:
    """Return an option without a value."""
    return Option(names, text)


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What a call of a verb says."""

    verb: str
    values: dict[str, str] = field(default_factory=dict)
    """By the options' keys; "" for a flag."""
    arguments: tuple[str, ...] = ()

    def has(self, key: str) -> bool:
        """Return whether the option stands there."""
        return key in self.values

    def text(self, key: str, default: str = "") -> str:
        """Return an option's value."""
        return self.values.get(key, default)

    def integer(self, key: str, default: int, least: int = 0) -> int:
        """Return an option's value as an integer of `least` or more. Raises ConfigError."""
        if key not in self.values:
            return default
        try:
            value = int(self.values[key])
        except ValueError:
            value = least - 1
        if value < least:
            raise ConfigError(f"-{key} {self.values[key]}: must be an integer of {least} or more")
        return value


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb.

    Attributes:
        run: does it and returns the exit code; what it raises becomes one line and the code 255.
        arguments: what stands behind the options, for people: "<bookie-id>"; "" = nothing may.
        takes_anything: whatever stands there is an argument.
    """

    name: str
    text: str
    run: Callable[[Context, CommandLine], int]
    options: tuple[Option, ...] = ()
    arguments: str = ""
    takes_anything: bool = False

    def usage(self) -> str:
        """Return the text that `help VERB` and `VERB -help` print."""
        words = [self.name, *(["[options]"] if self.options else []), self.arguments]
        lines = [f"{self.name}: {self.text}", f"usage: {' '.join(filter(None, words))}"]
        width = max((len(one.shown()) for one in self.options), default=0)
        lines += [
            f"  {one.shown():<{width}}  {one.text}{' (required)' if one.is_required else ''}"
            for one in self.options
        ]
        return "\n".join(lines)

    def parse(self, words: Sequence[str]) -> CommandLine:
        """Return what the words behind the verb say. Raises ConfigError."""
        if self.takes_anything:
            return CommandLine(self.name, {}, tuple(words))
        known = {name: one for one in self.options for name in one.names}
        values: dict[str, str] = {}
        arguments: list[str] = []
        at = 0
        while at < len(words):
            word = words[at]
            at += 1
            if word == "--":
                arguments += words[at:]
                break
            if not word.startswith("-") or word == "-":
                arguments.append(word)
                continue
            name, equals, value = word.lstrip("-").partition("=")
            if name == HELP or (name == "h" and "h" not in known):
                return CommandLine(self.name, {HELP: ""})
            option = known.get(name)
            if option is None:
                raise ConfigError(self._unknown(word, list(known)))
            if not option.value and equals:
                raise ConfigError(f"-{name} takes no value")
            if option.value and not equals:
                if at == len(words):
                    raise ConfigError(f"-{name} needs a value: {option.value}")
                value = words[at]
                at += 1
            values[option.key] = value
        self._check(values, arguments)
        return CommandLine(self.name, values, tuple(arguments))

    def _unknown(self, word: str, known: list[str]) -> str:
        close = get_close_matches(word.lstrip("-"), known, n=1)
        if close:
            return f"no option {word}: did you mean -{close[0]}?"
        shown = ", ".join(one.shown() for one in self.options)
        return f"no option {word}; {f'there are: {shown}' if shown else 'it takes none'}"

    def _check(self, values: dict[str, str], arguments: list[str]) -> None:
        for one in self.options:
            if one.is_required and not values.get(one.key):
                raise ConfigError(f"-{one.key} {one.value} is missing")
        if arguments and not self.arguments:
            raise ConfigError(f"what is this: {' '.join(arguments)}")
