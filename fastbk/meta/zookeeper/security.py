"""How processes authenticate to ZooKeeper, and whom the nodes that they make belong to.

FASTBK_ZOOKEEPER_FILE names a file that others than owner and group must not be able to read:

    tls = true                                  # with ca_file, certificate_file, key_file, key_password_file
    mechanism = "digest"                        # none, digest, sasl
    user = "bookie"
    password_file = "/etc/fastbk/zookeeper.password"

    [acl]                                       # who may do what; without it all nodes are open to everybody
    bookies = ["digest:bookie:Jq7wMyA/w2Vd5WIDAKdu4OIIFEQ="]
    clients = ["digest:client:..."]             # leave out where clients use gateways only
    gateways = ["digest:gateway:..."]           # and the janitor: the same as clients
    healers = ["digest:healer:..."]
    admins = ["digest:admin:..."]

`fastbk metadata acl-id` prints such an id. All processes of a cluster have the same [acl].

Decision 120.
"""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from fastbk.errors import ConfigError
from fastbk.safe_files import read_password, read_secret
from fastbk.security.tls import TlsFiles

if TYPE_CHECKING:
    import ssl

VARIABLE = "FASTBK_ZOOKEEPER_FILE"
SCHEMES = ("digest", "sasl", "x509", "ip", "world")
_DIGEST_ID = re.compile(r"[^:]+:[A-Za-z0-9+/]{27}=")
"""A user and the SHA-1 of name and password, in base 64."""
READ, WRITE, CREATE, DELETE, ADMIN = 1, 2, 4, 8, 16
ALL = READ | WRITE | CREATE | DELETE | ADMIN
CHANGE = READ | WRITE | CREATE | DELETE

AclEntry = tuple[str, str, int]
"""Scheme, id and rights, as ZooKeeper has them."""

_AREAS: dict[str, tuple[int, int, int]] = {
    # Rights of bookies, clients and healers. Admins have all everywhere.
    "available": (ALL, READ, READ),
    "cookies": (ALL, READ, READ),
    "identities": (ALL, READ, READ),
    "records": (CHANGE, CHANGE, CHANGE),
    "underreplication": (CHANGE, CHANGE, CHANGE),
    "": (CHANGE, CHANGE, CHANGE),
}
"""Areas by the first part of a path below the root, or below what only fastbk knows of; "" is everything else:
ledgers.
"""
_OWN_NAMES = ("ID-fastbk", "fastbk")


class _Acl(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    bookies: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    gateways: tuple[str, ...] = ()
    healers: tuple[str, ...] = ()
    admins: tuple[str, ...] = ()

    @property
    def principals(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.bookies, *self.clients, *self.gateways, *self.healers, *self.admins)


class _File(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    tls: bool = False
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    key_password_file: str = ""
    verify_name: bool = True
    mechanism: Literal["none", "digest", "sasl"] = "none"
    user: str = ""
    password_file: str = ""
    acl: _Acl = msgspec.field(default_factory=_Acl)


@dataclass(frozen=True, slots=True)
class ZooKeeperSecurity:
    """What one file says; with the defaults: neither encryption nor rights.

    Attributes:
        login: arguments of kazoo's client.
        tls_files: None: connections are not encrypted.
        verify_name: the server's certificate must name the host of the URI.
        folders: of the files that it names.
    """

    login: dict[str, Any] = field(default_factory=dict)
    tls_files: TlsFiles | None = None
    verify_name: bool = True
    folders: tuple[str, ...] = ()
    acl: _Acl = field(default_factory=_Acl)

    def context(self) -> ssl.SSLContext | None:
        """Return that of encrypted connections, by the files as they are; None: not encrypted. Raises ConfigError."""
        if self.tls_files is None:
            return None
        from fastbk.security.tls import client_context

        return client_context(self.tls_files, verify_name=self.verify_name)

    def why_silent(self, handler: object) -> str:
        """Return what may be wrong where no server answers; `handler` made the connections."""
        problem = getattr(handler, "problem", "")
        if problem:
            return f"{problem} (see {VARIABLE})"
        silent = "is it running, and are host and port right?"
        if self.tls_files is None:
            return f"{silent} A port with TLS needs tls = true in the file of {VARIABLE}"
        return f"{silent} Does it accept the certificate_file of {VARIABLE}?"

    @property
    def has_acl(self) -> bool:
        """Whether nodes belong to somebody."""
        return any(self.acl.principals)

    def entries(self, path: str, root: str) -> list[AclEntry] | None:
        """Return who may do what with a node; None: everybody everything."""
        if not self.has_acl or not f"{path}/".startswith(f"{root}/"):
            return None
        bookies, clients, healers = _AREAS[_area_of(path, root)]
        rights = (
            (self.acl.bookies, bookies),
            (self.acl.clients, clients),
            (self.acl.gateways, clients),
            (self.acl.healers, healers),
            (self.acl.admins, ALL),
        )
        merged: dict[tuple[str, str], int] = {}
        for principals, allowed in rights:
            for principal in principals:
                scheme, _, name = principal.partition(":")
                merged[scheme, name] = merged.get((scheme, name), 0) | allowed
        return [(scheme, name, allowed) for (scheme, name), allowed in merged.items()]


def from_environment() -> ZooKeeperSecurity:
    """Return what the file of FASTBK_ZOOKEEPER_FILE says; without it, the defaults. Raises ConfigError."""
    path = os.environ.get(VARIABLE, "")
    return load(path) if path else ZooKeeperSecurity()


def use_file(path: str) -> None:
    """Have this process and its children use a bookie's `[metadata] zookeeper_file`; empty: what the variable says."""
    if path:
        os.environ[VARIABLE] = path


@lru_cache(maxsize=4)
def load(path: str) -> ZooKeeperSecurity:
    """Read a file, once a process. Raises ConfigError, without any password in it."""
    try:
        read = msgspec.convert(tomllib.loads(read_secret(path).decode()), _File)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{VARIABLE} {path}: {error}") from None
    for principal in read.acl.principals:
        scheme, _, name = principal.partition(":")
        if scheme not in SCHEMES or not name:
            raise ConfigError(
                f"{path}: [acl] {principal!r}: write SCHEME:ID with one of {', '.join(SCHEMES)}"
            )
        if scheme == "digest" and not _DIGEST_ID.fullmatch(name):
            raise ConfigError(
                f"{path}: [acl] {principal!r}: write what `fastbk metadata acl-id` prints"
            )
    named = (
        read.ca_file,
        read.certificate_file,
        read.key_file,
        read.key_password_file,
        read.password_file,
    )
    folders = {os.path.dirname(os.path.abspath(one)) for one in (path, *named) if one}
    tls_files = _tls_files(read, path)
    return ZooKeeperSecurity(
        _login(read, path), tls_files, read.verify_name, tuple(sorted(folders)), read.acl
    )


def _tls_files(read: _File, path: str) -> TlsFiles | None:
    if not read.tls:
        return None
    from fastbk.security.tls import client_context

    files = TlsFiles(
        ca_file=read.ca_file,
        certificate_file=read.certificate_file,
        key_file=read.key_file,
        key_password_file=read.key_password_file,
    )
    try:
        client_context(files, verify_name=read.verify_name)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}") from error
    return files


def _login(read: _File, path: str) -> dict[str, Any]:
    if read.mechanism == "none":
        return {}
    if not read.user or not read.password_file:
        raise ConfigError(f'{path}: mechanism = "{read.mechanism}" needs user and password_file')
    password = read_password(read.password_file)
    if read.mechanism == "digest":
        return {"auth_data": [("digest", f"{read.user}:{password}")]}
    if find_spec("puresasl") is None:  # kazoo would say so only once it connects
        raise ConfigError(
            f'{path}: mechanism = "sasl" needs the package pure-sasl: pip install "fastbk[sasl]"'
        )
    return {
        "sasl_options": {"mechanism": "DIGEST-MD5", "username": read.user, "password": password}
    }


def _area_of(path: str, root: str) -> str:
    parts = path.removeprefix(root).strip("/").split("/")
    if parts[0] in _OWN_NAMES and len(parts) > 1:
        parts = parts[1:]
    return parts[0] if parts[0] in _AREAS else ""
