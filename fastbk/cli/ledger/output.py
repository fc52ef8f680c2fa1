"""How `fastbk ledger` prints entries and metadata: for people, as bytes, as JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from fastbk.cli.options import print_json, table, text_or_base64
from fastbk.cli.terminal import write_payload
from fastbk.units import format_utc_ms

if TYPE_CHECKING:
    import argparse

    from fastbk.client import LedgerInfo


def print_entry(entry_id: int, data: memoryview, options: argparse.Namespace) -> None:
    """Print one entry as the options want it."""
    if options.raw:
        write_payload([data])
    elif options.json:
        sys.stdout.flush()
        print_json({"entry_id": entry_id, **text_or_base64("data", bytes(data))})
    else:
        text = bytes(data).decode("utf-8", "backslashreplace")
        write_payload([f"{entry_id}\t{text.rstrip(chr(10))}\n".encode()])


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


def lines_of(found: dict[str, object]) -> list[str]:
    """Return facts for people: a fragment or a pair a line."""
    rows = []
    for name, value in found.items():
        lines = [str(value)]
        if name == "missing_copies_on":
            lines = [
                ", ".join(value)
                if isinstance(value, list) and value
                else "none, as far as marks say"
            ]
        elif name == "known_whole_ms":
            lines = ["never checked, or not found whole" if value is None else _time_of(value)]
        elif isinstance(value, list):
            lines = [f"from {one['first_entry_id']}: {', '.join(one['bookies'])}" for one in value]
        elif isinstance(value, dict):
            lines = [f"{key} = {text}" for key, text in value.items()] or ["-"]
        rows += [("" if at else name, line) for at, line in enumerate(lines)]
    return table(rows, "<<")


def _time_of(value_ms: object) -> str:
    assert isinstance(value_ms, int)
    return f"all copies were there at {format_utc_ms(value_ms)}"


def plain(value: bytes) -> str:
    """Return bytes as text, those that are none escaped."""
    return value.decode("utf-8", "backslashreplace")
