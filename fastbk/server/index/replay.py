"""Replay: what the journal holds behind the mark goes into the index, and is flushed before anybody hears of it.

Everything here may be cut off at any point and begun again: batches are taken in idempotently, and only a
checkpoint moves the mark. Afterwards all old journal files lie behind it.

Damage goes on record in the commit of replay's flush, and off it in that of a later replay's (INV-X6). In between the
supervisor has listed the ledgers that may have lost something, and replay puts them into limbo. Each is in doubt by its
own state from then on, and is healed by itself; of all others "no" is the truth again.

Decision 4.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import StorageError
from fastbk.native.ffi import CorruptDataError
from fastbk.native.journal import JournalEnd
from fastbk.native.process import kill_point
from fastbk.storage.journal_files import (
    ReplayEnd,
    ReplayFile,
    conclude_replay,
    find_files,
    next_file_id_of,
    passed_files,
    plan_replay,
)
from fastbk.storage.manifest import Damage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fastbk.native.disk import Disk
    from fastbk.native.index import Index
    from fastbk.server.index.flush import Flusher
    from fastbk.storage.manifest import Manifest

READ_ATTEMPTS_MAX = 3
EARLY_FLUSHES = 8
"""How many flushes of a replay do not wait for a full cache: reading and flushing go on beside each other sooner, and
little is left to flush when all is read. Later ones wait: each flush adds a locations file."""
LOST_STATES = "ledger states in locations file {file_id} are damaged"


class Replayed(msgspec.Struct, frozen=True):
    """What replay found. `lost_states`: fences may have been forgotten; normal adds must be refused for good.

    `is_newly_damaged`: never seen before, and the mark of it is written that puts ledgers into limbo at the next boot.
    `ended`: damage that is on record no more.
    """

    end: ReplayEnd
    batches: int
    records: int
    bytes: int
    is_damaged: bool
    lost_states: bool
    is_newly_damaged: bool = False
    ended: tuple[Damage, ...] = ()

    def message(self, states: int) -> dict[str, object]:
        """Return the `replayed` message; `states`: how many were handed over."""
        return {
            "type": "replayed",
            **self.end.message(),
            "batches": self.batches,
            "records": self.records,
            "bytes": self.bytes,
            "states": states,
            "is_newly_damaged": self.is_newly_damaged,
        }


def _load_file_states(index: Index, file_id: int) -> bool:
    """Take one file's states in; return whether all of them are whole. As for the journal, they are read again before
    they are taken for damaged. States that were taken in already are taken in again. Raises StorageError when the
    disk does not give them, which may pass: the start is given up, and nothing put on record.
    """
    for attempt in range(1, READ_ATTEMPTS_MAX + 1):
        try:
            index.load_states(file_id)
        except CorruptDataError:
            continue
        except OSError as error:
            if attempt < READ_ATTEMPTS_MAX:
                continue
            raise StorageError(
                f"the ledger states in locations file {file_id} cannot be read: {error.strerror}. Nothing was put on"
                " record: start again when the disk is well; if it will not be, `fastbk bookie rebuild-locations`"
            ) from error
        return True
    return False


def load_states(index: Index, manifest: Manifest) -> list[Damage]:
    """Take all ledger states of a manifest's files in, oldest first; return what is damaged."""
    damage = []
    now_s = int(time.time())
    for entry in manifest.locations:
        if not _load_file_states(index, entry.file_id):
            what = LOST_STATES.format(file_id=entry.file_id)
            damage.append(
                Damage(what=what, file_id=0, first_sequence=0, last_sequence=0, found_s=now_s)
            )
    return damage


def replay(
    index: Index,
    flusher: Flusher,
    manifest: Manifest,
    disk: Disk,
    directory: str,
    incarnation: int,
    limbo: Sequence[int] = (),
    confirm: Callable[[], None] = lambda: None,
    *,
    is_listed: bool = False,
) -> Replayed:
    """Take in everything behind the manifest's mark, and flush it.

    Args:
        index: its store has loaded the manifest's files.
        manifest: as loaded.
        disk: of the journal directory.
        limbo: ids of ledgers whose data was lost by an earlier life (INV-X4).
        confirm: called before damage is put on record; raises if the directory is not the bookie's (INV-D2). What
            has to outlive that, it does itself.
        is_listed: `limbo` has every ledger that metadata names this bookie for, listed by this boot: whatever the
            manifest has on record by now may have harmed no others.

    Raises StorageError (a foreign journal), CorruptDataError, OSError, CheckpointFailed: the bookie can't
    start, and nothing is lost by that.
    """
    index.set_mark(manifest.mark, is_damaged=bool(manifest.damage) and not is_listed)
    lost = load_states(index, manifest)
    if limbo:
        index.put_in_limbo(limbo)
    plan = plan_replay(
        find_files(disk, directory, passed=passed_files(manifest.logs)),
        manifest.mark,
        incarnation,
        next_file_id=next_file_id_of(manifest),
    )
    early = early_flushes(index.cache_bytes)
    ends = [
        _replay_file(index, flusher, disk, file, manifest, incarnation, early)
        for file in plan.files
    ]
    end = conclude_replay(plan, ends)
    met = [*lost, *_found(end)]
    known = {damage.what for damage in manifest.damage}
    damage = [each for each in met if each.what not in known]
    ended = ended_damage(manifest, met) if is_listed else ()
    if damage:
        confirm()
    if met:
        index.damage()
    # Nothing that any header named is ever given to another batch: the mark goes to the end of all.
    index.replay_done(end.predecessor_sequence)
    kill_point("index.replay_before_flush")
    # Nothing is written any more to a file that was there: the journal begins another one.
    flusher.flush_now(damage=damage, ended=ended, passed_file_id=end.next_file_id)
    return Replayed(
        end=end.with_kept(flusher.listed_files, (*manifest.logs, *flusher.listed_logs)),
        batches=sum(each.batches for each in ends),
        records=sum(each.records for each in ends),
        bytes=sum(each.bytes for each in ends),
        is_damaged=bool(met or len(ended) < len(manifest.damage)),
        lost_states=bool(lost),
        is_newly_damaged=bool(damage),
        ended=ended,
    )


def ended_damage(manifest: Manifest, met: Sequence[Damage]) -> tuple[Damage, ...]:
    """Return what is on record and was not met again.

    A batch that was lost lies behind the mark since the commit that put it on record, so it is not met again. Ledger
    states that are damaged are met at each start, until `rebuild-locations` has made new ones.
    """
    again = {one.what for one in met}
    return tuple(one for one in manifest.damage if one.what not in again)


def early_flushes(cache_bytes: int) -> Iterator[int]:
    """Yield how full the cache is at each of the first flushes."""
    yield cache_bytes // 6
    yield cache_bytes // 3
    for _ in range(EARLY_FLUSHES - 2):
        yield cache_bytes // 2


def _replay_file(
    index: Index,
    flusher: Flusher,
    disk: Disk,
    file: ReplayFile,
    manifest: Manifest,
    incarnation: int,
    early: Iterator[int],
) -> JournalEnd:
    """Take all batches of one file in that count, and have the caches flushed meanwhile: full ones, and `early` ones.

    A disk that fails to read gets more than one chance before that is taken for damage.
    """
    for attempt in range(READ_ATTEMPTS_MAX):
        with file.scan(
            disk,
            incarnation,
            manifest.mark,
            mark_offset_bytes=(
                manifest.mark_offset_bytes if file.file_id == manifest.mark_file_id else 0
            ),
            lock=True,
        ) as scan:
            index.replay(scan, flusher.flush_behind, early)
            end = scan.end
        if not end.read_error or attempt == READ_ATTEMPTS_MAX - 1:
            break
    return end


def _found(end: ReplayEnd) -> Sequence[Damage]:
    now_s = int(time.time())
    return [
        Damage(
            what=damage.reason,
            file_id=damage.file_id,
            first_sequence=damage.first_sequence,
            last_sequence=damage.last_sequence,
            found_s=now_s,
        )
        for damage in end.damage
    ]
