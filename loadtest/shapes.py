"""Load shapes: how many users there are at a time. All but the ramp are functions of the time since the start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

STEPS = 5


def steps(at_s: float, seconds: float, users: int) -> int:
    """Return a fifth of the users in the first fifth of the time, and a fifth more in each that follows."""
    return max(1, users * min(STEPS, int(at_s / seconds * STEPS) + 1) // STEPS)


def spike(at_s: float, seconds: float, users: int) -> int:
    """Return a tenth of the users, and all of them from 40 to 60 % of the time."""
    return users if 0.4 <= at_s / seconds < 0.6 else max(1, users // 10)


def soak(at_s: float, seconds: float, users: int) -> int:
    """Return all users."""
    return users


TIMED: dict[str, Callable[[float, float, int], int]] = {
    "steps": steps,
    "spike": spike,
    "soak": soak,
}
NAMES = (*TIMED, "ramp")


def users_at(name: str, at_s: float, seconds: float, users: int) -> int | None:
    """Return how many users there are at a time of a timed shape. None: it is over."""
    return None if at_s >= seconds else TIMED[name](at_s, seconds, users)


@dataclass
class Ramp:
    """Ramp to break: `users` more after each step, until a threshold breaks, or the time is over.

    `is_held(since_s)` is called at the end of each step. It returns whether all thresholds were met
    since that time.
    """

    users: int
    step_s: float
    seconds: float
    is_held: Callable[[float], bool]
    broken_at: int | None = None
    held: list[int] = field(default_factory=list)
    """The numbers of users that met all thresholds."""
    _level: int = 0
    _since_s: float = 0.0

    def users_at(self, at_s: float) -> int | None:
        """Return how many users there are now. None: it is over."""
        if self._level == 0:
            self._level, self._since_s = self.users, at_s
        elif at_s >= self._since_s + self.step_s:
            if not self.is_held(self._since_s):
                self.broken_at = self._level
                return None
            self.held.append(self._level)
            self._level += self.users
            self._since_s = at_s
        return None if at_s >= self.seconds else self._level

    def __str__(self) -> str:
        best = max(self.held, default=0)
        if self.broken_at is None:
            return f"ramp: did not break; {best} users met all thresholds"
        return f"ramp: {self.broken_at} users broke a threshold; {best} met all"
