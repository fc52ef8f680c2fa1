"""The main loop's side of the scrub: when a cycle begins, how fast it goes, what is remembered, and what it found.

Whoever else meets damage tells it here, too: reads of clients, merges and compactions. All of it is logged, told as an
event, counted, and kept in quarantine as far as the entries are known and no other copy here is whole. What is
remembered is written by the background thread, too: the main loop never waits for a disk.

`DigestTypes` knows which digests ledgers have. The background thread requests them from the supervisor, which reads
metadata, and waits, a little at a time; the main loop only takes the answers. What metadata cannot tell now is not
waited for again for a while, and its entries stay unchecked in this cycle.

    index → supervisor {"type": "digests_wanted", "ledgers": [id, ...]}
    supervisor → index {"type": "digests_known", "digests": [[id, type, HMAC's key in hex, or null], ...]}

Decisions 52 and 69.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec

from fastbk.server.index.background import SCRUB, Task
from fastbk.storage.digest_check import NO_TYPE, DigestCount, KnownDigest, KnownTypes
from fastbk.storage.directories import locations_path
from fastbk.storage.scrub import Recheck, ScrubCycle, Verify
from fastbk.storage.scrub_state import Quarantined, ScrubState, read_scrub_state, write_scrub_state
from fastbk.units import KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fastbk.native.disk import Disk
    from fastbk.native.index import Index
    from fastbk.native.scrub import Run
    from fastbk.native.store import Store
    from fastbk.server.configuration.settings import ScrubSettings
    from fastbk.server.index.background import Background, DirectBackground
    from fastbk.storage.checkpoint import Checkpoint
    from fastbk.storage.digest_check import DigestSource
    from fastbk.storage.scrub import Damaged


SAVE_INTERVAL_S = 60.0
RETRY_S = 60.0
"""Pause after a cycle that ended early."""
RATE_MIN_BYTES_PER_S = 64 * KIB
LOGGED_MAX = 20
"""Findings of one minute that get a line each; so many ranges of bad digests, too."""
LOG_WINDOW_S = 60.0
VERIFY_BYTES_PER_S = 4 * MIB
"""What reads have met is looked at that fast: somebody waits for a repair."""
MET_MAX = 10_000
MET_AGAIN_S = 600.0
"""The same place is looked at again after so long at the earliest, however often it is read."""


class LineWindow:
    """Lets LOGGED_MAX lines pass in LOG_WINDOW_S; findings without one are counted."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._began_s = 0.0
        self._lines = self._unsaid = 0

    def take(self, count: int) -> tuple[int, int]:
        """Return how many of `count` findings get a line now, and how many had none in a window that is over."""
        before = 0
        now_s = self._monotonic_s()
        if now_s - self._began_s >= LOG_WINDOW_S:
            before = self._unsaid
            self._began_s, self._lines, self._unsaid = now_s, 0, 0
        said = min(count, LOGGED_MAX - self._lines)
        self._lines += said
        self._unsaid += count - said
        return said, before


class Save:
    """A plan of one slice: write what is to be remembered. A failure is told by the next one's."""

    def __init__(self, disk: Disk, directory: str, state: ScrubState) -> None:
        self._disk = disk
        self._directory = directory
        self._state: ScrubState | None = state
        self.error = ""

    def step(self, _: Store) -> int:
        """Write."""
        state, self._state = self._state, None
        if state is None:
            return 0
        try:
            write_scrub_state(self._disk, self._directory, state)
        except OSError as error:
            self.error = str(error)
        return 1

    def abandon(self) -> None:
        """Do nothing."""


class Scrubber:
    """The scrub of one index. Main loop only."""

    def __init__(
        self,
        index: Index,
        checkpoint: Checkpoint,
        background: Background | DirectBackground,
        settings: ScrubSettings,
        disk: Disk,
        directory: str,
        journal_disk: Disk,
        journal_directory: str,
        incarnation: int,
        *,
        log: Callable[..., None],
        digests: DigestSource | None = None,
        take_damage: Callable[[], list[Run]] = list,
        clock_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Remember what was, and begin nothing yet.

        Args:
            disk, journal_disk: for the background thread's scrub alone.
            digests: knows which digests ledgers have, in the background thread; None: they are not looked at.
            take_damage: gives what the store's readers have met since the last call.
        """
        self.state = read_scrub_state(disk, directory, incarnation)
        self.wants_flush = False
        """A sealed journal file is damaged: what it holds had better be flushed soon."""
        self._index = index
        self._checkpoint = checkpoint
        self._background = background
        self._settings = settings
        self._disk = disk
        self._directory = directory
        self._journal_disk = journal_disk
        self._journal_directory = journal_directory
        self._incarnation = incarnation
        self._log = log
        self._digests = digests
        self._clock_s = clock_s
        self._monotonic_s = monotonic_s
        self._bucket = Task.limit(RATE_MIN_BYTES_PER_S)
        self._cycle: ScrubCycle | None = None
        self._recheck: Recheck | None = None
        self._rechecked_installs = -1
        """Nothing in quarantine was looked at before so many changes were installed."""
        self._counted_bytes = 0
        self._counted_runs = 0
        self._counted_digests = DigestCount()
        self._bad_lines = LineWindow(monotonic_s)
        self._damage_lines = LineWindow(monotonic_s)
        self._take_damage = take_damage
        self._verify: Verify | None = None
        self._verify_bucket = Task.limit(VERIFY_BYTES_PER_S)
        self._met_s: dict[tuple[bool, int, int], float] = {}
        """When a place was looked at last, by (is a log, its or the locations file's id, offset)."""
        self._not_before_s = 0.0
        self._saved = self.state
        self._saved_s = monotonic_s()
        self._is_changed = False
        self._bad_paths: set[str] = set()
        """Files in which damage was met that is of no known entries; few, or the disk is at its end."""
        self._shown_ranges = self._shown_digests = self._shown_files = 0
        self._show()

    def poll(self) -> None:
        """Take what was found, begin what is due. Memory only."""
        self._take_cycle()
        self._take_met()
        self._take_recheck()
        self._say_damaged("", [])
        self._show_files()
        self._say_bad_digests([])
        if self._settings.rate_bytes and self._cycle is None:
            self._begin_if_due()
        is_time = self._monotonic_s() - self._saved_s >= SAVE_INTERVAL_S
        if self._is_changed or (is_time and self.state is not self._saved):
            self._save()

    def quarantine(self, ranges: list[tuple[int, int, int]], reason: str) -> None:
        """Note (ledger, first id, last id) of entries that a compaction found damaged."""
        self._index.count("FBK_C_INDEX_DAMAGE_FOUND", len(ranges))
        now_s = int(self._clock_s())
        self._keep(
            [
                Quarantined(ledger_id=ledger, first=first, last=last, reason=reason, found_s=now_s)
                for ledger, first, last in ranges
            ],
            self._checkpoint.installs,
        )

    # ---- cycles

    def _begin_if_due(self) -> None:
        now_s = self._clock_s()
        cycle_s = self._settings.cycle_ms / 1e3
        is_under_way = self.state.began_s > 0
        # A clock that was set back must not keep it from beginning.
        is_due = not 0 <= now_s - self.state.ended_s < cycle_s or not self.state.ended_s
        if self._monotonic_s() < self._not_before_s or not (is_under_way or is_due):
            return
        if not is_under_way:
            began_s = max(1, int(now_s))
            self._set(began_s=began_s, log_id=0, offset_bytes=0, digests_unanswered=0)
        manifest = self._checkpoint.manifest
        total = sum(log.live_bytes for log in manifest.logs)
        total += sum(entry.size_bytes for entry in manifest.locations)
        # As evenly as the cycle allows: a disk that is read a little all the time disturbs nobody.
        wanted = 1.25 * total / max(1.0, cycle_s)
        self._bucket.per_s = min(self._settings.rate_bytes, max(RATE_MIN_BYTES_PER_S, wanted))
        self._cycle = ScrubCycle(
            lambda: self._checkpoint.manifest,
            sorted(self._checkpoint.damaged),
            self._disk,
            self._directory,
            self._journal_disk,
            self._journal_directory,
            self._incarnation,
            place=(self.state.log_id, self.state.offset_bytes),
            deleted=self._index.deleted_ledgers(),
            digests=self._digests,
            installs=lambda: self._checkpoint.installs,
        )
        self._counted_bytes = self._counted_runs = 0
        self._counted_digests = DigestCount()
        self._background.submit(Task("scrub", SCRUB, self._cycle, self._bucket))

    def _take_cycle(self) -> None:
        cycle = self._cycle
        if cycle is None:
            return
        is_done = cycle.is_done  # before what it found: nothing comes after it
        found = [cycle.found.popleft() for _ in range(len(cycle.found))]
        if found:
            self._found(found)
        self._index.count("FBK_C_INDEX_SCRUB_BYTES", cycle.read_bytes - self._counted_bytes)
        self._index.count("FBK_C_INDEX_SCRUB_DAMAGED", cycle.damaged_runs - self._counted_runs)
        self._counted_bytes, self._counted_runs = cycle.read_bytes, cycle.damaged_runs
        self._take_digests(cycle)
        if cycle.place != (self.state.log_id, self.state.offset_bytes):
            self.state = msgspec.structs.replace(
                self.state, log_id=cycle.place[0], offset_bytes=cycle.place[1]
            )
        if not is_done:
            return
        self._cycle = None
        if cycle.stopped:
            self._not_before_s = self._monotonic_s() + RETRY_S
            self._log("scrub.stopped", reason=cycle.stopped)
            return
        self._index.count("FBK_C_INDEX_SCRUB_CYCLES")
        self.state = self.state.without_unseen(set(self._index.deleted_ledgers()))
        self._show()
        now_s = int(self._clock_s())
        self._set(cycles=self.state.cycles + 1, began_s=0, ended_s=now_s, log_id=0, offset_bytes=0)

    # ---- bad digests

    def _take_digests(self, cycle: ScrubCycle) -> None:
        """Count what was looked at; remember, and say, what came with a wrong digest."""
        count = msgspec.structs.replace(cycle.digests)  # the other thread goes on counting
        more = count.minus(self._counted_digests)
        self._counted_digests = count
        self._index.count("FBK_C_INDEX_SCRUB_DIGESTS", more.checked)
        self._index.count("FBK_C_INDEX_SCRUB_BAD_DIGESTS", more.bad)
        self._index.count("FBK_C_INDEX_SCRUB_DIGESTS_KEYED", more.keyed)
        self._index.count("FBK_C_INDEX_SCRUB_DIGESTS_UNKNOWN", more.unknown)
        if more.unanswered:
            unanswered = self.state.digests_unanswered + more.unanswered
            self.state = msgspec.structs.replace(self.state, digests_unanswered=unanswered)
        found = [cycle.bad_digests.popleft() for _ in range(len(cycle.bad_digests))]
        if found:
            known = {one.key for one in self.state.bad_digests}
            self._say_bad_digests([key for key in found if key not in known])
            self.state = self.state.with_bad_digests(found, int(self._clock_s()))
            self._is_changed = True
            self._show()

    def _say_bad_digests(self, found: list[tuple[int, int, int]]) -> None:
        said, before = self._bad_lines.take(len(found))
        if before:
            self._log("scrub.more_bad_digests", ranges=before)
        for ledger_id, first, last in found[:said]:
            self._log(
                "scrub.bad_digest",
                ledger_id=ledger_id,
                first_entry_id=first,
                last_entry_id=last,
                next="it came so: readers take another bookie's copy; docs/damage.md",
            )

    # ---- what was found

    def _take_met(self) -> None:
        """Have looked at what reads have met, and take what came of that. Bounded by what the store notes."""
        verify = self._verify
        if verify is not None:
            is_done = verify.is_done
            found = [verify.found.popleft() for _ in range(len(verify.found))]
            known = {(one.ledger_id, one.first, one.last) for one in self.state.quarantined}
            found = [one for one in found if (one.ledger_id, one.first, one.last) not in known]
            if found:
                self._found(found, "read.damaged")
            self._verify = None if is_done else verify
            return
        now_s = self._monotonic_s()
        runs = []
        for run in self._take_damage():
            place = run.ledger_id >= 0, run.log_id, run.offset_bytes
            if now_s - self._met_s.get(place, -MET_AGAIN_S) >= MET_AGAIN_S:
                self._met_s.pop(place, None)
                self._met_s[place] = now_s
                runs.append(run)
        while len(self._met_s) > MET_MAX:
            del self._met_s[next(iter(self._met_s))]
        if runs:
            self._verify = Verify(
                runs, self._directory, self._journal_directory, self._checkpoint.installs
            )
            task = Task("read_verify", SCRUB, self._verify, self._verify_bucket)
            self._background.submit(task)

    def _say_damaged(self, event: str, found: list[Damaged]) -> None:
        said, before = self._damage_lines.take(len(found))
        if before:
            self._log("scrub.more_damaged", findings=before)
        for one in found[:said]:
            self._log(
                event,
                path=one.path,
                reason=one.reason,
                ledger_id=one.ledger_id,
                first_entry_id=one.first,
                last_entry_id=one.last,
                next="`fastbk bookie repair` copies what is damaged from other bookies"
                if one.ledger_id >= 0
                else "`fastbk bookie check` says more; docs/damage.md has what to do",
            )

    def _found(self, found: list[Damaged], event: str = "scrub.damaged") -> None:
        deleted = set(self._index.deleted_ledgers())
        found = [one for one in found if one.ledger_id not in deleted]
        self._index.count("FBK_C_INDEX_DAMAGE_FOUND", len(found))
        self._say_damaged(event, found)
        self._bad_paths.update(one.path for one in found if one.ledger_id < 0)
        self.wants_flush |= any(
            one.ledger_id < 0 and one.path.startswith(self._journal_directory) for one in found
        )
        now_s = int(self._clock_s())
        self._keep(
            [
                Quarantined(
                    ledger_id=one.ledger_id,
                    first=one.first,
                    last=one.last,
                    reason=one.reason,
                    found_s=now_s,
                )
                for one in found
                if one.ledger_id >= 0
            ],
            min((one.installs for one in found if one.ledger_id >= 0), default=0),
        )

    def _keep(self, found: list[Quarantined], installs: int) -> None:
        """`installs`: how many changes were known when it was looked at. A later one may have healed it already."""
        if not found:
            return
        is_first = not self.state.quarantined
        self._rechecked_installs = installs if is_first else min(installs, self._rechecked_installs)
        self.state = self.state.with_found(found)
        self._is_changed = True
        self._show()

    def _take_recheck(self) -> None:
        """Look at what is in quarantine again after each flush or merge: repairs arrive by them."""
        recheck = self._recheck
        if recheck is not None:
            is_done = recheck.is_done
            readable = {recheck.readable.popleft() for _ in range(len(recheck.readable))}
            if readable:
                every = self.state.quarantined
                healed = [one for one in every if (one.ledger_id, one.first, one.last) in readable]
                self.state = self.state.without(healed)
                self._is_changed = True
                self._log("scrub.healed", ranges=len(healed), left=len(self.state.quarantined))
                self._show()
            self._recheck = None if is_done else recheck
        installs = self._checkpoint.installs
        is_due = self.state.quarantined and installs != self._rechecked_installs
        if is_due and self._recheck is None:
            self._rechecked_installs = installs
            ranges = [(one.ledger_id, one.first, one.last) for one in self.state.quarantined]
            self._recheck = Recheck(ranges)
            self._background.submit(Task("scrub_recheck", SCRUB, self._recheck, self._bucket))

    # ---- what is remembered

    def _set(self, **changes: int) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)
        self._is_changed = True

    def _show(self) -> None:
        """The gauge goes up and down by what has changed, modulo 2⁶⁴."""
        ranges = len(self.state.quarantined)
        change = (ranges - self._shown_ranges) % (1 << 64)
        self._index.count("FBK_C_INDEX_QUARANTINED", change)
        self._shown_ranges = ranges
        digests = len(self.state.bad_digests)
        change = (digests - self._shown_digests) % (1 << 64)
        self._index.count("FBK_C_INDEX_BAD_DIGESTS", change)
        self._shown_digests = digests

    def _show_files(self) -> None:
        """Tell how many locations files are damaged of those that count now."""
        known = self._checkpoint.damaged
        files = 0
        if known or self._bad_paths:
            for one in self._checkpoint.manifest.locations:
                path = locations_path(self._directory, one.file_id)
                files += one.file_id in known or path in self._bad_paths
        change = (files - self._shown_files) % (1 << 64)
        if change:
            self._index.count("FBK_C_INDEX_LOCATIONS_DAMAGED", change)
        self._shown_files = files

    def _save(self) -> None:
        self._is_changed = False
        self._saved = self.state
        self._saved_s = self._monotonic_s()
        save = Save(self._disk, self._directory, self.state)
        self._background.submit(Task("scrub_save", SCRUB, save, self._bucket))


DIGESTS_MAX = 16_384
"""Whose types are kept: some 2.5 MiB, 1 more where all have HMACs."""
DIGEST_AGE_S_MAX = 3600.0
"""Maximum age of a digest that is kept."""
ASKED_MAX = 1024
"""Ledgers in one message."""
VAIN_MAX = 4096
"""Ledgers that are remembered for not having been answered."""
DIGEST_WAIT_S = 0.02
"""Longest wait at once: merges and compactions wait behind it."""
PATIENCE_S = 10.0
"""How long a slice of the scrub waits for the next answer."""
PATIENCE_QUIET_S = 0.1
"""The same where the last wait heard nothing at all, for PAUSE_S or until something is heard."""
PAUSE_S = 60.0
"""How long a ledger that was asked for in vain is not asked for again."""


class DigestTypes:
    """`fastbk.storage.digest_check.DigestSource` of one index process."""

    def __init__(
        self,
        ask: Callable[[dict[str, Any]], bool],
        *,
        ledgers_max: int = DIGESTS_MAX,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ask`: sends a message to the supervisor without waiting; False: not now. Called by the background thread."""
        self._ask = ask
        self._monotonic_s = monotonic_s
        self._change = threading.Condition()
        self._types = KnownTypes(ledgers_max)
        self._heard_s = monotonic_s() - PAUSE_S
        """When the last answer came."""
        self._quiet_until_s = monotonic_s() - PAUSE_S
        # The background thread's own.
        self._since_s = monotonic_s()
        self._began_s: float | None = None
        """When the wait under way began."""
        self._asked: set[int] = set()
        """Ledgers whose digests were requested."""
        self._vain_until_s: dict[int, float] = {}

    # ---- main loop

    def put_answers(self, digests: Sequence[Sequence[int | str | None]]) -> None:
        """Take an answer: pairs of ledger and type, or key in hex."""
        with self._change:
            for ledger_id, kind in digests:
                if isinstance(ledger_id, int):
                    self._types.put(ledger_id, _known_of(kind))
            self._heard_s = self._monotonic_s()
            self._quiet_until_s = self._heard_s
            self._change.notify_all()

    # ---- background thread

    def begin_cycle(self) -> None:
        """Begin anew: ids may have got other ledgers."""
        self._began_s = None
        self._forget(self._monotonic_s())

    def want(self, ledger_ids: Iterable[int]) -> bool:
        """Ask for what is not known; return whether an answer may still come in time."""
        now_s = self._monotonic_s()
        if now_s - self._since_s > DIGEST_AGE_S_MAX:
            self._forget(now_s)
        with self._change:
            missing = [one for one in ledger_ids if self._types.get(one) is None]
        missing = [one for one in missing if self._vain_until_s.get(one, now_s) <= now_s]
        if not missing:
            self._began_s = None
            return False
        if self._began_s is None:
            self._began_s = now_s
            self._asked.clear()
        new = [one for one in missing if one not in self._asked][:ASKED_MAX]
        if new and self._ask({"type": "digests_wanted", "ledgers": new}):
            self._asked.update(new)
        return self._has_patience(missing, self._began_s, now_s)

    def wait(self) -> None:
        """Wait for an answer, for one slice."""
        with self._change:
            self._change.wait(DIGEST_WAIT_S)

    def known(self, ledger_ids: Iterable[int]) -> dict[int, KnownDigest]:
        """Return the types of those ledgers that are known."""
        with self._change:
            types = {one: self._types.get(one) for one in ledger_ids}
        return {ledger_id: kind for ledger_id, kind in types.items() if kind is not None}

    def _forget(self, now_s: float) -> None:
        self._since_s = now_s
        with self._change:
            self._types.clear()

    def _has_patience(self, missing: list[int], began_s: float, now_s: float) -> bool:
        with self._change:
            heard_s = max(began_s, self._heard_s)
            patience_s = PATIENCE_QUIET_S if now_s < self._quiet_until_s else PATIENCE_S
            if now_s - heard_s < patience_s:
                return True
            if self._heard_s < began_s:
                self._quiet_until_s = now_s + PAUSE_S
        for ledger_id in missing:
            self._vain_until_s.pop(ledger_id, None)  # to the end
            self._vain_until_s[ledger_id] = now_s + PAUSE_S
        while len(self._vain_until_s) > VAIN_MAX:
            del self._vain_until_s[next(iter(self._vain_until_s))]
        self._began_s = None
        return False


def _known_of(told: int | str | None) -> KnownDigest:
    if told is None:
        return NO_TYPE
    return bytes.fromhex(told) if isinstance(told, str) else told
