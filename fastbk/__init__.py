"""fastbk: a distributed log store with the model of Apache BookKeeper.

This file is imported by the build and by every process, so it imports nothing but the version, which has a module of
its own: the client, the errors and the values of streams come with their first use.
"""

from typing import TYPE_CHECKING

from fastbk.version import VERSION

if TYPE_CHECKING:
    from fastbk import coordination as coordination
    from fastbk import objects as objects
    from fastbk import sync as sync
    from fastbk.client.config import ClientConfig, ClientOptions
    from fastbk.client.ledger_reader import (
        Batch,
        Entry,
        LedgerInfo,
        LedgerReader,
        LedgerReaderStats,
    )
    from fastbk.client.ledger_writer import LedgerWriter, WriterStats
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
        IdentityChanged,
        LeaseBusy,
        LeaseLost,
        LedgerClosed,
        LedgerFenced,
        MetadataConflict,
        MetadataOnHold,
        MetadataUnavailable,
        NamespaceNotEmpty,
        NoSuchEntry,
        NoSuchLedger,
        NotEnoughBookies,
        NoWriteService,
        ObjectDamaged,
        ObjectExists,
        ObjectNotFound,
        PolicyInvalid,
        PositionTruncated,
        ProducerExpired,
        ProducerFenced,
        ProtocolError,
        QuorumTimeout,
        QuotaExceeded,
        RecordTooLarge,
        ReplicationConflict,
        StorageError,
        StreamAdvanced,
        StreamBusy,
        StreamExists,
        StreamNotFound,
        StreamSealed,
        TokenOutdated,
        TooManyProducers,
        TxidOutOfOrder,
        Unauthorized,
        WeakQuorumWarning,
        WriterFailed,
        WriterFenced,
        WrongStreamKind,
        WrongType,
    )
    from fastbk.meta.api import BookieRegistration
    from fastbk.model.ledger import LedgerMetadata
    from fastbk.observe.meter import Latency
    from fastbk.observe.tracing import Tracing, links_of
    from fastbk.pipelines.pipeline import Output, Pipeline, PipelineStats, pipeline
    from fastbk.placement.config import PlacementConfig
    from fastbk.security.credentials import Credentials
    from fastbk.security.tls import TlsOptions
    from fastbk.stream.client import Client, connect
    from fastbk.stream.cursor.backlog import Backlog
    from fastbk.stream.cursor.cursor import Cursor, CursorStats
    from fastbk.stream.cursor.store import CursorInfo
    from fastbk.stream.namespace.listing import NamespaceEvent, StreamInfo
    from fastbk.stream.namespace.namespace import Namespace
    from fastbk.stream.options import (
        CursorOptions,
        ProducerOptions,
        ReaderOptions,
        StreamProducerOptions,
        StreamWriterOptions,
        WriterOptions,
    )
    from fastbk.stream.pattern.cursor import PatternCursor
    from fastbk.stream.pattern.reader import PatternReader
    from fastbk.stream.pattern.store import PatternCursorInfo
    from fastbk.stream.policy import PolicyPatch, StreamPolicy
    from fastbk.stream.positions import DLSN, AtSeq, AtTime, AtTxid, Start
    from fastbk.stream.producer.producer import Producer, ProducerStats
    from fastbk.stream.reader.search import Position, SegmentInfo
    from fastbk.stream.reader.stream_reader import Lag, StreamReader, StreamReaderStats
    from fastbk.stream.records import Chunk, Gap, Record
    from fastbk.stream.stream import Stream
    from fastbk.stream.writer.engine import StreamWriterStats
    from fastbk.stream.writer.stream_writer import StreamWriter

__version__ = VERSION
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
    "Credentials",
    "Cursor",
    "CursorFenced",
    "CursorInfo",
    "CursorOptions",
    "CursorStats",
    "DataLost",
    "DigestMismatch",
    "DraftGone",
    "DuplicateEntryId",
    "Entry",
    "Error",
    "Gap",
    "IdentityChanged",
    "Lag",
    "Latency",
    "LeaseBusy",
    "LeaseLost",
    "LedgerClosed",
    "LedgerFenced",
    "LedgerInfo",
    "LedgerMetadata",
    "LedgerReader",
    "LedgerReaderStats",
    "LedgerWriter",
    "MetadataConflict",
    "MetadataOnHold",
    "MetadataUnavailable",
    "Namespace",
    "NamespaceEvent",
    "NamespaceNotEmpty",
    "NoSuchEntry",
    "NoSuchLedger",
    "NoWriteService",
    "NotEnoughBookies",
    "ObjectDamaged",
    "ObjectExists",
    "ObjectNotFound",
    "Output",
    "PatternCursor",
    "PatternCursorInfo",
    "PatternReader",
    "Pipeline",
    "PipelineStats",
    "PlacementConfig",
    "PolicyInvalid",
    "PolicyPatch",
    "Position",
    "PositionTruncated",
    "Producer",
    "ProducerExpired",
    "ProducerFenced",
    "ProducerOptions",
    "ProducerStats",
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
    "StreamAdvanced",
    "StreamBusy",
    "StreamExists",
    "StreamInfo",
    "StreamNotFound",
    "StreamPolicy",
    "StreamProducerOptions",
    "StreamReader",
    "StreamReaderStats",
    "StreamSealed",
    "StreamWriter",
    "StreamWriterOptions",
    "StreamWriterStats",
    "TlsOptions",
    "TokenOutdated",
    "TooManyProducers",
    "Tracing",
    "TxidOutOfOrder",
    "Unauthorized",
    "WeakQuorumWarning",
    "WriterFailed",
    "WriterFenced",
    "WriterOptions",
    "WriterStats",
    "WrongStreamKind",
    "WrongType",
    "__version__",
    "connect",
    "links_of",
    "pipeline",
]
_HOMES = {
    "client.config": "ClientConfig ClientOptions",
    "client.ledger_reader": "Batch Entry LedgerInfo LedgerReader LedgerReaderStats",
    "client.ledger_writer": "LedgerWriter WriterStats",
    "meta.api": "BookieRegistration",
    "model.ledger": "LedgerMetadata",
    "pipelines.pipeline": "Output Pipeline PipelineStats pipeline",
    "placement.config": "PlacementConfig",
    "stream.client": "Client connect",
    "stream.cursor.backlog": "Backlog",
    "stream.cursor.cursor": "Cursor CursorStats",
    "stream.cursor.store": "CursorInfo",
    "stream.namespace.listing": "NamespaceEvent StreamInfo",
    "stream.namespace.namespace": "Namespace",
    "stream.options": (
        "CursorOptions ProducerOptions ReaderOptions StreamProducerOptions StreamWriterOptions WriterOptions"
    ),
    "stream.pattern.cursor": "PatternCursor",
    "stream.pattern.reader": "PatternReader",
    "stream.pattern.store": "PatternCursorInfo",
    "stream.policy": "PolicyPatch StreamPolicy",
    "stream.positions": "AtSeq AtTime AtTxid DLSN Start",
    "stream.producer.producer": "Producer ProducerStats",
    "stream.reader.search": "Position SegmentInfo",
    "stream.reader.stream_reader": "Lag StreamReader StreamReaderStats",
    "stream.records": "Chunk Gap Record",
    "stream.stream": "Stream",
    "stream.writer.engine": "StreamWriterStats",
    "stream.writer.stream_writer": "StreamWriter",
    "security.credentials": "Credentials",
    "observe.meter": "Latency",
    "observe.tracing": "Tracing links_of",
    "security.tls": "TlsOptions",
}
"""Modules of fastbk, and the names that live there; all others are in `fastbk.errors`."""

_MODULES = ("coordination", "objects", "sync", "testing")
"""Public modules that `import fastbk` is enough for."""


def __getattr__(name: str) -> object:
    """Return a public name from the module it lives in, or a public module, imported at its first use."""
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"fastbk.{name}")
    if name in __all__:
        home = next((home for home, names in _HOMES.items() if name in names.split()), "errors")
        return getattr(import_module(f"fastbk.{home}"), name)
    raise AttributeError(f"module 'fastbk' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return all names, those too that were not used yet, for `dir` and completion."""
    return sorted({*globals(), *__all__, *_MODULES})
