"""Where ledgers' metadata and the bookies' identities and registrations live. `open_store` opens one by its URI."""

from __future__ import annotations

from fastbk.meta.api import MetadataStore
from fastbk.meta.uri import open_store

__all__ = ["MetadataStore", "open_store"]
