"""The client that `fastbk.connect` makes: ledgers (`fastbk/client`) and streams over the same connections."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Unpack

from fastbk.client.client import Client as LedgerClient
from fastbk.client.config import ClientOptions, config_of
from fastbk.client.ensembles import RULES_READ_INTERVAL_S
from fastbk.errors import ConfigError, MetadataUnavailable, StreamNotFound
from fastbk.meta.uri import uri_or_default

if TYPE_CHECKING:
    from fastbk.meta import MetadataStore
    from fastbk.placement.config import PlacementConfig
    from fastbk.stream.namespace.catalog import Catalog
    from fastbk.stream.namespace.namespace import Namespace
    from fastbk.stream.policy import StreamPolicy

POLICIES_KEPT_MAX = 1000


class Client(LedgerClient):
    """A client of one cluster on one event loop, for ledgers and streams. Made by `fastbk.connect(uri)`."""

    _catalog: Catalog | None = None
    _policies: dict[str, tuple[float, StreamPolicy | None]] | None = None

    def namespace(self, path: str = "") -> Namespace:
        """Return a namespace of streams by its path, such as "tenant/app"; "": the root. No I/O. Raises ConfigError."""
        from fastbk.stream.namespace.catalog import Catalog
        from fastbk.stream.namespace.namespace import Namespace

        if self._catalog is None:
            self._catalog = Catalog(self)
        return Namespace(self._catalog, path)

    def _forget_rules(self) -> None:
        super()._forget_rules()
        self._policies = None

    async def _narrowed_by_namespace(
        self, namespace: str, wanted: PlacementConfig
    ) -> PlacementConfig:
        """Return what is wanted of a ledger of a namespace: its policy's rule, narrowed (INV-P3).

        A ledger may name a namespace that is not there, for tokens: then nothing more is wanted of it. A policy is
        known for as long as the cluster's rule is. Raises ConfigError where nothing can keep to both.
        """
        if not namespace:
            return wanted
        if self._policies is None:
            self._policies = {}
        read_s, policy = self._policies.get(namespace, (float("-inf"), None))
        now_s = asyncio.get_running_loop().time()
        if now_s - read_s >= RULES_READ_INTERVAL_S:
            try:
                policy = await self._policy_of(namespace)
            except MetadataUnavailable:
                if read_s == float("-inf"):
                    raise
            if len(self._policies) >= POLICIES_KEPT_MAX:
                self._policies.clear()
            self._policies[namespace] = (now_s, policy)
        return wanted if policy is None else policy.placement_for(wanted)

    async def _policy_of(self, path: str) -> StreamPolicy | None:
        try:
            namespace = self.namespace(path)
        except ConfigError:
            return None  # none can have such a path
        try:
            return await namespace.effective_policy()
        except StreamNotFound:
            return None


def connect(uri: str | MetadataStore | None = None, **options: Unpack[ClientOptions]) -> Client:
    """Return a client of the cluster whose metadata is at `uri`; see `ClientConfig` for the options.

    No I/O. `uri` None: the variable FASTBK_METADATA. Raises ConfigError if neither is there, and for options with an
    unknown name, a wrong type or a value out of range.
    """
    if uri is None:
        uri = uri_or_default(uri, "give connect() a metadata URI")
    return Client(uri, config_of(options))
