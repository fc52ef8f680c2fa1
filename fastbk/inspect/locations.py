"""A locations file, block by block: where runs lie, and what is known of ledgers."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from fastbk.inspect.items import END, PAGE_BYTES, FileReader, Item, damage
from fastbk.native.hashes import crc32c

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from fastbk.inspect.items import Fact

MAGIC = b"FBKLOC\0\0"
VERSION = 2
FENCED, LIMBO, DELETED, HAS_KEY, UNCONFIRMED = 1, 2, 4, 8, 64
STATE_FLAGS = {
    FENCED: "fenced",
    LIMBO: "limbo",
    DELETED: "deleted",
    HAS_KEY: "key",
    UNCONFIRMED: "unconfirmed",
}
LOCATION_DAMAGED = 1
"""Of a location's flags: its entries were found damaged, and lie in no log."""

_HEADER = struct.Struct("<8sIIQQQQQQQQQII")
_LOCATION = struct.Struct("<qqqqQQIIQ")
_STATE = struct.Struct("<qqqQI20sIIII")
_TRAILER = struct.Struct("<II")


def read_locations(
    source: FileReader, listed_logs: Collection[int] | None = None
) -> Iterator[Item]:
    """Yield the items of a locations file. Raises StorageError only where the file is not to be read at all.

    `listed_logs`: ids of the logs that the manifest lists; a location in another log is void (INV-X5). None: not known.
    """
    for item in _read(source):
        is_run = item.what == "location" and not item.facts.get("damaged")
        if is_run and listed_logs is not None and item.facts["log_id"] not in listed_logs:
            item.facts["void"] = True
        yield item
    yield from source.damage()


def _read(source: FileReader) -> Iterator[Item]:
    header = _header(source)
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


def _header(source: FileReader) -> Item:
    raw = source.read(0, _HEADER.size)
    if len(raw) < _HEADER.size or raw[:8] != MAGIC:
        return damage(0, "not a locations file's header", PAGE_BYTES)
    (_, version, pair, file_id, incarnation, location_count, location_blocks, state_count, state_blocks, created_s,
     first_generation, last_generation, _, crc) = _HEADER.unpack(raw)  # fmt: skip
    if crc32c(raw[:-4]) != crc:
        return damage(0, "the header's checksum is wrong", PAGE_BYTES)
    if not 1 <= version <= VERSION:
        return damage(0, f"a header of version {version}, 1 to {VERSION} are known", PAGE_BYTES)
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
    for at in range(0, PAGE_BYTES - _TRAILER.size - _LOCATION.size + 1, _LOCATION.size):
        (ledger_id, first, last, _, log_id, offset, size_bytes, entries, flags) = (
            _LOCATION.unpack_from(raw, at)
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
        if flags & LOCATION_DAMAGED:
            facts["damaged"] = True
        yield Item("location", offset_bytes + at, facts)


def _states(raw: bytes, offset_bytes: int) -> Iterator[Item]:
    for at in range(0, PAGE_BYTES - _TRAILER.size - _STATE.size + 1, _STATE.size):
        one = raw[at : at + _STATE.size]
        if not any(one):
            return
        ledger_id, highest, lac, sequence, flags, _, deleted_s, mark, _, crc = _STATE.unpack(one)
        if crc32c(one[:-4]) != crc:
            yield damage(offset_bytes + at, "a ledger's state is damaged", _STATE.size)
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
        yield Item("state", offset_bytes + at, facts)
