"""When a segment rolls by its age, and when the next one is made ready: spread over streams that began together.

Thousands of them would else be due in the same moment, and again and
again: the end of a segment is an append, a close and a change of the chain. So each rolls some time in the last tenth
of its age, and has the next one made ready some time before; which, its ledger's id says.
"""

from __future__ import annotations

from dataclasses import dataclass

LAST_SHARE = 0.1
"""Of the age: the part in which segments roll."""
READY_FROM, READY_TO = 0.5, 0.8
"""Between these shares of the age the next segment is made; with both limits by size at half of it."""
LOOK_S_MAX = 60.0
LOOK_S_MIN = 0.05
_GOLDEN = 0x9E3779B97F4A7C15
_WORD = 2**64


@dataclass(frozen=True, slots=True)
class RollAge:
    """Of one segment, in seconds behind its first entry; 0: never by age."""

    age_s: float
    ready_s: float
    roll_s: float

    def is_ready_due(self, age_s: float) -> bool:
        """Return whether the next segment is to be made."""
        return 0 < self.ready_s <= age_s

    def is_roll_due(self, age_s: float) -> bool:
        """Return whether the segment ends."""
        return 0 < self.roll_s <= age_s

    def look_s(self, age_s: float) -> float:
        """Return how long it is until somebody has to look again, where nothing is written."""
        pause_s = min(self.age_s / 4, LOOK_S_MAX)
        for due_s in (self.ready_s, self.roll_s):
            if age_s < due_s:
                pause_s = min(pause_s, due_s - age_s)
                break
        return max(pause_s, LOOK_S_MIN)


def roll_age(age_s: float, ledger_id: int) -> RollAge:
    """Return what holds for the segment with this ledger, whose policy's `roll_age_s` is `age_s`."""
    share = ledger_id * _GOLDEN % _WORD / _WORD
    ready_share = READY_FROM + (READY_TO - READY_FROM) * share
    return RollAge(age_s, age_s * ready_share, age_s * (1 - LAST_SHARE * share))
