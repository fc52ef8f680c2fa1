"""Notices that metadata was rolled back, and puts it on hold. One bookie's part of INV-M2 to INV-M5.

Metadata publishes a mark (`fastbk.meta.rollback`): its age, and the highest ledger id that it
ever listed or drew. A bookie reads it every few seconds, and stores it in its ledger directories.
Metadata that is behind the bookie's stored mark was restored from an older copy. Then the bookie
stores a hold, moves the counter of ledger ids, puts metadata on hold, and publishes its own mark. A
start does this before it counts itself, since the count is evidence, too.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import StorageError
from fastbk.meta.rollback import (
    MOVED_ID_END,
    NEXT_STEP,
    RESERVE_IDS,
    Hold,
    Mark,
    RolledBack,
    ensure_record,
    evidence,
    is_counted,
    new_hold,
    place_hold,
    raise_mark,
    read_mark,
    read_record,
)
from fastbk.native.disk import Disk
from fastbk.native.ffi import CorruptDataError, FormatTooNewError
from fastbk.observe import logs
from fastbk.storage.metadata_mark import MetadataMark, read_newest, write

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastbk.meta.api import BookieIdentity, MetadataStore

POLL_INTERVAL_S = 2.0
"""Pause between two reads of the mark."""
STORE_INTERVAL_S = 5.0
"""Minimum pause between two writes to the directories, unless there is a hold to store."""
AGE_INTERVAL_S = 60.0
"""The age of metadata rises so often, by whichever bookie is first."""


class MetadataAge:
    """One bookie's view of how old metadata is. Blocking calls, one at a time.

    Attributes:
        hold: the hold that metadata was on at the last look, None if there was none.
    """

    def __init__(
        self,
        directories: Sequence[str],
        store: MetadataStore,
        bookie_id: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`directories`: the ledger directories, locked. Raises FormatTooNewError, OSError."""
        self.hold: Hold | None = None
        self._directories = directories
        self._store = store
        self._bookie_id = bookie_id
        self._clock = clock
        self._damage = ""
        self._stored = self._read()
        self._now = self._stored
        """What is to be stored next."""
        # Metadata ages at each start, too: a restored copy that does not know of this one is found by that.
        self._stored_s = self._polled_s = self._aged_s = float("-inf")

    @property
    def _known(self) -> Mark:
        return Mark(age=self._now.age, highest_id=self._now.highest_id)

    # --- starts ---------------------------------------------------------------------------------------------------

    def check_start(self, counted: int, known: BookieIdentity) -> None:
        """Compare what the directories store with metadata, before this start is counted.

        Args:
            counted: the starts that the directories have counted.
            known: what metadata knows of this bookie.

        Raises Error: then nothing is known, and nothing may be served.
        """
        why = self._damage or evidence(self._known, read_mark(self._store))
        stored = self._now
        if not why and stored.incarnation == known.incarnation and stored.starts > known.starts:
            why = f"metadata had counted {stored.starts} starts of this bookie and knows of {known.starts} now"
        # Directories of earlier versions store no mark, and a start that was cut short counts in them alone.
        if not why and not stored.written and counted > known.starts + 1:
            why = f"the directories have counted {counted} starts, metadata knows of {known.starts}"
        if why:
            self._roll_back(why)
        self._follow_hold()

    def start_counted(self, incarnation: int, starts: int) -> None:
        """Store that metadata has counted this start. Raises OSError."""
        self._now = msgspec.structs.replace(self._now, incarnation=incarnation, starts=starts)
        self._write()

    # --- afterwards -----------------------------------------------------------------------------------------------

    def poll(self, listed_id: int = -1, *, is_last: bool = False) -> None:
        """Compare, publish and store what is new, if it is time. `listed_id`: the highest id that gc saw listed.

        `is_last`: it is time, since the bookie stops. Raises Error, OSError.
        """
        now_s = self._clock()
        if not is_last and now_s - self._polled_s < POLL_INTERVAL_S:
            return
        self._polled_s = now_s
        try:
            self._follow(listed_id)
        finally:
            if is_last or now_s - self._stored_s >= STORE_INTERVAL_S:
                self._write()

    def _follow(self, listed_id: int) -> None:
        try:
            published = self._publish(listed_id)
        except RolledBack as error:
            self._roll_back(str(error))
        else:
            if published.age != self._now.age or self._aged_s == float("-inf"):
                self._aged_s = self._clock()
            self._now = msgspec.structs.replace(
                self._now, age=published.age, highest_id=published.highest_id
            )
        self._follow_hold()

    def _publish(self, listed_id: int) -> Mark:
        """Return the mark, with what metadata has given out since. Raises RolledBack, Error."""
        published = read_mark(self._store)
        if why := evidence(self._known, published):
            raise RolledBack(why)
        drawn_id = self._store.highest_drawn_id()
        highest_id = max(
            drawn_id if drawn_id < MOVED_ID_END else -1,
            listed_id if is_counted(listed_id, drawn_id) else -1,
        )
        is_due = self._clock() - self._aged_s >= AGE_INTERVAL_S
        if highest_id <= published.highest_id and not is_due:
            return published
        return raise_mark(
            self._store,
            Mark(highest_id=highest_id),
            known=self._known,
            older=published if is_due else None,
        )

    # --- holds ----------------------------------------------------------------------------------------------------

    def _roll_back(self, why: str) -> None:
        """Put metadata on hold. What is stored first survives whatever happens to this process or to metadata."""
        hold = new_hold(f"bookie {self._bookie_id}: {why}: metadata was rolled back")
        logs.error("metadata.rolled_back", reason=why, next=NEXT_STEP)
        self._store_hold(hold)
        known = self._known
        floor = self._move_ids()
        self._store_hold(place_hold(self._store, hold))
        published = raise_mark(
            self._store, Mark(age=known.age, highest_id=known.highest_id, floor=floor)
        )
        self._now = msgspec.structs.replace(
            self._now, age=published.age, highest_id=published.highest_id
        )

    def _move_ids(self) -> int:
        """Have ids be drawn far enough above those that were, and return the highest that may have been."""
        floor = self._now.highest_id + RESERVE_IDS
        try:
            self._store.move_ids_above(floor)
        except StorageError as error:
            # After a rollback nothing is drawn below the floor all the same.
            logs.error("metadata.ids_not_moved", reason=str(error))
        return floor

    def _follow_hold(self) -> None:
        """Store the hold that metadata is on; place it again where metadata has forgotten it (INV-M5)."""
        record = read_record(self._store)
        hold, ours = record.hold, self._now
        if hold is None and ours.hold_id and ours.hold_id not in record.confirmed:
            placed = Hold(
                hold_id=ours.hold_id, since_ms=ours.hold_since_ms, reasons=ours.hold_reasons
            )
            logs.warning("metadata.hold_placed_again", reason=str(placed))
            hold = place_hold(self._store, placed)
        if hold is None:
            if ours.hold_id:
                logs.info("metadata.hold_confirmed", hold_id=ours.hold_id)
                self._now = msgspec.structs.replace(
                    ours, hold_id="", hold_since_ms=0, hold_reasons=()
                )
                self._write()
            ensure_record(self._store)
        elif hold != self.hold:
            logs.error("metadata.on_hold", reason=str(hold), next=NEXT_STEP)
            if hold.hold_id != ours.hold_id:
                # Who has placed it may know of a rollback that lost only ids drawn since our last look.
                self._move_ids()
            self._store_hold(hold)
        self.hold = hold

    def _store_hold(self, hold: Hold) -> None:
        self._now = msgspec.structs.replace(
            self._now,
            hold_id=hold.hold_id,
            hold_since_ms=hold.since_ms,
            hold_reasons=hold.reasons,
        )
        self._write()

    # --- directories ----------------------------------------------------------------------------------------------

    def _read(self) -> MetadataMark:
        with ExitStack() as stack:
            places = [
                (stack.enter_context(Disk.of_small_files()), directory)
                for directory in self._directories
            ]
            try:
                return read_newest(places) or MetadataMark()
            except FormatTooNewError:
                raise
            except CorruptDataError as error:
                self._damage = f"{error}, so nobody can tell whether metadata is older"
                return MetadataMark()

    def _write(self) -> None:
        """Store what is new. A disk that takes nothing keeps the older file, which is never wrong."""
        if self._now == self._stored:
            return
        mark = msgspec.structs.replace(self._now, written=self._stored.written + 1)
        for directory in self._directories:
            try:
                with Disk.of_small_files() as disk:
                    write(disk, directory, mark)
            except OSError as error:
                logs.warning("metadata.mark_not_stored", directory=directory, reason=str(error))
        self._now = self._stored = mark
        self._stored_s = self._clock()
