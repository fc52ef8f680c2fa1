"""The client that `fastbk.connect` makes: ledgers (`fastbk/client`) and streams over the same connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from fastbk.client.client import Client as LedgerClient
from fastbk.client.config import ClientOptions, config_of
from fastbk.meta.uri import uri_or_default

if TYPE_CHECKING:
    from fastbk.meta import MetadataStore
    from fastbk.stream.namespace.catalog import Catalog
    from fastbk.stream.namespace.namespace import Namespace


class Client(LedgerClient):
    """A client of one cluster on one event loop, for ledgers and streams. Made by `fastbk.connect(uri)`."""

    _catalog: Catalog | None = None

    def namespace(self, path: str = "") -> Namespace:
        """Return a namespace of streams by its path, such as "tenant/app"; "": the root. No I/O. Raises ConfigError."""
        from fastbk.stream.namespace.catalog import Catalog
        from fastbk.stream.namespace.namespace import Namespace

        if self._catalog is None:
            self._catalog = Catalog(self)
        return Namespace(self._catalog, path)


def connect(uri: str | MetadataStore | None = None, **options: Unpack[ClientOptions]) -> Client:
    """Return a client of the cluster whose metadata is at `uri`; see `ClientConfig` for the options.

    No I/O. `uri` None: the variable FASTBK_METADATA. Raises ConfigError if neither is there, and for options with an
    unknown name, a wrong type or a value out of range.
    """
    if uri is None:
        uri = uri_or_default(uri, "give connect() a metadata URI")
    return Client(uri, config_of(options))
