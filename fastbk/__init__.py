"""fastbk: a distributed log store with the model of Apache BookKeeper.

This file has the version's only home and is imported by the build and by every process, so it imports nothing:
the client and the errors come with their first use.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastbk.errors import (
        BufferFull,
        ClientClosed,
        ConfigError,
        DigestMismatch,
        DuplicateEntryId,
        Error,
        LedgerClosed,
        LedgerFenced,
        MetadataConflict,
        MetadataUnavailable,
        NoSuchEntry,
        NoSuchLedger,
        NotEnoughBookies,
        ProtocolError,
        QuorumTimeout,
        StorageError,
        Unauthorized,
    )
    from fastbk.stream.client import connect

__version__ = "0.1.0"
__all__ = [
    "BufferFull",
    "ClientClosed",
    "ConfigError",
    "DigestMismatch",
    "DuplicateEntryId",
    "Error",
    "LedgerClosed",
    "LedgerFenced",
    "MetadataConflict",
    "MetadataUnavailable",
    "NoSuchEntry",
    "NoSuchLedger",
    "NotEnoughBookies",
    "ProtocolError",
    "QuorumTimeout",
    "StorageError",
    "Unauthorized",
    "__version__",
    "connect",
]


def __getattr__(name: str) -> object:
    """Return a public name from the module it lives in, imported at its first use."""
    if name == "connect":
        from fastbk.stream.client import connect

        return connect
    if name in __all__:
        from fastbk import errors

        return getattr(errors, name)
    raise AttributeError(f"module 'fastbk' has no attribute {name!r}")
