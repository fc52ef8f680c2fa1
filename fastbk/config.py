"""TOML files → frozen msgspec structs, for every program that has a configuration file.

A struct's fields carry their unit (`file_size_bytes`, `hello_timeout_ms`); the file's keys do not,
its values do (`file_size = "256MiB"`, `hello_timeout = "10s"`). Unknown keys are refused with the
nearest known name, and every message names the file and the key.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from fastbk.errors import ConfigError
from fastbk.units import parse_duration_us, parse_size

if TYPE_CHECKING:
    import ipaddress
    from pathlib import Path

S = TypeVar("S", bound=msgspec.Struct)

LOCAL_NAMES = frozenset(
    (
        "localhost",
        "localhost.localdomain",
        "localhost4",
        "localhost6",
        "ip6-localhost",
        "ip6-loopback",
    )
)
"""Names that each machine's own table of hosts has for itself."""
_DURATIONS_US = {"us": 1, "ms": 1000, "s": 10**6}


def load(path: Path, kind: type[S]) -> S:
    """Read the TOML file at `path` as a `kind`: one struct-typed field a section.

    Raises ConfigError with one line: the file, the key, what is wrong with it.
    """
    import tomllib  # here, and difflib below: a bookie's children import this module and read no file

    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"{path}: cannot read it: {reason}") from error
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    return from_document(document, kind, str(path))


def from_document(document: dict[str, Any], kind: type[S], where: str) -> S:
    """Return a parsed TOML document as a `kind`. Raises ConfigError, beginning with `where`."""
    sections = {field.name: field for field in msgspec.structs.fields(kind)}
    converted: dict[str, Any] = {}
    for name, body in document.items():
        if name not in sections:
            raise ConfigError(f"{where}: no section [{name}]{_nearest(name, sections)}")
        if not isinstance(body, dict):
            raise ConfigError(f"{where}: {name} is a section: write [{name}]")
        section = sections[name].type
        converted[name] = _section(body, section, f"{where}: [{name}]")
    try:
        return msgspec.convert(converted, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {_plain(str(error))}") from error


def key_of(field: str) -> tuple[str, str | None]:
    """Return the file's key for a struct's field, and the unit that the field counts in (None: no
    unit).

    The first part of the name that is a unit and is not the whole name: `file_size_bytes_max` is
    `file_size_max` in bytes.
    """
    parts = field.split("_")
    for unit in ("bytes", "us", "ms", "s"):
        if unit in parts[1:]:
            parts.remove(unit)
            return "_".join(parts), unit
    return field, None


def split_address(text: str, where: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[v6]:port`. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535 or not host:
        raise ConfigError(f'{where}: "{text}" is not host:port')
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Return whether no other machine can reach `host`. A name counts as reachable, unless it is "localhost"."""
    found = _numeric(host)
    return host == "localhost" if found is None else found.is_loopback


def is_unspecified(host: str) -> bool:
    """Return whether `host` is no address but all of a machine's, in any spelling: 0.0.0.0, 0, ::, ::0."""
    found = _numeric(host)
    return not host if found is None else found.is_unspecified


def is_every_machines_own(host: str) -> bool:
    """Return whether each machine takes `host` for itself, so that it leads nobody to another one."""
    name = host.lower().removesuffix(".")
    return (
        is_loopback(host)
        or is_unspecified(host)
        or name in LOCAL_NAMES
        or name.endswith(".localhost")
    )


def resolves_to_loopback_only(host: str) -> bool:
    """Return whether a name has loopback addresses here and no other. Asks the name service: it may wait for that."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        return False
    return all(is_loopback(str(one[4][0])) for one in found)


def _numeric(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that `host` spells, as the system reads it ("0" and "127.1" are some); None for a name."""
    import ipaddress  # here, as `tomllib` above

    try:
        # As bytes, where it may be: for text Python imports its rules of international names first.
        name = host.encode() if host.isascii() else host
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        address = ipaddress.ip_address(str(found[0][4][0]))
    except (OSError, ValueError):
        return None
    # `::ffff:127.0.0.1` is IPv4's by another spelling, to the system as well.
    return getattr(address, "ipv4_mapped", None) or address


def _section(body: dict[str, Any], kind: type[msgspec.Struct], where: str) -> dict[str, Any]:
    keys = {}
    for field in msgspec.structs.fields(kind):
        key, unit = key_of(field.name)
        keys[key] = (field.name, unit)
    converted: dict[str, Any] = {}
    for key, value in body.items():
        if key not in keys:
            raise ConfigError(f"{where} has no key {key}{_nearest(key, keys)}")
        name, unit = keys[key]
        try:
            converted[name] = value if unit is None else _with_unit(value, unit)
        except ValueError as error:
            raise ConfigError(f"{where} {key}: {error}") from error
    try:
        msgspec.convert(converted, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where} {_plain(str(error))}") from error
    return converted


def _with_unit(value: object, unit: str) -> int:
    if value == 0 and isinstance(value, int) and not isinstance(value, bool):
        return 0
    if not isinstance(value, str):
        example = "64MiB" if unit == "bytes" else "200us"
        raise ValueError(f'{value!r} has no unit: write it like "{example}"')
    if unit == "bytes":
        return parse_size(value)
    whole_us = parse_duration_us(value)
    if whole_us % _DURATIONS_US[unit]:
        raise ValueError(f'"{value}" is not a whole number of {unit}')
    return whole_us // _DURATIONS_US[unit]


def _nearest(name: str, known: dict[str, Any]) -> str:
    import difflib

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f": did you mean {close[0]}?" if close else f"; known: {', '.join(sorted(known))}"


def _plain(message: str) -> str:
    """Return msgspec's message with the path in front, as the file's own words."""
    text, _, path = message.partition(" - at `$.")
    return f"{key_of(path.rstrip('`'))[0]}: {text}" if path else text


class MetadataSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [metadata], of bookies and gateways."""

    uri: str = ""
    """`zk+hierarchical://host:2181;host:2181/ledgers`, or for one machine `sqlite:/absolute/path`, which several
    processes may share."""

    zookeeper_file: str = ""
    """How to authenticate to ZooKeeper, and whom its nodes belong to (docs/zookeeper-security.md). Empty: what
    FASTBK_ZOOKEEPER_FILE says.
    """

    session_timeout_ms: Annotated[int, msgspec.Meta(ge=1000, le=300_000)] = 10_000
    """ZooKeeper takes a bookie's registration away when it has heard nothing for so long. Its servers allow 2 to 20 of
    their ticks, mostly 4 to 40 s, and take the nearest. All processes of the bookie have it.
    """

    @property
    def session_timeout_s(self) -> float:
        """The same in seconds."""
        return self.session_timeout_ms / 1e3
