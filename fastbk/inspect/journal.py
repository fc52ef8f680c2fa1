"""A journal file, batch by batch and record by record: what was written, what is torn, what is
damaged.

The reader ends where replay would, and says why: at a closing batch, at zeros, at what an earlier
use of the file left, or at a batch that is torn. Behind damage it looks for the next batch of the
same use; if there is one, what lies between is reported and it goes on there. Without a readable
header the use is that of the newest batch in the file. A batch has adds, batches of adds, and
fences. In a file that may stay as a log it also has runs, as an entry log has them.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from fastbk.inspect.index_files import parse_run, run_items, run_without_header
from fastbk.inspect.items import END, PAGE_BYTES, PIECE_BYTES, FileReader, Item, damage, entry_item
from fastbk.native.hashes import crc32c
from fastbk.storage.journal_files import id_of
from fastbk.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastbk.inspect.items import Fact

MAGIC = b"FBKJRNL\0"
BATCH_MAGIC = b"BTCH"
VERSION = 3
VERSION_WITH_RUNS = 3
BLOCK_BYTES_MAX = 65_536
BATCH_BYTES_MAX = 64 * MIB
CLOSING = 1

_HEADER = struct.Struct("<8sIIQQQIIQQQIIQQQ128sII")
_BATCH = struct.Struct("<4sIQQQQQQQIIIIII")


class Use(NamedTuple):
    """Which of its lives a recycled file is read as."""

    file_id: int
    salt: int
    block_bytes: int


@dataclass(frozen=True, slots=True)
class _Header:
    use: Use
    predecessor_crc: int
    first_sequence: int
    first_record_sequence: int
    facts: dict[str, Fact]
    size_bytes: int = 0
    """What the header says; 0: there is none."""


class _Batch(NamedTuple):
    flags: int
    file_id: int
    salt: int
    offset_bytes: int
    sequence: int
    acked_through: int
    first_record_sequence: int
    written_s: int
    record_count: int
    padded_bytes: int
    content_bytes: int
    previous_crc: int
    records_crc: int
    header_crc: int


def read_journal(source: FileReader) -> Iterator[Item]:
    """Yield the items of a journal file. Raises StorageError only where the file is not to be read at all."""
    yield from _read(source)
    yield from source.damage()


def _read(source: FileReader) -> Iterator[Item]:
    if source.size_bytes < PAGE_BYTES:
        yield damage(0, "shorter than a journal's header", source.size_bytes)
        return
    headers = list(_headers(source))
    found = [header for header in headers if isinstance(header, _Header)]
    yield from (each for each in headers if isinstance(each, Item))
    if found:
        header = max(found, key=lambda each: each.use.file_id)
        named = id_of(os.path.basename(source.path))
        if named is not None and named != header.use.file_id:
            header.facts["renamed_to"] = (
                named  # for re-use, and not used since: its content is behind the mark
            )
        yield Item("header", 0, header.facts)
        yield from _batches(source, header)
        return
    use = _newest_use(source)
    if use is None:
        is_used = any(source.read(0, 2 * PAGE_BYTES))
        why = "no batch can be read" if is_used else "never used: no header was ever written"
        yield Item(END, 0, {"why": why})
        return
    if not headers:
        yield damage(0, "both headers are gone", 2 * PAGE_BYTES)
    yield from _batches(source, _Header(use, 0, 0, 0, {}))


# --- headers -----------------------------------------------------------------------------------------------------


def _headers(source: FileReader) -> Iterator[_Header | Item]:
    """Yield both copies, or what is wrong with them; nothing for zeros."""
    first = _header_at(source, 0)
    if first is not None:
        yield first
    if isinstance(first, _Header):
        places = [first.use.block_bytes]
    else:
        places = [PAGE_BYTES << n for n in range(5)]
    for place in places:
        second = _header_at(source, place)
        if isinstance(second, _Header) and second.use.block_bytes == place:
            yield second
            return
        if second is not None and place == places[0]:
            yield (
                second
                if isinstance(second, Item)
                else damage(place, "a header that belongs elsewhere")
            )


def _header_at(source: FileReader, offset_bytes: int) -> _Header | Item | None:
    raw = source.read(offset_bytes, _HEADER.size)
    if not any(raw):
        return None
    if len(raw) < _HEADER.size or raw[:8] != MAGIC:
        return damage(offset_bytes, "not a journal's header", PAGE_BYTES)
    (_, version, block_bytes, file_id, salt, incarnation, pair, _, file_bytes, before_id, before_sequence, before_crc,
     _, first_sequence, first_record, created_s, bookie_id, _, crc) = _HEADER.unpack(raw)  # fmt: skip
    if crc32c(raw[:-4]) != crc:
        return damage(offset_bytes, "a header's checksum is wrong", PAGE_BYTES)
    if not 1 <= version <= VERSION:
        return damage(
            offset_bytes, f"a header of version {version}, 1 to {VERSION} are known", PAGE_BYTES
        )
    is_power = block_bytes & (block_bytes - 1) == 0
    if not is_power or not PAGE_BYTES <= block_bytes <= BLOCK_BYTES_MAX:
        return damage(offset_bytes, f"a header with blocks of {block_bytes} bytes", PAGE_BYTES)
    facts: dict[str, Fact] = {
        "file_id": file_id,
        "bookie_id": bookie_id.rstrip(b"\0").decode(errors="replace"),
        "incarnation": f"{incarnation:016x}",
        "pair": pair,
        "created_s": created_s,
        "file_size_bytes": file_bytes,
        "block_size_bytes": block_bytes,
        "predecessor_file_id": before_id,
        "predecessor_sequence": before_sequence,
        "first_sequence": first_sequence,
    }
    if version >= VERSION_WITH_RUNS:
        facts["adopts"] = True
    use = Use(file_id, salt, block_bytes)
    return _Header(use, before_crc, first_sequence, first_record, facts, file_bytes)


# --- batches -----------------------------------------------------------------------------------------------------


def _batches(source: FileReader, header: _Header) -> Iterator[Item]:
    use = header.use
    offset_bytes = 2 * use.block_bytes
    expected, previous_crc = header.first_sequence, header.predecessor_crc
    is_sure = bool(header.facts)  # of the sequence that comes next, and of the chain to it
    while offset_bytes < source.size_bytes:
        batch = _batch_at(source, offset_bytes, use)
        if batch is None:
            later = _next_batch(source, offset_bytes + use.block_bytes, use)
            if later is None:
                yield _end(source, offset_bytes, use, expected)
                return
            yield damage(offset_bytes, "no batch can be read here", later.offset_bytes - offset_bytes,
                         next_sequence=later.sequence, next_acked_through=later.acked_through)  # fmt: skip
            offset_bytes, is_sure = later.offset_bytes, False
            if expected and later.sequence > expected:
                yield damage(
                    offset_bytes, f"batches {expected} to {later.sequence - 1} are missing"
                )
            continue
        if is_sure and (batch.sequence, batch.previous_crc) != (expected, previous_crc):
            reason = f"batch {batch.sequence} does not follow batch {expected - 1}"
            yield damage(offset_bytes, reason)
        yield from _batch_items(source, batch)
        expected, previous_crc, is_sure = batch.sequence + 1, batch.header_crc, True
        offset_bytes += batch.padded_bytes
        if batch.flags & CLOSING:
            yield Item(
                END, offset_bytes, {"why": "a closing batch", "last_sequence": batch.sequence}
            )
            return
    is_cut = source.size_bytes < header.size_bytes
    why = "the file was cut here" if is_cut else "the file is full"
    yield Item(END, offset_bytes, {"why": why, "last_sequence": expected - 1})


def _parse_batch(raw: bytes, offset_bytes: int) -> _Batch | None:
    """Return the batch header in `raw` if it was written at this offset and is whole."""
    if len(raw) < _BATCH.size or raw[:4] != BATCH_MAGIC:
        return None
    batch = _Batch(*_BATCH.unpack(raw[: _BATCH.size])[1:])
    is_sane = _BATCH.size <= batch.content_bytes <= batch.padded_bytes <= BATCH_BYTES_MAX
    if not is_sane or batch.offset_bytes != offset_bytes or batch.padded_bytes % PAGE_BYTES:
        return None
    return batch if crc32c(raw[: _BATCH.size - 4]) == batch.header_crc else None


def _batch_at(source: FileReader, offset_bytes: int, use: Use) -> _Batch | None:
    batch = _parse_batch(source.read(offset_bytes, _BATCH.size), offset_bytes)
    if batch is None or (batch.file_id, batch.salt) != (use.file_id, use.salt):
        return None
    return batch


def _all_batches(source: FileReader, offset_bytes: int, step_bytes: int) -> Iterator[_Batch]:
    """Yield every whole batch header from `offset_bytes` on, of whatever use."""
    at = offset_bytes
    while at < source.size_bytes:
        at += (source.data_from(at) - at) // step_bytes * step_bytes
        if source.read(at, 4) == BATCH_MAGIC:
            batch = _parse_batch(source.read(at, _BATCH.size), at)
            if batch is not None:
                yield batch
        at += step_bytes


def _next_batch(source: FileReader, offset_bytes: int, use: Use) -> _Batch | None:
    same = (use.file_id, use.salt)
    batches = _all_batches(source, offset_bytes, use.block_bytes)
    return next((batch for batch in batches if (batch.file_id, batch.salt) == same), None)


def _newest_use(source: FileReader) -> Use | None:
    newest = max(
        _all_batches(source, 2 * PAGE_BYTES, PAGE_BYTES),
        key=lambda batch: (batch.file_id, batch.sequence),
        default=None,
    )
    return None if newest is None else Use(newest.file_id, newest.salt, PAGE_BYTES)


def _end(source: FileReader, offset_bytes: int, use: Use, expected: int) -> Item:
    """Say what lies where the next batch would."""
    raw = source.read(offset_bytes, min(use.block_bytes, PIECE_BYTES))
    older = _parse_batch(raw, offset_bytes)
    facts: dict[str, Fact] = {"last_sequence": expected - 1 if expected else None}
    if not any(raw):
        return Item(END, offset_bytes, {"why": "zeros", **facts})
    if older is not None:
        why = f"what an earlier use of the file left (file {older.file_id}, batch {older.sequence})"
        return Item(END, offset_bytes, {"why": why, **facts})
    return Item(END, offset_bytes, {"why": "a torn batch, or an earlier use's content", **facts})


def _batch_items(source: FileReader, batch: _Batch) -> Iterator[Item]:
    raw = source.read(batch.offset_bytes, batch.padded_bytes)
    facts: dict[str, Fact] = {
        "sequence": batch.sequence,
        "acked_through": batch.acked_through,
        "written_s": batch.written_s,
        "records": batch.record_count,
        "size_bytes": batch.padded_bytes,
    }
    if batch.flags & CLOSING:
        facts["closing"] = True
    yield Item("batch", batch.offset_bytes, facts)
    if len(raw) < batch.padded_bytes:
        yield damage(batch.offset_bytes, f"batch {batch.sequence} is cut off", len(raw))
    content = memoryview(raw)[_BATCH.size : batch.content_bytes]
    records = records_of(
        bytes(content), batch.offset_bytes + _BATCH.size, batch.first_record_sequence
    )
    headers_crc = 0
    count = 0
    for header, items in records:
        if header is not None:
            headers_crc = crc32c(header, headers_crc)
            count += 1
        yield from items
    headers_crc = (
        crc32c(raw[batch.content_bytes :], headers_crc)
        if raw[batch.content_bytes :]
        else headers_crc
    )
    if count != batch.record_count or headers_crc != batch.records_crc:
        yield damage(batch.offset_bytes, f"batch {batch.sequence} is not whole", batch.padded_bytes,
                     sequence=batch.sequence, records_read=count)  # fmt: skip


ADD, ADD_BATCH, FENCE, RUN = 1, 2, 3, 5
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
    offset = 0
    expected = first_sequence
    while offset < len(content):
        record = _record_at(content, offset)
        if record is None:
            end = _next_record(content, offset + ALIGNMENT_BYTES)
            reason = "no record can be read here"
            yield None, [damage(offset_bytes + offset, reason, end - offset)]
            offset = end
            continue
        items = []
        if record.sequence != expected:
            reason = f"record {record.sequence} where {expected} is due"
            items.append(damage(offset_bytes + offset, reason))
        start = offset + _RECORD.size
        payload = content[start : start + record.payload_bytes]
        items += _items(record, payload, offset_bytes + offset)
        yield content[offset:start], items
        expected = record.sequence + 1
        offset += record.size_bytes


def _record_at(content: bytes, at: int) -> _Record | None:
    if len(content) - at < _RECORD.size:
        return None
    record = _Record(*_RECORD.unpack_from(content, at))
    rounded = -(-(_RECORD.size + record.payload_bytes) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    if record.size_bytes != rounded or record.size_bytes > len(content) - at:
        return None
    is_whole = crc32c(content[at : at + _RECORD.size - 4]) == record.header_crc
    return record if is_whole and record.kind in (ADD, ADD_BATCH, FENCE, RUN) else None


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
    read = {ADD: _add, ADD_BATCH: _adds, RUN: _run}[record.kind]
    for item in read(record, payload, start):
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


def _run(record: _Record, payload: bytes, offset_bytes: int) -> Iterator[Item]:
    """Read what an entry log has, too. Where its header is damaged, the record's says where its table is."""
    run = parse_run(payload, offset_bytes)
    if run is None or (run.ledger_id, run.size_bytes) != (record.ledger_id, len(payload)):
        yield damage(
            offset_bytes,
            "a run's header is damaged",
            record.payload_bytes,
            ledger_id=record.ledger_id,
            first_entry_id=record.entry_id,
        )
        ids = record.ledger_id, record.entry_id, record.entry_count
        run = run_without_header(offset_bytes, *ids, payload)
    yield from run_items(run, payload)


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
    offset = table_bytes
    for nth, (size_bytes, crc) in enumerate(_ITEM.iter_unpack(payload[:table_bytes])):
        raw = payload[offset : offset + size_bytes]
        yield entry_item(
            offset_bytes + offset,
            record.ledger_id,
            record.entry_id + nth,
            raw,
            is_whole=len(raw) == size_bytes and crc32c(raw) == crc,
        )
        offset += size_bytes
