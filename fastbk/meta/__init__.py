"""Metadata stores, in ZooKeeper or sqlite: ledgers, bookies' identities, registrations.

Entries never live here. Begin with `api.py`; `open_store` opens a store by its URI.
"""

from __future__ import annotations

from fastbk.meta.api import MetadataStore
from fastbk.meta.uri import open_store

__all__ = ["MetadataStore", "open_store"]
