"""fastbk: a distributed log store with the model of Apache BookKeeper.

This file has the version's only home and is imported by the build and by every process, so it imports nothing:
the client, the errors and the values of streams come with their first use.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastbk.errors import (
        AppendUnknown,
        BufferFull,
        ClientClosed,
        ConfigError,
        CursorFenced,
        DataLost,
        DigestMismatch,
        DraftGone,
        DuplicateEntryId,
        Error,
        LedgerClosed,
        LedgerFenced,
        MetadataConflict,
        MetadataOnHold,
        MetadataUnavailable,
        NamespaceNotEmpty,
        NoSuchEntry,
        NoSuchLedger,
        NotEnoughBookies,
        PolicyInvalid,
        PositionTruncated,
        ProtocolError,
        QuorumTimeout,
        QuotaExceeded,
        RecordTooLarge,
        ReplicationConflict,
        StorageError,
        StreamBusy,
        StreamExists,
        StreamNotFound,
        StreamSealed,
        TxidOutOfOrder,
        Unauthorized,
        WeakQuorumWarning,
        WriterFailed,
        WriterFenced,
    )
    from fastbk.stream.client import Client, connect
    from fastbk.stream.cursor import Cursor
    from fastbk.stream.namespace import Namespace
    from fastbk.stream.policy import PolicyPatch
    from fastbk.stream.positions import DLSN, AtSeq, AtTime, AtTxid
    from fastbk.stream.reader import StreamReader
    from fastbk.stream.records import Chunk, Gap, Record
    from fastbk.stream.stream import Stream
    from fastbk.stream.writer import StreamWriter

__version__ = "0.1.0"
__all__ = [
    "DLSN",
    "AppendUnknown",
    "AtSeq",
    "AtTime",
    "AtTxid",
    "BufferFull",
    "Chunk",
    "Client",
    "ClientClosed",
    "ConfigError",
    "Cursor",
    "CursorFenced",
    "DataLost",
    "DigestMismatch",
    "DraftGone",
    "DuplicateEntryId",
    "Error",
    "Gap",
    "LedgerClosed",
    "LedgerFenced",
    "MetadataConflict",
    "MetadataOnHold",
    "MetadataUnavailable",
    "Namespace",
    "NamespaceNotEmpty",
    "NoSuchEntry",
    "NoSuchLedger",
    "NotEnoughBookies",
    "PolicyInvalid",
    "PolicyPatch",
    "PositionTruncated",
    "ProtocolError",
    "QuorumTimeout",
    "QuotaExceeded",
    "Record",
    "RecordTooLarge",
    "ReplicationConflict",
    "StorageError",
    "Stream",
    "StreamBusy",
    "StreamExists",
    "StreamNotFound",
    "StreamReader",
    "StreamSealed",
    "StreamWriter",
    "TxidOutOfOrder",
    "Unauthorized",
    "WeakQuorumWarning",
    "WriterFailed",
    "WriterFenced",
    "__version__",
    "connect",
]
_HOMES = {
    "Client": "fastbk.stream.client",
    "connect": "fastbk.stream.client",
    "Namespace": "fastbk.stream.namespace",
    "Stream": "fastbk.stream.stream",
    "StreamReader": "fastbk.stream.reader",
    "StreamWriter": "fastbk.stream.writer",
    "Cursor": "fastbk.stream.cursor",
    "PolicyPatch": "fastbk.stream.policy",
    "DLSN": "fastbk.stream.positions",
    "AtSeq": "fastbk.stream.positions",
    "AtTime": "fastbk.stream.positions",
    "AtTxid": "fastbk.stream.positions",
    "Chunk": "fastbk.stream.records",
    "Gap": "fastbk.stream.records",
    "Record": "fastbk.stream.records",
}


def __getattr__(name: str) -> object:
    """Return a public name from the module it lives in, imported at its first use."""
    if name in __all__:
        from importlib import import_module

        return getattr(import_module(_HOMES.get(name, "fastbk.errors")), name)
    raise AttributeError(f"module 'fastbk' has no attribute {name!r}")
