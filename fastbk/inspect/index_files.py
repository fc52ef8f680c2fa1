"""The files of the index process: an entry log, run by run, and a locations file, block by block.

What counts is what a manifest names; a log that stands alone is read as far as it goes. Behind damage the next whole
run header of this log is looked for. Zeros up to the next block of the device are the end of a flush or of a chunk,
and a chunk has some more before a run whose item table did not need its room; others, where runs follow, are damage.

A locations file says where runs lie, and what is known of ledgers.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from fastbk.inspect.items import END, PAGE_BYTES, PIECE_BYTES, FileReader, Item, damage, entry_item
from fastbk.native.hashes import crc32c
from fastbk.storage.directories import JOURNAL_LOG
from fastbk.units import MIB

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from fastbk.inspect.items import Fact

MAGIC = b"FBKLOG\0\0"
RUN_MAGIC = b"KRUN"
VERSION = 1
ALIGNMENT_BYTES = 8
BLOCKS_BYTES = tuple(PAGE_BYTES << n for n in range(5))
"""What a flush may be aligned to: a page, or the block of a device that has larger ones."""
RUN_ENTRIES_MAX = 256
"""A chunk of the write cache keeps room for so many items before each run's entries (FBK_RUN_ENTRIES_MAX)."""
RUN_BYTES_MAX = 64 * MIB
RUN_SPAN_MAX = 4096

_HEADER = struct.Struct("<8sIIQQQQQII")
_RUN = struct.Struct("<4sIQQQqqqIIII")
_ITEM = struct.Struct("<qIIII")
RUN_HEADER_BYTES = _RUN.size


class Run(NamedTuple):
    """A run's header."""

    entry_count: int
    log_id: int
    salt: int
    offset_bytes: int
    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    size_bytes: int
    items_crc: int
    reserved: int
    header_crc: int


class _Owner(NamedTuple):
    """What every run of this log carries."""

    log_id: int
    salt: int


def read_entry_log(source: FileReader, durable_bytes: int | None = None) -> Iterator[Item]:
    """Yield the items of an entry log. Raises StorageError only where the file is not to be read at all.

    Args:
        source: the file.
        durable_bytes: how much of it the manifest says to count; None: not known. Runs behind it are shown all the
            same; where none can be read before it, that is damage.
    """
    yield from _read(source, durable_bytes)
    yield from source.damage()


def _read(source: FileReader, durable_bytes: int | None) -> Iterator[Item]:
    header = _header(source)
    yield header
    owner = None
    if not header.is_damage:
        owner = _Owner(header.number("log_id"), header.number("salt"))
    counted_bytes = durable_bytes or 0
    at = PAGE_BYTES
    while at < source.size_bytes:
        run = _run_at(source, at, owner)
        if run is not None:
            owner = owner or _Owner(run.log_id, run.salt)
            yield from run_items(run, source.read(run.offset_bytes, run.size_bytes))
            at += run.size_bytes
            continue
        content = _skip_zeros(source, at)
        if content == source.size_bytes:
            if at < counted_bytes and not _is_padding(at, counted_bytes):
                yield damage(at, "zeros where the manifest counts content", counted_bytes - at)
            break
        follows = _run_at(source, content, owner) if content > at else None
        if follows is not None and _is_gap(at, follows):
            at = content
            continue
        later = _next_run(source, at + ALIGNMENT_BYTES, owner)
        if later is None and at >= counted_bytes:
            yield Item(END, at, {"why": "a torn run", "size_bytes": source.size_bytes - at})
            return
        end = source.size_bytes if later is None else later
        yield damage(at, "no run can be read here", end - at)
        at = end
    if source.size_bytes < counted_bytes:
        reason = f"the manifest counts {durable_bytes} bytes, the file has {source.size_bytes}"
        yield damage(source.size_bytes, reason, counted_bytes - source.size_bytes)
    why = "zeros" if at < source.size_bytes else "the file ends"
    yield Item(END, min(at, source.size_bytes), {"why": why})


def _is_padding(from_bytes: int, to_bytes: int) -> bool:
    """Whether it goes on at the next block, whatever the blocks' size."""
    return any(-(-from_bytes // block) * block == to_bytes for block in BLOCKS_BYTES)


def _is_gap(from_bytes: int, run: Run) -> bool:
    """Whether the zeros before a run are padding, and the room of items that its table does not have."""
    for missing in range(RUN_ENTRIES_MAX - run.entry_count + 1):
        begins = run.offset_bytes - missing * _ITEM.size
        if begins == from_bytes or _is_padding(from_bytes, begins):
            return True
    return False


def _header(source: FileReader) -> Item:
    raw = source.read(0, _HEADER.size)
    if len(raw) < _HEADER.size or raw[:8] != MAGIC:
        return damage(0, "not an entry log's header", PAGE_BYTES)
    _, version, pair, log_id, salt, incarnation, created_s, _, _, crc = _HEADER.unpack(raw)
    if crc32c(raw[:-4]) != crc:
        return damage(0, "the header's checksum is wrong", PAGE_BYTES)
    if version != VERSION:
        return damage(0, f"a header of version {version}, {VERSION} is known", PAGE_BYTES)
    facts: dict[str, Fact] = {
        "log_id": log_id,
        "salt": salt,
        "incarnation": f"{incarnation:016x}",
        "pair": pair,
        "created_s": created_s,
    }
    return Item("header", 0, facts)


def _run_at(source: FileReader, offset_bytes: int, owner: _Owner | None) -> Run | None:
    """Return the run header at this offset if it is whole, was written there, and is this log's."""
    run = parse_run(source.read(offset_bytes, RUN_HEADER_BYTES), offset_bytes)
    if run is None or (owner is not None and (run.log_id, run.salt) != owner):
        return None
    return run


def parse_run(raw: bytes, offset_bytes: int) -> Run | None:
    """Return the run header that `raw` begins with if it is whole and was written at this offset."""
    if len(raw) < _RUN.size or raw[:4] != RUN_MAGIC:
        return None
    run = Run(*_RUN.unpack_from(raw)[1:])
    if run.offset_bytes != offset_bytes or crc32c(raw[: _RUN.size - 4]) != run.header_crc:
        return None
    table_bytes = _RUN.size + run.entry_count * _ITEM.size
    is_sane = (
        table_bytes <= run.size_bytes <= RUN_BYTES_MAX and run.size_bytes % ALIGNMENT_BYTES == 0
    )
    return run if is_sane else None


def run_without_header(
    offset_bytes: int, ledger_id: int, first_entry_id: int, entry_count: int, raw: bytes
) -> Run:
    """Return what the header of a run would say as far as the record around it tells; `raw`: its bytes."""
    table = raw[_RUN.size : _RUN.size + entry_count * _ITEM.size]
    return Run(
        entry_count=entry_count,
        log_id=0,
        salt=0,
        offset_bytes=offset_bytes,
        ledger_id=ledger_id,
        first_entry_id=first_entry_id,
        last_entry_id=first_entry_id + RUN_SPAN_MAX - 1,
        size_bytes=len(raw),
        items_crc=crc32c(table),
        reserved=0,
        header_crc=0,
    )


def _skip_zeros(source: FileReader, offset_bytes: int) -> int:
    """Return the offset of the next byte that is not zero, rounded down to where a run may begin."""
    at = offset_bytes
    while (at := source.data_from(at)) < source.size_bytes:
        raw = source.read(at, PIECE_BYTES)
        if not raw:
            break
        rest = raw.lstrip(b"\0")
        if rest:
            found = at + len(raw) - len(rest)
            return found - found % ALIGNMENT_BYTES
        at += len(raw)
    return source.size_bytes


def _next_run(source: FileReader, offset_bytes: int, owner: _Owner | None) -> int | None:
    at = offset_bytes
    while (at := source.data_from(at)) < source.size_bytes:
        raw = source.read(at, PIECE_BYTES)
        found = raw.find(RUN_MAGIC)
        while found >= 0:
            place = at + found
            if place % ALIGNMENT_BYTES == 0 and _run_at(source, place, owner) is not None:
                return place
            found = raw.find(RUN_MAGIC, found + 1)
        if at + len(raw) >= source.size_bytes:
            break
        at += max(len(raw) - len(RUN_MAGIC) + 1, 1)
    return None


def run_items(run: Run, raw: bytes) -> Iterator[Item]:
    """Yield a run, whose bytes are `raw` as far as they are there, and its entries."""
    facts: dict[str, Fact] = {
        "ledger_id": run.ledger_id,
        "first_entry_id": run.first_entry_id,
        "last_entry_id": run.last_entry_id,
        "entries": run.entry_count,
        "size_bytes": run.size_bytes,
    }
    yield Item("run", run.offset_bytes, facts)
    if len(raw) < run.size_bytes:
        yield damage(run.offset_bytes, "a run is cut off", run.size_bytes, ledger_id=run.ledger_id)
    table = raw[_RUN.size : _RUN.size + run.entry_count * _ITEM.size]
    if crc32c(table) != run.items_crc:
        yield damage(
            run.offset_bytes, "a run's table is damaged", run.size_bytes, ledger_id=run.ledger_id
        )
    whole = len(table) - len(table) % _ITEM.size
    left_bytes = run.size_bytes
    for entry_id, at, size_bytes, crc, _ in _ITEM.iter_unpack(table[:whole]):
        if not run.first_entry_id <= entry_id <= run.last_entry_id:
            continue  # of a damaged table
        if size_bytes > left_bytes:
            # Millions of items could name the same bytes, and each would be read anew.
            reason = f"entry {entry_id} has {size_bytes} bytes, more than the run has left for it"
            yield damage(run.offset_bytes + at, reason, ledger_id=run.ledger_id, entry_id=entry_id)
            continue
        left_bytes -= size_bytes
        entry = raw[at : at + size_bytes]
        yield entry_item(
            run.offset_bytes + at,
            run.ledger_id,
            entry_id,
            entry,
            is_whole=len(entry) == size_bytes and crc32c(entry) == crc,
        )


# A locations file, block by block: where runs lie, and what is known of ledgers.

LOCATIONS_MAGIC = b"FBKLOC\0\0"
LOCATIONS_VERSION = 3
FENCED, LIMBO, DELETED, HAS_KEY, UNCONFIRMED = 1, 2, 4, 8, 64
STATE_FLAGS = {
    FENCED: "fenced",
    LIMBO: "limbo",
    DELETED: "deleted",
    HAS_KEY: "key",
    UNCONFIRMED: "unconfirmed",
}
LOCATION_DAMAGED = 1
"""Flag of a location whose entries were found damaged, and lie in no log."""

_LOCATIONS_HEADER = struct.Struct("<8sIIQQQQQQQQQII")
_LOCATION = struct.Struct("<qqqqQQIIQ")
_STATE = struct.Struct("<qqqQI20sIIII")
_TRAILER = struct.Struct("<II")


def read_locations(
    source: FileReader, listed_logs: Collection[int] | None = None
) -> Iterator[Item]:
    """Yield the items of a locations file. Raises StorageError only where the file is not to be read at all.

    `listed_logs`: ids of the logs that the manifest lists; a location in another log is void (INV-X5). None: not known.
    """
    for item in _read_locations(source):
        is_run = item.what == "location" and not item.facts.get("damaged")
        if is_run and listed_logs is not None and item.facts["log_id"] not in listed_logs:
            item.facts["void"] = True
        yield item
    yield from source.damage()


def _read_locations(source: FileReader) -> Iterator[Item]:
    header = _locations_header(source)
    yield header
    blocks = source.size_bytes // PAGE_BYTES - 1
    location_blocks: int | None = None
    if not header.is_damage:
        location_blocks = header.number("location_blocks")
        named = location_blocks + header.number("state_blocks")
        if named > blocks:
            yield damage(
                source.size_bytes, f"the header names {named} blocks, the file has {max(blocks, 0)}"
            )
        blocks = min(blocks, named)
    locations = states = number = 0
    while number < blocks:
        number += 1
        at = number * PAGE_BYTES
        if hole := min((source.data_from(at) - at) // PAGE_BYTES, blocks + 1 - number):
            reason = f"{hole} blocks are zeros" if hole > 1 else "a block is zeros"
            yield damage(at, reason, hole * PAGE_BYTES, block=number)
            number += hole - 1
            continue
        raw = source.read(at, PAGE_BYTES)
        if len(raw) < PAGE_BYTES:
            yield damage(at, "the file was cut short while it was read", block=number)
            break
        own_number, crc = _TRAILER.unpack(raw[-_TRAILER.size :])
        if crc32c(raw[:-4]) != crc:
            yield damage(at, "a block's checksum is wrong", PAGE_BYTES, block=number)
            continue
        if own_number != number:
            yield damage(at, f"block {own_number} lies here", PAGE_BYTES, block=number)
            continue
        if _holds_states(raw, number, location_blocks):
            for item in _states(raw, at):
                states += not item.is_damage
                yield item
        else:
            for item in _locations(raw, at):
                locations += 1
                yield item
    yield from _missing(header, locations, states)
    yield Item(END, (blocks + 1) * PAGE_BYTES, {"why": "the last block"})


def _missing(header: Item, locations: int, states: int) -> Iterator[Item]:
    for name, found in (("location_count", locations), ("state_count", states)):
        named = header.facts.get(name)
        if isinstance(named, int) and named != found:
            yield damage(0, f"the header says {name} {named}, {found} could be read")


def _locations_header(source: FileReader) -> Item:
    raw = source.read(0, _LOCATIONS_HEADER.size)
    if len(raw) < _LOCATIONS_HEADER.size or raw[:8] != LOCATIONS_MAGIC:
        return damage(0, "not a locations file's header", PAGE_BYTES)
    (_, version, pair, file_id, incarnation, location_count, location_blocks, state_count, state_blocks, created_s,
     first_generation, last_generation, _, crc) = _LOCATIONS_HEADER.unpack(raw)  # fmt: skip
    if crc32c(raw[:-4]) != crc:
        return damage(0, "the header's checksum is wrong", PAGE_BYTES)
    if not 1 <= version <= LOCATIONS_VERSION:
        return damage(
            0, f"a header of version {version}, 1 to {LOCATIONS_VERSION} are known", PAGE_BYTES
        )
    facts: dict[str, Fact] = {
        "file_id": file_id,
        "incarnation": f"{incarnation:016x}",
        "pair": pair,
        "created_s": created_s,
        "first_generation": first_generation,
        "last_generation": last_generation,
        "location_count": location_count,
        "location_blocks": location_blocks,
        "state_count": state_count,
        "state_blocks": state_blocks,
    }
    return Item("header", 0, facts)


def _holds_states(raw: bytes, number: int, location_blocks: int | None) -> bool:
    """Return whether a block holds states; without a header a state tells by its own checksum."""
    if location_blocks is not None:
        return number > location_blocks
    first = raw[: _STATE.size]
    return any(first) and crc32c(first[:-4]) == _STATE.unpack(first)[-1]


def _locations(raw: bytes, offset_bytes: int) -> Iterator[Item]:
    for start in range(0, PAGE_BYTES - _TRAILER.size - _LOCATION.size + 1, _LOCATION.size):
        (ledger_id, first, last, _, log_id, offset, size_bytes, entries, flags) = (
            _LOCATION.unpack_from(raw, start)
        )
        if not entries and not flags & LOCATION_DAMAGED:
            return
        facts: dict[str, Fact] = {
            "ledger_id": ledger_id,
            "first_entry_id": first,
            "last_entry_id": last,
            "log_id": log_id,
            "log_offset_bytes": offset,
            "size_bytes": size_bytes,
            "entries": entries,
        }
        if log_id & JOURNAL_LOG:
            facts["journal_file_id"] = log_id ^ JOURNAL_LOG
        if flags & LOCATION_DAMAGED:
            facts["damaged"] = True
        yield Item("location", offset_bytes + start, facts)


def _states(raw: bytes, offset_bytes: int) -> Iterator[Item]:
    for start in range(0, PAGE_BYTES - _TRAILER.size - _STATE.size + 1, _STATE.size):
        one = raw[start : start + _STATE.size]
        if not any(one):
            return
        ledger_id, highest, lac, sequence, flags, _, deleted_s, mark, _, crc = _STATE.unpack(one)
        if crc32c(one[:-4]) != crc:
            yield damage(offset_bytes + start, "a ledger's state is damaged", _STATE.size)
            continue
        facts: dict[str, Fact] = {
            "ledger_id": ledger_id,
            "highest_entry_id": highest,
            "last_add_confirmed": lac,
            "changed_sequence": sequence,
            "flags": [name for bit, name in STATE_FLAGS.items() if flags & bit],
        }
        if deleted_s:
            facts["deleted_s"] = deleted_s
        if mark:
            facts["creation_mark"] = mark
        yield Item("state", offset_bytes + start, facts)
