"""Metadata URIs: `sqlite:/absolute/path`, `memory:name`; ZooKeeper's forms are known but not served yet."""

from __future__ import annotations

from fastbk.errors import ConfigError
from fastbk.meta.api import MetadataStore

FORMS = "sqlite:/absolute/path or memory:name"


def open_store(uri: str, timeout_s: float = 10.0) -> MetadataStore:
    """Open the store at `uri`; every call of it takes at most about `timeout_s` seconds.

    Raises ConfigError for a URI that this version cannot serve, MetadataUnavailable when the store does not open.
    """
    scheme, colon, rest = uri.partition(":")
    if not colon:
        raise ConfigError(f"metadata URI {uri!r} has no scheme: write {FORMS}")
    if scheme == "sqlite":
        # Some people write sqlite:///path, as they do for databases.
        path = "/" + rest.lstrip("/")
        if not rest.startswith("/") or path == "/":
            raise ConfigError(
                f"metadata URI {uri!r}: sqlite needs an absolute path, sqlite:/absolute/path"
            )
        from fastbk.meta.sqlite import SqliteStore

        return SqliteStore(path, timeout_s=timeout_s)
    if scheme == "memory":
        from fastbk.meta.memory import MemoryStore

        return MemoryStore(rest)
    if scheme == "zk" or scheme.startswith("zk+"):
        raise ConfigError(f"metadata URI {uri!r}: ZooKeeper is not in this version; use {FORMS}")
    raise ConfigError(f"metadata URI {uri!r}: unknown scheme {scheme!r}; use {FORMS}")
