"""The asyncio client of ledgers: connections, writers and readers.

Decisions of the replication protocol never live here; they are in `fastbk/replication`. Begin with
`client.py`; import names from here or from `fastbk`.
"""

from __future__ import annotations

from fastbk.client.client import Client, connect
from fastbk.client.config import UNLIMITED_S, ClientConfig
from fastbk.client.ledger_reader import Batch, Entry, LedgerInfo, LedgerReader
from fastbk.client.ledger_writer import LedgerWriter, WriterStats
from fastbk.placement.config import PlacementConfig

__all__ = [
    "UNLIMITED_S",
    "Batch",
    "Client",
    "ClientConfig",
    "Entry",
    "LedgerInfo",
    "LedgerReader",
    "LedgerWriter",
    "PlacementConfig",
    "WriterStats",
    "connect",
]
