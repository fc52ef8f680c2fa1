"""Records as lines of text and of JSON, out and in; and a stream's durable cursors, as tables."""

from __future__ import annotations

import base64
import binascii
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.cli.options import note, table, text_or_base64
from fastbk.cli.terminal import write_payload
from fastbk.errors import ConfigError
from fastbk.units import format_age_s, format_count

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from fastbk.stream.cursor.backlog import Backlog
    from fastbk.stream.cursor.store import CursorInfo
    from fastbk.stream.pattern.store import PatternCursorInfo
    from fastbk.stream.records import Gap, Record


_WORDS = {"trimmed": "were truncated", "lost": "are lost: no bookie gives them"}


def print_record(record: Record, options: argparse.Namespace) -> None:
    """Print one record as the options want it; with its stream, where it is one of a pattern's."""
    if options.json:
        line = json.dumps(as_json(record), ensure_ascii=False)
        sys.stdout.buffer.write(
            (line if line.isprintable() else json.dumps(as_json(record))).encode() + b"\n"
        )
    elif options.payload:
        write_payload([record.payload, b"\n"])
    else:
        text = bytes(record.payload).decode("utf-8", "backslashreplace")
        stream = f"{record.stream}\t" if record.stream else ""
        write_payload([f"{stream}{record.dlsn}\t{text}\n".encode()])


def print_gap(gap: Gap, options: argparse.Namespace) -> None:
    """Say that records are gone: in JSON a line of its own, else on stderr."""
    if options.json:
        found = {"stream": gap.stream} if gap.stream else {}
        found |= {"gap": gap.kind, "first": str(gap.first), "next": str(gap.next)}
        line = json.dumps({**found, "records": gap.records})
        sys.stdout.buffer.write(line.encode() + b"\n")
    else:
        sys.stdout.flush()
        note(f"fastbk: {text_of_gap(gap)}")


def text_of_gap(gap: Gap) -> str:
    """Return which records are gone, and why."""
    how_many = "some" if gap.records is None else f"{gap.records:,}"
    of = f" of {gap.stream}" if gap.stream else ""
    return f"{how_many} records{of} from {gap.first} up to {gap.next} {_WORDS[gap.kind]}"


def as_json(record: Record) -> dict[str, object]:
    """Return a record for JSON: what is text as text, what is not in base64."""
    found: dict[str, object] = {"stream": record.stream} if record.stream else {}
    found |= {
        "dlsn": str(record.dlsn),
        "seq": record.seq,
        "txid": record.txid,
        "time": record.time.isoformat().replace("+00:00", "Z"),
    }
    found |= text_or_base64("payload", bytes(record.payload))
    if record.key is not None:
        found |= text_or_base64("key", record.key)
    if record.headers:
        found["headers"] = [
            {"name": name, **text_or_base64("value", value)} for name, value in record.headers
        ]
    return found


@dataclass(frozen=True, slots=True)
class RecordLine:
    """A record to append, as a line says it."""

    payload: bytes
    txid: int | None = None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


def line_of_json(raw: bytes, number: int) -> RecordLine:
    """Return what a line of JSON says, as `as_json` writes it; position, number and time are not looked at.

    Raises ConfigError with the line's number.
    """
    try:
        found = json.loads(raw)
        if not isinstance(found, dict):
            raise ValueError("a line must be an object")
        payload = _get(found, "payload")
        if payload is None:
            raise ValueError("payload or payload_base64 is missing")
        txid = found.get("txid")
        if txid is not None and (not isinstance(txid, int) or isinstance(txid, bool)):
            raise ValueError("txid must be a whole number")
        listed = found.get("headers", [])
        if not isinstance(listed, list):
            raise ValueError("headers must be a list of objects with name and value")
        headers = tuple(_header(one) for one in listed)
        return RecordLine(payload, txid, _get(found, "key"), headers)
    except (ValueError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
        raise ConfigError(
            f"line {number}: {error}; what `fastbk stream read --json` prints can be appended"
        ) from error


def _header(found: object) -> tuple[str, bytes]:
    if not isinstance(found, dict):
        raise ValueError("headers must be a list of objects with name and value")
    name, value = found.get("name"), _get(found, "value")
    if not isinstance(name, str) or value is None:
        raise ValueError("a header has a name and a value")
    name.encode()  # a lone surrogate has no UTF-8
    return name, value


def _get(found: dict[str, object], name: str) -> bytes | None:
    text, raw = found.get(name), found.get(f"{name}_base64")
    if isinstance(text, str):
        return text.encode()
    if text is not None:
        raise ValueError(f"{name} must be text")
    return None if raw is None else base64.b64decode(str(raw), validate=True)


HEAD = ("cursor", "mark", "behind", "oldest", "moved", "data", "holder")


def cursor_facts(info: CursorInfo, backlog: Backlog | None, now_s: float) -> dict[str, object]:
    """Return what is known of a cursor, for JSON. Ages in milliseconds; None: bookies do not tell it now."""
    return {
        "cursor": info.label,
        "mark": str(info.mark),
        "mark_seq": info.mark_seq,
        "ranges": info.ranges,
        "backlog": None if backlog is None else backlog.records,
        "backlog_bytes": None if backlog is None else backlog.size_bytes,
        "oldest_ms": None if backlog is None else round(1000 * backlog.seconds),
        "moved_ms_ago": _ms_ago(info.moved_at_us, now_s),
        "used_ms_ago": _ms_ago(info.used_at_us, now_s),
        "by": info.data.get("by"),
        "holds": info.holds,
        "epoch": info.epoch,
        "holder": info.holder,
        "expires_at_us": info.expires_at_us,
    }


def _ms_ago(at_us: int, now_s: float) -> int:
    return max(0, round(1000 * now_s - at_us / 1000))


def cursor_lines(found: Sequence[dict[str, object]]) -> list[str]:
    """Return a table of `cursor_facts`."""
    rows = [HEAD]
    for one in found:
        backlog, oldest = one["backlog"], one["oldest_ms"]
        behind = "-" if backlog is None else format_count(int(str(backlog)), "record")
        age = _age(oldest) if oldest else "-"
        held = "held" if one["holds"] else "not held"
        moved = f"{_age(one['moved_ms_ago'])} ago"
        rows.append((str(one["cursor"]), str(one["mark"]), behind, age, moved, held, _holder(one)))
    return table(rows, "<" * len(HEAD))


PATTERN_HEAD = ("cursor", "pattern", "streams", "kept", "data", "holder")


def pattern_cursor_facts(info: PatternCursorInfo, now_s: float) -> dict[str, object]:
    """Return what is known of a cursor of a pattern, for JSON."""
    record = info.record
    return {
        "cursor": info.name,
        "pattern": info.pattern,
        "streams": len(record.positions),
        "ranges": info.ranges,
        "kept_ms_ago": _ms_ago(record.time_us, now_s),
        "holds": bool(info.fault) or record.holds,
        "epoch": record.epoch,
        "holder": record.holder,
        "expires_at_us": record.expires_at_us,
        "fault": info.fault,
    }


def pattern_cursor_lines(found: Sequence[dict[str, object]]) -> list[str]:
    """Return a table of `pattern_cursor_facts`."""
    rows = [PATTERN_HEAD]
    for one in found:
        held = "held" if one["holds"] else "not held"
        shown = str(one["fault"] or one["holder"] or "-")
        kept = f"{_age(one['kept_ms_ago'])} ago"
        rows.append(
            (str(one["cursor"]), str(one["pattern"]), f"{one['streams']:,}", kept, held, shown)
        )
    return table(rows, "<" * len(PATTERN_HEAD))


def _holder(one: dict[str, object]) -> str:
    holder = str(one["holder"] or "-")
    if one["by"] != "spark":
        return holder
    return f"a query of Spark's, planned {_age(one['used_ms_ago'])} ago: {holder}"


def _age(milliseconds: object) -> str:
    return format_age_s(int(str(milliseconds)) / 1000)
