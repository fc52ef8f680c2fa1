"""Who a bookie is by Apache's keys: the address that it tells, its id, and where it listens.

Apache's order: `bookieId` names it whatever its address. The address is `advertisedAddress`; else that of
`listeningInterface`, or without one the address that the host's own name has; as a name with `useHostNameAsBookieID`.
What is advertised is taken as it is, reachable from here or not; what was found out must not be a loopback address.
It listens on all interfaces unless `listeningInterface` names one.
"""

from __future__ import annotations

import fcntl
import ipaddress
import re
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.config import is_loopback
from fastbk.errors import ConfigError

if TYPE_CHECKING:
    from fastbk.apache.configuration.source import KeySource

PORT_DEFAULT = 3181
EVERYWHERE = "0.0.0.0"
VERSION_6_TABLE = Path("/proc/net/if_inet6")
_ADDRESS_OF_INTERFACE = 0x8915  # SIOCGIFADDR
_ID = re.compile(r"[a-zA-Z0-9:\-_.]+")


class Machine:
    """The names and interfaces of this machine."""

    def own_address(self) -> str:
        """Return the address that the host's own name has. Raises OSError."""
        return self.address_of(socket.gethostname())

    def interface_address(self, name: str) -> str:
        """Return an interface's address, IPv4 if it has one. Raises OSError."""
        request = struct.pack("256s", name.encode()[:15])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            try:
                answer = fcntl.ioctl(asked.fileno(), _ADDRESS_OF_INTERFACE, request)
                return socket.inet_ntoa(answer[20:24])
            except OSError:
                found = _version_6_address(name)
                if found is None:
                    raise
                return found

    def name_of(self, address: str) -> str:
        """Return the full name of an address, or the address where it has none. Raises OSError."""
        return socket.getfqdn(address)

    def address_of(self, host: str) -> str:
        """Return the first address that a name stands for, IPv4 before IPv6. Raises OSError."""
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        found.sort(key=lambda one: one[0] != socket.AF_INET)
        return str(found[0][4][0])


@dataclass(frozen=True, slots=True)
class Address:
    """What the keys come to."""

    listen: str
    bookie_id: str
    advertised: str


def settle(source: KeySource, network: Machine | None = None) -> Address:
    """Return who the bookie is. Raises ConfigError for what Apache's bookie would refuse, too."""
    network = network or Machine()
    port = source.integer("bookiePort")
    port = PORT_DEFAULT if port is None else port
    if not 0 <= port <= 65_535:
        raise source.fault("bookiePort", f"{port} is not a port")
    given_id = source.text("bookieId")
    if given_id is not None and (not _ID.fullmatch(given_id) or given_id.lower() == "readonly"):
        raise source.fault(
            "bookieId", f"{given_id!r} cannot be a bookie's id: letters, digits and :-_. only"
        )
    if not port:
        if not source.boolean("allowEphemeralPorts"):
            raise source.fault("bookiePort", "port 0 needs allowEphemeralPorts=true")
        if given_id is None:
            raise source.fault(
                "bookiePort",
                "port 0 needs a bookieId: ledgers name bookies for good, and the port changes with every start",
            )
    interface = source.text("listeningInterface")
    host = source.text("advertisedAddress")
    own = None
    try:
        if interface is not None:
            own = network.interface_address(interface)
        if host is None:
            host = _own_host(source, network, own or network.own_address())
            _check_reachable(source, host, network.address_of(host))
    except OSError as error:
        what = f"interface {interface}" if interface and own is None else "the host's own name"
        raise ConfigError(
            f"{what}: no address found ({error.strerror or error}): correct listeningInterface, or set"
            " advertisedAddress to the address that clients reach this bookie by"
        ) from error
    return Address(f"{_bracketed(own or EVERYWHERE)}:{port}", given_id or f"{host}:{port}", host)


def _check_reachable(source: KeySource, host: str, address: str) -> None:
    """Refuse an address that nobody chose and no other machine reaches."""
    if is_loopback(address.partition("%")[0]) and not source.boolean("allowLoopback"):
        raise ConfigError(
            f"this bookie's address would be {host} ({address}), which no other machine reaches: set listeningInterface"
            " or advertisedAddress, or allowLoopback=true for a cluster on one machine"
        )


def _own_host(source: KeySource, network: Machine, address: str) -> str:
    if not source.boolean("useHostNameAsBookieID"):
        return address
    name = network.name_of(address)
    if name == address:
        raise ConfigError(
            f"useHostNameAsBookieID: {address} has no name: correct the name service or set bookieId"
        )
    return name.split(".", 1)[0] if source.boolean("useShortHostName") else name


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _version_6_address(name: str) -> str | None:
    try:
        lines = VERSION_6_TABLE.read_text().splitlines()
    except OSError:
        return None
    found = [
        ipaddress.IPv6Address(bytes.fromhex(line.split()[0]))
        for line in lines
        if line.split()[-1] == name
    ]
    found.sort(key=lambda one: one.is_link_local)
    return str(found[0]) if found else None
