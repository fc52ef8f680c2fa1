"""A metadata store that sends a client to proxies instead of to the bookies themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from fastbk.meta import open_store

if TYPE_CHECKING:
    from fastbk.meta import MetadataStore
    from fastbk.meta.api import BookieRegistration
    from fastbk.model.ids import BookieId


class ProxiedStore:
    """Everything as the real store says, but for the ports of bookies that have a proxy."""

    def __init__(self, uri: str, ports: dict[BookieId, int]) -> None:
        self._store = open_store(uri, 10.0)
        self._ports = ports

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def list_bookies(self) -> list[BookieRegistration]:
        """Return the bookies with their proxies' ports."""
        return [self._moved(one) for one in self._store.list_bookies()]

    def _moved(self, found: BookieRegistration) -> BookieRegistration:
        port = self._ports.get(found.service.bookie_id)
        if port is None:
            return found
        endpoints = tuple(replace(one, port=port) for one in found.service.endpoints)
        return replace(found, service=replace(found.service, endpoints=endpoints))


def proxied(uri: str, ports: dict[BookieId, int]) -> MetadataStore:
    """Return a store of the cluster at `uri` whose bookies are reached through `ports`."""
    return cast("MetadataStore", ProxiedStore(uri, ports))
