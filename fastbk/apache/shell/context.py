"""What the verbs of the shell share: the cluster and the bookie that they work on, and how they
read their words.

`Context` has the cluster, the file of a bookie, and how ids and entries are printed. `Verb` and
`Option` read a call as Apache's shell reads it. An option has a short and a long name, each with
one dash or two: `-rw`, `--rw`, `-readwrite` and `--readwrite` are the same. What is not known is an
error that names the verb's options; Apache prints the verb's whole usage.

Decision 99.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.errors import ConfigError

if TYPE_CHECKING:
    from fastbk.client import Client
    from fastbk.client.config import ClientConfig
    from fastbk.meta.api import BookieService, MetadataStore
    from fastbk.meta.uri import ZooKeeperLocation
    from fastbk.model.ids import BookieId, LedgerId
    from fastbk.server.configuration.bookie_config import BookieConfig

TIMEOUT_S = 10.0
FILE_VARIABLE = "BOOKIE_CONF"
"""What names the file for Apache's script."""
LEDGER_FORMATS = ("long", "hex", "uuid")
ENTRY_FORMATS = ("string", "hex")
_MASK = 2**64 - 1


class Context:
    """The cluster and the bookie that the shell was called for."""

    def __init__(
        self,
        uri: str | None = None,
        file: Path | None = None,
        ledger_format: str = "long",
        entry_format: str = "string",
    ) -> None:
        self._uri = uri
        named = os.environ.get(FILE_VARIABLE, "")
        self._file = Path(named) if file is None and uri is None and named else file
        self._ledger_format = ledger_format
        self.entry_format = entry_format

    # --- the cluster ---------------------------------------------------------------------------------------------

    @property
    def uri(self) -> str:
        """The metadata URI: -metadata, the file's, or FASTBK_METADATA. Raises ConfigError."""
        if self._uri is None and self._file is not None:
            self._uri = self._uri_of_file(self._file)
        if self._uri is None:
            from fastbk.meta.uri import uri_or_default

            self._uri = uri_or_default(None, "give -conf FILE or --metadata URI")
        return self._uri

    def _uri_of_file(self, path: Path) -> str:
        from fastbk.apache.configuration import key_translation, source
        from fastbk.meta.zookeeper.security import use_file
        from fastbk.server.configuration import bookie_file

        if source.is_apache(path):
            # Not the whole file: a client's has no directories, and is good enough here.
            return key_translation.metadata_uri(source.read(path, os.environ))
        metadata = bookie_file.load(path).metadata
        use_file(metadata.zookeeper_file)
        return metadata.uri

    def store(self) -> closing[MetadataStore]:
        """Open the metadata store for a while."""
        from fastbk.meta import open_store

        return closing(open_store(self.uri, TIMEOUT_S, may_make=False))

    def client(self, config: ClientConfig | None = None) -> Client:
        """Return a client of the cluster, to be entered."""
        from fastbk.client import Client

        return Client(self.uri, config)

    @property
    def zookeeper(self) -> ZooKeeperLocation | None:
        """Where in ZooKeeper the cluster is, None: its metadata is elsewhere. Raises ConfigError."""
        from fastbk.meta.uri import is_zookeeper, parse_zookeeper

        return parse_zookeeper(self.uri) if is_zookeeper(self.uri) else None

    def need_zookeeper(self, what: str) -> ZooKeeperLocation:
        """Return that place; raise ConfigError saying that `what` is there only."""
        location = self.zookeeper
        if location is None:
            raise ConfigError(f"{what} in ZooKeeper only, and the metadata is in {self.uri}")
        return location

    # --- the bookie ----------------------------------------------------------------------------------------------

    @property
    def file(self) -> Path:
        """The bookie's file. Raises ConfigError if there is none."""
        if self._file is None:
            raise ConfigError(f"this is about one bookie: give -conf FILE or set {FILE_VARIABLE}")
        return self._file

    def bookie(self) -> BookieConfig:
        """Return the configuration of the bookie that the file is for. Raises ConfigError."""
        from fastbk.server.configuration import bookie_file

        return bookie_file.load(self.file)

    def bookie_id(self) -> BookieId:
        """Return the id of that bookie. Raises ConfigError."""
        section = self.bookie().bookie
        return section.id or section.listen

    # --- what is printed -----------------------------------------------------------------------------------------

    def ledger_id(self, text: str) -> LedgerId:
        """Return the ledger id that was written in the chosen form. Raises ConfigError."""
        text = text.strip()
        try:
            if self._ledger_format == "uuid":
                ledger_id = uuid.UUID(text).int & _MASK
            else:
                ledger_id = int(text, 16 if self._ledger_format == "hex" else 10)
        except ValueError:
            ledger_id = -1
        if not 0 <= ledger_id < 2**63:
            raise ConfigError(f"ledger id {text!r}: not a ledger id ({self._ledger_format})")
        return ledger_id

    def shown(self, ledger_id: LedgerId) -> str:
        """Return a ledger id in the chosen form."""
        if self._ledger_format == "hex":
            return f"{ledger_id:x}"
        return str(uuid.UUID(int=ledger_id)) if self._ledger_format == "uuid" else str(ledger_id)

    @staticmethod
    def confirmed(question: str) -> bool:
        """Ask the person at the terminal as Apache does, until it is a yes or a no; the end of input is a no."""
        while True:
            print(f"{question} (Y or N) ", end="", flush=True)
            line = sys.stdin.readline()
            answer = line.strip().lower()
            if answer in ("y", "yes"):
                return True
            if not line or answer in ("n", "no"):
                return False
            print(f"Invalid input: {answer}")


def fail(message: str) -> None:
    """Print why a verb did not do what it was asked for."""
    print(message, file=sys.stderr, flush=True)


def address_line(service: BookieService) -> str:
    """Return a bookie as Apache's lists show it; UNKNOWN where it is not registered or its name not known."""
    import socket

    from fastbk.meta.api import APACHE_PROTOCOL

    endpoint = service.endpoint(APACHE_PROTOCOL) or service.endpoint()
    if endpoint is None:
        return f"BookieID:{service.bookie_id}, IP:UNKNOWN, Port:0, Hostname:UNKNOWN"
    ip, name = "UNKNOWN", endpoint.host
    try:
        ip = str(socket.getaddrinfo(endpoint.host, None, type=socket.SOCK_STREAM)[0][4][0])
        if ip == endpoint.host:
            name = socket.gethostbyaddr(ip)[0]
    except OSError:
        pass  # shown as it stands: a name may be known elsewhere only
    return f"BookieID:{service.bookie_id}, IP:{ip}, Port:{endpoint.port}, Hostname:{name}"


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
    """Values by the options' keys; "" for a flag."""
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
        width = max((len(option.shown()) for option in self.options), default=0)
        lines += [
            f"  {option.shown():<{width}}  {option.text}{' (required)' if option.is_required else ''}"
            for option in self.options
        ]
        return "\n".join(lines)

    def parse(self, words: Sequence[str]) -> CommandLine:
        """Return what the words behind the verb say. Raises ConfigError."""
        if self.takes_anything:
            return CommandLine(self.name, {}, tuple(words))
        known = {name: one for one in self.options for name in one.names}
        values: dict[str, str] = {}
        arguments: list[str] = []
        offset = 0
        while offset < len(words):
            word = words[offset]
            offset += 1
            if word == "--":
                arguments += words[offset:]
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
                if offset == len(words):
                    raise ConfigError(f"-{name} needs a value: {option.value}")
                value = words[offset]
                offset += 1
            values[option.key] = value
        self._check(values, arguments)
        return CommandLine(self.name, values, tuple(arguments))

    def _unknown(self, word: str, known: list[str]) -> str:
        close = get_close_matches(word.lstrip("-"), known, n=1)
        if close:
            return f"no option {word}: did you mean -{close[0]}?"
        shown = ", ".join(option.shown() for option in self.options)
        return f"no option {word}; {f'there are: {shown}' if shown else 'it takes none'}"

    def _check(self, values: dict[str, str], arguments: list[str]) -> None:
        for option in self.options:
            if option.is_required and not values.get(option.key):
                raise ConfigError(f"-{option.key} {option.value} is missing")
        if arguments and not self.arguments:
            raise ConfigError(f"what is this: {' '.join(arguments)}")
