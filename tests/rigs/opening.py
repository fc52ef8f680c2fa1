"""What is on a bookie's disk after a failure, in two ways.

`look` reads the formats: the manifest, the store it names, and the batches behind the mark. It is fast, writes nothing,
and shares only the readers with the bookie. `open_whole` starts a bookie: replay, flush, a new journal file, every
answer through the rings.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fastbk.native.store import Store, StoreOptions
from fastbk.storage.checkpoint import Checkpoint
from fastbk.storage.journal_files import conclude_replay, find_files, plan_replay
from fastbk.storage.manifest import ManifestSlots
from tests.fixtures.index_harness import ADD, ADD_BATCH, CANNOT_TELL, FENCE, FENCED, NO_LEDGER, OK
from tests.fixtures.journal_harness import KIND_RUN
from tests.fixtures.storage_harness import Disks, Life
from tests.rigs.judge import Found, Key, Known
from tests.rigs.timed import TimedBook

if TYPE_CHECKING:
    from fastbk.native.disk import Disk
    from fastbk.native.journal import JournalRecord
    from fastbk.storage.manifest import Manifest

FENCED_FLAG = 1
RUN_HEADER_BYTES = 72
RUN_ITEM = struct.Struct("<qII8x")
"""Id, place in the run, size."""
LATE_ENTRY_ID = 1 << 40
"""Above every id that a script uses."""
BATCH_ENTRIES_MAX = 1000


def look(disks: Disks, keys: Iterable[Key], place: type[Life] = Life) -> Found:
    """Look at the files of a stopped bookie for these entries. Raises OSError and what a start would."""
    found = Found()
    disk, reader_disk = disks.disk(), disks.disk()
    store = None
    try:
        slots = ManifestSlots(disk, place.ledger_directory)
        manifest = slots.load()
        store = Store(
            place.ledger_directory,
            disk,
            reader_disk,
            StoreOptions(
                incarnation=place.incarnation,
                read_jobs_max=4,
                journal_directory=place.journal_directory,
            ),
        )
        checkpoint = Checkpoint(
            disk, place.ledger_directory, slots, manifest, place.settings,
            clock_s=lambda: 0, new_salt=lambda: 1, wait=lambda _: None,
            journal_directory=place.journal_directory,
        )  # fmt: skip
        if checkpoint.load(store):
            found.complaints.append("locations that can't be read")
        found.complaints += [f"the manifest names: {damage.what}" for damage in manifest.damage]
        _look_at_states(store, manifest, found)
        for ledger_id, entry_id in keys:
            result = store.read(ledger_id, entry_id, entry_id)
            if result.entry is not None:
                found.entries[ledger_id, entry_id] = result.entry
            elif result.status == CANNOT_TELL:
                found.untold.add((ledger_id, entry_id))
        _look_at_journal(disk, place, manifest.mark, found)
    finally:
        if store is not None:
            store.destroy()
        disk.destroy()
        reader_disk.destroy()
    return found


def _look_at_states(store: Store, manifest: Manifest, found: Found) -> None:
    newest = {}
    for file in manifest.locations:
        newest.update({state.ledger_id: state.flags for state in store.states(file.file_id)})
    found.fenced |= {ledger_id for ledger_id, flags in newest.items() if flags & FENCED_FLAG}


def _look_at_journal(disk: Disk, place: type[Life], mark: int, found: Found) -> None:
    """Records behind the mark; of two copies of one entry the first counts (INV-A5)."""
    plan = plan_replay(find_files(disk, place.journal_directory), mark, place.incarnation)
    ends = []
    for file in plan.files:
        with file.scan(disk, place.incarnation, mark) as scan:
            for batch in scan:
                for record in batch.records():
                    _take_record(found, record)
            ends.append(scan.end)
    found.complaints += [each.reason for each in conclude_replay(plan, ends).damage]


def _take_record(found: Found, record: JournalRecord) -> None:
    ledger_id, entry_id = record.ledger_id, record.entry_id
    if record.kind == ADD:
        found.entries.setdefault((ledger_id, entry_id), record.payload)
    elif record.kind == FENCE:
        found.fenced.add(ledger_id)
    elif record.kind == ADD_BATCH:
        at = 8 * record.entry_count  # a table of sizes and checksums, then the entries
        for n in range(record.entry_count):
            (size_bytes,) = struct.unpack_from("<I", record.payload, 8 * n)
            found.entries.setdefault(
                (ledger_id, entry_id + n), record.payload[at : at + size_bytes]
            )
            at += size_bytes
    elif record.kind == KIND_RUN:
        for n in range(record.entry_count):
            item = RUN_HEADER_BYTES + n * RUN_ITEM.size
            entry_id, at, size_bytes = RUN_ITEM.unpack_from(record.payload, item)
            found.entries.setdefault((ledger_id, entry_id), record.payload[at : at + size_bytes])


def read_whole(life: Life, ledger_ids: Iterable[int], highest: Mapping[int, int]) -> Found:
    """Ask a living bookie for all that it has of some ledgers, up to the highest id that anybody sent."""
    found = Found()
    if life.index.status.limbo:
        found.complaints.append("the bookie is in limbo")
    for ledger_id in ledger_ids:
        position = 0
        while position <= highest[ledger_id]:
            answer = life.ask(
                life.harness.read_batch(ledger_id, position, highest[ledger_id], BATCH_ENTRIES_MAX)
            )
            if answer.status == NO_LEDGER:
                break
            if answer.status != OK:
                found.complaints.append(
                    f"ledger {ledger_id} from {position}: status {answer.status}"
                )
                break
            for raw in answer.entries:
                found.entries[ledger_id, int.from_bytes(raw[8:16], "big")] = raw
            if answer.next_entry_id <= position:
                found.complaints.append(f"ledger {ledger_id}: no way on from {position}")
                break
            position = answer.next_entry_id
    return found


def open_whole(disks: Disks, known: Known, place: type[Life] = Life, **options: Any) -> Found:
    """Start a bookie on the disk, read everything, try its fences, see that it takes adds, and let it flush."""
    book = TimedBook()
    highest: dict[int, int] = {}
    for ledger_id, entry_id in known.sent:
        if ledger_id not in known.deleted:
            highest[ledger_id] = max(highest.get(ledger_id, 0), entry_id)
    life = place(disks, book, **options)
    try:
        found = read_whole(life, highest, highest)
        for ledger_id in sorted(set(known.fenced) - set(known.deleted)):
            life.add(ledger_id, LATE_ENTRY_ID, b"late")
            sent = life.waiting[-1]
            life.settle()
            if sent.verdict == FENCED:
                found.fenced.add(ledger_id)
        fresh = max([0, *highest, *known.fenced, *known.deleted]) + 1000
        life.add(fresh, 0, b"alive")
        life.settle()
        if (fresh, 0) not in book.acked:
            found.complaints.append("takes no adds any more")
        life.flush()
        again = read_whole(life, highest, highest)
        if again.entries != found.entries:
            found.complaints.append("other answers after a flush")
    finally:
        life.close()
    return found
