"""How a disk is, and what a bookie still takes there. Pure: figures, errors and time arrive as arguments.

One `DiskHealth` a directory. The floors of a ledger directory, from above:

    free_bytes_min            below it normal adds are refused: the bookie is read-only to clients
    repair_free_bytes_min     below it recovery adds and fences are refused too: nothing more is taken in
    reserve_bytes             never given away by choice: what is acknowledged and only in the journal has to be flushed
                              here, at the latest by replay; what lies above it is also compaction's room

Everything comes back by itself, a bit above where it went, so that nobody sees it flap.
"""

from __future__ import annotations

import enum

import msgspec


class DiskState(enum.StrEnum):
    """What is wrong with a directory's disk, the worst of it, in rising order."""

    OK = "ok"
    WARN = "warn"
    """Above `warn_ratio`: somebody should look."""
    FULL = "full"
    """Normal adds are refused; recovery adds and fences have room."""
    EXHAUSTED = "exhausted"
    """Nothing more is taken in."""
    FAILED = "failed"
    """What was to be written could not be, several times over."""
    READ_ONLY = "read_only"
    """Mounted read-only, as file systems do by themselves after an error."""
    GONE = "gone"
    """The path leads to another file system than at the start, or nowhere."""

    @property
    def severity(self) -> int:
        """0 for OK, rising by one; the value of the metric."""
        return _SEVERITY[self]


_SEVERITY = {state: number for number, state in enumerate(DiskState)}


class Takes(enum.IntEnum):
    """What may still be written because of a disk; the native code knows the same numbers."""

    ALL = 0
    REPAIRS = 1
    """Recovery adds and fences."""
    NOTHING = 2


BACK_ABOVE = 1.1
"""A floor counts as left only when so many times its bytes are free."""
WARN_BACK_RATIO = 0.01
"""How far below `warn_ratio` the warning ends."""
NEAR_RATIO = 0.03
"""So close to a ratio, or within twice the highest floor, a disk is looked at often."""
FAILED_BEARS_S = 10.0
"""So long a disk on which every write fails still gets recovery adds and fences: they lie in the journal meanwhile.
After it they would only fill caches and rings and then wait."""


class Thresholds(msgspec.Struct, frozen=True):
    """Where a directory's states begin. Ratios are of what an ordinary user may use; 1.0 and 0 bytes: never."""

    warn_ratio: float = 0.90
    full_ratio: float = 1.0
    low_water_ratio: float = 1.0
    """Once full by the ratio, it ends only below this; at most `full_ratio`."""
    free_bytes_min: int = 0
    repair_free_bytes_min: int = 0
    reserve_bytes: int = 0


class DirectorySample(msgspec.Struct, frozen=True):
    """One measurement of a directory.

    Attributes:
        free_bytes: an ordinary user may still write, less what others of this bookie are going to take there.
        used_bytes: by whomever.
        is_read_only: the mount is.
        gone: why the path no longer leads to the directory that was locked; empty: it does.
    """

    free_bytes: int
    used_bytes: int
    is_read_only: bool = False
    gone: str = ""

    @property
    def used_ratio(self) -> float:
        """Used share, 0 to 1; 0 where nothing is known."""
        total_bytes = self.used_bytes + max(self.free_bytes, 0)
        return self.used_bytes / total_bytes if total_bytes else 0.0


class DiskHealth:
    """The state of one directory's disk.

    Attributes:
        state, reason: the worst that holds, and why; empty for OK.
        takes: what may be written there.
        since_s: when `state` or `takes` last changed.
        slow: why the disk is called slow, empty: it is not. Slowness refuses nothing: whoever waits for the disk is
            bounded everywhere.
        errors: writes, syncs and renames that failed, ever.
        sample: the newest.
    """

    def __init__(self, thresholds: Thresholds, now_s: float) -> None:
        self.thresholds = thresholds
        self.state = DiskState.OK
        self.takes = Takes.ALL
        self.reason = ""
        self.since_s = now_s
        self.slow = ""
        self.errors = 0
        self.sample = DirectorySample(0, 0)
        self._is_looked = False
        self._level = DiskState.OK
        """Return OK, WARN, FULL or EXHAUSTED, by the figures alone."""
        self._by_ratio = False
        self._failing: dict[str, tuple[str, float]] = {}
        self._no_room = ""

    def update(self, look: DirectorySample, now_s: float) -> bool:
        """Take a look's figures; return whether state, takes or reason changed."""
        self.sample = look
        self._is_looked = True
        if not look.gone:
            self._level = self._level_of(look)
        return self._judge(now_s)

    def failed(self, what: str, reason: str, now_s: float) -> bool:
        """Note that `what` could not be written, with all its attempts; returns as `update`."""
        self.errors += 1
        _, since_s = self._failing.get(what, ("", now_s))
        self._failing[what] = (reason, since_s)
        return self._judge(now_s)

    def worked(self, what: str, now_s: float) -> bool:
        """Note that `what` was written; returns as `update`."""
        self._failing.pop(what, None)
        return self._judge(now_s)

    def no_room(self, reason: str, now_s: float) -> bool:
        """Note that what has to be made ahead finds no room (empty: it does); returns as `update`.

        For who decides himself what he takes then: `takes` stays as it is.
        """
        self._no_room = reason
        return self._judge(now_s)

    def tick(self, now_s: float) -> bool:
        """Let time pass; returns as `update`."""
        return self._judge(now_s)

    @property
    def is_near(self) -> bool:
        """Whether it should be looked at often: something is wrong or about to be."""
        thresholds, look = self.thresholds, self.sample
        if self.state not in (DiskState.OK, DiskState.WARN):
            return True
        if not self._is_looked or look.free_bytes < 2 * thresholds.free_bytes_min:
            return True
        return thresholds.full_ratio < 1.0 and look.used_ratio >= thresholds.full_ratio - NEAR_RATIO

    def _level_of(self, look: DirectorySample) -> DiskState:
        thresholds = self.thresholds
        was = self._level
        if _is_below(look, thresholds.repair_free_bytes_min, was=was is DiskState.EXHAUSTED):
            return DiskState.EXHAUSTED
        ratio = thresholds.low_water_ratio if self._by_ratio else thresholds.full_ratio
        self._by_ratio = thresholds.full_ratio < 1.0 and look.used_ratio >= ratio
        was_full = was in (DiskState.FULL, DiskState.EXHAUSTED)
        if self._by_ratio or _is_below(look, thresholds.free_bytes_min, was=was_full):
            return DiskState.FULL
        warn_ratio = thresholds.warn_ratio - (WARN_BACK_RATIO if was is DiskState.WARN else 0.0)
        if thresholds.warn_ratio < 1.0 and look.used_ratio >= warn_ratio:
            return DiskState.WARN
        return DiskState.OK

    def _judge(self, now_s: float) -> bool:
        before = self.state, self.takes
        reason_before = self.reason
        self.state, self.takes, self.reason = self._worst(now_s)
        if (self.state, self.takes) != before:
            self.since_s = now_s
            return True
        # Figures move in every reason; a change of the words before them is one.
        return self.reason.partition(":")[0] != reason_before.partition(":")[0]

    def _failing_takes(self, now_s: float) -> Takes:
        if not self._failing:
            return Takes.ALL
        lasts_s = now_s - min(since_s for _, since_s in self._failing.values())
        return Takes.REPAIRS if lasts_s < FAILED_BEARS_S else Takes.NOTHING

    def _worst(self, now_s: float) -> tuple[DiskState, Takes, str]:
        look = self.sample
        if look.gone:
            return DiskState.GONE, Takes.NOTHING, f"the directory is gone: {look.gone}"
        if look.is_read_only:
            return DiskState.READ_ONLY, Takes.NOTHING, "the file system is mounted read-only"
        if self._level is DiskState.EXHAUSTED:  # that writes fail there is a part of it
            floor_bytes = self.thresholds.repair_free_bytes_min
            said = _said(look, floor_bytes)
            return self._level, Takes.NOTHING, f"too little space even for repairs: {said}"
        if self._failing:
            what, (why, _) = min(self._failing.items(), key=lambda item: item[1][1])
            return DiskState.FAILED, self._failing_takes(now_s), f"{what} fails: {why}"
        if self._level is DiskState.FULL:
            floor_bytes = self.thresholds.free_bytes_min
            return self._level, Takes.REPAIRS, f"too little space: {_said(look, floor_bytes)}"
        if self._no_room:
            return DiskState.FULL, Takes.ALL, self._no_room
        if self._level is DiskState.WARN:
            return self._level, Takes.ALL, f"filling up: {look.used_ratio:.0%} used"
        return DiskState.OK, Takes.ALL, ""


def _is_below(look: DirectorySample, floor_bytes: int, *, was: bool) -> bool:
    return look.free_bytes < floor_bytes * (BACK_ABOVE if was else 1.0)


def _said(look: DirectorySample, floor_bytes: int) -> str:
    free_mib, floor_mib = max(look.free_bytes, 0) >> 20, floor_bytes >> 20
    return f"{free_mib} MiB free, {floor_mib} MiB are kept, {look.used_ratio:.0%} used"
