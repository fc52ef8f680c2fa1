"""Metadata URIs.

    zk+hierarchical://host1:2181;host2:2181/ledgers     ZooKeeper, with the layout that LAYOUT there must name
    zk://host1:2181/ledgers, zk+null://...              the same with whatever layout is there
    metadata-store:zk:host1:2181,host2:2181/chroot      the same as Pulsar writes it: /ledgers, below a chroot if any
    gateway://host1:3182;host2:3182                     gateways, for clients that do not reach ZooKeeper
    sqlite:/absolute/path                               one machine
    memory:name                                         one process, for tests

The layouts are flat, hierarchical and longhierarchical; the port 2181 and the path /ledgers may be left out.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import ConfigError
from fastbk.meta.zookeeper.paths import ROOT_DEFAULT, Layout

if TYPE_CHECKING:
    from fastbk.meta.api import MetadataStore
    from fastbk.meta.gateway.store import GatewayAccess

FORMS = (
    "zk+hierarchical://host:2181/ledgers, gateway://host:3182, sqlite:/absolute/path or memory:name"
)
ZOOKEEPER_PORT = 2181
GATEWAY_PORT = 3182
PULSAR_SCHEME = "metadata-store"
"""The scheme of URIs for Pulsar's metadata driver of bookies."""
URI_VARIABLE = "FASTBK_METADATA"
"""The environment variable that names the cluster where nothing else does."""

_SERVER = re.compile(r"(?P<host>[A-Za-z0-9._\-]+|\[[0-9A-Fa-f:.%]+\])(?::(?P<port>\d{1,5}))?")
_NODE_NAME = re.compile(r"[^/\x00-\x1f\x7f]+")


class ZooKeeperLocation(msgspec.Struct, frozen=True):
    """Where a cluster's metadata is in ZooKeeper. `layout` None: whatever LAYOUT says."""

    servers: tuple[str, ...]
    """Each as host:port."""
    root: str
    layout: Layout | None = None

    @property
    def uri(self) -> str:
        """The location in its complete form."""
        scheme = "zk" if self.layout is None else f"zk+{self.layout.value}"
        return f"{scheme}://{';'.join(self.servers)}{self.root}"


def is_zookeeper(uri: str) -> bool:
    """Return whether this is a URI of ZooKeeper's, well-formed or not."""
    scheme = uri.partition(":")[0]
    return scheme in ("zk", PULSAR_SCHEME) or scheme.startswith("zk+")


def is_gateway(uri: str) -> bool:
    """Return whether this is a URI of gateways, well-formed or not."""
    return uri.partition(":")[0] == "gateway"


def parse_gateway(uri: str) -> tuple[str, ...]:
    """Return the gateways that a URI names, each as host:port. Raises ConfigError saying which part is wrong."""
    _, separator, rest = uri.partition("://")
    servers, _, path = rest.partition("/")
    if not separator or path:
        raise ConfigError(
            f"metadata URI {uri!r}: write gateway://host:3182, several with ';' between"
        )
    return tuple(_server(uri, one, GATEWAY_PORT) for one in re.split("[;,]", servers))


def parse_zookeeper(uri: str) -> ZooKeeperLocation:
    """Return what a ZooKeeper URI names. Raises ConfigError saying which part is wrong."""
    if uri.startswith(f"{PULSAR_SCHEME}:"):
        return _parse_pulsar(uri)
    scheme, separator, rest = uri.partition("://")
    if not separator:
        raise ConfigError(f"metadata URI {uri!r}: write zk+LAYOUT://host:2181/ledgers")
    servers, slash, path = rest.partition("/")
    return ZooKeeperLocation(
        tuple(_server(uri, one) for one in re.split("[;,]", servers)),
        _root(uri, f"/{path}") if slash and path.strip("/") else ROOT_DEFAULT,
        _layout(uri, scheme),
    )


def _parse_pulsar(uri: str) -> ZooKeeperLocation:
    """Return the location of `metadata-store:[zk:]SERVERS[/CHROOT]`.

    Pulsar's driver passes a path to ZooKeeper as a chroot, and its bookies use /ledgers below that.
    """
    rest = uri.removeprefix(f"{PULSAR_SCHEME}:")
    kind = re.match(r"(etcd|rocksdb|memory|oxia|raft):", rest)
    if kind is not None:
        raise ConfigError(
            f"metadata URI {uri!r}: of Pulsar's metadata stores only ZooKeeper is known here, not {kind[1]}"
        )
    servers, _, chroot = rest.removeprefix("zk:").removeprefix("//").partition("/")
    path = f"/{chroot.strip('/')}{ROOT_DEFAULT}" if chroot.strip("/") else ROOT_DEFAULT
    return ZooKeeperLocation(
        tuple(_server(uri, one) for one in re.split("[;,]", servers)), _root(uri, path)
    )


def _layout(uri: str, scheme: str) -> Layout | None:
    word = scheme.removeprefix("zk").removeprefix("+")
    if word in ("", "null"):
        return None
    try:
        return Layout(word)
    except ValueError:
        known = ", ".join(layout.value for layout in Layout)
        raise ConfigError(
            f"metadata URI {uri!r}: unknown layout {word!r}; choose one of {known}, or zk:// for"
            " what is there"
        ) from None


def _server(uri: str, text: str, port: int = ZOOKEEPER_PORT) -> str:
    match = _SERVER.fullmatch(text.strip())
    if match is None or not 0 < int(match["port"] or port) < 65_536:
        raise ConfigError(
            f"metadata URI {uri!r}: {text!r} is not a server; write host:port, several with ';' between"
        )
    return f"{match['host']}:{match['port'] or port}"


def _root(uri: str, path: str) -> str:
    names = path.removesuffix("/").split("/")[1:]
    # ZooKeeper refuses these itself, in words that do not name the URI.
    if not all(_NODE_NAME.fullmatch(name) and name not in (".", "..") for name in names):
        raise ConfigError(f"metadata URI {uri!r}: {path!r} cannot be the path of a node")
    if names[0] == "zookeeper":
        raise ConfigError(
            f"metadata URI {uri!r}: /zookeeper is ZooKeeper's own; choose another path"
        )
    return "/" + "/".join(names)


def given_store(cluster: str | MetadataStore) -> MetadataStore | None:
    """Return the store that names a cluster in place of a URI, None for a URI. Raises ConfigError for anything else."""
    if isinstance(cluster, str):
        return None
    if not hasattr(cluster, "read_ledger"):
        raise ConfigError(
            f"the cluster {cluster!r}: must be a metadata URI such as {FORMS}, or a MetadataStore,"
            f" not {type(cluster).__name__}"
        )
    return cluster


def uri_or_default(uri: str | None, how: str) -> str:
    """Return `uri`, or what FASTBK_METADATA says if it is None.

    Raises ConfigError where neither names a cluster; `how` says what the caller can be given instead.
    """
    named = os.environ.get(URI_VARIABLE, "") if uri is None else uri
    if not named:
        raise ConfigError(
            f"no cluster: {how} or set {URI_VARIABLE}; `fastbk dev` starts one and prints its URI"
        )
    return named


def open_store(
    uri: str,
    timeout_s: float = 10.0,
    session_timeout_s: float | None = None,
    *,
    may_make: bool = True,
    new_instance_id: str | None = None,
    access: GatewayAccess | None = None,
) -> MetadataStore:
    """Open the store at `uri`; every call of it takes at most about `timeout_s` seconds.

    `session_timeout_s`: how long ZooKeeper waits for a sign of life before it takes registrations away; its servers
    have bounds of their own. None: the default. Without effect in other stores.

    `may_make`: a file that is not there is made, which is right for whoever starts a cluster. Others would be given an
    empty one where the path is mistyped. Without effect in ZooKeeper, where only `fastbk metadata init` makes one.

    `new_instance_id`: the cluster's id in a file that is made; None or "": any.

    `access`: how gateways are reached; None: as the environment says. Without effect in other stores.

    Raises ConfigError for a URI that this version cannot serve and for a place where no cluster is,
    MetadataUnavailable when the store does not open.
    """
    place = _parse(uri)
    if isinstance(place, ZooKeeperLocation):
        # Here and not above: kazoo is loaded by those who need it.
        from fastbk.meta.zookeeper.store import ZooKeeperStore

        if session_timeout_s is None:
            return ZooKeeperStore(place, timeout_s=timeout_s)
        return ZooKeeperStore(place, timeout_s=timeout_s, session_timeout_s=session_timeout_s)
    if isinstance(place, tuple):
        from fastbk.meta.gateway.store import GatewayAccess, open_gateway

        return open_gateway(place, access or GatewayAccess.from_environment(), timeout_s)
    from fastbk.meta.sqlite.store import MemoryStore, SqliteStore

    if uri.startswith("memory:"):
        return MemoryStore(place)
    return SqliteStore(
        place, timeout_s=timeout_s, may_make=may_make, new_instance_id=new_instance_id
    )


def check_uri(uri: str) -> None:
    """Raise the ConfigError that `open_store` would raise for the form of a URI; nothing is opened."""
    _parse(uri)


def _parse(uri: str) -> ZooKeeperLocation | tuple[str, ...] | str:
    """Return where in ZooKeeper a URI points, which gateways it names, its file's path, or its name in memory."""
    scheme, colon, rest = uri.partition(":")
    if not colon:
        raise ConfigError(f"metadata URI {uri!r} has no scheme: write {FORMS}")
    if is_zookeeper(uri):
        return parse_zookeeper(uri)
    if is_gateway(uri):
        return parse_gateway(uri)
    if scheme == "memory":
        return rest
    if scheme == "sqlite":
        # Some people write sqlite:///path, as they do for databases.
        path = "/" + rest.lstrip("/")
        if not rest.startswith("/") or path == "/":
            raise ConfigError(
                f"metadata URI {uri!r}: sqlite needs an absolute path, sqlite:/absolute/path"
            )
        return path
    raise ConfigError(f"metadata URI {uri!r}: unknown scheme {scheme!r}; use {FORMS}")
