"""fastbk: a distributed log store with the model of Apache BookKeeper.

This file has the version's only home and is imported by the build and by every process, so it imports nothing:
the client, the errors and the values of streams come with their first use.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastbk.client.config import ClientConfig, ClientOptions
    from fastbk.client.entries import Batch, Entry, LedgerInfo
    from fastbk.client.ledger_reader import LedgerReader
    from fastbk.client.ledger_writer import LedgerWriter
    from fastbk.client.writer_stats import WriterStats
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
    from fastbk.meta.api import BookieRegistration
    from fastbk.model.ledger import LedgerMetadata
    from fastbk.placement.values import PlacementConfig
    from fastbk.stream.client import Client, connect
    from fastbk.stream.cursor.backlog import Backlog
    from fastbk.stream.cursor.cursor import Cursor
    from fastbk.stream.cursor.store import CursorInfo
    from fastbk.stream.namespace.events import NamespaceEvent
    from fastbk.stream.namespace.listing import StreamInfo
    from fastbk.stream.namespace.namespace import Namespace
    from fastbk.stream.policy import PolicyPatch, StreamPolicy
    from fastbk.stream.positions import DLSN, AtSeq, AtTime, AtTxid, Start
    from fastbk.stream.reader.options import CursorOptions, ReaderOptions
    from fastbk.stream.reader.search import Position, SegmentInfo
    from fastbk.stream.reader.stream_reader import Lag, StreamReader
    from fastbk.stream.records import Chunk, Gap, Record
    from fastbk.stream.stream import Stream
    from fastbk.stream.writer.options import StreamWriterOptions
    from fastbk.stream.writer.stream_writer import StreamWriter

__version__ = "0.1.0"
__all__ = [
    "DLSN",
    "AppendUnknown",
    "AtSeq",
    "AtTime",
    "AtTxid",
    "Backlog",
    "Batch",
    "BookieRegistration",
    "BufferFull",
    "Chunk",
    "Client",
    "ClientClosed",
    "ClientConfig",
    "ClientOptions",
    "ConfigError",
    "Cursor",
    "CursorFenced",
    "CursorInfo",
    "CursorOptions",
    "DataLost",
    "DigestMismatch",
    "DraftGone",
    "DuplicateEntryId",
    "Entry",
    "Error",
    "Gap",
    "Lag",
    "LedgerClosed",
    "LedgerFenced",
    "LedgerInfo",
    "LedgerMetadata",
    "LedgerReader",
    "LedgerWriter",
    "MetadataConflict",
    "MetadataOnHold",
    "MetadataUnavailable",
    "Namespace",
    "NamespaceEvent",
    "NamespaceNotEmpty",
    "NoSuchEntry",
    "NoSuchLedger",
    "NotEnoughBookies",
    "PlacementConfig",
    "PolicyInvalid",
    "PolicyPatch",
    "Position",
    "PositionTruncated",
    "ProtocolError",
    "QuorumTimeout",
    "QuotaExceeded",
    "ReaderOptions",
    "Record",
    "RecordTooLarge",
    "ReplicationConflict",
    "SegmentInfo",
    "Start",
    "StorageError",
    "Stream",
    "StreamBusy",
    "StreamExists",
    "StreamInfo",
    "StreamNotFound",
    "StreamPolicy",
    "StreamReader",
    "StreamSealed",
    "StreamWriter",
    "StreamWriterOptions",
    "TxidOutOfOrder",
    "Unauthorized",
    "WeakQuorumWarning",
    "WriterFailed",
    "WriterFenced",
    "WriterStats",
    "__version__",
    "connect",
]
_HOMES = {
    "StreamWriterOptions": "fastbk.stream.writer.options",
    "ReaderOptions": "fastbk.stream.reader.options",
    "CursorOptions": "fastbk.stream.reader.options",
    "ClientConfig": "fastbk.client.config",
    "ClientOptions": "fastbk.client.config",
    "Batch": "fastbk.client.entries",
    "Entry": "fastbk.client.entries",
    "LedgerInfo": "fastbk.client.entries",
    "LedgerReader": "fastbk.client.ledger_reader",
    "LedgerWriter": "fastbk.client.ledger_writer",
    "WriterStats": "fastbk.client.writer_stats",
    "BookieRegistration": "fastbk.meta.api",
    "LedgerMetadata": "fastbk.model.ledger",
    "PlacementConfig": "fastbk.placement.values",
    "Client": "fastbk.stream.client",
    "connect": "fastbk.stream.client",
    "Cursor": "fastbk.stream.cursor.cursor",
    "Backlog": "fastbk.stream.cursor.backlog",
    "CursorInfo": "fastbk.stream.cursor.store",
    "Lag": "fastbk.stream.reader.stream_reader",
    "StreamInfo": "fastbk.stream.namespace.listing",
    "Namespace": "fastbk.stream.namespace.namespace",
    "NamespaceEvent": "fastbk.stream.namespace.events",
    "PolicyPatch": "fastbk.stream.policy",
    "StreamPolicy": "fastbk.stream.policy",
    "AtSeq": "fastbk.stream.positions",
    "AtTime": "fastbk.stream.positions",
    "AtTxid": "fastbk.stream.positions",
    "DLSN": "fastbk.stream.positions",
    "Start": "fastbk.stream.positions",
    "StreamReader": "fastbk.stream.reader.stream_reader",
    "Chunk": "fastbk.stream.records",
    "Gap": "fastbk.stream.records",
    "Record": "fastbk.stream.records",
    "Position": "fastbk.stream.reader.search",
    "SegmentInfo": "fastbk.stream.reader.search",
    "Stream": "fastbk.stream.stream",
    "StreamWriter": "fastbk.stream.writer.stream_writer",
}


def __getattr__(name: str) -> object:
    """Return a public name from the module it lives in, imported at its first use."""
    if name in __all__:
        from importlib import import_module

        return getattr(import_module(_HOMES.get(name, "fastbk.errors")), name)
    raise AttributeError(f"module 'fastbk' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return all names, those too that were not used yet, for `dir` and completion."""
    return sorted({*globals(), *__all__})
