"""How `fastbk ledger` prints entries and metadata: for people, as bytes, as JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from fastbk.cli.options import print_json

if TYPE_CHECKING:
    import argparse

    from fastbk.client import LedgerInfo


def print_entry(entry_id: int, data: memoryview, options: argparse.Namespace) -> None:
    """Print one entry as the options want it."""
    out = sys.stdout.buffer
    if options.raw:
        out.write(data)
    elif options.json:
        sys.stdout.flush()
        print_json({"entry_id": entry_id, **_as_json(bytes(data))})
    else:
        text = bytes(data).decode("utf-8", "backslashreplace")
        out.write(f"{entry_id}\t{text.rstrip(chr(10))}\n".encode())


def _as_json(data: bytes) -> dict[str, str]:
    """Return an entry as text where it is text, else in base64: JSON has no bytes."""
    try:
        return {"data": data.decode("utf-8")}
    except UnicodeDecodeError:
        import base64

        return {"data_base64": base64.b64encode(data).decode()}


def facts(info: LedgerInfo) -> dict[str, object]:
    """Return what `show` prints of a ledger."""
    from fastbk.model.ledger import LedgerState

    metadata = info.metadata
    digest = metadata.digest_type
    found: dict[str, object] = {
        "ledger_id": info.ledger_id,
        "state": metadata.state.name,
        "ensemble": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum,
        "ack_quorum": metadata.ack_quorum,
        "digest": digest.name.lower() if digest is not None else None,
        "fragments": [
            {"first_entry_id": one.first_entry_id, "bookies": list(one.ensemble)}
            for one in metadata.fragments
        ],
        "metadata": {key: plain(value) for key, value in metadata.custom.items()},
        "created_ms": metadata.created_ms,
        "version": info.version,
    }
    if metadata.state is LedgerState.CLOSED:
        found["entries"] = metadata.last_entry_id + 1
        found["last_entry_id"] = metadata.last_entry_id
        found["bytes"] = metadata.length
    return found


def lines_of(value: object) -> list[str]:
    """Return a fact for people: a fragment or a pair a line."""
    if isinstance(value, list):
        return [f"from {one['first_entry_id']}: {', '.join(one['bookies'])}" for one in value]
    if isinstance(value, dict):
        return [f"{key} = {text}" for key, text in value.items()] or ["-"]
    return [str(value)]


def plain(value: bytes) -> str:
    """Return bytes as text, those that are none escaped."""
    return value.decode("utf-8", "backslashreplace")
