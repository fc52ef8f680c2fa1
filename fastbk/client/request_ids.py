"""Request ids of a writer's adds: a slot in the upper bits, the entry id in the lower 40, wrapping.

One encoded frame serves all bookies, so a request id may depend on nothing but writer and entry. What is in flight
spans far less than 2^39 entries: an answer is about the entry next to the head that has its sequence. The highest
sequence is left out, so that a run of ids never reaches into the next slot.
"""

from __future__ import annotations

from collections.abc import Container

from fastbk.model.ids import EntryId

SLOT_SHIFT = 40
SEQUENCE_MAX = (1 << SLOT_SHIFT) - 1
# The last slot is never given out: translations for Apache's bookies number their own requests in it.
SLOT_MAX = (1 << 64 - SLOT_SHIFT) - 2
_COUNT = SEQUENCE_MAX
_HALF = _COUNT // 2


def first_request_id(slot: int, entry_id: EntryId) -> int:
    """Return the request id of an add of `entry_id` by the writer with that slot."""
    return slot << SLOT_SHIFT | entry_id % _COUNT


def room_before_wrap(entry_id: EntryId) -> int:
    """Return how many consecutive entries from `entry_id` on have consecutive request ids."""
    return _COUNT - entry_id % _COUNT


def entry_of(sequence: int, head: EntryId) -> EntryId:
    """Return the entry id that a sequence stands for; `head`: any id less than 2^39 away from it."""
    return head + (sequence - head + _HALF) % _COUNT - _HALF


def next_slot(last: int, used: Container[int]) -> int:
    """Return the slot after `last` that is not `used`: they come around after 16 million writers of one client."""
    slot = last % SLOT_MAX + 1
    while slot in used:
        slot = slot % SLOT_MAX + 1
    return slot
