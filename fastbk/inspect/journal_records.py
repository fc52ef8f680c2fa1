"""The records of one journal batch: adds, batches of adds, fences."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from fastbk.inspect.items import Item, damage, entry_item
from fastbk.native.hashes import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastbk.inspect.items import Fact

ADD, ADD_BATCH, FENCE = 1, 2, 3
RECOVERY, DEFERRED_SYNC = 1, 2
DIGESTS = {1: "crc32", 2: "hmac", 3: "crc32c", 4: "dummy"}
ALIGNMENT_BYTES = 8

_RECORD = struct.Struct("<IIBBHIqqQQQ20sIIIII")
_ITEM = struct.Struct("<II")


class _Record(NamedTuple):
    size_bytes: int
    payload_bytes: int
    kind: int
    digest_type: int
    flags: int
    entry_count: int
    ledger_id: int
    entry_id: int
    sequence: int
    request_id: int
    connection_id: int
    master_key: bytes
    body_crc: int
    epoch: int
    received_us: int
    reserved: int
    header_crc: int


def records_of(
    content: bytes, offset_bytes: int, first_sequence: int
) -> Iterator[tuple[bytes | None, list[Item]]]:
    """Yield each record's header and items; (None, damage) for a stretch without a readable header.

    Args:
        content: what follows the batch's header, without the padding.
        offset_bytes: of `content` in the file.
        first_sequence: the first record's.
    """
    at = 0
    expected = first_sequence
    while at < len(content):
        record = _record_at(content, at)
        if record is None:
            end = _next_record(content, at + ALIGNMENT_BYTES)
            reason = "no record can be read here"
            yield None, [damage(offset_bytes + at, reason, end - at)]
            at = end
            continue
        items = []
        if record.sequence != expected:
            reason = f"record {record.sequence} where {expected} is due"
            items.append(damage(offset_bytes + at, reason))
        start = at + _RECORD.size
        payload = content[start : start + record.payload_bytes]
        items += _items(record, payload, offset_bytes + at)
        yield content[at:start], items
        expected = record.sequence + 1
        at += record.size_bytes


def _record_at(content: bytes, at: int) -> _Record | None:
    if len(content) - at < _RECORD.size:
        return None
    record = _Record(*_RECORD.unpack_from(content, at))
    rounded = -(-(_RECORD.size + record.payload_bytes) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    if record.size_bytes != rounded or record.size_bytes > len(content) - at:
        return None
    is_whole = crc32c(content[at : at + _RECORD.size - 4]) == record.header_crc
    return record if is_whole and record.kind in (ADD, ADD_BATCH, FENCE) else None


def _next_record(content: bytes, at: int) -> int:
    """Return where the next whole record header is, or the end."""
    while at < len(content) and _record_at(content, at) is None:
        at += ALIGNMENT_BYTES
    return min(at, len(content))


def _items(record: _Record, payload: bytes, offset_bytes: int) -> Iterator[Item]:
    facts: dict[str, Fact] = {"ledger_id": record.ledger_id, "sequence": record.sequence}
    if record.kind == FENCE:
        if crc32c(payload) != record.body_crc:
            yield damage(offset_bytes, "a fence's checksum is wrong", record.size_bytes, **facts)
        yield Item("fence", offset_bytes, {**facts, "has_key": any(record.master_key)})
        return
    marks: dict[str, Fact] = {"sequence": record.sequence}
    if record.flags & RECOVERY:
        marks["recovery"] = True
    if record.flags & DEFERRED_SYNC:
        marks["deferred_sync"] = True
    if record.digest_type in DIGESTS:
        marks["digest"] = DIGESTS[record.digest_type]
    start = offset_bytes + _RECORD.size
    entries = _add(record, payload, start) if record.kind == ADD else _adds(record, payload, start)
    for item in entries:
        item.facts.update(marks)
        yield item


def _add(record: _Record, payload: bytes, offset_bytes: int) -> Iterator[Item]:
    yield entry_item(
        offset_bytes,
        record.ledger_id,
        record.entry_id,
        payload,
        is_whole=crc32c(payload) == record.body_crc,
    )


def _adds(record: _Record, payload: bytes, offset_bytes: int) -> Iterator[Item]:
    """Read a table of sizes and checksums, and the entries behind it."""
    table_bytes = record.entry_count * _ITEM.size
    if table_bytes > len(payload) or crc32c(payload[:table_bytes]) != record.body_crc:
        yield damage(
            offset_bytes,
            "the table of a batch of adds is damaged",
            record.payload_bytes,
            ledger_id=record.ledger_id,
            first_entry_id=record.entry_id,
            last_entry_id=record.entry_id + record.entry_count - 1,
        )
        return
    at = table_bytes
    for nth, (size_bytes, crc) in enumerate(_ITEM.iter_unpack(payload[:table_bytes])):
        raw = payload[at : at + size_bytes]
        yield entry_item(
            offset_bytes + at,
            record.ledger_id,
            record.entry_id + nth,
            raw,
            is_whole=len(raw) == size_bytes and crc32c(raw) == crc,
        )
        at += size_bytes
